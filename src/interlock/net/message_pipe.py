"""The interface of every two-way pipe of whole messages, whichever end of which connection it is.

A pipe is open when it is made. It passes each message to its sink in the order in which they came, and then tells,
exactly once, that it is closed. `send` never waits. What is queued for a peer that does not read is bounded: beyond
the bound `send` refuses, and a queue that does not move for STALL_AFTER_S closes the pipe.

The close codes are those of WebSocket (RFC 6455, 7.4.1), which pipes over stdio use as well.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from interlock.wire.jsonrpc.oversized import Oversized

STALL_AFTER_S: Final = 1.0  # as on stdio: a full queue that has not moved for so long

NORMAL: Final = 1000  # RFC 6455 7.4.1, and below
GOING_AWAY: Final = 1001
UNACCEPTABLE: Final = 1003  # a binary frame
CUT: Final = 1006  # never on the wire: the connection ended without a word
NOT_UTF8: Final = 1007
POLICY: Final = 1008
TOO_BIG: Final = 1009
INTERNAL: Final = 1011

REASON_BYTES_MAX: Final = 123  # RFC 6455 5.5: what a close frame holds beside its code


class MessageSink(Protocol):
    """A receiver of the messages of a pipe."""

    def on_message(self, data: bytes) -> None:
        """Handle one message."""

    def on_oversized(self, oversized: Oversized) -> None:
        """Handle a message that was dropped because it exceeds the limit."""

    def on_closed(self, code: int, reason: str) -> None:
        """Handle the end of the pipe. This is called once, after the last message, whichever side closed the pipe.

        `reason` completes the sentence "the peer ...", unless the peer wrote it.
        """


class MessagePipe(Protocol):
    """A bidirectional pipe of complete messages."""

    def send(self, message: bytes) -> bool:
        """Queue one message and return True. Return False, and send nothing, if the pipe is closed or closing, or if
        the peer does not read.
        """

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send all queued messages, then close. `on_closed` is called soon afterwards. A second call has no effect."""

    def abort(self) -> None:
        """Close immediately, without notifying the peer."""

    def pause_reading(self) -> None:
        """Deliver no messages until `resume_reading`, except those that were already received."""

    def resume_reading(self) -> None:
        """Deliver messages again."""


def fit_close_reason(reason: str) -> str:
    """Return `reason`, cut to the length that fits into a close frame."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


# Paced delivery: what one read of a stream brings is handled in limited portions, one per turn of the event loop.
#
# One read may hold thousands of messages. Handling all of them at once would keep every other connection waiting. So
# the rest waits for the next turn, in order, and meanwhile nothing more is read from the stream.

PER_TURN: Final = 32


class PacedDelivery(msgspec.Struct, eq=False, kw_only=True):
    """A base class of message receivers. It delivers at most PER_TURN messages in each turn of the event loop.

    A subclass handles a message in `on_next`, and stops or resumes its stream in `hold_reading`. This is a base class
    and not a member so that stream and receiver form no reference cycle, which would wait for the garbage collector.
    """

    waiting: deque[Any] | None = None
    next_turn: asyncio.Handle | None = None  # that goes on with what waits
    last: Callable[[], None] | None = None

    def on_next(self, message: Any) -> None:
        """Handle one delivered message. A subclass implements this method."""
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
        """Call `last` once all messages of the stream, which has ended, have been delivered."""
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
