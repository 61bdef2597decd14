"""The participation of MCP clients in rooms through tools: join, read, say, propose, and decide on proposals
(X-10.1-4).

Each method takes the principal and the arguments of a call and returns the reply of the tool, or a Refusal. Messages
are published like any envelope; the privilege is that of the client's principal in the room.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw

from interlock.core.clock import rfc3339
from interlock.rooms.connections import PresenceLeases
from interlock.rooms.proposals import SettledProposal
from interlock.rooms.protocol.envelope import CHAT, PROPOSAL, Envelope, EnvelopeRefusal, decode_untrusted, encode
from interlock.rooms.protocol.participants import Participant
from interlock.rooms.protocol.proposals import STATUS, TOOLS_CALL, secret_refusal
from interlock.rooms.room import Room
from interlock.rooms.rooms import REMOVED_HINT, RoomRegistry
from interlock.rooms.timeline import StoredEnvelope, limit_bytes

READ_MAX: Final = 100
READ_DEFAULT: Final = 20
WAIT_MAX_S: Final = 25.0
FULFIL_WAIT_S: Final = 20.0

Json = dict[str, Any]
Topic = Annotated[str, Meta(description="The room.", max_length=128)]
ProposalId = Annotated[str, Meta(description="Of the proposal.", max_length=128)]
Wait = Annotated[float, Meta(description="How long to wait for it, in seconds.", ge=0, le=WAIT_MAX_S)]
Reason = Annotated[str, Meta(description="Why, for people.", max_length=2000)]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class InRoom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Topic


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Topic
    cursor: Annotated[int, Meta(description="From the last read; without it the newest are read.", ge=0)] | None = None
    limit: Annotated[int, Meta(description="At most so many messages.", ge=1, le=READ_MAX)] = READ_DEFAULT
    wait_s: Wait = 0.0


class Saying(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Topic
    text: Annotated[str, Meta(description="What everyone in the room will read.")]
    format: Literal["plain", "markdown"] = "plain"
    to: Annotated[list[str], Meta(description="Whom it is for; everyone sees it all the same.", max_length=100)] = []


class Proposing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Topic
    to: Annotated[str, Meta(description="The participant that would do it.", max_length=64)]
    tool: Annotated[str, Meta(description="Its tool, by its own name there.", min_length=1)]
    arguments: Annotated[dict[str, Raw], Meta(description="Of the call.")] = {}
    reason: Reason | None = None
    wait_s: Wait = 0.0
    despite_secrets: Annotated[bool, Meta(description="Send it although everyone will see what looks secret.")] = False


class Fulfilling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Topic
    proposal_id: ProposalId
    wait_s: Wait = FULFIL_WAIT_S


class Rejecting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Topic
    proposal_id: ProposalId
    reason: Reason | None = None


class Withdrawing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Topic
    proposal_id: ProposalId


IsHeld = Callable[[Room, str, str], bool]  # a room, a participant, and the name of its tool there


class Participation:
    """The operations of the tools `rooms.*`."""

    def __init__(self, rooms: RoomRegistry, leases: PresenceLeases, is_held: IsHeld) -> None:
        """Create the operations. `is_held` returns whether a call of a participant's tool is held for a person in
        the namespace.
        """
        self._rooms = rooms
        self._leases = leases
        self._is_held = is_held

    def may_join_any(self, principal: str) -> bool:
        """Return whether a client is a member of any room, removed or not: a removed client learns so when it joins."""
        return any(self._rooms.is_member(room, principal) for room in self._rooms.by_topic.values())

    def _room(self, topic: str, principal: str) -> tuple[Room, Participant] | EnvelopeRefusal:
        """Return a room and the participant that a client is in it. To a non-member the room is unknown."""
        room = self._rooms.by_topic.get(topic)
        if room is None or not self._rooms.is_member(room, principal):
            return EnvelopeRefusal(
                "unknown_topic", "unknown room, or you are not a member of it; rooms.list names your rooms"
            )
        if not self._rooms.may_join(room, principal):
            return EnvelopeRefusal("removed", REMOVED_HINT)
        who = self._rooms.participant(room, principal)
        self._leases.renew(room, who.id)
        return room, who

    # Who is where

    async def list_all(self, principal: str, request: Nothing) -> Json:
        rooms = [room for room in self._rooms.by_topic.values() if self._rooms.may_join(room, principal)]
        return {
            "rooms": [
                {
                    "topic": room.topic,
                    "you": (who := self._rooms.participant(room, principal)).described(),
                    "joined": who.id in room.seats,
                    "participants": len(room.seats),
                }
                for room in rooms
            ]
        }

    async def join(self, principal: str, request: InRoom) -> Json | EnvelopeRefusal:
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        room, who = membership
        if not self._leases.begin(room, who, principal):
            return EnvelopeRefusal("room_full", f"at most {room.settings.max_participants} participants")
        await self._rooms.readable_after(room, who.id)
        there = [participant.described() for participant in room.present(who.id)]
        return {"topic": room.topic, "you": who.described(), "participants": there, "cursor": room.timeline.delivered}

    async def leave(self, principal: str, request: InRoom) -> Json | EnvelopeRefusal:
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        return {"topic": request.topic, "left": self._leases.end(membership[0], membership[1].id)}

    async def participants(self, principal: str, request: InRoom) -> Json | EnvelopeRefusal:
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        return {
            "topic": request.topic,
            "participants": [participant.described() for participant in membership[0].present()],
        }

    # What is said

    async def read(self, principal: str, request: Reading) -> Json | EnvelopeRefusal:
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        room, who = membership
        readable_after = await self._rooms.readable_after(room, who.id)
        if room.settings.history_visibility == "none" and request.cursor is None:
            after = room.timeline.delivered
        else:
            after = (
                max(readable_after, room.timeline.delivered - request.limit)
                if request.cursor is None
                else request.cursor
            )
        if room.settings.history_visibility != "none":
            after = max(after, readable_after)
        if after > room.timeline.delivered:
            return EnvelopeRefusal("history_gap", "no message of that number was published yet")
        await room.timeline.wait_beyond(after, request.wait_s)
        membership = self._room(request.topic, principal)  # an admin may have removed it meanwhile
        if isinstance(membership, EnvelopeRefusal):
            return membership
        records = limit_bytes(await room.timeline.history.read(after, room.timeline.delivered, request.limit))
        cursor = records[-1].sequence if records else after
        under_way = await self._rooms.proposals.list_all(room)
        return {
            "topic": room.topic,
            "messages": [_describe_record(item) for item in records],
            "cursor": cursor,
            "more": cursor < room.timeline.delivered,
            "proposals": [item for item in under_way if item["status"] in ("pending", "claimed")],
        }

    async def say(self, principal: str, request: Saying) -> Json | EnvelopeRefusal:
        payload: Json = {"text": request.text} | ({} if request.format == "plain" else {"format": request.format})
        return await self._publish(principal, request.topic, CHAT, payload, tuple(request.to))

    async def propose(self, principal: str, request: Proposing) -> Json | EnvelopeRefusal:
        payload: Json = {"method": TOOLS_CALL, "params": {"name": request.tool, "arguments": request.arguments}}
        if request.reason is not None:
            payload["reason"] = request.reason
        warning = self._find_secret_warning(request)
        if warning is not None:
            return warning
        published = await self._publish(principal, request.topic, PROPOSAL, payload, (request.to,))
        if isinstance(published, EnvelopeRefusal):
            return published
        settled = await self._rooms.proposals.wait_until_settled(
            request.topic, published["id"], max(request.wait_s, 0.2)
        )
        membership = self._room(request.topic, principal)  # an admin may have removed it meanwhile
        if isinstance(membership, EnvelopeRefusal):
            return membership
        status = {"status": "published"} if settled is None else _shown(settled)
        return {"topic": request.topic, "proposalId": published["id"], **status}

    def _find_secret_warning(self, request: Proposing) -> EnvelopeRefusal | None:
        """Return the refusal of arguments that seem to hold a secret, or None (X-7.2-1)."""
        room = self._rooms.by_topic.get(request.topic)
        if request.despite_secrets or room is None:
            return None
        shown = {"arguments": request.arguments, "reason": request.reason}
        return secret_refusal(msgspec.json.encode(shown), room.settings.secret_patterns)

    async def _publish(
        self, principal: str, topic: str, kind: str, payload: Json, to: tuple[str, ...]
    ) -> Json | EnvelopeRefusal:
        membership = self._room(topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        room, who = membership
        stamp = room.stamp()
        draft = Envelope(
            id=stamp.id,
            ts=stamp.ts,
            sender=who.id,
            to=to or None,
            kind=kind,
            payload=msgspec.json.encode(payload),
        )
        envelope = decode_untrusted(encode(draft), room.settings.max_envelope_bytes)
        if isinstance(envelope, EnvelopeRefusal):
            return envelope
        done: asyncio.Future[EnvelopeRefusal | None] = asyncio.get_running_loop().create_future()

        def settle(failed: EnvelopeRefusal | None) -> None:
            if not done.done():
                done.set_result(failed)

        refusal = room.receive(envelope, who, principal, settle) or await done
        if refusal is not None:
            return refusal
        absent = [recipient for recipient in to if recipient not in room.seats]
        return {"topic": topic, "id": stamp.id, "cursor": room.timeline.delivered} | (
            {"absent": absent} if absent else {}
        )

    # Proposals

    async def fulfil(self, principal: str, request: Fulfilling) -> Json | EnvelopeRefusal:
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        room, who = membership
        proposals = self._rooms.proposals
        proposal = await proposals.find(room.topic, request.proposal_id)
        if proposal is not None and proposal.target is not None and proposal.method == TOOLS_CALL:
            # The gate sees the real operation: what is held there is approved in the inbox, once and with a proof.
            tool = _tool_name(proposal.params)
            if self._is_held(room, proposal.target, tool):
                message = f"a person approves it in the inbox: interlock approve {proposal.id}"
                return EnvelopeRefusal("kind_not_allowed", message, {"approval": proposal.id}, id=request.proposal_id)
        done = await proposals.fulfil(request.topic, request.proposal_id, who, principal)
        if isinstance(done, EnvelopeRefusal):
            return done
        settled = await proposals.wait_until_settled(request.topic, request.proposal_id, request.wait_s)
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        return {"topic": request.topic, "proposalId": request.proposal_id, **_shown(settled or SettledProposal(done))}

    async def reject(self, principal: str, request: Rejecting) -> Json | EnvelopeRefusal:
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        done = await self._rooms.proposals.reject(
            request.topic, request.proposal_id, membership[1], principal, request.reason
        )
        return done if isinstance(done, EnvelopeRefusal) else _decided(request.topic, request.proposal_id, done.status)

    async def withdraw(self, principal: str, request: Withdrawing) -> Json | EnvelopeRefusal:
        membership = self._room(request.topic, principal)
        if isinstance(membership, EnvelopeRefusal):
            return membership
        done = await self._rooms.proposals.withdraw(request.topic, request.proposal_id, membership[1])
        return done if isinstance(done, EnvelopeRefusal) else _decided(request.topic, request.proposal_id, done.status)


def _describe_record(record: StoredEnvelope) -> Json:
    return {"seq": record.sequence, "received_at": rfc3339(record.received_at), "envelope": Raw(record.data)}


def _shown(settled: SettledProposal) -> Json:
    approval = settled.approval
    outcome: Json = {"status": STATUS[approval.status].value, "approval": approval.id}
    if approval.decision is not None and approval.decision.reason is not None:
        outcome["reason"] = approval.decision.reason
    if settled.answer is not None:
        outcome["answer"] = Raw(settled.answer.payload)
    return outcome


def _decided(topic: str, proposal_id: str, status: Any) -> Json:
    return {"topic": topic, "proposalId": proposal_id, "status": STATUS[status].value}


def _tool_name(params: Any) -> str:
    try:
        name = msgspec.json.decode(bytes(params), type=dict[str, Raw]).get("name")
        return msgspec.json.decode(name, type=str) if name is not None else ""
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return ""
