"""The interface of every two-way pipe of whole messages, whichever end of which connection it is.

A pipe is open when it is made. It passes each message to its sink in the order in which they came, and then tells,
exactly once, that it is closed. `send` never waits. What is queued for a peer that does not read is bounded: beyond
the bound `send` refuses, and a queue that does not move for STALL_AFTER_S closes the pipe.

The close codes are those of WebSocket (RFC 6455, 7.4.1), which pipes over stdio use as well.
"""

from typing import Final, Protocol

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
        """Handle the end of the pipe. Called once, after the last message, whichever side closed the pipe.

        `reason` completes the sentence "the peer ...", unless the peer wrote it.
        """


class MessagePipe(Protocol):
    """A bidirectional pipe of complete messages."""

    def send(self, message: bytes) -> bool:
        """Queue one message and return True.

        Return False, and send nothing, if the pipe is closed or closing, or if the peer does not read.
        """

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send all queued messages, then close. `on_closed` follows within a bound. A second call has no effect."""

    def abort(self) -> None:
        """Close immediately, without notifying the peer."""

    def pause_reading(self) -> None:
        """Stop delivering messages until `resume_reading`, except those that were already received."""

    def resume_reading(self) -> None:
        """Deliver messages again."""


def fit_close_reason(reason: str) -> str:
    """Return `reason`, cut to the length that fits into a close frame."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
