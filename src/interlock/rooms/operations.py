"""Operations on rooms: list, create, and promote, demote and remove their participants (MCPx 10.3).

The operator API identifies a participant by its id alone, as MCPx does, although an id is unique only within one topic.
So each operation on a participant finds the room first, and refuses if several rooms match.
"""

import time
from dataclasses import dataclass
from typing import Final

import msgspec

from interlock.approvals.api import EDIT_PROPOSAL, Approval, EditProposal
from interlock.approvals.operations.inbox import InboxOperations
from interlock.core.clock import Clock, rfc3339
from interlock.core.operator_errors import refused_as
from interlock.core.recorder import Recorder
from interlock.operator.operation import INVALID_BODY, handles
from interlock.rooms.api import (
    BAD_TOPIC,
    CREATE_ROOM,
    DEMOTE,
    DISCONNECT,
    LIST_CONNECTIONS,
    LIST_PARTICIPANTS,
    LIST_ROOMS,
    MIGRATE,
    PARTICIPANT_REMOVED,
    PROMOTE,
    ROOM_EXISTS,
    SELF_PROMOTION,
    SHOW_OBSERVED,
    TOPIC_REQUIRED,
    ChangePrivilege,
    CreateRoom,
    Demoted,
    Disconnected,
    MethodRecord,
    ObservedParticipant,
    ObservedRoom,
    Promoted,
    RemovedParticipant,
    Room,
    RoomConnection,
    RoomConnections,
    RoomParticipant,
    RoomParticipants,
    Rooms,
)
from interlock.rooms.connections import ParticipantConnection
from interlock.rooms.participant_records import observed_in
from interlock.rooms.protocol.envelope import EnvelopeRefusal, parse_moment
from interlock.rooms.protocol.participants import Privilege, is_topic
from interlock.rooms.remote_seats import ConnectionRecord, RemoteConnection
from interlock.rooms.room import Room as LiveRoom
from interlock.rooms.rooms import PrivilegeChange, RoomRegistry
from interlock.store.ports import AuditReader
from interlock.wire.refusal import NotFound, Refused

AWAY_MAX: Final = 200  # participants that are listed though they are away


