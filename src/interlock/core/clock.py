"""Time, as the runtime sees it: a monotonic clock for intervals, the wall clock for what is shown and stored."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return monotonic seconds, for deadlines, windows and ages."""

    def wall(self) -> float:
        """Return seconds since 1970, for displayed times and token validity only."""


class SystemClock:
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


def rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # AX-7.1-2


def rfc3339_ms(wall: float) -> str:
    """Return a time with milliseconds, for events that follow each other quickly."""
    return datetime.fromtimestamp(round(wall, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
