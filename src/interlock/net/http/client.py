"""A pooled HTTP/1.1 client for the call path: one origin, keep-alive connections, a plain callback for each answer.

Requests come as bytes with headers already built. The answer, the event stream or an `HttpFailure` goes to a
`ResponseSink`, never from inside `request`. The client knows no MCP. It does not retry, follow redirects, decompress,
speak HTTP/2 or use proxies, and deadlines belong to the caller, who aborts.

Theory of operation. A request costs no task, no future and no timer: on an idle connection it is written inside
`request`. Otherwise it waits, first come first served, while a connection is opened in the background, up to
max_connections. The connection that was used last is used first, so that the others can expire; one timer closes those
that are past their time. A connection is given back when its answer is complete (`ready`) or reports that it is lost
(`gone`), and both serve the next waiting request.
"""

import asyncio
import os
import re
import socket
import ssl
from collections import OrderedDict
from urllib.parse import urlsplit

from interlock.net.http.connection import (
    IDLE_S,
    FailureKind,
    Handle,
    Headers,
    HttpConnection,
    HttpFailure,
    Parts,
    ResponseSink,
    tls_detail,
)
from interlock.net.http.messages import VaryingLines

WAITING_MAX = 1024  # requests without a connection; as many as a node has calls in flight by default
# A connection that carried a stream is given back only while fewer are idle: streams that waited for people end in
# numbers that calls never need at once.
IDLE_AFTER_STREAMS_MAX = 256
TOGETHER_BYTES_MAX = 64 * 1024  # of a body that is copied behind its head: dearer than a second write when longer
TLS_SHUTDOWN_S = 2.0  # a server that does not answer close_notify is left after this

_METHOD = re.compile(rb"[A-Z]+")
_TARGET = re.compile(rb"/[!-~]*")  # RFC 9112 3.2.1: origin-form; nothing in it can end the request line
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_SHUTTING_DOWN = HttpFailure(FailureKind.CLOSED, "the node is shutting down", retry_safe=True)
_NO_LENGTH_WHEN_EMPTY = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))  # RFC 9110 8.6


