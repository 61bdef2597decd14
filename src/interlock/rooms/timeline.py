"""What a room has published, in one order: stored first, then delivered to everybody, and read back.

Theory of operation. Envelopes that passed the checks of the room are queued. One writer per room stores the queue as a
batch and then delivers it: the store assigns the sequence numbers, and every connection receives the envelopes in that
order. Presence and other events of the gateway pass through the same queue but are not stored. While the writer waits
for the store, more envelopes collect and become the next batch, so a busy room costs few writes.

With several replicas, all append to one stream of the shared store and read it back in its order (X-10.1-2). An own
envelope is delivered when it comes back from the store, not when the append has returned. Two replicas may accept the
same id at the same moment; the store keeps the first, and the other sender is refused. If the stream can no longer be
followed, the room refuses envelopes instead of publishing what others would see in another order.

If the store fails, the envelopes of the batch are refused with `unavailable` and were never delivered: what
participants have seen is on disk.

Each delivery costs time of the event loop. DELIVERIES_PER_TURN bounds how long other tasks wait. ALONE_PER_TURN is for
a batch of one envelope. It is smaller, so that calls of others wait for few deliveries only.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.rooms.protocol import envelope as envelopes
from interlock.rooms.protocol.enforcement import OpenRequest, is_request, rpc_id
from interlock.rooms.protocol.envelope import MCP, PROPOSAL, V0, Envelope, EnvelopeRefusal
from interlock.store.ports import Following, Record, Store, StoreError, Unavailable

if TYPE_CHECKING:
    from interlock.rooms.room import Room

log = logging.getLogger("interlock.rooms")

READ_MAX: Final = 1000  # records in one reading
TOLD_BYTES: Final = 512 * 1024  # of records in one message


class StoredEnvelope(msgspec.Struct, frozen=True):
    """An envelope read from the store. `data` holds the bytes that participants received."""

    sequence: int
    received_at: float
    data: bytes
    by: bytes = b""  # the mark of the replica that appended it


def limit_bytes(records: list[StoredEnvelope], most: int = TOLD_BYTES) -> list[StoredEnvelope]:
    """Return the first records that together fit into one message, but at least one record."""
    size = 0
    for number, record in enumerate(records):
        size += len(record.data)
        if size > most and number:
            return records[:number]
    return records


def stored(record: Record) -> StoredEnvelope:
    """Decode a record of the store. An unreadable record becomes an envelope with time 0 and no data."""
    head, _, data = record.data.partition(b"\n")
    at, _, by = head.partition(b" ")
    try:
        return StoredEnvelope(record.sequence, float(at), data, by)
    except ValueError:
        log.error("the record %d of a room cannot be read", record.sequence)
        return StoredEnvelope(record.sequence, 0.0, b"")


KNOWN_MIN: Final = 10_000


class _Known(msgspec.Struct):
    """The remembered data of one published envelope. They show whether a later envelope repeats it, or replies to the
    request in it.
    """

    digest: bytes
    sequence: int = 0  # 0: accepted, and not stored yet
    request: OpenRequest | None = None


class KnownEnvelopes:
    """The newest envelopes of a room by id, so that repeated envelopes and replies are recognized.

    An id that is older than the window may be published again. The window has at least `history_max` envelopes, so
    such an envelope is deleted, or soon will be.
    """

    def __init__(self, most: int = KNOWN_MIN) -> None:
        self._most = max(most, KNOWN_MIN)
        self._by_id: dict[str, _Known] = {}

    def duplicate(self, envelope: Envelope, sender: str) -> EnvelopeRefusal | None:
        """Return a refusal if the envelope's id was already published, otherwise None."""
        if (earlier := self._by_id.get(envelope.id)) is None:
            return None
        identical = earlier.digest == _digest(envelope, sender)
        other = "this id was published before; each envelope has an id of its own"
        message = "this envelope was published before: the first one arrived" if identical else other
        return EnvelopeRefusal("duplicate_id", message, {"identical": identical}, id=envelope.id)

    def add(self, envelope: Envelope, sender: str, sequence: int = 0) -> None:
        """Remember an envelope. If it replies to a remembered request, add its sender to the participants that have
        replied.
        """
        entry = _Known(_digest(envelope, sender), sequence)
        if envelope.kind == MCP and envelope.to and is_request(envelope.payload):
            entry.request = OpenRequest(sender, envelope.to, rpc_id(envelope.payload))
        self._by_id[envelope.id] = entry
        request = self.find_request(envelope.correlation_id)
        if request is not None and envelope.kind == MCP and sender in request.to and sender not in request.answered_by:
            request.answered_by += (sender,)
        if len(self._by_id) > self._most:
            del self._by_id[next(iter(self._by_id))]

    def place(self, id: str, sequence: int) -> None:
        """Set the sequence number of an envelope after it was stored."""
        if (entry := self._by_id.get(id)) is not None:
            entry.sequence = sequence

    def forget(self, id: str) -> None:
        self._by_id.pop(id, None)

    def find_sequence(self, id: str) -> int | None:
        entry = self._by_id.get(id)
        return entry.sequence if entry is not None and entry.sequence else None

    def find_request(self, id: str | None) -> OpenRequest | None:
        """Return the request in the envelope with this id, or None if there is no such envelope or it has none."""
        entry = self._by_id.get(id or "")
        return None if entry is None else entry.request


