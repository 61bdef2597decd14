"""Lazy contracts: the contract service is imported and built with the first driver."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import AsyncFeed
from interlock.core.recorder import Recorder
from interlock.guard.guard import Guard
from interlock.links.link import LinkEvents

if TYPE_CHECKING:
    from interlock.drivers.contracts.service import Contracts


class LazyContracts:
    def __init__(
        self,
        current: CurrentPlan,
        *,
        catalog: Catalog,
        taken: Mapping[str, object],
        link_events: LinkEvents,
        clock: Clock,
        guard: Guard[Route],
        recorder: Recorder,
        keep: Callable[[Iterable[str]], None],
        ruled: AsyncFeed[str],
    ) -> None:
        """Prepare to offer contracts as soon as there are any.

        `taken` holds the segments of servers and registrants. `keep` receives the segments that must not be registered.
        `ruled` reports the segment of a tool when an operator changes its rules.
        """
        self._current = current
        self._catalog = catalog
        self._taken = taken
        self._link_events = link_events
        self._clock = clock
        self._guard = guard
        self._recorder = recorder
        self._keep = keep
        self.maybe: Contracts | None = None
        ruled.subscribe(self._restock)

    async def _restock(self, segment: str) -> None:
        if self.maybe is not None:
            await self.maybe.restock(segment)

    def get(self) -> "Contracts":
        if self.maybe is None:
            from interlock.drivers.contracts.service import Contracts

            self.maybe = Contracts(
                self._current.plan,
                catalog=self._catalog,
                taken=self._taken,
                link_events=self._link_events,
                clock=self._clock,
                guard=self._guard,
                recorder=self._recorder,
                keep=self._keep,
            )
        return self.maybe
