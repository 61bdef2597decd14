"""Newline-delimited framing: bytes in, complete lines out. Pure; knows nothing of what a line says.

A line ends in LF or CRLF and is handed out without it. What follows the last LF is kept until its end arrives, never
longer than the limit, so a peer that sends no newline costs at most one message of memory however small its pieces.
"""


class LineTooLong(Exception):
    """A line is longer than the limit. `complete` holds the lines before it that no `feed` has returned yet."""

    def __init__(self, max_bytes: int, complete: list[bytes]) -> None:
        super().__init__(f"a line is longer than the limit of {max_bytes} bytes")
        self.max_bytes = max_bytes
        self.complete = complete


class LineSplitter:
    """Splits one stream. After LineTooLong it stays broken: where the next line starts can no longer be known."""

    __slots__ = ("_broken", "_max_bytes", "_rest")

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; a line needs at least 1")
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._broken = False

    @property
    def pending(self) -> int:
        """Bytes of an unfinished line held back."""
        return len(self._rest)

    @property
    def unfinished(self) -> bytes:
        """The line held back, for a caller that knows that nothing follows."""
        return bytes(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        if self._broken:
            raise LineTooLong(self._max_bytes, [])
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
                for index, line in enumerate(lines):
                    if len(line) > self._max_bytes:
                        raise self._too_long(lines[:index])
        if not unfinished:
            return lines
        self._rest += unfinished
        excess = len(self._rest) - self._max_bytes
        # One byte more is allowed while it may turn out to be the CR of a CRLF.
        if excess > 1 or (excess == 1 and not self._rest.endswith(b"\r")):
            raise self._too_long(lines)
        return lines

    def _too_long(self, complete: list[bytes]) -> LineTooLong:
        self._broken = True
        self._rest = bytearray()
        return LineTooLong(self._max_bytes, complete)


def one_line(message: bytes) -> bytes:
    """`message` framed as one line.

    In a JSON text a raw CR or LF can only be white space between tokens (RFC 8259, 2 and 7), so a message that came
    pretty-printed is sent as one line without changing what it says. CR goes too, because text mode readers end
    a line there.
    """
    return message.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
