"""Parts of HTTP messages that clients and servers share: buffers of bodies, and heads that were parsed before.

A body is gathered in pieces and joined once, at its end. Small pieces are gathered in one array, so that a peer that
sends a byte at a time costs no more memory than what it sent. A large body of a known length is written where it stays,
because joining fifteen megabytes at the end would keep every other connection waiting.

A peer begins message after message with the same bytes, except for the length of the body and for headers that differ
each time and that nothing here reads: dates, trace ids, request ids. What the parser made of one head therefore holds
for every later message with the same head. The key of a head is its bytes without those values.
"""

import functools
import io
import os
import re
from typing import Final

LARGE_READ_BYTES: Final = 32 * 1024  # a read of so much is probably not the last of its message
_SMALL_BYTES: Final = 4096
_LARGE_BYTES: Final = 256 * 1024  # what a loop reads at once
_GROWTH: Final = 4  # how many times what has come is made room for: who only names a length takes no memory
_M_TRIM_THRESHOLD: Final = -1  # of glibc's mallopt
_M_MMAP_THRESHOLD: Final = -3
_REUSED_BYTES: Final = 4 * 1024 * 1024  # longer buffers go back to the system at once
_KEPT_BYTES: Final = 8 * 1024 * 1024
_CHOSEN: Final = frozenset(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"))


class BodyBuffer:
    """A buffer that collects a message body in pieces and joins it once at its end."""

    __slots__ = ("_expected", "_pieces", "_room", "_whole", "size")

    def __init__(self, expected: int = 0) -> None:
        """Create an empty buffer. `expected` is the number of bytes that will be added, or 0 if it is unknown."""
        self._expected = expected
        self._pieces: list[bytes | bytearray] = []
        self._whole: io.BytesIO | None = None
        self._room = 0  # in `_whole`
        self.size = 0  # of all that was added since it was made, taken or not

    def __bool__(self) -> bool:
        return bool(self._pieces) or self._whole is not None

    def add(self, data: bytes) -> None:
        self.size += len(data)
        pieces = self._pieces
        if self._expected > _LARGE_BYTES:
            whole = self._whole
            if whole is None or self.size > self._room:
                keep_freed_memory()
                self._room = max(min(self._expected, _GROWTH * self.size), self.size)
                before, whole = whole, io.BytesIO(bytes(self._room))
                self._whole = whole
                if before is not None:
                    whole.write(before.getbuffer()[: before.tell()])
            whole.write(data)
        elif len(data) > _SMALL_BYTES or not pieces:
            pieces.append(data)
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))

    def take(self) -> bytes:
        """Return the bytes added since the last call, and empty the buffer."""
        whole, self._whole = self._whole, None
        if whole is not None:
            self._expected = self._room = 0
            whole.truncate()
            return whole.getvalue()  # not a copy: nothing else holds it
        pieces, self._pieces = self._pieces, []
        if len(pieces) == 1 and isinstance(pieces[0], bytes):
            return pieces[0]
        return b"".join(pieces)


@functools.cache
def keep_freed_memory() -> None:
    """Make the C library keep memory that large messages have freed, up to a bound, so that the next message can reuse
    it.

    Otherwise, getting memory from the system page by page and returning it takes as long as all other work on a message
    of one megabyte. Call this only in a node that gets such messages, because it imports additional modules.
    """
    if not _CHOSEN.isdisjoint(os.environ):  # the operator has chosen otherwise
        return
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _REUSED_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


KNOWN_HEAD_BYTES_MAX: Final = 2048

# Nothing may read these from a head (a test searches for them): a known head has the values of its first coming.
UNREAD: Final = frozenset(
    (
        b"age b3 baggage cf-ray date sentry-trace server-timing traceparent tracestate uber-trace-id "
        b"x-amzn-requestid x-amzn-trace-id x-b3-parentspanid x-b3-spanid x-b3-traceid x-cloud-trace-context "
        b"x-correlation-id x-datadog-parent-id x-datadog-tags x-datadog-trace-id x-envoy-upstream-service-time "
        b"x-process-time x-request-id x-response-time x-runtime x-stainless-retry-count"
    ).split()
)
_LENGTH: Final = b"content-length"
_LENGTH_DIGITS_MAX: Final = 15
_PLAIN_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch

# The beginnings of the lines whose values are left out of a key, in their order, and whether it is the length.
VaryingLines = tuple[tuple[bytes, bool], ...]
NO_KEY: Final = (b"", -1)


def varying_lines(head: bytes) -> VaryingLines:
    """Find the header lines of a message whose values may differ in the peer's next message, such as Content-Length.
    Return the beginnings of these lines as the peer writes them.
    """
    lines: dict[bytes, tuple[bytes, bool]] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        lowered = name.lower()
        if lowered == _LENGTH or lowered in UNREAD:
            written = b"\r\n%b: " if value.startswith(b" ") else b"\r\n%b:"
            lines.setdefault(lowered, (written % name, lowered == _LENGTH))
    return tuple(lines.values())


def read_key(data: bytes, end: int, varying: VaryingLines) -> tuple[bytes, int]:
    """Return a key for the cache of parsed message heads, and the length of the message body. The head is `data[:end]`.
    Its `varying` header lines are not part of the key.

    The length is -1 if it is not among the `varying` lines. Return NO_KEY if the parser must read the head.
    """
    at, length = 0, -1
    pieces = []
    for line, is_length in varying:
        start = data.find(line, at, end)
        if start < 0:
            continue
        start += len(line)
        pieces.append(data[at:start])
        at = data.find(b"\r\n", start, end)
        if at < 0:
            at = end
        value = data[start:at]
        if not is_length:
            if _PLAIN_VALUE(value) is None:
                return NO_KEY
        elif value.isdigit() and len(value) <= _LENGTH_DIGITS_MAX:
            length = int(value)
        else:
            return NO_KEY
    pieces.append(data[at:end])
    return b"".join(pieces), length
