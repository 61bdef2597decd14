"""Participants of rooms that are connected to other replicas of the node (X-10.1-2).

Theory of operation. Each replica stores its connections, one entry each, under its own id. The entries of other
replicas become seats in the rooms of this replica: a `Connected` to which nothing is delivered here, because its own
replica receives the same envelopes. To close such a connection, or to change its privilege while it stays, this replica
stores a request for the other one; so the request arrives even if that replica has lost the store for a moment. The
entries of a replica whose lease is over are removed by the others; if it is alive after all, it writes them again.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.replicas import Replicas
from interlock.rooms.connections import RoomConnection
from interlock.rooms.protocol.participants import OWN, Participant, Privilege
from interlock.rooms.room import Connected, Room
from interlock.rooms.timeline import Delivery
from interlock.store.ports import Change, Entry, Store, StoreError

log = logging.getLogger("interlock.rooms")

BUCKET: Final = "room-seats"  # topic, participant, connection, each after a line feed -> Seated
ASKED: Final = "room-asks"  # replica, a random id, each after a line feed -> Asked
ASKED_S: Final = 60.0
WRITE_AGAIN_S: Final = 1.0  # after the store was away

Place = tuple[str, str]  # topic, participant


class Seated(msgspec.Struct, frozen=True, kw_only=True):
    """One connection, as its replica writes it down."""

    replica: str
    participant: Participant
    principal: str
    can_answer: bool
    connected_at: float | None = None  # None: one that only reads, through tools
    protocol: str = ""
    source: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one replica asks of another that holds a connection."""

    what: Literal["close", "privilege"]
    topic: str
    participant: str
    connection: str = ""
    code: int = 0
    reason: str = ""
    privilege: Privilege | None = None
    by: str = ""


class Elsewhere:
    """A connection that another replica holds; a `Connected`."""

    is_here = False

    def __init__(self, place: Place, id: str, seated: Seated, seats: "SeatsElsewhere") -> None:
        self.id = id
        self.since = 0
        self.seated = seated
        self._place = place
        self._seats = seats

    @property
    def can_answer(self) -> bool:
        return self.seated.can_answer

    def deliver(self, delivery: Delivery) -> None:
        """Its own replica tells it."""

    def close(self, code: int, reason: str) -> None:
        topic, participant = self._place
        asked = Asked(what="close", topic=topic, participant=participant, connection=self.id, code=code, reason=reason)
        self._seats.ask(self.seated.replica, asked)


