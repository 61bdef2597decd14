"""The rooms of a node: which exist, who may join each, what admins granted, and the metrics of rooms (X-7.3-2).

Rooms are declared in the configuration or created by an operator; both keep their history while nobody is present. With
`auto_create`, a connection to a missing room creates it.

A privilege follows from the first rule that applies (X-5.1-4): the decision of an admin, the mode `restricted` or
`observe`, the token, the lists of the room, the mode. A grant belongs to a participant of one room and outlives its
connections (X-10.3-1). So does a removal, which is a grant without entry: promoting or demoting the participant lifts
it (X-5.1-6).

A grant may have an end. Then it remembers two privileges: `before`, which the participant has again if it is present
when the grant ends, and `beneath`, what an admin had decided without an end, which counts for later connections.

Replicas share all of this through buckets of the store. A replica that makes a decision writes it first and then
applies it; the others apply it when they learn of the write.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from interlock.config.plan import Plan, room_settings
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock, rfc3339
from interlock.core.feed import Feed
from interlock.core.metrics import Metrics, Sample
from interlock.core.recorder import Recorder
from interlock.core.replicas import Replicas
from interlock.rooms import participant_records
from interlock.rooms.connections import RemoteSeats
from interlock.rooms.participant_records import ParticipantRecords
from interlock.rooms.proposals import ProposalTracker
from interlock.rooms.protocol import participants
from interlock.rooms.protocol.participants import GATEWAY, OWN, Participant, Privilege, participant_of
from interlock.rooms.protocol.settings import RoomSettings
from interlock.rooms.room import REMOVED, Room, RoomAudit, RoomFeeds, SharedRoomParts
from interlock.store.ports import Change, Store, StoreError
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.rooms")

CREATED: Final = "rooms"  # bucket: topic -> when and by whom
JOINS: Final = (
    "room-joins"  # bucket: topic, line feed, participant -> the sequence of the last envelope when it first came
)
GRANTS: Final = "room-grants"  # bucket: topic, line feed, participant -> Grant
SHUTDOWN: Final = 1001
FORGET_EVERY_S: Final = 3600.0
GRANT_LOOK_S: Final = 3600.0  # a timer runs at most so long, because the wall clock may be set meanwhile
ROOMS_MAX: Final = 1000  # no room is created by a connection beyond that many
OF_ONE_ROOM: Final = "room:"  # the beginning of a principal that came with a token for one room
CREDENTIAL_ENDED: Final = 4401
CREDENTIAL_WHY: Final = "your credential is no longer valid"
DELISTED_WHY: Final = "the configuration of the room no longer names you"
CHANGED_WHY: Final = "the configuration of the room no longer makes you full; join again"
REMOVED_WHY: Final = "an admin removed you from the room"
REMOVED_HINT: Final = f"{REMOVED_WHY}; one lets you in again by interlock rooms demote ID, or promote ID"


class PrivilegeGrant(msgspec.Struct, frozen=True, kw_only=True):
    """An admin's decision about the privilege of a participant in one room."""

    privilege: Privilege
    by: str
    at: float
    until: float | None = None
    before: Privilege | None = None  # what it has again afterwards, while it stays
    beneath: Privilege | None = None  # what an admin had decided without an end, and counts again afterwards
    is_removal: bool = False  # it may not come in; `privilege` is what it had
    admits: bool = False  # also a client that the room's lists do not name (X-8-3)

    @property
    def lasting(self) -> Privilege | None:
        """Return the privilege that an admin granted permanently, or None."""
        return self.beneath if self.until is not None else self.privilege


