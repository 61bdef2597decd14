"""The execution safety loop (MCP-AQL 8.6): an agent starts, reports each step before it acts, and ends.

Theory of operation. An execution is created pending; a person approves its start, or the policy does. Before each
action the agent reports a hint in prose. The evaluation of the hint (`protocol.evaluation`) has one of four results:

continue   the step gets a grant for the names in the hint, and the guard lets each of them be called once
pause      the agent waits until a person approves the step
verify     the agent waits for a code that only operators see, or for the proof of an operator
stop       the agent is blocked; only a person lifts the block, with such a code or with a proof

Reports of one agent are evaluated one at a time, under a lock for each agent. A block is on disk before its directive
is sent, so that a crash cannot unblock an agent. The guard check in `watch` decides which calls pass. If a call is
judged more strictly than its report was, `escalate` applies the stricter result as for a report.

The mode of the loop determines the effect of the results: `disabled` watches nothing, `logging` records the reports,
`monitoring` evaluates them and tells the agent what would have happened, and `enforcing` carries the results out.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.protocol.approval import Approval, Kind, Status
from interlock.aql.protocol import errors
from interlock.aql.protocol.errors import OperationFailed
from interlock.aql.protocol.model import ExecutionStatus
from interlock.config.plan import SafetyPlan
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock, rfc3339
from interlock.core.feed import Feed
from interlock.core.recorder import Recorder
from interlock.safety.agents import LOCAL, AgentKey, Block, Blocks, Policies, StepCounts, agent_key, is_agent_name
from interlock.safety.challenges import Challenges
from interlock.safety.executions import (
    FLUSH_S,
    SINGLE_USE,
    CallableNames,
    Execution,
    Executions,
    HeldOperation,
    Owner,
    Pause,
    StepGrant,
    find_owner,
)
from interlock.safety.protocol import evaluation as protocol
from interlock.safety.protocol.evaluation import (
    Directive,
    Evaluation,
    Hint,
    NotificationType,
    StepVerdict,
    normalise,
)
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.safety")

LIVE_MAX: Final = 100  # executions of one principal

_S = ExecutionStatus
_LOGGED: Final = Directive(continue_=True, factors=("Logging mode: not evaluated",))
_ENDED: Final = "the execution has ended"
_START_WAITS: Final = "The start of the agent waits for the approval of a person."
_WOULD: Final = {
    StepVerdict.PAUSE: "Monitoring mode: enforcing would have paused the agent.",
    StepVerdict.VERIFY: "Monitoring mode: enforcing would have paused the agent until a code verifies it.",
    StepVerdict.STOP: "Monitoring mode: enforcing would have blocked the agent.",
}
NAMES_NOTHING: Final = (
    "The hint names nothing that can be called here, so it lets no call pass. Names in quotes are none."
)


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trigger, which assesses a reported action: a risk score from 0 to 100, or a decision to stop the
    agent.
    """

    score: float = 0.0
    is_stopped: bool = False
    reason: str = "This action was stopped. The agent is blocked until a person verifies it."


Trigger = Callable[[AgentKey, Hint], Assessment]


