"""WebSocket connections as pipes of whole messages: one text frame is one message, at whichever end we are.

Theory of operation. `FramedPipe` is an open connection. It is a `MessagePipe`: it tells its sink every message in
order and then, exactly once, why the connection ended. `AcceptedPipe` takes over a connection on which the HTTP server
has answered an upgrade; `dial` opens one to a URL and returns a `DialledPipe`, or raises `DialFailed` with a reason
that a person can act on. Redirects are not followed and no compression is offered.

The framing is that of the `websockets` package, with one exception. A link between nodes carries four messages for
each call, so complete text frames of an open connection are read and written right here, without the package. Every
other frame (fragments, pings, closes, anything malformed) goes through it. A binary frame ends the connection unless
the accepting side asked for binary frames. Messages reach the sink in the turn of the loop in which their bytes
arrived, and everything that is sent in one turn is written with one system call.

Limits. A message over `max_bytes` is skipped, not buffered, and reported with `on_oversized`; a frame over ENDLESS
times that limit closes the connection. A peer that does not answer a ping within PONG_WITHIN_S, or whose queue does
not move for STALL_AFTER_S, is cut off (MCP-AX 6.3). Closing takes at most CLOSE_S.
"""

import asyncio
import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from interlock.net.message_pipe import (
    CUT,
    GOING_AWAY,
    INTERNAL,
    NORMAL,
    NOT_UTF8,
    STALL_AFTER_S,
    TOO_BIG,
    UNACCEPTABLE,
    MessageSink,
    fit_close_reason,
)
from interlock.wire.jsonrpc.oversized import OversizedScanner

try:
    from websockets.speedups import apply_mask
except ImportError:  # there is no compiled one for every system
    from websockets.utils import apply_mask

if TYPE_CHECKING:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


_HEAD_END: Final = b"\r\n\r\n"
PING_EVERY_S: Final = 20.0  # AX-6.3-3
PONG_WITHIN_S: Final = 10.0  # AX-6.3-3
CLOSE_S: Final = 2.0  # for the peer's part of closing
WRITE_BYTES_MAX: Final = 64 * 1024  # gathered for one write
ENDLESS: Final = 16  # times the limit of a message: what is larger is refused by its head, and not skipped

_WHOLE_TEXT: Final = 0x81  # RFC 6455 5.2: FIN, no reserved bit, opcode 1
_MASKED: Final = 0x80
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
_MASK_BYTES: Final = 4
_head_16: Final = Struct("!BBH").pack
_head_64: Final = Struct("!BBQ").pack


