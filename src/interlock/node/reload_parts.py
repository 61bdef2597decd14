"""What a changed configuration does to a running node: for each section of the plan, how it is put into effect."""

from collections.abc import Mapping

from interlock.approvals.inbox import rules_of
from interlock.approvals.notifier import make_channels
from interlock.config.plan import Plan
from interlock.core.calls.caller import principal_for
from interlock.guard.budgets import is_limited
from interlock.node.approval_parts import ApprovalParts
from interlock.node.call_parts import CallParts
from interlock.node.driver_parts import DriverParts
from interlock.node.front_parts import FrontParts
from interlock.node.link_parts import LinkParts
from interlock.node.reload import Take
from interlock.node.room_parts import RoomParts
from interlock.node.store_parts import StoreParts


class ReloadSteps:
    def __init__(
        self,
        stores: StoreParts,
        approvals: ApprovalParts,
        calls: CallParts,
        links: LinkParts,
        fronts: FrontParts,
        drivers: DriverParts,
        rooms: RoomParts,
    ) -> None:
        self._stores = stores
        self._approvals = approvals
        self._calls = calls
        self._links = links
        self._fronts = fronts
        self._drivers = drivers
        self._rooms = rooms

    def by_key(self) -> Mapping[str, Take]:
        """By the key of the plan, or the section it is in."""
        return {
            "servers": self._take_servers,
            "devices.described": self._take_devices,
            "drivers": self._take_drivers,
            "tools": self._take_tools,
            "gate": self._take_tools,
            "registry": self._take_registry,
            "approvals": self._take_approvals,
            "safety": self._take_safety,
            "access": self._take_access,
            "anchors": self._take_anchors,
            "budget": self._take_budget,
            "rooms": self._take_rooms,
            "room": self._take_rooms,
            "ax.parents": self._take_parents,
            "ax.children": self._take_children,
        }

    async def _take_servers(self, old: Plan, new: Plan) -> None:
        self._stores.current.replace(new)
        self._links.registrar.keep_segments(new)
        self._fronts.public.replan(new)
        await self._links.servers.take(old, new)
        if (contracts := self._drivers.contracts.maybe) is not None:
            await contracts.retake()
        await self._approvals.guard_changes.replan(new)

    async def _take_devices(self, old: Plan, new: Plan) -> None:
        self._stores.current.replace(new)
        self._links.registrar.keep_segments(new)
        await self._links.devices.take(old, new)

    async def _take_drivers(self, old: Plan, new: Plan) -> None:
        self._stores.current.replace(new)
        if (contracts := self._drivers.contracts.maybe) is not None:
            contracts.replan(new)
        await self._drivers.drivers.replan(new)
        await self._approvals.guard_changes.replan(new)

    async def _take_rooms(self, old: Plan, new: Plan) -> None:
        self._stores.current.replace(new)
        self._rooms.endpoint.replan(new)
        await self._rooms.rooms.replan(new)

    async def _take_budget(self, old: Plan, new: Plan) -> None:
        """For subservers that register from now on (MCP-AX 11.4). What a tool costs is written where it is listed."""
        self._limit(new)
        if old.budget.units != new.budget.units:
            await self._take_tools(old, new)

    def _limit(self, new: Plan) -> None:
        self._stores.current.replace(new)
        self._calls.budgets.limit(new.budget.limits, enforced=is_limited(new))

    async def _take_tools(self, old: Plan, new: Plan) -> None:
        self._limit(new)
        self._calls.catalog.replan(new)
        await self._links.servers.restock()
        if (contracts := self._drivers.contracts.maybe) is not None:
            contracts.replan(new)
            await contracts.restock_all()
        await self._approvals.guard_changes.replan(new)

    async def _take_registry(self, old: Plan, new: Plan) -> None:
        await self._take_tools(old, new)
        self._links.names_tools.replan(new)

    async def _take_approvals(self, old: Plan, new: Plan) -> None:
        """For what is raised from now on; what waits keeps its time."""
        await self._approvals.guard_changes.replan(new)
        self._stores.current.replace(new)
        self._approvals.inbox.replan(rules_of(new.approvals))
        await self._approvals.notifier.replan(make_channels(new.approvals, self._stores.clock))

    async def _take_safety(self, old: Plan, new: Plan) -> None:
        """From the next step of each agent on; blocks stay."""
        self._stores.current.replace(new)
        safety = self._calls.safety
        safety.attempts.replan(is_progressive=new.safety.progressive_lockout)
        is_on = new.safety.mode != "disabled"
        self._calls.dispatch.guard.include(self._calls.agent_check, is_included=is_on)
        safety.loop.replan(new.safety)
        if is_on != (old.safety.mode != "disabled"):
            await self._take_tools(old, new)
        await self._approvals.guard_changes.replan(new)

    async def _take_access(self, old: Plan, new: Plan) -> None:
        """Also for those who are here: clients are told that their lists changed, and who registered by an entry that
        is another now is sent away, because its scope is told when it registers."""
        self._limit(new)
        self._stores.tokens.replan(new.access)
        self._fronts.public.replan(new)
        if self._fronts.subservers is not None:
            self._fronts.subservers.replan(new)
        self._calls.audience.readmit(self._stores.tokens.as_it_is)
        self._fronts.lines.replan()
        await self._links.children.take(new)
        self._fronts.public.dismiss_unwelcome()  # first: who may not come back is told so
        self._links.registrar.dismiss_changed(new.access)
        names = [f"parent:{parent.url}" for parent in new.ax.parents]
        if any(principal_for(name, None, old.access) != principal_for(name, None, new.access) for name in names):
            await self._fronts.parents.replan(new)

    async def _take_anchors(self, old: Plan, new: Plan) -> None:
        """For what is signed from now on; who proved its authority before stays until its link ends."""
        await self._approvals.anchors.replan(new.anchors)
        self._stores.current.replace(new)
        await self._approvals.enrolments.replan()
        await self._approvals.revocation.void_unfounded()

    async def _take_parents(self, old: Plan, new: Plan) -> None:
        self._fronts.parents.check(new)
        self._limit(new)
        await self._fronts.parents.replan(new)
        self._fronts.on_behalf.replan()

    async def _take_children(self, old: Plan, new: Plan) -> None:
        self._stores.current.replace(new)
        self._links.registrar.keep_segments(new)
        await self._links.children.take(new)
