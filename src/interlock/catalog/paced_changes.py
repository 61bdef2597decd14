"""Changes that come often, told together: one at once, and what follows it once the pause is over (X-10.1-3)."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

PAUSE_S: Final = 30.0


class PacedChanges:
    def __init__(self, tell: Callable[[frozenset[str]], None], pause_s: float = PAUSE_S) -> None:
        self._tell_now = tell
        self._pause_s = pause_s
        self._kinds: frozenset[str] = frozenset()
        self._told = -inf  # in the time of the loop
        self._timer: asyncio.TimerHandle | None = None

    def add(self, kinds: frozenset[str]) -> None:
        self._kinds |= kinds
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._told + self._pause_s - loop.time()), self._tell)

    def _tell(self) -> None:
        self._timer, self._told = None, asyncio.get_running_loop().time()
        kinds, self._kinds = self._kinds, frozenset()
        self._tell_now(kinds)
