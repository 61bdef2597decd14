"""Operations on rooms: list, create, and promote, demote and remove their participants (MCPx 10.3).

The operator API identifies a participant by its id alone, as MCPx does, although an id is unique only within one topic.
So each operation on a participant finds the room first, and refuses if several rooms match.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import asdict

from interlock.approvals.api import EDIT_PROPOSAL, Approval, EditProposal
from interlock.approvals.operations.inbox import InboxOperations
from interlock.core.clock import Clock, rfc3339
from interlock.core.operator_errors import refused_as
from interlock.core.recorder import Recorder
from interlock.operator.operation import INVALID_BODY, handles
from interlock.rooms import api
from interlock.rooms.connections import ConnectionRecord, ParticipantConnection, RemoteConnection
from interlock.rooms.protocol.envelope import EnvelopeRefusal, parse_moment
from interlock.rooms.protocol.participants import Privilege, is_topic
from interlock.rooms.room import Room
from interlock.rooms.rooms import RoomRegistry
from interlock.store.sqlite.audit import SqliteAuditReader
from interlock.wire.refusal import NotFound, Refused

AWAY_MAX: Final = 200  # participants that are listed though they are away
PAGE: Final = 1000  # audit records that are read at once
_OBSERVE: Final = "rooms/observe"


class _ObservedRecord(msgspec.Struct):
    """The members of an audit record about an envelope that a room in observe mode has let through."""

    method: str = ""
    room: str = ""
    who: str = ""
    participant: str = ""
    kind: str = ""
    at: str = ""


class _Observed(msgspec.Struct):
    """The observations about one participant: its first and its last audit record, and the number of envelopes of each
    kind.
    """

    first: _ObservedRecord
    last: _ObservedRecord
    kinds: Counter[str] = msgspec.field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class RoomOperations:
    """The operations of the operator API on rooms and their participants."""

    rooms: RoomRegistry
    approvals: InboxOperations
    audit: SqliteAuditReader
    recorder: Recorder
    clock: Clock

    @handles(api.LIST_ROOMS)
    def list_all(self) -> api.Rooms:
        return api.Rooms(rooms=tuple(self._describe(room) for room in self.rooms.by_topic.values()))

    @handles(api.CREATE_ROOM)
    async def create(self, body: api.CreateRoom, by: str) -> api.Room:
        """Create a room, which also exists while nobody is in it. Raise Refused if the topic is invalid or in use, or
        StoreError.
        """
        if not is_topic(body.topic):
            why = "a topic has 1 to 128 letters, digits and . _ : @ ~ -, and begins with a letter"
            raise refused_as(api.BAD_TOPIC, why)
        if (room := await self.rooms.create(body.topic, by)) is None:
            raise refused_as(api.ROOM_EXISTS, f"there is a room {body.topic} already")
        return self._describe(room)

    @handles(api.LIST_CONNECTIONS)
    def connections(self, topic: str) -> api.RoomConnections:
        """Return the connections to a room and the participants removed from it. Raise NotFound if there is no such
        room.
        """
        room = self._room(topic)
        connections: list[api.RoomConnection] = []
        for seat, connection in [(place, each) for place in room.seats.values() for each in place.connections]:
            record = connection.record if isinstance(connection, RemoteConnection) else connection
            if not isinstance(record, ParticipantConnection | ConnectionRecord) or record.connected_at is None:
                continue  # a client that participates through tools, or the node itself
            description = api.RoomConnection(
                connectionId=connection.id,
                participantId=seat.participant.id,
                privilege=seat.participant.privilege.value,
                connectedAt=rfc3339(record.connected_at),
                protocol=record.protocol,
                topic=topic,
                source=record.source,
                principal=record.principal,
                isElsewhere=not connection.is_here,
            )
            connections.append(description)
        removed = [
            api.RemovedParticipant(participantId=id, by=removal.by, at=rfc3339(removal.at))
            for id, removal in self.rooms.list_removals(room)
        ]
        return api.RoomConnections(topic=topic, connections=tuple(connections), removed=tuple(removed))

    @handles(api.LIST_PARTICIPANTS)
    def participants(self, topic: str) -> api.RoomParticipants:
        """Return the participants of a room: those present, those removed, and at most AWAY_MAX that are away. Raise
        NotFound if there is no such room.
        """
        room = self._room(topic)
        records = dict(self.rooms.records.of_room(topic))
        away = sorted((id for id in records if id not in room.seats), key=lambda id: -records[id].last_seen)
        removals = dict(self.rooms.list_removals(room))
        participants: list[api.RoomParticipant] = []
        for id in dict.fromkeys([*room.seats, *removals, *away[:AWAY_MAX]]):
            seat, record, removal = room.seats.get(id), records.get(id), removals.get(id)
            counts = {name: getattr(record, name, 0) for name in ("proposals", "approved", "rejected", "violations")}
            methods = [] if record is None else sorted(record.methods.items())
            participants.append(
                api.RoomParticipant(
                    id=id,
                    privilege=(self.rooms.find_privilege(room, id) or Privilege.RESTRICTED).value,
                    is_present=seat is not None,
                    removed_by=None if removal is None else removal.by,
                    removed_at=None if removal is None else rfc3339(removal.at),
                    principal=getattr(seat or record, "principal", ""),
                    first_seen=None if record is None else rfc3339(record.first_seen),
                    last_seen=None if record is None else rfc3339(record.last_seen),
                    methods=tuple(api.MethodRecord(method=name, **asdict(count)) for name, count in methods),
                    **counts,
                )
            )
        return api.RoomParticipants(topic=topic, participants=tuple(participants))

    @handles(api.SHOW_OBSERVED)
    async def observed(self, topic: str) -> api.ObservedRoom:
        """Return which envelopes mode "mixed" would have refused, by participant. Raise NotFound if there is no such
        room, or StoreError.
        """
        room = self._room(topic)
        participants: list[api.ObservedParticipant] = []
        for id, observed in sorted((await self._read_observed(topic)).items()):
            granted, principal = room.granted(id), observed.last.who
            remedy = f'full = ["{principal}"]'
            if granted is Privilege.RESTRICTED:  # an admin demoted or removed it
                remedy = f"interlock rooms promote {id} --topic {topic}"
            elif principal.startswith("room:"):
                name = principal.removeprefix("room:")
                remedy = (
                    f"interlock access token --for room --name {name} --topic {topic} --participant {id}"
                    " --privilege full"
                )
            participants.append(
                api.ObservedParticipant(
                    participant=id,
                    principal=principal,
                    envelopes=observed.kinds.total(),
                    kinds=tuple(sorted(observed.kinds)),
                    first=observed.first.at,
                    last=observed.last.at,
                    is_full=granted is Privilege.FULL,
                    remedy=remedy,
                )
            )
        return api.ObservedRoom(topic=topic, mode=room.settings.mode, participants=tuple(participants))

    async def _read_observed(self, topic: str) -> dict[str, _Observed]:
        """Read from the audit log which envelopes of a room mode "mixed" would have refused. Return them by
        participant.
        """
        await self.recorder.flush()
        observed: dict[str, _Observed] = {}
        after = 0
        while page := await self.audit.read(after, PAGE):
            after = page[-1].sequence
            for line in page:
                if _OBSERVE.encode() in line.data:  # most records are not even decoded
                    record = msgspec.json.decode(line.data, type=_ObservedRecord)
                    if (record.method, record.room) == (_OBSERVE, topic):
                        entry = observed.setdefault(record.participant, _Observed(record, record))
                        entry.last = record
                        entry.kinds[record.kind] += 1
        return observed

    @handles(api.MIGRATE)
    async def migrate(self, topic: str, by: str) -> api.ObservedRoom:
        """Give full privilege to the participants that mode "mixed" would refuse. Leave out those whose principal is
        `by`, and those that an admin demoted or removed. Raise NotFound or StoreError.
        """
        room = self._room(topic)
        for observed in (await self.observed(topic)).participants:
            if observed.principal != by and await self.rooms.admit(room, observed.participant, by):
                reason = f"{observed.envelopes} envelopes were observed"
                self.rooms.audit.add("promote", topic, by, "ok", participant=observed.participant, reason=reason)
        return await self.observed(topic)

    @handles(api.PROMOTE)
    async def promote(self, id: str, topic: str | None, body: api.ChangePrivilege, by: str) -> api.Promoted:
        """Let a participant send MCP messages. Raise NotFound, Refused or StoreError."""
        old, at = await self._change(id, topic, Privilege.FULL, body, by)
        return api.Promoted(participantId=id, oldPrivilege=old, newPrivilege="full", promotedBy=by, promotedAt=at)

    @handles(api.DEMOTE)
    async def demote(self, id: str, topic: str | None, body: api.ChangePrivilege, by: str) -> api.Demoted:
        """Restrict a participant to proposals. Raise NotFound, Refused or StoreError."""
        old, at = await self._change(id, topic, Privilege.RESTRICTED, body, by)
        return api.Demoted(participantId=id, oldPrivilege=old, newPrivilege="restricted", demotedBy=by, demotedAt=at)

    @handles(EDIT_PROPOSAL)
    async def edit_proposal(self, id: str, body: EditProposal, by: str) -> Approval:
        """Replace a proposal with an edited one. Return the new approval, which has to be decided instead. Raise
        NotFound or Refused.
        """
        params = bytes(body.params)
        if params[:1] != b"{":
            raise refused_as(INVALID_BODY, "params is an object", {"member": "params"})
        approval = self.approvals.get(id)
        edited = await self.rooms.proposals.edit(approval.id, params, by)
        if isinstance(edited, EnvelopeRefusal):
            raise Refused(edited.code, edited.message)
        return self.approvals.get(edited.id)

    @handles(api.DISCONNECT)
    async def disconnect(self, id: str, topic: str | None, by: str) -> api.Disconnected:
        """Remove a participant from a room. Raise NotFound, Refused or StoreError."""
        room = self._room_of(id, topic)
        if (closed := await self.rooms.remove(room, id, by)) is None:
            raise NotFound("participant", id, list(room.seats))
        return api.Disconnected(participantId=id, closedConnections=closed, by=by, at=rfc3339(self.clock.wall()))

    async def _change(
        self, participant: str, topic: str | None, to: Privilege, body: api.ChangePrivilege, by: str
    ) -> tuple[str, str]:
        """Give a participant the privilege `to`. Return its old privilege and the time of the change. Raise NotFound,
        Refused or StoreError.
        """
        until = None if body.until is None else parse_moment(body.until)
        if body.until is not None and (until is None or until <= time.time()):
            raise refused_as(INVALID_BODY, "until is a time to come, as RFC 3339 writes it", {"member": "until"})
        # A change of scope "identity" also holds for later connections.
        lasts = body.scope == "identity"
        if until is not None and not lasts:
            raise refused_as(INVALID_BODY, "what ends with a connection has no until", {"member": "until"})
        room = self._room_of(participant, topic)
        seat = room.seats.get(participant)
        if to is Privilege.FULL and seat is not None and seat.principal == by:
            raise refused_as(api.SELF_PROMOTION, "another person has to promote your own participant")
        if self.rooms.find_removal(room, participant) is not None and (until is not None or not lasts):
            why = "it was removed from the room; only a decision without an end lets it in again"
            raise refused_as(api.PARTICIPANT_REMOVED, why)
        at, old = rfc3339(self.clock.wall()), None
        if lasts or (seat is not None and seat.connections):
            old = await self.rooms.change_privilege(
                room, participant, to, by, lasts=lasts, until=until, reason=body.reason
            )
        if old is None:
            raise NotFound("participant", participant, list(room.seats))
        return old.value, at

    def _room(self, topic: str) -> Room:
        if (room := self.rooms.by_topic.get(topic)) is None:
            raise NotFound("room", topic, list(self.rooms.by_topic))
        return room

    def _room_of(self, participant: str, topic: str | None) -> Room:
        """Return the room of a participant. Ids are unique only within one topic, so `topic` is required if several
        rooms match. Raise NotFound or Refused.
        """
        rooms = self.rooms.by_topic.values() if topic is None else [self._room(topic)]
        matches = [room for room in rooms if participant in room.seats]
        matches = matches or [room for room in rooms if self.rooms.find_privilege(room, participant) is not None]
        if len(matches) > 1:
            topics = ", ".join(room.topic for room in matches)
            raise refused_as(api.TOPIC_REQUIRED, f"{participant} is in several rooms: {topics}; say ?topic=")
        if not matches:
            present = [id for room in self.rooms.by_topic.values() for id in room.seats]
            raise NotFound("participant", participant, present)
        return matches[0]

    def _describe(self, room: Room) -> api.Room:
        return api.Room(
            topic=room.topic,
            mode=room.settings.mode,
            is_configured=self.rooms.is_declared(room.topic),
            participants=sum(bool(seat.connections) for seat in room.seats.values()),
            envelopes=room.timeline.delivered,
        )
