"""What one call of a tool with a gate waits for, and what is known of it until it ends."""

from typing import Any, Protocol

import msgspec
from msgspec import Raw

from interlock.ax.protocol.hop_metadata import requester
from interlock.ax.protocol.messages import CONFIRM
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import Refuse, Release
from interlock.gate.confirmed_request import keep_confirmed
from interlock.gate.protocol.held_call import redeeming_params
from interlock.gate.protocol.policy import Hold
from interlock.gate.protocol.request_state import Visit
from interlock.gate.rounds import Pass
from interlock.links.handshake import modern_head
from interlock.wire.refusal import Refusal

ShownRequest = tuple[str, bytes, dict[str, Any], dict[str, Raw]]  # method, head, params, `_meta`


class Back(msgspec.Struct, frozen=True):
    """A client that came back with a state of ours."""

    visit: Visit
    declined: bool


class HoldOwner(Protocol):
    """The gate."""

    def identify(self, call: Call, hold: "GateHold") -> Refusal | None: ...

    def refusal(self, call: Call, hold: "GateHold") -> Refuse: ...

    async def approval(self, call: Call, hold: "GateHold") -> Release | Refuse: ...

    def read_answer(self, call: Call, hold: "GateHold", message: bytes) -> bytes: ...

    def end(self, hold: "GateHold", outcome: Outcome, reason: str | None) -> None: ...


def requester_of(call: Call) -> str:
    """Who asks for a call: its caller; of what comes from a parent, that parent and its caller's mark."""
    caller = call.caller
    return caller.principal.name if caller.hop is None else requester(caller.principal.name, call.meta)


def may_be_granted(route: Route) -> bool:
    """Whether a standing grant can stand for a person's yes to calls of the tool."""
    return route.gate is not None and route.gate.hold is Hold.CALL and not route.gate.by_contract


class GateHold(msgspec.Struct, eq=False):
    """The `CallHold` of a gated call. It refers to the gate and never to its call."""

    gate: HoldOwner
    route: Route
    requester: str  # whose approval it waits for: the caller, or a parent and which of its callers
    arguments: Raw | None  # None: not known here, where a proof is carried down
    is_waiting: bool  # False from the start where only a hop below may hold the call
    back: Back | None = None
    state: bytes = b""  # what its client brought from the server's last question
    is_named: bool = False
    digest: str = ""  # of the call, once it is named; where only a hop below may hold it, of the request
    approval_id: str | None = None  # once it is used
    goes_on: bool = False  # its answer was a question: the call is not over
    answered_here: bool = False  # by the gate, not by anybody below
    rounds: int = 0  # in which its server asked something, before this one
    released_by: str | None = None  # the approval of a proposal of this very call
    request: ShownRequest | None = None  # the call itself, while another request is sent for it

    @property
    def is_asked_first(self) -> bool:
        return self.is_waiting

    def identify(self, call: Call) -> Refusal | None:
        return None if self.is_named else self.gate.identify(call, self)

    def acknowledge(self, call: Call) -> Refuse | None:
        return None  # a person agrees, or none is asked here

    def refusal(self, call: Call) -> Refuse:
        return self.gate.refusal(call, self)

    async def approval(self, call: Call) -> Release | Refuse:
        return await self.gate.approval(call, self)

    def release(self, call: Call, approval_id: str, before: Pass | None) -> None:
        """Its approval is used: it may be sent, as it was shown. `before`: the round that it goes on from."""
        self.approval_id = approval_id
        self.is_waiting = False
        keep_confirmed(call, self.route.link, before)
        if before is None:
            return
        self.rounds = before.number + (before.held_below is None)
        if before.held_below is not None:  # a hop below has the call: it passes once, whatever was answered
            self.request = call.method, call.head, call.params, call.meta
            call.send_as(CONFIRM, modern_head(CONFIRM), redeeming_params(before.held_below, call.params), call.meta)

    def on_sent(self, call: Call) -> None:
        if self.request is not None:
            call.send_as(*self.request)
            self.request = None

    def on_ended(self, call: Call, outcome: Outcome, message: bytes) -> bytes:
        if not self.answered_here:
            message = self.gate.read_answer(call, self, message)
        self.gate.end(self, outcome, call.reason)
        return message
