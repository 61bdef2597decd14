"""Limits on what a connection may send unasked: bytes that are no message, and notifications."""

import re
from typing import Final

GARBAGE_MAX: Final = 1000  # messages of one connection that are not JSON-RPC, before it is given up
BANNER_MAX: Final = 100  # of them before it is greeted: a banner is shorter (AIP-transport-6)
UNASKED_PER_S: Final = 1000  # before we stop reading for the rest of the second
TOLD_PER_NOTIFICATION: Final = 10  # receivers that cost as much as one notification more

_LOOKS_LIKE_ANSWER: Final = re.compile(rb'\s*\{(?=.{0,64}"jsonrpc")(?!.{0,300}"method")', re.DOTALL)
_ANSWER_ID: Final = re.compile(rb'"id"\s*:\s*([0-9]{1,18})\b')


class Noise:
    __slots__ = ("_garbage", "_since", "_unasked", "garbage_max", "total")

    def __init__(self) -> None:
        self.total = 0  # messages that are not JSON-RPC, over all connections
        self.garbage_max = BANNER_MAX
        self._garbage = 0
        self._unasked = 0
        self._since = 0.0

    def begin(self, garbage_max: int) -> None:
        """A connection begins, or was greeted."""
        self._garbage, self.garbage_max = 0, garbage_max

    def count_garbage(self) -> bool:
        """True when the connection has sent too much of it."""
        self.total += 1
        self._garbage += 1
        return self._garbage > self.garbage_max

    def count_unasked(self, now: float) -> float | None:
        """For how many seconds nothing more is to be read; None: there are not too many."""
        if now - self._since >= 1.0:
            self._since, self._unasked = now, 0
        self._unasked += 1
        return max(0.0, 1.0 - (now - self._since)) if self._unasked >= UNASKED_PER_S else None

    def count_receivers(self, count: int) -> None:
        """One notification went to so many."""
        self._unasked += count // TOLD_PER_NOTIFICATION


def maybe_answer_id(data: bytes) -> int:
    """The id of the request that unreadable bytes seem to answer; 0: they do not look like an answer."""
    found = _ANSWER_ID.search(data, 0, 256) if _LOOKS_LIKE_ANSWER.match(data) is not None else None
    return int(found[1]) if found is not None else 0
