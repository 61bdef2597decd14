"""The registry of a node's drivers: which are on disk, which are accepted, and one provider for each that may run.

Theory of operation. A scan of the folders produces a declaration (`Surveyor`, in a thread), from which the providers
are made (`_apply`). A provider stays untouched if its files, contracts and settings are unchanged. Otherwise it is
replaced: the new provider receives calls at once, and the old one ends when its calls have ended. A folder without a
valid acceptance gets no provider, so nothing in it is installed or started.

When a provider offers something different, the table of contracts is published to the contract service. Changes in
quick succession are published together.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.feed import AsyncFeed
from interlock.dispatch.absent_tools import AbsentServer
from interlock.drivers.contracts.contract import ContractTable
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.binding.effects import qualified_name
from interlock.drivers.protocol.identity import HostMachine
from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.provider.provider import DriverProvider, OnChanged
from interlock.drivers.workspace.declaration import Declaration, Declared, Memory, changed_keys
from interlock.drivers.workspace.scan import ScanResult, scan_workspace
from interlock.drivers.workspace.survey import Surveyor

if TYPE_CHECKING:
    from interlock.drivers.contracts.service import Contracts

STOPPED: Final = "stopped"

log = logging.getLogger("interlock.drivers")

# Two hundred drivers that come up one after the other are published together.
REST_SHARE: Final = 10
REST_MAX_S: Final = 1.0


Factory = Callable[[Declared, OnChanged], DriverProvider]


class _ProviderEntry(msgspec.Struct, frozen=True):
    """A provider, and the inputs from which it was created. If an input changes, the provider is replaced."""

    provider: DriverProvider
    made_of: tuple[object, ...]


@dataclass(eq=False)
class Registry:
    """The drivers of one workspace and the providers that run the trusted ones."""

    plan: Plan
    memory: Memory
    machine: HostMachine
    _: KW_ONLY
    factory: Factory | None = None  # without it, drivers are only read, and nothing is started
    contracts: "Contracts | None" = None  # receives the table of contracts after each change
    declared: AsyncFeed[Declaration] = field(default_factory=AsyncFeed)  # receives each declaration that took effect

    def __post_init__(self) -> None:
        self.declaration = Declaration()
        self.sight = ScanResult()
        self._surveyor = Surveyor(self.plan, self.machine)
        self._basis: tuple[ScanResult, int, Surveyor] | None = None  # the inputs of the declaration
        self._entries: dict[str, _ProviderEntry] = {}
        self.stopping = BackgroundTasks()  # the ends of replaced and removed providers
        self._refreshing = asyncio.Lock()
        self._publishing: asyncio.Task[None] | None = None
        self._published = ContractTable()
        self._stale = False

    # Scanning

    async def refresh(self, sight: ScanResult | None = None, *, starting: bool = False) -> Declaration:
        """Read the driver files, and start, replace or stop providers if something has changed. Return all drivers as
        they are declared now.

        `starting` marks the first scan of the node. Raise StoreError if a record cannot be stored.
        """
        async with self._refreshing:
            if sight is None:
                others, opened = self.declaration.others, self.declaration.opened
                sight = await asyncio.to_thread(scan_workspace, self.plan, others, opened=opened)
            basis = (sight, self.memory.revision, self._surveyor)
            if basis == self._basis:
                return self.declaration
            new = await asyncio.to_thread(self._surveyor.survey, sight, self.memory.all)
            old, self.declaration, self.sight = self.declaration, new, sight
            if self.factory is not None:
                _log_changes(old, new, starting=starting)
                await self._apply(new, self.factory)
            self._basis = basis
        await self.declared.publish(new)
        return new

    async def current(self) -> Declaration:
        """Read the driver files and return all drivers. If the files are already being read, return the drivers of the
        last reading, if any.
        """
        if self._refreshing.locked() and self.declaration.drivers:
            return self.declaration
        return await self.refresh()

    async def renew(self, key: str) -> None:
        """Replace the provider of a driver, because another release of its server is to be used. Raise StoreError if a
        record cannot be stored.
        """
        async with self._refreshing:
            if key in self._entries:
                self._stop_provider(key)
            self._basis = None
        await self.refresh()

    def replan(self, plan: Plan) -> None:
        """Use the settings of `plan` from the next refresh on."""
        self.plan = plan
        self._surveyor = Surveyor(plan, self.machine)

    async def _apply(self, declaration: Declaration, factory: Factory) -> None:
        wanted = {declared.key: declared for declared in declaration.drivers if declared.is_fit and declared.trusted}
        for key in self._entries.keys() - wanted.keys():
            self._stop_provider(key)
        made_of = {key: _build_inputs(declared, self.plan) for key, declared in wanted.items()}
        changed = [
            key for key, inputs in made_of.items() if key not in self._entries or self._entries[key].made_of != inputs
        ]
        # All at once: each waits for the disk.
        drivers = [driver for key in changed if (driver := wanted[key].driver) is not None]
        writes = (self.memory.register(driver) for driver in drivers)
        registered = await asyncio.gather(*writes, return_exceptions=True)
        trouble: BaseException | None = None
        for key, failed in zip(changed, registered, strict=True):
            if failed is not None:
                trouble = failed
                continue
            before = self._entries.get(key)
            if before is not None:
                self._stop_provider(key)
            provider = factory(wanted[key], self._on_changed)
            # The digest and the contracts: only a setting of the operator differs.
            if before is not None and all(before.made_of[index] == made_of[key][index] for index in (0, 2)):
                provider.succeed(before.provider)
            self._entries[key] = _ProviderEntry(provider, made_of[key])
            provider.start()
        await self.publish(anyway=False)
        if trouble is not None:
            raise trouble

    def _stop_provider(self, key: str, *, at_once: bool = False) -> None:
        provider = self._entries.pop(key).provider
        self.stopping.begin(provider.stop(at_once=at_once), f"stopping driver {key}")

    async def close(self) -> None:
        async with self._refreshing:
            for key in list(self._entries):
                self._stop_provider(key, at_once=True)
            if self._publishing is not None:
                self._publishing.cancel()
                await asyncio.gather(self._publishing, return_exceptions=True)
            await self.stopping.finish()

    # The table of contracts

    def _on_changed(self, provider: DriverProvider) -> None:
        """Publish what a provider now offers, after a short delay in which further changes may come. Ignore a provider
        that was replaced.
        """
        if not any(entry.provider is provider for entry in self._entries.values()):
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
        """Pass all contracts, with the providers that serve each of them, to the service that offers them to clients.

        With `anyway`, pass it on even if it looks unchanged, because a provider may offer something different.
        """
        table = self.table()
        if self.contracts is not None and (anyway or table != self._published):
            self._published = table
            await self.contracts.take(table)

    def table(self) -> ContractTable:
        """Return all contracts, each with the providers that currently serve it."""
        contracts: dict[str, Contract] = {}
        providers: dict[str, tuple[DriverProvider, ...]] = {}
        declared = {driver.key: driver for driver in self.declaration.drivers}
        for key in sorted(self._entries):
            provider = self._entries[key].provider
            for contract in declared[key].contracts.values():
                if contract.id in provider.contract_ids:
                    contracts.setdefault(contract.id, contract)
                    providers[contract.id] = (*providers.get(contract.id, ()), provider)
        drivers = tuple(self._entries[key].provider for key in sorted(self._entries))
        return ContractTable(contracts=contracts, providers=providers, drivers=drivers)

    # Views

    @property
    def providers(self) -> Mapping[str, DriverProvider]:
        return {key: entry.provider for key, entry in self._entries.items()}

    def state_of(self, declared: Declared) -> tuple[str, str | None]:
        """Return the state of a driver and the reason for it. A trusted driver without a provider is stopped."""
        if declared.state is not None:
            return declared.state.value, declared.reason
        if not declared.trusted:
            return DriverState.UNTRUSTED.value, "the folder has not been accepted as it is now"
        entry = self._entries.get(declared.key)
        if entry is None:
            return STOPPED, None
        provider = entry.provider
        if provider.unlisted is not None and provider.state is DriverState.READY:
            return DriverState.PARTIAL.value, provider.unlisted
        return provider.state.value, provider.reason

    def absent_servers(self) -> Iterator[AbsentServer]:
        """Yield the drivers of which at least one contract is not served, with the names of the contracts that are not
        served.
        """
        for declared in self.declaration.drivers:
            entry = self._entries.get(declared.key)
            served = entry.provider.contract_ids if entry is not None else frozenset()
            tools: dict[str, set[str]] = {}
            for contract in declared.contracts.values():
                name = qualified_name(contract)
                if contract.id not in served and not isinstance(name, FileProblem):
                    tools.setdefault(name[0], set()).add(name[1])
            state, reason = self.state_of(declared)
            for segment, locals_ in tools.items():
                yield AbsentServer(segment=segment, state=state, detail=reason, tools=frozenset(locals_))


def _build_inputs(declared: Declared, plan: Plan) -> tuple[object, ...]:
    """Return all values from which a driver's provider is created. The provider is replaced if any of them changes."""
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


