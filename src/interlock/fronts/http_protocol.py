"""The connections of the HTTP endpoints, with additional limits, and with answers in the order of the requests.

`EndpointConnection` is uvicorn's protocol. In: bytes of a peer that is not known yet. Out: complete heads to the ASGI
application, and refusals. uvicorn keeps the parsing and the ASGI cycle; which request is answered next is decided here,
because a subclass may answer some itself. A request has its turn when everything before it is answered: then its
exchange is served, its cycle runs, its upgrade is answered or its refusal is sent. Slow, stuck and idle connections are
found by one sweep of the endpoint, not by a timer each.

`McpProtocol` is a connection of the public endpoint. It answers the paths of MCP itself and passes other requests to
ASGI. A tools/call therefore needs no task, no scope and no receive/send pair. If the body of a request has not arrived
yet, its head is judged before any more of the body is read.

A client on a keep-alive connection sends many requests with the same head, except for the length of the body and trace
ids. The result of parsing such a head is cached, and a request with a known head skips the parser.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from interlock.core.shared_limit import Share
from interlock.fronts.connections import ConnectionTable, address_of, source_of
from interlock.fronts.exchange import Exchange, Head
from interlock.net.http.messages import KNOWN_HEAD_BYTES_MAX, LARGE_READ_BYTES, BodyBuffer, read_key, varying_lines
from interlock.net.protocol.address_scope import IpAddress, is_loopback
from interlock.wire.jsonrpc.codec import encode_refusal
from interlock.wire.refusal import HttpRefusal

if TYPE_CHECKING:
    from interlock.fronts.public import PublicEndpoint

HEAD_BYTES_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 200
PIPELINED_MAX: Final = 16
REQUEST_S: Final = 30.0  # from a request's first byte to its last
STUCK_S: Final = 30.0  # how long a client may leave our bytes unread
IDLE_S: Final = 75.0
LINGER_S: Final = 2.0  # for a peer that goes on sending what was refused, until it has read why
NOW: Final = -1.0  # the next sweep says when that was: asking the clock for every answer is dear
NO_HEAD: Final = Head(b"", b"", [], False, True)

Turn = tuple[Callable[[Any], None], Any, Share | None]


class EndpointConnection(HttpToolsProtocol):
    """An HTTP connection to an endpoint. It answers requests one after another, and refuses requests that exceed a
    limit.
    """

    table: ClassVar[ConnectionTable]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exchange: Exchange | None = None  # that is being answered
        self.running: RequestResponseCycle | None = None  # the same of the application
        self.waiting: deque[Turn] = deque()  # behind it: what begins, with what, and what is held for it
        self.busy_since: float | None = None  # a request has begun to arrive and is not complete
        self.idle_since = 0.0
        self.paused_since: float | None = None
        self._lingers_since: float | None = None
        self._reads_no_more = False  # refused, or to be a WebSocket
        self._upgrades = False
        self._in_app = False  # what arrives is for the application, which may have begun
        self._draining = False
        self._mid_message = False
        self._ignored_upgrade = False
        self._in_head = False
        self._head_bytes = 0
        self._held: Share | None = None  # of the request that is arriving
        self._head = NO_HEAD
        self.peer: IpAddress | None = None
        self.url = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.busy_since = self.idle_since = self.loop.time()
        self.peer = address_of(self.client[0] if self.client else None)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self.app_state = {**self.app_state, "tls": tls.version(), "certificate": tls.getpeercert(True)}
        if not self.table.enter(self, self.peer):
            self.refuse(TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.leave(self)
        exchange, self.exchange = self.exchange, None
        running, self.running = self.running, None
        self._release()
        for *_, held in self.waiting:
            if held is not None:
                held.release()
        self.waiting.clear()
        super().connection_lost(exc)
        if running is not None:  # uvicorn knows the newest only
            _disconnect(running)
        if exchange is not None:
            exchange.on_lost()

    # What the parser finds

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head = NO_HEAD
        self._mid_message = True
        self._in_head = True
        self._in_app = False
        self._head_bytes = 0
        self.busy_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > HEAD_BYTES_MAX:
            self.refuse(HEADERS_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # RFC 9110 6.5.1: trailers are no headers; 5.5: blanks around a value are not in it
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if (
            len(self.headers) > HEADERS_MAX
            or sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX
        ):
            self.refuse(HEADERS_TOO_LARGE)
        if self._reads_no_more:
            return
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._ignored_upgrade = True  # the parser stops here; `_feed` takes it up without the upgrade
            return
        if (b"expect", b"100-continue") in self.headers:
            self.expect_100_continue = True
        if not self._serves_itself():
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers.extend(headers)
            self.cycle = None  # type: ignore[assignment]  # so that uvicorn starts the new one, when its turn comes
            super().on_headers_complete()
            self._in_app = self.cycle is not None  # not for an upgrade

    def _serves_itself(self) -> bool:
        """Return whether this connection answers the current request without the ASGI application."""
        return False

    def on_body(self, body: bytes) -> None:
        if self._in_app and not self._reads_no_more:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignored_upgrade:
            return
        self._mid_message = False
        if self._reads_no_more:
            return
        self.busy_since = None
        if self._held is not None:
            self._release()
        if self._in_app:
            self._in_app = False
            super().on_message_complete()

    # Turns

    @property
    def is_idle(self) -> bool:
        return self.exchange is None and self.running is None

    def _take_turn(self, begin: Callable[[Any], None], what: Any, held: Share | None = None) -> None:
        if self.is_idle:
            begin(what)
        elif len(self.waiting) < PIPELINED_MAX:
            self.waiting.append((begin, what, held))
        else:
            if held is not None:
                held.release()
            self._in_app = False
            self.refuse(TOO_MANY_PIPELINED)

    def _serve_next(self) -> None:
        if self.waiting and not self.transport.is_closing():
            begin, what, held = self.waiting.popleft()
            if held is not None:
                held.release()
            begin(what)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._take_turn(self._run, (cycle, app))

    def _run(self, asgi: tuple[RequestResponseCycle, Any]) -> None:
        self.running = asgi[0]
        super()._start_asgi_task(*asgi)

    def on_response_complete(self) -> None:
        """Serve the next request, because the application has sent its response to the current one."""
        self.running = None
        self.idle_since = self.loop.time()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._serve_next()

    def on_finished(self, exchange: Exchange) -> None:
        """Serve the next request or close the connection, because an exchange was answered."""
        exchange.running = exchange.on_gone = None  # no circles: most exchanges must not wait for the collector
        self.exchange = None
        self.idle_since = NOW
        if not exchange.keep or self._draining:
            self._end()
        elif self.waiting:
            self._serve_next()

    def _end(self) -> None:
        """Close the connection in such a way that the client can read a refusal.

        If unread bytes were left, closing would reset the connection and the refusal could be lost (RFC 9112 9.6).
        """
        if not self._reads_no_more or self._draining or self not in self.table.open:
            self.transport.close()
            return
        self._lingers_since = self.loop.time()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def sender(self, head: Head) -> IpAddress | None:
        """Return the address that sent a request, or None if it is unknown."""
        return self.peer

    # Refusals

    def refuse(self, refusal: HttpRefusal) -> None:
        """Send a refusal after the earlier requests are answered, read no more data, and close the connection.

        If the application has begun to answer the refused request, close the connection without a refusal.
        """
        if self._reads_no_more:
            return
        self._reads_no_more = True
        self.busy_since = None
        self._release()
        self.table.note_refusal(self, self._head, refusal.code)
        if self._in_app:
            # Take the request back from the application, unless the application has begun to answer it.
            cycle = self.cycle
            if cycle.response_started:
                self.transport.close()
                return
            if self.running is cycle:
                self.running = None
                _disconnect(cycle)
            else:
                self.waiting.pop()
        if self.is_idle:
            self._turn_away(refusal)
        else:
            self.waiting.append((self._turn_away, refusal, None))

    def _turn_away(self, refusal: HttpRefusal) -> None:
        self.exchange = exchange = Exchange(self, self._head, b"", False, _UNKEPT + refusal.headers)
        if refusal.mcp is not None:
            exchange.reply(refusal.status, encode_refusal(b"null", refusal.mcp))
            return
        body = {"error": refusal.code, "message": refusal.message, "details": {}}
        exchange.reply(refusal.status, msgspec.json.encode(body))

    # Bytes

    def data_received(self, data: bytes) -> None:
        if self._reads_no_more:
            if self._upgrades:
                self._take_early(data)
            return
        if not self._mid_message:
            self._head = NO_HEAD
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        rest: bytes | None = data
        while rest is not None and not self._reads_no_more:
            data, rest = rest, self._feed(rest)
        if self._mid_message and not self._reads_no_more:
            self._count_head_bytes(len(data))

    def _feed(self, data: bytes) -> bytes | None:
        """Parse `data`. If the parser stops before the end, return the data to parse next, otherwise None."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._ignored_upgrade:
                # Return the request without its upgrade, followed by `rest`, or None if it was refused. An upgrade that
                # we do not speak is ignored (RFC 9110 7.8).
                rest = data[upgrade.args[0] :]
                self._ignored_upgrade = False
                method = self.parser.get_method()
                if method == b"CONNECT":
                    self.refuse(BAD_REQUEST)
                    return None
                lines = [b"%b %b HTTP/1.1" % (method, self.url)]
                for name, value in self.headers:
                    if name == b"connection":  # "close" beside "upgrade" still holds
                        value = b", ".join(
                            word
                            for word in [word.strip(b" \t") for word in value.split(b",")]
                            if word.lower() not in _OF_UPGRADE
                        )
                    if name not in _OF_UPGRADE:
                        lines.append(b"%b: %b" % (name, value))
                self.parser = httptools.HttpRequestParser(self)
                return b"\r\n".join(lines) + b"\r\n\r\n" + rest
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.refuse(BAD_REQUEST)
        return None

    def _count_head_bytes(self, count: int) -> None:
        """Count the bytes of a head that is still incomplete, and refuse the request if there are too many."""
        if self._in_head:
            self._head_bytes += count
            if self._head_bytes > HEAD_BYTES_MAX:
                self.refuse(HEADERS_TOO_LARGE)
            else:
                self._hold(self._head_bytes)

    def _hold(self, count: int) -> None:
        if self._held is None:
            bound = self.table.unknown if self._in_head else self.table.bodies
            self._held = bound.hold(source_of(self.sender(self._head)), count)
            has_room = self._held is not None
        else:
            has_room = self._held.grow_to(count)
        if not has_room:
            self.refuse(NO_ROOM)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def _should_upgrade(self) -> bool:
        return False

    def _upgrade(self, rest: bytes) -> None:
        """Refuse to upgrade the connection, because this endpoint supports no upgrade. `rest` is the data after the
        request.
        """
        self.refuse(BAD_REQUEST)

    def _take_early(self, data: bytes) -> None:
        """Abort the connection, because the client sent data before its request for an upgrade was answered (RFC 6455
        4.1).
        """
        self.transport.abort()

    # Back pressure and the end

    def sweep(self, now: float) -> None:
        if self.paused_since is not None and now - self.paused_since > STUCK_S:
            self.transport.abort()
        elif self._lingers_since is not None:
            if now - self._lingers_since > LINGER_S:
                self.transport.close()
        elif self.busy_since is not None:
            if now - self.busy_since > REQUEST_S:
                if self.url:
                    self.refuse(TIMED_OUT)
                else:
                    self.transport.close()
        elif self.idle_since == NOW:
            self.idle_since = now
        elif self.is_idle and now - self.idle_since > IDLE_S:
            self.transport.close()

    def pause_writing(self) -> None:
        self.paused_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.paused_since = None
        super().resume_writing()

    def shutdown(self) -> None:
        self._draining = True
        if self.exchange is not None:
            self.exchange.keep = False
        elif (cycle := self.running) is not None:
            cycle.keep_alive = False
        else:
            self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Report to the application that the client disconnected, and discard the application's answer."""
    cycle.disconnected = True
    cycle.message_event.set()


