"""When operations of an adapter run beside each other (9.3.1), and at most how many."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final, Literal, get_args

Concurrency = Literal["serialized", "read-concurrent", "fully-concurrent", "resource-locked"]
CONCURRENCIES: Final[tuple[Concurrency, ...]] = get_args(Concurrency)


class Schedule:
    """`serialized`: one after the other. `read-concurrent`: a write has nothing beside it. `resource-locked`: writes of
    one resource one after the other. `fully-concurrent`: no waiting. `most`: calls at once; further ones wait."""

    def __init__(self, kind: Concurrency, most: int | None) -> None:
        self.kind = kind
        self._room = None if most is None else asyncio.Semaphore(most)
        self._changed = asyncio.Condition()
        self._readers = 0
        self._is_writing = False
        self._locks: defaultdict[Hashable, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wanted: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def turn(self, *, is_read: bool, resource: Hashable) -> AsyncIterator[None]:
        """`resource`: the identifiers of a call."""
        if self._room is None:
            async with self._alone(is_read=is_read, resource=resource):
                yield
            return
        async with self._room, self._alone(is_read=is_read, resource=resource):
            yield

    @asynccontextmanager
    async def _alone(self, *, is_read: bool, resource: Hashable) -> AsyncIterator[None]:
        if self.kind == "serialized" or (self.kind == "resource-locked" and not is_read):  # AQL-9.3.1-1
            async with self._locked("" if self.kind == "serialized" else resource):
                yield
        elif self.kind == "read-concurrent":  # AQL-9.3.1-1
            async with self._changed:
                await self._changed.wait_for(lambda: not self._is_writing and (is_read or not self._readers))
                self._readers += is_read
                self._is_writing = not is_read
            try:
                yield
            finally:
                await asyncio.shield(self._leave(is_read))
        else:
            yield

    async def _leave(self, is_read: bool) -> None:
        async with self._changed:
            if is_read:
                self._readers -= 1
            else:
                self._is_writing = False
            self._changed.notify_all()

    @asynccontextmanager
    async def _locked(self, key: Hashable) -> AsyncIterator[None]:
        self._wanted[key] += 1
        try:
            async with self._locks[key]:
                yield
        finally:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key], self._locks[key]