def _log_changes(old: Declaration, new: Declaration, *, starting: bool) -> None:
    """Log which drivers are new, changed, gone, unusable or not trusted yet.

    A folder that is new to a running node is logged at a lower level, because it is shown in the inbox and its author
    is usually about to trust it (`interlock add`).
    """
    before = {(declared.key, declared.folder): declared for declared in old.drivers}
    now = {(declared.key, declared.folder): declared for declared in new.drivers}
    for place in before.keys() - now.keys():
        log.info("driver %s is gone", before[place].segment)
    for place, declared in now.items():
        was = before.get(place)
        decisive = (declared.digest, declared.trusted, declared.state)
        if was is not None and (was.digest, was.trusted, was.state) == decisive:
            continue
        if was is not None and was.digest != declared.digest:
            names = sorted(changed_keys(declared.covered, was.covered))
            log.info("driver %s changed: %s", declared.segment, ", ".join(names[:10]))
        if declared.reason is not None:
            log.warning("driver %s cannot be used: %s", declared.segment, declared.reason)
        elif not declared.trusted:
            level = logging.INFO if was is None and not starting else logging.WARNING
            message = "driver %s is not trusted yet: interlock drivers trust %s shows it"
            log.log(level, message, declared.segment, declared.segment)
        for problem in declared.problems:
            if problem.severity == "warning":
                log.warning("driver %s: %s", declared.segment, problem)
