"""Holds that make the guard ask for a confirmation before it sends a dangerous operation.

Outside an execution of the safety loop the caller itself confirms. A call without a token is refused, and the answer
contains a token. If the caller repeats the call with this token, the call is sent and the token is used up. Inside an
execution, a person confirms.

The guard asks for the confirmation last, after it has checked budget and gate, so that no token is used up for a call
that is refused anyway. A call that the gate holds has no hold of this kind, because a person already decides about it
there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from interlock.aql.operation_index import OperationEntry
from interlock.aql.protocol.errors import AqlFailure, confirmation_by_person, confirmation_required
from interlock.aql.protocol.tokens import ConfirmationTokens
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import CheckNumber, Refused, Release
from interlock.safety.executions import Execution, HeldOperation
from interlock.safety.loop import SafetyLoop
from interlock.wire.refusal import UNAVAILABLE, Refusal

_REFUSED: Final = Refused(CheckNumber.GATE, Refusal(UNAVAILABLE, "unavailable", {"reason": "acknowledgement_required"}))


class DangerHold:
    """A hold that refuses a call until the call is confirmed, instead of letting it wait.

    `failure` is the answer to the refused call.
    """

    is_waiting = False
    failure: AqlFailure | None = None

    def identify(self, call: Call) -> Refusal | None:
        return None

    def find_refusal(self, call: Call) -> Refused | None:
        return _REFUSED

    async def find_release(self, call: Call) -> Release | Refused:
        return _REFUSED

    def on_sent(self, call: Call) -> None:
        pass

    def on_ended(self, call: Call, outcome: Outcome, message: bytes) -> bytes:
        return message


class PersonHold(DangerHold):
    """A hold for an operation inside an execution of the safety loop, which a person must confirm. The agent gets no
    token (8.7.3).
    """

    def __init__(self, loop: SafetyLoop, execution: Execution, names: frozenset[str], held: HeldOperation) -> None:
        """Create a hold. `names` are the names under which a report of the agent may have announced the operation."""
        self._loop = loop
        self._execution = execution
        self._held = held
        self._is_agreed = loop.may_run(execution, names, held)
        self._is_used = False

    @property
    def is_asked_first(self) -> bool:
        return not self._is_agreed

    def acknowledge(self, call: Call | None = None) -> Refused | None:
        """Use up the approval that a person gave, and return None, or refuse the call if there is no approval.

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
    """A hold for an operation that the caller confirms, by repeating the call with the token from the first answer."""

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

    def acknowledge(self, call: Call | None = None) -> Refused | None:
        """Redeem the token and return None, or refuse the call and issue a token.

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
