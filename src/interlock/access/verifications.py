"""The limits of verifications that wait for an authorization server, by the source of the request.

Anybody can make up tokens that only their server can judge. A source has few such verifications waiting and fewer
questions at its server, so sources take turns there, and one of them cannot shut out the others.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from interlock.approvals.trust.key_sets import Unavailable
from interlock.net.fetch import CONNECTIONS_MAX

WAITING_MAX: Final = 1024
WAITING_PER_SOURCE_MAX: Final = 64
ASKING_MAX: Final = CONNECTIONS_MAX - 1  # one connection is left for tokens that the server confirmed before
ASKING_PER_SOURCE_MAX: Final = ASKING_MAX - 1
ASKING_S: Final = 10.0  # with the wait for a turn


class _Source:
    def __init__(self) -> None:
        self.waiting = 0
        self.turns = asyncio.Semaphore(ASKING_PER_SOURCE_MAX)


class Verifications:
    def __init__(self) -> None:
        self._waiting = 0
        self._sources: dict[str, _Source] = {}  # those with verifications that wait
        self._turns = asyncio.Semaphore(ASKING_MAX)

    @contextmanager
    def waiting(self, source: str) -> Iterator[_Source]:
        """One verification of the source that waits. Raises Unavailable where too many do."""
        held = self._sources.get(source)
        if self._waiting >= WAITING_MAX or (held is not None and held.waiting >= WAITING_PER_SOURCE_MAX):
            raise Unavailable
        if held is None:
            held = self._sources[source] = _Source()
        self._waiting += 1
        held.waiting += 1
        try:
            yield held
        finally:
            self._waiting -= 1
            held.waiting -= 1
            if not held.waiting:
                del self._sources[source]

    @asynccontextmanager
    async def asking(self, source: str) -> AsyncIterator[None]:
        """One question of the source, when it is its turn. Raises Unavailable."""
        try:
            with self.waiting(source) as held:
                async with asyncio.timeout(ASKING_S), held.turns, self._turns:
                    yield
        except TimeoutError:
            raise Unavailable from None
