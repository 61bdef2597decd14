"""The dialling end of a WebSocket, as a MessagePipe.

In: a URL, a subprotocol, headers, a TLS context, a sink. Out: an open pipe, or DialFailed with a reason a person can
act on. No redirect is followed, no compression is offered.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from interlock.net.message_pipe import MessageSink
from interlock.net.websocket.frames import PING_EVERY_S, PONG_WITHIN_S, FramedPipe

UNAUTHORISED: Final = frozenset((401, 403))
DIAL_S: Final = 10.0  # TCP, TLS and the upgrade together
HUNG_UP: Final = "closed the connection instead of opening a WebSocket"


class DialFailed(Exception):
    """A dialled connection that was not opened.

    `reason` is a clause about "it", for a person. It does not contain the address, which the caller names.

    `status` is the HTTP status where the peer answered with another one than 101, and `body` what it said then.
    """

    def __init__(self, reason: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.body = body

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
    """Open a connection and return its pipe. The sink receives nothing before this returns. `tls` is for wss:// and
    defaults to the system's trust.
    """
    loop = asyncio.get_running_loop()
    try:
        uri = parse_uri(url)
        for name, value in (headers or {}).items():
            _refuse_odd_header(name, value)
    except InvalidURI as error:
        raise DialFailed(f"this is not a WebSocket address: {error.msg}") from None
    except ValueError as error:
        raise DialFailed(str(error)) from None
    context = (tls or ssl.create_default_context()) if uri.secure else None
    opening = _Opening(uri, subprotocol, headers or {}, max_bytes)
    pipe = DialledPipe(opening, sink, max_bytes, ping_every_s, pong_within_s)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(
                lambda: pipe, uri.host, uri.port, ssl=context, server_hostname=uri.host if context else None
            )
            await opening.done
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


def _refuse_odd_header(name: str, value: str) -> None:
    if not name.isascii() or any(character in "\r\n\0" for character in name + value):
        raise ValueError(f"the header {name!r} cannot be sent")


class _Opening:
    """The upgrade: what is asked, and a future for how it went."""

    def __init__(self, uri: WebSocketURI, subprotocol: str | None, headers: Mapping[str, str], max_bytes: int) -> None:
        self.subprotocol = subprotocol
        offered = None if subprotocol is None else [Subprotocol(subprotocol)]
        self.protocol = ClientProtocol(uri, subprotocols=offered, max_size=max_bytes)
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
        """Finish the opening and return whether the peer's answer opened the connection."""
        why = self.protocol.handshake_exc
        if why is None and self.protocol.subprotocol != self.subprotocol:
            self.finish(DialFailed(f"it does not speak {self.subprotocol}"))
            return False
        if why is None:
            self.finish(None)
            return True
        if isinstance(why, InvalidStatus):
            status = why.response.status_code
            message = f"it answers HTTP {status} {self._instead(status)}"
            self.finish(DialFailed(message, status, bytes(why.response.body or b"")))
        elif isinstance(why, WebSocketException):
            self.finish(DialFailed(f"it does not open a WebSocket: {why}"))
        else:
            self.finish(DialFailed(f"it {HUNG_UP}"))
        return False

    def _instead(self, status: int) -> str:
        if status not in UNAUTHORISED:
            return "instead of opening a WebSocket"
        if "Authorization" in self.request.headers:
            return "because it does not accept our token"
        return "because it wants a token, and we have none"


class DialledPipe(FramedPipe):
    """The dialling end of a WebSocket. `dial` creates it."""

    def __init__(
        self, opening: _Opening, sink: MessageSink, max_bytes: int, ping_every_s: float, pong_within_s: float
    ) -> None:
        super().__init__(opening.protocol, sink, max_bytes, ping_every_s, pong_within_s)
        self._opening: _Opening | None = opening
        self._head_end = b""
        self.early = b""  # what came along with the upgrade, before anybody listens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._max_bytes)
        if self._opening is not None:
            self._opening.protocol.send_request(self._opening.request)
        self._flush(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._opening is None:
            super().data_received(data)
        elif self._transport is not None:
            self._answered(self._opening, self._transport, data)

    def _answered(self, opening: _Opening, transport: asyncio.Transport, data: bytes) -> None:
        """Pass the head of the answer to the protocol and keep the bytes after it for this pipe."""
        seen = len(self._head_end)
        end = (self._head_end + data).find(_HEAD_END)
        self._head_end = (self._head_end + data)[1 - len(_HEAD_END) :]
        cut = len(data) if end < 0 else end + len(_HEAD_END) - seen
        self._protocol.receive_data(data[:cut])
        if self._protocol.state is State.OPEN:
            if not opening.answered():
                transport.abort()
                return
            self._opening, self._open, self.early = None, True, data[cut:]
            transport.pause_reading()  # until `dial` has returned
            return
        if cut < len(data) and self._protocol.handshake_exc is None:
            self._protocol.receive_data(data[cut:])
        if self._protocol.handshake_exc is not None:
            opening.answered()
            transport.abort()

    def eof_received(self) -> None:
        super().eof_received()
        if self._opening is not None:
            self._opening.answered()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if (opening := self._opening) is not None:
            why = HUNG_UP
            if isinstance(exc, ssl.SSLError):  # in TLS 1.3 a server judges our certificate after the handshake
                why = f"refuses our certificate, or the lack of one: {exc.reason or exc}"
            opening.finish(DialFailed(f"it {why}"))


_HEAD_END: Final = b"\r\n\r\n"