_OF_UPGRADE: Final = frozenset((b"upgrade", b"http2-settings"))
_UNKEPT: Final = b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
BAD_REQUEST: Final = HttpRefusal("bad_request", "malformed HTTP request")
TIMED_OUT: Final = HttpRefusal("request_timeout", "the request did not arrive in time")
HEADERS_TOO_LARGE: Final = HttpRefusal("headers_too_large", "the request line or headers are too large")
TOO_MANY_PIPELINED: Final = HttpRefusal("too_many_pipelined", "too many requests on one connection at once")
TOO_MANY_CONNECTIONS: Final = HttpRefusal(
    "too_many_connections", "too many connections are open; try again", headers=b"retry-after: 5\r\n"
)
NO_ROOM: Final = HttpRefusal(
    "too_many_bytes", "too much of unfinished requests is held already; try again", headers=b"retry-after: 5\r\n"
)


KNOWN_HEADS_MAX: Final = 1024  # about 2.5 KB each; those of clients that have gone stay until others need the room
UPGRADED: Final = "interlock.upgraded"  # where the ASGI scope has the connection itself, an AxSocket
EARLY_FRAMES_MAX: Final = 64 * 1024  # behind an upgrade that is not answered yet
HEARTBEAT_S: Final = 15.0  # a comment on quiet streams, so that proxies keep them and the dead are found
OWN_PATHS: Final = (b"/mcp", b"/sse", b"/messages")


class McpProtocol(EndpointConnection):
    """An HTTP connection of a client to the public endpoint.

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

    def _serves_itself(self) -> bool:
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
        is_dropped = self._ignored_upgrade or self._reads_no_more
        super().on_message_complete()
        if not self._own or is_dropped:
            return
        body = self._body.take()
        head = self._head
        exchange = Exchange(self, head, body, head.keep and not self._draining)
        if self.exchange is None and self.running is None:
            self.exchange = exchange
            self.endpoint.serve(exchange)
            return
        if (held := self.table.bodies.hold(source_of(self.sender(head)), len(body))) is None:
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

    def _count_head_bytes(self, count: int) -> None:
        super()._count_head_bytes(count)
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
        """Accept a request whose head has arrived, or refuse it with `refusal`. The endpoint calls this when it has
        decided about the head.
        """
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
            self._cache_head(data, end)

    def _cache_head(self, data: bytes, end: int) -> None:
        """Cache the parsed head of a request, so that an identical head need not be parsed again.

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
        """Return whether a request asks for a WebSocket at /ax or /v0/ws, the only paths that support it."""
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
        self.table.leave(self)
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
