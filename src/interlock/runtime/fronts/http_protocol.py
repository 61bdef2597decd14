"""The HTTP protocol of the public endpoint: a uvicorn protocol that answers MCP's paths itself, before ASGI is entered.

A tools/call costs no task, no scope and no receive/send pair this way; uvicorn keeps the parsing, the limits of the
connection and the shutdown. Everything that is not an MCP path falls through to the ASGI application. Idle, slow and
stuck connections are found by one sweep of the endpoint, not by a timer each.

A client on a keep-alive connection begins request after request with the same head, but for the body's length and
trace ids. What httptools made of such a head is remembered, and a request behind a known head skips the parser.
"""

import asyncio
from collections import deque
from typing import Any, ClassVar, Final, Protocol

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from interlock.net.http.known_heads import KNOWN_HEAD_BYTES_MAX, VaryingLines, read_key, varying_lines
from interlock.protocol.net.address_scope import IpAddress, is_loopback
from interlock.runtime.fronts.exchange import Exchange, Head
from interlock.runtime.fronts.trusted_proxies import TrustedProxies, address_of

HEAD_BYTES_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 200
PIPELINED_MAX: Final = 16
KNOWN_HEADS_MAX: Final = 4096
NOW: Final = -1.0  # the next sweep says when that was: asking the clock for every answer is dear
OWN_PATHS: Final = (b"/mcp", b"/sse", b"/messages")


class McpEndpoint(Protocol):
    max_body_bytes: int
    protocols: "set[McpProtocol]"
    # Key of a head -> what it means, or None: seen once, and perhaps never again.
    known_heads: dict[bytes, Head | None]
    varying: VaryingLines  # of the head learnt last, of any client: most clients of a node are of one kind

    proxies: TrustedProxies

    def serve(self, exchange: Exchange) -> None: ...

    def note_refusal(self, protocol: "McpProtocol", head: Head, reason: str) -> None:
        """A request is refused, perhaps before its head was read."""


