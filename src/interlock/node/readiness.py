"""Whether every link of a node had its first chance."""

import asyncio
from collections.abc import Mapping
from typing import Final

from interlock.core.clock import Clock
from interlock.links.keeper import Keeper

READY_S: Final = 3.0  # how long servers that are still connecting are waited for


class Readiness:
    def __init__(self, keepers: Mapping[str, Keeper], clock: Clock) -> None:
        self._keepers = keepers
        self._clock = clock
        self._started = clock.now()

    @property
    def is_settled(self) -> bool:
        return all(keeper.settled.is_set() for keeper in self._keepers.values())

    def is_ready(self) -> bool:
        """Every server had its first chance; one that hangs does not hold the rest back."""
        return self.is_settled or self._clock.now() - self._started > READY_S

    async def settle(self, seconds: float | None) -> None:
        """Until every link's first attempt has ended, at most so long."""
        waits = [asyncio.ensure_future(keeper.settled.wait()) for keeper in self._keepers.values()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=seconds)
            for wait in pending:
                wait.cancel()
