"""What a room has published, in one order: stored first, then delivered to everybody, and read back.

Theory of operation. Envelopes that passed the checks of the room are queued. One writer stores the queue as a batch and
then delivers it: the store assigns the sequence numbers, and every connection receives the envelopes in that order.
Presence and other events of the gateway pass through the same queue but are not stored. When several replicas publish,
deliveries come from the store alone, in the order in which every replica reads it (X-10.1-2).
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.rooms.protocol import gateway_messages
from interlock.rooms.protocol.enforcement import MCP, Asked, is_request, rpc_id
from interlock.rooms.protocol.envelope import V0, Envelope, decode_untrusted, encode
from interlock.rooms.protocol.errors import EnvelopeRefusal
from interlock.rooms.protocol.gateway_messages import Stamp
from interlock.rooms.protocol.v0 import encode_v0
from interlock.store.ports import Following, Record, Store, StoreError, Unavailable

if TYPE_CHECKING:
    from interlock.rooms.room import Room

log = logging.getLogger("interlock.rooms")

READ_MAX: Final = 1000  # records in one reading
TOLD_BYTES: Final = 512 * 1024  # of records in one message


class Stored(msgspec.Struct, frozen=True):
    sequence: int
    received_at: float
    data: bytes
    by: bytes = b""  # which `History.own` appended it


class History:
    def __init__(self, store: Store, topic: str) -> None:
        self._streams = store.streams
        self._replication = store.replication
        self._stream = f"rooms/{topic}"
        self.own = secrets.token_hex(8).encode()  # marks what is appended here, where others append too
        self._forgotten = 0  # the store itself keeps the last record of a stream

    @property
    def is_shared(self) -> bool:
        """Whether other replicas append too: then what is to be delivered comes by `follow` alone."""
        return self._replication is not None

    async def append(self, accepted: Sequence[tuple[str, float, bytes]]) -> list[int]:
        """Id, time of receipt and envelope; returns the sequence of each, 0 for an id that another replica took.

        Raises StoreError; then none is kept, or `follow` tells which.
        """
        if self._replication is not None:
            each = [(id, b"%.3f %b\n%b" % (at, self.own, data)) for id, at, data in accepted]
            return await self._replication.append_new(self._stream, each)
        last = await self._streams.append(self._stream, [b"%.3f\n%b" % (at, data) for _, at, data in accepted])
        return list(range(last - len(accepted) + 1, last + 1))

    def follow(self, after: int) -> Following[Record] | None:
        """What any replica appends; None where there is only one."""
        return None if self._replication is None else self._replication.follow(self._stream, after)

    async def last(self) -> int:
        return await self._streams.last(self._stream)

    async def read(self, after: int, upto: int, limit: int = READ_MAX) -> list[Stored]:
        """Oldest first."""
        after = max(after, self._forgotten)
        records = await self._streams.read(self._stream, after, min(limit, max(0, upto - after)))
        return [stored(record) for record in records if record.sequence <= upto]

    async def trim(self, upto: int) -> None:
        """Forgets records up to that sequence."""
        await self._streams.trim(self._stream, upto)
        self._forgotten = max(upto, self._forgotten)


def limit_bytes(records: list[Stored], most: int = TOLD_BYTES) -> list[Stored]:
    """As many of the first as fit into one message; one at least."""
    size = 0
    for number, record in enumerate(records):
        size += len(record.data)
        if size > most and number:
            return records[:number]
    return records


def stored(record: Record) -> Stored:
    """What cannot be read came at no time, and is no envelope."""
    head, _, data = record.data.partition(b"\n")
    at, _, by = head.partition(b" ")
    try:
        return Stored(record.sequence, float(at), data, by)
    except ValueError:
        log.error("the record %d of a room cannot be read", record.sequence)
        return Stored(record.sequence, 0.0, b"")


KNOWN_MIN: Final = 10_000


class _Known(msgspec.Struct):
    digest: bytes
    sequence: int = 0  # 0: accepted, and not stored yet
    by: str = ""
    to: tuple[str, ...] = ()  # of a request
    rpc_id: bytes = b""
    answered_by: tuple[str, ...] = ()


class KnownEnvelopes:
    def __init__(self, most: int = KNOWN_MIN) -> None:
        self._most = max(most, KNOWN_MIN)
        self._by_id: dict[str, _Known] = {}

    def duplicate(self, envelope: Envelope, sender: str) -> EnvelopeRefusal | None:
        """The refusal of an id that the room knows."""
        known = self._by_id.get(envelope.id)
        if known is None:
            return None
        identical = known.digest == _digest(envelope, sender)
        said = "this id was published before; each envelope has an id of its own"
        if identical:
            said = "this envelope was published before: the first one arrived"
        return EnvelopeRefusal("duplicate_id", said, {"identical": identical}, id=envelope.id)

    def add(self, envelope: Envelope, sender: str, sequence: int = 0) -> None:
        known = _Known(_digest(envelope, sender), sequence)
        if envelope.kind == MCP and envelope.to and is_request(envelope.payload):
            known.by, known.to, known.rpc_id = sender, envelope.to, rpc_id(envelope.payload)
        self._by_id[envelope.id] = known
        asked = self._by_id.get(envelope.correlation_id or "")
        if asked is not None and envelope.kind == MCP and sender in asked.to and sender not in asked.answered_by:
            asked.answered_by += (sender,)
        if len(self._by_id) > self._most:
            del self._by_id[next(iter(self._by_id))]

    def place(self, id: str, sequence: int) -> None:
        known = self._by_id.get(id)
        if known is not None:
            known.sequence = sequence

    def forget(self, id: str) -> None:
        self._by_id.pop(id, None)

    def find_sequence(self, id: str) -> int | None:
        known = self._by_id.get(id)
        return known.sequence if known is not None and known.sequence else None

    def find_request(self, id: str | None, by: str) -> Asked | None:
        """The request that `id` names, as the one who would answer it sees it."""
        known = self._by_id.get(id or "")
        if known is None or not known.to:
            return None
        return Asked(known.by, known.to, known.rpc_id, by in known.answered_by)


def _digest(envelope: Envelope, sender: str) -> bytes:
    said = hashlib.sha256()
    for part in (sender, envelope.kind, envelope.correlation_id or "", *(envelope.to or ())):
        said.update(part.encode("utf-8", "surrogatepass"))
        said.update(b"\0")
    said.update(envelope.payload)
    said.update(envelope.extra)
    return said.digest()[:16]


DELIVERIES_PER_TURN: Final = 256  # then others have their turn; what one connection hears in a turn is one write
ALONE_PER_TURN: Final = 4  # of one envelope, with which no other is written: calls of others wait for these only
DAY_S: Final = 86_400
_NOT_STORED: Final = EnvelopeRefusal("unavailable", "the room cannot store envelopes at the moment; send it again")


class Delivery(msgspec.Struct):
    """One envelope on its way to everyone, written once for each version that is spoken."""

    envelope: Envelope
    data: bytes
    number: int  # in the order of acceptance, stored or not
    sequence: int = 0  # 0: not kept in history
    received_at: float = 0.0
    is_stored: bool = False
    settle: Callable[[EnvelopeRefusal | None], None] | None = None
    principal: str = ""  # whose credential sent it; of the gateway's own: empty
    only: str | None = None  # the one participant that is told
    _v0: bytes = b""
    _numbered: Envelope | None = None

    def text(self, protocol: str) -> bytes:
        if protocol != V0:
            return self.data
        if not self._v0:
            self._v0 = encode_v0(self.envelope)
        return self._v0

    def sequence_event(self, stamp: Callable[[], Stamp]) -> Envelope:
        """The same for everyone who asks for it."""
        if self._numbered is None:
            self._numbered = gateway_messages.sequence(stamp(), self.sequence, self.envelope.id)
        return self._numbered


class Timeline:
    def __init__(self, room: "Room", history: History, clock: Clock) -> None:
        self.history = history
        self.known = KnownEnvelopes(room.settings.history_max)
        self.delivered = 0  # the sequence up to which everyone has heard
        self.numbered = 0  # the number of the newest delivery
        self._room = room
        self._clock = clock
        self._oldest = 0
        self._queue: list[Delivery] = []
        self._awaited: dict[str, Delivery] = {}  # by id: stored, or about to be, and not heard yet
        self._following: Following[Record] | None = None
        self._is_deaf = False  # what replicas publish is heard no more
        self._writer: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()
        self._news = asyncio.Event()

    async def open(self) -> None:
        """Reads back which ids are taken. Raises StoreError."""
        self.delivered = last = await self.history.last()
        first = await self.history.read(0, last, 1)
        self._oldest = first[0].sequence - 1 if first else last
        after = max(self._oldest, last - max(self._room.settings.history_max, KNOWN_MIN))
        while after < last:
            records = await self.history.read(after, last)
            if not records:
                break
            for record in records:
                envelope = decode_untrusted(record.data, len(record.data))
                if isinstance(envelope, Envelope):
                    self.known.add(envelope, envelope.sender or "", record.sequence)
                    self._room.on_restored(envelope, record.received_at)
            after = records[-1].sequence
        self._following = self.history.follow(last)
        if self._following is not None:
            self._background.begin(self._follow(self._following), f"room {self._room.topic}: what replicas publish")

    async def close(self) -> None:
        """What is queued is stored and told first."""
        if self._following is not None:
            self._following.close()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._background.close()

    # Publishing

    def add(self, envelope: Envelope, **more: Any) -> None:
        self.numbered += 1
        self._queue.append(Delivery(envelope, encode(envelope), self.numbered, **more))
        if self._writer is None or self._writer.done():
            self._writer = self._background.begin(self._write(), f"room {self._room.topic}")

    async def _write(self) -> None:
        while self._queue:
            batch, self._queue = self._queue, []
            kept = [one for one in batch if one.is_stored]
            if self.history.is_shared:
                self._awaited |= {one.envelope.id: one for one in kept}
            if (kept and not await self._store(kept)) or self.history.is_shared:
                batch = [one for one in batch if not one.is_stored]
            await self._deliver_all(batch)

    async def _store(self, kept: list[Delivery]) -> bool:
        try:
            if self._is_deaf:
                raise Unavailable("what is published can no longer be followed; restart this node")
            sequences = await self.history.append([(one.envelope.id, one.received_at, one.data) for one in kept])
        except StoreError as away:
            log.error("room %s: envelopes cannot be stored: %s", self._room.topic, away)
            self._give_up(kept)
            return False
        for one, sequence in zip(kept, sequences, strict=True):
            if not self.history.is_shared:
                one.sequence = sequence
            elif not sequence and self.known.find_sequence(one.envelope.id) is not None:
                self._refuse_taken(one)  # otherwise the one that took the id is yet to be heard
        return True

    async def _deliver_all(self, batch: list[Delivery]) -> None:
        told, most = 0, DELIVERIES_PER_TURN if len(batch) > 1 else ALONE_PER_TURN
        for one in batch:
            if one.sequence:
                self.delivered = one.sequence
                self.known.place(one.envelope.id, one.sequence)
            for connection in self._room.recipients(one):
                connection.deliver(one)
                told += 1
                if told == most:
                    told = 0
                    await asyncio.sleep(0)
            if one.settle is not None:
                one.settle(None)
            self._room.on_delivered(one)
        self._news.set()
        self._news = asyncio.Event()
        await self._trim()

    async def _follow(self, published: Following[Record]) -> None:
        """The one order, as every replica hears it (X-10.1-2)."""
        try:
            async for record in published:
                try:
                    await self._take(stored(record))
                except Exception:  # one that cannot be taken must not keep back those that follow
                    log.exception("room %s: the record %d cannot be taken", self._room.topic, record.sequence)
                    self.delivered = record.sequence
        except StoreError as lost:
            log.error("room %s is no longer served by this replica: %s", self._room.topic, lost)
        self._is_deaf = True
        self._give_up(list(self._awaited.values()))

    async def _take(self, heard: Stored) -> None:
        envelope = decode_untrusted(heard.data, len(heard.data))
        if not isinstance(envelope, Envelope):
            log.error("room %s: the record %d is no envelope", self._room.topic, heard.sequence)
            self.delivered = heard.sequence
            return
        one = awaited = self._awaited.get(envelope.id)
        if one is not None and heard.by == self.history.own and one.data == heard.data:
            del self._awaited[envelope.id]
        else:
            one = self._hear(envelope, heard)
            if awaited is not None:  # another replica was first with an id that was sent here
                self._refuse_taken(awaited)
        one.sequence = heard.sequence
        await self._deliver_all([one])

    def _hear(self, envelope: Envelope, heard: Stored) -> Delivery:
        """One that was published elsewhere, or of which it was not known here that it was stored."""
        self._room.on_replicated(envelope, heard.received_at)
        self.known.add(envelope, envelope.sender or "", heard.sequence)
        self.numbered += 1
        return Delivery(envelope, heard.data, self.numbered, received_at=heard.received_at, is_stored=True)

    def _refuse_taken(self, one: Delivery) -> None:
        """The room knows another envelope by its id."""
        refusal = self.known.duplicate(one.envelope, one.envelope.sender or "")
        self._give_up([one], refusal or _NOT_STORED)

    def _give_up(self, kept: list[Delivery], why: EnvelopeRefusal = _NOT_STORED) -> None:
        """Nothing that is not on disk is delivered."""
        for one in kept:
            if self.history.is_shared and self._awaited.pop(one.envelope.id, None) is not one:
                continue  # it was heard, or given up before
            if self.known.find_sequence(one.envelope.id) is None:
                self.known.forget(one.envelope.id)
            self._room.on_lost(one.envelope)
            if one.settle is not None:
                one.settle(msgspec.structs.replace(why, id=one.envelope.id))

    async def _trim(self) -> None:
        """Forgets what is beyond the number that is kept, a tenth of it at a time."""
        excess = self.delivered - self._oldest - self._room.settings.history_max
        if excess > max(self._room.settings.history_max // 10, 1):
            self._oldest = self.delivered - self._room.settings.history_max
            try:
                await self.history.trim(self._oldest)
            except StoreError as away:
                log.warning("room %s: old envelopes could not be removed: %s", self._room.topic, away)

    async def forget_old(self) -> None:
        """Envelopes older than `history_days`. Raises StoreError."""
        before = self._clock.wall() - self._room.settings.history_days * DAY_S
        while True:
            records = await self.history.read(self._oldest, self.delivered)
            old = [record.sequence for record in records if record.received_at < before]
            if not old:
                return
            await self.history.trim(old[-1])
            self._oldest = old[-1]

    # Reading back

    async def wait_beyond(self, sequence: int, wait_s: float) -> None:
        """Until an envelope after that one was delivered, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.delivered <= sequence:
                    await self._news.wait()

    async def find_envelope(self, id: str) -> Envelope | None:
        """One that is kept. Raises StoreError."""
        sequence = self.known.find_sequence(id)
        records = [] if sequence is None else await self.history.read(sequence - 1, sequence, 1)
        envelope = decode_untrusted(records[0].data, len(records[0].data)) if records else None
        return envelope if isinstance(envelope, Envelope) and envelope.id == id else None

    async def count_before(self, moment: float) -> int:
        """The sequence of the last envelope that came before that moment. Raises StoreError."""
        low, high = self._oldest, self.delivered
        while low < high:
            middle = (low + high + 1) // 2
            records = await self.history.read(middle - 1, middle, 1)
            if records and records[0].received_at >= moment:
                high = middle - 1
            else:
                low = middle
        return low

    def position_after_gap(self, reference: str) -> int:
        """Where one goes on that names what is not kept: with the oldest that is, if that is later for sure."""
        is_earlier = reference.isascii() and reference.isdigit() and int(reference[:16]) < self._oldest
        return self._oldest if is_earlier else self.delivered

    def find_position(self, reference: str) -> int | None:
        """The sequence that a client names: by number, or by an envelope's id."""
        if reference.isascii() and reference.isdigit() and len(reference) <= 15:
            number = int(reference)
            return number if self._oldest <= number <= self.delivered else None
        return self.known.find_sequence(reference)
