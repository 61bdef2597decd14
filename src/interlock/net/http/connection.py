"""One HTTP/1.1 connection to a server: a request goes down as bytes, its answer goes up to a `ResponseSink`.

What a server sends may be anything. Each request gets exactly one terminal event: `on_answer`, `on_stream_end` or
`on_fail`. The parser's callbacks only collect; the sink is called after the parser has returned, so a sink may send,
abort or raise. Which connection carries which request, and when one is opened or closed for idleness, is the business
of the `HttpClient` (`net.http.client`).

Limits. Head, trailers and chunk extensions end the connection above HEAD_BYTES_MAX, and a body above the limit of the
client. Reading pauses for one turn of the loop after every large piece, so that one server does not keep the others
waiting. A request is only reported as safe to retry if no byte of it can have reached the server.
"""

import asyncio
import enum
import re
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import httptools
import msgspec

from interlock.net.http.messages import KNOWN_HEAD_BYTES_MAX, LARGE_READ_BYTES, BodyBuffer, read_key, varying_lines

if TYPE_CHECKING:
    from interlock.net.http.client import HttpClient

Headers = Sequence[tuple[bytes, bytes]]  # names as the server wrote them, in its order, repeated ones kept


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of a header, or None. `name` must be in lower case."""
    size = len(name)
    for key, value in headers:
        if len(key) == size and key.lower() == name:
            return value.strip(b" \t")
    return None


class FailureKind(enum.Enum):
    """The kind of reason for which a request failed, for example that no connection could be opened."""

    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    NAME_RESOLUTION = "name_resolution"
    TLS = "tls"
    LOST_BEFORE_ANSWER = "lost_before_answer"
    LOST_DURING_ANSWER = "lost_during_answer"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    CLOSED = "closed"


class HttpFailure(msgspec.Struct, frozen=True):
    """The reason why a request has no answer. `detail` names no host, path or class, so that anybody may see it."""

    kind: FailureKind
    detail: str
    retry_safe: bool = False  # true only if no byte of the request can have reached the server


class ResponseSink(Protocol):
    """A receiver of the answer to one request.

    The last event is `on_answer`, `on_stream_end` or `on_fail`. An aborted request has no last event.
    """

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Handle a complete answer that is not an event stream."""

    def on_stream(self, status: int, headers: Headers) -> None:
        """Handle the start of an answer with content type text/event-stream. Its content follows in `on_chunk`."""

    def on_chunk(self, data: bytes) -> None:
        """Handle the next piece of an event stream."""

    def on_stream_end(self) -> None:
        """Handle the regular end of an event stream."""

    def on_fail(self, failure: HttpFailure) -> None:
        """Handle a failure of the request, before or during its answer."""


def tls_detail(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    reason = (error.reason or "no reason given").replace("_", " ").lower()
    return f"the TLS handshake failed: {reason}"


def ends_with_connection(headers: Headers) -> bool:
    """Return whether an answer ends when its connection closes (RFC 9112 6.3).

    That is the case if it has no length and its last transfer coding is not chunked.
    """
    coding = b""
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"content-length":
            return False
        if lowered == b"transfer-encoding":
            coding = value
    return coding.rpartition(b",")[2].strip(b" \t").lower() != b"chunked"


HEAD_BYTES_MAX = 65536  # of header lines, informational answers and trailers; common servers stop at 8 to 64 KiB
IDLE_S = 30.0  # below the 60 to 75 s after which most servers and balancers drop an idle connection
KEEP_ALIVE_MARGIN_S = 1.0  # a request sent this shortly before the server's own timeout may meet a closed socket
UNSENT_POSSIBLE_BYTES = 16384  # a smaller request always fits into the empty send buffer of a socket

_EVENT_STREAM = b"text/event-stream"
_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[ ,;])timeout=([0-9]{1,6})(?![0-9])", re.IGNORECASE)


Parts = tuple[bytes | memoryview, ...]  # of a body, written one after the other


