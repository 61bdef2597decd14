"""The three ways in which messages reach a server: a child's stdio, streamable HTTP, and the older HTTP+SSE.

Theory of operation. A pipe carries whole messages. It knows neither methods nor eras, except for the headers that its
owner (a `ConnectedLink`) gives it. Where the transport shows on which request a message came back (HTTP), the pipe
passes that request on as `origin`; on stdio and HTTP+SSE all messages share one stream, and `origin` is None.

    StdioPipe   one line is one message; the sandbox and the child end with the pipe
    HttpPipe    one POST per message and its answer on the same exchange; a GET stream for the rest (legacy servers)
    SsePipe     one GET stream brings every message; POSTs go to the URL that the first event of the stream names

Over HTTP, messages that ask nothing of the server (answers to its questions, cancellations, notifications) have
connections and a queue of their own (`SideRequests`). They must get through while every call waits for them, and they
come in bursts, as when a thousand parked calls expire at once. A message that does not fit into the queue is refused
to its sender, and one that the server does not take in time fails: nothing is dropped silently, and nothing blocks the
rest for ever.

A stream that breaks is resumed with Last-Event-ID where the server gave its events ids, a few times and with a pause.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urljoin, urlsplit

import msgspec

from interlock.core.calls.call import PARKED_MAX, Inquiry, Pending
from interlock.net.http.client import HttpClient
from interlock.net.http.connection import FailureKind, Handle, Headers, HttpFailure, Parts, ResponseSink, header
from interlock.net.message_pipe import PacedDelivery
from interlock.process.child import Child
from interlock.process.sandbox.sandbox import Sandbox
from interlock.wire.jsonrpc.oversized import Oversized
from interlock.wire.sse import SseEvent, SseParser

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink

EVENT_STREAM_HEAD = b"accept: text/event-stream\r\n"
POST_HEAD = b"content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
RESUME_TRIES_MAX = 5
# As many as calls under way at one server, by default, and calls that wait for their clients: each keeps the connection
# on which its server asked.
CALL_CONNECTIONS_MAX = 1024 + PARKED_MAX
RESUME_DELAY_S = 1.0  # when the server named no `retry`


class Trouble(Enum):
    """Reason why a message was not delivered or its answer was not received."""

    UNREACHABLE = "unreachable"  # nothing was sent
    LOST = "lost"  # sent, no answer: what happened there is unknown
    BUSY = "busy"  # nothing was sent, and others are being served
    UNAUTHORISED = "unauthorised"
    SESSION_LOST = "session_lost"
    REFUSED = "refused"  # an HTTP status that is no MCP answer
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"  # its answer


class Undelivered(msgspec.Struct, frozen=True):
    """Report of a message that was not delivered, or whose answer was not received."""

    trouble: Trouble
    detail: str
    status: int = 0
    challenges: tuple[bytes, ...] = ()  # what a refusal says about the credential it wants (WWW-Authenticate)
    headers: Headers = ()  # of a refusal that is not about the credential
    limit: int = 0  # in bytes, of what was too large


SIDE_FULL = Undelivered(Trouble.BUSY, "too many messages to it wait already")


class Pipe(Protocol):
    """Transport of messages to and from one server."""

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object: ...

    def abort(self, handle: object) -> None:
        """Stop one request by closing its connection, if the transport can do that.

        `handle` is the value that `send` returned.
        """
        return

    def throttle(self, seconds: float) -> None:
        """Stop reading for some seconds, because the server sends too much."""
        return

    async def close(self) -> None:
        """Release the resources of the transport, if it holds any."""
        return


def refused(status: int, headers: Headers) -> Undelivered:
    """Return the report of a request that a server refused with this HTTP status. With 401 and 403 it refuses our
    credential.
    """
    if status not in (401, 403):
        return Undelivered(Trouble.REFUSED, f"HTTP {status}", status, headers=headers)
    challenges = tuple(value for name, value in headers if name.lower() == b"www-authenticate")
    return Undelivered(Trouble.UNAUTHORISED, f"it refuses our credential (HTTP {status})", status, challenges)


class StdioPipe(Pipe):
    """Pipe to a child process over its standard streams. It also receives the child's events (ChildSink)."""

    def __init__(self, owner: "ConnectedLink") -> None:
        self._owner = owner
        self.child: Child | None = None
        self.cell: Sandbox | None = None  # the sandbox it runs in

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        if (child := self.child) is not None and not child.send(message):
            self._owner.on_undelivered(origin, Undelivered(Trouble.BUSY, "it does not read its input fast enough"))
        return None

    def throttle(self, seconds: float) -> None:
        if (child := self.child) is not None:
            child.pause_reading()
            asyncio.get_running_loop().call_later(seconds, child.resume_reading)

    def on_line(self, data: bytes) -> None:
        if data.strip():
            self._owner.on_message(data, None)

    def on_oversized(self, oversized: Oversized) -> None:
        self._owner.on_oversized(oversized, None)

    def on_gone(self, reason: str) -> None:
        self._owner.on_pipe_lost(reason)

    def on_stalled(self) -> None:
        self._owner.on_pipe_lost("it stopped reading its input")

    async def close(self) -> None:
        try:
            if self.child is not None:
                await self.child.stop()
        finally:
            if self.cell is not None:
                self.cell.close()


