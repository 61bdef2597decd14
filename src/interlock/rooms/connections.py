"""Connections to a room: a WebSocket, a lease of an MCP client that uses the room's tools, or one at another replica.

A WebSocket receives the envelopes of the room in their order and the replies to what its participant sent. A new
connection first receives a welcome. If it asked for history, it then receives events with old envelopes until it has
caught up with the room, and live envelopes from there on; `_last_in_history` marks the last one that came with the
history. A peer that does not read is closed with code 4429 and may resume where it stopped: nothing is left out
silently (X-5.2-6). A peer that repeatedly sends what is no envelope is closed as well (X-4-1).

A lease makes a client present that has no connection (X-10.1-4). It belongs to a principal in one room. Each call of a
room tool renews it; it ends when the client leaves or when its time is over. Nothing is delivered to a lease: its owner
reads the history.

A participant may also be connected to another replica of the node (X-10.1-2). Each replica stores its connections, one
entry each, under its own id. The entries of other replicas become seats in the rooms of this replica: a `Connected` to
which nothing is delivered here, because its own replica receives the same envelopes. To close such a connection, or to
change its privilege while it stays, this replica stores a request for the other one; so the request arrives even if
that replica has lost the store for a moment. The entries of a replica whose lease is over are removed by the others; if
it is alive after all, it writes them again.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.replicas import Replicas
from interlock.net.message_pipe import INTERNAL, POLICY, TOO_BIG
from interlock.rooms.protocol import envelope as envelopes
from interlock.rooms.protocol.envelope import V0, V01, Envelope, EnvelopeRefusal, decode_untrusted, encode, encode_v0
from interlock.rooms.protocol.participants import GATEWAY, OWN, Origin, Participant, Privilege
from interlock.rooms.room import Connected, Room
from interlock.rooms.timeline import Delivery, limit_bytes
from interlock.store.ports import Change, Store, StoreError
from interlock.wire.jsonrpc.oversized import Oversized

if TYPE_CHECKING:
    from interlock.net.websocket import AcceptedPipe


log = logging.getLogger("interlock.rooms")

SLOW: Final = 4429
QUEUED_MAX: Final = 1000  # envelopes that a peer has not read
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
INVALID_MAX: Final = 20  # X-4-1, in INVALID_S
INVALID_S: Final = 60.0
# A client that has not spoken this long after the welcome may be one of mcp-x/v0, which waits for a welcome of its own.
SILENCE_S: Final = 1.0
EARLY_MAX: Final = 50  # envelopes that are kept for its welcome
HISTORY_BATCH: Final = 100  # envelopes in one event
_INVALID: Final = frozenset(("invalid_json", "invalid_envelope"))


class ConnectionOptions(msgspec.Struct, frozen=True):
    """Options of a connection, given in the query of its URL."""

    protocol: str | None = None  # None: not said; the first envelope settles it
    echo: bool = True
    directed: bool = False  # only broadcasts and its own mail
    sequences: bool = False
    history: int = 0  # so many of the newest
    after: str | None = None  # or everything after this one


class Admission(msgspec.Struct, frozen=True):
    """A caller that was verified for a room: who it is there, and what it may do and read."""

    room: Room
    who: Participant
    principal: str
    source: Origin  # the rule that its privilege follows from
    readable_after: int  # the sequence after which it may read
    is_observed: bool = False  # as in `AssignedPrivilege`
    options: ConnectionOptions = ConnectionOptions()


class ParticipantConnection(Connected):
    """A WebSocket connection of a participant."""

    def __init__(self, admission: Admission, clock: Clock) -> None:
        room, options = admission.room, admission.options
        self.id = room.stamp().id
        self.connected_at = clock.wall()
        self.principal = admission.principal
        self.source = admission.source
        self.participant = admission.who.id
        undeclared = room.settings.undeclared_protocol
        self.protocol = options.protocol or (V01 if undeclared == "either" else undeclared)
        self._is_settled = options.protocol is not None
        self._is_sent_twice = False  # in both protocols, until the first envelope of the peer
        self._silence: asyncio.TimerHandle | None = None
        self._early: deque[bytes] = deque()  # sent after the welcome while it is silent, in mcp-x/v0
        self._room = room
        self._admission = admission
        self._options = options
        self._clock = clock
        self._pipe: AcceptedPipe | None = None
        self._is_live = options.after is None and not options.history
        self._last_in_history = 0  # the last sequence that history told
        self._sent = 0  # bytes
        self._ends: deque[int] = deque()  # where each message ends among them, until the peer has taken it
        self._invalid: deque[float] = deque()
        self._closing = False
        self._catching_up: asyncio.Task[None] | None = None

    def begin(self, pipe: "AcceptedPipe") -> None:
        """Join the room. The welcome is the first message that is sent."""
        self._pipe = pipe
        # X-4.4.1-1, X-5.2-5
        admission = self._admission
        self._say(self._room.join(self, admission.who, self.principal, self.source, is_observed=admission.is_observed))
        settings = self._room.settings
        if not self._is_settled and settings.undeclared_protocol == "either" and settings.v0_clients != "refuse":
            self._silence = asyncio.get_running_loop().call_later(SILENCE_S, self._offer_v0)
        if not self._is_live:
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(), name="room history")
            self._catching_up.add_done_callback(self._end_catching_up)

    # The room's side

    def deliver(self, delivery: Delivery) -> None:
        """Send an envelope of the room to the participant, unless its options exclude the envelope or the history
        contained it.

        Events that are not stored are skipped if they were queued before this connection joined, because the welcome
        contains the same information.
        """
        envelope = delivery.envelope
        if delivery.sequence:
            if not self._is_live or delivery.sequence <= self._last_in_history:
                return  # it comes with the history, or came with it
        elif delivery.number < self.since:
            return
        own = envelope.sender == self.participant
        if own and not self._options.echo:
            return
        if self._options.directed and envelope.to and not own and self.participant not in envelope.to:
            return
        self._send(delivery.text(self.protocol))
        self._send_v0(lambda: delivery.text(V0))
        if self._options.sequences and delivery.sequence:
            self._say(delivery.sequence_event(self._room.stamp))

    def close(self, code: int, reason: str) -> None:
        self._closing = True
        if self._pipe is not None:
            self._pipe.close(code, reason)

    # The peer's side

    def on_message(self, data: bytes) -> None:
        """Handle an envelope from the peer. If the URL did not name a protocol version, the first envelope determines
        it.
        """
        if self._closing:
            return
        envelope = decode_untrusted(data, self._room.settings.max_envelope_bytes)
        if isinstance(envelope, EnvelopeRefusal):
            self._refuse(envelope)
            return
        if not self._is_settled and envelope.protocol in (V0, V01) and not self._settle_protocol(envelope.protocol):
            return
        if (seat := self._room.seats.get(self.participant)) is None:
            return
        who = seat.participant  # X-5.1-5, X-7.1-1: as it is now

        def settle(failure: EnvelopeRefusal | None) -> None:
            if failure is not None:
                self._refuse(failure)
                return
            for notice in self._room.notices(envelope, self.participant):
                self._say(notice)

        if (refusal := self._room.receive(envelope, who, self.principal, settle)) is not None:
            self._refuse(refusal)  # X-3.2-2

    def _settle_protocol(self, protocol: str) -> bool:
        """Use the protocol of the first envelope from now on, and apply the room's policy for clients of mcp-x/v0
        (X-6.3-6). Return False if the room refuses them.
        """
        self.protocol, self._is_settled, self._is_sent_twice = protocol, True, False
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        self._early.clear()
        if protocol != V0:
            return True
        settings = self._room.settings
        if settings.v0_clients == "refuse":
            self.close(POLICY, "this room takes no clients of mcp-x/v0; connect with ?protocol=mcpx/v0.1")
            return False
        # An admin may have decided about the participant while it was silent.
        origin = self.source if self._room.granted(self.participant) is None else "grant"
        if (privilege := settings.find_v0_privilege(origin)) is not None:
            self._room.set_privilege(self.participant, privilege, GATEWAY)
        return True

    def _offer_v0(self) -> None:
        """Send a silent peer a welcome in mcp-x/v0 as well, and everything in both protocols until it speaks.

        The published client of mcp-x/v0 names no protocol when it connects, discards all envelopes of other protocols,
        and speaks only after the welcome (X-6.3-3).
        """
        if self._closing or (seat := self._room.seats.get(self.participant)) is None:
            return
        self._is_sent_twice, self._silence = True, None
        self._send(encode_v0(self._room.welcome(seat.participant)))
        while self._early:
            self._send(self._early.popleft())

    def _send_v0(self, encode_envelope: Callable[[], bytes]) -> None:
        """Send an envelope in mcp-x/v0 as well, if the peer has not shown which protocol it speaks. Keep the envelope
        until the peer was welcomed in that protocol.
        """
        if self._is_sent_twice:
            self._send(encode_envelope())
        elif self._silence is not None:
            if len(self._early) >= EARLY_MAX:
                self._silence.cancel()
                self._offer_v0()
                self._send(encode_envelope())
            else:
                self._early.append(encode_envelope())

    def on_binary(self) -> None:
        self._refuse(EnvelopeRefusal("invalid_envelope", "an envelope comes in a text frame"))

    def on_oversized(self, frame: Oversized) -> None:
        self.close(TOO_BIG, "the frame is too large")

    def on_closed(self, code: int, reason: str) -> None:
        self._closing = True
        if self._silence is not None:
            self._silence.cancel()
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._room.leave(self, self.participant)

    def _refuse(self, refusal: EnvelopeRefusal) -> None:
        """Tell the participant why its envelope was refused. Close the connection after too many messages that are not
        envelopes.
        """
        self._say(envelopes.refusal(self._room.stamp(), self.participant, refusal))
        if refusal.code not in _INVALID:
            return
        now = self._clock.now()
        self._invalid.append(now)
        while self._invalid[0] <= now - INVALID_S:
            self._invalid.popleft()
        if len(self._invalid) >= INVALID_MAX:
            self.close(POLICY, f"{INVALID_MAX} messages within {INVALID_S:g} s were no envelopes")

    # History

    async def _catch_up(self) -> None:
        """Send all envelopes after the requested position, then continue with live delivery."""
        room, options = self._room, self._options
        try:
            after = max(0, room.timeline.delivered - options.history)
            if options.after is not None:
                place = room.timeline.find_position(options.after)
                after = room.timeline.position_after_gap(options.after) if place is None else place
                if place is None:  # with the number after which what is still kept follows, where something does
                    gap = {"event": "history_gap"} | ({"after": after} if after < room.timeline.delivered else {})
                    self._say(envelopes.system_event(room.stamp(), gap, to=self.participant))
            after = max(after, self._admission.readable_after)
            while not self._closing:
                upto = room.timeline.delivered
                if after >= upto:
                    self._is_live, self._last_in_history = True, after  # nothing is awaited between the look and this
                    return
                records = limit_bytes(await room.timeline.read(after, upto, HISTORY_BATCH))
                if not records:  # they were forgotten meanwhile
                    after = upto
                    continue
                after = records[-1].sequence
                batch = [(record.sequence, record.data) for record in records]
                self._say(envelopes.history(room.stamp(), self.participant, batch, more=after < upto))
                # A long history waits for its reader; live envelopes do not.
                if self._pipe is not None:
                    await self._pipe.drain(QUEUED_BYTES_MAX // 8)
        except StoreError as away:
            log.error("room %s: history cannot be read: %s", room.topic, away)
            self._say(envelopes.system_event(room.stamp(), {"event": "history_gap"}, to=self.participant))
            self._is_live = True

    def _end_catching_up(self, task: "asyncio.Task[None]") -> None:
        """Close the connection if sending the history failed, so that the peer notices the failure."""
        if not task.cancelled() and task.exception() is not None:
            log.error("room %s: history failed", self._room.topic, exc_info=task.exception())
            self.close(INTERNAL, "history could not be told")

    # Sending

    def _say(self, envelope: Envelope) -> None:
        self._send(encode_v0(envelope) if self.protocol == V0 else encode(envelope))
        self._send_v0(lambda: encode_v0(envelope))

    def _send(self, data: bytes) -> None:
        """Send a message. Close the connection instead if the peer reads too slowly.

        The pipe knows how many bytes are unsent. `_ends` converts that to a number of messages: a message is sent after
        all bytes up to its end have left.
        """
        pipe = self._pipe
        if pipe is None or self._closing:
            return
        unsent, ends = pipe.unsent_bytes, self._ends
        while ends and ends[0] <= self._sent - unsent:
            ends.popleft()
        self._sent += len(data)
        ends.append(self._sent)
        if len(ends) > QUEUED_MAX or unsent > QUEUED_BYTES_MAX or not pipe.send(data):
            self.close(SLOW, "read more quickly; resume with ?after=")


LEASE_S: Final = 600.0


class PresenceLease(Connected):
    """The presence of a client in a room without a connection, for a limited time. It receives no envelopes; the client
    reads the history instead.
    """

    can_answer = False

    def __init__(self, room: Room, participant: str) -> None:
        self.id = room.stamp().id
        self._room = room
        self._participant = participant
        self._timer: asyncio.TimerHandle | None = None

    def renew(self, seconds: float) -> None:
        """Set the end of the presence to `seconds` from now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self, code: int = 0, reason: str = "") -> None:
        """End the presence of the client."""
        if self._timer is not None:
            self._timer.cancel()
        self._room.leave(self, self._participant)


