"""Known heads: what the parser made of the head of one message holds for every later one with the same head.

A peer begins message after message with the same bytes, except for the length of the body and for headers that differ
each time and that nothing here reads: dates, trace and request ids. The key of a head is its bytes without the values
of those.
"""

import re
from typing import Final

KNOWN_HEAD_BYTES_MAX: Final = 2048

# Nothing may read these from a head (a test searches for them): a known head has the values of its first coming.
UNREAD: Final = frozenset(
    (
        b"age",
        b"b3",
        b"baggage",
        b"cf-ray",
        b"date",
        b"sentry-trace",
        b"server-timing",
        b"traceparent",
        b"tracestate",
        b"uber-trace-id",
        b"x-amzn-requestid",
        b"x-amzn-trace-id",
        b"x-b3-parentspanid",
        b"x-b3-spanid",
        b"x-b3-traceid",
        b"x-cloud-trace-context",
        b"x-correlation-id",
        b"x-datadog-parent-id",
        b"x-datadog-tags",
        b"x-datadog-trace-id",
        b"x-envoy-upstream-service-time",
        b"x-process-time",
        b"x-request-id",
        b"x-response-time",
        b"x-runtime",
        b"x-stainless-retry-count",
    )
)
_LENGTH: Final = b"content-length"
_LENGTH_DIGITS_MAX: Final = 15
_PLAIN_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch

# The beginnings of the lines whose values are left out of a key, in their order, and whether it is the length.
VaryingLines = tuple[tuple[bytes, bool], ...]
NO_KEY: Final = (b"", -1)


def varying_lines(head: bytes) -> VaryingLines:
    """Return the lines of a head that may differ the next time, as this peer spells them."""
    lines: dict[bytes, tuple[bytes, bool]] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        lowered = name.lower()
        if lowered == _LENGTH or lowered in UNREAD:
            written = b"\r\n%b: " if value.startswith(b" ") else b"\r\n%b:"
            lines.setdefault(lowered, (written % name, lowered == _LENGTH))
    return tuple(lines.values())


def read_key(data: bytes, end: int, varying: VaryingLines) -> tuple[bytes, int]:
    """Return the key of the head `data[:end]` and the length of its body, or NO_KEY if the parser must read the
    head.
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