class _NetworkPipe(Pipe):
    """Connections and headers of a pipe over HTTP."""

    limits: Mapping[str, int] = {}  # of the `HttpClient` for calls, where they differ from its defaults

    def __init__(
        self,
        owner: "ConnectedLink",
        url: str,
        headers: dict[str, str],
        max_bytes: int,
        address: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create a pipe to `url`. `address` and `tls` have the same meaning as for `HttpClient`."""
        parts = urlsplit(url)
        self.owner = owner
        self.url = url
        self.max_bytes = max_bytes
        self.closed = False
        self.target = (parts.path or "/").encode() + (b"?" + parts.query.encode() if parts.query else b"")
        place = f"{parts.scheme}://{parts.netloc}"
        self.client = HttpClient(place, max_body_bytes=max_bytes, address=address, tls=tls, **self.limits)
        self._side = SideRequests(place, max_bytes, address, tls)
        self._written = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items())
        self._custom = self._written
        self._post = self.client.start(b"POST", self.target, POST_HEAD + self._custom)

    def adopt_credential(self, line: bytes) -> None:
        """Set the Authorization header of every request from now on."""
        self._custom = self._written + line

    async def close(self) -> None:
        await self._side.close()
        await self.client.close()


class HttpPipe(_NetworkPipe):
    """Pipe over streamable HTTP: one POST per message, whose response carries the answer.

    Other messages of a legacy server arrive on a GET stream.
    """

    # Calls are bounded before they come here.
    limits: Mapping[str, int] = {"max_connections": CALL_CONNECTIONS_MAX, "max_waiting": CALL_CONNECTIONS_MAX}
    speaking: "_Exchange | None" = None  # whose message is being handled
    _stream: "_Exchange | None" = None
    _session = b""

    def adopt_credential(self, line: bytes) -> None:
        super().adopt_credential(line)
        self._post = self.client.start(b"POST", self.target, POST_HEAD + self._custom + self._session)
        if self._stream is not None and self._stream.refused:
            self.open_stream()

    def adopt_session(self, session: bytes, version: str) -> None:
        """Send the session id and the protocol version with every later request, as legacy servers require."""
        self._session = b"mcp-protocol-version: %b\r\n" % version.encode()
        if session:
            self._session += b"mcp-session-id: %b\r\n" % session
        self._post = self.client.start(b"POST", self.target, POST_HEAD + self._custom + self._session)

    def forget_session(self) -> None:
        self._session = b""
        self._post = self.client.start(b"POST", self.target, POST_HEAD + self._custom)

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        if origin is not None:
            exchange = _Exchange(self, origin, origin.upstream_id)
            exchange.handle = self.client.send(self._post, head, message, exchange)
            return exchange
        if not self._side.send(self._post + head, message, _Exchange(self)):
            self.owner.on_undelivered(None, SIDE_FULL)
        return None

    def send_pieces(self, pieces: Parts, head: bytes, origin: Pending) -> object:
        exchange = _Exchange(self, origin, origin.upstream_id)
        exchange.handle = self.client.send_parts(self._post, head, pieces, exchange)
        return exchange

    def open_stream(self) -> None:
        """Open the GET stream for messages of a legacy server. Reopen it after it ends, but a limited number of times
        without a message.
        """
        stream = _Exchange(self, listening=True)
        self._stream = stream
        stream.open()

    def get(self, head: bytes, exchange: "_Exchange") -> Handle:
        lines = EVENT_STREAM_HEAD + self._custom + self._session + head
        return self.client.request(b"GET", self.target, lines, b"", exchange)

    def abort(self, handle: object) -> None:
        if isinstance(handle, _Exchange):
            handle.abort()

    def throttle(self, seconds: float) -> None:
        if self.speaking is not None:
            self.speaking.pause_delivery(seconds)

    async def close(self) -> None:
        self.closed = True
        if self.has_session:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.client.request(b"DELETE", self.target, self._custom + self._session, b"", _Farewell(done))
            try:
                await asyncio.wait_for(done, 1.0)
            except TimeoutError:
                pass
        await super().close()

    @property
    def has_session(self) -> bool:
        return b"mcp-session-id" in self._session


class _StreamlessSink:
    """Base class of receivers of HTTP responses that are no streams. Streamed data is ignored."""

    def on_stream(self, status: int, headers: Headers) -> None:
        pass

    def on_chunk(self, data: bytes) -> None:
        pass

    def on_stream_end(self) -> None:
        pass


@dataclass(eq=False)
class _Farewell(_StreamlessSink):
    """Receiver of the response to the DELETE request with which a session is ended. It ignores the content."""

    _done: "asyncio.Future[None]"

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        self.on_stream_end()

    def on_fail(self, failure: HttpFailure) -> None:
        self.on_stream_end()

    def on_stream_end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class _Exchange(PacedDelivery, eq=False):
    """A POST request to a server, or the GET stream, with everything that the server sends in response."""

    pipe: HttpPipe
    origin: Pending | None = None
    sent_as: int = 0  # the origin's id at the server
    listening: bool = False
    parser: SseParser | None = None
    last_id: str | None = None
    retry_s: float = RESUME_DELAY_S
    tries: int = 0
    aborted: bool = False
    refused: bool = False  # the stream, for its credential
    handle: Handle | None = None

    def hold_reading(self, wanted: bool) -> None:
        if (handle := self.handle) is not None:
            (handle.pause if wanted else handle.resume)()

    def _is_awaited(self) -> bool:
        """Return whether a call of a client still waits for the response to this HTTP request.

        The call may have a new id, if it is in its next round.
        """
        origin = self.origin
        return origin is not None and origin.upstream_id == self.sent_as and self.sent_as in self.pipe.owner.waiting

    def open(self) -> None:
        if self.aborted or self.pipe.closed:
            return
        head = b"" if self.last_id is None else b"last-event-id: %b\r\n" % self.last_id.encode()
        self.handle = self.pipe.get(head, self)

    def abort(self) -> None:
        self.aborted = True
        self.stop_delivery()
        if self.handle is not None:
            self.handle.abort()

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Handle a response that is not a stream: a message, an acknowledgement, or an HTTP error.

        The status of an error decides whether the call may be sent again (`FailedRequests`): 401 and 403 concern the
        credential, 404 the session; in each case the server did not act on the request.
        """
        owner, origin = self.pipe.owner, self.origin
        if status == 200 and not self.listening:
            if isinstance(origin, Inquiry) and (session := header(headers, b"mcp-session-id")) is not None:
                owner.session = session
            answered = bool(body) and owner.on_message(body, origin)
            if not answered and origin is not None and self._is_awaited():
                owner.on_undelivered(origin, Undelivered(Trouble.MALFORMED, "its answer was not for this request"))
            return
        if self.listening:
            self.refused = status == 401
            return  # 405 and others: the server offers no stream
        if 200 <= status < 300:
            if origin is not None and self._is_awaited():
                owner.on_undelivered(origin, Undelivered(Trouble.MALFORMED, f"HTTP {status} instead of an answer"))
            return
        if self.last_id is not None:  # the answer to a resumed stream, whose request the server has had long ago
            if status in (401, 403):
                owner.on_undelivered(None, refused(status, headers))
            self._fail(Undelivered(Trouble.LOST, f"its stream could not be taken up again (HTTP {status})", status))
            return
        if status in (401, 403):
            owner.on_undelivered(origin, refused(status, headers))
            return
        if status == 404 and self.pipe.has_session:  # whatever the body says: the server did not look at the request
            owner.on_undelivered(origin, Undelivered(Trouble.SESSION_LOST, "it forgot our session", status))
            return
        # Some servers send a JSON-RPC error with an HTTP error status.
        if body[:1] == b"{" and origin is not None:
            owner.on_message(body, origin)
            if not self._is_awaited():
                return
        owner.on_undelivered(origin, refused(status, headers))

    def on_stream(self, status: int, headers: Headers) -> None:
        self.parser = SseParser(self.pipe.max_bytes)
        if (session := header(headers, b"mcp-session-id")) is not None and self.origin is not None:
            self.pipe.owner.session = session

    def on_chunk(self, data: bytes) -> None:
        if self.parser is None or self.aborted:
            return
        if events := self.parser.feed(data):
            self.deliver(events)

    def on_next(self, event: SseEvent) -> None:
        if event.id is not None:
            self.last_id = event.id
        if event.retry_ms is not None:
            self.retry_s = min(event.retry_ms / 1000, 60.0)
        if event.data and event.event == "message":
            self.tries = 0
            self.pipe.speaking = self
            try:
                self.pipe.owner.on_message(event.data, self.origin)
            finally:
                self.pipe.speaking = None
        elif event.oversized is not None:
            was_awaited = self._is_awaited()
            self.pipe.owner.on_oversized(event.oversized, self.origin)
            if was_awaited and not self._is_awaited():
                self.abort()  # the rest of the stream answers no call

    def on_stream_end(self) -> None:
        self.finish_delivery(
            lambda: self._resume_stream(Undelivered(Trouble.LOST, "its stream ended without an answer"))
        )

    def on_fail(self, failure: HttpFailure) -> None:
        if self.parser is not None:  # a stream that had begun: resume where the server allows it
            self.finish_delivery(lambda: self._resume_stream(Undelivered(Trouble.LOST, failure.detail)))
            return
        self._fail(_undelivered(failure, self.pipe.max_bytes))

    def _resume_stream(self, otherwise: Undelivered) -> None:
        """Open a stream again after it ended, if it is the GET stream or a call waits for it, and if the limit on
        attempts allows it.

        Otherwise fail with `otherwise`.
        """
        if self.aborted or self.pipe.closed:
            return
        wanted = self.listening or (self.last_id is not None and self._is_awaited())
        if wanted and self.tries < RESUME_TRIES_MAX:
            self.tries += 1
            self.parser = None
            asyncio.get_running_loop().call_later(self.retry_s, self.open)
            return
        self._fail(otherwise)

    def _fail(self, what: Undelivered) -> None:
        if self.aborted or self.listening or self.pipe.closed:
            return
        if self.origin is None or self._is_awaited():
            self.pipe.owner.on_undelivered(self.origin, what)


class SsePipe(_NetworkPipe):
    """Pipe over HTTP+SSE of 2024-11-05.

    One GET stream carries every message from the server. Messages to the server are POSTs to the URL in the stream's
    first event.
    """

    post_target: bytes | None = None
    _stream: "_SseStream | None" = None

    async def open(self, timeout_s: float) -> Undelivered | None:
        """Open the event stream. Return None when the URL for POSTs is known, otherwise the failure."""
        opened: asyncio.Future[Undelivered | None] = asyncio.get_running_loop().create_future()
        stream = self._stream = _SseStream(self, SseParser(self.max_bytes), opened)
        stream.handle = self.client.request(b"GET", self.target, EVENT_STREAM_HEAD + self._custom, b"", stream)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(opened)
        except TimeoutError:
            return Undelivered(Trouble.LOST, "no SSE endpoint event came")

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        if self.post_target is not None:
            start = self.client.start(b"POST", self.post_target, POST_HEAD + self._custom)
            posted = _Posted(self, origin)
            if origin is not None:
                self.client.send(start, b"", message, posted)
            elif not self._side.send(start, message, posted):
                self.owner.on_undelivered(None, SIDE_FULL)
        return None

    def throttle(self, seconds: float) -> None:
        if self._stream is not None:
            self._stream.pause_delivery(seconds)

    async def close(self) -> None:
        self.closed = True
        if self._stream is not None and self._stream.handle is not None:
            self._stream.stop_delivery()
            self._stream.handle.abort()
        await super().close()


class _SseStream(PacedDelivery, eq=False):
    """The GET stream of an SSE pipe, with everything that the server sends on it."""

    pipe: SsePipe
    parser: SseParser
    opened: "asyncio.Future[Undelivered | None]"
    handle: Handle | None = None

    def hold_reading(self, wanted: bool) -> None:
        if (handle := self.handle) is not None:
            (handle.pause if wanted else handle.resume)()

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._lose(refused(status, headers))

    def on_stream(self, status: int, headers: Headers) -> None:
        pass

    def on_chunk(self, data: bytes) -> None:
        if events := self.parser.feed(data):
            self.deliver(events)

    def on_next(self, event: SseEvent) -> None:
        owner = self.pipe.owner
        if event.event == "endpoint" and self.pipe.post_target is None:
            self._take_endpoint(event.data.decode(errors="replace"))
        elif event.event == "message" and event.data:
            owner.on_message(event.data, None)
        elif event.oversized is not None:
            owner.on_oversized(event.oversized, None)

    def _take_endpoint(self, reference: str) -> None:
        """Use the address in the first event for POSTs, if it is on the host of the stream."""
        try:
            parts = urlsplit(urljoin(self.pipe.url, reference))
        except ValueError:
            self._lose(Undelivered(Trouble.MALFORMED, "its SSE endpoint is no address"))
            return
        own = urlsplit(self.pipe.url)
        # AIP-transport-7: a credential must not follow a server elsewhere
        if (parts.scheme, parts.netloc) != (own.scheme, own.netloc):
            self._lose(Undelivered(Trouble.MALFORMED, "its SSE endpoint is on another host"))
            return
        self.pipe.post_target = parts.path.encode() + (b"?" + parts.query.encode() if parts.query else b"")
        if not self.opened.done():
            self.opened.set_result(None)

    def on_stream_end(self) -> None:
        self.finish_delivery(lambda: self._lose(Undelivered(Trouble.LOST, "its event stream ended")))

    def on_fail(self, failure: HttpFailure) -> None:
        self.finish_delivery(lambda: self._lose(_undelivered(failure, 0)))

    def _lose(self, what: Undelivered) -> None:
        if not self.opened.done():
            self.opened.set_result(what)
        else:
            self.pipe.owner.on_pipe_lost(what.detail)


@dataclass(eq=False)
class _Posted(_StreamlessSink):
    """Receiver of the HTTP response to a POST of HTTP+SSE: status 202 or an error."""

    _pipe: SsePipe
    _origin: Pending | None

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        if not 200 <= status < 300:
            self._pipe.owner.on_undelivered(self._origin, refused(status, headers))

    def on_fail(self, failure: HttpFailure) -> None:
        if not self._pipe.closed:
            self._pipe.owner.on_undelivered(self._origin, _undelivered(failure, 0))


def _undelivered(failure: HttpFailure, limit: int) -> Undelivered:
    """Translate an HTTP failure into the form that a link handles.

    `limit` is the size limit of a response body, or 0 if no answer is expected.
    """
    if failure.kind is FailureKind.TOO_LARGE and limit:
        return Undelivered(Trouble.TOO_LARGE, failure.detail, limit=limit)
    if failure.kind is FailureKind.BUSY:
        return Undelivered(Trouble.BUSY, failure.detail)
    return Undelivered(Trouble.UNREACHABLE if failure.retry_safe else Trouble.LOST, failure.detail)


SIDE_CONNECTIONS_MAX: Final = 8
SIDE_WAITING_MAX: Final = 65_536  # more than a cancellation and an answer for every call that may be parked
SIDE_BYTES_MAX: Final = 64 * 1024 * 1024  # of messages the server has not answered; a single larger one may go alone
SIDE_TAKEN_S: Final = 60.0  # from `send` to the server's answer; a full queue needs a good part of it
SIDE_SWEEP_S: Final = 5.0


class SideRequests:
    """Sender of messages that expect no answer from the server, over separate connections with a bounded queue."""

    def __init__(
        self, place: str, max_bytes: int, address: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        limits = {"max_connections": SIDE_CONNECTIONS_MAX, "max_waiting": SIDE_WAITING_MAX}
        self._client = HttpClient(place, max_body_bytes=max_bytes, address=address, tls=tls, **limits)
        self._under_way: dict[_Letter, None] = {}  # the oldest first
        self._bytes = 0
        self._sweeper: asyncio.TimerHandle | None = None

    def send(self, start: bytes, message: bytes, sink: ResponseSink) -> bool:
        """Send a message without waiting for its answer. Return False, without sending it, if too many messages wait.

        `start` has the same meaning as for `HttpClient.send`.
        """
        size = len(message)
        count = len(self._under_way)
        if count >= SIDE_WAITING_MAX or (count and self._bytes + size > SIDE_BYTES_MAX):
            return False
        loop = asyncio.get_running_loop()
        letter = _Letter(self, size, sink, loop.time() + SIDE_TAKEN_S)
        self._under_way[letter] = None
        self._bytes += size
        letter.handle = self._client.send(start, b"", message, letter)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SIDE_SWEEP_S, self._sweep)
        return True

    def over(self, letter: "_Letter") -> None:
        if self._under_way.pop(letter, self) is not self:
            self._bytes -= letter.size

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._client.close()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for letter in list(self._under_way):
            if letter.deadline > loop.time():
                break
            letter.give_up()
        self._sweeper = loop.call_later(SIDE_SWEEP_S, self._sweep) if self._under_way else None


@dataclass(eq=False, slots=True)
class _Letter:
    """Message that `SideRequests` sends or will send. It passes the server's response on to the sender's sink."""

    _side: SideRequests
    size: int
    _sink: ResponseSink
    deadline: float
    handle: Handle | None = None

    def give_up(self) -> None:
        if self.handle is not None:
            self.handle.abort()
        detail = f"it was not taken within {SIDE_TAKEN_S:g} s"
        self.on_fail(HttpFailure(FailureKind.LOST_BEFORE_ANSWER, detail))

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._side.over(self)
        self._sink.on_answer(status, headers, body)

    def on_stream(self, status: int, headers: Headers) -> None:
        self._sink.on_stream(status, headers)

    def on_chunk(self, data: bytes) -> None:
        self._sink.on_chunk(data)

    def on_stream_end(self) -> None:
        self._side.over(self)
        self._sink.on_stream_end()

    def on_fail(self, failure: HttpFailure) -> None:
        self._side.over(self)
        self._sink.on_fail(failure)
