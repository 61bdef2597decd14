"""The upgrade of /ax to a WebSocket, as uvicorn answers it. Loaded with the first subserver that dials in."""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from interlock.runtime.fronts.ax import UPGRADED
from interlock.transport.messages import MessageSink
from interlock.transport.websocket_accepted import AcceptedPipe


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

    def pipe(self, sink: MessageSink, max_bytes: int) -> AcceptedPipe:
        """What the connection is from now on."""
        return AcceptedPipe(self, sink, max_bytes=max_bytes)

    def shutdown(self) -> None:
        """Calls under way come back on this connection: it is closed by the registrar, once they are answered."""