class SeatsElsewhere:
    def __init__(self, store: Store, replicas: Replicas, clock: Clock, rooms: Mapping[str, Room]) -> None:
        """`rooms`: by topic, as they are now."""
        self._kv = store.kv
        self._replicas = replicas
        self._clock = clock
        self._rooms = rooms
        self._known: dict[str, Elsewhere] = {}  # by key
        self._written: dict[Place, dict[str, Seated]] = {}  # of this replica, by connection
        self._revisions: dict[str, int] = {}  # of connections of this replica
        self._unwritten: dict[str, bytes | None] = {}
        self._writer: asyncio.Task[None] | None = None
        self._is_open = False
        self._work = BackgroundTasks()
        replicas.on_change(BUCKET, self._take_change)
        replicas.on_change(ASKED, self._take_asked)
        replicas.gone.subscribe(self._forget_replica)

    async def open(self) -> None:
        """Raises StoreError."""
        if self._replicas.is_alone:
            return
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            self._take_change(Change(entry.key, entry))
        self._is_open = True

    async def close(self) -> None:
        """The rooms have sent everyone away."""
        await self._work.close()
        try:
            await self._write_once()
        except StoreError as away:
            log.warning("who was connected here is forgotten when the lease is over: %s", away)

    # What this replica holds

    def note(self, room: Room, participant: str) -> None:
        """Its connections here are others now, or it has another privilege."""
        if self._replicas.is_alone or participant == OWN:
            return
        seat, place = room.seats.get(participant), (room.topic, participant)
        here = {} if seat is None else {one.id: one for one in seat.connections if one.is_here}
        before = self._written.pop(place, {})
        now = {id: self._seated(one, seat.participant, seat.principal) for id, one in here.items()} if seat else {}
        if now:
            self._written[place] = now
        for id in before.keys() - now.keys():
            self._revisions.pop(id, None)
            self._write_soon(_key(place, id), None)
        for id, one in now.items():
            if before.get(id) != one:
                self._write_soon(_key(place, id), msgspec.json.encode(one))

    def _write_soon(self, key: str, value: bytes | None) -> None:
        self._unwritten[key] = value
        if self._writer is None or self._writer.done():
            self._writer = self._work.begin(self._write(), "rooms: who is connected here")

    def _seated(self, one: Connected, participant: Participant, principal: str) -> Seated:
        seated = Seated(
            replica=self._replicas.own_id, participant=participant, principal=principal, can_answer=one.can_answer
        )
        if not isinstance(one, RoomConnection):
            return seated
        return replace(seated, connected_at=one.connected_at, protocol=one.protocol, source=one.source)

    async def _write(self) -> None:
        while self._unwritten:
            try:
                await self._write_once()
            except StoreError as away:
                log.warning("other replicas cannot be told who is connected here: %s", away)
                await asyncio.sleep(WRITE_AGAIN_S)

    async def _write_once(self) -> None:
        while self._unwritten:
            key = next(iter(self._unwritten))
            value = self._unwritten[key]
            if value is None:
                await self._kv.delete(BUCKET, key)
            else:
                revision = await self._kv.put(BUCKET, key, value, self._clock.wall())
                if self._unwritten[key] is not None:
                    self._revisions[_connection_of(key)] = revision
            if self._unwritten[key] is value:
                del self._unwritten[key]

    # What others hold

    def _take_change(self, change: Change) -> None:
        if change.key.count("\n") != 2:
            log.error("who is connected to another replica cannot be read: %r", change.key)
            return
        topic, participant, id = change.key.split("\n")
        room, known = self._rooms.get(topic), self._known.get(change.key)
        seated = None if change.entry is None else _decode_seated(change.entry)
        if seated is not None and seated.replica == self._replicas.own_id:
            return
        if seated is None and (here := self._written.get((topic, participant), {}).get(id)) is not None:
            self._write_soon(change.key, msgspec.json.encode(here))  # another believed this replica to be gone
            return
        if seated is not None and not self._replicas.is_alive(seated.replica):
            self._remove(change.key)
        elif seated is None:
            self._known.pop(change.key, None)
            if known is not None and room is not None:
                room.leave(known, participant)
        elif known is not None:
            known.seated = seated
            if room is not None:
                room.set_privilege(participant, seated.participant.privilege, seated.replica)
        elif room is not None and change.entry is not None:
            there = Elsewhere((topic, participant), id, seated, self)
            if room.join_elsewhere(there, seated.participant, seated.principal, is_newer=self._is_newest(room, change)):
                self._known[change.key] = there

    def _is_newest(self, room: Room, change: Change) -> bool:
        """Whether it came after every connection of the same participant here."""
        _, participant, _ = change.key.split("\n")
        seat = room.seats.get(participant)
        here = [] if seat is None else [one.id for one in seat.connections if one.is_here]
        came = 0 if change.entry is None else change.entry.revision
        return all(self._revisions.get(id, came + 1) < came for id in here)

    def look_at(self, room: Room) -> None:
        """Those who were in a room before this replica had it."""
        if self._is_open:
            self._known = {key: one for key, one in self._known.items() if not key.startswith(f"{room.topic}\n")}
            self._work.begin(self._look_at(room.topic), "rooms: a room of other replicas")

    async def _look_at(self, topic: str) -> None:
        while True:
            try:
                entries = await self._kv.entries(BUCKET, self._clock.wall())
                break
            except StoreError as away:
                log.warning("room %s: who is connected to other replicas cannot be read yet: %s", topic, away)
                await asyncio.sleep(WRITE_AGAIN_S)
        for entry in entries:
            if entry.key.startswith(f"{topic}\n") and entry.key not in self._known:
                self._take_change(Change(entry.key, entry))

    def _forget_replica(self, replica: str) -> None:
        for key, there in list(self._known.items()):
            if there.seated.replica == replica:
                self._take_change(Change(key, None))
                self._remove(key)

    def _remove(self, key: str) -> None:
        """Every replica that lives does so, and it happens once."""
        self._work.begin(self._kv.delete(BUCKET, key), "rooms: who was connected to a replica that is gone")

    # What replicas ask of each other

    def set_privilege(self, room: Room, participant: str, privilege: Privilege, by: str) -> None:
        """Of one that another replica holds, while it stays."""
        seat = room.seats.get(participant)
        there = [] if seat is None else [one for one in seat.connections if isinstance(one, Elsewhere)]
        for replica in {one.seated.replica for one in there}:
            self.ask(
                replica,
                Asked(what="privilege", topic=room.topic, participant=participant, privilege=privilege, by=by),
            )

    def ask(self, replica: str, asked: Asked) -> None:
        self._work.begin(self._ask(replica, asked), "rooms: another replica")

    async def _ask(self, replica: str, asked: Asked) -> None:
        key, value = f"{replica}\n{uuid.uuid4()}", msgspec.json.encode(asked)
        while self._replicas.is_alive(replica):
            try:
                await self._kv.put(ASKED, key, value, self._clock.wall(), ttl_s=ASKED_S)
            except StoreError as away:
                log.warning("room %s: another replica cannot be asked yet: %s", asked.topic, away)
                await asyncio.sleep(WRITE_AGAIN_S)
            else:
                return

    def _take_asked(self, change: Change) -> None:
        if change.entry is not None and change.key.startswith(f"{self._replicas.own_id}\n"):
            self._do(msgspec.json.decode(change.entry.value, type=Asked))

    def _do(self, asked: Asked) -> None:
        room = self._rooms.get(asked.topic)
        seat = None if room is None else room.seats.get(asked.participant)
        if room is None or seat is None:
            return
        if asked.what == "privilege" and asked.privilege is not None:
            room.set_privilege(asked.participant, asked.privilege, asked.by)
        for one in [one for one in seat.connections if one.is_here and one.id == asked.connection]:
            one.close(asked.code, asked.reason)


def _key(place: Place, connection: str) -> str:
    return "\n".join((*place, connection))


def _connection_of(key: str) -> str:
    return key.rpartition("\n")[2]


def _decode_seated(entry: Entry) -> Seated | None:
    try:
        return msgspec.json.decode(entry.value, type=Seated)
    except msgspec.DecodeError as error:
        log.error("who is connected to another replica cannot be read: %s", error)
        return None
