"""What a capability runs in a node, and what it is constructed from.

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
from interlock.links.local_link import LocalLink
from interlock.node.common_parts import ApprovalParts, CallParts, FrontParts, LinkParts, StoreParts
from interlock.node.reload import ReloadStep, ReloadSteps
from interlock.store.ports import Change

App = Callable[..., Any]  # an ASGI application
Parts = TypeVar("Parts", bound="CapabilityParts")


class Stage(IntEnum):
    """The stages in which parts of capabilities are opened. They are closed in the reverse order."""

    RECORDS = 1  # they read what the store holds, before changes of other replicas arrive
    TOOLS = 2  # they list tools of the node itself, before clients can connect
    SERVERS = 3  # they connect to servers, while clients can connect already
    TREE = 4  # they register this node with its parents, and subservers with this node


class NodeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The common parts of a node, and those of the capabilities that are constructed so far."""

    plan: Plan  # at the start; `stores.current` has the plan in effect
    listen: bool  # whether clients and subservers connect over the network
    stores: StoreParts
    approvals: ApprovalParts
    calls: CallParts
    links: LinkParts
    fronts: FrontParts
    capabilities: dict[type["CapabilityParts"], "CapabilityParts"]

    def get(self, parts: type[Parts]) -> Parts:
        """Return the parts of a capability that is before the caller's in the table."""
        constructed = self.capabilities[parts]
        if not isinstance(constructed, parts):
            raise TypeError(f"these are not {parts.__name__}")
        return constructed


class CapabilityParts:
    """The running parts of a capability. Each method has a default for a capability that does not need it."""

    def __init__(self, node: NodeParts) -> None:
        """Construct the parts. Nothing is opened, read or sent yet."""

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        """Return the parts to open and close, in their order."""
        return {}

    def links(self) -> tuple[LocalLink, ...]:
        """Return the links of tools that the capability itself serves. They are listed as long as the node runs."""
        return ()

    def services(self) -> tuple[object, ...]:
        """Return the objects that handle the operations of the capability."""
        return ()

    def apps(self) -> Mapping[str, App]:
        """Return applications of the public endpoint by path, or by the start of a path if it ends in a slash."""
        return {}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        """Return how changed keys of the configuration take effect, by key or section. `steps`: what several share."""
        return {}

    def replicated_buckets(self) -> Mapping[str, Callable[[Change], None]]:
        """Return what takes over the changes that other replicas write to a bucket of the store."""
        return {}

    def sweep(self, now: float) -> None:
        """Do the work of every second, such as ending idle connections."""

    def on_segments_changed(self, plan: Plan) -> None:
        """React to servers or devices that were added to the configuration, or removed."""

    async def on_servers_changed(self) -> None:
        """React to changed servers, after their links were replaced."""

    async def on_rules_changed(self, plan: Plan) -> None:
        """React to changed rules about tools, after the tools of servers were listed again."""

    async def on_access_changed(self, old: Plan, new: Plan) -> None:
        """React to changed [[access]] rules."""

    def refuse_calls(self) -> None:
        """Take no new calls: the node stops. Calls under way go on."""

    async def hang_up(self) -> None:
        """End the connections, after the last call was answered."""


class LocalLinks:
    """The links of tools that the node itself serves, as a part: listed while it is open."""

    def __init__(self, catalog: Catalog, root_segment: str | None, links: tuple[LocalLink, ...]) -> None:
        self._catalog = catalog
        self._root_segment = root_segment
        self._links = links

    async def open(self) -> None:
        for link in self._links:
            self._catalog.place(local_items(link, self._root_segment))

    async def close(self) -> None:
        for link in self._links:
            self._catalog.drop(link)
            await link.close()