@dataclass(eq=False, kw_only=True)
class SafetyLoop(DecisionReceiver):
    """The execution safety loop of a node. Agents report their steps, and the replies tell them
    whether they may continue.
    """

    policies: Policies
    clock: Clock
    blocks: Blocks
    step_counts: StepCounts
    executions: Executions
    challenges: Challenges
    names: CallableNames
    recorder: Recorder
    has_channel: Callable[[str], bool]  # whether a code for this agent could reach an operator
    idle_s: float  # how long an agent without a session may be silent before its execution fails
    evaluations: int = field(default=0, init=False)
    changed: Feed[None] = field(default_factory=Feed, init=False)  # what is to be watched may be another
    _locks: weakref.WeakValueDictionary[AgentKey, asyncio.Lock] = field(
        default_factory=weakref.WeakValueDictionary, init=False
    )
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _triggers: list[Trigger] = field(default_factory=list, init=False)

    def add_trigger(self, trigger: Trigger) -> None:
        """Add a function that assesses every report of an agent. Its assessment can only make the verdict stricter (AQL
        8.8.3).
        """
        self._triggers.append(trigger)

    @property
    def plan(self) -> SafetyPlan:
        return self.policies.plan

    @property
    def is_enforcing(self) -> bool:
        return self.plan.mode == "enforcing"

    # Life

    async def open(self) -> None:
        await self.blocks.open()
        await self.step_counts.open()
        await self.executions.open()
        await self.challenges.void_left_over(frozenset(block.challenge_id for block in self.blocks.all()))
        self._task = asyncio.get_running_loop().create_task(self._run(), name="safety")
        self.changed.publish(None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for execution in self.executions.live():
            self._end(execution, _S.CANCELLED, "the node stopped")
        await self.executions.flush()
        await self.step_counts.flush()
        await self._write_blocks()

    def replan(self, plan: SafetyPlan) -> None:
        """Apply a changed plan, starting with the next step."""
        before, self.policies = self.plan.mode, Policies(plan)
        if before != plan.mode:
            for execution in self.executions.live():
                self._tell(execution, f"The safety loop is now {plan.mode}.")
        self.changed.publish(None)

    def end_session(self, caller: Caller, *, is_graceful: bool) -> None:
        """End the executions of a client's session (AQL 8.4). They are cancelled; running ones fail instead if the
        connection was lost.
        """
        owner = find_owner(caller)
        for execution in list(self.executions.by_owner.get(owner, ())) if owner is not None and owner[1] else ():
            if is_graceful or execution.status is _S.PENDING:
                self._end(execution, _S.CANCELLED, "the session ended")
            else:
                self._end(execution, _S.FAILED, "the connection of the agent was lost")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self.fail_idle()
            await self.executions.flush()
            await self.step_counts.flush()
            await self._write_blocks()

    async def _write_blocks(self) -> None:
        """Write the blocks that the store did not take before, and ask a person about each."""
        try:
            for block in await self.blocks.flush():
                agent, name = block.agent, block.name
                log.warning("the agent %r of %s is blocked: written as the store answers again", name, agent.principal)
                self.record_about(agent, name, "block", "blocked", approval=block.challenge_id, reason=block.reason)
                if not self.challenges.is_waiting(block.challenge_id):
                    await self.order_challenge(agent)
        except StoreError as refused:
            log.error("a block cannot be written yet: %s", refused)

    def fail_idle(self) -> None:
        before = self.clock.wall() - self.idle_s
        for execution in self.executions.live():
            if execution.owner[1] == 0 and execution.seen_at < before:
                to = _S.CANCELLED if execution.status is _S.PENDING else _S.FAILED
                self._end(execution, to, "the agent was silent for too long")

    # The operations of agents

    async def execute(self, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
        name = params["element_name"]
        if not is_agent_name(name):
            raise OperationFailed(errors.invalid_value("element_name", "1 to 100 visible characters are needed"))
        owner, agent = self._identify(caller, name)
        await self._refuse_blocked(agent)
        if self.is_enforcing and not self.has_channel(name):  # AQL-8.8.2-3
            detail = "no channel could show a verification code to an operator: interlock status says who may approve"
            raise OperationFailed(errors.permission_denied("no_verification_channel", detail=detail))
        async with self._lock(agent):
            await self._supersede(owner, agent)
            if sum(1 for live in self.executions.live() if live.agent.principal == owner[0]) >= LIVE_MAX:
                code, details = errors.Code.RATE_LIMIT_QUOTA_EXHAUSTED, {"metric": "executions", "limit": LIVE_MAX}
                raise OperationFailed(errors.failure(code, "Too many executions", details))
            now = self.clock.wall()
            execution = Execution(owner, name, now, caller if owner[1] else None)
            if not self.is_enforcing or self.policies.of(agent).policy.preapproved:
                execution.move(_S.RUNNING, now)
                if not self.is_enforcing:  # nobody is asked
                    self.step_counts.begin_again(self.policies.counted_as(agent))
            else:
                shown = {"parameters": params.get("parameters") or {}}
                reason = "An agent asks to start. Approval lets it run; each of its steps is still judged."
                execution.start_id = (await self.challenges.ask(Kind.START, execution, shown, reason=reason)).id
            self.executions.add(execution)
            self.changed.publish(None)
            self.record(execution, "start", execution.status.value)
        answer = {**execution.answer(), "element_name": name}
        if execution.status is _S.PENDING:
            notice = msgspec.to_builtins(_pending(_START_WAITS, now, "execute_agent"))
            answer |= {"confirmation_id": execution.start_id, "notifications": [notice]}
        return answer

    async def report(self, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
        name, written = params["element_name"], params["nextActionHint"]
        owner, agent = self._identify(caller, name)
        if (execution := self.executions.find_last(owner, agent)) is None:  # AQL-8.6.3-3
            await self._refuse_blocked(agent, is_report=True)
            raise OperationFailed(errors.resource_not_found("execution", name))
        limit, is_known = protocol.HINT_CHARS_MAX, self.names.of(caller).__contains__
        if len(written) > limit:
            raise OperationFailed(errors.too_large("string_length", limit, len(written), param_name="nextActionHint"))
        fault = protocol.find_hint_fault(written, is_known)
        if fault is not None:  # AQL-8.6.3-6
            raise OperationFailed(errors.invalid_value("nextActionHint", fault, {"example": protocol.EXAMPLE}))
        async with self._lock(agent):
            await self._refuse_blocked(agent, is_report=True)
            await self._refresh(execution)
            if not execution.is_live:
                if not execution.is_refused:
                    raise OperationFailed(_invalid_state(execution, _S.RUNNING))
                factors = ("The agent was not started.",)
                not_started = Directive(continue_=False, factors=factors, reason=execution.ended_because)
                return {**execution.answer(), "autonomy": not_started.shown()}
            execution.seen_at = self.clock.wall()
            if execution.status is _S.PENDING:
                why, notices = _START_WAITS, self._notifications(execution)
                pending = Directive(continue_=False, factors=(why,), reason=why, notifications=notices)
                return {**execution.answer(), "autonomy": pending.shown()}
            execution.steps += 1  # AQL-8.6.4-1
            self.executions.note(execution)
            directive = await self._judge(execution, caller, written, params)
            outcome = "stopped" if directive.stopped else "continue" if directive.continue_ else "paused"
            facts = {"step": execution.steps, "hint": written[:1000]}
            facts |= {"description": _cut(params.get("stepDescription")), "findings": _cut(params.get("findings"))}
            facts |= {"step_outcome": params.get("outcome"), "risk": directive.next_step_risk}
            self.record(execution, "step", outcome, **facts, reason=directive.reason)
            answer = {**execution.answer(), "step": execution.steps, "autonomy": directive.shown()}  # AQL-8.6.4-1
            pause = execution.pause
            if pause is not None and pause.approval_id and not pause.is_verified_by_code:
                answer["confirmation_id"] = pause.approval_id  # of what waits for a person
            return answer

    async def complete(self, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
        return await self._finish(caller, params["element_name"], _S.COMPLETED, params.get("summary"))

    async def read(self, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
        """Return the state of an execution. Only the principal that started it may ask, even after its session has
        ended (AQL 8.4.3).
        """
        execution = self.executions.find(params["execution_id"])
        if execution is None or execution.agent.principal != caller.principal.name:
            raise OperationFailed(errors.resource_not_found("execution", params["execution_id"]))
        await self._refresh(execution)
        return {"element_name": execution.name, **execution.answer()}

    async def abort(self, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
        return await self._finish(caller, params["element_name"], _S.CANCELLED, params.get("reason"))

    async def _finish(self, caller: Caller, name: str, to: ExecutionStatus, why: str | None) -> dict[str, Any]:
        owner, agent = self._identify(caller, name)
        await self._refuse_blocked(agent)
        execution = self.executions.find_last(owner, agent)
        if execution is None:
            raise OperationFailed(errors.resource_not_found("execution", name))
        async with self._lock(agent):
            await self._refresh(execution)
            if not self._end(execution, to, why):  # AQL-8.4.2-2
                raise OperationFailed(_invalid_state(execution, to))
        return execution.answer()

    # Dangerous operations

    def find_acting(self, caller: Caller) -> Execution | None:
        """Return the running execution to which a call of this caller belongs. Return None if there is none, or if the
        loop is not enforcing.
        """
        owner = find_owner(caller) if self.is_enforcing and self.executions.by_owner else None
        mine = self.executions.by_owner.get(owner, ()) if owner is not None else ()
        return next((execution for execution in mine if execution.status is _S.RUNNING), None)

    def may_run(self, execution: Execution, names: frozenset[str], held: HeldOperation) -> bool:
        """Return whether a person has approved this operation of an agent, either as part of a reported step or by
        itself.
        """
        for grant in execution.grants:
            is_named = grant.is_approved and not grant.names.isdisjoint(names)
            if is_named and grant.digest in (None, held.digest):
                return True
        return execution.held.is_released(held)

    def hold(self, execution: Execution, held: HeldOperation) -> str:
        """Hold an operation until a person decides, and return the id of the approval that it waits for."""
        id = execution.held.find_waiting(held)
        if id is not None and self.challenges.is_waiting(id):
            return id
        if id is not None:
            execution.held.settle(id, is_yes=False)

        def on_refused(approval_id: str, why: str) -> None:
            execution.held.settle(approval_id, is_yes=False)
            execution.tell(NotificationType.ERROR, f"Nobody could be asked about {held.operation}: {why}", held.at)

        approval_id = self.challenges.ask_soon(execution, held, on_refused)
        execution.held.wait(approval_id, held)
        self.record(execution, "hold", "held", approval=approval_id, operation=held.operation, level=held.level)
        return approval_id

    # Judging

    async def _judge(self, execution: Execution, caller: Caller, written: str, params: dict[str, Any]) -> Directive:
        if self.plan.mode == "logging":
            return _LOGGED
        hint = protocol.read_hint(written)
        if self.is_enforcing and execution.pause is not None:  # AQL-8.6.4-3
            paused = await self._still_paused(execution, execution.pause)
            if paused is not None:
                return paused
        policy = self.policies.of(execution.agent)
        assessed = []
        for trigger in self._triggers:
            try:
                assessed.append(trigger(execution.agent, hint))
            except Exception:
                log.exception("an assessment of the agent %r failed; it is stopped", execution.name)
                assessed.append(Assessment(is_stopped=True, reason="An assessment of this action failed."))
        outcome, score = params.get("outcome"), max((assessment.score for assessment in assessed), default=0.0)
        counted_as = self.policies.counted_as(execution.agent)
        steps = self.step_counts.find(counted_as)  # AQL-8.7.2-2
        evaluation = protocol.evaluate(policy, hint, steps=steps, outcome=outcome, also=score)
        if evaluation.risk is not None and evaluation.risk.is_clamped:
            log.warning("a risk score of the agent %r is out of range and was brought into it", execution.name)
        for assessment in assessed:
            evaluation = evaluation.or_stopped(assessment.reason) if assessment.is_stopped else evaluation
        self.evaluations += 1
        if evaluation.is_counted:
            self.step_counts.add(counted_as)
        execution.grants.clear()  # AQL-8.6.2-1: unused ones end with the next report
        factors, is_enforcing = evaluation.factors, self.is_enforcing
        pause = self._draft_pause(execution, evaluation, hint, caller, written)
        match evaluation.verdict:
            case verdict if not is_enforcing:  # AQL-8.6.4-6
                factors += (_WOULD[verdict],) if verdict in _WOULD else ()
            case StepVerdict.CONTINUE:
                named = self.names.named_by(hint, caller)
                if named:
                    execution.grants.append(StepGrant(named))  # AQL-8.6.2-1
                else:
                    factors += (NAMES_NOTHING,)
            case StepVerdict.PAUSE:
                await self._pause(execution, pause)
            case StepVerdict.VERIFY:
                await self._verify(execution, pause)
            case StepVerdict.STOP:
                await self._block(execution, pause)  # AQL-8.6.4-5
        return Directive(
            # AQL-8.6.4-3, AQL-8.7.1-2
            continue_=evaluation.verdict is StepVerdict.CONTINUE or not is_enforcing,
            stopped=evaluation.verdict is StepVerdict.STOP and is_enforcing,  # AQL-8.8.1-2
            factors=factors,  # AQL-8.7.1-2
            reason=evaluation.reason if is_enforcing else None,
            steps_remaining=evaluation.steps_remaining,
            next_step_risk=None if evaluation.risk is None else evaluation.risk.tier.value,
            notifications=self._notifications(execution),
        )

    def _draft_pause(
        self, execution: Execution, evaluation: Evaluation, hint: Hint, caller: Caller, written: str
    ) -> Pause:
        """Return a pause for a reported step, about which no person has been asked yet. It contains what the person
        will be shown, and the grant for the shown calls that the agent gets if they approve.
        """
        shown: dict[str, Any] = {"step": execution.steps, "nextActionHint": written}
        # Beyond the step limit, a person only lets the counter begin again.
        if evaluation.verdict is StepVerdict.STOP or evaluation.stage == 1:
            return Pause(evaluation=evaluation, shown=shown)
        calls = self.names.calls_in(hint, caller)
        # AQL-X-17: of the calls that are shown. After a failure the step was not judged yet.
        names, is_approved = frozenset(map(normalise, calls)), evaluation.stage > 2
        grant = StepGrant(names, is_approved=is_approved, text=hint.text)
        return Pause(evaluation=evaluation, shown={**shown, "calls": calls}, grant=grant)

    async def _still_paused(self, execution: Execution, pause: Pause) -> Directive | None:
        """Return the directive that tells a paused agent to keep waiting. Return None if the pause is over, so that the
        agent's report can be evaluated.
        """
        approval = self.challenges.inbox.get(pause.approval_id)
        status = Status.VOID if approval is None else approval.status
        reason = pause.evaluation.reason or ""
        if status is not Status.PENDING and pause.is_verified_by_code:
            if status is Status.EXPIRED:  # AQL-8.7.3-6
                execution.pause = None
                self._tell(execution, "The pause was lifted. The challenge expired.")
                return None
            if self.challenges.may_issue(execution.agent):
                pause = await self._verify(execution, pause)
        elif status is not Status.PENDING:  # nobody decided in time: they are asked again
            pause = await self._pause(execution, pause)
        if pause.is_verified_by_code:
            reason = f"{reason} Challenge {pause.approval_id} waits for its code."
        factors = (*pause.evaluation.factors, "The agent is paused since an earlier report.")
        notices = self._notifications(execution)
        return Directive(continue_=False, factors=factors, reason=reason, notifications=notices)

    async def _pause(self, execution: Execution, pause: Pause) -> Pause:
        """Pause an agent until a person approves its step. Return the pause with the id of that approval."""
        reason, factors = pause.evaluation.reason or "", pause.evaluation.factors
        raised = await self.challenges.ask(Kind.STEP, execution, pause.shown, reason=reason, factors=factors)
        return self._set_pause(execution, pause, raised.id, is_verified_by_code=False)

    async def _verify(self, execution: Execution, pause: Pause) -> Pause:
        """Pause an agent until a challenge is answered. Return the pause with the id of that challenge."""
        draft = self._draft_challenge(execution, pause)
        try:
            await self.challenges.raise_challenge(execution.agent, execution.name, draft)
        except StoreError as refused:
            raise _unavailable(refused) from None
        # AQL-8.7.3-6
        return self._set_pause(execution, pause, draft.id, is_verified_by_code=True)

    def _draft_challenge(self, execution: Execution, pause: Pause) -> Approval:
        reason, factors = pause.evaluation.reason or "", pause.evaluation.factors
        return self.challenges.draft(execution.agent, execution.name, reason=reason, factors=factors, shown=pause.shown)

    def _set_pause(self, execution: Execution, pause: Pause, id: str, *, is_verified_by_code: bool) -> Pause:
        at, by_code = self.clock.wall(), is_verified_by_code
        execution.pause = pause = msgspec.structs.replace(pause, approval_id=id, is_verified_by_code=by_code, at=at)
        self.record(execution, "pause", "paused", approval=id, stage=pause.evaluation.stage)
        return pause

    async def _block(self, execution: Execution, pause: Pause) -> None:
        """Block an agent, and create the challenge with which a person can unblock it. The block is in the store when
        this returns.

        Raise OperationFailed if the block cannot be stored; it is then still effective in memory.
        """
        agent, reason = execution.agent, pause.evaluation.reason or ""
        draft = self._draft_challenge(execution, pause)
        principal, name, now = agent.principal, execution.name, self.clock.wall()
        block = Block(principal=principal, name=name, reason=reason, at=now, challenge_id=draft.id)
        if execution.pause is not None:
            await self.challenges.void(execution.pause.approval_id, "the agent is blocked")
            execution.pause = None
        execution.grants.clear()
        try:
            await self.blocks.put(block)  # AQL-8.8.3-3
            await self.challenges.raise_challenge(agent, name, draft)
        except StoreError as refused:
            raise _unavailable(refused) from None
        finally:
            self.changed.publish(None)
        log.warning("the agent %r of %s is blocked: interlock approvals show %.8s", name, principal, draft.id)
        self.record(execution, "block", "blocked", approval=draft.id, reason=reason)

    def abort_as_operator(self, agent: AgentKey, by: str) -> Execution | None:
        """Cancel the running and pending executions of an agent for an operator. Return the latest of them, or None if
        there was none.
        """
        live = self.executions.live_of(agent)
        for execution in live:
            self._end(execution, _S.CANCELLED, f"aborted by {by}")
        return live[-1] if live else None

    async def escalate(self, execution: Execution, pause: Pause) -> None:
        """Block or pause an agent because its call was judged more strictly than its report. Depending on the verdict,
        a code or an approval ends the pause. Raise OperationFailed if the result cannot be stored.
        """
        async with self._lock(execution.agent):
            if pause.evaluation.verdict is StepVerdict.STOP:
                await self._block(execution, pause)
            elif pause.evaluation.verdict is StepVerdict.VERIFY:
                await self._verify(execution, pause)
            else:
                await self._pause(execution, pause)

    async def order_challenge(self, agent: AgentKey) -> Block | None:
        """Create a challenge with a new code for a blocked agent, and void the previous challenge.

        Return the updated block, or None if the agent is not blocked. Raise StoreError if the challenge cannot be
        stored.
        """
        block = self.blocks.find(agent)
        if block is None:
            return None
        draft = self.challenges.draft(agent, block.name, reason=block.reason, factors=(), shown={})
        await self.challenges.void(block.challenge_id, "superseded: a fresh code was ordered")
        fresh = msgspec.structs.replace(block, challenge_id=draft.id)
        await self.blocks.put(fresh)
        await self.challenges.raise_challenge(agent, block.name, draft)
        return fresh

    # What people decide

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Apply a decision to the agent that it concerns, whether the decision was made in the inbox or with a code or
        token.
        """
        settled = await self.challenges.settle(approval)
        if isinstance(settled, Refusal):
            return settled
        is_yes = settled.status is Status.DONE
        decision = approval.decision
        reason = decision.reason if decision is not None and decision.reason else None
        execution = self.executions.find_by_approval(approval.id)
        if approval.kind is Kind.VERIFY:
            await self._settle_challenge(approval, execution, is_yes, decision.by if decision else "")
        elif execution is not None and approval.kind is Kind.START:
            if is_yes and execution.move(_S.RUNNING, self.clock.wall()):
                self._tell(execution, "The start was approved.")
                self.step_counts.begin_again(self.policies.counted_as(execution.agent))
                self.executions.note(execution)
            elif not is_yes:
                why = f"The start was denied{f': {reason}' if reason else '.'}"
                execution.is_refused = self._end(execution, _S.CANCELLED, why)
        elif execution is not None and (held := execution.held.settle(approval.id, is_yes=is_yes)) is not None:
            word = "confirmed" if is_yes else f"denied{f': {reason}' if reason else ''}"
            self._tell(execution, f"The call of {held.operation} was {word}.")
        elif execution is not None:
            self._resume(execution, is_yes=is_yes, reason=reason)
        self.changed.publish(None)
        return settled

    async def _settle_challenge(self, approval: Approval, execution: Execution | None, is_yes: bool, by: str) -> None:
        block = next((each for each in self.blocks.all() if each.challenge_id == approval.id), None)
        if block is not None and is_yes:  # AQL-8.8.3-4
            try:
                await self.blocks.lift(block.agent)  # AQL-8.8.3-4
            except StoreError as refused:
                log.error("a block cannot be lifted: %s", refused)
                return
            self.record_about(block.agent, block.name, "unblock", "unblocked", approval=approval.id, by=by)
            for live in self.executions.live_of(block.agent):
                self._tell(live, "The block was lifted.")
        elif execution is not None:
            self._resume(execution, is_yes=is_yes, reason=None)

    def _resume(self, execution: Execution, *, is_yes: bool, reason: str | None) -> None:
        """End the pause of an agent after a person's decision. Approved or denied, the agent may now report its next
        step.
        """
        pause, execution.pause = execution.pause, None
        if pause is None:
            return
        if not is_yes:
            self._tell(execution, f"The step was denied{f': {reason}' if reason else '.'}")
            return
        self._tell(execution, "The pause was lifted.")
        if pause.evaluation.stage == 1:  # AQL-8.7.2-2
            self.step_counts.begin_again(self.policies.counted_as(execution.agent))
            self._tell(execution, "The step counter begins again.")
        elif pause.grant is not None:
            execution.grants = [pause.grant]

    # Inside

    def _identify(self, caller: Caller, name: str) -> tuple[Owner, AgentKey]:
        """Return the owner of the executions of a caller, and the key of the caller's agent with this name. Raise
        OperationFailed if the caller cannot be distinguished from other clients.
        """
        owner = find_owner(caller)
        if owner is None:
            detail = "the safety loop needs a client that can be told from others: use a token, or a session"
            raise OperationFailed(errors.permission_denied("named_credential_required", detail=detail))
        return owner, agent_key(owner[0], name)

    def _lock(self, agent: AgentKey) -> asyncio.Lock:
        return self._locks.setdefault(agent, asyncio.Lock())

    async def _supersede(self, owner: Owner, agent: AgentKey) -> None:
        """Ensure that an agent has no other live execution. An execution that only waits for a code is cancelled; for
        any other, raise OperationFailed (AQL-X-3).
        """
        live = self.executions.live_of(agent)
        for execution in live:
            if owner[0] == LOCAL and execution.owner != owner:
                continue
            await self._refresh(execution)
            if execution.is_live and not (execution.pause is not None and execution.pause.is_verified_by_code):
                raise OperationFailed(_invalid_state(execution, _S.PENDING))
            self._end(execution, _S.CANCELLED, "superseded by another start")

    async def _refresh(self, execution: Execution) -> None:
        """Cancel an execution that waits for the approval of its start, if that approval can no longer be given."""
        if execution.status is _S.PENDING and execution.start_id is not None:
            approval = self.challenges.inbox.get(execution.start_id)
            if approval is None or approval.status not in (Status.PENDING, Status.APPROVED, Status.USED, Status.DONE):
                execution.is_refused = self._end(execution, _S.CANCELLED, "The start was not approved in time.")

    def find_block(self, agent: AgentKey) -> Block | None:
        """Return the block that stops an agent, or None. An agent that the configuration does not name is also stopped
        by the block of any other agent of the same client.
        """
        block = self.blocks.find(agent)
        if block is None and not self.policies.is_declared(agent):
            # AQL-8.8.3-5: another name, whether started before or after the block, would be a way around it.
            block = next(iter(self.blocks.of_principal(agent.principal)), None)
        return block

    async def _refuse_blocked(self, agent: AgentKey, *, is_report: bool = False) -> None:
        """Raise OperationFailed if the agent is blocked, directly or by the block of another agent of its client, and
        the loop is enforcing.
        """
        block = self.find_block(agent)
        if block is not None and self.is_enforcing:  # AQL-8.8.3-2, AQL-8.6.4-5
            raise OperationFailed(await self._blocked(block, is_report=is_report))

    async def _blocked(self, block: Block, *, is_report: bool = False) -> errors.AqlFailure:
        if not self.challenges.is_waiting(block.challenge_id) and self.challenges.may_issue(block.agent):
            try:
                block = await self.order_challenge(block.agent) or block
            except StoreError as refused:
                log.error("a challenge cannot be written: %s", refused)
        details: dict[str, Any] = {"element_name": block.name, "verification_id": block.challenge_id}  # AQL-8.8.3-2
        if is_report:
            factors, notices, why = ("The agent is blocked.",), (_block_notice(block, is_own=True),), block.reason
            blocked = Directive(continue_=False, stopped=True, factors=factors, reason=why, notifications=notices)
            details["autonomy"] = blocked.shown()
        return errors.permission_denied("agent_blocked", **details)  # AQL-8.8.3-2

    def _notifications(self, execution: Execution) -> tuple[protocol.AgentNotification, ...]:
        """Return the notifications for the next reply to an agent (8.7.3).

        permission_pending, autonomy_pause and danger_zone are derived from the state each time, so they repeat until
        their cause is resolved. status and error are kept in the execution and sent once. An agent receives
        notifications only in replies.
        """
        notices, execution.notices = execution.notices, []
        since, principal = execution.started_at or execution.created_at, execution.agent.principal
        if execution.start_id is not None and execution.started_at is None:
            pending = [_pending(_START_WAITS, execution.created_at, "execute_agent")]
        else:
            pending = []
            for id, held in execution.held.waiting.items():
                message = f"A call of {held.operation} waits for a decision about approval {id}."
                reason = "; ".join(held.reasons) or None
                pending.append(_pending(message, held.at, held.operation, held.level, reason))
            for approval in self.challenges.inbox.waiting(Kind.CALL):
                if approval.requested_by == principal and approval.created_at >= since:
                    message = f"A call of {approval.tool} waits for a person."
                    pending.append(_pending(message, approval.created_at, approval.tool, reason=approval.reason))
        paused = [] if execution.pause is None else [_pause_notice(execution.pause)]
        # AQL-8.7.3-7
        blocks = [block for block in self.blocks.all() if block.at >= since or block.agent == execution.agent]
        dangers = [_block_notice(block, is_own=block.principal == principal) for block in blocks]
        return (*pending, *paused, *dangers, *notices)

    def record(self, execution: Execution, event: str, outcome: str, **more: Any) -> None:
        """Write an event about an execution to the audit log."""
        details = {"execution": execution.id, "session_id": execution.session_id, **more}
        self.record_about(execution.agent, execution.name, event, outcome, **details)

    def record_about(self, agent: AgentKey, name: str, event: str, outcome: str, **more: Any) -> None:
        """Write an event about an agent to the audit log. A record never contains a code or a token.

        `event` is start, step, hold, pause, block, unblock, verify, confirm, end or PROTOCOL_VIOLATION.
        """
        details = {key: value for key, value in more.items() if value is not None}
        now, who, method, target = self.clock.wall(), agent.principal, f"agents/{event}", f"agent.{name}"
        line = AuditRecord.event(now, who, "safety", method, target, verdict=outcome, agent=name, **details)
        self.recorder.add_line(line)

    def _tell(self, execution: Execution, message: str) -> None:
        execution.tell(NotificationType.STATUS, message, self.clock.wall())

    def _end(self, execution: Execution, to: ExecutionStatus, why: str | None) -> bool:
        waiting = execution.approval_ids
        message = {"code": "INTERNAL_ERROR", "message": why or _ENDED} if to is _S.FAILED else None
        result = {"summary": why} if to is _S.COMPLETED and why is not None else None
        if not execution.move(to, self.clock.wall(), error=message, result=result):
            return False
        execution.ended_because = why
        self.executions.note(execution)
        self.changed.publish(None)
        self.record(execution, "end", to.value, reason=_cut(why))
        for id in waiting:
            if self.challenges.is_waiting(id):
                self.challenges.void_soon(id, _ENDED)
        return True


def _invalid_state(execution: Execution, requested: ExecutionStatus) -> errors.AqlFailure:
    # AQL-8.4.2-2
    details = {"execution_id": execution.id, "status": execution.status.value, "requested": requested.value}
    message = f"The execution is {execution.status.value}; it cannot become {requested.value}"
    return errors.failure(errors.Code.CONFLICT_INVALID_STATE, message, details)


def _unavailable(refused: StoreError) -> OperationFailed:
    log.error("the safety loop cannot write: %s", refused)
    return OperationFailed(errors.internal_error("the node's store cannot be written; no step can continue"))


def _cut(text: Any) -> str | None:
    return text[:1000] if isinstance(text, str) else None


def _pending(
    message: str, at: float, operation: str, level: str = SINGLE_USE, reason: str | None = None
) -> protocol.AgentNotification:
    """Return the notification that tells an agent that an operation has been waiting for a person since `at`."""
    metadata = protocol.Metadata(operation=operation, level=level, reason=reason)
    return protocol.AgentNotification(NotificationType.PERMISSION_PENDING, message, rfc3339(at), metadata)


def _pause_notice(pause: Pause) -> protocol.AgentNotification:
    how = "the code of" if pause.is_verified_by_code else "a decision about"
    waits = f" It waits for {how} approval {pause.approval_id}." if pause.approval_id else ""
    message = f"Paused: {pause.evaluation.reason} {pause.evaluation.factors[-1]}.{waits}"
    challenge_id = pause.approval_id if pause.is_verified_by_code else None  # AQL-8.7.3-6, AQL-8.8.2-4
    metadata = protocol.Metadata(reason=pause.evaluation.reason, verification_id=challenge_id)
    return protocol.AgentNotification(NotificationType.AUTONOMY_PAUSE, message, rfc3339(pause.at), metadata)


def _block_notice(block: Block, *, is_own: bool) -> protocol.AgentNotification:
    """Return the notification that an agent is blocked. Only agents of the same principal (`is_own`) learn the
    reason.
    """
    message = f'The agent "{block.name}" is blocked: {block.reason}' if is_own else "An agent is blocked."
    reason = block.reason if is_own else None  # AQL-8.7.3-7
    metadata = protocol.Metadata(reason=reason, verification_id=block.challenge_id)
    return protocol.AgentNotification(NotificationType.DANGER_ZONE, message, rfc3339(block.at), metadata)
