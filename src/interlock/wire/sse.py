"""The event stream of Server-Sent Events: reading and writing (WHATWG HTML 9.2.5 and 9.2.6).

`SseParser` takes the bytes of a stream, cut anywhere, and returns events whose data stays the bytes that came in. By
the standard no stream is malformed: unknown fields are ignored, and an event that the stream does not finish is
dropped. The data of an event is limited. Of a larger event only the request is reported to which its message belongs
(`OversizedScanner`), and the stream is read on.

Beyond the standard, an event without a data field is reported if it carries an id or a retry time: MCP 2025-11-25
primes a client with such events, so that it can resume.

`encode_event` writes one event. Most events that servers send have one of a few plain forms; those are recognised as a
whole, without looking at their lines.
"""

import re

import msgspec

from interlock.wire.jsonrpc.oversized import Oversized, OversizedScanner

RETRY_DIGITS_MAX = 15  # more than 30,000 years in milliseconds; longer values are ignored

_LF, _CR = 0x0A, 0x0D  # asked for as numbers: `in` finds a number in bytes ten times faster than a piece of bytes
_DATA = b"data:"
_DATA_ROOM = len(b"data: ")  # what a line may have beside the largest data
_LARGE_DATA = b"data: "
_LARGE_LINE_BYTES = 64 * 1024  # a line so long is not copied more often than it must be
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
    """An event of a stream of Server-Sent Events."""

    event: str
    data: bytes
    id: str | None = None  # as this event carries it; the standard's last event id is the last one that is not None
    retry_ms: int | None = None
    oversized: Oversized | None = None  # what is known of data over the limit, told before the event has ended


class SseParser:
    """Parser of one stream of Server-Sent Events. It stores at most `max_event_bytes` of the data of an event."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._partial = bytearray()  # the beginning of a line whose end has not come
        self._at_start = True
        self._cut: bytes | None = None  # the name of the field that goes on in a line too long to be kept
        self._after_cr = False  # a LF that comes now belongs to the line ending that is already counted
        self._begin_event()

    def _begin_event(self) -> None:
        self._event = ""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._id: str | None = None
        self._retry_ms: int | None = None
        self._scanner: OversizedScanner | None = None  # of an event over the limit
        self._is_told = False  # that event
        self._between_events = True

    def feed(self, data: bytes) -> list[SseEvent]:
        if self._between_events and not self._partial and len(data) <= self._max_event_bytes:
            event = _find_plain_event(data)
            if event is not None:
                self._at_start = self._after_cr = False
                return [event]
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
        lines = data.splitlines()
        rest = b"" if data[-1] in b"\r\n" else lines.pop()
        if self._partial:
            # A line that grows over many calls is joined once, when it ends.
            self._partial += lines[0]
            lines[0] = b""
            partial, self._partial = self._partial, bytearray()
            if self._cut is None and partial[: len(_LARGE_DATA)] == _LARGE_DATA and len(partial) > _LARGE_LINE_BYTES:
                self._take_data(bytes(memoryview(partial)[len(_LARGE_DATA) :]), events)
                lines.pop(0)
            else:
                lines[0] = bytes(partial)
            del partial
        if self._cut is not None and lines:
            self._pass_over(lines.pop(0), events)
            self._cut = None
        for line in lines:
            if line:
                self._take(line, events)
            else:
                self._dispatch(events)
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
        if self._cut is not None:
            self._pass_over(rest, events)
            return
        self._partial += rest
        if len(self._partial) > self._max_event_bytes + _DATA_ROOM:
            line, self._partial = self._partial, bytearray()
            self._cut, self._between_events = bytes(line[: len(_DATA)]), False
            self._take(bytes(line), events)

    def _pass_over(self, piece: bytes, events: list[SseEvent]) -> None:
        if self._cut == _DATA:
            self._scan(piece, events)

    def _scan(self, piece: bytes, events: list[SseEvent]) -> None:
        scanner = self._scanner
        if scanner is not None and not self._is_told:
            scanner.feed(piece)
            if scanner.is_settled:
                self._tell(scanner, events)

    def _tell(self, scanner: OversizedScanner, events: list[SseEvent]) -> None:
        self._is_told = True
        if self._event in ("", "message"):
            events.append(SseEvent("message", b"", oversized=scanner.found))

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        """Process one line of an event, which is a field such as `data`. Ignore a line that is too long, unless it is
        data.
        """
        if len(line) > self._max_event_bytes + _DATA_ROOM and not line.startswith(_DATA):
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        match name:
            case b"data":
                self._take_data(value, events)
            case b"event":
                self._event = value.decode(errors="replace")
                self._between_events = False
            case b"id" if b"\x00" not in value:
                self._id = value.decode(errors="replace")
                self._between_events = False
            case b"retry" if value.isdigit() and len(value) <= RETRY_DIGITS_MAX:
                self._retry_ms = int(value)
                self._between_events = False

    def _take_data(self, value: bytes, events: list[SseEvent]) -> None:
        self._data_bytes += len(value) + 1
        self._between_events = False
        if self._scanner is None:
            self._data.append(value)
            if self._data_bytes - 1 > self._max_event_bytes:
                self._scanner = OversizedScanner(self._max_event_bytes)
                self._scan(b"\n".join(self._data), events)
                self._data = []
        else:
            self._scan(b"\n" + value, events)

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._scanner is not None and not self._is_told:
            self._tell(self._scanner, events)
        if self._data or self._id is not None or self._retry_ms is not None:
            events.append(SseEvent(self._event or "message", b"\n".join(self._data), self._id, self._retry_ms))
        if not self._between_events:
            self._begin_event()


def encode_event(
    data: bytes, *, event: bytes | None = None, id: bytes | None = None, retry_ms: int | None = None
) -> bytes:
    """Encode one Server-Sent Event. Each line of `data` becomes a field. Raise ValueError if the id contains a NUL
    character or the retry time is negative.
    """
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


def event_pieces(data: bytes, *, event: bytes, id: bytes | None = None) -> tuple[bytes, ...]:
    """Encode one Server-Sent Event in several pieces, so that large data is not copied."""
    if len(data) <= _LARGE_LINE_BYTES or _LF in data or _CR in data:
        return (encode_event(data, event=event, id=id),)
    return encode_event(b"", event=event, id=id)[:-2], data, b"\n\n"


def _one_line(value: bytes) -> bytes:
    if _LF in value or _CR in value:
        raise ValueError("the name and the id of an event must be one line")
    return value


def _find_plain_event(data: bytes) -> SseEvent | None:
    """Return the event in these bytes if they contain one event in a usual form with a single line of data. Otherwise
    return None.
    """
    for prefix, end in _PLAIN_EVENTS:
        if data.startswith(prefix) and data.endswith(end):
            payload = data[len(prefix) : -len(end)]
            return None if _LF in payload or _CR in payload else SseEvent("message", payload)
    return None
