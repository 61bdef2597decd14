"""The log of the registry of names on JetStream, which the replicas of a node share: a stream that only grows.

A message holds the records of one append, or as many of them as fit, each with its place in the hash chain. Its subject
is the surface name that all of them are about, if that is one. An append names the message that it follows: of two
replicas that decided on the same state, one is told Conflict and decides again.
"""

from collections.abc import Sequence

import msgspec

from interlock.store.audit_chain import ORIGIN, ChainedRecord, Mark, chain
from interlock.store.nats.connection import Connection, Headers
from interlock.store.nats.jetstream import (
    BATCH_MAX,
    HEADERS_MAX,
    JetStream,
    NatsFollowing,
    Stored,
    StreamNames,
    WrongSequence,
    token,
)
from interlock.store.nats.servers import SharedPlace
from interlock.store.ports import Conflict, Damaged, NamedRecord, Record, StoreRefused

SEVERAL = "_several"  # the last token of a message about more than one name, or none; no name begins so
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
RECORD_EXTRA = 128  # bytes that a record needs in a message beside its data: name, hash, lengths


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A record of the log, as stored within a message."""

    name: str
    data: bytes
    hash: bytes


class _NamesRun(msgspec.Struct, frozen=True, array_like=True):
    """The content of a message: consecutive records of one append."""

    first: int  # the sequence of its first record
    rows: tuple[_Row, ...]

    @property
    def last(self) -> Mark:
        return Mark(self.first + len(self.rows) - 1, self.rows[-1].hash)


class NatsNamesLog:
    """The log of the names registry, kept in one JetStream stream that does not allow deletion."""

    is_begun = True  # others may have begun it: only reading tells

    def __init__(self, place: SharedPlace) -> None:
        names = StreamNames(place.node)
        self._connection = Connection(place.servers, "the registry's log on NATS")
        self._jetstream = JetStream(self._connection, place.replicas)
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
        messages = await self._messages(f"{self._subject}.{token(name)}")
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
        except WrongSequence:
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
        """Group the rows into runs that each fit into one message of the server."""
        payload_max = self._connection.payload_max - HEADERS_MAX
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
        if len(runs) > BATCH_MAX:
            raise StoreRefused(f"{len(rows)} records cannot be appended to the registry at once.")
        messages: list[_NamesRun] = []
        for run in runs:
            messages.append(_NamesRun(first, tuple(run)))
            first += len(run)
        return messages

    async def _messages(self, subject: str, after: int = 0) -> list[Stored]:
        return await self._jetstream.await_request(self._stream, self._jetstream.all_of(self._stream, subject, after))


def _subject_token(run: _NamesRun) -> str:
    """Return the last token of the subject for a message: the name that all its records share, or SEVERAL."""
    names = {row.name for row in run.rows}
    return token(names.pop()) if len(names) == 1 and "" not in names else SEVERAL


def _decode_run(message: Stored) -> _NamesRun:
    """Decode a message of the log. Raise Damaged if it was not written by Interlock."""
    try:
        run = msgspec.msgpack.decode(message.data, type=_NamesRun)
    except msgspec.DecodeError:
        run = None
    if run is None or not run.rows:
        raise Damaged(f"Message {message.sequence} of the log of the registry on NATS is none of Interlock.")
    return run


def _records(run: _NamesRun) -> list[tuple[ChainedRecord, str]]:
    return [(ChainedRecord(run.first + number, row.data, row.hash), row.name) for number, row in enumerate(run.rows)]


class NamesWatch(NatsFollowing):
    """An async iterator that signals possible new records. One signal may represent several records."""

    async def __anext__(self) -> Record:
        message = await super().__anext__()
        self._waiting.clear()
        return message
