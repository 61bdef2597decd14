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

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.replicas import Replicas
from interlock.rooms.connections import ParticipantConnection
from interlock.rooms.protocol.participants import OWN, Participant, Privilege
from interlock.rooms.room import Connected, Room
from interlock.store.ports import Change, Store, StoreError

log = logging.getLogger("interlock.rooms")

BUCKET: Final = "room-seats"  # topic, participant, connection, each after a line feed -> ConnectionRecord
REQUESTS: Final = "room-asks"  # replica, a random id, each after a line feed -> ReplicaRequest
REQUEST_S: Final = 60.0
WRITE_AGAIN_S: Final = 1.0  # after the store was away

_SOCKET_FIELDS: Final = ("connected_at", "protocol", "source")

Place = tuple[str, str]  # topic, participant


class ConnectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored record of one connection, written by the replica that holds the connection."""

    replica: str
    participant: Participant
    principal: str
    can_answer: bool
    connected_at: float | None = None  # None: one that only reads, through tools
    protocol: str = ""
    source: str = ""


class ReplicaRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored request to the replica that holds a connection: to close it, or to change its privilege."""

    what: Literal["close", "privilege"]
    topic: str
    participant: str
    connection: str = ""
    code: int = 0
    reason: str = ""
    privilege: Privilege | None = None
    by: str = ""


class RemoteConnection(Connected):
    """A connection that another replica holds. In this replica it only marks the participant as present. The replica
    that holds it delivers envelopes.
    """

    is_here = False

    def __init__(self, place: Place, id: str, record: ConnectionRecord, seats: "RemoteSeats") -> None:
        self.id = id
        self.record = record
        self.can_answer = record.can_answer
        self._place = place
        self._seats = seats

    def close(self, code: int, reason: str) -> None:
        self._seats.ask(self.record.replica, ReplicaRequest("close", *self._place, self.id, code, reason))


