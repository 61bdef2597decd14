"""The replicas of a node that share one store: which of them live, and what they write.

Theory of operation. A part keeps in memory what it has read from the store. Where other replicas write there too, the
part names its bucket here, and is told of each change of theirs. `Replicas` is opened before the parts that read, and
`Changes` after them: what was heard meanwhile is told then, so that nothing falls between. A replica is alive while it
is heard to renew its lease, by the clock of the one that listens: clocks of machines differ, and while the store is
away none of them is heard. Where no other node uses the store there is one replica, and nothing is heard or renewed.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.feed import Feed
from interlock.store.ports import Change, Conflict, Following, Store, StoreError

log = logging.getLogger("interlock.store")

BUCKET: Final = "replicas"  # id -> nothing, with a time to live
CLAIMS: Final = "replica-claims"  # what one of them does -> which
CLAIM_S: Final = 86_400.0
LEASE_S: Final = 15.0  # how long a replica that died counts as alive
RENEW_S: Final = 5.0  # three in a lease: one lost message ends nothing

Take = Callable[[Change], Awaitable[None] | None]


class Replicas:
    """The record of which replicas of a node, all sharing one store, are alive. It also decides which of them does a
    piece of work.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.own_id = str(uuid.uuid4())  # of this process: one that is started again is another
        self.replication = store.replication
        self._kv = store.kv
        self._clock = clock
        self._takes: dict[str, list[Take]] = {}
        self._alive: dict[str, float] = {}  # until when, by the own monotonic clock
        self.gone = Feed[str]()  # whose lease was given back or is over
        self._watches: dict[str, Following[Change]] = {}
        self._work = BackgroundTasks()

    @property
    def is_alone(self) -> bool:
        return self.replication is None

    def on_change(self, bucket: str, take: Take) -> None:
        """Call `take` with every change in this bucket that another replica makes. Subscribe before
        `open` is called.
        """
        self._takes.setdefault(bucket, []).append(take)

    @property
    def count(self) -> int:
        """Return the number of live replicas, including this one."""
        return 1 + sum(self.is_alive(replica) for replica in self._alive if replica != self.own_id)

    def is_alive(self, replica: str) -> bool:
        return replica == self.own_id or self._alive.get(replica, 0.0) > self._clock.now()

    async def open(self) -> None:
        """Read the leases of the other replicas and start to renew the lease of this one.

        Raise StoreError if the store cannot be used.
        """
        if self.replication is None:
            return
        self._watches = {bucket: self.replication.watch(bucket) for bucket in self._takes}
        leases = self.replication.watch(BUCKET)
        await self._renew()
        for entry in await self._kv.entries(BUCKET, 0.0):  # also what is over by this clock, and may not be by theirs
            self._take_lease(Change(entry.key, entry))
        self._work.begin(deliver_changes(leases, [self._take_lease]), "replicas: leases of others")
        self._work.begin(self._renew_forever(), "replicas: lease")

    async def close(self) -> None:
        await self._work.close()
        if self.replication is not None:
            try:
                await self._kv.delete(BUCKET, self.own_id)
            except StoreError as away:
                log.warning("the lease of this replica could not be given back: %s", away)

    def followings(self) -> list[tuple[Following[Change], list[Take]]]:
        return [(watch, self._takes[bucket]) for bucket, watch in self._watches.items()]

    def _take_lease(self, change: Change) -> None:
        if change.entry is not None:
            self._alive[change.key] = self._clock.now() + LEASE_S
        elif self._alive.pop(change.key, None) is not None:
            self.gone.publish(change.key)

    async def claim(self, name: str) -> bool:
        """Claim a piece of work that only one live replica may do. Return True if this replica has the claim, and False
        if another one has it.

        The claim of a replica that is no longer alive can be taken over. Raise StoreError if the store cannot be used.
        """
        if self.replication is None:
            return True
        own, now = self.own_id.encode(), self._clock.wall()
        try:
            await self._kv.create(CLAIMS, name, own, now, ttl_s=CLAIM_S)
        except Conflict:
            claimed = await self._kv.get(CLAIMS, name, now)
            if claimed is None or claimed.value == own:
                return claimed is not None
            if self.is_alive(claimed.value.decode()):
                return False
            try:
                await self._kv.update(CLAIMS, name, own, claimed.revision, now, ttl_s=CLAIM_S)
            except Conflict:
                return False
        return True

    async def _renew(self) -> None:
        await self._kv.put(BUCKET, self.own_id, b"", self._clock.wall(), ttl_s=LEASE_S)

    async def _renew_forever(self) -> None:
        looked_at = self._clock.now()
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._renew()
                is_heard = self._clock.now() - looked_at <= 2 * RENEW_S  # otherwise this process stood still
            except StoreError as away:
                log.warning("the lease of this replica could not be renewed: %s", away)
                is_heard = False
            looked_at = self._clock.now()
            if not is_heard:  # what others renewed meanwhile is yet to be heard, or could not be renewed
                self._alive = dict.fromkeys(self._alive, looked_at + LEASE_S)
            for replica in [other for other in self._alive if not self.is_alive(other)]:
                self._take_lease(Change(replica, None))


class Changes:
    """The task that passes changes by other replicas to the parts of the node. It begins when all parts have read their
    values from the store.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._work = BackgroundTasks()

    async def open(self) -> None:
        for watch, takes in self._replicas.followings():
            self._work.begin(deliver_changes(watch, takes), "changes of other replicas")

    async def close(self) -> None:
        for watch, _ in self._replicas.followings():
            watch.close()
        await self._work.close()


async def deliver_changes(watch: Following[Change], takes: list[Take]) -> None:
    """Call every function in `takes` with each change in the store, until the watch ends."""
    try:
        async for change in watch:
            for take in takes:
                try:
                    done = take(change)
                    if done is not None:
                        await done
                except Exception:  # one that cannot be taken must not keep back those that follow
                    log.exception("what another replica wrote cannot be taken: %s", change.key)
    except StoreError as lost:  # from now on the store refuses everything
        log.error("changes of other replicas no longer arrive: %s", lost)
