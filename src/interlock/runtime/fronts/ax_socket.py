"""The upgrade of /ax to a WebSocket, as uvicorn answers it. Loaded with the first subserver that dials in."""

from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from interlock.net.message_pipe import MessageSink
from interlock.net.websocket.accept import AcceptedPipe
from interlock.runtime.fronts.ax import UPGRADED

HEADERS_MAX: Final = 128  # of websockets
LINE_BYTES_MAX: Final = 8192 - 64  # of websockets, less what stands around a name and its value, or around a path
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class AxSocket(WebSocketsSansIOProtocol):
    _asked = False

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"][UPGRADED] = self  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """The request comes in one piece. Who does not wait for its answer breaks the protocol (RFC 6455 4.1)."""
        if self._asked:
            self.transport.abort()
            return
        self._asked = True
        super().data_received(data)
        # uvicorn does not hear of a request that websockets cannot read, and would leave the connection open.
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(_BAD_REQUEST)
            self.transport.close()

    def pipe(self, sink: MessageSink, max_bytes: int) -> AcceptedPipe:
        """What the connection is from now on."""
        return AcceptedPipe(self, sink, max_bytes=max_bytes)

    def shutdown(self) -> None:
        """Calls under way come back on this connection: it is closed by the registrar, once they are answered."""
