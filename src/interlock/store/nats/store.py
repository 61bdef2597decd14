"""The store that replicas of a node share: NATS JetStream, by the node's name.

A returned write is stored by the server (on how many servers: `replicas`). Whatever the server does not answer in time
is `Unavailable`, and so is everything, at once, while there is no connection.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from nats.aio.msg import Msg

from interlock.store.nats.connection import Connection, settle_with_message
from interlock.store.nats.jetstream import BATCH_MAX, HEADERS_MAX, JetStream, NatsFollowing, NoStream, StreamNames
from interlock.store.nats.key_value import NatsKeyValue, NatsWatch, Watches
from interlock.store.nats.servers import SharedPlace
from interlock.store.ports import Record, Replication, StoreRefused

DUPLICATES_S = 120  # how long the server remembers an id (`Replication.append_new`)
SEQUENCE_MAX = 2**63 - 1

T = TypeVar("T")


class NatsStreams:
    """The append-only streams of a store. Each is one JetStream stream that the first record creates."""

    def __init__(self, jetstream: JetStream, names: StreamNames) -> None:
        self._jetstream, self._names = jetstream, names
        # Locks that serialize appends to each stream, because the server accepts only a few batches at a time.
        self._appending = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def append(self, stream: str, records: Sequence[bytes]) -> int:
        """Append records in one atomic batch and return the last sequence number. Appends of this process to the same
        stream run one at a time.
        """
        if not records:
            return await self.last(stream)
        if len(records) > BATCH_MAX:
            raise StoreRefused(f"{len(records)} records cannot be appended at once; the store takes {BATCH_MAX}.")
        self._check(records)
        subject = self._names.records(stream)
        async with self._appending[stream]:
            await self.ensure(stream)
            name = self._names.stream(stream)
            messages = [(subject, record, dict[str, str]()) for record in records]
            return await self._jetstream.await_request(name, self._jetstream.publish_batch(name, messages))

    async def append_new(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        self._check([data for _, data in records])
        async with self._appending[stream]:
            await self.ensure(stream)
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

    async def ensure(self, stream: str) -> None:
        """Create the stream if it does not exist."""
        await self._jetstream.ensure(
            self._names.stream(stream), (self._names.records(stream),), duplicate_window=DUPLICATES_S * 1_000_000_000
        )

    def follow(self, stream: str, after: int) -> NatsFollowing:
        name = self._names.stream(stream)

        async def prepare(position: int) -> None:
            await self.ensure(stream)
            await self._jetstream.confirm(name, position)

        return NatsFollowing(self._jetstream.connection, name, self._names.records(stream), after, prepare)

    async def _publish_each(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        """Publish all records before waiting for the first acknowledgement. The server stores them in this order."""
        connection, subject, name = self._jetstream.connection, self._names.records(stream), self._names.stream(stream)
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
        """Return the result of a read, or `default` if the stream does not exist yet."""
        name = self._names.stream(stream)
        try:
            return await (self._jetstream.await_request(name, request) if self._jetstream.knows(name) else request)
        except NoStream:
            return default

    def _check(self, records: Sequence[bytes]) -> None:
        room = self._jetstream.connection.payload_max - HEADERS_MAX
        for record in records:
            if len(record) > room:
                raise StoreRefused(
                    f"A record of {len(record)} bytes is larger than the NATS server takes ({room}). Set max_payload "
                    "in its configuration."
                )


class NatsStore:
    """A store on NATS JetStream. Key-value, streams and replication share one connection.

    The store is its own `ports.Replication`: changes by other replicas, and records that only one replica may append.
    """

    def __init__(self, place: SharedPlace) -> None:
        self._connection = Connection(place.servers, "the NATS store")
        jetstream = JetStream(self._connection, place.replicas)
        names = StreamNames(place.node)
        self.kv = NatsKeyValue(jetstream, names)
        self.streams = NatsStreams(jetstream, names)
        self._watches = Watches(jetstream, names, self.kv)
        self._followings: list[NatsFollowing] = []
        self.replication: Replication = self

    @property
    def is_reachable(self) -> bool:
        return self._connection.is_reachable

    def watch(self, bucket: str) -> NatsWatch:
        return self._watches.watch(bucket)

    def follow(self, stream: str, after: int) -> NatsFollowing:
        following = self.streams.follow(stream, after)
        self._followings = [*(existing for existing in self._followings if not existing.is_closed), following]
        return following

    async def append_new(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        return await self.streams.append_new(stream, records)

    async def open(self) -> None:
        await self._connection.open()
        await self.kv.open()
        await self._watches.open()

    async def close(self) -> None:
        for following in self._followings:
            following.close()
        await self._watches.close()
        await self._connection.close()
