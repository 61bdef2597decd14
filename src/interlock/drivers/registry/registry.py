"""The registry of a node's drivers: what lies on disk, what of it is accepted, and one provider for each that may run.

A look at the folders becomes a declaration (`survey`, off the loop); the declaration becomes providers. One whose
files, contracts and settings are as before is not touched. A changed one is replaced: the new provider takes calls at
once, the old one ends when its calls have. Nothing is made, installed or started for a folder that is not accepted as
it is now.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.feed import AsyncFeed
from interlock.drivers.api import RunningServer
from interlock.drivers.contracts.contract import ContractTable
from interlock.drivers.interfaces import DriverState, Provider
from interlock.drivers.protocol.identity import HostMachine
from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.workspace.declaration import Declaration, Declared, Memory, changed_keys
from interlock.drivers.workspace.scan import ScanResult, scan_workspace
from interlock.drivers.workspace.survey import Surveyor

STOPPED: Final = "stopped"

log = logging.getLogger("interlock.drivers")

REST_SHARE: Final = 10  # two hundred drivers that come up one after the other are taken up together
REST_MAX_S: Final = 1.0


class RunningProvider(Provider, Protocol):
    """A provider that can be stopped: `stop` waits for the calls that hold a lease, unless `at_once`."""

    settled: asyncio.Event  # the first verdict is there

    def running(self) -> RunningServer:
        """Return the state of the server, for people."""

    def start(self) -> None: ...

    def succeed(self, other: Provider) -> None:
        """Keep listing what `other` served until this provider's server was checked; both have the same files."""

    def on_secret(self, slug: str) -> tuple[str, ...]:
        """Restart the servers that use a secret that was set, and return their segments."""

    async def stop(self, *, at_once: bool = False) -> None: ...


OnChanged = Callable[[Any], None]  # a provider offers something else
Factory = Callable[[Declared, OnChanged], RunningProvider]
Take = Callable[[ContractTable], Awaitable[None]]


class _ProviderEntry(msgspec.Struct, frozen=True):
    provider: RunningProvider
    made_of: tuple[object, ...]


class Registry:
    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        machine: HostMachine,
        *,
        factory: Factory | None = None,
        take: Take | None = None,
        offered_problems: Callable[[], Sequence[FileProblem]] = tuple,
        declared: AsyncFeed[Declaration] | None = None,
    ) -> None:
        """Prepare a registry of the drivers in the workspace of `plan`.

        Without a `factory` it only reads drivers and starts nothing. `offered_problems`: returns the problems in what
        all drivers offer together. `declared`: gets each declaration after it took effect.
        """
        self.plan = plan
        self.memory = memory
        self.declaration = Declaration()
        self.sight = ScanResult()
        self.offered_problems = offered_problems
        self._factory = factory
        self._take = take
        self._declared: AsyncFeed[Declaration] = declared or AsyncFeed()
        self._machine = machine
        self._surveyor = Surveyor(plan, machine)
        self._basis: tuple[ScanResult, int, Surveyor] | None = None  # what the declaration was made of
        self._kept: dict[str, _ProviderEntry] = {}
        self._leaving = BackgroundTasks()
        self._refreshing = asyncio.Lock()
        self._publishing: asyncio.Task[None] | None = None
        self._published = ContractTable()
        self._stale = False

    # Looking

    async def refresh(self, sight: ScanResult | None = None, *, starting: bool = False) -> Declaration:
        """Read the drivers on disk; start, replace or stop providers.

        `starting`: this is the node's first scan. Raises StoreError if a record cannot be stored.
        """
        async with self._refreshing:
            if sight is None:
                declaration = self.declaration
                sight = await asyncio.to_thread(
                    scan_workspace, self.plan, declaration.others, opened=declaration.opened
                )
            basis = (sight, self.memory.revision, self._surveyor)
            if basis == self._basis:
                return self.declaration
            new = await asyncio.to_thread(self._surveyor.survey, sight, self.memory.all)
            old, self.declaration, self.sight = self.declaration, new, sight
            if self._factory is not None:
                _log_changes(old, new, starting=starting)
                await self._put_into_effect(new, self._factory)
            self._basis = basis
        await self._declared.publish(new)
        return new

    async def current(self) -> Declaration:
        """Refresh; while another refresh is running, return the last result: many drivers take their time."""
        if self._refreshing.locked() and self.declaration.drivers:
            return self.declaration
        return await self.refresh()

    async def renew(self, key: str) -> None:
        """Replace the provider: another release of its server is on record. Raises StoreError."""
        async with self._refreshing:
            if key in self._kept:
                self._leave(key)
            self._basis = None
        await self.refresh()

    def replan(self, plan: Plan) -> None:
        """Set the plan for the next scan."""
        self.plan = plan
        self._surveyor = Surveyor(plan, self._machine)

    async def _put_into_effect(self, declaration: Declaration, factory: Factory) -> None:
        wanted = {declared.key: declared for declared in declaration.drivers if declared.is_fit and declared.trusted}
        for key in self._kept.keys() - wanted.keys():
            self._leave(key)
        made_of = {key: _build_inputs(declared, self.plan) for key, declared in wanted.items()}
        changed = [key for key, inputs in made_of.items() if key not in self._kept or self._kept[key].made_of != inputs]
        # All at once: each waits for the disk.
        registered = await asyncio.gather(
            *(self.memory.register(declared.driver) for key in changed if (declared := wanted[key]).driver is not None),
            return_exceptions=True,
        )
        trouble: BaseException | None = None
        for key, failed in zip(changed, registered, strict=True):
            if failed is not None:
                trouble = failed
                continue
            before = self._kept.get(key)
            if before is not None:
                self._leave(key)
            provider = factory(wanted[key], self._on_changed)
            if before is not None and _has_same_files(before.made_of, made_of[key]):
                provider.succeed(before.provider)
            self._kept[key] = _ProviderEntry(provider, made_of[key])
            provider.start()
        await self.publish(anyway=False)
        if trouble is not None:
            raise trouble

    def _leave(self, key: str, *, at_once: bool = False) -> None:
        provider = self._kept.pop(key).provider
        self._leaving.begin(provider.stop(at_once=at_once), f"stopping driver {key}")

    async def wait_until_stopped(self) -> None:
        """Wait until every replaced or removed provider has ended."""
        await self._leaving.finish()

    async def close(self) -> None:
        async with self._refreshing:
            for key in list(self._kept):
                self._leave(key, at_once=True)
            if self._publishing is not None:
                self._publishing.cancel()
                await asyncio.gather(self._publishing, return_exceptions=True)
            await self._leaving.finish()

    # What the contract side is told

    def _on_changed(self, provider: RunningProvider) -> None:
        """Publish changes of a provider soon, several together; changes of a replaced provider are ignored."""
        if not any(entry.provider is provider for entry in self._kept.values()):
            return
        self._stale = True
        if self._publishing is None or self._publishing.done():
            loop = asyncio.get_running_loop()
            self._publishing = loop.create_task(self._publish_again(), name="drivers changed")

    async def _publish_again(self) -> None:
        while self._stale:
            self._stale = False
            began = asyncio.get_running_loop().time()
            try:
                await self.publish()
            except Exception:
                log.exception("what drivers offer could not be taken up")
            took = asyncio.get_running_loop().time() - began
            await asyncio.sleep(min(REST_MAX_S, took * REST_SHARE))

    async def publish(self, *, anyway: bool = True) -> None:
        """Pass the table of contracts on if it changed.

        `anyway`: pass it on although it looks the same, because a provider's offer or the choice of one may differ.
        """
        table = self.table()
        if self._take is not None and (anyway or table != self._published):
            self._published = table
            await self._take(table)

    def table(self) -> ContractTable:
        contracts: dict[str, Contract] = {}
        providers: dict[str, tuple[Provider, ...]] = {}
        declared = {driver.key: driver for driver in self.declaration.drivers}
        for key in sorted(self._kept):
            provider = self._kept[key].provider
            for contract in declared[key].contracts.values():
                if contract.id in provider.contract_ids:
                    contracts.setdefault(contract.id, contract)
                    providers[contract.id] = (*providers.get(contract.id, ()), provider)
        drivers = tuple(self._kept[key].provider for key in sorted(self._kept))
        return ContractTable(contracts=contracts, providers=providers, drivers=drivers)

    # Asking

    @property
    def providers(self) -> Mapping[str, RunningProvider]:
        return {key: entry.provider for key, entry in self._kept.items()}

    def state_of(self, declared: Declared) -> tuple[str, str | None]:
        """Return the state of a driver and the reason for it. A driver without a provider is stopped."""
        if declared.state is not None:
            return declared.state.value, declared.reason
        if not declared.trusted:
            return DriverState.UNTRUSTED.value, "the folder has not been accepted as it is now"
        entry = self._kept.get(declared.key)
        if entry is None:
            return STOPPED, None
        return entry.provider.state.value, entry.provider.reason