class PresenceLeases:
    """The presence leases of all rooms. While a lease runs, a client counts as present in a room although it has no
    connection.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s

    def _find(self, room: Room, participant: str) -> PresenceLease | None:
        connections = room.connections_of(participant)
        return next((each for each in connections if isinstance(each, PresenceLease)), None)

    def begin(self, room: Room, who: Participant, principal: str) -> bool:
        """Begin or renew the presence of a client in a room. Return False if the room is full. A client that has a
        connection needs no lease.
        """
        if self.renew(room, who.id) or room.connections_of(who.id):
            return True
        if not room.has_free_seat(who.id):
            return False
        lease = PresenceLease(room, who.id)
        room.join(lease, who, principal, "lease")
        lease.renew(self._lease_s)
        return True

    def renew(self, room: Room, participant: str) -> bool:
        """Renew the presence lease of a participant. Return False if it has none."""
        if (lease := self._find(room, participant)) is not None:
            lease.renew(self._lease_s)
        return lease is not None

    def end(self, room: Room, participant: str) -> bool:
        """End the presence lease of a participant. Return False if it has none."""
        if (lease := self._find(room, participant)) is not None:
            lease.close()
        return lease is not None


SEATS: Final = "room-seats"  # bucket: topic, participant, connection, each after a line feed -> ConnectionRecord
REQUESTS: Final = "room-asks"  # bucket: replica, a random id, each after a line feed -> ReplicaRequest
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
    """A connection that another replica of the node holds. Here it only shows that the participant is present; the
    other replica delivers envelopes to it.
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
    """Record of the participants that are connected to other replicas of the node. It also sends requests about them to
    these replicas, for example to close a connection.
    """

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
        replicas.on_change(SEATS, self._take_change)
        replicas.on_change(REQUESTS, self._perform_request)
        replicas.gone.subscribe(self._forget_replica)

    async def open(self) -> None:
        """Read which participants are connected to other replicas. Raise StoreError if that fails."""
        if self._replicas.is_alone:
            return
        for entry in await self._kv.entries(SEATS, self._clock.wall()):
            self._take_change(Change(entry.key, entry))
        self._is_open = True

    async def close(self) -> None:
        """Remove this replica's entries from the store. Call this after the rooms closed all connections."""
        await self._work.close()
        try:
            await self._write_changed_entries()
        except StoreError as away:
            log.warning("who was connected here is forgotten when the lease is over: %s", away)

    # What this replica holds

    def note(self, room: Room, participant: str) -> None:
        """Update the stored entries about a participant's connections to this replica, so that other replicas see them.
        Call this when its connections or its privilege have changed.
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
                await self._write_changed_entries()
            except StoreError as away:
                log.warning("who is connected here cannot be stored for other replicas yet: %s", away)
                await asyncio.sleep(WRITE_AGAIN_S)

    async def _write_changed_entries(self) -> None:
        """Write all changed entries to the store. An entry that changes meanwhile is written again."""
        while self._unwritten:
            key = next(iter(self._unwritten))
            if (value := self._unwritten[key]) is None:
                await self._kv.delete(SEATS, key)
            else:
                revision = await self._kv.put(SEATS, key, value, self._clock.wall())
                if self._unwritten[key] is not None:
                    self._revisions[key.rpartition("\n")[2]] = revision
            if self._unwritten[key] is value:
                del self._unwritten[key]

    # What others hold

    def _take_change(self, change: Change) -> None:
        """Apply what another replica has stored: a connection was opened or closed, or its privilege changed.

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
        """Read from the store which participants are connected to a room through other replicas, because this replica
        has just opened the room.
        """
        if self._is_open:
            self._known = {key: remote for key, remote in self._known.items() if not key.startswith(f"{room.topic}\n")}
            self._work.begin(self._read_room(room.topic), "rooms: a room of other replicas")

    async def _read_room(self, topic: str) -> None:
        """Read which connections other replicas hold to one room. Retry until the store is available."""
        while True:
            try:
                entries = await self._kv.entries(SEATS, self._clock.wall())
                break
            except StoreError as away:
                log.warning("room %s: who is connected to other replicas cannot be read yet: %s", topic, away)
                await asyncio.sleep(WRITE_AGAIN_S)
        for entry in entries:
            if entry.key.startswith(f"{topic}\n") and entry.key not in self._known:
                self._take_change(Change(entry.key, entry))

    def _forget_replica(self, replica: str) -> None:
        """Remove the connections of a replica that has stopped, in this process and in the store."""
        for key in [key for key, remote in self._known.items() if remote.record.replica == replica]:
            self._take_change(Change(key, None))
            self._remove(key)

    def _remove(self, key: str) -> None:
        """Delete the stored connection of a replica that has stopped. All replicas try this, and one of them
        succeeds.
        """
        self._work.begin(self._kv.delete(SEATS, key), "rooms: who was connected to a replica that is gone")

    # What replicas ask of each other

    def set_privilege(self, room: Room, participant: str, privilege: Privilege, by: str) -> None:
        """Ask the other replicas to change the privilege of a participant on the connections that they hold."""
        connections = room.connections_of(participant)
        for replica in {each.record.replica for each in connections if isinstance(each, RemoteConnection)}:
            self.ask(replica, ReplicaRequest("privilege", room.topic, participant, privilege=privilege, by=by))

    def ask(self, replica: str, request: ReplicaRequest) -> None:
        """Send a request to another replica through the store. While the store is unavailable, retry as long as that
        replica lives.
        """

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
