"""Newline-delimited framing: bytes in, complete lines out.

A line ends in LF or CRLF and is handed out without it. What follows the last LF is kept until its end arrives, never
longer than the limit, so a peer that sends no newline costs at most one message of memory however small its pieces.
A longer line is skipped to its end; only whose message it is, is looked for while it passes.
"""

import asyncio
from typing import Final

from interlock.wire.jsonrpc.oversized import Oversized, OversizedScanner

TOGETHER_BYTES_MAX: Final = (
    64 * 1024
)  # of a message that is copied for its newline: dearer than a second write when longer


class LineSplitter:
    """Splits one stream."""

    __slots__ = ("_is_skipping", "_max_bytes", "_oversized", "_rest", "_scanner", "skipped")

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; a line needs at least 1")
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._is_skipping = False  # within a line over the limit
        self._scanner: OversizedScanner | None = None  # of that line, until it is known whose it is
        self._oversized: list[Oversized] = []
        self.skipped = 0  # bytes of the last line over the limit, until it has ended and was taken

    @property
    def pending(self) -> int:
        """Bytes of an unfinished line held back."""
        return len(self._rest)

    @property
    def unfinished(self) -> bytes:
        """The line held back, for a caller that knows that nothing follows."""
        return bytes(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`. Where `skipped` is not 0 afterwards, `take_oversized` says more."""
        if self._is_skipping:
            data = self._skip(data)
        lines = data.split(b"\n")
        unfinished = lines.pop()
        if lines:
            if self._rest:
                self._rest += lines[0]
                lines[0] = bytes(self._rest)
                self._rest.clear()
            # The CR of the first line may have come in an earlier piece.
            if b"\r" in data or lines[0].endswith(b"\r"):
                lines = [line.removesuffix(b"\r") for line in lines]
            # Lines that lie wholly in this piece are shorter than it, so the common case looks at one line only.
            if len(lines[0]) > self._max_bytes or len(data) > self._max_bytes:
                lines = [line for line in lines if len(line) <= self._max_bytes or self._leave_out(line)]
        if not unfinished:
            return lines
        self._rest += unfinished
        excess = len(self._rest) - self._max_bytes
        # One byte more is allowed while it may turn out to be the CR of a CRLF.
        if excess > 1 or (excess == 1 and not self._rest.endswith(b"\r")):
            self._begin_skipping(self._rest)
            self._rest = bytearray()
        return lines

    def take_oversized(self) -> list[Oversized]:
        """The messages in lines over the limit, each once: as soon as it is known whose it is, at the latest at its
        end."""
        taken, self._oversized = self._oversized, []
        if not self._is_skipping:
            self.skipped = 0
        return taken

    def _begin_skipping(self, start: bytes | bytearray) -> None:
        self._is_skipping, self.skipped = True, 0
        self._scanner = OversizedScanner(self._max_bytes)
        self._scan(start)

    def _skip(self, data: bytes) -> bytes:
        """What follows the line in `data`."""
        piece, newline, rest = data.partition(b"\n")
        self._scan(piece)
        if newline:
            self._end_line()
        return rest

    def _leave_out(self, line: bytes) -> bool:
        self._begin_skipping(line)
        self._end_line()
        return False

    def _scan(self, piece: bytes | bytearray) -> None:
        self.skipped += len(piece)
        if self._scanner is not None:
            self._scanner.feed(piece)
            if self._scanner.is_settled:
                self._tell(self._scanner)

    def _end_line(self) -> None:
        if self._scanner is not None:
            self._tell(self._scanner)
        self._is_skipping = False

    def _tell(self, scanner: OversizedScanner) -> None:
        self._oversized.append(scanner.found)
        self._scanner = None


def one_line(message: bytes) -> bytes:
    """`message` framed as one line.

    In a JSON text a raw CR or LF can only be white space between tokens (RFC 8259, 2 and 7), so a message that came
    pretty-printed is sent as one line without changing what it says. CR goes too, because text mode readers end
    a line there.
    """
    return message.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


def write_line(writer: asyncio.WriteTransport, message: bytes) -> None:
    """Write `message` as one line, without a copy of a large one."""
    message = message.replace(b"\n", b" ").replace(b"\r", b" ")
    if len(message) <= TOGETHER_BYTES_MAX:
        writer.write(message + b"\n")
    else:
        writer.writelines((message, b"\n"))