class RemoteSeats:
    """The participants that are connected to other replicas, and the requests that replicas send each other."""

    def __init__(self, store: Store, replicas: Replicas, clock: Clock, rooms: Mapping[str, Room]) -> None:
        """Create the object. `rooms` maps each topic to its room; later changes of the mapping count."""
        self._kv = store.kv
        self._replicas = replicas
        self._clock = clock
        self._rooms = rooms
        self._known: dict[str, RemoteConnection] = {}  # by key
        self._written: dict[Place, dict[str, ConnectionRecord]] = {}  # of this replica, by connection
        self._revisions: dict[str, int] = {}  # of connections of this replica
        self._unwritten: dict[str, bytes | None] = {}
        self._writer: asyncio.Task[None] | None = None
        self._is_open = False
        self._work = BackgroundTasks()
        replicas.on_change(BUCKET, self._take_change)
        replicas.on_change(REQUESTS, self._perform_request)
        replicas.gone.subscribe(self._forget_replica)

    async def open(self) -> None:
        """Read which participants are connected to other replicas. Raise StoreError if that fails."""
        if self._replicas.is_alone:
            return
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            self._take_change(Change(entry.key, entry))
        self._is_open = True

    async def close(self) -> None:
        """Remove this replica's entries from the store. Call this after the rooms closed all connections."""
        await self._work.close()
        try:
            await self._write_once()
        except StoreError as away:
            log.warning("who was connected here is forgotten when the lease is over: %s", away)

    # What this replica holds

    def note(self, room: Room, participant: str) -> None:
        """Store the current connections of a participant to this replica. Call this when they or its privilege
        changed.
        """
        if self._replicas.is_alone or participant == OWN:
            return
        seat, place = room.seats.get(participant), (room.topic, participant)
        before = self._written.pop(place, {})
        now: dict[str, ConnectionRecord] = {}
        if seat is not None:
            for connection in (each for each in seat.connections if each.is_here):
                of_socket = isinstance(connection, ParticipantConnection)
                now[connection.id] = ConnectionRecord(
                    replica=self._replicas.own_id,
                    participant=seat.participant,
                    principal=seat.principal,
                    can_answer=connection.can_answer,
                    **{name: getattr(connection, name) for name in _SOCKET_FIELDS if of_socket},
                )
        if now:
            self._written[place] = now
        for id in before.keys() - now.keys():
            self._revisions.pop(id, None)
            self._write_soon("\n".join((*place, id)), None)
        for id, record in now.items():
            if before.get(id) != record:
                self._write_soon("\n".join((*place, id)), msgspec.json.encode(record))

    def _write_soon(self, key: str, value: bytes | None) -> None:
        self._unwritten[key] = value
        if self._writer is None or self._writer.done():
            self._writer = self._work.begin(self._write(), "rooms: who is connected here")

    async def _write(self) -> None:
        while self._unwritten:
            try:
                await self._write_once()
            except StoreError as away:
                log.warning("who is connected here cannot be stored for other replicas yet: %s", away)
                await asyncio.sleep(WRITE_AGAIN_S)

    async def _write_once(self) -> None:
        """Write all changed entries. An entry that changes during the write remains marked and is written again."""
        while self._unwritten:
            key = next(iter(self._unwritten))
            if (value := self._unwritten[key]) is None:
                await self._kv.delete(BUCKET, key)
            else:
                revision = await self._kv.put(BUCKET, key, value, self._clock.wall())
                if self._unwritten[key] is not None:
                    self._revisions[key.rpartition("\n")[2]] = revision
            if self._unwritten[key] is value:
                del self._unwritten[key]

    # What others hold

    def _take_change(self, change: Change) -> None:
        """Apply a change by another replica: a connection was opened or closed, or its privilege changed.

        If another replica deleted an entry of this replica, because it believed this one to be gone, write the entry
        again.
        """
        if change.key.count("\n") != 2:
            log.error("who is connected to another replica cannot be read: %r", change.key)
            return
        topic, participant, id = change.key.split("\n")
        room, remote, record = self._rooms.get(topic), self._known.get(change.key), None
        if change.entry is not None:
            try:
                record = msgspec.json.decode(change.entry.value, type=ConnectionRecord)
            except msgspec.DecodeError as error:
                log.error("who is connected to another replica cannot be read: %s", error)
        if record is not None and record.replica == self._replicas.own_id:
            return
        if record is None and (here := self._written.get((topic, participant), {}).get(id)) is not None:
            self._write_soon(change.key, msgspec.json.encode(here))  # another believed this replica to be gone
            return
        if record is not None and not self._replicas.is_alive(record.replica):
            self._remove(change.key)
        elif record is None:
            self._known.pop(change.key, None)
            if remote is not None and room is not None:
                room.leave(remote, participant)
        elif remote is not None:
            remote.record, remote.can_answer = record, record.can_answer
            if room is not None:
                room.set_privilege(participant, record.participant.privilege, record.replica)
        elif room is not None and change.entry is not None:
            # The connection is the newest one of its participant if it was stored after those of this replica.
            revision = change.entry.revision
            here_ids = [each.id for each in room.connections_of(participant) if each.is_here]
            is_newer = all(self._revisions.get(id, revision + 1) < revision for id in here_ids)
            connection = RemoteConnection((topic, participant), id, record, self)
            if room.join_elsewhere(connection, record.participant, record.principal, is_newer=is_newer):
                self._known[change.key] = connection

    def look_at(self, room: Room) -> None:
        """Read which participants were already connected elsewhere to a room that this replica has just opened."""
        if self._is_open:
            self._known = {key: remote for key, remote in self._known.items() if not key.startswith(f"{room.topic}\n")}
            self._work.begin(self._read_room(room.topic), "rooms: a room of other replicas")

    async def _read_room(self, topic: str) -> None:
        """Read the connections to one room. Repeat this until the store is available."""
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
        """Remove the connections of a replica whose lease has expired, in this process and in the store."""
        for key in [key for key, remote in self._known.items() if remote.record.replica == replica]:
            self._take_change(Change(key, None))
            self._remove(key)

    def _remove(self, key: str) -> None:
        """Delete an entry of a lost replica. All replicas try this, and only one deletes the entry."""
        self._work.begin(self._kv.delete(BUCKET, key), "rooms: who was connected to a replica that is gone")

    # What replicas ask of each other

    def set_privilege(self, room: Room, participant: str, privilege: Privilege, by: str) -> None:
        """Ask the replicas that hold connections of a participant to change its privilege without disconnecting it."""
        connections = room.connections_of(participant)
        for replica in {each.record.replica for each in connections if isinstance(each, RemoteConnection)}:
            self.ask(replica, ReplicaRequest("privilege", room.topic, participant, privilege=privilege, by=by))

    def ask(self, replica: str, request: ReplicaRequest) -> None:
        """Store a request for another replica. While the store is unavailable, retry as long as that replica lives."""

        async def store() -> None:
            key, value = f"{replica}\n{uuid.uuid4()}", msgspec.json.encode(request)
            while self._replicas.is_alive(replica):
                try:
                    await self._kv.put(REQUESTS, key, value, self._clock.wall(), ttl_s=REQUEST_S)
                except StoreError as away:
                    log.warning("room %s: another replica cannot be asked yet: %s", request.topic, away)
                    await asyncio.sleep(WRITE_AGAIN_S)
                else:
                    return

        self._work.begin(store(), "rooms: another replica")

    def _perform_request(self, change: Change) -> None:
        """Carry out a request that another replica stored for this one."""
        if change.entry is None or not change.key.startswith(f"{self._replicas.own_id}\n"):
            return
        request = msgspec.json.decode(change.entry.value, type=ReplicaRequest)
        if (room := self._rooms.get(request.topic)) is None:
            return
        if request.what == "privilege" and request.privilege is not None:
            room.set_privilege(request.participant, request.privilege, request.by)
        for connection in room.connections_of(request.participant):
            if connection.is_here and connection.id == request.connection:
                connection.close(request.code, request.reason)
