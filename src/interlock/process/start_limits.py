"""How many servers install or start at one time, of all that a node has.

Two hundred interpreters that start at once leave no time for the calls of others. A server that takes long to come up
delays few others: after a while its start counts no more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

INSTALLS_MAX: Final = 4  # each is a download and a build
STARTS_MAX: Final = 8
START_S: Final = 5.0  # a server that is not up by then waits for something, and takes no more of the machine


class StartLimits:
    def __init__(self) -> None:
        self.installs = asyncio.Semaphore(INSTALLS_MAX)
        self._starts = asyncio.Semaphore(STARTS_MAX)

    @property
    def is_full(self) -> bool:
        """Whether another start has to wait."""
        return self._starts.locked()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Entered when there is room for another start, which ends with the block, or after START_S."""
        await self._starts.acquire()
        left = [self._starts.release]

        def end() -> None:
            if left:
                left.pop()()

        timer = asyncio.get_running_loop().call_later(START_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()
