"""What a changed configuration does to a running node: for each part that can change, how it is taken up."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interlock.config.plan import Plan
from interlock.runtime.approvals.inbox import rules_of
from interlock.runtime.approvals.notifier import make_channels
from interlock.runtime.base.tls import check_parents
from interlock.runtime.calls.budgets import is_limited
from interlock.runtime.node.reload import Take

if TYPE_CHECKING:
    from interlock.runtime.node.node import Node


def takes(node: "Node") -> Mapping[str, Take]:
    """By the key of the plan, or the section it is in."""
    made = _Takes(node)
    return {
        "servers": made.servers,
        "drivers": made.drivers,
        "tools": made.tools,
        "gate": made.tools,
        "approvals": made.approvals,
        "access": made.access,
        "anchors": made.anchors,
        "budget": made.budget,
        "ax.parents": made.parents,
        "ax.children": made.children,
    }


class _Takes:
    def __init__(self, node: "Node") -> None:
        self._node = node

    async def servers(self, old: Plan, new: Plan) -> None:
        node = self._node
        node.current.replace(new)
        node.registrar.keep_segments(new)
        node.door.replan(new)
        await node.configured.take(old, new)
        if (contracts := node.contracts.maybe) is not None:
            await contracts.retake()

    async def drivers(self, old: Plan, new: Plan) -> None:
        node = self._node
        node.current.replace(new)
        if (contracts := node.contracts.maybe) is not None:
            contracts.replan(new)
        await node.drivers.replan(new)

    async def budget(self, old: Plan, new: Plan) -> None:
        """For whoever registers from now on (MCP-AX 11.4). What a tool costs is written where it is listed."""
        self._limit(new)
        if old.budget.units != new.budget.units:
            await self.tools(old, new)

    def _limit(self, new: Plan) -> None:
        node = self._node
        node.current.replace(new)
        node.budgets.limit(new.budget.limits, enforced=is_limited(new))

    async def tools(self, old: Plan, new: Plan) -> None:
        node = self._node
        self._limit(new)
        node.catalog.replan(new)
        await node.configured.restock()
        if (contracts := node.contracts.maybe) is not None:
            contracts.replan(new)
            await contracts.restock_all()

    async def approvals(self, old: Plan, new: Plan) -> None:
        """For what is raised from now on; what waits keeps its time."""
        node = self._node
        node.current.replace(new)
        node.inbox.rules = rules_of(new.approvals)
        await node.notifier.replan(make_channels(new.approvals, node.clock))

    async def access(self, old: Plan, new: Plan) -> None:
        """For whoever comes from now on; a registrant that is here keeps the scope it was told."""
        node = self._node
        self._limit(new)
        node.tokens.replan(new.access)
        node.door.replan(new)
        if node.subservers is not None:
            node.subservers.replan(new)

    async def anchors(self, old: Plan, new: Plan) -> None:
        """For what is signed from now on; who proved its authority before stays until its link ends."""
        await self._node.anchors.replan(new.anchors)
        self._node.current.replace(new)
        await self._node.revocation.void_unfounded()

    async def parents(self, old: Plan, new: Plan) -> None:
        node = self._node
        check_parents(new)  # before anything is given up
        node.own_key(new)
        self._limit(new)
        leaving, node.parents = node.parents, None
        if leaving is not None:
            node.registrar.on_subtree.remove(leaving.subtree_changed)
            leaving.close()
            await leaving.leave()
        node.parents = node.make_parents()
        if node.parents is not None:
            node.parents.start()

    async def children(self, old: Plan, new: Plan) -> None:
        node = self._node
        node.current.replace(new)
        node.registrar.keep_segments(new)
        await node.children.take(new)
