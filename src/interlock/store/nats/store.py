"""The store that replicas of a node share: NATS JetStream, by the node's name.

A returned write is stored by the server (on how many servers: `replicas`). Whatever the server does not answer in time
is `Unavailable`, and so is everything, at once, while there is no connection.

The log of the registry of names is a stream that only grows. A message holds the records of one append, or as many of
them as fit, each with its place in the hash chain. Its subject is the surface name that all of them are about, if that
is one. An append names the message that it follows: of two replicas that decided on the same state, one is told
Conflict and decides again.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec
from nats.aio.msg import Msg

from interlock.store.audit_chain import ORIGIN, ChainedRecord, Mark, chain
from interlock.store.nats import jetstream
from interlock.store.nats.connection import Connection, Headers, settle_with_message
from interlock.store.nats.key_value import NatsKeyValue, NatsWatch
from interlock.store.ports import Conflict, Damaged, NamedRecord, Record, SharedPlace, StoreRefused

DUPLICATES_S = 120  # how long the server remembers an id (`Replication.append_new`)
SEQUENCE_MAX = 2**63 - 1

T = TypeVar("T")


class NatsStore:
    """A store on NATS JetStream, which several replicas of a node share. Key-value entries and streams use one
    connection.

    Each stream is one JetStream stream that the first record creates. Replicas that share the store learn about each
    other's writes from `watch` and `follow`. A record that only one replica may append is appended by `append_new`.
    """

    def __init__(self, place: SharedPlace) -> None:
        self._connection = Connection(place.servers, "the NATS store")
        self._jetstream = jetstream.JetStream(self._connection, place.replicas)
        self._names = jetstream.StreamNames(place.node)
        self.kv = NatsKeyValue(self._jetstream, self._names)
        self.streams = self.replication = self
        self._followings: list[jetstream.NatsFollowing] = []
        # Locks that serialize appends to each stream, because the server accepts only a few batches at a time.
        self._appending = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def open(self) -> None:
        await self._connection.open()
        await self.kv.open()

    async def close(self) -> None:
        for following in self._followings:
            following.close()
        await self.kv.close()
        await self._connection.close()

    # Streams

    async def append(self, stream: str, records: Sequence[bytes]) -> int:
        """Append all records or none, and return the last sequence number. Appends of this process to one stream run
        one at a time.
        """
        if not records:
            return await self.last(stream)
        if len(records) > (most := jetstream.BATCH_MAX):
            raise StoreRefused(f"{len(records)} records cannot be appended at once; the store takes {most}.")
        self._check(records)
        subject = self._names.records(stream)
        async with self._appending[stream]:
            await self._ensure(stream)
            name = self._names.stream(stream)
            messages = [(subject, record, dict[str, str]()) for record in records]
            return await self._jetstream.await_request(name, self._jetstream.publish_batch(name, messages))

    async def append_new(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        """Append, in order, each record whose id was not used for a record of this stream within the last two minutes,
        by any replica.

        Return the sequence of each record, or 0 for a record that was left out. If it raises Unavailable, some records
        may have been appended; `follow` shows which.
        """
        self._check([data for _, data in records])
        async with self._appending[stream]:
            await self._ensure(stream)
            return await self._jetstream.await_request(self._names.stream(stream), self._publish_each(stream, records))

    async def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[Record]:
        if limit <= 0 or after >= SEQUENCE_MAX:
            return []
        messages = await self._read_or_default(
            stream,
            self._jetstream.all_of(
                self._names.stream(stream), self._names.records(stream), max(after, 0), min(limit, SEQUENCE_MAX)
            ),
            [],
        )
        return [Record(message.sequence, message.data) for message in messages]

    async def last(self, stream: str) -> int:
        message = await self._read_or_default(
            stream, self._jetstream.last(self._names.stream(stream), self._names.records(stream)), None
        )
        return 0 if message is None else message.sequence

    async def trim(self, stream: str, upto: int) -> None:
        first_kept = min(upto + 1, await self.last(stream))
        if first_kept > 1:
            await self._jetstream.purge(self._names.stream(stream), seq=first_kept)

    async def _ensure(self, stream: str) -> None:
        """Create the JetStream stream for `stream` if it does not exist."""
        await self._jetstream.ensure(
            self._names.stream(stream), (self._names.records(stream),), duplicate_window=DUPLICATES_S * 1_000_000_000
        )

    def follow(self, stream: str, after: int) -> jetstream.NatsFollowing:
        """Return an iterator over every record after the sequence `after`, each once and in order, whichever replica
        appended it.
        """
        name = self._names.stream(stream)

        async def prepare(position: int) -> None:
            await self._ensure(stream)
            await self._jetstream.confirm(name, position)

        following = jetstream.NatsFollowing(self._connection, name, self._names.records(stream), after, prepare)
        self._followings = [*(existing for existing in self._followings if not existing.is_closed), following]
        return following

    async def _publish_each(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        """Publish all records in order before waiting for the acknowledgements. Return the sequence of each record, or
        0 for a duplicate.
        """
        connection, subject, name = self._connection, self._names.records(stream), self._names.stream(stream)
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Msg]] = [loop.create_future() for _ in records]
        with contextlib.ExitStack() as inboxes:
            for (id, data), answer in zip(records, answers, strict=True):
                reply = inboxes.enter_context(connection.inbox(settle_with_message(answer)))
                await connection.send(subject, data, {"Nats-Msg-Id": id}, reply=reply)
            size = sum(len(data) for _, data in records)
            for answer in answers:
                await connection.wait(answer, size)
            return [self._jetstream.acknowledged(name, answer.result()) for answer in answers]

    async def _read_or_default(self, stream: str, request: Awaitable[T], default: T) -> T:
        """Return the result of reading from a stream, or `default` if the stream does not exist yet."""
        name = self._names.stream(stream)
        try:
            return await (self._jetstream.await_request(name, request) if self._jetstream.knows(name) else request)
        except jetstream.NoStream:
            return default

    def _check(self, records: Sequence[bytes]) -> None:
        room = self._connection.payload_max - jetstream.HEADERS_MAX
        for record in records:
            if len(record) > room:
                raise StoreRefused(
                    f"A record of {len(record)} bytes is larger than the NATS server takes ({room}). Set max_payload "
                    "in its configuration."
                )

    # Other replicas

    @property
    def is_reachable(self) -> bool:
        """Return whether the store has answered recently."""
        return self._connection.is_reachable

    def watch(self, bucket: str) -> NatsWatch:
        """Return an iterator over the writes and deletes that other replicas make in a bucket from now on, in order of
        revision.

        This store's own writes are left out, and so is anything older than its own last write to the same key. A write
        that raised Unavailable but was stored after all is included. If a key was written several times before the
        watcher reached it, only the last write may be yielded. An entry that expires need not be reported.
        """
        return self.kv.watch(bucket)


SEVERAL = "_several"  # the last token of a message about more than one name, or none; no name begins so
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
RECORD_EXTRA = 128  # bytes that a record needs in a message beside its data: name, hash, lengths


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A record of the log of names, as a message contains it."""

    name: str
    data: bytes
    hash: bytes


