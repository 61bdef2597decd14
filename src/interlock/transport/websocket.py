"""The dialling end of a WebSocket, as a MessagePipe: one text frame is one message.

In: a URL, a subprotocol, headers, a TLS context, a sink. Out: an open pipe, or DialFailed with a reason a person can
act on. No redirect is followed, no compression is offered, a binary frame ends the connection. The framing is that of
the `websockets` package, without its tasks and queues: what comes in reaches the sink in the same turn of the loop.
"""

import asyncio
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from interlock.transport.messages import (
    CUT,
    INTERNAL,
    NORMAL,
    NOT_UTF8,
    STALL_AFTER_S,
    TOO_BIG,
    UNACCEPTABLE,
    MessageSink,
    fitting,
)

PING_EVERY_S: Final = 20.0  # AX-6.3-3
PONG_WITHIN_S: Final = 10.0  # AX-6.3-3
CLOSE_S: Final = 2.0  # for the peer's part of closing
DIAL_S: Final = 10.0  # TCP, TLS and the upgrade together
HUNG_UP: Final = "closed the connection instead of opening a WebSocket"


class DialFailed(Exception):
    """No connection. `status` is the HTTP status where the peer answered with another one than 101."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status

    @property
    def unauthorised(self) -> bool:
        return self.status in (401, 403)


def tls_1_3(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates and names are checked; nothing older than TLS 1.3 (AX-10.4-1)."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


async def dial(
    url: str,
    sink: MessageSink,
    *,
    subprotocol: str,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    max_bytes: int,
    timeout_s: float = DIAL_S,
    ping_every_s: float = PING_EVERY_S,
    pong_within_s: float = PONG_WITHIN_S,
) -> "DialledPipe":
    """An open pipe; the sink hears nothing before this returns. `tls` is for wss://; by default the system's trust."""
    loop = asyncio.get_running_loop()
    try:
        uri = parse_uri(url)
        for name, value in (headers or {}).items():
            _refuse_odd_header(name, value)
    except InvalidURI as error:
        raise DialFailed(f"this is no address of a WebSocket: {error.msg}") from None
    except ValueError as error:
        raise DialFailed(str(error)) from None
    context = (tls or ssl.create_default_context()) if uri.secure else None
    opening = _Opening(uri, subprotocol, headers or {}, max_bytes)
    url = opening.url  # without what must not stand in a log
    pipe = DialledPipe(opening, sink, max_bytes, ping_every_s, pong_within_s)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(
                lambda: pipe, uri.host, uri.port, ssl=context, server_hostname=uri.host if context else None
            )
            await opening.done
    except TimeoutError:
        pipe.abort()
        raise DialFailed(f"{url} did not answer within {timeout_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise DialFailed(f"the certificate of {url} is not accepted: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise DialFailed(f"no TLS connection to {url}: {error.reason or error}") from None
    except OSError as error:
        if context is not None and error.strerror is None:
            least = context.minimum_version.name.removeprefix("TLSv").replace("_", ".")
            raise DialFailed(f"no TLS connection to {url}: it hung up; does it speak TLS {least} or newer?") from None
        raise DialFailed(f"{url} cannot be reached: {error.strerror or error}") from None
    except asyncio.CancelledError:
        pipe.abort()
        raise
    loop.call_soon(pipe._begin)
    return pipe


def _refuse_odd_header(name: str, value: str) -> None:
    if not name.isascii() or any(one in "\r\n\0" for one in name + value):
        raise ValueError(f"the header {name!r} cannot be sent")


class _Opening:
    """The upgrade: what is asked, and a future for how it went."""

    def __init__(self, uri: WebSocketURI, subprotocol: str, headers: Mapping[str, str], max_bytes: int) -> None:
        self.url = f"{'wss' if uri.secure else 'ws'}://{uri.host}:{uri.port}{uri.path}"
        self.subprotocol = subprotocol
        self.protocol = ClientProtocol(uri, subprotocols=[Subprotocol(subprotocol)], max_size=max_bytes)
        self.request = self.protocol.connect()
        for name, value in headers.items():
            self.request.headers[name] = value
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self, failure: DialFailed | None) -> None:
        if self.done.done():
            return
        if failure is not None:
            self.done.set_exception(failure)
            self.done.exception()  # retrieved: the dialler may have gone
        else:
            self.done.set_result(None)

    def answered(self) -> bool:
        """Whether the peer's answer opened the connection."""
        why = self.protocol.handshake_exc
        if why is None and self.protocol.subprotocol != self.subprotocol:
            self.finish(DialFailed(f"{self.url} does not speak {self.subprotocol}"))
            return False
        if why is None:
            self.finish(None)
            return True
        if isinstance(why, InvalidStatus):
            status = why.response.status_code
            self.finish(DialFailed(f"{self.url} answers HTTP {status} instead of opening a WebSocket", status))
        elif isinstance(why, WebSocketException):
            self.finish(DialFailed(f"{self.url} does not open a WebSocket: {why}"))
        else:
            self.finish(DialFailed(f"{self.url} {HUNG_UP}"))
        return False


