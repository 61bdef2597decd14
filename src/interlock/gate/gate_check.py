"""Checks 10 and 11 of the guard: must a person agree first, and is their approval used up before the call leaves?

A call that waits for a person passes by `Guard.release` and no other way. In a room, a call of a restricted participant
becomes a proposal, or is refused (MCPx 3.1).
"""

from collections.abc import Callable

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Status
from interlock.approvals.trust.anchors import Anchors
from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CONFIRMATION_REQUIRED, HELD, CheckNumber, Held, Refused, Release
from interlock.core.current_plan import CurrentPlan
from interlock.gate.hold import GateHold, hold_reason
from interlock.gate.protocol.policy import Hold
from interlock.guard.budgets import Budgets


class GateCheck:
    number = CheckNumber.GATE
    name = "gate"
    is_common = False

    def __init__(self, inbox: Inbox, anchors: Anchors, current: CurrentPlan) -> None:
        self._inbox = inbox
        self._anchors = anchors
        self._current = current

    def applies_to(self, route: Route) -> bool:
        return route.is_held or route.link.members is not None

    def check(self, call: Call, link: CallLink) -> Refused | Held | None:
        restricted = link.members.maybe_refusal(call.caller.principal.name) if link.members is not None else None
        hold = call.hold
        if restricted is not None and (hold is None or isinstance(hold, GateHold)):  # not what became a proposal
            return Refused(self.number, restricted)
        if hold is None:  # where it is held, no person could be asked
            return CONFIRMATION_REQUIRED if call.route is not None and call.route.is_held else None
        return (hold.find_refusal(call) or HELD) if hold.is_waiting else None

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        members = route.link.members
        if members is not None and members.maybe_refusal(caller.name) is not None:
            why = f"{caller.name} is restricted in the room {members.name}: the call becomes a proposal there"
            return CheckVerdict(number=self.number, name=self.name, verdict="hold", reason=why)
        held = route.is_held
        reason = self._why_held(route, caller) if held else self._why_not(route)
        return CheckVerdict(number=self.number, name=self.name, verdict="hold" if held else "pass", reason=reason)

    def _why_held(self, route: Route, caller: Principal) -> str:
        if route.gate is not None and route.gate.hold is Hold.DEFINITION:
            definition = self._inbox.find_definition(route.qualified, route.digest)
            how = f"interlock approve {definition.id}" if definition is not None else "the first call asks"
            return f"no operator has said yet what it does: {how}"
        names = self._anchors.approver_names(route.qualified)
        by = f"proof by {', '.join(names)}" if names else "no one may approve it yet: interlock status says what to do"
        waiting = self._inbox.listed((Status.PENDING, Status.APPROVED))
        mine = [
            approval
            for approval in waiting
            if approval.requested_by == caller.name and approval.tool == route.qualified
        ]
        reasons = [hold_reason(route), by]
        if mine:
            reasons.append(", ".join(f"{approval.id} {approval.status.value}" for approval in mine))
        return "; ".join(reasons)

    def _why_not(self, route: Route) -> str:
        if route.gate is not None:
            return "a hop below asks" if route.gated else "nothing is held here; a hop below may ask"
        if route.irreversible:
            mode = self._current.plan.gate.mode
            return 'gate.unannotated is "allow"' if route.is_open and mode != "open" else f'gate.mode is "{mode}"'
        return "it can be undone" if route.capability is not None and route.capability.mutable else "it changes nothing"


class CommitCheck:
    """Check 11: charges the call and uses its approval, on disk, before the first byte leaves."""

    number = CheckNumber.COMMIT
    name = "commit"

    def __init__(self, budgets: Budgets, on_committed: Callable[[Call], None]) -> None:
        """`on_committed`: uses up what else let the call pass."""
        self._budgets = budgets
        self._on_committed = on_committed

    async def check(self, call: Call, link: CallLink, release: Release) -> Refused | None:
        refusal = self._budgets.charge(call, link)
        if refusal is not None:
            return Refused(CheckNumber.BUDGET, refusal)
        hold = call.hold
        refusal = await hold.use(call, release) if isinstance(hold, GateHold) else CONFIRMATION_REQUIRED.refusal
        if refusal is not None:
            call.refund()
            return Refused(self.number, refusal)
        self._on_committed(call)
        return None

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        reason = "the approval is used up, on disk, before the first byte" if route.is_held else "nothing to use up"
        return CheckVerdict(
            number=self.number, name=self.name, verdict="later" if route.is_held else "pass", reason=reason
        )
