"""The processes of a driver's server: their keepers, and the choice of the process that serves a call.

`DriverKeeper` keeps one process or connection: it retries starts, reads the lists, and lets the process sleep.

It differs from the keeper of a configured server as AIP-transport-12 requires. Starts are attempted in series of 1 +
max_retries. After a failed series the keeper waits a minute, unless a call needs the server sooner. A program that ends
five times within a minute is not restarted for a minute. A server whose tools cannot be listed counts as down, because
its contracts cannot be checked.

Each server has a link that redacts secrets in the server's output before any other part reads it. The keeper and the
link report events to the driver's provider: `on_listing`, `on_up`, `on_fallen`, `on_restarted`, `on_expired`.

`Instances` are all processes of one server. All callers share one process, or each tenant or user has a separate one,
up to a limit. A process (or connection) is leased for each call, and may have many leases at once. A process without
leases ends after the idle time: the shared process sleeps until the next call, and the process of a tenant is removed.
A tenant never gets the process of another.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, DriversPlan, ServerPlan
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Pending
from interlock.core.calls.caller import QuestionOrigin
from interlock.core.link_state import LinkState
from interlock.credentials.secret_references import SecretResolver
from interlock.credentials.token import TokenHolder
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed, InstallFailed
from interlock.drivers.protocol.files.inventory import Detected, find_detector
from interlock.drivers.protocol.model import Driver
from interlock.drivers.provider.vault import DriverRevealer, Vault
from interlock.drivers.workspace.folder import BROKEN, WORDS
from interlock.links.connected_link import ConnectedLink, ServerLink
from interlock.links.connector import SETTLED_S, UNSUPPORTED, ConnectFailed, ConnectorParts, LimitReached, ProcessLimit
from interlock.links.keeper import LISTS_OF, Keeper, ServerKeeper, backoff_s
from interlock.links.link import LinkEvents
from interlock.links.listing import FIELD, Items, Listing
from interlock.links.pipes import StdioPipe, Trouble, Undelivered
from interlock.mcp.methods import PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST, TOOLS_LIST
from interlock.process.stderr import StderrRing
from interlock.store.ports import KeyValue
from interlock.wire.jsonrpc.codec import CodecError, Notification, Request, Response, decode_untrusted
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

if TYPE_CHECKING:
    from interlock.drivers.provider.checks import ContractVerdict
    from interlock.drivers.provider.provider import DriverProvider


Installer = Callable[[Driver, Path, Callable[[str], None]], Awaitable[Installed | InstallFailed]]


class DriverEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the node that every driver's provider uses."""

    plan: DriversPlan
    data: Path
    connector_parts: ConnectorParts
    link_events: LinkEvents
    keepers: dict[str, Keeper]
    kv: KeyValue
    install: Installer
    holder_for: Callable[[str, Dial, SecretResolver], TokenHolder | None]
    vault: Vault
    vendor_meta: bool = True


# What `expiry.detect: exception:NAME` calls the ways in which a request can fail; the others are upstream errors.
_EXCEPTION_NAMES = {
    Trouble.UNREACHABLE: "tool_unavailable",
    Trouble.BUSY: "rate_limited",
    Trouble.UNAUTHORISED: "auth_failed",
}


class DriverLink(ServerLink):
    """Connection to a driver's server. It replaces secrets in messages, and notices when the login has expired."""

    def __init__(
        self, plan: ServerPlan, events: LinkEvents, provider: "DriverProvider", revealer: DriverRevealer
    ) -> None:
        environment, interlock = provider.environment, provider.driver.interlock
        owner = revealer.who if "roots" in interlock.client_capabilities else None
        clock, vendor_meta = environment.connector_parts.clock, environment.vendor_meta
        super().__init__(plan, events, clock, vendor_meta=vendor_meta, owner=owner)
        self._provider = provider
        self._revealer = revealer
        self._redacts_results = interlock.redact_results
        self._detector = find_detector(provider.driver)

    def on_message(self, data: bytes, origin: Pending | None) -> bool:
        redactor = self._revealer.redactor
        if redactor and redactor.is_in(data) and (self._redacts_results or not _is_result(data)):
            data = redactor.redacted(data)
        return super().on_message(data, origin)

    def on_undelivered(self, origin: Pending | None, what: Undelivered) -> None:
        # An OAuth login may get another token: it has expired only when its holder says so.
        if not (self.failed.can_renew_credential and what.trouble is Trouble.UNAUTHORISED):
            headers = (*what.headers, *((b"www-authenticate", challenge) for challenge in what.challenges))
            exception = _EXCEPTION_NAMES.get(what.trouble, "upstream_error")
            self._detect(Detected(status=what.status, headers=headers, exception=exception))
        super().on_undelivered(origin, what)

    def on_pipe_lost(self, reason: str) -> None:
        child = self.pipe.child if isinstance(self.pipe, StdioPipe) else None
        exit_code = child.returncode if child is not None else None
        self._detect(Detected(exit_code=exit_code, exception="upstream_error"))
        super().on_pipe_lost(reason)

    def _detect(self, event: Detected) -> None:
        if self._detector is not None and self._detector.is_expired(event):
            self._provider.on_expired(self._revealer.who, f"its login has expired ({self._detector.written})")


