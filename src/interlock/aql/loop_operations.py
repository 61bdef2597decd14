"""The operations of the safety loop (8.5.4) as native operations, and what introspection shows about the loop.

They are listed unless the loop is disabled. An operation that has begun always completes: if a client disconnects while
its agent is being blocked, the block is still written to disk.

The holds below make the guard ask for a confirmation before it sends a dangerous operation. Outside an execution of the
safety loop the caller itself confirms. A call without a token is refused, and the answer contains a token. If the
caller repeats the call with this token, the call is sent and the token is used up. Inside an execution, a person
confirms.

The guard asks for the confirmation last, after it has checked budget and gate, so that no token is used up for a call
that is refused anyway. A call that the gate holds has no hold of this kind, because a person already decides about it
there.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from interlock.aql.operation_index import Handler, NativeOperations, OperationContext, OperationEntry
from interlock.aql.protocol.errors import AqlFailure, confirmation_by_person, confirmation_required
from interlock.aql.protocol.model import (
    AqlOperation,
    AqlParameter,
    Category,
    Example,
    ExecutionStatus,
    Lifecycle,
    Returns,
    TypeDeclaration,
    object_type,
    parameter,
)
from interlock.aql.protocol.tokens import ConfirmationTokens
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallHold
from interlock.core.calls.caller import Caller
from interlock.core.calls.check import CheckNumber, CheckRefusal, Release
from interlock.safety.executions import Execution, HeldOperation
from interlock.safety.loop import SafetyLoop
from interlock.safety.protocol.evaluation import EXAMPLE, NotificationType, Tier, normalise
from interlock.safety.verification import Verification
from interlock.wire.refusal import UNAVAILABLE, Refusal

_REFUSED: Final = CheckRefusal(
    CheckNumber.GATE, Refusal(UNAVAILABLE, "unavailable", {"reason": "acknowledgement_required"})
)


class DangerHold(CallHold):
    """Base of the holds on dangerous calls. A call with such a hold is refused with `failure` until it is confirmed; it
    does not wait.

    `failure` is the answer to the refused call.
    """

    is_waiting = False
    failure: AqlFailure | None = None

    def find_refusal(self, call: Call) -> CheckRefusal | None:
        return _REFUSED

    async def find_release(self, call: Call) -> Release | CheckRefusal:
        return _REFUSED


class PersonHold(DangerHold):
    """A hold on an operation that an agent calls inside an execution of the safety loop. A person must confirm it, and
    the agent gets no token (8.7.3).
    """

    def __init__(self, loop: SafetyLoop, execution: Execution, names: frozenset[str], held: HeldOperation) -> None:
        """Create a hold. `names` are the names that the agent may have used for the operation when it announced the
        operation in a report.
        """
        self._loop = loop
        self._execution = execution
        self._held = held
        self._is_agreed = loop.may_run(execution, names, held)
        self._is_used = False

    @property
    def is_asked_first(self) -> bool:
        return not self._is_agreed

    def acknowledge(self, call: Call | None = None) -> CheckRefusal | None:
        """Return None if a person approved the call, and use the approval up. Otherwise return a refusal.

        A call that waits for its server asks again; its approval is used only once.
        """
        if self._is_agreed:
            if not self._is_used:
                self._execution.held.use(self._held)
                self._is_used = True
            return None
        id, held = self._loop.hold(self._execution, self._held), self._held
        self.failure = confirmation_by_person(held.operation, held.danger, id, held.reasons)
        return _REFUSED


@dataclass(eq=False)
class Acknowledgement(DangerHold):
    """A hold on an operation that the caller itself confirms, by repeating the call with the token from the first
    answer.
    """

    tokens: ConfirmationTokens
    entry: OperationEntry
    # The session or principal to which tokens are bound.
    owner: str
    principal: str
    # The hash of the arguments.
    digest: str
    token: str | None
    # Receives the outcome, for the audit log.
    note: Callable[[str], None]
    _is_given: bool = field(default=False, init=False)

    @property
    def is_asked_first(self) -> bool:
        return self.token is None and not self._is_given

    def acknowledge(self, call: Call | None = None) -> CheckRefusal | None:
        """Return None if the caller's token confirms the call, and use the token up. Otherwise return a refusal, and
        issue a token if the call has none.

        A call that waits for its server asks again; its token is redeemed only once.
        """
        if self._is_given:
            return None
        name, danger = self.entry.name, self.entry.danger
        if self.token is not None:
            self.failure = self.tokens.redeem(self.token, self.owner, self.principal, name, self.digest)
            self._is_given = self.failure is None
            self.note("confirmed" if self.failure is None else f"denied, {self.failure.code}")
            return None if self._is_given else _REFUSED
        token, expires_at = self.tokens.issue(self.owner, self.principal, name, self.digest, danger.level)
        declared = self.entry.operation.confirmation_message
        message = declared or f"'{name}' is {danger.level.word}. Send the same call again with this token to run it."
        self.failure = confirmation_required(
            name, danger.level.word, token=token, expires_at=expires_at, message=message, reasons=danger.reasons
        )
        self.note(f"denied, {self.failure.code}")
        return _REFUSED


INSTRUCTIONS: Final = (
    "Inside an execution of the safety loop (execute_agent), report every action before you take it, by"
    " record_execution_step with nextActionHint: tool calls on any server, file, shell, network and database actions."
    " Act only when the answer says continue true, and only as reported. When it says continue false, stop and tell"
    " your user; after a failed step tell them before you try again. End with complete_execution or abort_execution."
)

LoopHandler = Callable[[Caller, dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]

_NAME: Final = parameter("element_name", "string", "The agent's name", required=True)
_STATE: Final = Returns("ExecutionStateAnswer", "object", "execution_id, status, and times")
_LIFECYCLE: Final = Lifecycle(states=tuple(status.value for status in ExecutionStatus), supports_cancel=True)

TYPES: Final = (
    TypeDeclaration(name="SafetyTier", kind="enum", values=tuple(tier.value for tier in Tier)),
    TypeDeclaration(name="NotificationType", kind="enum", values=tuple(kind.value for kind in NotificationType)),
    object_type(
        "AutonomyDirective",
        parameter("continue", "boolean", required=True),
        parameter("factors", "array", required=True, items={"type": "string"}),
        parameter("stopped", "boolean"),
        parameter("reason", "string"),
        parameter("stepsRemaining", "integer", minimum=0),
        parameter("nextStepRisk", "SafetyTier"),
        parameter("notifications", "array", items={"type": "AgentNotification"}),
        description="Whether the agent may proceed; it is authoritative",
    ),
    object_type(
        "AgentNotification",
        parameter("type", "NotificationType", required=True),
        parameter("message", "string", required=True),
        parameter("metadata", "object", "operation, reason, level, verificationId"),
        parameter("timestamp", "string", required=True, format="date-time"),
    ),
)


def _secret(name: str, description: str) -> AqlParameter:
    return parameter(name, "string", description, required=True, sensitive=True)


def _request(operation: str, **params: Any) -> tuple[Example, ...]:
    return (Example({"operation": operation, "params": params}),)


DECLARATIONS: Final = (
    AqlOperation(
        name="execute_agent",
        category=Category.EXECUTE,
        description="Start a monitored execution of an agent: pending until a person approves it, then running. "
        + INSTRUCTIONS,
        parameters=(_NAME, parameter("parameters", "object", "What the agent is to do, shown to the person")),
        returns=_STATE,
        lifecycle=_LIFECYCLE,
        examples=_request("execute_agent", element_name="coder", parameters={"goal": "update the configuration"}),
    ),
    AqlOperation(
        name="record_execution_step",
        category=Category.CREATE,
        description="Report the next action before it is taken, and get the directive whether to proceed. "
        + INSTRUCTIONS,
        parameters=(
            _NAME,
            parameter(
                "nextActionHint", "string", "The intended next action, with the name of what is called", required=True
            ),
            parameter("stepDescription", "string", "The action just finished"),
            parameter("outcome", "string", "How the previous step went", enum=("success", "failure", "skipped")),
            parameter("findings", "string", "What the finished step brought"),
        ),
        returns=Returns("AutonomyDirective", "object", "under autonomy, beside the state of the execution"),
        types=TYPES,
        examples=_request("record_execution_step", element_name="coder", nextActionHint=EXAMPLE, outcome="success"),
    ),
    AqlOperation(
        name="complete_execution",
        category=Category.EXECUTE,
        description="End the execution normally: running becomes completed.",
        parameters=(_NAME, parameter("summary", "string", "What was done")),
        returns=_STATE,
        examples=_request("complete_execution", element_name="coder", summary="configuration updated"),
    ),
    AqlOperation(
        name="abort_execution",
        category=Category.EXECUTE,
        description="End the execution early: pending or running becomes cancelled.",
        parameters=(_NAME, parameter("reason", "string", "Why")),
        returns=_STATE,
        examples=_request("abort_execution", element_name="coder", reason="cancelled by the user"),
    ),
    AqlOperation(
        name="get_execution",
        category=Category.READ,
        description="The state of an execution, also of a session that is over; with its result once completed.",
        parameters=(parameter("execution_id", "string", "As execute_agent answered it", required=True),),
        returns=_STATE,
        examples=_request("get_execution", execution_id="exec_00000000000000000000000000000000"),
    ),
    AqlOperation(
        name="confirm_operation",
        category=Category.EXECUTE,
        description="Approve or deny a start or a paused step, with the token that an operator was shown.",
        parameters=(
            _secret("confirmation_token", "The token that a person read in the inbox"),
            parameter("confirmation_id", "string", "The approval it is for"),
            parameter("decision", "string", "What is said", enum=("approve", "deny"), default="approve"),
        ),
        examples=_request("confirm_operation", **{"confirmation_token": "conf_EXAMPLE"}),
    ),
    AqlOperation(
        name="verify_challenge",
        category=Category.CREATE,
        description="Lift a block or a verify pause, with the code that only operators see.",
        parameters=(
            parameter("challenge_id", "string", "The verificationId of the notification", required=True),
            _secret("code", "The code, as a person was shown it"),
        ),
        examples=_request(
            "verify_challenge",
            challenge_id="00000000-0000-4000-8000-000000000000",
            code="ABCDE-FGHJK-MNPQR-STVWX-YZ0123",
        ),
    ),
)


class LoopOperations:
    """The operations of the safety loop, registered as native operations."""

    def __init__(self, loop: SafetyLoop, verification: Verification, native: NativeOperations) -> None:
        self._loop = loop
        self._work = BackgroundTasks()
        handlers: dict[str, LoopHandler] = {
            "execute_agent": loop.execute,
            "record_execution_step": loop.report,
            "complete_execution": loop.complete,
            "abort_execution": loop.abort,
            "get_execution": loop.read,
            "confirm_operation": verification.confirm,
            "verify_challenge": verification.verify,
        }
        for declaration in DECLARATIONS:
            handler = self._handler(handlers[declaration.name])
            native.add(declaration, handler, is_shown=lambda caller: self.mode() != "disabled")

    async def open(self) -> None:
        """Do nothing, because there is nothing to open."""

    async def close(self) -> None:
        await self._work.finish()

    def find_person_hold(self, caller: Caller, route: Route | None, held: HeldOperation) -> PersonHold | None:
        """Return the hold on a dangerous operation that an agent calls inside an execution. A person must confirm it.

        Return None outside an execution, where the caller itself confirms.
        """
        execution = self._loop.find_acting(caller)
        if execution is None:
            return None
        names = frozenset((normalise(held.operation),))
        if route is not None:
            names |= self._loop.names.of_route(route)
        return PersonHold(self._loop, execution, names, held)

    def mode(self) -> str:
        """Return the mode of the safety loop, for example `enforcing` or `disabled` (8.6.1)."""
        return self._loop.plan.mode

    def instructions(self) -> str:
        """Return the rules that an agent must follow (8.6.5), or an empty text while the loop is disabled."""
        return "" if self.mode() == "disabled" else INSTRUCTIONS  # AQL-8.6.5-1

    def types(self) -> tuple[TypeDeclaration, ...]:
        return () if self.mode() == "disabled" else TYPES

    def protocol(self) -> dict[str, Any] | None:
        """Return the object `_protocol.safety`, which tells clients the rules of the safety loop, but only the number
        of its patterns (8.7.4). Return None while the loop is disabled.
        """
        plan = self._loop.plan
        if plan.mode == "disabled":
            return None
        return {
            "mode": plan.mode,
            "max_autonomous_steps": plan.max_autonomous_steps,
            "risk_tolerance": plan.risk_tolerance,
            "stages": ["limit", *plan.stages],
            "patterns": {
                "deny": len(plan.deny),
                "requires_approval": len(plan.requires_approval),
                "auto_approve": len(plan.auto_approve),
            },
        }

    def _handler(self, work: LoopHandler) -> Handler:
        """Return a handler that lets `work` finish even if the call is cancelled."""

        async def handle(context: OperationContext, params: dict[str, Any]) -> dict[str, Any]:
            return await asyncio.shield(self._work.begin_awaited(work(context.caller, params)))

        return handle
