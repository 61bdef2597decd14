"""The store that replicas of a node share: NATS JetStream, by the node's name.

A returned write is stored by the server (on how many servers: `replicas`). Whatever the server does not answer in time
is `Unavailable`, and so is everything, at once, while there is no connection.
"""

from collections.abc import Sequence

from interlock.store.nats.connection import Connection
from interlock.store.nats.jetstream import JetStream, Names
from interlock.store.nats.key_value import NatsKeyValue, NatsWatch, Watches
from interlock.store.nats.servers import SharedPlace
from interlock.store.nats.streams import NatsFollowing, NatsStreams


class NatsStore:
    def __init__(self, place: SharedPlace) -> None:
        self._connection = Connection(place.servers, "the NATS store")
        jetstream = JetStream(self._connection, place.replicas)
        names = Names(place.node)
        self.kv = NatsKeyValue(jetstream, names)
        self.streams = NatsStreams(jetstream, names)
        self._watches = Watches(jetstream, names, self.kv)
        self.replication = NatsReplication(self._connection, self.streams, self._watches)

    async def open(self) -> None:
        await self._connection.open()
        await self.kv.open()
        await self._watches.open()

    async def close(self) -> None:
        self.replication.close()
        await self._watches.close()
        await self._connection.close()


class NatsReplication:
    def __init__(self, connection: Connection, streams: NatsStreams, watches: Watches) -> None:
        self._connection = connection
        self._streams = streams
        self._watches = watches
        self._followings: list[NatsFollowing] = []

    @property
    def is_reachable(self) -> bool:
        return self._connection.is_reachable

    def watch(self, bucket: str) -> NatsWatch:
        return self._watches.watch(bucket)

    def follow(self, stream: str, after: int) -> NatsFollowing:
        following = self._streams.follow(stream, after)
        self._followings = [existing for existing in self._followings if not existing.is_closed]
        self._followings.append(following)
        return following

    async def append_new(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        return await self._streams.append_new(stream, records)

    def close(self) -> None:
        for following in self._followings:
            following.close()
        self._followings.clear()