@dataclass(frozen=True, slots=True)
class RoomOperations:
    """Operations on rooms for the operator API."""

    rooms: RoomRegistry
    approvals: InboxOperations
    audit: AuditReader
    recorder: Recorder
    clock: Clock

    @handles(LIST_ROOMS)
    def list_all(self) -> Rooms:
        return Rooms(rooms=tuple(self._describe(room) for room in self.rooms.by_topic.values()))

    @handles(CREATE_ROOM)
    async def create(self, body: CreateRoom, by: str) -> Room:
        """Create a room that continues to exist while it is empty. Raise Refused if the topic is invalid or in use, or
        StoreError.
        """
        topic = body.topic
        if not is_topic(topic):
            raise refused_as(
                BAD_TOPIC, "a topic has 1 to 128 letters, digits and . _ : @ ~ -, and begins with a letter"
            )
        room = await self.rooms.create(topic, by)
        if room is None:
            raise refused_as(ROOM_EXISTS, f"there is a room {topic} already")
        return self._describe(room)

    @handles(LIST_CONNECTIONS)
    def connections(self, topic: str) -> RoomConnections:
        """Return the connections to a room and the participants removed from it. Raise NotFound if there is no such
        room.
        """
        room = self._room(topic)
        connections: list[RoomConnection] = []
        for seat in room.seats.values():
            for connection in seat.connections:
                record = connection.record if isinstance(connection, RemoteConnection) else connection
                if not isinstance(record, ParticipantConnection | ConnectionRecord) or record.connected_at is None:
                    continue  # a client that participates through tools, or the node itself
                connections.append(
                    RoomConnection(
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
                )
        removed = tuple(
            RemovedParticipant(participantId=id, by=removal.by, at=rfc3339(removal.at))
            for id, removal in self.rooms.list_removals(room)
        )
        return RoomConnections(topic=topic, connections=tuple(connections), removed=removed)

    @handles(LIST_PARTICIPANTS)
    def participants(self, topic: str) -> RoomParticipants:
        """Return the present and the removed participants of a room, and at most AWAY_MAX of those that are away. Raise
        NotFound if there is no such room.
        """
        room = self._room(topic)
        records = dict(self.rooms.records.of_room(topic))
        away = sorted((id for id in records if id not in room.seats), key=lambda id: -records[id].last_seen)
        removals = dict(self.rooms.list_removals(room))
        participants: list[RoomParticipant] = []
        for id in dict.fromkeys([*room.seats, *removals, *away[:AWAY_MAX]]):
            seat, record, removal = room.seats.get(id), records.get(id), removals.get(id)
            counts = {name: getattr(record, name, 0) for name in ("proposals", "approved", "rejected", "violations")}
            methods = {} if record is None else record.methods
            participants.append(
                RoomParticipant(
                    id=id,
                    privilege=(self.rooms.find_privilege(room, id) or Privilege.RESTRICTED).value,
                    is_present=seat is not None,
                    removed_by=None if removal is None else removal.by,
                    removed_at=None if removal is None else rfc3339(removal.at),
                    principal=seat.principal if seat is not None else "" if record is None else record.principal,
                    first_seen=None if record is None else rfc3339(record.first_seen),
                    last_seen=None if record is None else rfc3339(record.last_seen),
                    methods=tuple(
                        MethodRecord(method=name, **msgspec.structs.asdict(count))
                        for name, count in sorted(methods.items())
                    ),
                    **counts,
                )
            )
        return RoomParticipants(topic=topic, participants=tuple(participants))

    @handles(SHOW_OBSERVED)
    async def observed(self, topic: str) -> ObservedRoom:
        """Return the envelopes that mode "mixed" would have refused. Raise NotFound if there is no such room, or
        StoreError.
        """
        room = self._room(topic)
        participants: list[ObservedParticipant] = []
        for observed in await observed_in(topic, self.audit, self.recorder):
            granted = room.granted(observed.participant)
            remedy = f'full = ["{observed.principal}"]'
            if granted is Privilege.RESTRICTED:  # an admin demoted or removed it
                remedy = f"interlock rooms promote {observed.participant} --topic {topic}"
            elif observed.principal.startswith("room:"):
                name = observed.principal.removeprefix("room:")
                remedy = (
                    f"interlock access token --for room --name {name} --topic {topic}"
                    f" --participant {observed.participant} --privilege full"
                )
            participants.append(
                ObservedParticipant(
                    participant=observed.participant,
                    principal=observed.principal,
                    envelopes=observed.envelopes,
                    kinds=tuple(sorted(observed.kinds)),
                    first=observed.first,
                    last=observed.last,
                    is_full=granted is Privilege.FULL,
                    remedy=remedy,
                )
            )
        return ObservedRoom(topic=topic, mode=room.settings.mode, participants=tuple(participants))

    @handles(MIGRATE)
    async def migrate(self, topic: str, by: str) -> ObservedRoom:
        """Give full privilege to the participants whose envelopes mode "mixed" would refuse, except to one whose
        principal is `by`, and to those that an admin demoted or removed. Raise NotFound or StoreError.
        """
        room = self._room(topic)
        for observed in (await self.observed(topic)).participants:
            if observed.principal != by and await self.rooms.admit(room, observed.participant, by):
                reason = f"{observed.envelopes} envelopes were observed"
                self.rooms.audit.add("promote", topic, by, "ok", participant=observed.participant, reason=reason)
        return await self.observed(topic)

    @handles(PROMOTE)
    async def promote(self, id: str, topic: str | None, body: ChangePrivilege, by: str) -> Promoted:
        """Let a participant send MCP messages. Raise NotFound, Refused or StoreError."""
        change = await self._change(id, topic, Privilege.FULL, body, by)
        return Promoted(
            participantId=id,
            oldPrivilege=change.old.value,
            newPrivilege=change.new.value,
            promotedBy=by,
            promotedAt=rfc3339(change.at),
        )

    @handles(DEMOTE)
    async def demote(self, id: str, topic: str | None, body: ChangePrivilege, by: str) -> Demoted:
        """Restrict a participant to proposals. Raise NotFound, Refused or StoreError."""
        change = await self._change(id, topic, Privilege.RESTRICTED, body, by)
        return Demoted(
            participantId=id,
            oldPrivilege=change.old.value,
            newPrivilege=change.new.value,
            demotedBy=by,
            demotedAt=rfc3339(change.at),
        )

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

    @handles(DISCONNECT)
    async def disconnect(self, id: str, topic: str | None, by: str) -> Disconnected:
        """Remove a participant from a room. Raise NotFound, Refused or StoreError."""
        room = self._room_of(id, topic)
        closed = await self.rooms.remove(room, id, by)
        if closed is None:
            raise NotFound("participant", id, list(room.seats))
        at = rfc3339(self.clock.wall())
        return Disconnected(participantId=id, closedConnections=closed, by=by, at=at)

    async def _change(
        self, participant: str, topic: str | None, to: Privilege, body: ChangePrivilege, by: str
    ) -> PrivilegeChange:
        """Change the privilege of a participant to `to`. Raise NotFound, Refused or StoreError."""
        until = None if body.until is None else parse_moment(body.until)
        if body.until is not None and (until is None or until <= time.time()):
            message = "until is a time to come, as RFC 3339 writes it"
            raise refused_as(INVALID_BODY, message, {"member": "until"})
        # A change of scope "identity" also holds for later connections.
        lasts = body.scope == "identity"
        if until is not None and not lasts:
            raise refused_as(INVALID_BODY, "what ends with a connection has no until", {"member": "until"})
        room = self._room_of(participant, topic)
        seat = room.seats.get(participant)
        if to is Privilege.FULL and seat is not None and seat.principal == by:
            raise refused_as(SELF_PROMOTION, "another person has to promote your own participant")
        if self.rooms.find_removal(room, participant) is not None and (until is not None or not lasts):
            raise refused_as(
                PARTICIPANT_REMOVED, "it was removed from the room; only a decision without an end lets it in again"
            )
        is_here = seat is not None and bool(seat.connections)
        if lasts or is_here:
            change = await self.rooms.change_privilege(
                room, participant, to, by, lasts=lasts, until=until, reason=body.reason
            )
            if change is not None:
                return change
        raise NotFound("participant", participant, list(room.seats))

    def _room(self, topic: str) -> LiveRoom:
        room = self.rooms.by_topic.get(topic)
        if room is None:
            raise NotFound("room", topic, list(self.rooms.by_topic))
        return room

    def _room_of(self, participant: str, topic: str | None) -> LiveRoom:
        """Return the room of a participant. Ids are unique per topic only, and the paths of MCPx contain no topic, so
        `topic` is required if several rooms match.
        """
        rooms = self.rooms.by_topic.values() if topic is None else [self._room(topic)]
        matches = [room for room in rooms if participant in room.seats]
        matches = matches or [room for room in rooms if self.rooms.find_privilege(room, participant) is not None]
        if len(matches) > 1:
            topics = ", ".join(room.topic for room in matches)
            raise refused_as(TOPIC_REQUIRED, f"{participant} is in several rooms: {topics}; say ?topic=")
        if not matches:
            ids = [id for room in self.rooms.by_topic.values() for id in room.seats]
            raise NotFound("participant", participant, ids)
        return matches[0]

    def _describe(self, room: LiveRoom) -> Room:
        return Room(
            topic=room.topic,
            mode=room.settings.mode,
            is_configured=self.rooms.is_declared(room.topic),
            participants=sum(bool(seat.connections) for seat in room.seats.values()),
            envelopes=room.timeline.delivered,
        )