class FramedPipe(asyncio.Protocol):
    """An open WebSocket that carries messages. A subclass opens it, sets `_transport` and `_open`, and then calls
    `_begin`.

    A pipe is open from then until the protocol leaves the state OPEN; the sink is told of the end once the transport is
    lost. `_verdict` is our own reason for the end, if we have one; otherwise the peer's close frame gives it.
    """

    # While one pipe handles what it received, the pipes that have something to write, so that each writes once.
    _turn: "ClassVar[list[FramedPipe] | None]" = None

    def __init__(
        self, protocol: Protocol, sink: MessageSink, max_bytes: int, ping_every_s: float, pong_within_s: float
    ) -> None:
        """Create a pipe over a WebSocket `protocol`, which must not use extensions."""
        self._protocol = protocol
        protocol.max_message_size, protocol.max_fragment_size = ENDLESS * max_bytes, max_bytes
        self._sink, self._max_bytes, self._ping_every_s = sink, max_bytes, ping_every_s
        self._pong_within_s = pong_within_s
        self._masks = protocol.side is Side.CLIENT  # RFC 6455 5.3: a client masks, a server does not
        self._transport: asyncio.Transport | None = None
        self._open = False  # we may send
        self._began = False  # the sink may hear
        self._paused = False
        self._full = False
        self._drained: asyncio.Future[None] | None = None
        self._rest = bytearray()  # of a frame that has not come as a whole
        self._awaited = 0  # its size, once that is known
        self._parts: bytearray | None = None  # of a message in several frames
        self._skips = False  # a message over the limit
        self._scanner: OversizedScanner | None = None  # of that message, until it is known whose it is
        self._unread = 0  # bytes of its frame that have not come, where it is one frame
        self._mask = b""  # of that frame, turned to its next byte
        self._queue: list[bytes] = []  # parts of frames, sent in this turn of the loop
        self._queued = 0  # bytes of messages among them
        self._said_closed = False
        self._verdict: tuple[int, str] | None = None
        self._ping = b""
        self._alarm: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> bool:
        """Queue one message and return True. Return False, and send nothing, if the pipe is closed or closing, or if
        the peer does not read.

        The frame is built here and not by the package. It is written at the end of this turn of the loop, together with
        everything else that is sent in it.
        """
        transport = self._transport
        if transport is None or not self._open or self._full or self._protocol.state is not State.OPEN:
            return False
        length = len(message)
        masked = _MASKED if self._masks else 0
        if length < _LENGTH_16:
            head = bytes((_WHOLE_TEXT, masked | length))
        elif length < 1 << 16:
            head = _head_16(_WHOLE_TEXT, masked | _LENGTH_16, length)
        else:
            head = _head_64(_WHOLE_TEXT, masked | _LENGTH_64, length)
        queue = self._queue
        if not queue:
            if FramedPipe._turn is not None:
                FramedPipe._turn.append(self)
            else:
                asyncio.get_running_loop().call_soon(self._write_queue)
        if masked:
            mask = os.urandom(_MASK_BYTES)
            queue += head, mask, apply_mask(message, mask)
        else:
            queue += head, message
        self._queued += length
        if self._queued > WRITE_BYTES_MAX:
            self._write_queue()
        return True

    @property
    def unsent_bytes(self) -> int:
        """Return the number of bytes that were written and that the system has not yet taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def drain(self, low_bytes: int) -> None:
        """Wait until at most `low_bytes` bytes are unsent, or the connection is lost. Only one caller may wait at a
        time.

        The loop only reports that its buffer has shrunk to a mark, so the mark is lowered for as long as this waits.
        """
        if self._transport is None or self.unsent_bytes <= low_bytes:
            return
        self._drained = asyncio.get_running_loop().create_future()
        try:
            self._transport.set_write_buffer_limits(high=low_bytes, low=low_bytes)
            await self._drained
        finally:
            self._drained = None
            if self._transport is not None:
                self._transport.set_write_buffer_limits(high=self._max_bytes)

    def _write_queue(self) -> None:
        """Write everything that was queued in this turn of the event loop. One write is one system call."""
        queue = self._queue
        if queue and self._transport is not None:
            self._transport.write(b"".join(queue))
        queue.clear()
        self._queued = 0

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        if self._transport is None or self._protocol.state is not State.OPEN:
            return
        self._protocol.send_close(code, fit_close_reason(reason))
        self._verdict = self._verdict or (code, reason)
        self._flush(self._transport)
        self.resume_reading()  # the peer's part comes behind what it sent before
        self._end_soon()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        self._paused = True
        if self._transport is not None and self._open:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._transport is not None and self._began:
            self._transport.resume_reading()

    def _begin(self, early: bytes) -> None:
        """Start to pass messages to the sink. `early` are bytes that arrived together with the upgrade."""
        self._began = True
        if early:
            self.data_received(early)
        if self._transport is None:
            self._say_closed()
            return
        self._alarm = asyncio.get_running_loop().call_later(self._ping_every_s, self._send_ping)
        if not self._paused:
            self.resume_reading()

    # What the loop calls

    def data_received(self, data: bytes) -> None:
        if self._unread:
            data = data[self._skip(data, 0) :]
        if self._rest:
            self._rest += data
            if len(self._rest) < self._awaited:
                return
            data = bytes(self._rest)
            self._rest.clear()
        turn: list[FramedPipe] = []
        outer, FramedPipe._turn = FramedPipe._turn, turn
        try:
            start = self._take(data)
        finally:
            FramedPipe._turn = outer
            for pipe in turn:
                pipe._write_queue()
        if start < len(data):
            self._rest += data[start:] if start else data

    def _take(self, data: bytes) -> int:
        """Handle all complete frames in `data`. Return the index at which the first incomplete frame begins."""
        protocol, masked, max_bytes = self._protocol, 0 if self._masks else _MASKED, self._max_bytes
        start, end = 0, len(data)
        self._awaited = 0
        while end - start >= 2:
            second = data[start + 1]
            length, at = second & ~_MASKED, start + 2
            if length >= _LENGTH_16:
                size = 2 if length == _LENGTH_16 else 8
                if end - at < size:
                    break
                length = int.from_bytes(data[at : at + size], "big")
                at += size
            if second & _MASKED:
                at += _MASK_BYTES
            if length > max_bytes:
                is_text = data[start] == _WHOLE_TEXT and second & _MASKED == masked and self._parts is None
                if not is_text or length > ENDLESS * max_bytes or protocol.state is not State.OPEN:
                    self._hear_frames(data[start:])  # which refuses it by its head
                    return end
                if at > end:
                    break
                self._begin_skipping(length, data[at - _MASK_BYTES : at] if masked else b"")
                start = self._skip(data, at)
                continue
            stop = at + length
            if stop > end:
                self._awaited = stop - start
                break
            if (
                data[start] == _WHOLE_TEXT
                and second & _MASKED == masked
                and self._parts is None
                and protocol.state is State.OPEN
            ):
                text = data[at:stop]
                self._message(apply_mask(text, data[at - _MASK_BYTES : at]) if masked else text)
            else:
                self._hear_frames(data[start:stop])
            start = stop
        return start

    def _begin_skipping(self, unread: int, mask: bytes) -> None:
        self._skips, self._scanner = True, OversizedScanner(self._max_bytes)
        self._unread, self._mask = unread, mask

    def _skip(self, data: bytes, at: int) -> int:
        """Skip bytes of a frame that is too large. Return the index at which the next frame begins."""
        piece = data[at : at + self._unread]
        self._unread -= len(piece)
        if self._mask:
            self._scan(apply_mask(piece, self._mask))
            turn = len(piece) % _MASK_BYTES
            self._mask = self._mask[turn:] + self._mask[:turn]
        else:
            self._scan(piece)
        if not self._unread:
            self._end_skipping()
        return at + len(piece)

    def _scan(self, piece: bytes | bytearray) -> None:
        if self._scanner is not None:
            self._scanner.feed(piece)
            if self._scanner.is_settled:
                self._tell(self._scanner)

    def _end_skipping(self) -> None:
        self._skips = False
        if self._scanner is not None:
            self._tell(self._scanner)

    def _tell(self, scanner: OversizedScanner) -> None:
        self._scanner = None
        self._sink.on_oversized(scanner.found)

    def _hear_frames(self, data: bytes) -> None:
        """Pass bytes that are not a plain text frame to the WebSocket library, and handle the frames that it
        returns.
        """
        transport = self._transport
        if transport is None:
            return
        if self._protocol.state is not State.CLOSED:
            self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._frame(event)
        self._flush(transport)
        self._after_frames(transport)

    def eof_received(self) -> None:
        self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.receive_eof()
        for handle in (self._alarm, self._stall, self._ending):
            if handle is not None:
                handle.cancel()
        self._transport = None
        self._note_drained()
        if self._began:
            self._say_closed()

    def pause_writing(self) -> None:
        """Refuse to send further messages, because the peer does not read what is queued."""
        if self._drained is not None and self.unsent_bytes <= self._max_bytes:
            return  # the mark is low because somebody waits: there is space left
        self._full = True
        self._watch(None)

    def resume_writing(self) -> None:
        self._full = False
        if self._stall is not None:
            self._stall.cancel()
        self._note_drained()

    def _note_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # Frames

    def _frame(self, frame: Frame) -> None:
        if self._verdict is not None and self._protocol.state is not State.OPEN:
            return  # we are closing: no more is expected
        if frame.opcode is Opcode.TEXT:
            if frame.fin:
                self._message(bytes(frame.data))
            else:
                self._parts = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and self._parts is not None:
            self._parts += frame.data
            if self._skips or len(self._parts) > self._max_bytes:
                if not self._skips:
                    self._begin_skipping(0, b"")
                self._scan(self._parts)
                self._parts = None if frame.fin else bytearray()
                if frame.fin:
                    self._end_skipping()
            elif frame.fin:
                whole, self._parts = bytes(self._parts), None
                self._message(whole)
        elif frame.opcode is Opcode.BINARY:
            self._take_binary()
        elif frame.opcode is Opcode.PONG and bytes(frame.data) == self._ping and self._ping:
            self._ping = b""
            self._set_alarm(self._ping_every_s, self._send_ping)

    def _take_binary(self) -> None:
        self._condemn(UNACCEPTABLE, "sent a binary frame")

    def _message(self, data: bytes) -> None:
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                self._condemn(NOT_UTF8, "sent text that is not UTF-8")
                return
        self._sink.on_message(data)

    def _after_frames(self, transport: asyncio.Transport) -> None:
        """Close the connection if the WebSocket is no longer open, after an invalid frame, a frame that is too large,
        or a close frame.
        """
        if self._protocol.state is State.OPEN:
            return
        sent = self._protocol.close_sent
        if self._verdict is None and self._protocol.close_rcvd is None and sent is not None:
            too_big = f"sent a message larger than {self._max_bytes} bytes"
            self._verdict = (sent.code, too_big if sent.code == TOO_BIG else f"broke the framing: {sent.reason}")
        if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None:
            transport.close()
            self._end_soon()

    def _condemn(self, code: int, reason: str) -> None:
        """Close the connection because the peer broke the protocol. `reason` says what the peer did, for example "sent
        a binary frame".
        """
        if self._transport is None or self._verdict is not None:
            return
        self._verdict = (code, reason)
        self._protocol.fail(code, fit_close_reason(f"the peer {reason}"))
        self._flush(self._transport)
        self._transport.close()
        self._end_soon()

    def _end_soon(self) -> None:
        """Cut the connection after CLOSE_S seconds, unless the peer closes it before."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def _say_closed(self) -> None:
        """Tell the sink once why the connection ended: for our own reason, by the peer's close frame, or because it was
        cut.
        """
        if self._said_closed:
            return
        self._said_closed = True
        rcvd = self._protocol.close_rcvd
        if self._verdict is not None:
            self._sink.on_closed(*self._verdict)
        elif rcvd is not None:
            self._sink.on_closed(rcvd.code, rcvd.reason)
        else:
            self._sink.on_closed(CUT, "cut the connection")

    def _flush(self, transport: asyncio.Transport) -> None:
        self._write_queue()
        for piece in self._protocol.data_to_send():
            if piece:
                transport.write(piece)
            # An empty piece asks to half-close: the whole is closed in `_after_frames`, or by the peer.

    # A peer that is silent, or does not read

    def _send_ping(self) -> None:
        transport = self._transport
        if transport is None or self._protocol.state is not State.OPEN:
            return
        self._ping = secrets.token_bytes(4)
        self._protocol.send_ping(self._ping)
        self._flush(transport)
        self._set_alarm(self._pong_within_s, self._on_unanswered)

    def _on_unanswered(self) -> None:
        if self._paused:  # the pong may wait among what we do not read
            self._set_alarm(self._ping_every_s, self._send_ping)
            return
        self._condemn(INTERNAL, f"did not answer a ping within {self._pong_within_s:g} s")

    def _set_alarm(self, delay_s: float, what: Callable[[], None]) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(delay_s, what)

    def _watch(self, bytes_before: int | None) -> None:
        """Cut the connection if the number of unsent bytes has not become smaller within STALL_AFTER_S seconds."""
        if self._transport is None:
            return
        queued = self._transport.get_write_buffer_size()
        if bytes_before is None or queued < bytes_before:
            self._stall = asyncio.get_running_loop().call_later(STALL_AFTER_S, self._watch, queued)
        else:
            self._verdict = self._verdict or (CUT, "stopped reading")
            self._transport.abort()