class DialledPipe(asyncio.Protocol):
    """A MessagePipe. Made by `dial`."""

    def __init__(
        self, opening: _Opening, sink: MessageSink, max_bytes: int, ping_every_s: float, pong_within_s: float
    ) -> None:
        self._opening = opening
        self._protocol = opening.protocol
        self._sink = sink
        self._max_bytes = max_bytes
        self._ping_every_s = ping_every_s
        self._pong_within_s = pong_within_s
        self._transport: asyncio.Transport | None = None
        self._began = False
        self._open = False
        self._paused = False
        self._full = False
        self._early: list[Frame] = []  # what came along with the upgrade, before anybody listens
        self._parts: bytearray | None = None  # of a message in several frames
        self._said_closed = False
        self._verdict: tuple[int, str] | None = None
        self._ping = b""
        self._alarm: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> bool:
        transport = self._transport
        if transport is None or not self._open or self._full or self._protocol.state is not State.OPEN:
            return False
        self._protocol.send_text(message)
        self._flush(transport)
        return True

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        if self._transport is None or self._protocol.state is not State.OPEN:
            return
        self._protocol.send_close(code, fitting(reason))
        self._verdict = self._verdict or (code, reason)
        self._flush(self._transport)
        self.resume_reading()  # the peer's part comes behind what it sent before
        self._ending = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

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

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._max_bytes)
        self._protocol.send_request(self._opening.request)
        self._flush(self._transport)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._protocol.state is not State.CLOSED:
            self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                if not self._opening.answered():
                    transport.abort()
                    return
                self._open = True
                transport.pause_reading()  # until `dial` has returned
            elif isinstance(event, Frame):
                if self._began:
                    self._frame(event)
                else:
                    self._early.append(event)
        if not self._open and self._protocol.handshake_exc is not None:
            self._opening.answered()
            transport.abort()
            return
        self._flush(transport)
        self._after_frames()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        if not self._open:
            self._opening.answered()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.receive_eof()
        why = HUNG_UP
        if isinstance(exc, ssl.SSLError):  # in TLS 1.3 a server judges our certificate after the handshake
            why = f"refuses our certificate, or the lack of one: {exc.reason or exc}"
        self._opening.finish(DialFailed(f"{self._opening.url} {why}"))
        for handle in (self._alarm, self._stall, self._ending):
            if handle is not None:
                handle.cancel()
        self._transport = None
        if self._began:
            self._say_closed()

    def pause_writing(self) -> None:
        self._full = True
        self._watch(None)

    def resume_writing(self) -> None:
        self._full = False
        if self._stall is not None:
            self._stall.cancel()

    def _begin(self) -> None:
        self._began = True
        early, self._early = self._early, []
        for frame in early:
            self._frame(frame)
        if self._transport is None:
            self._say_closed()
            return
        self._after_frames()
        if not self._paused:
            self._transport.resume_reading()
        self._alarm = asyncio.get_running_loop().call_later(self._ping_every_s, self._send_ping)

    def _frame(self, frame: Frame) -> None:
        if self._verdict is not None and self._protocol.state is not State.OPEN:
            return  # we are closing: nobody expects more
        if frame.opcode is Opcode.TEXT:
            if frame.fin:
                self._message(bytes(frame.data))
            else:
                self._parts = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and self._parts is not None:
            self._parts += frame.data
            if frame.fin:
                whole, self._parts = bytes(self._parts), None
                self._message(whole)
        elif frame.opcode is Opcode.BINARY:
            self._condemn(UNACCEPTABLE, "sent a binary frame")
        elif frame.opcode is Opcode.PONG and bytes(frame.data) == self._ping and self._ping:
            self._ping = b""
            self._set_alarm(self._ping_every_s, self._send_ping)

    def _message(self, data: bytes) -> None:
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                self._condemn(NOT_UTF8, "sent text that is not UTF-8")
                return
        self._sink.on_message(data)

    def _after_frames(self) -> None:
        """The framing itself may have ended the connection: a frame too big, nonsense, or the peer's close."""
        if self._protocol.state is State.OPEN or self._transport is None:
            return
        sent = self._protocol.close_sent
        if self._verdict is None and self._protocol.close_rcvd is None and sent is not None:
            too_big = f"sent a message larger than {self._max_bytes} bytes"
            self._verdict = (sent.code, too_big if sent.code == TOO_BIG else f"broke the framing: {sent.reason}")
        if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None:
            self._transport.close()
            if self._ending is None:
                self._ending = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def _condemn(self, code: int, reason: str) -> None:
        if self._transport is None or self._verdict is not None:
            return
        self._verdict = (code, reason)
        self._protocol.fail(code, fitting(f"the peer {reason}"))
        self._flush(self._transport)
        self._transport.close()
        self._ending = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def _say_closed(self) -> None:
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

    def _send_ping(self) -> None:
        transport = self._transport
        if transport is None or self._protocol.state is not State.OPEN:
            return
        self._ping = secrets.token_bytes(4)
        self._protocol.send_ping(self._ping)
        self._flush(transport)
        self._set_alarm(self._pong_within_s, self._unanswered)

    def _unanswered(self) -> None:
        if self._paused:  # the pong may wait among what we do not read
            self._set_alarm(self._ping_every_s, self._send_ping)
            return
        self._condemn(INTERNAL, f"did not answer a ping within {self._pong_within_s:g} s")

    def _set_alarm(self, delay_s: float, what: Callable[[], None]) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(delay_s, what)

    def _watch(self, bytes_before: int | None) -> None:
        if self._transport is None:
            return
        queued = self._transport.get_write_buffer_size()
        if bytes_before is None or queued < bytes_before:
            self._stall = asyncio.get_running_loop().call_later(STALL_AFTER_S, self._watch, queued)
        else:
            self._verdict = self._verdict or (CUT, "stopped reading")
            self._transport.abort()

    def _flush(self, transport: asyncio.Transport) -> None:
        for piece in self._protocol.data_to_send():
            if piece:
                transport.write(piece)
            # An empty piece asks to half-close: the client lets the server close first (RFC 6455 7.1.1).
