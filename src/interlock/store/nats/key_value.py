"""Key-value on JetStream: one stream per node name, a subject per key, of which the server keeps the last message.

An entry's revision is the sequence of its message, and compare-and-swap is the server's own. The time at which an entry
expires is in a header and is compared with the caller's `now`, because the clocks of replicas and servers differ; the
server itself forgets an entry an hour after that. A deleted entry leaves an empty message for a week, so that a replica
that was away learns of the deletion.

A value that does not fit one message of the server is written as parts, in one atomic batch with its entry: they have
the sequences just before it. A reader that finds one of them replaced reads the entry again.

Watches. One reader of the stream serves all watches of this process. A watch yields only the last change of a key that
changes faster than its watcher reads. Writes of this process are left out, and so is what is older than they are. While
this process writes a key, changes of that key are held back until the write has ended: only then is it known which is
newer. So a change that is yielded is always newer than what the writer knows.
"""

import asyncio
import base64
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from nats.aio.msg import Msg

from interlock.store.nats import jetstream
from interlock.store.ports import Change, Conflict, Damaged, Entry, StoreError, StoreRefused, Unavailable, expiry

T = TypeVar("T")
_log = logging.getLogger(__name__)

EXPIRED_KEPT_S = 3600  # an expired entry stays for so long on the server: replicas' clocks may differ
DELETED_KEPT_S = 7 * 86400  # a replica that was away for longer has to be restarted to know what was deleted
TTL_MAX_S = 100 * 365 * 86400  # what lives longer is not given a time to live on the server
VALUE_MAX = 64 * 1024 * 1024  # bytes: four times the largest message of a client (limits.message_bytes)
READ_TRIES = 10  # a value in parts that is replaced while it is read, each time

EXPIRES = "Interlock-Expires"
DELETED = "Interlock-Deleted"
PARTS = "Interlock-Parts"
KEY = "Interlock-Key"
TTL = "Nats-TTL"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class _Replaced(Exception):
    """Exception for a value stored in several parts, of which a later write replaced one while they were read."""


class _Unreadable(Damaged):
    """Exception for a stored entry that cannot be decoded, because another program wrote it."""

    def __init__(self, message: jetstream.Stored) -> None:
        super().__init__(f"what {message.subject} holds on the NATS server cannot be read; remove it there")


class _Content(msgspec.Struct, frozen=True):
    """The stored content of one key: its entry, or nothing if the key was deleted or never written."""

    sequence: int = 0
    entry: Entry | None = None  # without its parts, if it has some
    parts: int = 0

    def find_live(self, now: float) -> Entry | None:
        """Return the entry, or None if there is none or it has expired."""
        expires_at = None if self.entry is None else self.entry.expires_at
        return self.entry if expires_at is None or expires_at > now else None


_NOTHING = _Content()


