"""The watch over calls (check 5 of the guard): refuses calls of agents in the safety loop that were not reported.

`AgentCheck` is on the list of the guard unless the loop is disabled, and runs for every call only while there is
something to watch (`Guard.watch`). Its result is a refusal with a reason, or None. The grant of a step is used up when
this check lets the call pass; a call that a person has to approve keeps the grant until it is released.
"""

import contextlib
from dataclasses import dataclass, field
from typing import Any, Final

from interlock.aql.protocol.errors import OperationFailed
from interlock.aql.protocol.model import ExecutionStatus
from interlock.aql.protocol.tokens import digest_of
from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Caller, Principal
from interlock.core.calls.check import CheckNumber, CheckRefusal
from interlock.core.clock import Clock
from interlock.safety.agents import LOCAL, Block
from interlock.safety.executions import (
    WATCHED,
    CallNames,
    Execution,
    Pause,
    StepGrant,
    arguments_of,
    find_owner,
)
from interlock.safety.loop import SafetyLoop
from interlock.safety.protocol import evaluation as protocol
from interlock.safety.protocol.evaluation import Evaluation, StepVerdict
from interlock.wire.jsonrpc.codec import CodecError, decode_value
from interlock.wire.refusal import EXECUTION_REFUSED, Refusal

_WHY: Final = {
    "execution_required": "this client may act only inside an execution: call execute_agent first",
    "unreported_action": "report the action by record_execution_step first, with the name of what is called",
    "paused": "the agent waits for a person and may not act",
    "agent_blocked": "the agent is blocked until a person verifies it",
}