class HttpClient:
    """A pool of connections to one origin. All calls must come from one event loop."""

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = 256,
        max_body_bytes: int,
        connect_timeout_s: float = 10,
        idle_s: float = IDLE_S,
        max_waiting: int = WAITING_MAX,
        tls: ssl.SSLContext | None = None,
        address: str | None = None,
    ) -> None:
        """Create a pool of connections to one server.

        `address` replaces the DNS lookup; TLS still verifies the host name.
        """
        is_tls, self._host, self._port = _split_origin(url)
        host = f"[{self._host}]" if ":" in self._host else self._host
        is_default_port = self._port == (443 if is_tls else 80)
        self._host_line = b"host: %b\r\n" % (host if is_default_port else f"{host}:{self._port}").encode("ascii")
        self._tls = None
        if is_tls:
            self._tls = tls or ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        self._address = address or self._host
        self._max_connections, self._max_body_bytes = max_connections, max_body_bytes
        self._connect_timeout_s, self._idle_s = connect_timeout_s, idle_s
        self._waiting_max = max_waiting
        self._connections: set[HttpConnection] = set()
        self._idle: list[HttpConnection] = []  # the last one used is used first, so that the others can expire
        self._waiting: OrderedDict[Handle, tuple[bytes, bytes | Parts]] = OrderedDict()
        self._openers: set[asyncio.Task[HttpFailure | None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop  # that of the first request
        self._drained = asyncio.Event()
        self._closed = False
        self.known_heads: dict[bytes, tuple[int, Headers] | None] = {}
        self.varying: VaryingLines = ()

    def request(self, method: bytes, target: bytes, headers: bytes, body: bytes, sink: ResponseSink) -> Handle:
        """Send a request.

        `headers` are complete header lines without host and content-length. They are not checked, so the code that
        calls this must ensure that they are valid.
        """
        start = self.start(method, target, headers)
        if body or method not in _NO_LENGTH_WHEN_EMPTY:
            return self.send(start, b"", body, sink)
        return self._send(Handle(sink, method == b"HEAD"), start + b"\r\n")

    def start(self, method: bytes, target: bytes, headers: bytes) -> bytes:
        """Encode the beginning of requests that differ only in their last headers and body. Pass the result
        to `send`.
        """
        if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target):
            raise ValueError("the method must be capital letters, the target a path of visible ASCII characters")
        if headers and not headers.endswith(b"\r\n"):
            raise ValueError("headers must be complete lines, each ending with CR LF")
        return b"%b %b HTTP/1.1\r\n%b%b" % (method, target, self._host_line, headers)

    def send(self, start: bytes, headers: bytes, body: bytes, sink: ResponseSink) -> Handle:
        """Send a request with a body. `start` is a result of the method `start`, and `headers` are the last headers."""
        if len(body) <= TOGETHER_BYTES_MAX:
            data, body = b"%b%bcontent-length: %d\r\n\r\n%b" % (start, headers, len(body), body), b""
        else:
            data = b"%b%bcontent-length: %d\r\n\r\n" % (start, headers, len(body))
        idle = self._idle
        if idle and not idle[-1].is_closing():
            call = Handle(sink)
            idle.pop().send(call, data, body)
            return call
        return self._send(Handle(sink), data, body)

    def send_parts(self, start: bytes, headers: bytes, parts: Parts, sink: ResponseSink) -> Handle:
        """Send a request whose large body consists of several parts, without copying them."""
        data = b"%b%bcontent-length: %d\r\n\r\n" % (start, headers, sum(map(len, parts)))
        return self._send(Handle(sink), data, parts)

    def _send(self, call: Handle, data: bytes, body: bytes | Parts = b"") -> Handle:
        """Send a request over an idle connection. If there is none, queue the request.

        A large `body` is passed separately so that it is not copied.
        """
        idle = self._idle
        while idle:
            connection = idle.pop()  # none is past its time: the sweeper sees to that
            if not connection.is_closing():
                connection.send(call, data, body)
                return call
        self._loop = asyncio.get_running_loop()
        failure = None
        if self._closed:
            failure = _SHUTTING_DOWN
        elif len(self._waiting) >= self._waiting_max:
            detail = f"{self._waiting_max} requests already wait for a connection to this server"
            failure = HttpFailure(FailureKind.BUSY, detail, retry_safe=True)
        if failure is not None:
            self._loop.call_soon(call.fail, failure)
        else:
            call.queue = self._waiting
            self._waiting[call] = (data, body)
            self._open_more()
        return call

    async def close(self) -> None:
        """Close every connection. Every unfinished request gets an HttpFailure before this returns."""
        self._closed = True
        self._idle.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        while self._waiting:
            self._fail_oldest(_SHUTTING_DOWN)
        openers = list(self._openers)
        for opener in openers:
            opener.cancel()
        await asyncio.gather(*openers, return_exceptions=True)
        for connection in list(self._connections):
            # Not safe to send again: the server may have read the request.
            self._loop.call_soon(connection.fail, HttpFailure(FailureKind.CLOSED, _SHUTTING_DOWN.detail))
        if self._connections:
            await self._drained.wait()
        await asyncio.sleep(0)

    def ready(self, connection: HttpConnection) -> None:
        """Take back a connection after a complete answer. Send the oldest waiting request over it, or keep it idle."""
        if self._waiting:
            call, (data, body) = self._waiting.popitem(last=False)
            call.queue = None
            connection.send(call, data, body)
            return
        connection.expires_at = self._loop.time() + connection.idle_s
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_at(connection.expires_at, self._sweep)

    @property
    def has_plenty(self) -> bool:
        """Return whether enough connections are idle, so that a connection that has carried an event stream can be
        closed instead of kept.
        """
        return len(self._idle) >= IDLE_AFTER_STREAMS_MAX

    def gone(self, connection: HttpConnection) -> None:
        """Remove a connection that has ended, and open connections for waiting requests if needed."""
        self._connections.discard(connection)
        if not self._closed:
            self._open_more()
        elif not self._connections:
            self._drained.set()

    def _open_more(self) -> None:
        """Open a connection for each waiting request, up to `max_connections`."""
        openers = self._openers
        while len(self._waiting) > len(openers) and len(self._connections) + len(openers) < self._max_connections:
            opener = self._loop.create_task(self._open())
            openers.add(opener)
            opener.add_done_callback(self._on_opened)

    async def _open(self) -> HttpFailure | None:
        """Open a connection and use it. Return why that failed, or None if it succeeded."""
        is_tls = self._tls is not None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: HttpConnection(self, self._max_body_bytes, self._idle_s),
                    self._address,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if is_tls else None,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_S if is_tls else None,
                )
        except OSError as error:
            return _connect_failure(error, is_tls, self._connect_timeout_s)
        # Only here, not in connection_made: an attempt that is cancelled between the two loses its connection silently.
        if connection.is_closing():
            return _refusal("the server closed the connection at once")
        self._connections.add(connection)
        self.ready(connection)
        return None

    def _on_opened(self, opener: asyncio.Task[HttpFailure | None]) -> None:
        self._openers.discard(opener)
        if self._closed:
            return
        failure: HttpFailure | None = _refusal("the connection could not be opened")
        try:
            failure = None if opener.cancelled() else opener.result()  # unexpected errors go to the loop's handler
        finally:
            if failure is not None:
                self._fail_oldest(failure)
                # Without any connection, requests for which no attempt is under way would wait for nothing.
                while not self._connections and len(self._waiting) > len(self._openers):
                    self._fail_oldest(failure)
            self._open_more()

    def _fail_oldest(self, failure: HttpFailure) -> None:
        """Fail the request that has waited longest, in a later turn of the event loop."""
        if self._waiting:
            call, _ = self._waiting.popitem(last=False)
            call.queue = None
            self._loop.call_soon(call.fail, failure)

    def _sweep(self) -> None:
        """Close connections that have been idle for too long."""
        now = self._loop.time()
        usable = []
        for connection in self._idle:
            if now < connection.expires_at and not connection.is_closing():
                usable.append(connection)
            else:
                connection.close()
        self._idle[:] = usable
        earliest = min((connection.expires_at for connection in usable), default=None)
        self._sweeper = None if earliest is None else self._loop.call_at(earliest, self._sweep)


