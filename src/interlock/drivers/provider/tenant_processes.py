"""The choice of the process that serves a tenant: one for all callers, or one per tenant or user, up to a limit.

A process (or a connection) is leased for each call and may have any number of leases at once. After the idle time
without a lease it ends: the shared process sleeps until the next call, a tenant's process is removed. A tenant never
gets the process of another tenant.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.tls import trusting_context
from interlock.drivers.protocol.model import Driver
from interlock.drivers.provider.contract_check import Verdict
from interlock.drivers.provider.keeper import DriverKeeper
from interlock.links.connected_link import ServerLink
from interlock.links.connector import SETTLED_S, ConnectorParts, Eras, LimitReached, ProcessLimit
from interlock.links.handshake import LEGACY_CAPABILITIES, Manner
from interlock.links.keeper import Keeper
from interlock.mcp.methods import LEGACY_VERSIONS, Era

# How a driver's server is greeted: capabilities, protocol versions, the era it spoke last, trusted authorities.

HOMES: Final = "homes"


def manner_of(driver: Driver) -> Manner:
    names = driver.interlock.client_capabilities
    return Manner(
        # AIP-proto-6: on a shared process a server's question cannot be tied to one caller.
        capabilities={name: LEGACY_CAPABILITIES[name] for name in names},
        versions=driver.interlock.protocol_versions,
        patience_s=driver.connection.timeout_ms / 1000,
        either_transport=driver.server.address is not None,
    )


class DeclaredEras:
    """The era one driver's server spoke last, else the one of the version it is declared for (AIP-proto-3)."""

    def __init__(self, eras: Eras, driver: Driver) -> None:
        self._eras = eras
        self._key = driver.key
        self._declared = Era.LEGACY if driver.protocol_version in LEGACY_VERSIONS else None

    def get(self, server: str) -> Era | None:
        return self._eras.get(self._key) or self._declared

    def put(self, server: str, era: Era) -> None:
        self._eras.put(self._key, era)


async def with_own_authority(connector_parts: ConnectorParts, driver: Driver, ca_file: Path | None) -> ConnectorParts:
    """Return the parts with drivers.ca_file as an authority for a remote server. Raises OSError."""
    if ca_file is None or driver.server.address is None:
        return connector_parts
    return msgspec.structs.replace(connector_parts, tls=await asyncio.to_thread(trusting_context, ca_file))


LOOK_LEAST_S: Final = 0.05
LOOK_AGAIN_S: Final = 1.0  # for room that processes of other servers leave: nothing tells of it


class Instance:
    def __init__(self, who: str | None, keeper: DriverKeeper, now: float) -> None:
        self.who = who
        self.keeper = keeper
        self.leases = 0
        self.used_at = now
        self.verdict: Verdict | None = None  # on what its server listed last
        self.watch: asyncio.TimerHandle | None = None
        self.done: asyncio.Event | None = None  # that is over
        self.leases_ended: asyncio.Event | None = (
            None  # it is about to be ended or restarted: set when no lease is left
        )

    @property
    def is_idle(self) -> bool:
        return not self.leases and not self.keeper.is_busy


class InstanceLease:
    """A lease of one process; implements interfaces.Lease."""

    __slots__ = ("_instances", "_released", "instance", "link")

    def __init__(self, instances: "Instances", instance: Instance) -> None:
        instance.leases += 1
        self._instances = instances
        self._released = False
        self.instance = instance
        self.link: ServerLink = instance.keeper.link

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._instances.end_lease(self.instance)


