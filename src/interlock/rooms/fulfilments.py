"""Fulfilments of proposals: the request is sent once, as the approver, and its target's answer ends the proposal."""

import asyncio
from typing import Final

import msgspec

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval
from interlock.approvals.protocol.state import Move
from interlock.core.background import BackgroundTasks
from interlock.rooms.protocol import proposals as rules
from interlock.rooms.protocol.enforcement import MCP
from interlock.rooms.protocol.envelope import Envelope
from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.protocol.participants import Participant
from interlock.rooms.room import Room
from interlock.wire.jsonrpc.errors import Fault

ANSWER_S: Final = 300.0  # how long the answer of a target may take; then it is not known what happened


class _Claim(msgspec.Struct, frozen=True):
    approval_id: str
    target: str
    rpc_id: bytes
    timer: asyncio.TimerHandle
    is_gates: bool = False  # the gate uses the approval, and ends it


class Answered(msgspec.Struct, frozen=True):
    """How a fulfilment went."""

    approval_id: str
    end: Move
    outcome: str
    is_gates: bool  # which is told the end itself


class Fulfilments:
    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._claims: dict[str, _Claim] = {}  # by the id of the envelope
        self._work = BackgroundTasks()

    async def close(self) -> None:
        for claim in self._claims.values():
            claim.timer.cancel()
        await self._work.close()

    def __contains__(self, envelope_id: str | None) -> bool:
        return envelope_id in self._claims

    def begin(self, envelope_id: str, approval_id: str, target: str, rpc_id: bytes, *, is_gates: bool = False) -> None:
        timer = asyncio.get_running_loop().call_later(ANSWER_S, self._on_silence, envelope_id)
        self._claims[envelope_id] = _Claim(approval_id, target, rpc_id, timer, is_gates)

    def maybe_released(self, envelope_id: str) -> str | None:
        """The approval with which the gate releases the call of this fulfilment, where it holds it."""
        claim = self._claims.get(envelope_id)
        return claim.approval_id if claim is not None and claim.is_gates else None

    async def send(
        self, room: Room, approval: Approval, who: Participant, principal: str, *, is_gates: bool
    ) -> Envelope | Refusal | Fault:
        """What was proposed, as it was proposed. With `is_gates` the gate uses the approval, else it is used here."""
        if not is_gates:
            used = await self._inbox.use(approval.id)
            if isinstance(used, Fault):
                return used
            approval = used
        stamp, target = room.stamp(), approval.target or ""
        envelope = Envelope(
            id=stamp.id,
            ts=stamp.ts,
            kind=MCP,
            sender=who.id,  # X-4.2.1-1
            to=(target,),
            correlation_id=approval.proposal_id,
            payload=rules.fulfilment_payload(approval.method or "", approval.params, stamp.id),
        )
        self.begin(envelope.id, approval.id, target, b'"%b"' % stamp.id.encode(), is_gates=is_gates)
        published: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def settle(failed: Refusal | None) -> None:
            if not published.done():
                published.set_result(failed)

        refusal = room.receive(envelope, who, principal, settle) or await published
        if refusal is None:
            return envelope
        self._forget(envelope.id)
        if is_gates:
            await self._inbox.void(approval.id, refusal.code)
        else:
            await self._inbox.finish(approval.id, Move.FAIL, refusal.code)
        return refusal

    def take_answer(self, envelope: Envelope) -> Answered | None:
        """What it ends; None where it is no answer."""
        id = envelope.correlation_id or ""
        claim = self._claims.get(id)
        end = None if claim is None else rules.maybe_end(envelope.payload, claim.rpc_id)
        if claim is None or end is None or envelope.sender != claim.target:
            return None
        self._forget(id)
        return Answered(claim.approval_id, *end, claim.is_gates)

    def _forget(self, envelope_id: str) -> None:
        claim = self._claims.pop(envelope_id, None)
        if claim is not None:
            claim.timer.cancel()

    def _on_silence(self, envelope_id: str) -> None:
        claim = self._claims.pop(envelope_id, None)
        if claim is not None and not claim.is_gates:
            self._work.begin(self._inbox.finish(claim.approval_id, Move.LOSE, "the target did not answer"))