def _split_origin(url: str) -> tuple[bool, str, int]:
    """Return whether a URL uses TLS, its host name as used in DNS and certificates, and its port.

    Raise ValueError if the URL is malformed.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the URL of a server must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of a server must not carry a user name or password; send a header instead")
    is_tls = parts.scheme == "https"
    try:
        host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    if not _HOST.fullmatch(host):
        raise ValueError("the URL of a server must name its host by a DNS name or an IP address")
    return is_tls, host, parts.port or (443 if is_tls else 80)


def _refusal(detail: str) -> HttpFailure:
    return HttpFailure(FailureKind.CONNECT_REFUSED, detail, retry_safe=True)


def _connect_failure(error: OSError, is_tls: bool, timeout_s: float) -> HttpFailure:
    """Return the failure for an error while opening a connection. Its text does not name the address.

    Such a failure is always safe to retry.
    """
    match error:
        case TimeoutError():
            return HttpFailure(FailureKind.CONNECT_TIMEOUT, f"no connection within {timeout_s:g} s", retry_safe=True)
        case socket.gaierror():
            return HttpFailure(FailureKind.NAME_RESOLUTION, "the host name cannot be resolved", retry_safe=True)
        case ssl.SSLError():
            return HttpFailure(FailureKind.TLS, tls_detail(error), retry_safe=True)
        case ConnectionRefusedError():
            return _refusal("nothing listens there: connection refused")
        case ConnectionError() if is_tls:
            detail = "the server closed the connection during the TLS handshake"
            return HttpFailure(FailureKind.TLS, detail, retry_safe=True)
    # Several addresses that fail differently are reported without a number of their own.
    return _refusal(os.strerror(error.errno).lower() if error.errno else "no address of the host accepts a connection")
