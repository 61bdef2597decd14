"""Reading around nesting that is deeper than Python lets C code go by itself.

The decoder takes 32 bytes of the stack for each level that it only skips over (measured, msgspec 0.22 on x86-64), but
CPython 3.11 counts every level against the limit that protects Python's own recursion: 1,000, less what is on the stack
already. JavaScript reads what is nested any deeper, and so must what stands between. Values are skipped here, never
made: what makes objects of them (`decode_value`) keeps the usual limit.
"""

from collections.abc import Callable
from sys import getrecursionlimit, setrecursionlimit
from typing import Any, Final, TypeVar

from msgspec import Raw

DEPTH_MAX: Final = 10_000  # levels of a message from outside; as many as CPython 3.12 and newer let C code go
_ROOM: Final = DEPTH_MAX + 1000  # of what is inside one: no part of a message that was read may be too deep later

_T = TypeVar("_T")


def decode_deep(decode: Callable[[Any], _T], data: Raw | bytes, depth: int = _ROOM) -> _T:
    """`decode(data)`, with this much room; it raises what `decode` raises. `decode` must be C code that calls none of
    ours: nothing else may recurse so deep."""
    usual = getrecursionlimit()
    setrecursionlimit(usual + depth)
    try:
        return decode(data)
    finally:
        setrecursionlimit(usual)
