"""Steps that put a changed configuration into effect: those of the common parts, and what capabilities share."""

from collections.abc import Mapping

from interlock.approvals.inbox import rules_of
from interlock.approvals.notifier import make_channels
from interlock.config.plan import Plan
from interlock.guard.budgets import is_limited
from interlock.node.capability_parts import NodeParts
from interlock.node.reload import ReloadStep


class ReloadSteps:
    """The steps of a node, by the key of the plan or the section it is in."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._stores, self._approvals, self._calls = node.stores, node.approvals, node.calls
        self._links, self._fronts = node.links, node.fronts
        self._capabilities = tuple(node.capabilities.values())

    def by_key(self) -> Mapping[str, ReloadStep]:
        steps: dict[str, ReloadStep] = {
            "servers": self._take_servers,
            "tools": self.take_tools,
            "gate": self.take_tools,
            "approvals": self._take_approvals,
            "access": self._take_access,
            "anchors": self._take_anchors,
            "budget": self._take_budget,
        }
        for capability in self._capabilities:
            steps |= capability.reload_steps(self)
        return steps

    # What steps of capabilities use

    def limit(self, new: Plan) -> None:
        """Put the plan and its budgets into effect."""
        self._stores.current.replace(new)
        self._calls.budgets.limit(new.budget.limits, enforced=is_limited(new))

    def take_segments(self, new: Plan) -> None:
        """Put the plan into effect, and reserve the segments of its servers, devices and children."""
        self._stores.current.replace(new)
        for capability in self._capabilities:
            capability.on_segments_changed(new)

    async def take_tools(self, old: Plan, new: Plan) -> None:
        """Apply changed rules about tools to everything that is listed."""
        self.limit(new)
        self._calls.catalog.replan(new)
        await self._links.servers.restock()
        for capability in self._capabilities:
            await capability.on_rules_changed(new)
        await self._approvals.guard_changes.replan(new)

    # Steps of the common parts

    async def _take_servers(self, old: Plan, new: Plan) -> None:
        self.take_segments(new)
        self._fronts.public.replan(new)
        await self._links.servers.take(old, new)
        for capability in self._capabilities:
            await capability.on_servers_changed()
        await self._approvals.guard_changes.replan(new)

    async def _take_budget(self, old: Plan, new: Plan) -> None:
        """Limit subservers that register from now on (MCP-AX 11.4). The cost of a tool is part of its listing."""
        self.limit(new)
        if old.budget.units != new.budget.units:
            await self.take_tools(old, new)

    async def _take_approvals(self, old: Plan, new: Plan) -> None:
        """Apply the rules to approvals that are raised from now on; what waits keeps its time."""
        await self._approvals.guard_changes.replan(new)
        self._stores.current.replace(new)
        self._approvals.inbox.replan(rules_of(new.approvals))
        await self._approvals.notifier.replan(make_channels(new.approvals, self._stores.clock))

    async def _take_access(self, old: Plan, new: Plan) -> None:
        """Apply the rules to connected clients too: they are notified that their lists changed."""
        self.limit(new)
        self._stores.tokens.replan(new.access)
        self._fronts.public.replan(new)
        self._calls.audience.readmit(self._stores.tokens.as_it_is)
        self._fronts.lines.replan()
        for capability in self._capabilities:
            await capability.on_access_changed(old, new)
        self._fronts.public.dismiss_unwelcome()

    async def _take_anchors(self, old: Plan, new: Plan) -> None:
        """Apply the anchors to what is signed from now on. Authority that was proved before lasts with its link."""
        await self._approvals.anchors.replan(new.anchors)
        self._stores.current.replace(new)
        await self._approvals.enrolments.replan()
        await self._approvals.revocation.void_unfounded()