def _is_result(data: bytes) -> bool:
    try:
        message = decode_untrusted(data)
    except CodecError:
        return False
    return isinstance(message, Response) and not message.error


FIRST_S: Final = 0.25  # AIP-transport-12
EXITS_MAX: Final = 5
EXITS_WITHIN_S: Final = 60.0
BARRED_S: Final = 60.0
AGAIN_S: Final = 60.0  # after a series of attempts in vain, unless a call needs the server sooner
LEAST_TTL_S: Final = 1.0  # a list that is stale at once is not read more often than this
_MAY_NOT_ASK: Final = Refusal(METHOD_NOT_FOUND, "the client offers no such thing")


class DriverKeeper(ServerKeeper):
    """Keeper of one process of a driver's server, or of one connection to it: starts it, reads its lists, and starts it
    again after a failure.
    """

    link: ServerLink
    is_offered = False
    wakes_after_s = 0.0, 0.0  # its attempts are bounded by their series

    def __init__(
        self, provider: "DriverProvider", plan: ServerPlan, revealer: DriverRevealer, holder: TokenHolder | None
    ) -> None:
        driver, connector_parts = provider.driver, provider.connector_parts
        super().__init__(
            lambda link_events: DriverLink(plan, link_events, provider, revealer),
            msgspec.structs.replace(connector_parts, revealer=revealer),
            lambda link, listing: provider.on_listing(link, revealer.who, listing),
            provider.environment.link_events,
            holder,
            StderrRing(
                now=connector_parts.clock.wall,
                redact=lambda line, cut: (revealer.redactor.cut if cut else revealer.redactor.redacted)(line),
            ),
        )
        self._provider = provider
        self._who = revealer.who
        self._may_ask = bool(driver.interlock.client_capabilities)  # the server was offered to ask the client of a call
        # AIP-proto-4: what is not declared is not asked for.
        prompts = (PROMPTS_LIST,) if driver.prompts else ()
        self.reads = (TOOLS_LIST, *prompts, *((RESOURCES_LIST, TEMPLATES_LIST) if driver.resources else ()))
        self.fell = asyncio.Event()  # a series of attempts failed, or the keeper was stopped
        self._sealed: bytes | None = None  # the marks of the folder when the server was started
        self._retries_max = driver.connection.max_retries
        self._failed = 0  # attempts of this series
        self._gives_up = False
        self._exits: deque[float] = deque(maxlen=EXITS_MAX)
        self._barred_until = -inf
        self.ended: str | None = None  # how its process last ended unasked

    @property
    def contracts(self) -> int:
        return len(self._provider.contract_ids)

    @property
    def unlisted(self) -> str | None:
        return self._provider.unlisted

    @property
    def is_usable(self) -> bool:
        return self._usable.is_set()

    @property
    def is_current(self) -> bool:
        """Return whether the server's list of tools has been read completely and is still valid (AIP-tools-10)."""
        reading = self._relists.get("tools")
        if self.listing is None or (reading is not None and not reading.done()):
            return False
        ttl_s = self.listing.tools.ttl_s
        return ttl_s is None or self._connector_parts.clock.now() - self.listed_at["tools"] < max(LEAST_TTL_S, ttl_s)

    async def come_up(self) -> bool:
        """Wait until the server can be used or starting it has failed. Return whether it can be used.

        Return False at once while the server is barred because it ended too often.
        """
        if self.is_usable:
            return True
        if self._connector_parts.clock.now() < self._barred_until:
            return False
        if self.fell.is_set() or self.link.standing.state is LinkState.ASLEEP or self._falls_asleep:
            self.fell.clear()
            self._failed = 0
            self.wake()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._usable, self.fell)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.is_usable

    async def stop(self) -> None:
        await super().stop()
        self.fell.set()  # a waiting caller learns that the server will not come up

    async def restart(self) -> None:
        self._provider.on_restarted(self._who)
        self._exits.clear()
        self._barred_until = -inf
        self._failed = 0
        self.fell.clear()
        await super().restart()

    # What the link reports (LinkEvents). A server behind contracts is shared, and knows no client: AIP-proto-6

    def on_question(self, link: ConnectedLink, asking: QuestionOrigin) -> Refusal | None:
        return super().on_question(link, asking) if self._may_ask else _MAY_NOT_ASK  # AIP-proto-6

    def on_orphan_request(self, link: ConnectedLink, request: Request) -> bool:
        return self._may_ask and super().on_orphan_request(link, request)

    def on_elicitation_complete(self, link: ConnectedLink, params: Raw) -> None:
        if self._may_ask:
            super().on_elicitation_complete(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        """Ignore a notification that only this server defines, because clients see contracts and not this server."""

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        self.refused(what)

    # Attempts

    async def _connect(self) -> None:
        if (seal := self._provider.seal) is not None:
            self._sealed = await seal.mark()
            if self._sealed is None:
                raise ConnectFailed(WORDS, code=BROKEN)
        await super()._connect()
        self.fell.clear()
        self._failed = 0
        self._provider.settled.set()

    async def _stock(self) -> None:
        """Read the server's lists of tools, prompts and resources. Raise ConnectFailed if they cannot be read or the
        connection is lost.
        """
        reading, lost = asyncio.ensure_future(self._read_lists()), asyncio.ensure_future(self._loss.wait())
        try:
            await asyncio.wait((reading, lost), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise ConnectFailed(self._loss.reason)
            reading.result()
        finally:
            reading.cancel()
            lost.cancel()
            await asyncio.gather(reading, lost, return_exceptions=True)

    async def _read_lists(self) -> None:
        """Read the server's lists of tools, prompts and resources one after the other (AIP-proto-4). Raise
        ConnectFailed if one cannot be read.
        """
        seal = self._provider.seal
        # AIP-security-13
        if seal is not None and self._sealed is not None and not await seal.is_same(self._sealed):
            raise ConnectFailed(WORDS, code=BROKEN)
        lists: dict[str, Items] = {}
        for method in self.reads:
            items, failed = await self._read(method)
            if items is None:
                refusal = failed.what if failed is not None and failed.unauthorised else None
                raise ConnectFailed(str(failed), refusal)
            lists[FIELD[method]] = items
        await self._publish(Listing(**lists), LISTS_OF)
        self._set_listed_state()

    async def _hang_up(self, reason: str) -> None:
        if self.link.pid is not None and not (self._falls_asleep or self._stopping):
            self._exits.append(self._connector_parts.clock.now())
            self.ended = reason  # AIP-transport-13
        await super()._hang_up(reason)

    def _backoff_s(self) -> float:
        now = self._connector_parts.clock.now()
        self._gives_up = True
        if len(self._exits) == EXITS_MAX and now - self._exits[0] <= EXITS_WITHIN_S:  # AIP-transport-12: unavailable
            self._barred_until = now + BARRED_S  # as long as the exits count, so that none of them does afterwards
            return BARRED_S
        if self.failure is None:  # the server was up, and went
            self._gives_up = False
            return backoff_s(1, FIRST_S)
        if self.failure.code == UNSUPPORTED:
            return inf
        self._failed += 1
        self._gives_up = self._failed > self._retries_max  # AIP-transport-12
        return AGAIN_S if self._gives_up else backoff_s(self._failed, FIRST_S)

    def _set_lost_state(self, reason: str, wait_s: float, *, unauthorised: bool) -> None:
        super()._set_lost_state(reason, wait_s, unauthorised=unauthorised)
        if unauthorised or self._gives_up:
            self._gives_up = False
            self.fell.set()
            self._provider.on_fallen(self._who)


LOOK_LEAST_S: Final = 0.05
LOOK_AGAIN_S: Final = 1.0  # for a place that processes of other servers leave: no event reports it


class Instance:
    """A process of a driver's server, or a connection to the server. `who` is the tenant or user for which it is
    reserved, or None if all callers share it.
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
        """Return whether the tools that the process last listed satisfy at least some of the driver's contracts."""
        return self.verdict is not None and self.verdict.state in (DriverState.READY, DriverState.PARTIAL)


class InstanceLease:
    """Reservation of a process for one call. While it lasts, the process is not ended for being idle.

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
    """The processes of one driver's server: at most one that all callers share, and at most one for each tenant or
    user.
    """

    def __init__(
        self, driver: Driver, environment: DriverEnvironment, make: Callable[[str | None], DriverKeeper]
    ) -> None:
        """Prepare to manage the processes of a driver. `make` creates the keeper of a new process, for a tenant or
        user.

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
        self._process_limit.pools.add(self)

    def __len__(self) -> int:
        """Return the number of processes that belong to single tenants or users."""
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
        """Wait until the calls of a process have ended, and give it no new call until the context exits.

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
        """Reserve a process for a call. Return None if the process is about to stop, or may serve only one call at a
        time and is busy.
        """
        if instance.leases_ended is not None or (instance.leases and self._one_by_one):
            return None
        instance.used_at = self._clock.now()
        return InstanceLease(self, instance)

    async def borrow(self, who: str | None, seconds: float) -> InstanceLease | None:
        """Reserve the process of a tenant or user for a call, and start one if there is none. Return None if no process
        becomes free within `seconds`.
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
        """End the process that has been idle longest, if any is idle."""
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
        """Wait until a process may have become free. Return False if that takes longer than `seconds`."""
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
        """Begin to measure how long a process is idle."""
        if self._idle_s is not None and instance.watch is None:
            instance.watch = asyncio.get_running_loop().call_later(self._idle_s, self._look, instance)

    def rest(self, instance: Instance) -> None:
        """End a process now, before its idle time is over. If all callers share the process, the next call starts it
        again.
        """
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
        """Wait until no process serves a call, but at most `seconds`."""
        deadline = self._clock.now() + seconds
        while any(instance.leases for instance in self._of.values()):
            if not await self._wait_for_release(deadline - self._clock.now()):
                return

    async def stop(self) -> None:
        self._process_limit.pools.discard(self)
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
