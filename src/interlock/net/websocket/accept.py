"""The accepting end of a WebSocket, as a MessagePipe: it takes over the connection on which the upgrade was answered.

In: an upgraded connection on which nothing was said yet, and a sink. `run` is the body of the route: it returns when
the connection is over.
"""

import asyncio
from typing import Protocol

from websockets.protocol import State
from websockets.server import ServerProtocol

from interlock.net.message_pipe import CUT, GOING_AWAY, MessageSink
from interlock.net.websocket.frames import PING_EVERY_S, PONG_WITHIN_S, FramedPipe


class Upgraded(Protocol):
    """What answered the upgrade: of uvicorn's WebSocketsSansIOProtocol, as much as is needed here."""

    conn: ServerProtocol
    transport: asyncio.Transport

    def stop_keepalive(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class AcceptedPipe(FramedPipe):
    """A pipe to send through; `run` it after it was handed over."""

    def __init__(
        self,
        upgraded: Upgraded,
        sink: MessageSink,
        *,
        max_bytes: int,
        ping_every_s: float = PING_EVERY_S,
        pong_within_s: float = PONG_WITHIN_S,
    ) -> None:
        super().__init__(upgraded.conn, sink, max_bytes, ping_every_s, pong_within_s)
        self._upgraded = upgraded
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Once."""
        transport = self._upgraded.transport
        if transport.is_closing() or self._protocol.state is not State.OPEN:
            self._sink.on_closed(CUT, "cut the connection")
            return
        self._upgraded.stop_keepalive()
        self._transport, self._open = transport, True
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=self._max_bytes)
        self._begin(b"")
        try:
            await self._over.wait()
        except asyncio.CancelledError:  # the server shuts down
            self._verdict = self._verdict or (GOING_AWAY, "was cut off by our shutdown")
            self.abort()
            self._say_closed()
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._upgraded.connection_lost(exc)
        self._over.set()
