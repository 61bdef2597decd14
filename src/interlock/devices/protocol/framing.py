"""Framing: messages in a stream of bytes, and back out of it."""

from collections import Counter
from typing import Protocol


class Framing(Protocol):
    """Where messages begin and end. What is no message is dropped and counted by its reason; the next one is found."""

    discarded: Counter[str]
    max_message: int

    def encode(self, message: bytes) -> bytes:
        """Raises ValueError for a message above `max_message`."""

    def feed_untrusted(self, data: bytes, now: float) -> list[bytes]:
        """The messages that are whole with these bytes, read at `now` seconds. Memory is bounded by `max_message`."""

    def reset(self) -> None:
        """The connection is new: what was begun is forgotten."""