class AcceptedPipe(FramedPipe):
    """The server's end of a WebSocket. `run` serves the connection and returns when it is over."""

    def __init__(
        self,
        upgraded: "WebSocketsSansIOProtocol",
        sink: MessageSink,
        *,
        max_bytes: int,
        ping_every_s: float = PING_EVERY_S,
        pong_within_s: float = PONG_WITHIN_S,
        early: bytes = b"",
        on_binary: Callable[[], None] | None = None,
    ) -> None:
        """Wrap an upgraded connection. `early` is what the peer sent right after its request. `on_binary` is called
        for a binary frame, which otherwise closes the connection.
        """
        super().__init__(upgraded.conn, sink, max_bytes, ping_every_s, pong_within_s)
        self._upgraded = upgraded
        self._over = asyncio.Event()
        self._early, self._on_binary = early, on_binary

    def attach(self) -> bool:
        """Take over the connection, so that messages can be sent before the first one is read. Return False if the
        connection is lost already.
        """
        transport = self._upgraded.transport
        if transport.is_closing() or self._protocol.state is not State.OPEN:
            return False
        self._upgraded.stop_keepalive()
        self._transport, self._open = transport, True
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=self._max_bytes)
        return True

    async def run(self) -> None:
        """Serve the connection until it ends. Call this once."""
        if not self._open and not self.attach():
            self._sink.on_closed(CUT, "cut the connection")
            return
        self._begin(self._early)
        try:
            await self._over.wait()
        except asyncio.CancelledError:  # the server shuts down
            self._verdict = self._verdict or (GOING_AWAY, "was cut off by our shutdown")
            self.abort()
            self._say_closed()
            raise

    def _take_binary(self) -> None:
        if self._on_binary is None:
            super()._take_binary()
        else:
            self._on_binary()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._upgraded.connection_lost(exc)
        self._over.set()


