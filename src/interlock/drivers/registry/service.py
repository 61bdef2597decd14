"""The parts of drivers that every node has. They load all other modules only when there is a driver.

Without a driver, the cost is a check once per second whether the few driver folders exist. The modules that read driver
files, and the packages that they need (about 20 MiB), are imported when a DRIVER.md is found or an operator calls an
operation. `DriverWatcher` then opens the registry, and `LazyContracts` creates the contract service.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import AsyncFeed
from interlock.core.recorder import Recorder
from interlock.drivers.api import IdleDriver
from interlock.drivers.driver_state import DriverState
from interlock.drivers.workspace.scan import ScanResult, has_roots, roots_of, scan_workspace
from interlock.guard.guard import Guard
from interlock.links.link import LinkEvents
from interlock.store.ports import StoreError

if TYPE_CHECKING:
    from interlock.drivers.contracts.service import Contracts
    from interlock.drivers.provider.provider import DriverProvider
    from interlock.drivers.registry.operations import DriverService
    from interlock.drivers.registry.registry import Registry

log = logging.getLogger("interlock.drivers")

LOOK_S: Final = 1.0
SHARE: Final = 20  # a scan is followed by a pause of at least so many times its time on the processor
LOOK_MAX_S: Final = 10.0
IDLE: Final = (DriverState.UNTRUSTED.value, DriverState.REJECTED.value)

Open = Callable[[Plan], "DriverService"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractParts:
    """Parts of the node that are needed to offer contracts and to carry out their calls."""

    current: CurrentPlan
    catalog: Catalog
    taken: Mapping[str, object]  # by segment: configured servers and registrants
    link_events: LinkEvents
    clock: Clock
    guard: Guard[Route]
    recorder: Recorder
    keep: Callable[[Iterable[str]], None]  # gets the segments that must not be registered
    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)  # steps of calls that take time


class LazyContracts:
    """Holder of the service that offers contracts. The service is imported and created only when there is a driver."""

    def __init__(self, parts: ContractParts, ruled: AsyncFeed[str]) -> None:
        """Prepare to offer contracts. `ruled` reports the segment of a tool whose rules an operator has changed."""
        self.current: Contracts | None = None
        self._parts = parts
        ruled.subscribe(self._restock)

    async def _restock(self, segment: str) -> None:
        if self.current is not None:
            await self.current.restock(segment)

    def get(self) -> "Contracts":
        if self.current is None:
            from interlock.drivers.contracts.service import Contracts

            self.current = Contracts(self._parts)
        return self.current


class DriverWatcher:
    """Watcher of the driver folders. It looks at them regularly, and opens the registry as soon as there is a
    driver.
    """

    def __init__(self, plan: Plan, open_: Open) -> None:
        """Prepare to watch the driver folders. `open_` creates the registry and the service for its operations."""
        self.plan = plan
        self.settled = asyncio.Event()  # the drivers that were there at the start are registered
        self._service: DriverService | None = None
        self._open = open_
        self._opening = asyncio.Lock()
        self._scan_now = asyncio.Event()
        self._seen = ScanResult()
        self._watching = BackgroundTasks()

    @property
    def registry(self) -> "Registry | None":
        """Return the registry of drivers, or None if it has not been opened, because there is no driver."""
        return self._service.registry if self._service is not None else None

    async def open(self) -> None:
        self._watching.begin(self._watch(), "drivers")

    async def close(self) -> None:
        await self._watching.close()
        if self.registry is not None:
            await self.registry.close()

    async def replan(self, plan: Plan) -> None:
        self.plan = plan
        if self.registry is not None:
            self.registry.replan(plan)
            await self.registry.refresh()
            await self.registry.publish()
        self._scan_now.set()

    def idle(self) -> list[IdleDriver]:
        """Return the drivers that are not in use, because they wait for a person's decision or their files are
        unusable.
        """
        if self.registry is None:
            return []
        drivers, running = self.registry.declaration.drivers, self.registry.providers
        states = [(driver.id, *self.registry.state_of(driver)) for driver in drivers if driver.key not in running]
        return [IdleDriver(id=id, state=state, reason=why) for id, state, why in states if state in IDLE]

    def on_secret(self, slug: str) -> list[str]:
        """Restart the servers that use the secret `slug`, because its value has changed. Return their segments."""
        providers = self.registry.providers.values() if self.registry is not None else ()
        return [segment for provider in providers for segment in provider.on_secret(slug)]

    @property
    def is_settled(self) -> bool:
        """Return whether every driver has been started once, successfully or not."""
        return self.settled.is_set() and all(provider.settled.is_set() for provider in self._providers())

    async def settle(self, seconds: float) -> None:
        """Wait until every driver that was there at the start has been started once, successfully or not, but at most
        `seconds`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.settle_all()

    async def settle_all(self) -> None:
        """Wait until every driver that was there at the start has been started once, successfully or not."""
        await self.settled.wait()
        for provider in self._providers():
            await provider.settled.wait()

    def _providers(self) -> "list[DriverProvider]":
        return list(self.registry.providers.values()) if self.registry is not None else []

    async def service(self) -> "DriverService":
        """Return the service for an operator's operations on drivers. Open the registry if necessary. Raise StoreError
        if that fails.
        """
        async with self._opening:
            if self._service is None:
                service = await asyncio.to_thread(self._open, self.plan)
                await service.registry.memory.open()
                self._service = service
            return self._service

    async def _watch(self) -> None:
        while True:
            took = 0.0
            try:
                took = await self._scan()
            except StoreError as refused:
                log.error("drivers: %s", refused)
            except Exception:
                log.exception("the drivers could not be looked at")
            self.settled.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._scan_now.wait(), min(max(LOOK_S, took * SHARE), LOOK_MAX_S))
            self._scan_now.clear()

    async def _scan(self) -> float:
        """Look at the driver folders once, and refresh the registry if they have changed. Return the processor time in
        seconds.

        Raise StoreError if a record cannot be stored; the next scan then tries again.
        """
        if self.registry is None and not has_roots(roots_of(self.plan)):
            return 0.0
        declaration = self.registry.declaration if self.registry is not None else None
        others, opened = ((), ()) if declaration is None else (declaration.others, declaration.opened)

        def timed_scan() -> tuple[ScanResult, float]:
            began = time.thread_time()
            return scan_workspace(self.plan, others, opened=opened), time.thread_time() - began

        seen, took = await asyncio.to_thread(timed_scan)
        if seen == self._seen:
            return took
        registry = (await self.service()).registry if seen.folders or seen.problems else self.registry
        if registry is not None:
            try:
                await registry.refresh(seen, starting=not self.settled.is_set())
            except StoreError:
                raise
            except Exception:
                self._seen = seen  # log the failure once, not every second
                raise
            self._seen = seen
        return took
