"""The parts that a capability runs in a node, and the common parts from which it constructs them.

Theory of operation. The node constructs its common parts first: stores, the inbox, the way of a call, links, fronts
(`NodeParts`). Then it goes through the table of capabilities and constructs the parts of each, in the order of the
table; a capability may use those before it (`NodeParts.get`). A capability adds its checks and metrics while it is
constructed. What the node asks of it later is in the methods below, and a capability overrides those it needs.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import local_items
from interlock.config.plan import Plan
from interlock.core.part import Part
from interlock.links.link import LocalLink
from interlock.node.common_parts import ApprovalParts, CallParts, FrontParts, LinkParts, StoreParts
from interlock.node.reload import ReloadStep, ReloadSteps
from interlock.store.ports import Change

App = Callable[..., Any]  # an ASGI application
Parts = TypeVar("Parts", bound="CapabilityParts")


class Stage(IntEnum):
    """The stages in which a node opens the parts of its capabilities. They are closed in reverse order."""

    RECORDS = 1  # they read what the store holds, before changes of other replicas arrive
    TOOLS = 2  # they list tools of the node itself, before clients can connect
    SERVERS = 3  # they connect to servers, while clients can connect already
    TREE = 4  # they register this node with its parents, and subservers with this node


class NodeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The common parts of a node, from which capabilities construct their own parts."""

    plan: Plan  # at the start; `stores.current` has the plan in effect
    listen: bool  # whether clients and subservers connect over the network
    stores: StoreParts
    approvals: ApprovalParts
    calls: CallParts
    links: LinkParts
    fronts: FrontParts
    capabilities: dict[type["CapabilityParts"], "CapabilityParts"]

    def get(self, parts: type[Parts]) -> Parts:
        """Return the parts of another capability, by their class.

        It must come earlier in the table of capabilities than the one that asks.
        """
        constructed = self.capabilities[parts]
        if not isinstance(constructed, parts):
            raise TypeError(f"these are not {parts.__name__}")
        return constructed


class CapabilityParts:
    """The parts that a capability, such as rooms or devices, adds to a running node.

    Every method has a default, so subclasses override only what they need.
    """

    def __init__(self, node: NodeParts) -> None:
        """Construct the parts of the capability. Nothing is opened, read or sent yet."""

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        """Return the parts that the node opens and closes, in order, for each stage of its start."""
        return {}

    def links(self) -> tuple[LocalLink, ...]:
        """Return links to tools that the capability itself implements. The node lists these tools while it runs."""
        return ()

    def services(self) -> tuple[object, ...]:
        """Return the objects with methods that handle the operations of this capability."""
        return ()

    def apps(self) -> Mapping[str, App]:
        """Return web applications for the public endpoint, by path.

        A key that ends in a slash matches every path that begins with it.
        """
        return {}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        """Return functions that apply a changed configuration to the running node, by the key or section that changed.

        `steps` contains the functions that several capabilities share.
        """
        return {}

    def replicated_buckets(self) -> Mapping[str, Callable[[Change], None]]:
        """Return functions that take over what other replicas write, by bucket of the store."""
        return {}

    def sweep(self, now: float) -> None:
        """Do the periodic work of the capability, such as ending idle connections. This is called every second."""

    def on_segments_changed(self, plan: Plan) -> None:
        """React to servers or devices that were added to the configuration or removed from it."""

    async def on_servers_changed(self) -> None:
        """React to changed servers. Their links were replaced already."""

    async def on_rules_changed(self, plan: Plan) -> None:
        """React to changed rules about tools. The tools of all servers were listed again already."""

    async def on_access_changed(self, old: Plan, new: Plan) -> None:
        """React to changed [[access]] entries, which say what callers may do."""

    def refuse_calls(self) -> None:
        """Refuse new calls, because the node is stopping. Calls under way continue."""

    async def hang_up(self) -> None:
        """Close the connections of the capability, because the node is stopping and the last call was answered."""


class LocalLinks:
    """The part of a node that offers the node's own tools. They are in the catalog from `open` until `close`."""

    def __init__(self, catalog: Catalog, root_segment: str | None, links: tuple[LocalLink, ...]) -> None:
        self._catalog, self._root_segment, self._links = catalog, root_segment, links

    async def open(self) -> None:
        for link in self._links:
            self._catalog.place(local_items(link, self._root_segment))

    async def close(self) -> None:
        for link in self._links:
            self._catalog.drop(link)
            await link.close()