class Instances:
    def __init__(
        self,
        make: Callable[[str | None], DriverKeeper],
        keepers: dict[str, Keeper],
        clock: Clock,
        room: ProcessLimit | None,
        *,
        most: int,
        idle_s: float | None,
        one_by_one: bool = False,
    ) -> None:
        """Prepare to manage the processes of a driver.

        `make` returns a keeper that is not started. `keepers`: where the node looks them up. `room`: the node's limit
        for the processes of all drivers. `most`: how many tenants or users may have a process at one time. `idle_s`:
        after how long an idle process ends; None means never. `one_by_one`: a process serves one call at a time, so
        that a question of its server can only be for the client of that call (AIP-proto-6).
        """
        self._make_keeper = make
        self._keepers = keepers
        self._clock = clock
        self._room = room or ProcessLimit()
        self._most = most
        self._idle_s = idle_s
        self._one_by_one = one_by_one
        self._of: dict[str | None, Instance] = {}
        self._ending = BackgroundTasks()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._room.join(self)

    def __len__(self) -> int:
        """Return the number of tenants' processes."""
        return len(self._tenants())

    def _tenants(self) -> list[Instance]:
        return [instance for instance in self._of.values() if instance.who is not None]

    def make(self, who: str | None) -> Instance:
        keeper = self._make_keeper(who)
        self._keepers[keeper.link.segment] = keeper
        instance = self._of[who] = Instance(who, keeper, self._clock.now())
        return instance

    @property
    def all(self) -> tuple[Instance, ...]:
        return tuple(self._of.values())

    @contextlib.asynccontextmanager
    async def hold_unleased(self, instance: Instance, seconds: float) -> AsyncIterator[None]:
        """Hold the process without leases: entered when the last is released, or after `seconds`; new leases wait."""
        while instance.leases_ended is not None and (before := instance.done) is not None:
            await before.wait()
        instance.leases_ended, instance.done = asyncio.Event(), asyncio.Event()
        try:
            if instance.leases:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await instance.leases_ended.wait()
            yield
        finally:
            done, instance.leases_ended, instance.done = instance.done, None, None
            done.set()
            while self._waiting:
                self._free()

    def maybe(self, who: str | None) -> Instance | None:
        return self._of.get(who)

    def maybe_lend(self, instance: Instance) -> InstanceLease | None:
        if instance.leases_ended is not None or (instance.leases and self._one_by_one):
            return None
        instance.used_at = self._clock.now()
        return InstanceLease(self, instance)

    async def borrow(self, who: str | None, seconds: float) -> InstanceLease | None:
        """Lease the process, starting a new one where there is none. None: all stayed busy with others."""
        deadline = self._clock.now() + seconds
        while True:
            instance = self._of.get(who)
            lease = None if instance is None else self.maybe_lend(instance)
            if lease is not None:
                return lease
            if instance is not None:
                if not await self._wait_for_release(deadline - self._clock.now()):
                    return None
                continue
            left_s = deadline - self._clock.now()
            if len(self) + len(self._ending) >= self._most:
                self._end_idle(self._tenants())
            elif who is None or self._has_room():
                self.make(who).keeper.start()
                continue
            elif left_s > LOOK_AGAIN_S:
                await self._wait_for_release(LOOK_AGAIN_S)
                continue
            if not await self._wait_for_release(left_s):
                return None

    def _end_idle(self, among: Iterable[Instance]) -> None:
        """End the process that has been idle longest, if any is idle."""
        idle = [instance for instance in among if instance.is_idle]
        if idle:
            self._end(min(idle, key=lambda instance: instance.used_at))

    # The room that all servers share

    def _has_room(self) -> bool:
        try:
            self._room.free_one()
        except LimitReached:
            return False
        return True

    def find_idle_since(self) -> float | None:
        return min((instance.used_at for instance in self._settled() if instance.is_idle), default=None)

    def end_longest_idle(self) -> None:
        self._end_idle(self._settled())

    def _settled(self) -> list[Instance]:
        before = self._clock.now() - SETTLED_S
        return [instance for instance in self._tenants() if instance.used_at <= before]

    async def _wait_for_release(self, seconds: float) -> bool:
        """Wait until a lease or a place may be free. Returns False after `seconds`."""
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(freed)
        try:
            done, _ = await asyncio.wait((freed,), timeout=max(0.0, seconds))
            return bool(done)
        finally:
            if freed in self._waiting:
                self._waiting.remove(freed)

    def end_lease(self, instance: Instance) -> None:
        instance.leases -= 1
        instance.used_at = self._clock.now()
        if instance.leases_ended is not None and not instance.leases:
            instance.leases_ended.set()
        if not instance.leases:
            self._free()

    def _free(self) -> None:
        while self._waiting:
            freed = self._waiting.popleft()
            if not freed.done():
                freed.set_result(None)
                return

    # Idle

    def watch(self, instance: Instance) -> None:
        """Start the idle timer of a running process."""
        if self._idle_s is not None and instance.watch is None:
            instance.watch = asyncio.get_running_loop().call_later(self._idle_s, self._look, instance)

    def rest(self, instance: Instance) -> None:
        """End the process or let it sleep now, whatever the idle time."""
        if instance.watch is not None:
            instance.watch.cancel()
            instance.watch = None
        if instance.who is None:
            instance.keeper.sleep()
        else:
            self._end(instance)

    def _look(self, instance: Instance) -> None:
        instance.watch = None
        if self._idle_s is None or self._of.get(instance.who) is not instance or not instance.keeper.is_usable:
            return
        left_s = self._idle_s - (self._clock.now() - instance.used_at)
        if instance.is_idle and left_s <= 0:
            self.rest(instance)
            return
        wait_s = left_s if left_s > 0 else self._idle_s
        loop = asyncio.get_running_loop()
        instance.watch = loop.call_later(max(LOOK_LEAST_S, wait_s), self._look, instance)

    def _end(self, instance: Instance) -> None:
        del self._of[instance.who]
        self._ending.begin(self._stop(instance)).add_done_callback(lambda _: self._free())

    async def wait_until_free(self, seconds: float) -> None:
        """Wait until no process is leased, at most `seconds`."""
        deadline = self._clock.now() + seconds
        while any(instance.leases for instance in self._of.values()):
            if not await self._wait_for_release(deadline - self._clock.now()):
                return

    async def stop(self) -> None:
        self._room.leave(self)
        instances, self._of = list(self._of.values()), {}
        await asyncio.gather(*(self._stop(instance) for instance in instances), self._ending.finish())

    async def _stop(self, instance: Instance) -> None:
        if instance.watch is not None:
            instance.watch.cancel()
            instance.watch = None
        keeper = instance.keeper
        await keeper.stop()
        if self._keepers.get(keeper.link.segment) is keeper:
            del self._keepers[keeper.link.segment]
