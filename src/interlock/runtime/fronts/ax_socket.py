"""The WebSocket of /ax, as uvicorn speaks it. Loaded with the first subserver that dials in."""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class AxSocket(WebSocketsSansIOProtocol):
    def shutdown(self) -> None:
        """Calls under way come back on this connection: it is closed by the registrar, once they are answered."""
