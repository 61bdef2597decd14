"""What a child says on its standard error: bytes in, the last lines out, fit to be printed on a terminal.

It is kept for people and never parsed. Where secrets may be in it, every line goes through a function that takes
them out.
"""

import re
from collections import deque
from collections.abc import Callable

import msgspec

# What moves a terminal's cursor, colours it, or turns the direction of text: C0 without tab, DEL, C1, bidi controls.
_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def terminal_safe(text: str) -> str:
    """`text` with control characters (except tab) written out, so that printing it cannot drive a terminal."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


class StderrLine(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    text: str


Redact = Callable[[bytes, bool], bytes]  # a line, and whether it was cut


class StderrRing:
    """The last lines of a child's standard error. Holds at most `lines` x `line_bytes`; a longer line is cut."""

    def __init__(
        self, lines: int = 500, line_bytes: int = 4096, *, now: Callable[[], float], redact: Redact | None = None
    ) -> None:
        """`now` gives wall-clock seconds. Every line goes through `redact`."""
        self._redact = redact
        self._now = now
        self._line_bytes = line_bytes
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
        """What has come without a newline is a line: the process that began it is gone."""
        if self._began is not None:
            self._finish(self._began)

    @property
    def count(self) -> int:
        """How many lines are kept."""
        return len(self._kept) + (self._began is not None)

    def tail(self, count: int | None = None) -> list[StderrLine]:
        """The last `count` lines, oldest first, with the unfinished one."""
        kept = list(self._kept)
        if self._began is not None:
            line = bytes(self._unfinished)
            kept.append((self._began, line if self._redact is None else self._redact(line, True), self._cut))
        first = 0 if count is None else max(0, len(kept) - count)
        return [_make_line(*line) for line in kept[first:]]

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


def _make_line(at: float, line: bytes, cut: int) -> StderrLine:
    text = terminal_safe(line.decode("utf-8", "replace"))
    return StderrLine(at=at, text=f"{text} … {cut} bytes more" if cut else text)