class Handle(msgspec.Struct, eq=False):
    """A handle with which the sender of a request can pause or abort the request. After the final event, its methods do
    nothing.
    """

    sink: ResponseSink | None
    head_only: bool = False
    connection: "HttpConnection | None" = None
    queue: "OrderedDict[Handle, tuple[bytes, bytes | Parts]] | None" = None

    def abort(self) -> None:
        """Close the connection, or leave the queue if the request was not sent yet. The sink gets no further event."""
        self.sink = None
        if self.connection is not None:
            self.connection.abort()
        elif self.queue is not None:
            self.queue.pop(self, None)
            self.queue = None

    def pause(self) -> None:
        """Stop reading from the server until `resume`. Data that was already read is still delivered."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.resume()

    def fail(self, failure: HttpFailure) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_fail(failure)


KNOWN_HEADS_MAX = 256
_BODILESS = (204, 304)  # whatever length their heads name
_NOT_PLAIN = frozenset((b"transfer-encoding", b"keep-alive", b"upgrade"))


class _Stop(Exception):
    """An exception that stops the HTTP parser. It is raised inside the callbacks of the parser."""


class HttpConnection(asyncio.Protocol):
    """A connection to a server, which carries one request at a time.

    States. Idle: `_call` is None, and any byte from the server closes the connection. Waiting (`_untouched`): the
    request is sent and nothing of its answer was read; an answer whose head is known and that arrived whole is handled
    without the parser. Reading: `_status` is 0 until the final head is complete, then the body is collected, or passed
    on in pieces if it is an event stream (`_streaming`). `_complete`: the answer has ended, and the connection goes
    back to its client if both sides keep it open.
    """

    def __init__(self, owner: "HttpClient", max_body_bytes: int, idle_s: float) -> None:
        self._owner, self._max_body_bytes = owner, max_body_bytes
        self.idle_s = idle_s  # how long an idle connection stays good; a server's Keep-Alive header shortens it
        self.expires_at = 0.0
        self._keep_alive = b""
        self._call: Handle | None = None
        self._paused = False
        self._unsent_possible = False
        self._head: list[tuple[bytes, bytes]] = []  # being collected: informational heads and trailers too
        self.headers: Headers = self._head  # of the final answer
        self._status = 0  # of the final answer, 0 until its head is complete
        self._body = BodyBuffer()
        self._streaming = self._announced = self._complete = self._persistent = False
        self._unproductive = 0  # bytes read since the request was sent or body last grew
        self._untouched = False  # the request was sent and nothing of its answer was read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def send(self, call: Handle, data: bytes, body: bytes | Parts = b"") -> None:
        self._call = call
        call.connection = self
        self._untouched = True
        if not body:
            self._unsent_possible = len(data) > UNSENT_POSSIBLE_BYTES
            self._transport.write(data)
        else:
            self._unsent_possible = True
            self._transport.writelines((data, body) if isinstance(body, bytes) else (data, *body))

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately. The request in flight ends without an event."""
        self._release()
        self._transport.abort()

    def fail(self, failure: HttpFailure) -> None:
        """Close the connection immediately. The request in flight fails with `failure`."""
        call = self._release()
        self._transport.abort()
        if call is not None:
            call.fail(failure)

    def pause(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:  # nothing was asked: a server that times out an idle connection, or one that answers twice
            self._transport.abort()
            return
        end = -1
        if self._untouched:
            self._untouched = False
            end = data.find(b"\r\n\r\n", 0, KNOWN_HEAD_BYTES_MAX)
            if end > 0:
                key, length = read_key(data, end, self._owner.varying)
                known_head = self._owner.known_heads.get(key)
                if known_head is not None and len(data) == end + 4 + length and not call.head_only:
                    sink = call.sink
                    self._finish(call, True)
                    if sink is not None:
                        sink.on_answer(known_head[0], known_head[1], data[end + 4 :])
                    return
            self._status = self._unproductive = 0
            self._body = BodyBuffer()
            self._streaming = self._announced = self._complete = False
        unread = self._unproductive = self._unproductive + len(data)
        malformed = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            malformed = error
        if unread > HEAD_BYTES_MAX and self._is_too_large():
            self.fail(HttpFailure(FailureKind.MALFORMED, f"the server's header is over {HEAD_BYTES_MAX} bytes"))
        elif self._streaming:
            self._pass_on(call, malformed)
            if len(data) >= LARGE_READ_BYTES and self._call is call and not self._paused:
                self._let_others()
        elif self._body.size > self._max_body_bytes:
            detail = f"the server's answer is over {self._max_body_bytes} bytes"
            self.fail(HttpFailure(FailureKind.TOO_LARGE, detail))
        elif self._complete:
            if end > 0 and malformed is None:
                self._learn(data, end)
            self._answer(call, self._persistent and malformed is None)
        elif malformed is not None:
            self._fail_malformed(malformed)
        elif len(data) >= LARGE_READ_BYTES and not self._paused:
            self._let_others()

    def _let_others(self) -> None:
        """Pause reading for one turn of the event loop after a large piece, so that other connections are served."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _learn(self, data: bytes, end: int) -> None:
        """Remember the head of an answer that arrived in one piece, so that later answers with the same head need no
        parser.

        A server starts most answers with the same bytes, so the parsed result can be reused. Heads that differ every
        time, for example because they are numbered, are not kept: a head is remembered only when it occurs for the
        second time.
        """
        owner = self._owner
        known_heads = owner.known_heads
        owner.varying = varying_lines(data[:end])
        key, length = read_key(data, end, owner.varying)
        if key not in known_heads:
            if len(known_heads) >= KNOWN_HEADS_MAX:
                known_heads.clear()
            known_heads[key] = None
            return
        names = {name.lower() for name, _ in self.headers}
        plain = self._persistent and names.isdisjoint(_NOT_PLAIN) and self._status not in _BODILESS
        if plain and len(data) == end + 4 + length:
            known_heads[key] = (self._status, self.headers)

    def eof_received(self) -> None:
        self._on_ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_ended(exc)
        del self._parser  # it holds bound methods of this object
        self._owner.gone(self)

    def on_message_begin(self) -> None:
        if self._complete:
            raise _Stop("bytes after the answer")
        self._head = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:  # RFC 9110 15.2.2: only after the client asked for it
                raise _Stop("a status that was not asked for")
            return
        self._status = status
        self.headers, self._head = self._head, []
        is_typed = False
        for name, value in self.headers:
            size = len(name)
            if size == 12:
                if not is_typed and name.lower() == b"content-type":
                    is_typed = True
                    self._streaming = value[:17].lower() == _EVENT_STREAM and value[17:18] in (b"", b";", b" ", b"\t")
            elif size == 10 and value != self._keep_alive and name.lower() == b"keep-alive":
                self._keep_alive = value
                timeout = _KEEP_ALIVE_TIMEOUT.search(value)
                if timeout is not None:
                    self.idle_s = min(self.idle_s, int(timeout[1]) - KEEP_ALIVE_MARGIN_S)
            elif size == 14 and name.lower() == b"content-length":
                self._body = BodyBuffer(min(int(value), self._max_body_bytes))  # the parser takes nothing but digits
        call = self._call
        if call is not None and call.head_only:
            # The parser cannot be told that no body follows (RFC 9112 6.3 rule 1), so it is left here, mid-message.
            self._complete, self._persistent, self._streaming = True, False, False
            raise _Stop

    def on_body(self, data: bytes) -> None:
        self._unproductive = 0
        self._body.add(data)

    def on_message_complete(self) -> None:
        if self._status:
            self._complete = True
            self._persistent = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"

    def _is_too_large(self) -> bool:
        """Return whether the head, a trailer or chunk extensions exceed HEAD_BYTES_MAX."""
        if not self._complete and self._unproductive > HEAD_BYTES_MAX:
            return True
        return self._status > 0 and sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX

    def _release(self) -> Handle | None:
        """Detach the request in flight from the connection, and return it."""
        call, self._call = self._call, None
        if call is not None:
            call.connection = None
        return call

    def _finish(self, call: Handle, persistent: bool) -> None:
        """Detach the request from its connection, and give the connection back or close it. The caller notifies the
        sink afterwards.

        Waiting requests are sent first, because the sink may raise.

        The call drops its reference to the sink, which refers to the call. Otherwise every request would be a reference
        cycle that waits for the garbage collector.
        """
        self._call = call.connection = call.sink = None
        if self._paused:
            self.resume()
        if self._unsent_possible and self._transport.get_write_buffer_size():
            self._transport.abort()  # answered before the request was read; flushing the rest could last for ever
        elif persistent and self.idle_s > 0:
            self._owner.ready(self)
        else:
            self._transport.close()

    def _answer(self, call: Handle, persistent: bool) -> None:
        status, headers, sink = self._status, self.headers, call.sink
        body = self._body.take()
        self._finish(call, persistent)
        if sink is not None:
            sink.on_answer(status, headers, body)

    def _pass_on(self, call: Handle, malformed: Exception | None) -> None:
        """Pass the data read from an event stream to the sink. The sink may abort or send a request at every step."""
        sink = call.sink
        if sink is None:
            return
        if not self._announced:
            self._announced = True
            sink.on_stream(self._status, self.headers)
        if self._body and self._call is call:
            sink.on_chunk(self._body.take())
        if self._call is not call:
            return
        if self._complete:
            self._finish(call, self._persistent and malformed is None and not self._owner.has_plenty)
            sink.on_stream_end()
        elif malformed is not None:
            self._fail_malformed(malformed)

    def _fail_malformed(self, error: Exception) -> None:
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        self.fail(HttpFailure(FailureKind.MALFORMED, f"the server does not speak HTTP/1.1: {cause}"))

    def _on_ended(self, exc: Exception | None) -> None:
        """End the request in flight after the server closed the connection. Deliver its answer if it is complete."""
        call = self._call
        if call is None:
            return
        if self._untouched:
            self._status = self._unproductive = 0  # what is noted there is of the answer before
        if self._status and exc is None and ends_with_connection(self.headers):
            if self._streaming:
                sink = call.sink
                self._finish(call, False)
                if sink is not None:
                    sink.on_stream_end()
            else:
                self._answer(call, False)
        elif self._status or self._unproductive:
            detail = "the server closed the connection in the middle of its answer"
            self.fail(HttpFailure(FailureKind.LOST_DURING_ANSWER, detail))
        elif isinstance(exc, ssl.SSLError):
            self.fail(HttpFailure(FailureKind.TLS, tls_detail(exc)))
        else:
            detail = "the server closed the connection before it answered"
            self.fail(HttpFailure(FailureKind.LOST_BEFORE_ANSWER, detail))