def _digest(envelope: Envelope, sender: str) -> bytes:
    digest = hashlib.sha256()
    for part in (sender, envelope.kind, envelope.correlation_id or "", *(envelope.to or ())):
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    digest.update(envelope.payload)
    digest.update(envelope.extra)
    return digest.digest()[:16]


# A connection writes what it receives in one turn of the event loop as one piece.
DELIVERIES_PER_TURN: Final = 256
ALONE_PER_TURN: Final = 4
DAY_S: Final = 86_400
_NOT_STORED: Final = EnvelopeRefusal("unavailable", "the room cannot store envelopes at the moment; send it again")


# A function that is told that an envelope was delivered, by None, or why it was not.
Settle = Callable[[EnvelopeRefusal | None], None]


class Delivery(msgspec.Struct):
    """An envelope to be delivered to all connections or to those of one participant. It is encoded once per protocol
    version.
    """

    envelope: Envelope
    data: bytes
    number: int  # in the order of acceptance, stored or not
    sequence: int = 0  # 0: not kept in history
    received_at: float = 0.0
    is_stored: bool = False
    settle: Settle | None = None
    principal: str = ""  # whose credential sent it; of the gateway's own: empty
    only: str | None = None  # the id of the only participant that receives it
    _v0: bytes = b""
    _numbered: Envelope | None = None

    def text(self, protocol: str) -> bytes:
        """Return the encoded envelope for a connection with this protocol version. It is encoded once for all
        connections.
        """
        if protocol != V0:
            return self.data
        if not self._v0:
            self._v0 = envelopes.encode_v0(self.envelope)
        return self._v0

    def sequence_event(self, stamp: Callable[[], envelopes.Stamp]) -> Envelope:
        """Return the event that reports the sequence number of this envelope. It is the same for all connections."""
        if self._numbered is None:
            self._numbered = envelopes.sequence(stamp(), self.sequence, self.envelope.id)
        return self._numbered


