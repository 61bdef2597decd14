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
    """The stages in which the parts of capabilities are opened. They are closed in reverse order."""

    RECORDS = 1  # they read what the store holds, before changes of other replicas arrive
    TOOLS = 2  # they list tools of the node itself, before clients can connect
    SERVERS = 3  # they connect to servers, while clients can connect already
    TREE = 4  # they register this node with its parents, and subservers with this node


class NodeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The common parts of a node, and the parts of the capabilities that have been constructed so far."""

    plan: Plan  # at the start; `stores.current` has the plan in effect
    listen: bool  # whether clients and subservers connect over the network
    stores: StoreParts
    approvals: ApprovalParts
    calls: CallParts
    links: LinkParts
    fronts: FrontParts
    capabilities: dict[type["CapabilityParts"], "CapabilityParts"]

    def get(self, parts: type[Parts]) -> Parts:
        """Return the parts of another capability.

        It must come earlier in the table of capabilities than the one that asks.
        """
        constructed = self.capabilities[parts]
        if not isinstance(constructed, parts):
            raise TypeError(f"these are not {parts.__name__}")
        return constructed


class CapabilityParts:
    """The parts of a capability in a running node.

    Every method has a default, so subclasses override only what they need.
    """

    def __init__(self, node: NodeParts) -> None:
        """Construct the parts without opening, reading or sending anything."""

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        """Return the parts to open and close, by stage and in order."""
        return {}

    def links(self) -> tuple[LocalLink, ...]:
        """Return the links whose tools the capability itself implements. Their tools are listed while the node runs."""
        return ()

    def services(self) -> tuple[object, ...]:
        """Return the objects that handle the operations of this capability."""
        return ()

    def apps(self) -> Mapping[str, App]:
        """Return applications for the public endpoint, by path.

        A key that ends in a slash matches every path that begins with it.
        """
        return {}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        """Return the functions that apply changed keys to a running node, by key or section of the configuration.

        `steps` contains the functions that several capabilities share.
        """
        return {}

    def replicated_buckets(self) -> Mapping[str, Callable[[Change], None]]:
        """Return functions that apply changes made by other replicas, by bucket of the store."""
        return {}

    def sweep(self, now: float) -> None:
        """Do the work that is due every second, such as ending idle connections."""

    def on_segments_changed(self, plan: Plan) -> None:
        """Handle servers or devices that were added to the configuration or removed from it."""

    async def on_servers_changed(self) -> None:
        """Handle changed servers, after their links were replaced."""

    async def on_rules_changed(self, plan: Plan) -> None:
        """Handle changed rules about tools, after the tools of all servers were listed again."""

    async def on_access_changed(self, old: Plan, new: Plan) -> None:
        """Handle changed [[access]] entries."""

    def refuse_calls(self) -> None:
        """Stop accepting calls, because the node is stopping. Calls under way continue."""

    async def hang_up(self) -> None:
        """Close the connections, after the last call was answered."""


class LocalLinks:
    """A part that lists the tools which the node itself implements, while it is open."""

    def __init__(self, catalog: Catalog, root_segment: str | None, links: tuple[LocalLink, ...]) -> None:
        self._catalog, self._root_segment, self._links = catalog, root_segment, links

    async def open(self) -> None:
        for link in self._links:
            self._catalog.place(local_items(link, self._root_segment))

    async def close(self) -> None:
        for link in self._links:
            self._catalog.drop(link)
            await link.close()
