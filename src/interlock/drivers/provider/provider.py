"""The provider of one driver: installs and starts its server, checks it against its contracts, and leases its link.

Input: a trusted driver with the contracts that it binds, and the parts of the node that all drivers use
(`DriverEnvironment`). Output: the state of the driver with the reason for it, and leases of its server's link.
`drivers.contracts` decides which driver serves a call.

Theory of operation. `start` begins one task. The task loads driver.py, installs the server (repeatedly, with growing
pauses, until that succeeds) and starts the process that all callers share. After that, events change the state. A list
of tools from a process is checked against the contracts (`on_listing`). The result becomes the state of the driver,
unless the process belongs to one tenant and its tools do not fit. Failed attempts, a failed health check or an expired
login make the driver unavailable or unauthed. With `drivers.registration = "lazy"`, the result of an earlier check is
used while its inputs are unchanged, and the process sleeps until the first call.

A call takes a lease (`find_ready_lease`, or `acquire`, which may start a process) and releases it when it ends. A
process that must stop or restart first waits until its leases are released, at most for the longest time that a
contract allows.

The `ProviderFactory` creates the provider of each driver that may run.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.config.plan import Dial, Plan
from interlock.core.background import BackgroundTasks
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.core.recorder import Recorder
from interlock.core.tls import trusting_context
from interlock.credentials.service import CredentialService
from interlock.drivers.api import RunningServer
from interlock.drivers.driver_state import UNHEALTHY, DriverState
from interlock.drivers.install import installation
from interlock.drivers.install.install import install, install_checked
from interlock.drivers.install.installation import Installed, InstallFailed
from interlock.drivers.kinds import HOMES, kind_of
from interlock.drivers.protocol.binding.match import Bound
from interlock.drivers.protocol.files.driver import ENTRY
from interlock.drivers.protocol.model import Driver, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.drivers.provider import checks, vault
from interlock.drivers.provider.checks import HealthSchedule
from interlock.drivers.provider.hooks import DriverHooks, HookFailed, HookProcess, load_hooks
from interlock.drivers.provider.keeper import DriverEnvironment, DriverKeeper, Instance, InstanceLease, Instances
from interlock.drivers.workspace.declaration import Declared
from interlock.drivers.workspace.folder import TamperCheck
from interlock.links.connector import LEGACY_CAPABILITIES, UNSUPPORTED, ConnectorParts, Eras, Manner
from interlock.links.keeper import Keeper
from interlock.links.link import Link, LinkEvents
from interlock.links.listing import LIST_S, Listing
from interlock.mcp.methods import LEGACY_VERSIONS, Era
from interlock.process.child import ChildStartFailed
from interlock.process.sandbox.host_paths import SandboxFailed
from interlock.process.sandbox.sandbox import private_paths
from interlock.store.ports import KeyValue, StoreError

log = logging.getLogger("interlock.drivers")

INSTALL_AGAIN_S: Final = 60.0
INSTALL_AGAIN_MAX_S: Final = 3600.0
ACQUIRE_S: Final = 30.0
LAST_WORDS: Final = 5  # lines of stderr that are shown with the driver

OnChanged = Callable[["DriverProvider"], None]
OnStep = Callable[[DriverState, str | None], None]

_SERVES: Final = frozenset((DriverState.READY, DriverState.PARTIAL))


class DeclaredEras:
    """Store of the MCP era (legacy or modern) that a driver's server speaks. As long as the era is unknown, the MCP
    version in the driver's file decides (AIP-proto-3).
    """

    def __init__(self, provider: "DriverProvider") -> None:
        self._eras: Eras = provider.environment.connector_parts.eras
        self._key = provider.driver.key
        self.declared = Era.LEGACY if provider.driver.protocol_version in LEGACY_VERSIONS else None

    def get(self, server: str) -> Era | None:
        return self._eras.get(self._key) or self.declared

    def put(self, server: str, era: Era) -> None:
        self._eras.put(self._key, era)


@dataclass(eq=False)
class DriverProvider:
    """Service that runs the server of one trusted driver: it installs and starts the server, checks its tools, and
    lends its processes to calls.

    Contracts and operations may read its attributes up to and including `settled`.
    """

    declared: Declared
    environment: DriverEnvironment
    _: KW_ONLY
    seal: TamperCheck | None = None  # checks that the folder still has the trusted content
    on_changed: OnChanged | None = None  # called when it offers something different, not when only its state changes
    on_step: OnStep | None = None  # called with each new state and its reason

    def __post_init__(self) -> None:
        declared, environment = self.declared, self.environment
        if declared.driver is None:
            raise ValueError(f"{declared.key} is not fit to run")
        driver = self.driver = declared.driver
        self.state = DriverState.INSTALLING
        self.code: str | None = None  # of the reason
        self.reason: str | None = None
        self.login: str | None = None  # what is missing while unauthed, in words a client may read
        self.problems: tuple[FileProblem, ...] = ()  # of the last check, errors first
        # By the id of the contract: its entry of implements[], known before anything is checked.
        self.bindings: Mapping[str, ToolBinding] = {
            declared.contracts[binding.index].id: binding for binding in driver.implements
        }
        self.contract_ids: frozenset[str] = frozenset()  # what it serves now, also while `bound` is still empty
        self.bound: Mapping[str, Bound] = {}  # the checked bindings; complete while a lease is held
        self.hooks: DriverHooks | None = None  # of its driver.py
        self.listing: Listing | None = None  # what the server listed when it was last checked
        self.installed: Installed | None = None
        self.unlisted: str | None = None  # why something that it offers is not in the namespace
        self.health = HealthSchedule(self)
        self.settled = asyncio.Event()  # the first attempt has ended, whatever its result
        # Nothing in it is the caller's: the server does not learn who called first (AIP-security-8).
        self.connector_parts = msgspec.structs.replace(
            environment.connector_parts,
            manner=Manner(
                # AIP-proto-6: on a shared process a server's question cannot be tied to one caller.
                capabilities={name: LEGACY_CAPABILITIES[name] for name in driver.interlock.client_capabilities},
                versions=driver.interlock.protocol_versions,
                patience_s=driver.connection.timeout_ms / 1000,
                either_transport=driver.server.address is not None,
            ),
            eras=DeclaredEras(self),
        )
        self._longest_s = max((contract.timeout_ms for contract in declared.contracts.values()), default=0) / 1000
        self._hook_process: HookProcess | None = None
        if ENTRY in declared.files:
            self._hook_process = HookProcess(
                name=driver.key,
                folder=declared.folder.absolute(),
                home=environment.data / HOMES / "_hooks" / driver.key,
                digests=declared.files,
                connector_parts=environment.connector_parts,
                may_do_without=self._sandbox_is_off,
            )
        slugs = [declared.secrets[name].slug for name in driver.secret_names if name in declared.secrets]
        self._logins = vault.Logins(environment.kv, environment.vault, driver, slugs)
        self._login_tasks = BackgroundTasks()
        self._snapshots = checks.Snapshots(environment.kv, environment.connector_parts.clock, driver.key)
        # The digest of a list, and the result of its check.
        self._checked: tuple[bytes, checks.ContractVerdict] | None = None
        self._judged: tuple[DriverState, str | None, str | None] = (DriverState.READY, None, None)
        self._starting = BackgroundTasks()
        self._instances: Instances | None = None  # once the server is installed
        self._health_failure: str | None = None  # why the last health check failed

    @property
    def _sandbox_is_off(self) -> bool:
        return self.environment.plan.sandbox.get(self.driver.id) == "off"

    # Life

    def start(self) -> None:
        self._starting.begin(self._begin(), f"driver {self.driver.key}")

    def succeed(self, other: "DriverProvider") -> None:
        """Offer the same contracts as `other`, an earlier provider of the same driver files, until this provider has
        checked its server.
        """
        self.contract_ids = other.contract_ids

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the server. Unless `at_once` is set, first wait until the running calls have ended, each at the latest
        at its time limit.
        """
        await self._starting.close()
        await self.health.stop()
        if self._hook_process is not None and at_once:
            await self._hook_process.stop()
        await self._login_tasks.close()
        if self._instances is not None:
            if not at_once:
                await self._instances.wait_until_free(self._longest_s)
            instances, self._instances = self._instances, None  # who comes now is refused, and starts nothing
            await instances.stop()
        if self._hook_process is not None:
            await self._hook_process.stop()
        if self.installed is not None:
            reaper = self.environment.connector_parts.reaper
            await kind_of(self.driver.server).clean_up(self.driver, self.installed, reaper)

    async def _begin(self) -> None:
        driver, environment = self.driver, self.environment
        try:
            if self._hook_process is not None and not await self._load_hooks(self._hook_process):
                return
            self.installed = await self._install()
            ca_file = environment.plan.ca_file
            if ca_file is not None and driver.server.address is not None:
                tls = await asyncio.to_thread(trusting_context, ca_file)
                self.connector_parts = msgspec.structs.replace(self.connector_parts, tls=tls)
            self._instances = Instances(driver, environment, self._make_keeper)
            primary = self._instances.make(None)
            self.health.attach(self.installed, primary.keeper)
            is_lazy = environment.plan.registration == "lazy"
            snapshot = await self._snapshots.find(self._comparison_digest()) if is_lazy else None
            expired = await self._logins.load(None)
        except Exception as error:
            log.exception("driver %s cannot be registered", driver.segment)
            words = str(error) if isinstance(error, StoreError | OSError) else "internal error; the log says more"
            self._set_state(DriverState.UNAVAILABLE, "internal", words)
            self.settled.set()
            return
        if expired is not None:
            self._set_unauthed(vault.AUTH_REQUIRED, expired)
            self.settled.set()
            primary.keeper.start_asleep()
        elif snapshot is not None:
            self.contract_ids = frozenset(snapshot.tools)
            complete = len(self.contract_ids) == len(self.bindings)
            self._judged = (DriverState.READY if complete else DriverState.PARTIAL, None, None)
            self._set_state(*self._judged)
            self._report_change()
            self.settled.set()
            primary.keeper.start_asleep()
        else:
            self._set_state(DriverState.CHECKING, None, None)
            primary.keeper.start()
        self.health.start()

    async def _install(self) -> Installed:
        """Install the server. After a failure, try again, each time after a longer pause."""
        report_progress = partial(self._set_state, DriverState.INSTALLING, None)
        again_s = INSTALL_AGAIN_S
        while True:
            async with self.connector_parts.limits.installs:
                outcome = await self.environment.install(self.driver, self.declared.folder, report_progress)
            if isinstance(outcome, Installed):
                return outcome
            self._set_state(DriverState.UNAVAILABLE, outcome.code, outcome.reason)
            self.settled.set()
            await asyncio.sleep(again_s)
            again_s = min(INSTALL_AGAIN_MAX_S, again_s * 2)

    async def _load_hooks(self, process: HookProcess) -> bool:
        """Load driver.py. If its process cannot be started, try again after pauses that become longer.

        Return False if driver.py cannot be loaded or does not match the driver file; the driver is then not started.
        """
        again_s = INSTALL_AGAIN_S
        while True:
            try:
                async with self.connector_parts.limits.starting():
                    self.hooks = await load_hooks(self.driver, self.bindings, self.declared.folder, process)
                return True
            except HookFailed as failed:
                message = f"{ENTRY}: {failed}"
                self.problems = (self.driver.places.problem("", failed.code, message, f"correct {ENTRY}"),)
                self._set_state(DriverState.REJECTED, failed.code, message)
                self.settled.set()
                await process.stop()
                return False
            except (SandboxFailed, ChildStartFailed) as failed:
                code = failed.code if isinstance(failed, SandboxFailed) else "tool_unavailable"
                self._set_state(DriverState.UNAVAILABLE, code, f"{ENTRY}: {failed}")
            self.settled.set()
            await asyncio.sleep(again_s)
            again_s = min(INSTALL_AGAIN_MAX_S, again_s * 2)

    def _make_keeper(self, who: str | None) -> DriverKeeper:
        """Create the keeper of a new process. `who` is the tenant or user that the process serves, or None for all
        callers.
        """
        driver, environment, declared = self.driver, self.environment, self.declared
        assert self.installed is not None  # noqa: S101  (processes are made after the installation)
        plan = kind_of(driver.server).compile_plan(
            driver,
            self.installed,
            folder=declared.folder,
            data=environment.data,
            tenant=who,
            is_sandboxed=not self._sandbox_is_off,
            real_paths=declared.real_paths,
        )
        plan = msgspec.structs.replace(plan, result_bytes=environment.plan.result_bytes.get(driver.id))
        revealer = vault.DriverRevealer(environment.vault, driver, declared, tuple(self.bindings), who)
        holder = None
        if isinstance(plan.reach, Dial) and driver.server.accepts_oauth:
            holder = environment.holder_for(plan.segment, plan.reach, revealer)
        return DriverKeeper(self, plan, revealer, holder)

    # Events of the servers. `who`: the tenant or user that a process is for, or None for the shared process

    async def on_listing(self, link: Link, who: str | None, listing: Listing | None) -> None:
        """Compare the tools that a process listed with the contracts. This is called for every list that a process
        sends.
        """
        instances = self._instances
        instance = instances.find(who) if instances is not None else None
        if listing is None or instances is None or instance is None or instance.keeper.link is not link:
            return
        verdict = await self._check(listing)
        if instance.keeper.listing is not listing or instances.find(who) is not instance:
            return  # a newer list is being checked, or this process is no longer in use
        instance.verdict = verdict
        instance.used_at = self.environment.connector_parts.clock.now()
        instances.watch(instance)
        if who is not None and verdict.state not in _SERVES:
            return  # that tenant's server alone does not fit
        self._apply_verdict(verdict, listing, link)
        if verdict.state in _SERVES:
            tools = {contract: bound.tool_digest for contract, bound in verdict.bound.items()}
            protocol = link.facts.version if link.facts is not None else ""
            await self._snapshots.keep(checks.Snapshot(about=self._comparison_digest(), protocol=protocol, tools=tools))
        if who is None and self.driver.interlock.isolation != "driver":
            # This process gets no calls: it was started for its lists to be checked (AIP-tenant-1).
            asyncio.get_running_loop().call_soon(instances.rest, instance)

    async def _check(self, listing: Listing) -> checks.ContractVerdict:
        """Compare a list of tools with the driver's contracts. An unchanged list is not compared again.

        Equal lists are checked only once, even if several processes send them. The check runs in a thread, because the
        server controls how much work its schemas cause.
        """
        digest = listing.tools.digest
        if self._checked is not None and self._checked[0] == digest:
            return self._checked[1]
        on_mismatch = self.environment.plan.on_mismatch
        entry = None if self.hooks is None else self.hooks.entry
        verdict = await asyncio.to_thread(
            checks.check, self.driver, self.declared.contracts, listing, on_mismatch, self.bound, entry
        )
        self._checked = digest, verdict
        return verdict

    def _apply_verdict(self, verdict: checks.ContractVerdict, listing: Listing, link: Link) -> None:
        """Store the result of comparing the server with its contracts. Add warnings about the connection and the
        installation to the driver's problems.
        """
        places = self.driver.places
        facts, hint = link.facts, "nothing needs to be done"
        greeting = () if facts is None else checks.greeting_warnings(self.driver, facts, link.transport)
        notes = self.installed.notes if self.installed is not None else ()
        installing = (places.problem("/install", each.code, each.message, hint, severity="note") for each in notes)
        before = _offer_digest(self.listing, self.bound)
        self.bound = verdict.bound
        of_hooks = self.hooks.problems if self.hooks is not None else ()
        self.problems = (*verdict.problems, *greeting, *installing, *of_hooks)
        self.listing = listing
        self.contract_ids = frozenset(verdict.bound)
        self._judged = (verdict.state, verdict.code, verdict.reason)
        self._health_failure = None
        self._set_state(*self._judged)
        if _offer_digest(listing, verdict.bound) != before:
            self._report_change()

    def on_health(self, reason: str | None) -> None:
        """Change the driver's state after a health check. `reason` says why the check failed, or is None if it
        passed.
        """
        if reason is not None and (self.state in _SERVES or self._health_failure is not None):
            self._health_failure = reason
            self._set_state(DriverState.UNAVAILABLE, UNHEALTHY, reason)
        elif reason is None and self._health_failure is not None:
            self._health_failure = None
            self._set_state(*self._judged)

    def on_fallen(self, who: str | None) -> None:
        """Set the driver's state after the process of `who` has failed to start several times.

        A failure of one tenant's process does not change the state of the driver.
        """
        instance = self._instances.find(who) if self._instances is not None else None
        if instance is None or who is not None:
            return
        failure = instance.keeper.failure
        reason = instance.keeper.link.standing.reason
        self._health_failure = None
        if failure is not None and failure.unauthorised:
            lacks = failure.__cause__.lacks if isinstance(failure.__cause__, vault.SecretsMissing) else ()
            if lacks and all(lack.per_user for lack in lacks) and self.driver.interlock.isolation != "driver":
                # Only users can have these secrets: the process of each user will be checked.
                self._offer_unseen()
                self._judged = (DriverState.READY, None, None)
                self._set_state(*self._judged)
            else:
                is_denied = any(lack.code == vault.ACCESS_DENIED for lack in lacks)
                self._set_unauthed(vault.ACCESS_DENIED if is_denied else vault.AUTH_REQUIRED, reason)
        elif failure is not None and failure.code == UNSUPPORTED:
            self._set_state(DriverState.REJECTED, UNSUPPORTED, reason)
        else:
            code = failure.code if failure is not None else None
            self._set_state(DriverState.UNAVAILABLE, code or kind_of(self.driver.server).failure_code, reason)
        self.settled.set()

    def _set_unauthed(self, code: str, reason: str | None) -> None:
        """Mark the driver as waiting for a login or a secret. Its contracts stay listed, so that callers learn the
        reason.
        """
        self.login = vault.login_text(self.driver, reason)
        self._offer_unseen()
        self._set_state(DriverState.UNAUTHED, code, reason)

    def _offer_unseen(self) -> None:
        if not self.contract_ids:
            self.contract_ids = frozenset(self.bindings)
            self._report_change()

    def on_expired(self, who: str | None, reason: str) -> None:
        """Record that the login of a server has expired (AIP-30.auth-2). Further reports are ignored.

        The server is not used again until one of its secrets changes or an operator restarts it.
        """
        if who in self._logins.expired or self._instances is None:
            return

        async def end_when_free(instances: Instances, instance: Instance) -> None:
            async with instances.hold_unleased(instance, self._longest_s):
                instances.rest(instance)

        self._logins.expire(who, reason)
        self._begin_task(self._logins.keep(who))
        if who is None:
            self._health_failure = None
            self._set_unauthed(vault.AUTH_REQUIRED, reason)
        log.warning("driver %s: %s", self.driver.segment, reason)
        instance = self._instances.find(who)
        if instance is not None:
            self._begin_task(end_when_free(self._instances, instance))

    def on_restarted(self, who: str | None) -> None:
        """Forget that a login has expired, because an operator restarted the server or set a secret."""
        if self._logins.renew(who):
            self._begin_task(self._logins.keep(who))

    def on_secret(self, slug: str) -> tuple[str, ...]:
        """Restart the processes that use the secret `slug`, because its value has changed. Calls that are being served
        end first.

        A sleeping process is restarted only if it is the shared one and the driver is unauthed. Return the segments of
        the processes that are restarted.
        """

        async def restart_when_free(instances: Instances, instance: Instance) -> None:
            async with instances.hold_unleased(instance, self._longest_s):
                if self.state is DriverState.UNAUTHED:
                    self.login = None
                    self._set_state(DriverState.CHECKING, None, None)
                await instance.keeper.restart()

        instances = self._instances
        names = [name for name, entry in self.declared.secrets.items() if entry.slug == slug]
        if instances is None or not set(names) & {*self.driver.secret_names}:
            return ()
        for who in tuple(self._logins.expired):
            self.on_restarted(who)
        concerned = [process for process in instances.all if process.keeper.link.standing.state is not LinkState.ASLEEP]
        if self.state is DriverState.UNAUTHED and (primary := instances.find(None)) and primary not in concerned:
            concerned.append(primary)
        for instance in concerned:
            self._begin_task(restart_when_free(instances, instance))
        return tuple(process.keeper.link.segment for process in concerned)

    def _begin_task(self, work: Coroutine[None, None, None]) -> None:
        self._login_tasks.begin(work, f"driver {self.driver.key}: login")

    def _set_state(self, state: DriverState, code: str | None, reason: str | None) -> None:
        if (state, code, reason) != (self.state, self.code, self.reason):
            self.state, self.code, self.reason = state, code, reason
            if self.on_step is not None:
                self.on_step(state, reason)
            log.info("driver %s: %s%s", self.driver.segment, state.value, f" ({reason})" if reason else "")

    def _report_change(self) -> None:
        if self.on_changed is not None:
            self.on_changed(self)

    # Leases

    def find_ready_lease(self, caller: Caller) -> InstanceLease | None:
        """Reserve the process that serves this caller, if that is possible at once. Otherwise return None; `acquire`
        can wait.
        """
        instances = self._instances
        if instances is None or self.state not in _SERVES:
            return None
        if self.health.is_login_due:
            return None
        instance = instances.find(self._tenant_of(caller))
        if instance is None or not (instance.keeper.is_usable and instance.keeper.is_current and instance.is_fit):
            return None
        return instances.lend(instance)

    async def acquire(self, caller: Caller, timeout_s: float = ACQUIRE_S) -> InstanceLease | DriverRefusal:
        """Reserve the process that serves this caller. Start the process if it is not running.

        If this returns a refusal, the call has not been sent to the server. `timeout_s` limits how long to wait while
        other callers use all processes.
        """
        instances = self._instances
        if instances is None or self.state is DriverState.REJECTED:
            return self._refusal()
        who = self._tenant_of(caller)
        if self.state is DriverState.UNAUTHED and who is None:  # the server refused, or would: it is not asked again
            return self._unauthed_error(self.reason)
        if who is not None:
            try:
                expired = await self._logins.load(who)
            except StoreError as error:
                expired = str(error)
            if expired is not None:
                return self._unauthed_error(expired)
        await self.health.refresh_login()
        lease = await instances.borrow(who, timeout_s)
        if lease is None:
            message = "all processes of this tool's server are busy; try again later"
            most = self.driver.interlock.max_processes
            return self._refuse("rate_limited", message, retryable=True, max_processes=most)
        keeper = lease.instance.keeper
        try:
            if not await keeper.come_up():
                reason = keeper.link.standing.reason
                if keeper.failure is not None and keeper.failure.unauthorised:
                    return self._unauthed_error(reason)
                message = "the server of this tool could not be reached"
                return self._refuse("tool_unavailable", message, retryable=True, reason=reason)
            if not keeper.is_current:
                # The list of tools is read again, at most for the time limit of one list.
                await asyncio.wait((keeper.refreshed("tools"),), timeout=self.connector_parts.manner.within(LIST_S))
            if lease.instance.is_fit:
                lent, lease = lease, None
                return lent
            return self._refusal(lease.instance.verdict)
        finally:
            if lease is not None:
                lease.release()

    def _tenant_of(self, caller: Caller) -> str | None:
        """Return the tenant or user whose own process serves this caller, or None if all callers share one process.

        Outside rooms each principal is a separate tenant, so tenants and users are the same.
        """
        return None if self.driver.interlock.isolation == "driver" else caller.principal.name

    def _refusal(self, verdict: checks.ContractVerdict | None = None) -> DriverRefusal:
        if verdict is None and self.state is not DriverState.REJECTED:
            message = "the server of this tool is not ready"
            return self._refuse("tool_unavailable", message, retryable=True, code=self.code, reason=self.reason)
        reason = self.reason if verdict is None else verdict.reason
        message = "the server of this tool does not keep its contract"
        return self._refuse("contract_mismatch", message, code=self.code, reason=reason)

    def _unauthed_error(self, reason: str | None) -> DriverRefusal:
        return self._refuse("auth_required", vault.login_text(self.driver, reason), reason=reason)

    def _refuse(self, refusal: str, message: str, *, retryable: bool = False, **cause: Any) -> DriverRefusal:
        return DriverRefusal(refusal, message, retryable=retryable, cause={"driver": self.driver.key, **cause})

    def _comparison_digest(self) -> str:
        """Return a digest of everything on which the result of comparing the server with its contracts depends."""
        contracts = [self.declared.contracts[each.index] for each in self.driver.implements]
        return checks.about(self.declared.digest, self.installed, contracts)

    # For people

    def running(self) -> RunningServer:
        """Return the state of the running server for the operator API."""
        instance = self._instances.find(None) if self._instances is not None else None
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
    """Return a value that changes whenever the tools, prompts, resources or bindings that a provider offers change."""
    lists = () if listing is None else (listing.tools, listing.prompts, listing.resources, listing.templates)
    return tuple(items.digest for items in lists), {contract: id(each) for contract, each in bound.items()}


