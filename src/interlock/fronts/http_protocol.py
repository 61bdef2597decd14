"""The HTTP protocol of the public endpoint, which answers the paths of MCP itself and passes other requests to ASGI.

A tools/call therefore needs no task, no scope and no receive/send pair. If the body of a request has not arrived yet,
its head is judged before any more of the body is read.

A client on a keep-alive connection sends many requests with the same head, except for the length of the body and trace
ids. The result of parsing such a head is cached, and a request with a known head skips the parser.
"""

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from interlock.fronts.exchange import Exchange, Head
from interlock.fronts.http_connection import HEADERS_TOO_LARGE, NO_HEAD, NO_ROOM, EndpointConnection
from interlock.net.http.messages import KNOWN_HEAD_BYTES_MAX, LARGE_READ_BYTES, BodyBuffer, read_key, varying_lines
from interlock.net.protocol.address_scope import IpAddress, is_loopback
from interlock.wire.refusal import HttpRefusal

if TYPE_CHECKING:
    from interlock.fronts.public import PublicEndpoint

KNOWN_HEADS_MAX: Final = 1024  # about 2.5 KB each; those of clients that have gone stay until others need the room
UPGRADED: Final = "interlock.upgraded"  # where the ASGI scope has the connection itself, an AxSocket
EARLY_FRAMES_MAX: Final = 64 * 1024  # behind an upgrade that is not answered yet
HEARTBEAT_S: Final = 15.0  # a comment on quiet streams, so that proxies keep them and the dead are found
OWN_PATHS: Final = (b"/mcp", b"/sse", b"/messages")


