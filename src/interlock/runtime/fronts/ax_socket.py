"""The WebSocket of /ax, as uvicorn speaks it. Loaded with the first subserver that dials in."""

from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEADERS_MAX: Final = 128  # of websockets
LINE_BYTES_MAX: Final = 8192 - 64  # of websockets, less what stands around a name and its value, or around a path
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class AxSocket(WebSocketsSansIOProtocol):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn does not hear of a request that websockets cannot read, and would leave the connection to nobody.
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(_BAD_REQUEST)
            self.transport.close()

    def shutdown(self) -> None:
        """Calls under way come back on this connection: it is closed by the registrar, once they are answered."""