def _build_inputs(declared: Declared, plan: Plan) -> tuple[object, ...]:
    """Return the inputs of a provider, which is replaced when one of them changes."""
    drivers = plan.drivers
    return (
        declared.digest,
        declared.driver,
        dict(declared.contracts),
        dict(declared.secrets),
        declared.own_secrets,
        drivers.sandbox.get(declared.id),
        drivers.result_bytes.get(declared.id),
        drivers.registration,
        drivers.idle_timeout_s,
        drivers.on_mismatch,
        drivers.ca_file,
        drivers.npx,
        drivers.allow_unverified_install,
    )


def _has_same_files(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    """Check whether the digest and the contracts are unchanged, so that only an operator's setting differs."""
    return (before[0], before[2]) == (now[0], now[2])


def _log_changes(old: Declaration, new: Declaration, *, starting: bool) -> None:
    """Log what changed, before it takes effect.

    A folder that is new to a running node is logged at a lower level: it waits in the inbox, and its author is about to
    trust it (`interlock add`).
    """
    before = {(declared.key, declared.folder): declared for declared in old.drivers}
    now = {(declared.key, declared.folder): declared for declared in new.drivers}
    for (key, _), declared in before.items():
        if (key, declared.folder) not in now:
            log.info("driver %s is gone", declared.segment)
    for (key, folder), declared in now.items():
        was = before.get((key, folder))
        if was is not None and (was.digest, was.trusted, was.state) == (
            declared.digest,
            declared.trusted,
            declared.state,
        ):
            continue
        if was is not None and was.digest != declared.digest:
            names = sorted(changed_keys(declared.covered, was.covered))
            log.info("driver %s changed: %s", declared.segment, ", ".join(names[:10]))
        if declared.reason is not None:
            log.warning("driver %s cannot be used: %s", declared.segment, declared.reason)
        elif not declared.trusted:
            level = logging.INFO if was is None and not starting else logging.WARNING
            log.log(
                level,
                "driver %s is not trusted yet: interlock drivers trust %s shows it",
                declared.segment,
                declared.segment,
            )
        for problem in declared.problems:
            if problem.severity == "warning":
                log.warning("driver %s: %s", declared.segment, problem)
