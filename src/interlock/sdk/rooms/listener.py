"""Listeners: what a participant hears, for its own program to read.

A listener that is not read holds the connection back; the gateway then ends it, and it is resumed where it stopped as
soon as there is room: nothing is left out, and nothing piles up (X-5.2-6).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from interlock.sdk.rooms.model import Heard

HEARD_MAX: Final = 1000  # that wait to be read


class Listener:
    """`async for heard in listener`; ends when the participant closes, or raises why it lost the room for good."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when it becomes full or has room again, and when it is closed."""
        self._on_change = on_change
        self._waiting: deque[Heard] = deque()
        self._news = asyncio.Event()
        self._is_over = False
        self._why: Exception | None = None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= HEARD_MAX and not self._is_over

    @property
    def is_over(self) -> bool:
        return self._is_over

    def put(self, heard: Heard) -> None:
        if self._is_over:
            return
        self._waiting.append(heard)
        self._news.set()
        if len(self._waiting) == HEARD_MAX:
            self._on_change()

    def end(self, why: Exception | None = None) -> None:
        """After what waits was read."""
        if not self._is_over:
            self._is_over, self._why = True, why
            self._news.set()

    def close(self) -> None:
        """It wants no more."""
        self._waiting.clear()
        self.end()
        self._on_change()

    def __aiter__(self) -> "Listener":
        return self

    async def __anext__(self) -> Heard:
        while not self._waiting:
            if self._is_over:
                if self._why is not None:
                    raise self._why
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        heard = self._waiting.popleft()
        if len(self._waiting) == HEARD_MAX // 2:
            self._on_change()
        return heard