@dataclass(eq=False)
class AgentCheck:
    """Check 5 of the guard: refuses a call of an agent in the safety loop unless the agent has
    reported it and may act.
    """

    number = CheckNumber.AGENT
    name = "agent"
    is_common = True

    loop: SafetyLoop
    clock: Clock
    _work: BackgroundTasks = field(default_factory=BackgroundTasks, init=False)

    async def open(self) -> None:
        """Do nothing: this object holds no resources."""

    async def close(self) -> None:
        await self._work.finish()

    @property
    def is_needed(self) -> bool:
        """Return whether this check may refuse calls at present: the loop is enforcing, and there are executions,
        blocks or clients that need an execution.
        """
        loop = self.loop
        return loop.is_enforcing and bool(loop.plan.require or loop.executions.by_owner or loop.blocks.all())

    def applies_to(self, route: Route) -> bool:
        return True

    def check(self, call: Call, link: CallLink) -> CheckRefusal | None:
        refusal = self._find_refusal(call)
        return None if refusal is None else CheckRefusal(self.number, refusal)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        loop = self.loop
        running = [execution.agent for execution in loop.executions.live() if execution.principal == caller.name]
        if not loop.is_enforcing:
            verdict, reason = "pass", f"the loop is {loop.plan.mode}"
        elif any(loop.find_block(agent) is None for agent in running):
            verdict, reason = "later", "inside an execution: it passes if it was reported"
        elif loop.blocks.of_principal(caller.name):
            verdict, reason = "refuse", "agent_blocked"
        elif loop.policies.is_required(caller.name):
            verdict, reason = "refuse", "execution_required: safety.require names this caller"
        else:
            verdict, reason = "pass", "no agent of this caller is running"
        return CheckVerdict(number=self.number, name=self.name, verdict=verdict, reason=reason)

    def _find_refusal(self, call: Call) -> Refusal | None:
        loop = self.loop
        if call.method not in WATCHED:  # AQL-8.6.3-1
            return None
        if not loop.is_enforcing:  # AQL-8.6.4-6
            return None
        caller = call.caller
        owner, principal = find_owner(caller), caller.principal.name
        mine = loop.executions.by_owner.get(owner, ()) if owner is not None else ()
        names = loop.names.of_call(call)
        for execution in mine:
            if execution.pause is not None:  # AQL-8.6.4-3
                continue
            if loop.find_block(execution.agent) is not None:  # AQL-8.6.4-5, AQL-8.8.3-5
                continue
            for grant in execution.grants:
                if not grant.may(call, names):  # AQL-8.6.2-1
                    continue
                # The actual call may be judged more strictly than its report was.
                judged = self._judge(execution, grant, call, names)
                if judged is not None and judged.verdict is not StepVerdict.CONTINUE:
                    return self._pause(execution, judged, call, names)
                if call.hold is None or not call.hold.is_asked_first:
                    grant.use(call, names)
                return None
        return self._refuse(call, list(mine), principal)

    def _judge(self, execution: Execution, grant: StepGrant, call: Call, names: CallNames) -> Evaluation | None:
        """Evaluate a call by its names and arguments, after its step was reported. Return None if a person has already
        approved all of it.

        If a person approved its step, only what they were not shown can pause it, and the result is None if they were
        shown all of it. What stops an agent does so in spite of the approval.
        """
        policy, danger = self.loop.policies.of(execution.agent), _danger(call)
        try:
            run_text = protocol.find_run_text(names.all, decode_value(arguments_of(call)))
        except CodecError:
            run_text = None
        judged = protocol.evaluate_call(policy, names.all, danger, run_text)
        # AQL-X-17: what stops an agent does so in spite of an approval
        if judged.verdict is StepVerdict.STOP or not grant.is_approved:
            return judged
        # AQL-X-17
        return None if grant.has_shown(run_text) else protocol.evaluate_call(policy, (), danger, run_text)

    def may_notify(self, caller: Caller) -> bool:
        """Return whether a client may send notifications now. Agents cannot report notifications in advance, as they
        can report calls.
        """
        owner = find_owner(caller)
        mine = self.loop.executions.by_owner.get(owner) if owner is not None else None
        return self._find_unreported_refusal(caller.principal.name, has_execution=bool(mine)) is None

    def find_room_refusal(self, principal: str) -> Refusal | None:
        """Return why a client may not act in rooms, apart from calling tools. Return None if it may. Such actions
        cannot be reported in advance.
        """
        has_execution = principal != LOCAL and any(live.principal == principal for live in self.loop.executions.live())
        return self._find_unreported_refusal(principal, has_execution=has_execution)

    def _find_unreported_refusal(self, principal: str, *, has_execution: bool) -> Refusal | None:
        """Return why a client may not act in a way that agents cannot report, such as sending a notification. Return
        None if it may.

        It may not while it has an execution, or must have one, because every action must be reported first. Nor may it
        if an agent of its principal is blocked, unless the principal is that of local callers.
        """
        if not self.is_needed:
            return None
        if principal != LOCAL and (blocked := self.loop.blocks.of_principal(principal)):  # AQL-8.6.4-5
            return self._fault("agent_blocked", blocked=blocked[0])
        if self.loop.policies.is_required(principal):
            return self._fault("execution_required")
        return self._fault("unreported_action") if has_execution else None

    def use(self, call: Call) -> None:
        """Use up the grant of the reported step that allows this call, because the call was released by a person and
        will be sent now.
        """
        if not self.loop.executions.by_owner:
            return
        owner = find_owner(call.caller)
        names = self.loop.names.of_call(call)
        for execution in self.loop.executions.by_owner.get(owner, ()) if owner is not None else ():
            for grant in execution.grants:
                if grant.may(call, names):
                    grant.use(call, names)
                    return

    def _pause(self, execution: Execution, judged: Evaluation, call: Call, names: CallNames) -> Refusal:
        """Pause an agent because its call is judged more strictly than its report was, and return the refusal of the
        call. In the background, ask a person about this call with its arguments.
        """
        execution.grants.clear()
        arguments, now = arguments_of(call), self.clock.wall()
        shown: dict[str, Any] = {"nextActionHint": f"calling {call.target}", "arguments": arguments}
        if judged.verdict is not StepVerdict.STOP:
            shown["calls"] = (call.target,)
        # AQL-X-17: for this very call
        grant = StepGrant(names.of_tool, is_approved=True, digest=digest_of(bytes(arguments)))
        execution.pause = pause = Pause(evaluation=judged, shown=shown, grant=grant, at=now)

        async def escalate() -> None:
            # If the question cannot be stored, the agent stays paused, and its next report asks again.
            with contextlib.suppress(OperationFailed):
                if execution.pause is pause:
                    await self.loop.escalate(execution, pause)

        self._work.begin(escalate(), "safety")
        return self._fault("paused", execution)

    def _refuse(self, call: Call, mine: list[Execution], principal: str) -> Refusal | None:
        loop = self.loop
        blocked = [block for each in mine if (block := loop.find_block(each.agent)) is not None]
        if not mine and principal != LOCAL:
            blocked = loop.blocks.of_principal(principal)
        if not mine and not blocked:
            return self._fault("execution_required") if loop.policies.is_required(principal) else None
        if blocked:  # AQL-8.6.4-5
            return self._fault("agent_blocked", blocked=blocked[0])
        waiting = [each for each in mine if each.pause is not None or each.status is ExecutionStatus.PENDING]
        if len(waiting) == len(mine):
            return self._fault("paused", waiting[0])  # AQL-8.6.4-3
        now = self.clock.wall()
        for execution in mine:
            metadata = protocol.Metadata(operation=call.target, reason="unreported_action")
            message = f"A call of {call.target} was not reported, and was refused."
            execution.tell(protocol.NotificationType.ERROR, message, now, metadata)
            loop.record(execution, "PROTOCOL_VIOLATION", "refused", operation=call.target)
        return self._fault("unreported_action", mine[0])  # AQL-8.6.2-1 and -4

    def _fault(self, reason: str, execution: Execution | None = None, blocked: Block | None = None) -> Refusal:
        data: dict[str, Any] = {"reason": reason, "detail": _WHY[reason]}
        if execution is not None:
            data["element_name"] = execution.name
        if blocked is not None:
            data |= {"element_name": blocked.name, "verification_id": blocked.challenge_id}  # AQL-8.6.4-5
        return Refusal(EXECUTION_REFUSED, "execution_refused", data)


def _danger(call: Call) -> int | None:
    """Return the danger level READ_ONLY for a call that changes nothing. Return None for other calls, whose risk is
    derived from their names.
    """
    route = call.route
    if isinstance(route, Route) and route.capability is not None and not route.is_open:
        return None if route.capability.mutable else protocol.READ_ONLY
    return None if isinstance(route, Route) else protocol.READ_ONLY  # prompts and resources are read