class _NamesRun(msgspec.Struct, frozen=True, array_like=True):
    """The content of one message of the log of names: consecutive records that were appended together."""

    first: int  # the sequence of its first record
    rows: tuple[_Row, ...]

    @property
    def last(self) -> Mark:
        return Mark(self.first + len(self.rows) - 1, self.rows[-1].hash)


class NatsNamesLog:
    """The log of the registry of names, stored in one JetStream stream that does not allow deletion."""

    is_begun = True  # others may have begun it: only reading tells

    def __init__(self, place: SharedPlace) -> None:
        names = jetstream.StreamNames(place.node)
        self._connection = Connection(place.servers, "the registry's log on NATS")
        self._jetstream = jetstream.JetStream(self._connection, place.replicas)
        self._stream = names.names_stream
        self._subject = names.names
        self._known = (0, 0)  # a record that was read, and the message that it is the last of
        self._watches: list[NamesWatch] = []

    async def open(self) -> None:
        await self._connection.open()
        await self._jetstream.ensure(self._stream, (f"{self._subject}.*",), deny_delete=True, deny_purge=True)

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches.clear()
        await self._connection.close()

    async def read(self, after: int = 0, limit: int = 10_000) -> list[ChainedRecord]:
        known_record, known_message = self._known
        start = known_message if known_record <= after else 0
        records: list[ChainedRecord] = []
        for message in await self._messages(f"{self._subject}.*", start):
            run = _decode_run(message)
            records += [record for record, _ in _records(run) if record.sequence > after]
            if len(records) <= limit:
                self._known = (run.last.sequence, message.sequence)
        return records[: max(limit, 0)]

    async def read_of(self, name: str, limit: int = 1000) -> list[ChainedRecord]:
        """Return at most `limit` of the newest records about a name, oldest first."""
        messages = await self._messages(f"{self._subject}.{jetstream.token(name)}")
        messages += await self._messages(f"{self._subject}.{SEVERAL}")
        records = [
            record for message in messages for record, about in _records(_decode_run(message)) if name and about == name
        ]
        return sorted(records, key=lambda record: record.sequence)[-limit:] if limit > 0 else []

    async def append(self, after: Mark, records: Sequence[NamedRecord]) -> Mark:
        """Append the records after the mark `after`, either all of them or none. Raise Conflict if `after` is not the
        last record of the log.
        """
        last = await self._jetstream.await_request(
            self._stream, self._jetstream.last(self._stream, f"{self._subject}.*")
        )
        if (ORIGIN if last is None else _decode_run(last).last) != after:
            raise Conflict("another replica has changed the registry")
        if not records:
            return after
        hashes = chain(after, [record.data for record in records])
        rows = [_Row(record.name, record.data, hash) for record, hash in zip(records, hashes, strict=True)]
        runs = self._runs(after.sequence + 1, rows)
        expected: Headers = {EXPECTED_LAST: str(0 if last is None else last.sequence)}
        messages = [
            (f"{self._subject}.{_subject_token(run)}", msgspec.msgpack.encode(run), {} if number else expected)
            for number, run in enumerate(runs)
        ]
        try:
            await self._jetstream.await_request(self._stream, self._jetstream.publish_batch(self._stream, messages))
        except jetstream.WrongSequence:
            raise Conflict("another replica has changed the registry") from None
        return runs[-1].last

    def watch(self) -> "NamesWatch":
        """Return an iterator that signals when there may be new records."""
        watch = NamesWatch(
            self._connection,
            self._stream,
            f"{self._subject}.*",
            self._known[1],
            lambda _: self._jetstream.confirm(self._stream),
        )
        self._watches.append(watch)
        return watch

    def _runs(self, first: int, rows: Sequence[_Row]) -> list[_NamesRun]:
        """Divide the rows into groups, each of which fits into one message of the server."""
        payload_max = self._connection.payload_max - jetstream.HEADERS_MAX
        runs: list[list[_Row]] = []
        size = payload_max
        for row in rows:
            record_size = len(row.data) + RECORD_EXTRA
            if record_size > payload_max:
                raise StoreRefused(
                    f"A record of the registry has {len(row.data)} bytes, and the NATS server accepts {payload_max}. "
                    "Increase max_payload in the configuration of the NATS server."
                )
            if size + record_size > payload_max:
                runs.append([])
                size = 0
            runs[-1].append(row)
            size += record_size
        if len(runs) > jetstream.BATCH_MAX:
            raise StoreRefused(f"{len(rows)} records cannot be appended to the registry at once.")
        messages: list[_NamesRun] = []
        for run in runs:
            messages.append(_NamesRun(first, tuple(run)))
            first += len(run)
        return messages

    async def _messages(self, subject: str, after: int = 0) -> list[jetstream.Stored]:
        return await self._jetstream.await_request(self._stream, self._jetstream.all_of(self._stream, subject, after))


def _subject_token(run: _NamesRun) -> str:
    """Return the last token of the subject of a message: the name that all its records are about, or SEVERAL."""
    names = {row.name for row in run.rows}
    return jetstream.token(names.pop()) if len(names) == 1 and "" not in names else SEVERAL


def _decode_run(message: jetstream.Stored) -> _NamesRun:
    """Decode a message of the log of names. Raise Damaged if another program wrote it."""
    try:
        run = msgspec.msgpack.decode(message.data, type=_NamesRun)
    except msgspec.DecodeError:
        run = None
    if run is None or not run.rows:
        raise Damaged(f"Message {message.sequence} of the log of the registry on NATS is none of Interlock.")
    return run


def _records(run: _NamesRun) -> list[tuple[ChainedRecord, str]]:
    return [(ChainedRecord(run.first + number, row.data, row.hash), row.name) for number, row in enumerate(run.rows)]


class NamesWatch(jetstream.NatsFollowing):
    """An async iterator that yields whenever records may have been added to the log of names. It may yield once for
    several records.
    """

    async def __anext__(self) -> Record:
        message = await super().__anext__()
        self._waiting.clear()
        return message
