"""The processes of a driver's server, and the choice of the one that serves a call.

All callers share one process, or each tenant or user has a separate one, up to a limit. A process (or connection) is
leased for each call, and may have many leases at once. A process without leases ends after the idle time: the shared
process sleeps until the next call, and the process of a tenant is removed. A tenant never gets the process of another.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from interlock.core.background import BackgroundTasks
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.model import Driver
from interlock.drivers.provider.contract_check import ContractVerdict
from interlock.drivers.provider.keeper import DriverEnvironment, DriverKeeper
from interlock.links.connected_link import ServerLink
from interlock.links.connector import SETTLED_S, LimitReached, ProcessLimit

LOOK_LEAST_S: Final = 0.05
LOOK_AGAIN_S: Final = 1.0  # for a place that processes of other servers leave: no event reports it


class Instance:
    """A process of a driver's server, or a connection to it. `who` is its tenant or user, or None if all callers share
    it.
    """

    def __init__(self, who: str | None, keeper: DriverKeeper, now: float) -> None:
        self.who = who
        self.keeper = keeper
        self.leases = 0
        self.used_at = now
        self.verdict: ContractVerdict | None = None  # on what its server listed last
        self.watch: asyncio.TimerHandle | None = None
        # While the process is about to be ended or restarted, there are two events: no lease is left, and it is over.
        self.leases_ended: asyncio.Event | None = None
        self.done: asyncio.Event | None = None

    @property
    def is_idle(self) -> bool:
        return not self.leases and not self.keeper.is_busy

    @property
    def is_fit(self) -> bool:
        """Return whether the tools that the process last listed fit at least one contract."""
        return self.verdict is not None and self.verdict.state in (DriverState.READY, DriverState.PARTIAL)


class InstanceLease:
    """A lease of one process for one call. While the lease is held, the process does not end or sleep for being idle.

    A restart, or a stop that is not immediate, waits for the lease, but only for a limited time.
    """

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
    """The processes of one driver: at most one that all callers share, and at most one for each tenant or user."""

    def __init__(
        self, driver: Driver, environment: DriverEnvironment, make: Callable[[str | None], DriverKeeper]
    ) -> None:
        """Prepare to manage the processes of a driver. `make` returns a keeper that is not started.

        The node's limit for the processes of all drivers does not count connections. If the server may ask the client
        of a call, a process serves one call at a time, so that a question can only belong to that client (AIP-proto-6).
        """
        interlock, parts = driver.interlock, environment.connector_parts
        is_remote = driver.server.address is not None
        idle_ms = interlock.idle_timeout_ms
        idle_s = environment.plan.idle_timeout_s if idle_ms is None else idle_ms / 1000
        self._make_keeper = make
        self._keepers = environment.keepers
        self._clock = parts.clock
        self._process_limit = ProcessLimit() if is_remote else parts.process_limit or ProcessLimit()
        self._most = interlock.max_processes  # how many tenants or users may have a process at the same time
        # AIP-transport-3: after this time an idle process ends; None: never
        self._idle_s = None if driver.connection.keepalive or is_remote else idle_s
        self._one_by_one = bool(interlock.client_capabilities)
        self._of: dict[str | None, Instance] = {}
        self._ending = BackgroundTasks()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._process_limit.join(self)

    def __len__(self) -> int:
        """Return the number of processes that belong to a tenant or user."""
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
        """Grant no new lease of a process until the context exits.

        The context is entered when the last lease is released, or after `seconds`, even if leases are left then.
        """
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

    def find(self, who: str | None) -> Instance | None:
        return self._of.get(who)

    def lend(self, instance: Instance) -> InstanceLease | None:
        """Lease the process. Return None if it is about to stop, or serves another call and may serve only one."""
        if instance.leases_ended is not None or (instance.leases and self._one_by_one):
            return None
        instance.used_at = self._clock.now()
        return InstanceLease(self, instance)

    async def borrow(self, who: str | None, seconds: float) -> InstanceLease | None:
        """Lease the process of a tenant or user, and start one if there is none. Return None if all stay busy for
        `seconds`.
        """
        deadline = self._clock.now() + seconds
        while True:
            instance = self._of.get(who)
            lease = None if instance is None else self.lend(instance)
            if lease is not None:
                return lease
            if instance is not None:
                if not await self._wait_for_release(deadline - self._clock.now()):
                    return None
                continue
            left_s = deadline - self._clock.now()
            if len(self) + len(self._ending) >= self._most:
                self._end_idle(self._tenants())
            elif who is None or self._can_start():
                self.make(who).keeper.start()
                continue
            elif left_s > LOOK_AGAIN_S:
                await self._wait_for_release(LOOK_AGAIN_S)
                continue
            if not await self._wait_for_release(left_s):
                return None

    def _end_idle(self, among: Iterable[Instance]) -> None:
        """End the process that has been idle the longest. Do nothing if none is idle."""
        idle = [instance for instance in among if instance.is_idle]
        if idle:
            self._end(min(idle, key=lambda instance: instance.used_at))

    # The limit that all servers share

    def _can_start(self) -> bool:
        try:
            self._process_limit.free_one()
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
        """Wait until a lease or a place for a process may have become free. Return False after `seconds`."""
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
        """Put the process to sleep or end it now, without waiting for the idle time."""
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
        """Wait until no process is leased, for at most `seconds`."""
        deadline = self._clock.now() + seconds
        while any(instance.leases for instance in self._of.values()):
            if not await self._wait_for_release(deadline - self._clock.now()):
                return

    async def stop(self) -> None:
        self._process_limit.leave(self)
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
