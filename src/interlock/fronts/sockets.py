"""The upgrades of /ax and /v0/ws to WebSockets, as uvicorn performs them.

The module is loaded with the first upgrade.
"""

from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from interlock.fronts.http_protocol import UPGRADED
from interlock.net.message_pipe import MessageSink
from interlock.net.websocket import AcceptedPipe

HEADERS_MAX: Final = 128  # of websockets
LINE_BYTES_MAX: Final = 8192 - 64  # of websockets, less what stands around a name and its value, or around a path
# Of rooms:
EARLY_BYTES_MAX: Final = 64 * 1024  # of a peer that is not admitted yet
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024  # X-4-13: what is larger ends the connection
PING_EVERY_S: Final = 30.0  # X-4.4.1-4
PONG_WITHIN_S: Final = 30.0  # sixty seconds after the last sign of life
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class AxSocket(WebSocketsSansIOProtocol):
    _asked = False

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"][UPGRADED] = self  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Receive data before the upgrade. The request for the upgrade must arrive in one piece.

        A client that sends more data before the answer violates the protocol (RFC 6455 4.1).
        """
        if self._asked:
            self.transport.abort()
            return
        self._asked = True
        super().data_received(data)
        # uvicorn does not hear of a request that websockets cannot read, and would leave the connection open.
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(_BAD_REQUEST)
            self.transport.close()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # uvicorn logs an error for a request that is answered without an upgrade

    def pipe(self, sink: MessageSink, max_bytes: int) -> AcceptedPipe:
        """Return the pipe that takes over the connection after the upgrade."""
        return AcceptedPipe(self, sink, max_bytes=max_bytes)

    def shutdown(self) -> None:
        """Do nothing: the registrar closes this connection after its calls are answered."""


class RoomSocket(AxSocket):
    """The socket of a room participant, which may send before its upgrade is answered (X-5.2-5)."""

    _early = b""

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            super().data_received(data)
        elif len(self._early) + len(data) > EARLY_BYTES_MAX:
            self.transport.abort()
        else:
            self._early += data

    def room_pipe(self, sink: MessageSink, on_binary: Callable[[], None]) -> AcceptedPipe:
        """Return the pipe that takes over the connection.

        `on_binary` is called when the client sends a binary message.
        """
        early, self._early = self._early, b""
        return AcceptedPipe(
            self,
            sink,
            max_bytes=FRAME_BYTES_MAX,
            ping_every_s=PING_EVERY_S,
            pong_within_s=PONG_WITHIN_S,
            early=early,
            on_binary=on_binary,
        )
