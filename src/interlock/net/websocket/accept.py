"""The accepting end of a WebSocket, as a MessagePipe: it takes over the connection on which the upgrade was answered.

In: an upgraded connection on which nothing was said yet, and a sink. `run` is the body of the route: it returns when
the connection is over.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from websockets.protocol import State

from interlock.net.message_pipe import CUT, GOING_AWAY, MessageSink
from interlock.net.websocket.frames import PING_EVERY_S, PONG_WITHIN_S, FramedPipe

if TYPE_CHECKING:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class AcceptedPipe(FramedPipe):
    """A pipe to send through; `run` it after it was handed over."""

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
        self._early = early
        self._on_binary = on_binary

    def attach(self) -> bool:
        """Take over the connection, so that messages can be sent before the first one is read. Return False if it is
        gone.
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