class NatsKeyValue:
    """The key-value store on JetStream. It also watches its buckets for writes of other replicas.

    Values that need several messages are written one at a time. `_held_back` has changes of keys that this process is
    writing. `_own` has writes of this process that the reader has not reached yet; the reader skips what is older.
    """

    def __init__(self, client: jetstream.JetStream, names: jetstream.StreamNames) -> None:
        self._jetstream, self._names = client, names
        self.connection = client.connection
        self._stream = names.kv_stream
        self._in_parts = asyncio.Lock()  # the server takes few batches at a time
        self._under_way: Counter[str] = Counter()  # by subject: writes of this process
        self._last_own = 0  # the highest sequence that this process has written
        self._watches: dict[str, list[NatsWatch]] = {}
        self._held_back: dict[str, jetstream.Stored] = {}  # by subject: the last message
        self._own: dict[str, int] = {}  # by subject: a sequence that the reader has yet to come to
        self._reader: jetstream.Reader | None = None
        self._failure: StoreRefused | None = None

    async def open(self) -> None:
        if self._reader is not None:
            return
        await self._jetstream.ensure(
            self._stream,
            (f"{self._names.entries}.>", f"{self._names.parts}.>"),
            max_msgs_per_subject=1,
            allow_msg_ttl=True,
        )
        self._reader = jetstream.Reader(
            self.connection,
            self._stream,
            f"{self._names.entries}.>",
            await self._jetstream.confirm(self._stream),
            self._take,
            prepare=partial(self._jetstream.confirm, self._stream),
            on_end=self._on_end,
        )
        self._failure = None
        self._reader.start()

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def get(self, bucket: str, key: str, now: float) -> Entry | None:
        for _ in range(READ_TRIES):
            content = await self._find(bucket, key)
            if (entry := content.find_live(now)) is None:
                return None
            try:
                return await self._join_parts(entry, content)
            except _Replaced:
                continue
        raise Unavailable(f"{bucket}/{key} is written too often to be read")

    async def entries(self, bucket: str, now: float) -> list[Entry]:
        subjects = f"{self._names.entries}.{jetstream.token(bucket)}.*"
        messages = await self._await_request(self._jetstream.all_of(self._stream, subjects))
        entries: dict[str, Entry] = {}  # a key that was written meanwhile may come twice: the later one counts
        for message in messages:
            try:
                key, content = key_of(message), _read_content(message)
            except _Unreadable as nonsense:
                _log.error("%s", nonsense)
                continue
            entries.pop(key, None)
            if (entry := content.find_live(now)) is None:
                continue
            if not content.parts:
                entries[key] = entry
            elif (whole := await self.get(bucket, key, now)) is not None:
                entries[key] = whole
        return sorted(entries.values(), key=lambda entry: entry.key)

    async def put(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        content = await self._find(bucket, key)
        return await self._write(bucket, key, value, content, now, ttl_s, expected=False)

    async def create(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        content = _NOTHING
        while True:
            try:
                return await self._write(bucket, key, value, content, now, ttl_s)
            except jetstream.WrongSequence:
                content = await self._find(bucket, key)
                if content.find_live(now) is not None:
                    raise Conflict(f"{bucket}/{key} exists") from None

    async def update(
        self, bucket: str, key: str, value: bytes, revision: int, now: float, *, ttl_s: float | None = None
    ) -> int:
        while True:
            content = await self._find(bucket, key)
            if content.find_live(now) is None:
                raise Conflict(f"{bucket}/{key} is gone")
            if content.sequence != revision:
                raise Conflict(f"{bucket}/{key} has revision {content.sequence}, not {revision}")
            try:
                return await self._write(bucket, key, value, content, now, ttl_s)
            except jetstream.WrongSequence:
                continue  # the next look says which conflict it is

    async def delete(self, bucket: str, key: str) -> bool:
        while True:
            content = await self._find(bucket, key)
            if content.entry is None:
                return False
            headers = {DELETED: "1", TTL: f"{DELETED_KEPT_S}s", EXPECTED: str(content.sequence), **_key_header(key)}
            subject = self._names.entry(bucket, key)
            try:
                sequence = await self._await_own(subject, self._jetstream.publish(self._stream, subject, b"", headers))
            except jetstream.WrongSequence:
                continue
            await self._clear_parts(bucket, key, content, sequence)
            return True

    async def change_of(self, message: jetstream.Stored) -> Change | None:
        """Return the change that a message of the stream describes. Return None if the message is unreadable or a later
        one has replaced its value.
        """
        try:
            key, content = key_of(message), _read_content(message)
        except _Unreadable as nonsense:
            _log.error("%s", nonsense)
            return None
        if content.entry is None:
            return Change(key, None)
        try:
            return Change(key, await self._join_parts(content.entry, content))
        except _Replaced:
            return None

    async def _find(self, bucket: str, key: str) -> _Content:
        message = await self._await_request(self._jetstream.last(self._stream, self._names.entry(bucket, key)))
        return _NOTHING if message is None else _read_content(message)

    async def _join_parts(self, entry: Entry, content: _Content) -> Entry:
        if not content.parts:
            return entry
        first = content.sequence - content.parts
        parts = await asyncio.gather(
            *(self._await_request(self._jetstream.at(self._stream, first + number)) for number in range(content.parts))
        )
        if None in parts:
            raise _Replaced
        return msgspec.structs.replace(entry, value=b"".join(part.data for part in parts if part is not None))

    async def _write(
        self,
        bucket: str,
        key: str,
        value: bytes,
        content: _Content,
        now: float,
        ttl_s: float | None,
        *,
        expected: bool = True,
    ) -> int:
        """Write a value in one message or in several parts, and return its revision.

        `content` is the current content of the key. With `expected`, the server rejects the write if the content has
        changed meanwhile; then raise WrongSequence.
        """
        expires_at = expiry(now, ttl_s)
        subject = self._names.entry(bucket, key)
        headers = _key_header(key)
        lifetime: dict[str, str] = {}
        if expires_at is not None and ttl_s is not None:
            headers[EXPIRES] = repr(float(expires_at))
            if ttl_s < TTL_MAX_S:
                lifetime[TTL] = f"{math.ceil(ttl_s) + EXPIRED_KEPT_S}s"
        headers |= lifetime
        if expected:
            headers[EXPECTED] = str(content.sequence)
        payload_max = self.connection.payload_max - jetstream.HEADERS_MAX - len(headers.get(KEY, ""))
        if len(value) <= payload_max:
            publish = self._jetstream.publish(self._stream, subject, value, headers)
            sequence = await self._await_own(subject, publish)
            await self._clear_parts(bucket, key, content, sequence)
            return sequence
        value_max = min(VALUE_MAX, payload_max * (jetstream.BATCH_MAX - 1))
        if len(value) > value_max:
            raise StoreRefused(f"{bucket}/{key} would have {len(value)} bytes; the store takes {value_max}.")
        parts = [value[start : start + payload_max] for start in range(0, len(value), payload_max)]
        where = self._parts(bucket, key)
        messages = [(f"{where}.{number}", part, lifetime) for number, part in enumerate(parts)]
        headers[PARTS] = str(len(parts))
        async with self._in_parts:
            publish = self._jetstream.publish_batch(self._stream, [*messages, (subject, b"", headers)])
            sequence = await self._await_own(subject, publish)
        if content.parts > len(parts):
            await self._clear_parts(bucket, key, content, sequence - len(parts))
        return sequence

    async def _await_own(self, subject: str, publish: Awaitable[int]) -> int:
        """Wait for a write of this process to `subject`, and return its sequence. Changes of the subject that arrive
        meanwhile are held back.
        """
        sequence = 0
        self._under_way[subject] += 1
        try:
            sequence = await self._await_request(publish)
            return sequence
        finally:
            self._under_way[subject] -= 1
            if not self._under_way[subject]:
                del self._under_way[subject]
            self._last_own = max(self._last_own, sequence)
            self._on_own(subject, sequence)

    async def _clear_parts(self, bucket: str, key: str, content: _Content, before: int) -> None:
        """Remove the stored parts of a value that a new value has replaced. If the server is unreachable, the parts
        stay.
        """
        if content.parts:
            with contextlib.suppress(StoreError):
                await self._jetstream.purge(self._stream, filter=f"{self._parts(bucket, key)}.*", seq=before)

    async def _await_request(self, request: Awaitable[T]) -> T:
        return await self._jetstream.await_request(self._stream, request)

    def _parts(self, bucket: str, key: str) -> str:
        return f"{self._names.parts}.{jetstream.token(bucket)}.{jetstream.token(key)}"

    # Watches

    def watch(self, bucket: str) -> "NatsWatch":
        """Return an iterator over the changes that other replicas make in a bucket from now on."""
        if self._reader is None:
            raise Unavailable("the store is not open")
        # What this process has written before is not news to it, even where the reader has yet to come there.
        after = max(self._reader.position, self._last_own)
        watches = self._watches.setdefault(jetstream.token(bucket), [])
        watch = NatsWatch(self, after, watches)
        watches.append(watch)
        if self._failure is not None:
            watch.end(self._failure)
        return watch

    def _take(self, message: Msg, sequence: int) -> None:
        """Handle a message that the reader received. Pass it to the watches, unless this process has overwritten the
        value since. While this process itself writes the same key, hold the message back.
        """
        stored = jetstream.Stored(message.subject, sequence, dict(message.headers or {}), message.data)
        own = self._own.get(stored.subject, 0)
        self._own = {subject: later for subject, later in self._own.items() if later > sequence}
        if sequence <= own:
            return
        if stored.subject in self._under_way:
            self._held_back[stored.subject] = stored
        else:
            self._pass_on(stored)

    def _pass_on(self, message: jetstream.Stored) -> None:
        for watch in self._watches_of(message.subject):
            watch.take(message)

    def _watches_of(self, subject: str) -> Sequence["NatsWatch"]:
        """Return the watches of the bucket that contains the entry of this subject."""
        bucket = subject.removeprefix(f"{self._names.entries}.").partition(".")[0]
        return self._watches.get(bucket, ())

    def _on_own(self, subject: str, sequence: int) -> None:
        """Handle the end of a write by this process. `sequence` is that of the written message, or 0 if the write
        failed. A newer change of the same key, held back during the write, is now passed to the watches.
        """
        if sequence:
            if self._reader is not None and sequence > self._reader.position:
                self._own[subject] = max(sequence, self._own.get(subject, 0))
            for watch in self._watches_of(subject):
                watch.drop(subject, sequence)
            if subject in self._held_back and self._held_back[subject].sequence <= sequence:
                del self._held_back[subject]
        if subject not in self._under_way and (held := self._held_back.pop(subject, None)) is not None:
            self._pass_on(held)  # by another; or by a write that failed, as far as its caller knows: this is news

    def _on_end(self, failure: StoreRefused | None) -> None:
        self._failure = failure
        if failure is not None:
            self.connection.fail(failure)  # what this process has in memory is of another stream
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.end(failure)


def _read_content(message: jetstream.Stored) -> _Content:
    """Return the content of a key from its message. Raise _Unreadable if another program wrote the message."""
    if DELETED in message.headers:
        return _Content(sequence=message.sequence)
    expires = message.headers.get(EXPIRES)
    try:
        return _Content(
            sequence=message.sequence,
            entry=Entry(key_of(message), message.data, message.sequence, None if expires is None else float(expires)),
            parts=int(message.headers.get(PARTS, "0")),
        )
    except ValueError:
        raise _Unreadable(message) from None


def key_of(message: jetstream.Stored) -> str:
    """Return the key of a stored entry. It is encoded in the subject of the message, or in a header if it is too long
    for that.
    """
    last = message.subject.rpartition(".")[2]
    try:
        if jetstream.is_digest(last):
            return base64.urlsafe_b64decode(message.headers[KEY]).decode()
        return jetstream.text_of(last)
    except (ValueError, KeyError):
        raise _Unreadable(message) from None


def _key_header(key: str) -> dict[str, str]:
    return {KEY: base64.urlsafe_b64encode(key.encode()).decode()} if jetstream.is_digest(jetstream.token(key)) else {}


class NatsWatch(jetstream.StreamIterator):
    """An async iterator over the changes that other replicas make in one bucket, in the order of their revisions."""

    def __init__(self, kv: NatsKeyValue, after: int, watches: list["NatsWatch"]) -> None:
        """Create a watch that yields changes after the sequence `after`. When it is closed, it removes itself from the
        list `watches`.
        """
        super().__init__()
        self._kv, self._after, self._watches = kv, after, watches
        self._waiting: dict[str, jetstream.Stored] = {}  # by subject, in order of sequence

    def take(self, message: jetstream.Stored) -> None:
        """Queue a change for the iterator, in place of an older change of the same key."""
        waiting = self._waiting.get(message.subject)
        if message.sequence > self._after and (waiting is None or waiting.sequence < message.sequence):
            self._waiting.pop(message.subject, None)
            self._waiting[message.subject] = message
            self._changed.set()

    def drop(self, subject: str, upto: int) -> None:
        """Remove a queued change that is not newer than `upto`, because this process has overwritten it."""
        waiting = self._waiting.get(subject)
        if waiting is not None and waiting.sequence <= upto:
            del self._waiting[subject]

    def close(self) -> None:
        if self in self._watches:
            self._watches.remove(self)
        self.end()

    async def __anext__(self) -> Change:
        while True:
            while not self._waiting:
                await self.wait_for_change()
            subject, message = next(iter(self._waiting.items()))
            try:
                change = await self._kv.change_of(message)
            except Unavailable:  # a value in parts, of which the rest is to be fetched
                if self.is_closed:
                    raise StopAsyncIteration from None
                await self._kv.connection.until_reachable()
                continue
            if self._waiting.get(subject) is message:  # otherwise a later message came, or this process wrote over it
                del self._waiting[subject]
                if change is not None:
                    return change
