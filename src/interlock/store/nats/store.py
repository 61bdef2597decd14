"""The store that replicas of a node share: NATS JetStream, by the node's name.

A returned write is stored by the server (on how many servers: `replicas`). Whatever the server does not answer in time
is `Unavailable`, and so is everything, at once, while there is no connection.
"""

import secrets
from collections.abc import Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg

from interlock.store.nats.connection import Connection
from interlock.store.nats.jetstream import JetStream
from interlock.store.nats.key_value import NatsKeyValue
from interlock.store.nats.servers import SharedPlace
from interlock.store.nats.streams import NatsFollowing, NatsStreams
from interlock.store.nats.subjects import Names, token
from interlock.store.nats.watching import NatsWatch, Watching
from interlock.store.ports import Conflict
from interlock.store.pubsub import LocalPubSub, LocalSubscription

LEASES = "lease"  # the bucket that holds who has which lease
SENDER = "Interlock-Sender"


class NatsStore:
    def __init__(self, place: SharedPlace) -> None:
        self._connection = Connection(place.servers, "the NATS store")
        jetstream = JetStream(self._connection, place.replicas)
        names = Names(place.node)
        self.kv = NatsKeyValue(jetstream, names)
        self.streams = NatsStreams(jetstream, names)
        self.leases = NatsLeases(self.kv)
        self.pubsub = NatsPubSub(self._connection, names)
        self._watching = Watching(jetstream, names, self.kv)
        self.replication = NatsReplication(self._connection, self.streams, self._watching)

    async def open(self) -> None:
        await self._connection.open()
        await self.kv.open()
        await self._watching.open()

    async def close(self) -> None:
        self.pubsub.close()
        self.replication.close()
        await self._watching.close()
        await self._connection.close()


class NatsReplication:
    def __init__(self, connection: Connection, streams: NatsStreams, watching: Watching) -> None:
        self._connection = connection
        self._streams = streams
        self._watching = watching
        self._followings: list[NatsFollowing] = []

    @property
    def is_reachable(self) -> bool:
        return self._connection.is_reachable

    def watch(self, bucket: str) -> NatsWatch:
        return self._watching.watch(bucket)

    def follow(self, stream: str, after: int) -> NatsFollowing:
        following = self._streams.follow(stream, after)
        self._followings = [one for one in self._followings if not one.is_closed]
        self._followings.append(following)
        return following

    async def append_new(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        return await self._streams.append_new(stream, records)

    def close(self) -> None:
        for following in self._followings:
            following.close()
        self._followings.clear()


class NatsLeases:
    """A lease is an entry that holds its holder."""

    def __init__(self, kv: NatsKeyValue) -> None:
        self._kv = kv

    async def acquire(self, name: str, holder: str, ttl_s: float, now: float) -> bool:
        while True:
            held = await self._kv.get(LEASES, name, now)
            if held is not None and held.value != holder.encode():
                return False
            try:
                if held is None:
                    await self._kv.create(LEASES, name, holder.encode(), now, ttl_s=ttl_s)
                else:
                    await self._kv.update(LEASES, name, holder.encode(), held.revision, now, ttl_s=ttl_s)
            except Conflict:
                continue
            return True

    async def release(self, name: str, holder: str) -> None:
        await self._kv.delete_value(LEASES, name, holder.encode())


class NatsPubSub:
    """Inside the process at once; to the other replicas through the server, where it is reachable."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._prefix = names.pubsub
        self._local = LocalPubSub()
        self._own = secrets.token_hex(8)
        connection.on_connected(self._listen)

    async def publish(self, subject: str, data: bytes) -> None:
        await self._local.publish(token(subject), data)
        await self._connection.send(f"{self._prefix}.{token(subject)}", data, {SENDER: self._own})

    def subscribe(self, subject: str) -> LocalSubscription[bytes]:
        return self._local.subscribe(token(subject))

    def close(self) -> None:
        self._local.close()

    async def _listen(self, client: Client) -> None:
        await client.subscribe(f"{self._prefix}.*", cb=self._on_message)

    async def _on_message(self, message: Msg) -> None:
        if (message.headers or {}).get(SENDER) != self._own:
            await self._local.publish(message.subject.rpartition(".")[2], message.data)
