"""What one call of a tool with a gate waits for, and what is known of it until it ends (MCP-AX 11.3).

A hold names exactly what is asked (check 7), answers the call while a person has not decided (check 10), finds the
approval that releases it, uses that approval up on disk (check 11), and reads the answer on its way to the client.
"""

import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import CLASSIFIED, Approval, Kind, Move, Source, Status
from interlock.ax.protocol.capability import as_object
from interlock.ax.protocol.hop_metadata import DECLARED, requester
from interlock.ax.protocol.messages import CONFIRM
from interlock.catalog.definition import DefinitionSnapshot
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import CONFIRMATION_REQUIRED, CheckNumber, Refused, Release
from interlock.gate.confirmed_request import keep_confirmed
from interlock.gate.protocol.held_call import call_digest, redeeming_params
from interlock.gate.protocol.policy import Hold
from interlock.gate.protocol.relay import Carried
from interlock.gate.protocol.request_state import PREFIX
from interlock.gate.relays import result_of
from interlock.gate.responses import STATE_FOREIGN, STATE_INVALID, Back
from interlock.gate.rounds import Pass
from interlock.links.handshake import modern_head
from interlock.mcp.methods import META_CLIENT, TOOLS_CALL, Era
from interlock.mcp.mrtr import read_input_required
from interlock.wire.jsonrpc.codec import decode_object, encode_result, find_string
from interlock.wire.refusal import UNAVAILABLE, Refusal

if TYPE_CHECKING:
    from interlock.gate.gate import Gate

NONCE_BYTES: Final = 24
LOOKS_MAX: Final = 3  # at an approval that others use up or change meanwhile
_INPUT_REQUIRED: Final = b'"input_required"'
_VISIT: Final = b'"%b' % PREFIX.encode()

ShownRequest = tuple[str, bytes, dict[str, Any], dict[str, Raw]]  # method, head, params, `_meta`


def requester_of(call: Call) -> str:
    """Return who asks for a call: its caller or, for a call from a parent, that parent and its caller's mark."""
    caller = call.caller
    return caller.principal.name if caller.hop is None else requester(caller.principal.name, call.meta)