class McpProtocol(HttpToolsProtocol):
    endpoint: ClassVar[McpEndpoint]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exchange: Exchange | None = None
        self.waiting: deque[Exchange] = deque()
        self.busy_since: float | None = None  # a request has begun to arrive and is not complete
        self.idle_since = 0.0
        self.written_at = 0.0
        self.paused_since: float | None = None
        self._own = False
        self._refused = False
        self._draining = False
        self._mid_message = False
        self._ignored_upgrade = False
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._chunks: list[bytes] = []
        self._head = _NO_HEAD
        self.peer: IpAddress | None = None
        self.is_proxy = False  # one of node.trusted_proxies
        self.is_loopback = False  # a program on this machine, which speaks for itself alone
        self.url = b""
        self._varying = self.endpoint.varying  # of this client's heads
        self._held = b""  # a known head whose body has not begun to arrive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.busy_since = self.idle_since = self.loop.time()
        self.peer = address_of(self.client[0] if self.client else None)
        self.is_proxy = self.endpoint.proxies.trusts(self.peer)
        self.is_loopback = self.peer is not None and is_loopback(self.peer) and not self.is_proxy
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.app_state = {**self.app_state, "tls": tls.version(), "certificate": tls.getpeercert(True)}
        self.endpoint.protocols.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.endpoint.protocols.discard(self)
        exchange, self.exchange = self.exchange, None
        self.waiting.clear()
        super().connection_lost(exc)
        if exchange is not None:
            exchange.on_lost()

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._own = False
        self._head = _NO_HEAD
        self._mid_message = True
        self._in_head = True
        self._head_bytes = 0
        self.busy_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > HEAD_BYTES_MAX:
            self._refuse(431)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # RFC 9110 6.5.1: trailers are no headers; 5.5: blanks around a value are not in it
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.headers) > HEADERS_MAX or _size(self.headers) > HEAD_BYTES_MAX:
            self._refuse(431)
        if self._refused:
            return
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._ignored_upgrade = True  # the parser stops here; `_go_on` takes it up without the upgrade
            return
        if (b"expect", b"100-continue") in self.headers:
            self.expect_100_continue = True
        if self.url.startswith(OWN_PATHS):
            self._own = True
            self._chunks = []
            self._body_bytes = 0
            chunks = self.parser.get_http_version() != "1.0"
            keep = chunks and self.parser.should_keep_alive()
            self._head = Head(self.parser.get_method(), self.url, self.headers, keep, chunks)
            length = self._head.headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length) > self.endpoint.max_body_bytes:
                self._refuse(413)
                return
            if self.expect_100_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        if self.exchange is not None:  # mixed pipelines are ended after the answer under way, which HTTP allows
            self.exchange.keep = False
            self._refused = True
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        if not self._own:
            super().on_body(body)
            return
        self._body_bytes += len(body)
        if self._body_bytes > self.endpoint.max_body_bytes:
            self._refuse(413)
            return
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._ignored_upgrade:
            return
        self._mid_message = False
        if self._refused:
            return
        self.busy_since = None
        if not self._own:
            super().on_message_complete()
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        head = self._head
        exchange = Exchange(self, head, body, head.keep and not self._draining)
        if self.is_idle:
            self.exchange = exchange
            self.endpoint.serve(exchange)
        elif len(self.waiting) < PIPELINED_MAX:
            self.waiting.append(exchange)
        else:
            self._refuse(503)

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()
        self._serve_next()

    def on_finished(self, exchange: Exchange) -> None:
        """An exchange of ours has been answered."""
        exchange.running = exchange.on_gone = None  # no circles: most exchanges must not wait for the collector
        self.exchange = None
        self.idle_since = NOW
        if not exchange.keep or self._draining:
            self.transport.close()
        elif self.waiting:
            self._serve_next()

    def _serve_next(self) -> None:
        if self.waiting and self.exchange is None and not self.transport.is_closing():
            self.exchange = self.waiting.popleft()
            self.endpoint.serve(self.exchange)

    def wrote(self) -> None:
        self.written_at = self.loop.time()

    def _refuse(self, status: int) -> None:
        """Too much of something: answer at once, read no further."""
        if self._refused:
            return
        self._refused = True
        self.busy_since = None
        self.endpoint.note_refusal(self, self._head, _WORDS[status])
        if self.exchange is not None:
            self.exchange.keep = False
            return
        self._own = True
        exchange = Exchange(self, _NO_HEAD, b"", False)
        self.exchange = exchange
        exchange.reply(status, REFUSALS[status])

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._held:
            data, self._held = self._held + data, b""
        end = -1 if self._mid_message else data.find(b"\r\n\r\n", 0, KNOWN_HEAD_BYTES_MAX)
        if end > 0:
            key, length = read_key(data, end, self._varying)
            head = self.endpoint.known_heads.get(key)
            # `cycle is None` is `is_idle` where nothing else has been served here, without asking for it.
            idle = self.exchange is None if self.cycle is None else self.is_idle
            if head is not None and idle and length <= self.endpoint.max_body_bytes:
                missing = end + 4 + length - len(data)
                if missing == 0:
                    self.busy_since = None
                    self.exchange = exchange = Exchange(self, head, data[end + 4 :], not self._draining)
                    self.endpoint.serve(exchange)
                    return
                if missing == length:
                    self._held = data
                    self.busy_since = self.loop.time()
                    return
        if not self._mid_message:
            self._head = _NO_HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._ignored_upgrade:
                self._go_on(data[upgrade.args[0] :])
            elif self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._refuse(400)
        except httptools.HttpParserError:
            self._refuse(400)
        if self._in_head:  # a header section that goes on and on
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431)
        elif end > 0 and self._head is not _NO_HEAD and not self._refused:
            self._learn(data, end)

    def _go_on(self, rest: bytes) -> None:
        """An upgrade we do not speak is ignored (RFC 9110 7.8): the same request again, without asking for it."""
        self._ignored_upgrade = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400)
            return
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [
            b"%b: %b" % one for one in self.headers if one[0] not in (b"upgrade", b"connection", b"http2-settings")
        ]
        self.parser = httptools.HttpRequestParser(self)
        self._mid_message = False
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _should_upgrade(self) -> bool:
        """Only /ax is a WebSocket; what speaks it is not even loaded before somebody asks."""
        return self._get_upgrade() == b"websocket" and self.url.partition(b"?")[0] == b"/ax"

    def handle_websocket_upgrade(self) -> None:
        from interlock.runtime.fronts.ax_socket import HEADERS_MAX, LINE_BYTES_MAX, AxSocket

        longest = max(len(self.url), *(len(name) + len(value) for name, value in self.headers))
        if len(self.headers) > HEADERS_MAX or longest > LINE_BYTES_MAX:
            self._refuse(431)
            return
        self.endpoint.protocols.discard(self)
        self.busy_since = None
        self.ws_protocol_class = AxSocket
        super().handle_websocket_upgrade()

    def _learn(self, data: bytes, end: int) -> None:
        """Remember the head of a request that needed nothing special of the parser.

        At its second coming: the first heads of a session, and those with ids of their own making, come once.
        """
        head = self._head
        if head.method != b"POST" or not head.keep or not _SPECIAL.isdisjoint(head.headers):
            return
        self._varying = self.endpoint.varying = varying_lines(data[:end])
        key, length = read_key(data, end, self._varying)
        if length >= 0 and len(data) <= end + 4 + length:
            known = self.endpoint.known_heads
            if key in known:
                known[key] = head
            else:
                if len(known) >= KNOWN_HEADS_MAX:
                    known.clear()
                known[key] = None

    @property
    def is_idle(self) -> bool:
        return self.exchange is None and (self.cycle is None or self.cycle.response_complete)

    def time_out(self) -> None:
        self._refuse(408)

    # Back pressure and the end

    def pause_writing(self) -> None:
        self.paused_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.paused_since = None
        super().resume_writing()

    def shutdown(self) -> None:
        self._draining = True
        if self.exchange is None:
            super().shutdown()
        else:
            self.exchange.keep = False


_SPECIAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
_NO_HEAD: Final = Head(b"", b"", [], False, True)


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


REFUSALS: Final = {
    400: b'{"error":"bad_request","message":"malformed HTTP request","details":{}}',
    408: b'{"error":"request_timeout","message":"the request did not arrive in time","details":{}}',
    413: b'{"error":"body_too_large","message":"the body is larger than limits.message_bytes","details":{}}',
    431: b'{"error":"headers_too_large","message":"the request line or headers are too large","details":{}}',
    503: b'{"error":"too_many_pipelined","message":"too many requests on one connection at once","details":{}}',
}
_WORDS: Final = {status: msgspec.json.decode(body)["error"] for status, body in REFUSALS.items()}