UNAUTHORISED: Final = frozenset((401, 403))
DIAL_S: Final = 10.0  # TCP, TLS and the upgrade together
HUNG_UP: Final = "closed the connection instead of opening a WebSocket"


class DialFailed(Exception):
    """An error raised if a WebSocket could not be opened.

    `reason` is a clause about "it", for a person. It does not contain the address, which the caller names.

    `status` is the HTTP status where the peer answered with another one than 101, and `body` what it said then.
    """

    def __init__(self, reason: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(reason)
        self.reason, self.status, self.body = reason, status, body

    @property
    def unauthorised(self) -> bool:
        return self.status in UNAUTHORISED


async def dial(
    url: str,
    sink: MessageSink,
    *,
    subprotocol: str | None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    max_bytes: int,
    timeout_s: float = DIAL_S,
    ping_every_s: float = PING_EVERY_S,
    pong_within_s: float = PONG_WITHIN_S,
) -> "DialledPipe":
    """Open a WebSocket and return its pipe. The sink receives nothing before this function returns.

    `tls` is for wss:// and defaults to the system's trust. Raise DialFailed if the connection is not opened.
    """
    loop = asyncio.get_running_loop()
    try:
        uri = parse_uri(url)
        for name, value in (headers or {}).items():
            if not name.isascii() or any(character in "\r\n\0" for character in name + value):
                raise ValueError(f"the header {name!r} cannot be sent")
    except InvalidURI as error:
        raise DialFailed(f"this is not a WebSocket address: {error.msg}") from None
    except ValueError as error:
        raise DialFailed(str(error)) from None
    context = (tls or ssl.create_default_context()) if uri.secure else None
    pipe = DialledPipe(uri, subprotocol, headers or {}, sink, max_bytes, ping_every_s, pong_within_s)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(
                lambda: pipe, uri.host, uri.port, ssl=context, server_hostname=uri.host if context else None
            )
            await pipe.opened
    except TimeoutError:
        pipe.abort()
        raise DialFailed(f"it did not answer within {timeout_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise DialFailed(f"its certificate is not accepted: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise DialFailed(f"no TLS connection: {error.reason or error}") from None
    except OSError as error:
        if context is not None and error.strerror is None:
            least = context.minimum_version.name.removeprefix("TLSv").replace("_", ".")
            raise DialFailed(f"no TLS connection: it hung up; does it speak TLS {least} or newer?") from None
        raise DialFailed(f"it cannot be reached: {error.strerror or error}") from None
    except asyncio.CancelledError:
        pipe.abort()
        raise
    loop.call_soon(pipe._begin, pipe.early)
    return pipe


class DialledPipe(FramedPipe):
    """The client's end of a WebSocket. `dial` creates it, and waits until `opened` has a result."""

    def __init__(
        self,
        uri: WebSocketURI,
        subprotocol: str | None,
        headers: Mapping[str, str],
        sink: MessageSink,
        max_bytes: int,
        ping_every_s: float,
        pong_within_s: float,
    ) -> None:
        offered = None if subprotocol is None else [Subprotocol(subprotocol)]
        self._client = ClientProtocol(uri, subprotocols=offered, max_size=max_bytes)
        super().__init__(self._client, sink, max_bytes, ping_every_s, pong_within_s)
        self._subprotocol = subprotocol
        self._request = self._client.connect()
        for name, value in headers.items():
            self._request.headers[name] = value
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head_end = b""
        self.early = b""  # what came along with the upgrade, before anybody listens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._max_bytes)
        self._client.send_request(self._request)
        self._flush(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._open:
            super().data_received(data)
        elif self._transport is not None:
            self._take_answer(self._transport, data)

    def _take_answer(self, transport: asyncio.Transport, data: bytes) -> None:
        """Handle the peer's answer to the upgrade request. Bytes after its head are kept for the open pipe."""
        seen = len(self._head_end)
        end = (self._head_end + data).find(_HEAD_END)
        self._head_end = (self._head_end + data)[1 - len(_HEAD_END) :]
        cut = len(data) if end < 0 else end + len(_HEAD_END) - seen
        self._protocol.receive_data(data[:cut])
        if self._protocol.state is State.OPEN:
            if not self._judge_answer():
                transport.abort()
                return
            self._open, self.early = True, data[cut:]
            transport.pause_reading()  # until `dial` has returned
            return
        if cut < len(data) and self._protocol.handshake_exc is None:
            self._protocol.receive_data(data[cut:])
        if self._protocol.handshake_exc is not None:
            self._judge_answer()
            transport.abort()

    def _judge_answer(self) -> bool:
        """Check the peer's answer to the upgrade request, and set the result of `opened`. Return whether the WebSocket
        is open now.
        """
        why = self._client.handshake_exc
        if why is None and self._client.subprotocol != self._subprotocol:
            self._fail(DialFailed(f"it does not speak {self._subprotocol}"))
            return False
        if why is None:
            if not self.opened.done():
                self.opened.set_result(None)
            return True
        if isinstance(why, InvalidStatus):
            status = why.response.status_code
            why_not = "instead of opening a WebSocket"
            if status in UNAUTHORISED and "Authorization" in self._request.headers:
                why_not = "because it does not accept our token"
            elif status in UNAUTHORISED:
                why_not = "because it wants a token, and we have none"
            self._fail(DialFailed(f"it answers HTTP {status} {why_not}", status, bytes(why.response.body or b"")))
        elif isinstance(why, WebSocketException):
            self._fail(DialFailed(f"it does not open a WebSocket: {why}"))
        else:
            self._fail(DialFailed(f"it {HUNG_UP}"))
        return False

    def _fail(self, failure: DialFailed) -> None:
        if not self.opened.done():
            self.opened.set_exception(failure)
            self.opened.exception()  # retrieved: the dialler may have gone

    def eof_received(self) -> None:
        super().eof_received()
        if not self._open:
            self._judge_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        why = HUNG_UP
        if isinstance(exc, ssl.SSLError):  # in TLS 1.3 a server judges our certificate after the handshake
            why = f"refuses our certificate, or the lack of one: {exc.reason or exc}"
        self._fail(DialFailed(f"it {why}"))
