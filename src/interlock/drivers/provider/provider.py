"""The provider of one driver: installs its server, starts it, compares it with its contracts, leases its link.

In: a trusted driver with the contracts it binds, and what the node gives every driver (`DriverEnvironment`). Out: its
state with the reason, and leases of its server's link. Whether it is the one to serve a call is decided elsewhere.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Final

import msgspec

from interlock.core.background import BackgroundTasks
from interlock.core.calls.caller import Caller
from interlock.core.link_state import LinkState
from interlock.drivers.api import RunningServer
from interlock.drivers.install.installation import Installed
from interlock.drivers.interfaces import UNHEALTHY, DriverState, Hooks, Provider
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.binding.match import Bound
from interlock.drivers.protocol.files.driver import ENTRY
from interlock.drivers.protocol.model import Contract, Driver, SecretEntry, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.drivers.provider.contract_check import Snapshot, Snapshots, Verdict, about, check, greeting_warnings
from interlock.drivers.provider.health import HealthSchedule
from interlock.drivers.provider.hooks import DriverHooks, HookLoader
from interlock.drivers.provider.keeper import DriverEnvironment, DriverKeeper, KeeperFactory
from interlock.drivers.provider.tenant_processes import (
    DeclaredEras,
    Instance,
    InstanceLease,
    Instances,
    manner_of,
    with_own_authority,
)
from interlock.drivers.secrets.logins import LoginRefresh, Logins, maybe_refreshing
from interlock.drivers.secrets.vault import code_of, login_text, missing_secrets
from interlock.drivers.workspace.folder import TamperCheck
from interlock.links.handshake import UNSUPPORTED
from interlock.links.link import Link
from interlock.links.listing import Listing
from interlock.store.ports import StoreError

log = logging.getLogger("interlock.drivers")

INSTALL_AGAIN_S: Final = 60.0
INSTALL_AGAIN_MAX_S: Final = 3600.0
ACQUIRE_S: Final = 30.0
LAST_WORDS: Final = 5  # lines of stderr that are shown with the driver

OnChanged = Callable[["DriverProvider"], None]
OnStep = Callable[[DriverState, str | None], None]

_SERVES: Final = frozenset((DriverState.READY, DriverState.PARTIAL))


class DriverProvider:
    def __init__(
        self,
        driver: Driver,
        contracts: Mapping[int, Contract],
        environment: DriverEnvironment,
        *,
        digest: str,
        folder: Path,
        inventory: Mapping[str, SecretEntry],
        own_secrets: Collection[str],
        files: Mapping[str, str] | None = None,
        seal: TamperCheck | None = None,
        real_paths: Mapping[Path, Path] | None = None,
        on_changed: "OnChanged | None" = None,
        on_step: OnStep | None = None,
    ) -> None:
        """Prepare to run the server of a trusted driver.

        `contracts`: the contract of each binding, by its index in implements[]. `digest`: of the folder as it is
        trusted. `files`: the digest of each file in it. `inventory`: the driver's secrets by the NAME it uses.
        `own_secrets`: slugs that its own SECRETS.md grants. `seal`: checks whether the folder is still the trusted one.
        `real_paths`: what the paths that it opens led to when it was trusted. `on_changed`: called when what it offers
        changes, but not for its state. `on_step`: called with each state and its reason.
        """
        self.driver = driver
        self.state = DriverState.INSTALLING
        self.code: str | None = None
        self.reason: str | None = None
        self.bound: Mapping[str, Bound] = {}
        self.bindings: Mapping[str, ToolBinding] = {contracts[each.index].id: each for each in driver.implements}
        self.contract_ids: frozenset[str] = frozenset()  # what it serves now; `bound` may still have to be made
        self.problems: tuple[FileProblem, ...] = ()  # of the last check, errors first
        self.login: str | None = None
        self.hooks: Hooks | None = None
        self.listing: Listing | None = None
        self.installed: Installed | None = None
        self.settled = asyncio.Event()  # the first verdict is there
        self._contracts = contracts
        self._environment = environment
        self._digest = digest
        self._folder = folder
        self._loaded: DriverHooks | None = None  # of its driver.py
        has_hooks = files is not None and ENTRY in files
        self._hook_loader = HookLoader(driver, self.bindings, environment, folder, files or {}) if has_hooks else None
        self._inventory = inventory
        self._keepers = KeeperFactory(
            driver,
            environment,
            self,
            folder=folder,
            inventory=inventory,
            own_secrets=own_secrets,
            contracts=tuple(self.bindings),
            seal=seal,
            real_paths=real_paths or {},
        )
        slugs = [inventory[name].slug for name in driver.secret_names if name in inventory]
        self._logins = Logins(environment.kv, environment.vault, driver, slugs)
        self._login_tasks = BackgroundTasks()
        self._on_changed = on_changed
        self._on_step = on_step
        self._snapshots = Snapshots(environment.kv, environment.connector_parts.clock, driver.key)
        self._checked: tuple[bytes, Verdict] | None = None  # the digest of a list, and what was found
        self._judged: tuple[DriverState, str | None, str | None] = (DriverState.READY, None, None)
        self._task: asyncio.Task[None] | None = None
        self._instances: Instances | None = None  # once it is installed
        self._health_schedule: HealthSchedule | None = None
        self._login_refresh: LoginRefresh | None = None
        self._health_failure: str | None = None  # what its last health check found
        # Nothing in it is the caller's: the server does not learn who called first (AIP-security-8).
        self._connector_parts = msgspec.structs.replace(
            environment.connector_parts,
            manner=manner_of(driver),
            eras=DeclaredEras(environment.connector_parts.eras, driver),
        )

    # Life

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._begin(), name=f"driver {self.driver.key}")

    def succeed(self, other: Provider) -> None:
        self.contract_ids = other.contract_ids

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop when the calls that hold a lease have ended, which their time bounds, unless `at_once`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._health_schedule is not None:
            await self._health_schedule.stop()
        if self._hook_loader is not None and at_once:
            await self._hook_loader.stop()
        await self._login_tasks.close()
        if self._instances is not None:
            if not at_once:
                await self._instances.wait_until_free(self._longest_s)
            instances, self._instances = self._instances, None  # who comes now is refused, and starts nothing
            await instances.stop()
        if self._hook_loader is not None:
            await self._hook_loader.stop()
        if self.installed is not None:
            reaper = self._environment.connector_parts.reaper
            await kind_of(self.driver.server).clean_up(self.driver, self.installed, reaper)

    async def _begin(self) -> None:
        try:
            if self._hook_loader is not None and not await self._load(self._hook_loader):
                return
            self.installed = await self._install()
            self._connector_parts = await with_own_authority(
                self._connector_parts, self.driver, self._environment.plan.ca_file
            )
            self._instances = self._make_instances(self.installed)
            primary = self._instances.make(None)
            self._health_schedule = self._make_checkup(self.installed, primary.keeper)
            self._login_refresh = maybe_refreshing(
                self.driver,
                self.installed,
                plan=self._environment.plan,
                clock=self._environment.connector_parts.clock,
                running=self._health_schedule.running,
            )
            is_lazy = self._environment.plan.registration == "lazy"
            snapshot = await self._snapshots.maybe(self._about()) if is_lazy else None
            expired = await self._logins.load(None)
        except Exception as error:
            log.exception("driver %s cannot be registered", self.driver.segment)
            words = str(error) if isinstance(error, StoreError | OSError) else "internal error; the log says more"
            self._stand(DriverState.UNAVAILABLE, "internal", words)
            self.settled.set()
            return
        if expired is not None:
            self._unauth("auth_required", expired)
            self.settled.set()
            primary.keeper.start_asleep()
        elif snapshot is not None:
            self.contract_ids = frozenset(snapshot.tools)
            complete = len(self.contract_ids) == len(self.bindings)
            self._judged = (DriverState.READY if complete else DriverState.PARTIAL, None, None)
            self._stand(*self._judged)
            self._tell()
            self.settled.set()
            primary.keeper.start_asleep()
        else:
            self._stand(DriverState.CHECKING, None, None)
            primary.keeper.start()
        self._health_schedule.start()

    async def _install(self) -> Installed:
        again_s = INSTALL_AGAIN_S
        while True:
            async with self._environment.connector_parts.limits.installs:
                outcome = await self._environment.install(self.driver, self._folder, self._say_progress)
            if isinstance(outcome, Installed):
                return outcome
            self._stand(DriverState.UNAVAILABLE, outcome.code, outcome.reason)
            self.settled.set()
            await asyncio.sleep(again_s)
            again_s = min(INSTALL_AGAIN_MAX_S, again_s * 2)

    async def _load(self, loader: HookLoader) -> bool:
        """Load its driver.py. False: it does not fit, and the driver is not started."""
        again_s = INSTALL_AGAIN_S
        while not isinstance(loaded := await loader.load(), DriverHooks):
            if loaded.is_final:
                problem = self.driver.places.problem("", loaded.code, loaded.message, f"mend {ENTRY}")
                self.problems = (problem,)
                self._stand(DriverState.REJECTED, loaded.code, loaded.message)
                self.settled.set()
                await loader.stop()
                return False
            self._stand(DriverState.UNAVAILABLE, loaded.code, loaded.message)
            self.settled.set()
            await asyncio.sleep(again_s)
            again_s = min(INSTALL_AGAIN_MAX_S, again_s * 2)
        self.hooks = self._loaded = loaded
        return True

    def _say_progress(self, text: str) -> None:
        self._stand(DriverState.INSTALLING, None, text)

    def _make_instances(self, installed: Installed) -> Instances:
        driver, environment = self.driver, self._environment
        idle_ms = driver.interlock.idle_timeout_ms
        idle_s = environment.plan.idle_timeout_s if idle_ms is None else idle_ms / 1000
        return Instances(
            lambda who: self._keepers.make(installed, self._connector_parts, who),
            environment.keepers,
            environment.connector_parts.clock,
            None if driver.server.address is not None else environment.connector_parts.process_limit,
            most=driver.interlock.max_processes,
            # AIP-transport-3
            idle_s=None if driver.connection.keepalive or driver.server.address is not None else idle_s,
            one_by_one=bool(driver.interlock.client_capabilities),
        )

    def _make_checkup(self, installed: Installed, keeper: DriverKeeper) -> HealthSchedule:
        environment = self._environment
        return HealthSchedule(
            self.driver,
            installed,
            keeper,
            plan=environment.plan,
            connector_parts=environment.connector_parts,
            on_outcome=self._on_health,
        )

    # What its servers say (ServerEvents)

    def on_up(self) -> None:
        self.settled.set()

    def serves(self) -> int:
        return len(self.contract_ids)

    async def on_listing(self, link: Link, who: str | None, listing: Listing | None) -> None:
        """Check the tools that one of the driver's processes listed, for the first time or again."""
        instances = self._instances
        instance = instances.maybe(who) if instances is not None else None
        if listing is None or instances is None or instance is None or instance.keeper.link is not link:
            return
        verdict = await self._verdict_on(listing)
        if instance.keeper.listing is not listing or instances.maybe(who) is not instance:
            return  # a newer list is being checked, or this process is no longer in use
        instance.verdict = verdict
        instance.used_at = self._environment.connector_parts.clock.now()
        instances.watch(instance)
        is_own = self.driver.interlock.isolation != "driver"
        if who is not None and verdict.state not in _SERVES:
            return  # that tenant's server alone does not fit
        self._adopt(verdict, listing, link)
        if verdict.state in _SERVES:
            await self._keep(verdict, link)
        if is_own and who is None:
            # This process gets no calls: it was started for its lists to be checked (AIP-tenant-1).
            asyncio.get_running_loop().call_soon(instances.rest, instance)

    async def _verdict_on(self, listing: Listing) -> Verdict:
        """Check a listing against the contracts.

        The same list is checked only once, whichever process sends it. The check runs in a thread, because the server
        decides how much work its schemas are.
        """
        digest = listing.tools.digest
        if self._checked is not None and self._checked[0] == digest:
            return self._checked[1]
        on_mismatch = self._environment.plan.on_mismatch
        entry = None if self._loaded is None else self._loaded.entry
        verdict = await asyncio.to_thread(check, self.driver, self._contracts, listing, on_mismatch, self.bound, entry)
        self._checked = digest, verdict
        return verdict

    def _adopt(self, verdict: Verdict, listing: Listing, link: Link) -> None:
        facts = link.facts
        warnings = () if facts is None else greeting_warnings(self.driver, facts, link.transport)
        before = _offer_digest(self.listing, self.bound)
        self.bound = verdict.bound
        of_hooks = () if self._loaded is None else self._loaded.problems
        self.problems = (*verdict.problems, *warnings, *self._notes(), *of_hooks)
        self.listing = listing
        self.contract_ids = frozenset(verdict.bound)
        self._judged = (verdict.state, verdict.code, verdict.reason)
        self._health_failure = None
        self._stand(*self._judged)
        if _offer_digest(listing, verdict.bound) != before:
            self._tell()

    def _on_health(self, reason: str | None) -> None:
        if reason is not None and (self.state in _SERVES or self._health_failure is not None):
            self._health_failure = reason
            self._stand(DriverState.UNAVAILABLE, UNHEALTHY, reason)
        elif reason is None and self._health_failure is not None:
            self._health_failure = None
            self._stand(*self._judged)

    def _notes(self) -> tuple[FileProblem, ...]:
        """Return the notes of the installation as problems."""
        notes = self.installed.notes if self.installed is not None else ()
        places = self.driver.places
        return tuple(
            places.problem("/install", each.code, each.message, "nothing needs to be done", severity="note")
            for each in notes
        )

    def on_fallen(self, who: str | None) -> None:
        """Update the state after a series of failed attempts.

        A failure of one tenant's process does not change the driver's state.
        """
        instance = self._instances.maybe(who) if self._instances is not None else None
        if instance is None or who is not None:
            return
        failure = instance.keeper.failure
        reason = instance.keeper.link.standing.reason
        self._health_failure = None
        if failure is not None and failure.unauthorised:
            lacks = missing_secrets(failure)
            if lacks and all(lack.per_user for lack in lacks) and self.driver.interlock.isolation != "driver":
                # Only its users can have them: each user's own process will be looked at.
                self._offer_unseen()
                self._judged = (DriverState.READY, None, None)
                self._stand(*self._judged)
            else:
                self._unauth(code_of(lacks), reason)
        elif failure is not None and failure.code == UNSUPPORTED:
            self._stand(DriverState.REJECTED, UNSUPPORTED, reason)
        else:
            code = failure.code if failure is not None else None
            self._stand(DriverState.UNAVAILABLE, code or kind_of(self.driver.server).failure_code, reason)
        self.settled.set()

    def _unauth(self, code: str, reason: str | None) -> None:
        """Mark the driver unauthed. Its contracts stay offered, so that a caller is told what is needed."""
        self.login = login_text(self.driver, reason)
        self._offer_unseen()
        self._stand(DriverState.UNAUTHED, code, reason)

    def _offer_unseen(self) -> None:
        if not self.contract_ids:
            self.contract_ids = frozenset(self.bindings)
            self._tell()

    def on_expired(self, who: str | None, reason: str) -> None:
        """AIP-30.auth-2: once; the server is not asked again before a secret, or the login, is another."""
        if self._logins.maybe_expired(who) is not None or self._instances is None:
            return
        self._logins.expire(who, reason)
        self._begin_task(self._logins.keep(who))
        if who is None:
            self._health_failure = None
            self._unauth("auth_required", reason)
        log.warning("driver %s: %s", self.driver.segment, reason)
        instance = self._instances.maybe(who)
        if instance is not None:
            self._begin_task(self._end_when_free(self._instances, instance))

    async def _end_when_free(self, instances: Instances, instance: Instance) -> None:
        async with instances.hold_unleased(instance, self._longest_s):
            instances.rest(instance)

    def on_restarted(self, who: str | None) -> None:
        if self._logins.renew(who):
            self._begin_task(self._logins.keep(who))

    def on_secret(self, slug: str) -> tuple[str, ...]:
        """Restart the processes that use or wait for a secret that was set, once their open calls have ended.

        Returns the segments of these processes.
        """
        instances = self._instances
        names = [name for name, entry in self._inventory.items() if entry.slug == slug]
        if instances is None or not set(names) & {*self.driver.secret_names}:
            return ()
        for who in self._logins.expired:
            self.on_restarted(who)
        concerned = [process for process in instances.all if process.keeper.link.standing.state is not LinkState.ASLEEP]
        if self.state is DriverState.UNAUTHED and (primary := instances.maybe(None)) and primary not in concerned:
            concerned.append(primary)
        for instance in concerned:
            self._begin_task(self._restart_when_free(instances, instance))
        return tuple(process.keeper.link.segment for process in concerned)

    async def _restart_when_free(self, instances: Instances, instance: Instance) -> None:
        async with instances.hold_unleased(instance, self._longest_s):
            if self.state is DriverState.UNAUTHED:
                self.login = None
                self._stand(DriverState.CHECKING, None, None)
            await instance.keeper.restart()

    @property
    def _longest_s(self) -> float:
        return max(contract.timeout_ms for contract in self._contracts.values()) / 1000

    def _begin_task(self, work: Coroutine[None, None, None]) -> None:
        self._login_tasks.begin(work, f"driver {self.driver.key}: login")

    def _stand(self, state: DriverState, code: str | None, reason: str | None) -> None:
        if (state, code, reason) != (self.state, self.code, self.reason):
            self.state, self.code, self.reason = state, code, reason
            if self._on_step is not None:
                self._on_step(state, reason)
            log.info("driver %s: %s%s", self.driver.segment, state.value, f" ({reason})" if reason else "")

    def _tell(self) -> None:
        if self._on_changed is not None:
            self._on_changed(self)

    # Health

    async def look(self) -> str | None:
        """Make its health check now. None: it is healthy, or has none."""
        return None if self._health_schedule is None else await self._health_schedule.look()

    @property
    def passed_at(self) -> float | None:
        return None if self._health_schedule is None else self._health_schedule.passed_at

    @property
    def failed_at(self) -> float | None:
        return None if self._health_schedule is None else self._health_schedule.failed_at

    # Leases

    def maybe_ready(self, caller: Caller) -> InstanceLease | None:
        instances = self._instances
        if instances is None or self.state not in _SERVES:
            return None
        if self._login_refresh is not None and self._login_refresh.is_due:
            return None
        instance = instances.maybe(self._who(caller))
        return None if instance is None or not self._is_ready(instance) else instances.maybe_lend(instance)

    async def acquire(self, caller: Caller, timeout_s: float = ACQUIRE_S) -> InstanceLease | DriverRefusal:
        instances = self._instances
        if instances is None or self.state is DriverState.REJECTED:
            return self._refusal()
        who = self._who(caller)
        if self.state is DriverState.UNAUTHED and who is None:  # it refused, or would: it is not asked again
            return self._unauthed_error(self.reason)
        if who is not None:
            try:
                expired = await self._logins.load(who)
            except StoreError as error:
                expired = str(error)
            if expired is not None:
                return self._unauthed_error(expired)
        if self._login_refresh is not None:
            await self._login_refresh.refresh()
        lease = await instances.borrow(who, timeout_s)
        if lease is None:
            return DriverRefusal(
                code="rate_limited",
                message="all processes of this tool's server are busy; try again later",
                retryable=True,
                cause={"driver": self.driver.key, "max_processes": self.driver.interlock.max_processes},
            )
        keeper = lease.instance.keeper
        try:
            if not await keeper.come_up():
                return self._away(keeper)
            if not keeper.is_current:
                await keeper.read_again()
            if self._is_fit(lease.instance):
                lent, lease = lease, None
                return lent
            return self._refusal(lease.instance.verdict)
        finally:
            if lease is not None:
                lease.release()

    def _who(self, caller: Caller) -> str | None:
        match self.driver.interlock.isolation:
            case "tenant":
                return self._environment.tenant_of(caller)
            case "user":
                return self._environment.user_of(caller)
            case _:
                return None

    def _is_ready(self, instance: Instance) -> bool:
        return instance.keeper.is_usable and instance.keeper.is_current and self._is_fit(instance)

    def _is_fit(self, instance: Instance) -> bool:
        return instance.verdict is not None and instance.verdict.state in _SERVES

    def _refusal(self, verdict: Verdict | None = None) -> DriverRefusal:
        reason = self.reason if verdict is None else verdict.reason
        cause = {"driver": self.driver.key, "code": self.code, "reason": reason}
        if verdict is None and self.state is not DriverState.REJECTED:
            message = "the server of this tool is not ready"
            return DriverRefusal(code="tool_unavailable", message=message, retryable=True, cause=cause)
        message = "the server of this tool does not keep its contract"
        return DriverRefusal(code="contract_mismatch", message=message, cause=cause)

    def _away(self, keeper: DriverKeeper) -> DriverRefusal:
        reason = keeper.link.standing.reason
        if keeper.failure is not None and keeper.failure.unauthorised:
            return self._unauthed_error(reason)
        return DriverRefusal(
            code="tool_unavailable",
            message="the server of this tool could not be reached",
            retryable=True,
            cause={"driver": self.driver.key, "reason": reason},
        )

    def _unauthed_error(self, reason: str | None) -> DriverRefusal:
        return DriverRefusal(
            code="auth_required",
            message=login_text(self.driver, reason),
            cause={"driver": self.driver.key, "reason": reason},
        )

    # What an earlier check found

    def _about(self) -> str:
        contracts = [self._contracts[each.index] for each in self.driver.implements]
        return about(self._digest, self.installed, contracts)

    async def _keep(self, verdict: Verdict, link: Link) -> None:
        tools = {contract: bound.tool_digest for contract, bound in verdict.bound.items()}
        protocol = link.facts.version if link.facts is not None else ""
        await self._snapshots.keep(Snapshot(about=self._about(), protocol=protocol, tools=tools))

    # For people

    def running(self) -> RunningServer:
        """Return the state of the server that runs, in addition to what the file declares."""
        instance = self._instances.maybe(None) if self._instances is not None else None
        modes: dict[str, str] = {contract: bound.mode for contract, bound in self.bound.items()}  # AIP-extract-5
        if instance is None:
            return RunningServer(protocol_version=None, transport=None, version=None, last_words=(), modes=modes)
        keeper = instance.keeper
        facts = keeper.link.facts
        return RunningServer(
            protocol_version=facts.version if facts is not None else None,
            transport=keeper.link.transport if facts is not None else None,
            version=self.installed.version if self.installed is not None else None,
            link=keeper.link.standing.state.value,
            ended=keeper.ended,
            last_words=tuple(line.text for line in keeper.stderr.tail(LAST_WORDS)),
            modes=modes,
        )


def _offer_digest(listing: Listing | None, bound: Mapping[str, Bound]) -> object:
    """Return a value that changes when the provider's offer changes."""
    lists = () if listing is None else (listing.tools, listing.prompts, listing.resources, listing.templates)
    return tuple(items.digest for items in lists), {contract: id(each) for contract, each in bound.items()}
