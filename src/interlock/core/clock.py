"""Time, as the runtime sees it: a monotonic clock for intervals, the wall clock for what is shown and stored."""

import time
from datetime import UTC, datetime


class Clock:
    """The monotonic clock and the wall clock of the machine.

    Tests replace it with a class that has the same two methods.
    """

    now = staticmethod(time.monotonic)  # for deadlines, windows and ages; it never goes back
    wall = staticmethod(time.time)  # seconds since 1970, for displayed times and the validity of tokens only


def rfc3339(wall: float) -> str:
    """Format a time in UTC with whole seconds."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # AX-7.1-2


def rfc3339_ms(wall: float) -> str:
    """Format a time in UTC with milliseconds, for events that follow each other quickly."""
    return datetime.fromtimestamp(round(wall, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