class RoomRegistry:
    """The registry of all rooms of a node, and of the decisions that admins made about participants.

    Decisions are made one at a time (`_deciding`), because each depends on the result of the previous decision.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        recorder: Recorder,
        clock: Clock,
        proposals: ProposalTracker,
        replicas: Replicas,
        find_safety_refusal: Callable[[str], Refusal | None],
    ) -> None:
        """Create the registry. `find_safety_refusal` returns why the safety loop does not let a principal act in
        rooms, or None.
        """
        self._plan = plan
        self._kv = store.kv
        self._clock = clock
        self.feeds = RoomFeeds()
        self.changed = Feed[None]()  # there are other rooms, or other settings of one
        self.audit = RoomAudit(recorder, clock)
        self.records = ParticipantRecords(store.kv, clock)
        self.proposals = proposals
        self.by_topic: dict[str, Room] = {}
        granted = self._find_granted_privilege
        self._room_parts = SharedRoomParts(
            store, clock, self.audit, self.records, proposals, self.feeds, granted, find_safety_refusal
        )
        self._elsewhere = RemoteSeats(store, replicas, clock, self.by_topic)
        proposals.judged.subscribe(lambda judgement: self.records.note_proposal(*judgement))
        self.feeds.seated.subscribe(lambda event: self._elsewhere.note(*event))
        replicas.on_change(GRANTS, self._apply_remote_grant)
        replicas.on_change(CREATED, self._open_remote_room)
        replicas.on_change(JOINS, self._note_remote_join)
        replicas.on_change(participant_records.BUCKET, self.records.take_change)
        self._created: dict[str, None] = {}  # the topics of rooms that an operator or a connection created, in order
        self._grants: dict[str, PrivilegeGrant] = {}
        self._joins: dict[str, int] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}  # of grants
        self._deciding = asyncio.Lock()  # a decision rests on the one before
        self._creating = asyncio.Lock()
        self._tasks = BackgroundTasks()
        self.is_stopping = False

    async def open(self) -> None:
        """Read grants, created rooms and records, and open every room. Raise StoreError if that fails."""
        now = self._clock.wall()
        self.proposals.index.load()
        await self.records.open()
        for entry in await self._kv.entries(GRANTS, now):
            grant = self._grants[entry.key] = msgspec.json.decode(entry.value, type=PrivilegeGrant)
            if not self._has_expired(grant):  # nobody is here yet from whom an expired grant would take something back
                self._schedule_end(entry.key, grant)
        self._created = {entry.key: None for entry in await self._kv.entries(CREATED, now)}
        self._joins = {entry.key: int(entry.value) for entry in await self._kv.entries(JOINS, now)}
        for topic in self._list_topics(self._plan):
            await self._open_room(topic)
        await self._elsewhere.open()
        self._tasks.begin(self._forget_forever(), "old envelopes of rooms")
        self.proposals.start()

    def hang_up(self) -> None:
        """Close all connections because the node is stopping. Participants may reconnect and resume afterwards."""
        self.is_stopping = True
        for room in self.by_topic.values():
            for participant in list(room.seats):
                room.disconnect(participant, SHUTDOWN, "the node stops")

    async def close(self) -> None:
        self.hang_up()
        for timer in self._ends.values():
            timer.cancel()
        await self._tasks.close()
        await self.proposals.close()
        await self._elsewhere.close()
        for room in self.by_topic.values():
            await room.close()
        await self.records.close()

    async def _forget_forever(self) -> None:
        while True:
            for room in list(self.by_topic.values()):
                try:
                    await room.timeline.forget_old()
                except StoreError as away:
                    log.warning("room %s: old envelopes could not be removed: %s", room.topic, away)
            await asyncio.sleep(FORGET_EVERY_S)

    async def replan(self, plan: Plan) -> None:
        """Apply a changed configuration. Close a room that is no longer declared and that nobody created; its history
        is kept.
        """
        self._plan = plan
        wanted = self._list_topics(plan)
        for topic in [each for each in self.by_topic if each not in wanted]:
            room = self.by_topic.pop(topic)
            for participant in list(room.seats):
                room.disconnect(participant, REMOVED, "this room was removed from the configuration")
            await room.close()
        for topic, room in self.by_topic.items():
            before = room.settings
            room.replan(self._settings(topic))
            if before.mode != "open":
                _warn_if_open(room)
            if _admission(before) != _admission(room.settings):
                self._readmit(room, has_new_mode=_modes(before) != _modes(room.settings))
        for topic in wanted:
            if topic not in self.by_topic:
                await self._open_room(topic)
        self.changed.publish(None)

    def _readmit(self, room: Room, *, has_new_mode: bool) -> None:
        """Close the connections of participants whose admission is no longer allowed after a change of the settings.
        Participants who may now only join as restricted are closed too, and can join again.

        The lists of the room do not matter to the holder of a token for one room, and what the token says is not known
        here. If the mode has changed (`has_new_mode`), its holder joins again.
        """
        for participant, seat in list(room.seats.items()):
            by_token = seat.principal.startswith(OF_ONE_ROOM)
            if participant == OWN:
                continue
            if not by_token and not self.is_member(room, seat.principal):
                room.disconnect(participant, REMOVED, DELISTED_WHY)
            elif seat.participant.privilege is Privilege.FULL:
                privilege = self.determine_privilege(room, participant, seat.principal, None).privilege
                if has_new_mode if by_token else privilege is not Privilege.FULL:
                    room.disconnect(participant, SHUTDOWN, CHANGED_WHY)

    def _list_topics(self, plan: Plan) -> list[str]:
        """Return the topics of all rooms. Declared rooms come first."""
        return [*dict.fromkeys([*(entry.topic for entry in plan.room), *self._created])]

    def _settings(self, topic: str) -> RoomSettings:
        written = next((entry.written for entry in self._plan.room if entry.topic == topic), {})
        return room_settings(self._plan.rooms, written)

    async def _open_room(self, topic: str) -> Room:
        """Open a room, and read who is connected to it through other replicas."""
        room = Room(topic, self._settings(topic), self._room_parts)
        await room.open()
        self.by_topic[topic] = room
        self._elsewhere.look_at(room)
        _warn_if_open(room)
        return room

    # What other replicas did

    def _apply_remote_grant(self, change: Change) -> None:
        """Apply the decision of an admin that another replica has stored."""
        topic, _, participant = change.key.partition("\n")
        if change.entry is None:
            return
        grant, room = msgspec.json.decode(change.entry.value, type=PrivilegeGrant), self.by_topic.get(topic)
        self._set_grant(change.key, grant)
        if room is not None and grant.is_removal:
            room.disconnect(participant, REMOVED, REMOVED_WHY)
        elif room is not None and not self._has_expired(grant):
            room.set_privilege(participant, grant.privilege, grant.by)

    async def _open_remote_room(self, change: Change) -> None:
        """Open a room that another replica created."""
        async with self._creating:
            if change.entry is None or change.key in self.by_topic:
                return
            self._created[change.key] = None
            await self._open_room(change.key)
            self.changed.publish(None)

    def _note_remote_join(self, change: Change) -> None:
        if change.entry is not None:
            self._joins[change.key] = int(change.entry.value)

    # Which there are

    def is_declared(self, topic: str) -> bool:
        return any(entry.topic == topic for entry in self._plan.room)

    async def create(self, topic: str, by: str) -> Room | None:
        """Create a room. Return None if the topic already exists. Raise StoreError if writing fails."""
        async with self._creating:
            if topic in self.by_topic:
                return None
            now = self._clock.wall()
            await self._kv.put(CREATED, topic, msgspec.json.encode({"by": by, "at": now}), now)
            self._created[topic] = None
            self.audit.add("create", topic, by, "ok")
            room = await self._open_room(topic)
            self.changed.publish(None)
            return room

    async def find_or_create_room(self, topic: str, principal: str) -> Room | None:
        """Return the room of a topic, or None if there is none. With the setting `auto_create`, create a missing
        room.
        """
        room = self.by_topic.get(topic)
        may_create = self._plan.rooms.auto_create and len(self.by_topic) < ROOMS_MAX
        if room is None and may_create and participants.is_topic(topic) and not self.is_stopping:
            try:
                return await self.create(topic, principal) or self.by_topic.get(topic)
            except StoreError as away:
                log.error("room %s cannot be made: %s", topic, away)
        return room

    # Who may come in

    def may_join(self, room: Room, principal: str) -> bool:
        """Return whether a client may join a room. Tokens for one room are checked by the endpoint instead."""
        return self.is_member(room, principal) and self.find_removal(room, participant_of(principal)) is None

    def is_member(self, room: Room, principal: str) -> bool:
        """Return whether the configuration or a grant makes a client a member of a room. A client that an admin removed
        still counts.
        """
        settings = room.settings
        if settings.mode in ("open", "observe") and not settings.members and not settings.full:
            return True
        if participants.matches_any(principal, (*settings.members, *settings.full)):
            return True
        grant = self._find_grant(room.topic, participant_of(principal))
        return grant is not None and grant.admits

    def _find_grant(self, topic: str, participant: str) -> PrivilegeGrant | None:
        return self._grants.get(f"{topic}\n{participant}")

    def is_listed(self, principal: str) -> bool:
        """Return whether the configuration lists a principal as a member of any room."""
        lists = ((*room.settings.members, *room.settings.full) for room in self.by_topic.values())
        return any(participants.matches_any(principal, patterns) for patterns in lists)

    def may_anyone_join(self, room: Room) -> bool:
        """Return whether any client at all may join a room, by its settings or by a grant. Tokens for one room do not
        count.
        """
        settings = room.settings
        if settings.members or settings.full or settings.mode in ("open", "observe"):
            return True
        return any(grant.admits and key.startswith(f"{room.topic}\n") for key, grant in self._grants.items())

    def determine_privilege(
        self, room: Room, participant: str, principal: str, of_token: Privilege | None
    ) -> participants.AssignedPrivilege:
        """Determine the privilege of a connecting participant (X-5.1-4). `of_token` is the privilege in its room token,
        if any.
        """
        is_full = participants.matches_any(principal, room.settings.full)
        granted = self._find_granted_privilege(room.topic, participant)
        return participants.assign_privilege(
            room.settings.mode, granted=granted, of_token=of_token, is_known_full=is_full
        )

    def participant(self, room: Room, principal: str) -> Participant:
        """Return the participant that represents a client in a room, whether or not it is present."""
        id = participant_of(principal)
        seat = room.seats.get(id)
        if seat is not None and seat.principal == principal:
            return seat.participant
        return Participant(id=id, privilege=self.determine_privilege(room, id, principal, None).privilege)

    async def readable_after(self, room: Room, participant: str, principal: str) -> int:
        """Return the sequence number after which a participant may read what was published, proposals included. Raise
        StoreError if reading fails.
        """
        if room.settings.history_visibility == "all":
            return 0
        if room.settings.history_visibility == "none":
            return room.arrival_position(participant, principal)
        key = f"{room.topic}\n{participant}"
        if key not in self._joins:
            self._joins[key] = room.timeline.delivered
            await self._kv.put(JOINS, key, b"%d" % room.timeline.delivered, self._clock.wall())
        return self._joins[key]

    def _find_granted_privilege(self, topic: str, participant: str) -> Privilege | None:
        if (grant := self._find_grant(topic, participant)) is None:
            return None
        if grant.is_removal:
            return Privilege.RESTRICTED  # also for one who would decide from the inbox
        return grant.beneath if self._has_expired(grant) else grant.privilege

    def _has_expired(self, grant: PrivilegeGrant) -> bool:
        """Return whether a grant has expired."""
        return grant.until is not None and self._clock.wall() >= grant.until

    # What admins do

    def find_privilege(self, room: Room, participant: str) -> Privilege | None:
        """Return the privilege that a participant has, was granted, or last had in a room. Return None if the room does
        not know the participant.
        """
        if (seat := room.seats.get(participant)) is not None:
            return seat.participant.privilege
        return room.granted(participant) or room.find_recorded_privilege(participant)

    def find_removal(self, room: Room, participant: str) -> PrivilegeGrant | None:
        grant = self._find_grant(room.topic, participant)
        return grant if grant is not None and grant.is_removal else None

    def list_removals(self, room: Room) -> list[tuple[str, PrivilegeGrant]]:
        """Return the ids of removed participants with the decisions that removed them."""
        prefix, grants = f"{room.topic}\n", sorted(self._grants.items(), key=lambda item: item[0])
        return [(key[len(prefix) :], grant) for key, grant in grants if grant.is_removal and key.startswith(prefix)]

    async def change_privilege(
        self,
        room: Room,
        participant: str,
        privilege: Privilege,
        by: str,
        *,
        lasts: bool = True,
        until: float | None = None,
        reason: str = "",
    ) -> Privilege | None:
        """Promote or demote a participant. Return its old privilege, or None if it is unknown. Raise StoreError if
        writing fails.

        Without `lasts` the change holds only while the participant is present.
        """
        if (old := self.find_privilege(room, participant)) is None:
            return None
        if lasts:
            await self.grant(room, participant, privilege, by, until, old)
        else:
            self._elsewhere.set_privilege(room, participant, privilege, by)
        if room.set_privilege(participant, privilege, by) is None and old is not privilege:
            room.announce_privilege(Participant(id=participant, privilege=privilege), old, by)
        event = "promote" if privilege is Privilege.FULL else "demote"
        ends, scope = None if until is None else rfc3339(until), None if lasts else "connection"
        details = {"participant": participant, "reason": reason or None, "scope": scope, "until": ends}
        self.audit.add(event, room.topic, by, "ok", None, **details)
        return old

    async def grant(
        self,
        room: Room,
        participant: str,
        privilege: Privilege,
        by: str,
        until: float | None = None,
        before: Privilege | None = None,
        *,
        admits: bool = False,
    ) -> bool:
        """Store the privilege that an admin has granted to a participant. It takes effect at the participant's next
        connection. Raise StoreError if writing fails.

        The membership of the previous grant remains and, if the new grant is temporary, so does its permanent
        privilege. With `admits` the participant becomes a member, unless that would change nothing or undo a demotion
        or removal by an admin. Return False in this case, otherwise True.
        """
        async with self._deciding:
            earlier = self._find_grant(room.topic, participant)
            lasting = None if earlier is None else earlier.lasting
            if admits and earlier is not None:
                is_full_member = earlier.admits and lasting is Privilege.FULL
                if earlier.is_removal or lasting is Privilege.RESTRICTED or is_full_member:
                    return False
            grant = PrivilegeGrant(
                privilege=privilege,
                by=by,
                at=self._clock.wall(),
                until=until,
                before=before,
                beneath=None if until is None else lasting,
                admits=admits or (earlier is not None and earlier.admits),
            )
            await self._store_grant(room, participant, grant)
            return True

    async def admit(self, room: Room, participant: str, by: str) -> bool:
        """Give a participant full privilege permanently. It becomes a member of the room even if the configuration does
        not list it (X-8-3). Return whether this changed anything. Raise StoreError if writing fails.
        """
        is_changed = await self.grant(room, participant, Privilege.FULL, by, admits=True)
        if is_changed:
            room.set_privilege(participant, Privilege.FULL, by)
        return is_changed

    async def _store_grant(self, room: Room, participant: str, grant: PrivilegeGrant) -> None:
        key = f"{room.topic}\n{participant}"
        await self._kv.put(GRANTS, key, msgspec.json.encode(grant), grant.at)
        self._set_grant(key, grant)

    def _set_grant(self, key: str, grant: PrivilegeGrant) -> None:
        """Apply a stored grant. Publish a change if it affects who may join."""
        earlier = self._grants.get(key)
        self._grants[key] = grant
        if (timer := self._ends.pop(key, None)) is not None:
            timer.cancel()
        self._schedule_end(key, grant)
        if any(decision is not None and (decision.is_removal or decision.admits) for decision in (earlier, grant)):
            self.changed.publish(None)  # the namespace shows a room to those who may join it

    def _schedule_end(self, key: str, grant: PrivilegeGrant) -> None:
        """Schedule the expiry of a temporary grant, even if it has already expired.

        Whether it is over is decided only when the timer fires. A grant may expire while it is written to the store,
        and a timer may fire a moment early; if the time was also judged here, such a grant would never end.
        """
        if grant.until is not None:
            left_s = min(max(0.0, grant.until - self._clock.wall()), GRANT_LOOK_S)
            self._ends[key] = asyncio.get_running_loop().call_later(left_s, self._end_if_over, key, grant)

    def _end_if_over(self, key: str, grant: PrivilegeGrant) -> None:
        """End a temporary grant if its time is over, and restore the previous privilege of a participant that is
        present.
        """
        if not self._has_expired(grant):
            self._schedule_end(key, grant)
            return
        del self._ends[key]
        topic, _, participant = key.partition("\n")
        room = self.by_topic.get(topic)
        if room is not None and grant.before is not None and room.set_privilege(participant, grant.before, GATEWAY):
            event = "promote" if grant.before is Privilege.FULL else "demote"
            reason = "the time of an admin's decision is over"
            self.audit.add(event, topic, GATEWAY, "ok", participant=participant, reason=reason)

    def open_topics(self) -> tuple[str, ...]:
        """Return the topics of the rooms with mode "open", in which every participant has full privilege (X-6.1-2)."""
        return tuple(topic for topic, room in self.by_topic.items() if room.settings.mode == "open")

    async def remove(self, room: Room, participant: str, by: str) -> int | None:
        """Remove a participant from a room: close its connections, and exclude it until an admin promotes or demotes it
        (X-5.1-6).

        Return how many connections were closed, or None if there is no such participant. Raise StoreError
        if writing fails.
        """
        had = self.find_privilege(room, participant)
        if had is None or participant == OWN:
            return None
        async with self._deciding:
            earlier, at = self._find_grant(room.topic, participant), self._clock.wall()
            admits = earlier is not None and earlier.admits
            removal = PrivilegeGrant(privilege=had, by=by, at=at, admits=admits, is_removal=True)
            await self._store_grant(room, participant, removal)
        closed = room.disconnect(participant, REMOVED, REMOVED_WHY, everywhere=True)
        self.audit.add("disconnect", room.topic, by, "ok", participant=participant)
        return closed

    def dismiss(self, is_valid: Callable[[str], bool]) -> None:
        """Close the connections whose credential is no longer valid. `is_valid` takes the name of a principal."""
        for room in self.by_topic.values():
            for participant, seat in list(room.seats.items()):
                if not is_valid(seat.principal):
                    room.disconnect(participant, CREDENTIAL_ENDED, CREDENTIAL_WHY)


def _admission(settings: RoomSettings) -> tuple[object, ...]:
    """Return the settings that decide who may be in a room, and as what."""
    return *_modes(settings), settings.members, settings.full


def _modes(settings: RoomSettings) -> tuple[str, str]:
    """Return the settings that decide what everyone is in a room whom its lists do not name."""
    return settings.mode, settings.v0_clients


def _warn_if_open(room: Room) -> None:
    """Log a warning when a room opens in which every participant is full (X-6.1-2)."""
    if room.settings.mode == "open":
        log.warning("room %s is open: everyone who may join is full there", room.topic)  # X-6.1-2


def define_room_metrics(metrics: Metrics, rooms: RoomRegistry) -> None:
    """Define the metrics of rooms. Each has the label `room`."""
    index = rooms.proposals.index

    def per_room(measure: Callable[[Room], int]) -> Callable[[], list[Sample]]:
        return lambda: [Sample(measure(room), {"room": topic}) for topic, room in rooms.by_topic.items()]

    def per_label(label: str, count: Callable[[Room], Mapping[str, int]]) -> Callable[[], list[Sample]]:
        return lambda: [
            Sample(number, {"room": topic, label: value})
            for topic, room in rooms.by_topic.items()
            for value, number in count(room).items()
        ]

    def read_decision_times() -> Iterator[Sample]:
        for topic, waits in index.waits.items():
            if topic not in rooms.by_topic:
                continue
            for bound, count in waits.cumulated():
                yield Sample(count, {"room": topic, "le": bound}, "_bucket")
            yield Sample(waits.total_s, {"room": topic}, "_sum")
            yield Sample(waits.count, {"room": topic}, "_count")

    connected = per_room(lambda room: sum(bool(seat.connections) for seat in room.seats.values()))
    metrics.gauge("interlock_room_participants", "Participants that are connected.", connected)
    connections = per_room(lambda room: sum(len(seat.connections) for seat in room.seats.values()))
    metrics.gauge("interlock_room_connections", "Connections of participants.", connections)
    accepted = per_label("kind", lambda room: room.accepted)
    metrics.read_counter("interlock_room_envelopes_total", "Envelopes that were accepted, by kind.", accepted)
    refused = per_label("code", lambda room: room.refused)
    metrics.read_counter("interlock_room_refusals_total", "Envelopes that were refused, by code.", refused)
    violations = per_room(lambda room: room.refused["privilege_violation"])
    help = "MCP messages of restricted participants, which were refused."
    metrics.read_counter("interlock_room_violations_total", help, violations)
    metrics.read_counter(
        "interlock_room_proposals_total",
        "Proposals that reached a status, by status.",
        lambda: [Sample(count, {"room": topic, "status": status}) for (topic, status), count in index.counts.items()],
    )
    pending = per_room(lambda room: len(index.pending(room.topic)))
    metrics.gauge("interlock_room_proposals_pending", "Proposals that wait.", pending)
    help = "How long proposals waited until they were decided."
    metrics.histogram("interlock_room_proposal_decision_seconds", help, read_decision_times)
