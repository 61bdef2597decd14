"""Lines of a child process: the splitting of its output into messages, and the last lines of its standard error.

`LineSplitter` turns the bytes of standard output into complete lines and `write_line` frames a message as one line, so
that each line is one JSON-RPC message.

`StderrRing` keeps the last lines of standard error for people; they are never parsed. A redacting function removes
secrets from every line before it is stored, and control characters are escaped when a line is read, so that a program
cannot control the terminal of an operator. `words_of` leaves out stack frames and source lines: what is left says what
is wrong.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from interlock.wire.jsonrpc.oversized import Oversized, OversizedScanner

# The end of what a program wrote to stderr, as a person reads it: what is wrong, without where in its source.

_FRAME: Final = re.compile(r"[\s|+-]*(File \".*\", line \d+|at .*(:\d+:\d+\)?|\(<anonymous>\)|\(native\)))")
_POINTERS: Final = re.compile(r"[\s|+\-^~]*")
_HEADING: Final = re.compile(r"[\s|+-]*((Exception Group )?Traceback \(most recent call last\):|[\s|+-]*-+ \d+ -+)")


def words_of(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the messages in the lines of a program, without stack frames, source lines and markers below them."""
    messages: list[str] = []
    frame: int | None = None  # how far the last frame is indented; its source stands deeper
    for line in lines:
        depth = len(line) - len(line.lstrip(" |+"))
        if _FRAME.match(line):
            frame = depth
        elif _POINTERS.fullmatch(line) or _HEADING.match(line) or (frame is not None and depth > frame):
            continue
        else:
            frame = None
            messages.append(line.strip())
    return tuple(messages)


# Up to this size a message is copied to append its newline; above, a second write is cheaper.
TOGETHER_BYTES_MAX: Final = 64 * 1024


class LineSplitter:
    """A splitter of one stream of bytes into lines.

    A line ends in LF or CRLF and is returned without it. Bytes after the last LF are buffered until the line ends. The
    buffer never exceeds the limit, so a peer that sends no newline costs at most the memory of one message, however
    small its pieces are. A longer line is skipped, and only the id of its message is searched for.
    """

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
        """Return the number of buffered bytes of an unfinished line."""
        return len(self._rest)

    @property
    def unfinished(self) -> bytes:
        """Return the unfinished line. Use this only when no more bytes will follow."""
        return bytes(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the lines that are now complete.

        If `skipped` is not 0 afterwards, call `take_oversized`.
        """
        if self._is_skipping:
            piece, newline, data = data.partition(b"\n")
            self._scan(piece)
            if newline:
                self._end_line()
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
        """Return the messages in lines over the limit.

        Each message is returned once, as soon as its id is known and at the latest when its line ends.
        """
        taken, self._oversized = self._oversized, []
        if not self._is_skipping:
            self.skipped = 0
        return taken

    def _begin_skipping(self, start: bytes | bytearray) -> None:
        self._is_skipping, self.skipped = True, 0
        self._scanner = OversizedScanner(self._max_bytes)
        self._scan(start)

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
    """Return a message as a single line, with a newline at its end.

    In JSON text, a raw CR or LF can only be white space between tokens (RFC 8259, 2 and 7), so this does not change the
    meaning of a pretty-printed message. CR is replaced too, because readers in text mode end a line there.
    """
    return message.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


def write_line(writer: asyncio.WriteTransport, message: bytes) -> None:
    """Write `message` as one line. A large message is not copied to append the newline."""
    message = message.replace(b"\n", b" ").replace(b"\r", b" ")
    if len(message) <= TOGETHER_BYTES_MAX:
        writer.write(message + b"\n")
    else:
        writer.writelines((message, b"\n"))


# What moves a terminal's cursor, colours it, or turns the direction of text: C0 without tab, DEL, C1, bidi controls.
_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def terminal_safe(text: str) -> str:
    """Return `text` with control characters except tab escaped, so that printing it cannot control a terminal."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


class StderrLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a child wrote to its standard error, safe to print on a terminal."""

    at: float
    text: str


Redact = Callable[[bytes, bool], bytes]  # a line, and whether it was cut


class StderrRing:
    """The last lines of a child's standard error.

    It holds at most `lines` lines of `line_bytes` bytes. A longer line is cut.
    """

    def __init__(
        self, lines: int = 500, line_bytes: int = 4096, *, now: Callable[[], float], redact: Redact | None = None
    ) -> None:
        """Create an empty ring. `now` returns the wall-clock time in seconds. `redact` is applied to every line."""
        self._redact, self._now, self._line_bytes = redact, now, line_bytes
        self._kept: deque[tuple[float, bytes, int]] = deque(maxlen=lines)
        self._unfinished = bytearray()
        self._cut = 0
        self._began: float | None = None

    def feed(self, data: bytes) -> None:
        at = self._now()
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            self._hold(lines[0], at)
            self._finish(at)
            # A flood is mostly lines that the same piece pushes out again.
            for line in lines[1:][-(self._kept.maxlen or 0) :]:
                self._keep(at, line, 0)
        if rest:
            self._hold(rest, at)

    def end_line(self) -> None:
        """End the unfinished line, because the process that wrote it has ended."""
        if self._began is not None:
            self._finish(self._began)

    @property
    def count(self) -> int:
        """Return the number of stored lines, including an unfinished one."""
        return len(self._kept) + (self._began is not None)

    def tail(self, count: int | None = None) -> list[StderrLine]:
        """Return the last `count` lines, oldest first, including an unfinished one."""
        entries = list(self._kept)
        if self._began is not None:
            line = bytes(self._unfinished)
            entries.append((self._began, line if self._redact is None else self._redact(line, True), self._cut))
        first = 0 if count is None else max(0, len(entries) - count)
        lines: list[StderrLine] = []
        for at, line, cut in entries[first:]:
            text = terminal_safe(line.decode("utf-8", "replace"))
            lines.append(StderrLine(at=at, text=f"{text} … {cut} bytes more" if cut else text))
        return lines

    def _hold(self, piece: bytes, at: float) -> None:
        room = self._line_bytes - len(self._unfinished)
        self._unfinished += piece[:room]
        self._cut += max(0, len(piece) - room)
        if self._began is None:
            self._began = at

    def _finish(self, at: float) -> None:
        self._keep(at if self._began is None else self._began, bytes(self._unfinished), self._cut)
        self._unfinished.clear()
        self._cut = 0
        self._began = None

    def _keep(self, at: float, line: bytes, cut: int) -> None:
        cut += max(0, len(line) - self._line_bytes)
        line = line[: self._line_bytes].removesuffix(b"\r")
        self._kept.append((at, line if self._redact is None else self._redact(line, cut > 0), cut))