class McpProtocol(EndpointConnection):
    """A connection of the public endpoint.

    It passes requests for the paths of MCP to `endpoint`, and others to ASGI.
    """

    endpoint: ClassVar["PublicEndpoint"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.written_at = 0.0
        self.is_proxy = False  # one of node.trusted_proxies
        self.is_loopback = False  # a program on this machine, which speaks for itself alone
        self._own = False
        self._is_judged = False
        self._body = BodyBuffer()
        self._varying = self.endpoint.varying  # of this client's heads
        self._early_frames = b""  # behind an upgrade
        self._early = b""  # a known head whose body has not begun to arrive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.is_proxy = self.endpoint.proxies.trusts(self.peer)
        self.is_loopback = self.peer is not None and is_loopback(self.peer) and not self.is_proxy

    # What the parser finds

    def _takes(self) -> bool:
        self._own = self.url.startswith(OWN_PATHS)
        if not self._own:
            return False
        self._is_judged = False
        chunks = self.parser.get_http_version() != "1.0"
        keep = chunks and self.parser.should_keep_alive()
        self._head = Head(self.parser.get_method(), self.url, self.headers, keep, chunks)
        length = self._head.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.endpoint.max_body_bytes:
            self.refuse(self.endpoint.body_too_large)
        else:
            self._body = BodyBuffer(int(length))
        return True

    def on_body(self, body: bytes) -> None:
        if not self._own:
            super().on_body(body)
        elif not self._reads_no_more:
            self._body.add(body)
            if self._body.size > self.endpoint.max_body_bytes:
                self.refuse(self.endpoint.body_too_large)

    def on_message_complete(self) -> None:
        if not self._own or self._ignored_upgrade:
            super().on_message_complete()
            return
        self._mid_message = False
        if self._reads_no_more:
            return
        self.busy_since = None
        if self._held is not None:
            self._release()
        body = self._body.take()
        head = self._head
        exchange = Exchange(self, head, body, head.keep and not self._draining)
        if self.exchange is None and self.running is None:
            self.exchange = exchange
            self.endpoint.serve(exchange)
            return
        held = self.table.bodies.hold(self.sender(head), len(body))
        if held is None:
            self.refuse(NO_ROOM)
        else:
            self._take_turn(self._serve, exchange, held)

    def refuse(self, refusal: HttpRefusal) -> None:
        self._body = BodyBuffer()
        super().refuse(refusal)

    def _serve(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.endpoint.serve(exchange)

    # A body that has yet to come

    def _await_more(self, count: int) -> None:
        super()._await_more(count)
        if self._own and not self._in_head and not self._reads_no_more:
            if not self._is_judged:
                self._is_judged = True
                self._release()  # of the head: whom a proxy speaks for is known now
                self.endpoint.judge(self, self._head)
            if not self._reads_no_more:
                self._hold(self._body.size)
                # Pause reading for one turn of the loop, so that other connections are served between large pieces.
                # `_hold` may have refused the request.
                if (
                    count >= LARGE_READ_BYTES
                    and not self._reads_no_more
                    and not self.flow.read_paused
                    and not self.transport.is_closing()
                ):
                    self.transport.pause_reading()
                    self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def decide(self, head: Head, refusal: HttpRefusal | None) -> None:
        """Accept the body of a head, or refuse it with `refusal`. The endpoint calls this in reply to `judge`."""
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._head is not head or not self._mid_message:
            return  # it has come meanwhile
        if refusal is not None:
            self.refuse(refusal)
        elif self.expect_100_continue and not self._body:
            if self.is_idle:
                self._continue(None)
            else:
                self.waiting.append((self._continue, None, None))

    def _continue(self, _: None) -> None:
        """Send 100 Continue, between two answers and never within an answer."""
        if self._mid_message:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._serve_next()

    def sender(self, head: Head) -> IpAddress | None:
        """Return the address of the client: the peer or, if the peer is a trusted proxy, the client of the proxy."""
        client = self.endpoint.proxies.client(head.raw_headers) if self.is_proxy else None
        return client or self.peer

    # Bytes

    def data_received(self, data: bytes) -> None:
        if self._early:
            data, self._early = self._early + data, b""
        end = -1 if self._mid_message else data.find(b"\r\n\r\n", 0, KNOWN_HEAD_BYTES_MAX)
        if end > 0:
            key, length = read_key(data, end, self._varying)
            head = self.endpoint.known_heads.get(key)
            if (
                head is not None
                and self.exchange is None
                and self.running is None
                and length <= self.endpoint.max_body_bytes
                and not self._reads_no_more
            ):
                missing = end + 4 + length - len(data)
                if missing == 0:
                    self.busy_since = None
                    self.exchange = exchange = Exchange(self, head, data[end + 4 :], not self._draining)
                    self.endpoint.serve(exchange)
                    return
                if missing == length and self.endpoint.admits(self, head):
                    self._early = data
                    self._head, self.url = head, head.url
                    self.busy_since = self.loop.time()
                    return
        if self._reads_no_more:
            super().data_received(data)
            return
        if not self._mid_message:
            self._head = NO_HEAD
        self._parse(data)
        if end > 0 and self._head is not NO_HEAD and not self._reads_no_more:
            self._learn(data, end)

    def _learn(self, data: bytes, end: int) -> None:
        """Cache the head of a request that needed no special handling by the parser.

        A head is cached when it arrives for the second time, because the first heads of a session, and heads with
        unique ids, arrive only once.
        """
        head = self._head
        if head.method != b"POST" or not head.keep or not _SPECIAL.isdisjoint(head.headers):
            return
        self._varying = self.endpoint.varying = varying_lines(data[:end])
        key, length = read_key(data, end, self._varying)
        if length >= 0 and len(data) <= end + 4 + length:
            heads = self.endpoint.known_heads
            if key in heads:
                heads[key] = head
            else:
                if len(heads) >= KNOWN_HEADS_MAX:
                    for oldest in list(islice(heads, KNOWN_HEADS_MAX // 2)):
                        del heads[oldest]
                heads[key] = None

    # Upgrades

    def _should_upgrade(self) -> bool:
        """Return whether to upgrade to a WebSocket, which only /ax and /v0/ws support. Their code is loaded on first
        use.
        """
        return self._get_upgrade() == b"websocket" and self._path() in (b"/ax", b"/v0/ws")

    def _path(self) -> bytes:
        return self.url.partition(b"?")[0]

    def _upgrade(self, rest: bytes) -> None:
        from interlock.fronts.sockets import HEADERS_MAX, LINE_BYTES_MAX, AxSocket, RoomSocket

        if self._reads_no_more:
            return
        longest = max(len(self.url), *(len(name) + len(value) for name, value in self.headers))
        if len(self.headers) > HEADERS_MAX or longest > LINE_BYTES_MAX:
            self.refuse(HEADERS_TOO_LARGE)
            return
        self._reads_no_more = self._upgrades = True
        self.ws_protocol_class = AxSocket
        if self._path() == b"/v0/ws":
            self.ws_protocol_class = RoomSocket
            self._early_frames = rest
        self._take_turn(self._answer_upgrade, None)

    def _take_early(self, data: bytes) -> None:
        if self._path() != b"/v0/ws" or len(self._early_frames) + len(data) > EARLY_FRAMES_MAX:
            super()._take_early(data)
        else:
            self._early_frames += data

    def _answer_upgrade(self, _: None) -> None:
        self.table.leave(self, self.peer)
        self.handle_websocket_upgrade()
        if self._early_frames:
            socket: Any = self.transport.get_protocol()
            socket.data_received(self._early_frames)

    # Streams

    def wrote(self) -> None:
        self.written_at = self.loop.time()

    def sweep(self, now: float) -> None:
        super().sweep(now)
        exchange = self.exchange
        if (
            exchange is not None
            and not self.transport.is_closing()
            and exchange.streaming
            and now - self.written_at > HEARTBEAT_S
        ):
            exchange.send_chunk(b": \n\n")


_SPECIAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
