"""One HTTP request at the public endpoint and its answer, which is a single body or an event stream that ends with the
answer.

An `Exchange` is the `Sink` of the call that the request becomes. It becomes an event stream as soon as a message is
sent before the answer. It has no separate task. If the client disconnects before the answer, `on_gone` is called once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from interlock.mcp.headers import PARAM_PREFIX
from interlock.mcp.request_validation import ROUTING_HEADERS, plain_routing
from interlock.net.http.client import TOGETHER_BYTES_MAX
from interlock.wire.sse import event_pieces

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus} | {413: b"Content Too Large"}
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n%b\r\n"
)
_JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_HEAD: Final = b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n%b\r\n%b"
_JSON_TYPE: Final = b"content-type: application/json\r\n"


@dataclass(eq=False)
class Head:
    """The parsed request line and headers of a request.

    Requests that begin with the same bytes share one object. Only `decision` and `caller` are set later, and are cached
    for all of these requests.
    """

    method: bytes
    url: bytes
    raw_headers: list[tuple[bytes, bytes]]
    keep: bool
    chunks: bool  # HTTP/1.0 knows none: there a stream ends with the connection
    decision: Any = None  # what the endpoint concluded from it
    caller: Any = None  # the modern caller behind it, while its credential stands for the same principal

    def __post_init__(self) -> None:
        self.headers = dict(self.raw_headers)
        self.credential = self.headers.get(b"authorization")
        # Arguments and routing values are repeated in headers.
        mirrored = frozenset(name for name in self.headers if name.startswith(PARAM_PREFIX))
        self.doubled_routing = self.duplicate_header(ROUTING_HEADERS | mirrored)
        self.routing = plain_routing(self.headers, self.doubled_routing)

    def duplicate_header(self, names: frozenset[bytes]) -> bytes | None:
        """Return a header of `names` that was sent more than once, or None.

        Such a header is dangerous, because two readers may use different values of it.
        """
        if len(self.headers) == len(self.raw_headers):
            return None
        seen = set()
        for name, _ in self.raw_headers:
            if name in names and name in seen:
                return name
            seen.add(name)
        return None


class Exchange(msgspec.Struct, eq=False):
    """An HTTP request and its answer. It is the sink of the call that the request becomes."""

    protocol: Any  # the McpProtocol it came by
    head: Head
    body: bytes
    keep: bool
    extra: bytes = b""  # header lines of the answer
    streaming: bool = False
    streams_only: bool = False  # the client accepts no plain JSON
    ended: bool = False
    running: Any = None  # the Call that is cancelled when the client goes
    on_gone: Callable[[], None] | None = None
    session: Any = None  # the legacy Session whose call goes on without the connection
    log: Any = None  # the StreamLog by which the client may take up the stream again

    # Sink

    def emit(self, message: bytes) -> None:
        if self.ended and self.log is None:
            return
        if not self.streaming:
            self.open_stream()
        if self.log is not None:
            self.log.add(message)
        else:
            self.send_chunk(*event_pieces(message, event=b"message"))

    def answer(self, message: bytes, status: int = 200) -> None:
        if self.ended:
            if self.log is not None:
                self.log.add(message)
                self.log.finish()
            return
        if self.streaming or (self.streams_only and status == 200):
            self.emit(message)
            self.end_stream()
            return
        self.ended = True
        if status == 200 and self.keep and not self.extra:
            if len(message) <= TOGETHER_BYTES_MAX:
                self.protocol.transport.write(_JSON_HEAD % (len(message), message))
            else:
                self.protocol.transport.writelines((_JSON_HEAD % (len(message), b""), message))
        else:
            self._write_head(status, message, _JSON_TYPE)
        self.protocol.on_finished(self)

    def drop(self) -> None:
        """End the request without an answer, by sending an event stream without messages, because HTTP needs a
        response.
        """
        if not self.ended:
            if not self.streaming:
                self.open_stream()
            self.end_stream()
        elif self.log is not None:
            self.log.finish()

    # The rest of HTTP

    def reply(self, status: int, body: bytes = b"", content_type: bytes = _JSON_TYPE) -> None:
        if not self.ended:
            self.ended = True
            self._write_head(status, body, content_type if body else b"")
            self.protocol.on_finished(self)

    def _write_head(self, status: int, body: bytes, content_type: bytes) -> None:
        extra = self.extra if self.keep else self.extra + b"connection: close\r\n"
        length = len(body)
        if self.head.method == b"HEAD":
            body = b""
        if len(body) <= TOGETHER_BYTES_MAX:
            head = _HEAD % (status, REASONS.get(status, b"-"), content_type, length, extra, body)
            self.protocol.transport.write(head)
        else:
            head = _HEAD % (status, REASONS.get(status, b"-"), content_type, length, extra, b"")
            self.protocol.transport.writelines((head, body))

    def open_stream(self) -> None:
        self.streaming = True
        how = b"transfer-encoding: chunked\r\n" if self.head.chunks else b"connection: close\r\n"
        self.protocol.transport.write(_STREAM_HEAD % (self.extra + how))
        if self.session is not None:
            self.log = self.session.open_log(self)

    def send_chunk(self, data: bytes, *more: bytes) -> None:
        """Send a chunk of the response. `more` is the rest of the chunk, passed separately if joining it would copy
        much data.
        """
        if self.ended:
            return
        self.protocol.wrote()
        if not more:
            self.protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.head.chunks else data)
            return
        pieces = (data, *more)
        if self.head.chunks:
            pieces = (b"%x\r\n" % sum(map(len, pieces)), *pieces, b"\r\n")
        self.protocol.transport.writelines(pieces)

    def end_stream(self) -> None:
        if not self.ended:
            self.ended = True
            if self.head.chunks:
                self.protocol.transport.write(b"0\r\n\r\n")
            self.protocol.on_finished(self)
            if self.log is not None:
                self.log.finish()

    def abandon(self) -> None:
        """Close the connection, because the client continues on another connection and no longer reads from
        this one.
        """
        self.protocol.transport.abort()
        self.on_lost()

    def on_lost(self) -> None:
        """End the exchange, because its connection was lost."""
        if self.ended:
            return
        self.ended = True
        running, on_gone = self.running, self.on_gone
        self.running = self.on_gone = None  # no circles: what is gone must not wait for the collector
        if self.log is not None:
            self.log.leave(self)
        # MCP 2025-11-25, Streamable HTTP: to a legacy client a lost connection is no cancellation.
        if running is not None and (self.session is None or not self.session.may_go_on()):
            running.cancel("the client disconnected")
        if on_gone is not None:
            on_gone()
