"""The event stream of Server-Sent Events, both ways (WHATWG HTML 9.2.5 and 9.2.6).

In: bytes of a stream, cut anywhere. Out: events whose data stays the bytes that came in. By the standard no stream is
malformed: unknown fields are ignored, and an event that the stream does not finish is dropped. The one error,
`SseMalformed`, is a line or an event larger than the limit. Beyond the standard, an event without a data field is
reported if it carries an id or a retry: MCP 2025-11-25 primes a client with such events so that it can resume.
"""

import re

import msgspec

RETRY_DIGITS_MAX = 15  # more than 30,000 years in milliseconds; longer values are ignored

_LF, _CR = 0x0A, 0x0D  # asked for as numbers: `in` finds a number in bytes ten times faster than a piece of bytes
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
# How the common servers write an event that is only a message, with the line ending that each prefix implies.
_PLAIN_EVENTS = (
    (b"event: message\ndata: ", b"\n\n"),
    (b"event: message\r\ndata: ", b"\r\n\r\n"),
    (b"data: ", b"\n\n"),
    (b"data: ", b"\r\n\r\n"),
)


class SseEvent(msgspec.Struct, frozen=True):
    event: str
    data: bytes
    id: str | None = None  # as this event carries it; the standard's last event id is the last one that is not None
    retry_ms: int | None = None


class SseMalformed(ValueError):
    """The stream cannot be read on. `before` holds the events that the same bytes had completed until then."""

    def __init__(self, message: str, before: list[SseEvent]) -> None:
        super().__init__(message)
        self.before = before


class SseParser:
    """One stream. `max_event_bytes` bounds each line and the data of each event."""

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_between_events",
        "_broken",
        "_data",
        "_data_bytes",
        "_event",
        "_id",
        "_max_event_bytes",
        "_partial",
        "_retry_ms",
    )

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._partial = bytearray()  # the beginning of a line whose end has not come
        self._at_start = True
        self._broken = False
        self._after_cr = False  # a LF that comes now belongs to the line ending that is already counted
        self._event = ""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._id: str | None = None
        self._retry_ms: int | None = None
        self._between_events = True

    def feed(self, data: bytes) -> list[SseEvent]:
        if self._between_events and not self._partial and len(data) <= self._max_event_bytes:
            event = _maybe_plain_event(data)
            if event is not None:
                self._at_start = self._after_cr = False
                return [event]
        if self._broken:
            raise self._too_large([])
        if self._at_start:
            data = self._without_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == _LF:
                data = data[1:]
        events: list[SseEvent] = []
        if _LF not in data and _CR not in data:
            self._keep(data, events)
            return events
        self._after_cr = data[-1] == _CR
        # A line that grows over many calls is joined once, when it ends.
        lines = (bytes(self._partial) + data if self._partial else data).splitlines()
        self._partial = bytearray()
        rest = b"" if data[-1] in b"\r\n" else lines.pop()
        for line in lines:
            if len(line) > self._max_event_bytes:
                raise self._too_large(events)
            if not line:
                self._dispatch(events)
            elif not self._take(line):
                raise self._too_large(events)
        self._keep(rest, events)
        return events

    def _without_bom(self, data: bytes) -> bytes:
        data = bytes(self._partial) + data
        self._partial.clear()
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._partial += data
            return b""
        self._at_start = False
        return data.removeprefix(_BOM)

    def _keep(self, rest: bytes, events: list[SseEvent]) -> None:
        self._partial += rest
        if len(self._partial) > self._max_event_bytes:
            raise self._too_large(events)

    def _take(self, line: bytes) -> bool:
        """Apply one field. False if the event has grown over the limit."""
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        match name:
            case b"data":
                self._data.append(value)
                self._data_bytes += len(value) + 1
                self._between_events = False
                return self._data_bytes - 1 <= self._max_event_bytes
            case b"event":
                self._event = value.decode(errors="replace")
                self._between_events = False
            case b"id" if b"\x00" not in value:
                self._id = value.decode(errors="replace")
                self._between_events = False
            case b"retry" if value.isdigit() and len(value) <= RETRY_DIGITS_MAX:
                self._retry_ms = int(value)
                self._between_events = False
        return True

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data or self._id is not None or self._retry_ms is not None:
            events.append(SseEvent(self._event or "message", b"\n".join(self._data), self._id, self._retry_ms))
        if not self._between_events:
            self._forget()

    def _forget(self) -> None:
        self._event = ""
        self._data = []
        self._data_bytes = 0
        self._id = None
        self._retry_ms = None
        self._between_events = True

    def _too_large(self, before: list[SseEvent]) -> SseMalformed:
        self._partial.clear()
        self._data.clear()
        self._broken = True  # the rest of a line that was given up must not be read as lines of its own
        self._between_events = False
        return SseMalformed(f"an event of the stream is over {self._max_event_bytes} bytes", before)


def encode_event(
    data: bytes, *, event: bytes | None = None, id: bytes | None = None, retry_ms: int | None = None
) -> bytes:
    """One event. Line endings inside `data` arrive as LF: the format has no other way to carry them."""
    head = b""
    if event is not None:
        head = b"event: %b\n" % _one_line(event)
    if id is not None:
        if b"\x00" in id:
            raise ValueError("the id of an event must not contain a NUL character")
        head += b"id: %b\n" % _one_line(id)
    if retry_ms is not None:
        if retry_ms < 0:
            raise ValueError("the retry time of an event must not be negative")
        head += b"retry: %d\n" % retry_ms
    if _LF in data or _CR in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"%bdata: %b\n\n" % (head, data)


def _one_line(value: bytes) -> bytes:
    if _LF in value or _CR in value:
        raise ValueError("the name and the id of an event must be one line")
    return value


def _maybe_plain_event(data: bytes) -> SseEvent | None:
    """An event whose bytes are exactly one of the plain forms with one line of data."""
    for prefix, end in _PLAIN_EVENTS:
        if data.startswith(prefix) and data.endswith(end):
            payload = data[len(prefix) : -len(end)]
            return None if _LF in payload or _CR in payload else SseEvent("message", payload)
    return None