@dataclass(eq=False, kw_only=True)
class ProviderFactory:
    """Factory of the providers that run drivers. They share the parts of the node and the limits on installing and
    starting.
    """

    kv: KeyValue
    clock: Clock
    recorder: Recorder
    keepers: dict[str, Keeper]
    link_events: LinkEvents
    credentials: CredentialService
    connector_parts: ConnectorParts
    plan: Callable[[], Plan]  # is called each time a provider is created or its server is installed
    newest: bool = False  # the record of installed releases is neither used nor changed
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)  # of secrets that a file says are there

    def __post_init__(self) -> None:
        self._locks = installation.Locks(self.kv, self.clock)
        self._first = first = self.plan()
        sandboxes = self.connector_parts.sandboxes
        self._vault = vault.Vault(
            store=self.credentials.secrets,
            clock=self.clock,
            record=self.recorder.add_line,
            workspace=str(first.workspace),
            environment=self.environment,
            private=private_paths(first) if sandboxes is None else sandboxes.private,
        )

    def __call__(
        self, declared: Declared, on_changed: OnChanged | None = None, on_step: OnStep | None = None
    ) -> DriverProvider:
        """Create the provider of a driver, without starting it."""
        environment = DriverEnvironment(
            plan=self.plan().drivers,
            data=self._first.data,
            connector_parts=self.connector_parts,
            link_events=self.link_events,
            keepers=self.keepers,
            kv=self.kv,
            install=partial(self._install, declared.real_paths),
            holder_for=self.credentials.holder,
            vault=self._vault,
            vendor_meta=self._first.mcp.meta_pass == "vendor",  # noqa: S105  (a choice, not a password)
        )
        seal = TamperCheck(declared.root, declared.folder, declared.files) if declared.files else None
        return DriverProvider(declared, environment, seal=seal, on_changed=on_changed, on_step=on_step)

    async def _install(
        self, real_paths: Mapping[Path, Path], driver: Driver, folder: Path, say: Callable[[str], None]
    ) -> Installed | InstallFailed:
        """Install a driver's server, in the release that was recorded for it if there is one.

        Install the newest release instead if none is recorded, if the file's install request has changed since, or if
        the recorded release fails the version check. Then record what was installed. Raise StoreError if the record
        cannot be read or written. If it cannot be read, nothing is installed, because the newest release must not
        replace a recorded one.
        """
        plan, connector_parts = self.plan(), self.connector_parts
        is_sandboxed = plan.drivers.sandbox.get(driver.id) != "off"
        lock = None if self.newest else await self._locks.get(driver.key)

        async def installer(anew: bool) -> Installed | InstallFailed:
            request = installation.Installation(
                driver,
                packages=connector_parts.packages,
                folder=folder,
                progress=say,
                reaper=connector_parts.reaper,
                settings=plan.drivers,
                workspace=plan.workspace if folder.is_relative_to(plan.workspace) else folder,
                node=plan.node.name,
                caged=partial(installation.sandboxed_runner, connector_parts, driver.id) if is_sandboxed else None,
            )
            return await install(request, None if anew else lock)

        def runner_of(installed: Installed) -> installation.CommandRunner:
            compiled = kind_of(driver.server).compile_plan(
                driver, installed, folder=folder, data=plan.data, is_sandboxed=is_sandboxed, real_paths=real_paths
            )
            return installation.runner_for(compiled, connector_parts, folder)

        outcome = await install_checked(driver, installer, runner_of)
        if isinstance(outcome, Installed) and outcome.lock != lock and not self.newest:
            await self._locks.put(driver.key, outcome.lock)
        return outcome
