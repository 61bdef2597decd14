"""Calls of those who are restricted in a room: each becomes a proposal there (X-10.1-3, SURFACE 8).

The call is answered like one that a gate holds: `confirmation_required`, with the approval that waits in the inbox. The
identical call, made again, is answered with what came of the proposal. Nothing is ever sent for the call itself.
"""

import asyncio
import hashlib
from typing import Any, Final

from msgspec import Raw

from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import CheckNumber, Refuse, Release
from interlock.core.calls.refusals import HELD
from interlock.core.clock import rfc3339
from interlock.mcp.eras import Era
from interlock.mcp.meta import RAW_EMPTY
from interlock.rooms.enclosed import fault_of
from interlock.rooms.proposals import Proposals, Settled
from interlock.rooms.protocol.enforcement import PROPOSAL
from interlock.rooms.protocol.envelope import Envelope, encode
from interlock.rooms.protocol.envelope import decode_untrusted as decode_envelope
from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.protocol.participants import Participant
from interlock.rooms.protocol.proposals import STATUS, TOOLS_CALL, ProposalStatus
from interlock.rooms.protocol.secrets import secret_refusal
from interlock.rooms.room import Room
from interlock.wire.jsonrpc.codec import decode_untrusted, encode_value
from interlock.wire.jsonrpc.errors import UNAVAILABLE, CodecError, Fault
from interlock.wire.jsonrpc.messages import Response

KNOWN_MAX: Final = 1000  # calls whose proposal is remembered
TRACKED_S: Final = 0.3
_UNDER_WAY: Final = (ProposalStatus.PENDING, ProposalStatus.CLAIMED)
_UNTRACKED: Final = Refuse(
    CheckNumber.GATE,
    Fault(UNAVAILABLE, "unavailable", {"reason": "not_tracked", "detail": "the proposal is not in the inbox yet"}),
)

Key = tuple[str, str, str, str, bytes]


class ProposalHold:
    """The `CallHold` of such a call: it never lets it go."""

    is_waiting = True
    is_asked_first = True

    def __init__(self, calls: "ProposedCalls", room: Room, who: Participant, target: str, tool: str) -> None:
        self.room = room
        self.who = who
        self.target = target
        self.tool = tool
        self._calls = calls

    def identify(self, call: Call) -> Fault | None:
        return None

    def acknowledge(self, call: Call) -> Refuse | None:
        return None

    def refusal(self, call: Call) -> Refuse:
        return HELD

    async def approval(self, call: Call) -> Release | Refuse:
        return await self._calls.settle(call, self)

    def on_sent(self, call: Call) -> None:
        pass

    def on_ended(self, call: Call, outcome: Outcome, message: bytes) -> bytes:
        return message


class ProposedCalls:
    def __init__(self, proposals: Proposals) -> None:
        self._proposals = proposals
        self._known: dict[Key, str] = {}  # the ids of proposals

    async def settle(self, call: Call, hold: ProposalHold) -> Refuse:
        arguments = bytes(call.params.get("arguments") or RAW_EMPTY)
        principal = call.caller.principal.name
        key = (hold.room.topic, principal, hold.target, hold.tool, hashlib.sha256(arguments).digest())
        proposal = self._known.get(key) or await self._propose(key, hold, principal, arguments)
        if isinstance(proposal, Refusal):
            return Refuse(CheckNumber.GATE, fault_of(proposal))
        settled = await self._proposals.wait_until_settled(hold.room.topic, proposal, TRACKED_S)
        if settled is None:
            return _UNTRACKED
        if STATUS[settled.approval.status] not in _UNDER_WAY:
            self._known.pop(key, None)
        response = _maybe_response(settled)
        if response is None:
            call.reason = "confirmation_required"
            return Refuse(CheckNumber.GATE, HELD.fault, _result(call, hold, settled))
        call.on_response(response, Era.LEGACY)
        return HELD

    async def _propose(self, key: Key, hold: ProposalHold, principal: str, arguments: bytes) -> str | Refusal:
        room, stamp = hold.room, hold.room.stamp()
        warning = secret_refusal(arguments, room.settings.secret_patterns)  # X-7.2-1
        if warning is not None:
            return warning
        params = {"name": hold.tool, "arguments": Raw(arguments)}
        made = Envelope(
            id=stamp.id,
            ts=stamp.ts,
            kind=PROPOSAL,
            sender=hold.who.id,
            to=(hold.target,),
            payload=encode_value({"method": TOOLS_CALL, "params": params}),
        )
        envelope = decode_envelope(encode(made), room.settings.max_envelope_bytes)
        if isinstance(envelope, Refusal):
            return envelope
        done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def settle(failed: Refusal | None) -> None:
            if not done.done():
                done.set_result(failed)

        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = stamp.id  # before anything is awaited: the same call made twice is proposed once
        refused = room.receive(envelope, hold.who, principal, settle) or await done
        if refused is not None:
            self._known.pop(key, None)
            return refused
        return stamp.id


def _maybe_response(settled: Settled) -> Response | None:
    try:
        message = decode_untrusted(settled.answer.payload) if settled.answer is not None else None
    except CodecError:
        return None
    return message if isinstance(message, Response) else None


def _result(call: Call, hold: ProposalHold, settled: Settled) -> bytes:
    approval = settled.approval
    status = STATUS[approval.status]
    if status in _UNDER_WAY:
        told = (
            f"confirmation_required: you are restricted in the room {hold.room.topic}, so the call is proposed there."
            " A full participant or a person decides; then make the same call again for its result."
        )
        said: dict[str, Any] = {"status": "confirmation_required", "confirmation_id": approval.id}
        if approval.expires_at is not None:
            said["expires_at"] = rfc3339(approval.expires_at)
    else:
        why = approval.decision.reason if approval.decision is not None else None
        told = f"confirmation_denied: the proposal is {status.value}" + (f": {why}" if why else "")
        said = {"status": "confirmation_denied", "confirmation_id": approval.id}
    said |= {"room": hold.room.topic, "proposalId": approval.proposal_id}
    era: dict[str, Any] = {"resultType": "complete"} if call.caller.era is Era.MODERN else {}
    content = [{"type": "text", "text": told}]
    return encode_value({**era, "content": content, "isError": True, "_meta": {"x-mcpax-confirmation": said}})
