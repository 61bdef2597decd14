"""The number of calls that some work takes, as a measure that no other load of the machine changes."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooManyCalls(BaseException):
    """More calls than the work may make. The work is ended where it is."""


def count_calls(work: Callable[[], object], most: int = 10_000_000) -> int:
    """Return how many functions, of Python and of C, are called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > most:
            sys.setprofile(None)
            raise TooManyCalls(f"more than {most}")

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(former)
    return calls