class Timeline:
    """The ordered envelopes of a room. It queues, stores, delivers, reads and deletes them.

    A record in the store is the time of receipt, the mark of the replica that appended it if there are several, a line
    feed, and the envelope as it was published. Envelopes that other replicas also append are delivered only when the
    shared stream yields them.

    `delivered` is the sequence number of the newest envelope that local connections receive or have received; it never
    decreases. `numbered` counts all deliveries, stored or not, so that a new connection can recognize those from before
    it joined.
    """

    def __init__(self, room: "Room", store: Store, clock: Clock) -> None:
        self._streams = store.streams
        self._replication = store.replication
        self._stream = f"rooms/{room.topic}"
        self._own = secrets.token_hex(8).encode()  # marks what is appended here, where others append too
        self.known = KnownEnvelopes(room.settings.history_max)
        self.delivered = 0  # the sequence up to which everyone has heard
        self.numbered = 0  # the number of the newest delivery
        self._room = room
        self._clock = clock
        self._oldest = 0  # the sequence up to which envelopes are forgotten; the store keeps the last record
        self._sizes: deque[tuple[int, int]] = deque()  # the sequence and bytes of each that is kept
        self._bytes = 0
        self._queue: list[Delivery] = []
        self._awaited: dict[str, Delivery] = {}  # by id: stored, or about to be, and not heard yet
        self._following: Following[Record] | None = None
        self._is_cut_off = False  # the stream of the replicas can no longer be followed
        self._writer: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()
        self._news = asyncio.Event()

    async def open(self) -> None:
        """Read the ids of the stored envelopes, and start to follow other replicas. Raise StoreError if that fails."""
        self.delivered = last = await self._streams.last(self._stream)
        first = await self.read(0, last, 1)
        self._oldest = first[0].sequence - 1 if first else last
        after = max(self._oldest, last - max(self._room.settings.history_max, KNOWN_MIN))
        while after < last:
            records = await self.read(after, last)
            if not records:
                break
            for record in records:
                self._note_size(record.sequence, record.data)
                envelope = envelopes.decode_untrusted(record.data, len(record.data))
                if isinstance(envelope, Envelope):
                    self.known.add(envelope, envelope.sender or "", record.sequence)
                    if envelope.kind == PROPOSAL:
                        self._room.tracker.recover(self._room, envelope, record.received_at)
            after = records[-1].sequence
        if self._replication is not None:
            self._following = self._replication.follow(self._stream, last)
            self._background.begin(self._follow(self._following), f"room {self._room.topic}: what replicas publish")

    async def close(self) -> None:
        """Store and deliver all queued envelopes, then stop."""
        if self._following is not None:
            self._following.close()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._background.close()

    # Publishing

    def add(self, envelope: Envelope, **more: Any) -> None:
        """Queue an envelope, and start the writer if it is idle."""
        self.numbered += 1
        self._queue.append(Delivery(envelope, envelopes.encode(envelope), self.numbered, **more))
        if self._writer is None or self._writer.done():
            self._writer = self._background.begin(self._write(), f"room {self._room.topic}")

    async def _write(self) -> None:
        """Store and deliver the queued envelopes until the queue is empty. If replicas share the store, `_follow`
        delivers the stored ones instead.
        """
        while self._queue:
            batch, self._queue = self._queue, []
            stored_deliveries = [delivery for delivery in batch if delivery.is_stored]
            is_shared = self._replication is not None
            if is_shared:
                self._awaited |= {delivery.envelope.id: delivery for delivery in stored_deliveries}
            if (stored_deliveries and not await self._store(stored_deliveries)) or is_shared:
                batch = [delivery for delivery in batch if not delivery.is_stored]
            await self._deliver_all(batch)

    async def _store(self, deliveries: list[Delivery]) -> bool:
        """Store a batch of envelopes. Return False if that failed; their senders have then been notified."""
        try:
            if self._is_cut_off:
                raise Unavailable("what is published can no longer be followed; restart this node")
            sequences = await self._append(deliveries)
        except StoreError as away:
            log.error("room %s: envelopes cannot be stored: %s", self._room.topic, away)
            self._give_up(deliveries)
            return False
        for delivery, sequence in zip(deliveries, sequences, strict=True):
            if self._replication is None:
                delivery.sequence = sequence
            elif not sequence and self.known.find_sequence(delivery.envelope.id) is not None:
                self._refuse_taken(delivery)  # otherwise the one that took the id is yet to be heard
        return True

    async def _append(self, deliveries: list[Delivery]) -> list[int]:
        """Append envelopes to the stored stream. Return the sequence number of each, or 0 for an envelope whose id is
        already stored by a replica. If StoreError is raised, replicas may still have stored them; then the shared
        stream delivers them.
        """
        if self._replication is not None:
            records = [
                (each.envelope.id, b"%.3f %b\n%b" % (each.received_at, self._own, each.data)) for each in deliveries
            ]
            return await self._replication.append_new(self._stream, records)
        lines = [b"%.3f\n%b" % (each.received_at, each.data) for each in deliveries]
        last = await self._streams.append(self._stream, lines)
        return list(range(last - len(deliveries) + 1, last + 1))

    async def _deliver_all(self, batch: list[Delivery]) -> None:
        """Deliver envelopes to every connection, and let other tasks run in between. Then delete envelopes beyond what
        is kept.
        """
        count, per_turn = 0, DELIVERIES_PER_TURN if len(batch) > 1 else ALONE_PER_TURN
        for delivery in batch:
            if delivery.sequence:
                self.delivered = delivery.sequence
                self.known.place(delivery.envelope.id, delivery.sequence)
                self._note_size(delivery.sequence, delivery.data)
            for connection in self._room.recipients(delivery):
                connection.deliver(delivery)
                count += 1
                if count == per_turn:
                    count = 0
                    await asyncio.sleep(0)
            if delivery.settle is not None:
                delivery.settle(None)
            self._room.on_delivered(delivery)
        self._news.set()
        self._news = asyncio.Event()
        if (upto := self._find_excess()) > self._oldest:
            self._forget(upto)
            try:
                await self._streams.trim(self._stream, upto)
            except StoreError as away:
                log.warning("room %s: old envelopes could not be removed: %s", self._room.topic, away)

    def _note_size(self, sequence: int, data: bytes) -> None:
        self._sizes.append((sequence, len(data)))
        self._bytes += len(data)

    def _find_excess(self) -> int:
        """Return the sequence number up to which old envelopes have to be deleted, or 0 if there is nothing to delete.
        The limit on their number or bytes must be exceeded by a tenth, so that deletion is rare.
        """
        settings, upto = self._room.settings, 0
        most = settings.history_max
        if self.delivered - self._oldest - most > max(most // 10, 1):
            upto = self.delivered - most
        left = self._bytes - settings.history_bytes
        if left > settings.history_bytes // 10:
            for sequence, size in self._sizes:
                if left <= 0 or sequence == self.delivered:
                    break
                upto, left = max(upto, sequence), left - size
        return upto

    def _forget(self, upto: int) -> None:
        self._oldest = max(self._oldest, upto)
        while self._sizes and self._sizes[0][0] <= upto:
            self._bytes -= self._sizes.popleft()[1]

    async def _follow(self, published: Following[Record]) -> None:
        """Deliver the records of the stream that replicas share. All replicas read them in the same
        order (X-10.1-2).
        """
        try:
            async for record in published:
                try:
                    await self._take(stored(record))
                except Exception:  # one that cannot be taken must not keep back those that follow
                    log.exception("room %s: the record %d cannot be taken", self._room.topic, record.sequence)
                    self.delivered = record.sequence
        except StoreError as lost:
            log.error("room %s is no longer served by this replica: %s", self._room.topic, lost)
        self._is_cut_off = True
        self._give_up(list(self._awaited.values()))

    async def _take(self, record: StoredEnvelope) -> None:
        """Deliver one envelope of the stream that replicas share. It was published through this replica or another
        one.
        """
        envelope = envelopes.decode_untrusted(record.data, len(record.data))
        if not isinstance(envelope, Envelope):
            log.error("room %s: the record %d is no envelope", self._room.topic, record.sequence)
            self.delivered = record.sequence
            return
        delivery = awaited = self._awaited.get(envelope.id)
        if delivery is not None and record.by == self._own and delivery.data == record.data:
            del self._awaited[envelope.id]
        else:
            # It is of another replica, or of this one whose storing was not confirmed here.
            self._room.on_replicated(envelope, record.received_at)
            self.known.add(envelope, envelope.sender or "", record.sequence)
            self.numbered += 1
            delivery = Delivery(envelope, record.data, self.numbered, received_at=record.received_at, is_stored=True)
            if awaited is not None:  # another replica was first with an id that was sent here
                self._refuse_taken(awaited)
        delivery.sequence = record.sequence
        await self._deliver_all([delivery])

    def _refuse_taken(self, delivery: Delivery) -> None:
        """Refuse an envelope because another one with the same id was published first."""
        refusal = self.known.duplicate(delivery.envelope, delivery.envelope.sender or "")
        self._give_up([delivery], refusal or _NOT_STORED)

    def _give_up(self, deliveries: list[Delivery], why: EnvelopeRefusal = _NOT_STORED) -> None:
        """Refuse envelopes that could not be stored. They are not delivered."""
        for delivery in deliveries:
            if self._replication is not None and self._awaited.pop(delivery.envelope.id, None) is not delivery:
                continue  # it was heard, or given up before
            if self.known.find_sequence(delivery.envelope.id) is None:
                self.known.forget(delivery.envelope.id)
            index, id = self._room.tracker.index, delivery.envelope.id
            # Another replica may have been first with a proposal of this id; that one still waits.
            is_own = index.waiting[self._room.topic].get(id) == delivery.envelope.sender
            if delivery.envelope.kind == PROPOSAL and is_own:
                index.stop_waiting(self._room.topic, id)
            if delivery.settle is not None:
                delivery.settle(msgspec.structs.replace(why, id=delivery.envelope.id))

    async def forget_old(self) -> None:
        """Delete envelopes older than `history_days`. Raise StoreError if that fails."""
        before = self._clock.wall() - self._room.settings.history_days * DAY_S
        while True:
            records = await self.read(self._oldest, self.delivered)
            old = [record.sequence for record in records if record.received_at < before]
            if not old:
                return
            await self._streams.trim(self._stream, old[-1])
            self._forget(old[-1])

    # Reading back

    async def read(self, after: int, upto: int, limit: int = READ_MAX) -> list[StoredEnvelope]:
        """Return the stored envelopes after one sequence number and up to another, oldest first. Raise StoreError if
        reading fails.
        """
        after = max(after, self._oldest)
        records = await self._streams.read(self._stream, after, min(limit, max(0, upto - after)))
        return [stored(record) for record in records if record.sequence <= upto]

    async def wait_beyond(self, sequence: int, wait_s: float) -> None:
        """Wait until an envelope with a higher sequence number is delivered, but at most `wait_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.delivered <= sequence:
                    await self._news.wait()

    async def find_envelope(self, id: str) -> Envelope | None:
        """Return the stored envelope with this id, or None. Raise StoreError if reading fails."""
        sequence = self.known.find_sequence(id)
        records = [] if sequence is None else await self.read(sequence - 1, sequence, 1)
        envelope = envelopes.decode_untrusted(records[0].data, len(records[0].data)) if records else None
        return envelope if isinstance(envelope, Envelope) and envelope.id == id else None

    async def count_before(self, moment: float) -> int:
        """Return the sequence number of the last envelope that was received before the time `moment`. Raise StoreError
        if reading fails.
        """
        low, high = self._oldest, self.delivered
        while low < high:
            middle = (low + high + 1) // 2
            records = await self.read(middle - 1, middle, 1)
            if records and records[0].received_at >= moment:
                high = middle - 1
            else:
                low = middle
        return low

    def position_after_gap(self, reference: str) -> int:
        """Return the sequence number after which a client continues if the envelope that it refers to is not stored.
        This is the oldest stored one if `reference` is a number below it, otherwise the newest delivered one.
        """
        is_earlier = reference.isascii() and reference.isdigit() and int(reference[:16]) < self._oldest
        return self._oldest if is_earlier else self.delivered

    def find_position(self, reference: str) -> int | None:
        """Return the sequence number for a client's reference, which is a number or the id of an envelope. Return None
        if it is unknown.
        """
        if reference.isascii() and reference.isdigit() and len(reference) <= 15:
            number = int(reference)
            return number if self._oldest <= number <= self.delivered else None
        return self.known.find_sequence(reference)
