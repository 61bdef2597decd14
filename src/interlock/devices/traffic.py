"""What is said between the node and a device, kept for as long as somebody watches."""

from collections import deque
from typing import Final

import msgspec

FRAMES_MAX: Final = 1000  # kept
WATCHED_S: Final = 30.0  # after it was last asked for
BYTES_MAX: Final = 256  # of one message, that are kept


class SeenMessage(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    wall: float
    is_sent: bool
    data: bytes
    verdict: str | None = None  # why what came was dropped


class Traffic:
    def __init__(self) -> None:
        self._kept: deque[SeenMessage] = deque(maxlen=FRAMES_MAX)
        self._number = 0
        self._until = 0.0

    def since(self, number: int, now: float) -> list[SeenMessage]:
        """What came after that number, and from now on everything is kept for a while."""
        self._until = now + WATCHED_S
        return [one for one in self._kept if one.number > number]

    @property
    def last(self) -> int:
        return self._number

    def is_watched(self, now: float) -> bool:
        if now < self._until:
            return True
        self._kept.clear()
        return False

    def add(self, wall: float, data: bytes, *, is_sent: bool, verdict: str | None = None) -> None:
        self._number += 1
        self._kept.append(
            SeenMessage(number=self._number, wall=wall, is_sent=is_sent, data=data[:BYTES_MAX], verdict=verdict)
        )
