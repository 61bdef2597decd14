"""Paced delivery of messages: data read from a stream is handled in limited portions, one per turn of the event loop.

One read of a stream may hold thousands of messages. Handling all of them at once would keep every other connection
waiting. So the rest waits for the next turn, in order, and meanwhile nothing more is read from the stream.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

PER_TURN: Final = 32


class PacedDelivery(msgspec.Struct, eq=False, kw_only=True):
    """A base class for receivers of messages, which delivers at most PER_TURN messages in each turn of the event loop.

    A subclass handles a message in `on_next`, and stops or resumes its stream in `hold_reading`. This is a base class
    and not a member so that stream and receiver form no reference cycle, which would wait for the garbage collector.
    """

    waiting: deque[Any] | None = None
    next_turn: asyncio.Handle | None = None  # that goes on with what waits
    last: Callable[[], None] | None = None

    def on_next(self, message: Any) -> None:
        """Handle one message."""
        raise NotImplementedError

    def hold_reading(self, wanted: bool) -> None:
        """Stop reading from the stream if `wanted` is True, otherwise resume."""
        raise NotImplementedError

    def deliver(self, messages: Sequence[Any]) -> None:
        """Deliver messages that were read together. A single message, the most frequent case, bypasses the queue."""
        if self.next_turn is None and len(messages) == 1:  # as most come
            self.on_next(messages[0])
            return
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.extend(messages)
        if self.next_turn is None:
            self._take_turn()

    def pause_delivery(self, seconds: float) -> None:
        """Deliver no messages for that many seconds."""
        if self.next_turn is not None:
            self.next_turn.cancel()
        self.next_turn = asyncio.get_running_loop().call_later(seconds, self._go_on)
        self.hold_reading(True)

    def finish_delivery(self, last: Callable[[], None]) -> None:
        """Call `last` after every message of the ended stream has been delivered."""
        if self.next_turn is None:
            last()
        else:
            self.last = last

    def stop_delivery(self) -> None:
        """Drop all waiting messages, and do not call the function passed to `finish_delivery`."""
        if self.next_turn is not None:
            self.next_turn.cancel()
            self.next_turn = None
        if self.waiting is not None:
            self.waiting.clear()
        self.last = None

    def _go_on(self) -> None:
        self.next_turn = None
        self._take_turn()
        if self.next_turn is None:
            self.hold_reading(False)
            last, self.last = self.last, None
            if last is not None:
                last()

    def _take_turn(self) -> None:
        waiting, left = self.waiting, PER_TURN
        try:
            while waiting and left and self.next_turn is None:
                left -= 1
                self.on_next(waiting.popleft())
        finally:
            if waiting and self.next_turn is None:
                self.next_turn = asyncio.get_running_loop().call_soon(self._go_on)
                self.hold_reading(True)