class GateHold(msgspec.Struct, eq=False):
    """The `CallHold` of a gated call. It refers to the gate and never to its call."""

    gate: "Gate"
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

    # Check 7

    def identify(self, call: Call) -> Refusal | None:
        if self.is_named:
            return None
        if self.route.is_held:
            digest = self._digest(call)
            if isinstance(digest, Refusal):
                return digest
            self.digest = digest
        if self.back is not None and self.back.visit.digest != self.digest:  # AX-11.3-12
            return STATE_FOREIGN
        if self.state.startswith(_VISIT) and not self._may_go_on():
            return STATE_INVALID
        self.is_named = True
        return None

    def _digest(self, call: Call) -> str | Refusal:
        route = self.route
        return call_digest(
            call.params.get("arguments"),
            aggregator_id=self.gate.aggregator_id,
            tool=route.qualified,
            route=(*route.segments, route.local),
            caller=self.requester,
            tool_digest=route.digest,
        )

    # Check 10

    def acknowledge(self, call: Call) -> Refused | None:
        return None  # a person agrees, or none is asked here

    def find_refusal(self, call: Call) -> Refused | None:
        approval = self._find_approval()
        if approval is None or approval.status is Status.APPROVED or self._may_go_on():
            return None
        near = self.gate.granted.release(self, approval) if approval.status is Status.PENDING else ""
        return None if isinstance(near, Release) else self._refuse_until_decided(call, approval, near)

    async def find_release(self, call: Call) -> Release | Refused:
        """Return a person's approval of this call, or the refusal that tells the client to wait for one."""
        gate, route = self.gate, self.route
        if self._may_go_on():
            approval_id = gate.rounds.maybe_approval(self.requester, self.digest) or ""
            return Release(approval_id, is_used=True)
        proposal = gate.inbox.get(self.released_by) if self.released_by is not None else None
        if proposal is not None and self._is_released_by(proposal):
            return Release(proposal.id)
        if is_open(route) and gate.find_ruling(route.qualified, route.digest) is not None:
            return _RELISTING  # classified meanwhile: no person is asked a second time
        for _ in range(LOOKS_MAX):
            present = self._find_approval()
            near = gate.granted.release(self, present) if self._may_use_grant(present) else ""
            if isinstance(near, Release):
                return near
            approval = present or await gate.inbox.raise_(draft_question(gate.inbox, call, self))
            if call.done:
                return CONFIRMATION_REQUIRED
            if isinstance(approval, Refusal):
                return Refused(CheckNumber.GATE, approval)
            if approval.status is not Status.APPROVED:  # AX-11.3-3, AX-11.3-10
                return self._refuse_until_decided(call, approval, near)
            if approval.kind is Kind.DEFINITION:  # classified, and about to be listed so
                return _RELISTING
            if gate.is_still_good(approval):  # AX-11.3-9: a removed anchor
                return Release(approval.id)
            await gate.inbox.void(approval.id, "who released it may no longer do so")
        return _CHANGING

    def _find_approval(self) -> Approval | None:
        if is_open(self.route):
            return self.gate.inbox.find_definition(self.route.qualified, self.route.digest)
        return self.gate.inbox.find(self.requester, self.digest)

    def _may_use_grant(self, approval: Approval | None) -> bool:
        if approval is None or approval.status is Status.PENDING:
            return True
        return approval.status is Status.APPROVED and self.gate.granted.is_granted(approval)

    def _is_released_by(self, proposal: Approval) -> bool:
        """Return whether the person who approved a proposal of this call agreed to the tool as it is (X-10.2-3)."""
        route = self.route
        is_same = (proposal.tool, proposal.tool_digest) == (route.qualified, route.digest)
        is_approved = proposal.kind is Kind.PROPOSAL and proposal.status is Status.APPROVED
        return is_approved and is_same and not is_open(route) and self.gate.is_still_good(proposal)

    def _refuse_until_decided(self, call: Call, approval: Approval, near: str = "") -> Refused:
        """Answer a call whose approval is not there yet, or was denied. `near`: why no standing grant covers it."""
        self.answered_here = True
        if call.caller.hop is not None:
            self.gate.rounds.note_route(approval.id, call.meta)
        result = self.gate.answers.of(call, self, approval, self.gate.inbox.rules.redeem_s, near)
        return Refused(CheckNumber.GATE, CONFIRMATION_REQUIRED.refusal, result)

    # Check 11 and after

    async def use(self, call: Call, release: Release) -> Refusal | None:
        """Use the approval up, on disk, for this call and no other; or go on with the round that used it before."""
        gate, approval_id = self.gate, release.approval_id
        before: Pass | None = None
        if release.is_used:
            before = gate.rounds.take(self.requester, self.digest)
            if before is None or before.approval_id != approval_id or approval_id not in gate.used_approvals:
                return CONFIRMATION_REQUIRED.refusal  # another round was first
        else:
            used = await (
                gate.inbox.use(approval_id)
                if release.grant_id is None
                else gate.granted.use(release, draft_question(gate.inbox, call, self))
            )
            if isinstance(used, Refusal):  # AX-11.3-11: exactly one
                return used
            approval_id = used.id
            gate.used_approvals.add(approval_id)
        self._release(call, approval_id, before)
        if call.done:  # its client left while the approval was being used
            gate.finish(approval_id, Move.FAIL, "its caller left before anything was sent")
        return None

    def _release(self, call: Call, approval_id: str, before: Pass | None) -> None:
        """Let the call be sent exactly as it was shown. `before`: the round that it goes on from."""
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
            message = self._read_answer(call, message)
        if self.approval_id is not None and not self.goes_on:
            is_unread = outcome is Outcome.ERROR and call.reason in _UNREAD
            self.gate.finish(self.approval_id, *((Move.LOSE, str(call.reason)) if is_unread else _END[outcome]))
        return message

    def _read_answer(self, call: Call, message: bytes) -> bytes:
        """Return the answer for the client. An answer that is a question lets the call go on with its approval."""
        answer = self.gate.relays.read_answer(call, self, message)
        if isinstance(answer, Carried):
            if not answer.is_definition:
                self._let_go_on(held_below=answer.confirmation_id)
            return encode_result(call.client_id, self.gate.answers.from_below(call, self, answer))
        if self.approval_id is not None and _INPUT_REQUIRED in answer and call.caller.era is Era.MODERN:
            wanted = read_input_required(result_of(answer))
            if wanted is not None and not isinstance(wanted, str):
                self._let_go_on(bytes(wanted.state or b""), frozenset(wanted.questions))
        return answer

    # A released call whose answer is a question goes on with the same approval

    def _may_go_on(self) -> bool:
        return self.gate.rounds.may_go_on(self.requester, self.digest, self.state)

    def _let_go_on(
        self, state: bytes = b"", questions: frozenset[str] = frozenset(), held_below: str | None = None
    ) -> None:
        if self.approval_id is not None:
            self.goes_on = self.gate.rounds.let_go_on(
                self.requester,
                self.digest,
                self.approval_id,
                state,
                self.gate.inbox.rules.redeem_s,
                questions,
                held_below,
                self.rounds,
            )


def draft_question(inbox: Inbox, call: Call, hold: GateHold) -> Approval:
    """Return the approval that a person would be asked to decide. Nothing is stored yet."""
    route = hold.route
    definition = is_open(route)
    client = call.meta.get(META_CLIENT, call.caller.client)
    sight = DefinitionSnapshot(route.qualified, route.original, route.item, route.said, route.meta.get(DECLARED, {}))
    return inbox.draft(
        Kind.DEFINITION if definition else Kind.CALL,
        Source.DRIVERS if route.gate is not None and route.gate.by_contract else Source.AX,
        requested_by=hold.requester,
        tool=route.qualified,
        digest=route.digest if definition else hold.digest,
        agent=find_string((decode_object(client) or {}).get("name")) if client is not None else None,
        target=route.link.segment,
        method=TOOLS_CALL,
        params=Raw(b'{"definition":%b}' % sight.definition()) if definition else hold.arguments,
        route=(*route.segments, route.local),
        capability=as_object(route.capability) if route.capability is not None else None,
        tool_digest=route.digest,
        nonce=secrets.token_urlsafe(NONCE_BYTES),
        reason=hold_reason(route),
        factors=(CLASSIFIED,) if route.is_classified and not definition else (),
    )


def is_open(route: Route) -> bool:
    """Return whether calls wait until an operator has classified the tool."""
    return route.gate is not None and route.gate.hold is Hold.DEFINITION


def hold_reason(route: Route) -> str:
    """Return why a person is asked, for the approval and `interlock tools show`, and why they may be asked twice."""
    reason = _own_reason(route)
    if route.gate is None or not route.gate.relays:
        return reason
    return f'{reason}; the node below may ask as well: gate.mode = "defer" leaves it to that'


def _own_reason(route: Route) -> str:
    if route.is_unaccepted and (route.irreversible or is_open(route)):
        return "its server says by now that it changes less, and no operator has accepted that"
    if is_open(route):
        return "its server does not say whether the tool changes anything"
    if route.irreversible:
        return "it cannot be undone" if route.is_classified else "the server says: irreversible"
    return (
        "its contract asks for every call"
        if route.gate is not None and route.gate.by_contract
        else "gate.also names it"
    )


_END: Final = {
    Outcome.OK: (Move.SUCCEED, "ok"),
    Outcome.TOOL_ERROR: (Move.SUCCEED, "tool_error"),
    Outcome.ERROR: (Move.FAIL, "error"),
    Outcome.REFUSED: (Move.FAIL, "not_sent"),
    Outcome.TIMEOUT: (Move.LOSE, "timeout"),
    Outcome.CANCELLED: (Move.LOSE, "cancelled"),
    Outcome.LOST: (Move.LOSE, "lost"),
    Outcome.NOT_SENT: (Move.FAIL, "not_sent"),
}
_UNREAD: Final = ("result_too_large", "malformed_answer")  # the server has answered, and its answer is lost
_CHANGING: Final = Refused(
    CheckNumber.GATE,
    Refusal(
        UNAVAILABLE,
        "unavailable",
        {"reason": "contended", "detail": "its approval keeps changing; make the call again"},
    ),
)
_RELISTING: Final = Refused(
    CheckNumber.GATE,
    Refusal(
        UNAVAILABLE,
        "unavailable",
        {"reason": "relisting", "detail": "the tool was just classified; make the call again"},
    ),
)
