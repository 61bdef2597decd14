"""Connections at `ax.socket`: subservers of this machine, whose user the kernel tells (AX-4.2-10).

Only /ax is served there, as a WebSocket or by POST. Nothing else of the public endpoint is, so that no client is taken
for somebody by the way it came.
"""

import asyncio
import socket
import struct
from typing import Any, Final

from interlock.ax.endpoint.endpoint import PATH, AxEndpoint, Receive, Scope, Send
from interlock.fronts.http_protocol import McpProtocol

UID: Final = "uid"  # where the state of a connection has its user
_CREDENTIALS: Final = "3i"  # pid, uid, gid (unix(7))


class UserProtocol(McpProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        sock: Any = transport.get_extra_info("socket")
        said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
        self.app_state = {**self.app_state, UID: struct.unpack(_CREDENTIALS, said)[1]}
        super().connection_made(transport)

    def _takes(self) -> bool:
        return False

    def _should_upgrade(self) -> bool:
        return super()._should_upgrade() and self._path() == PATH.encode()


class UserApp:
    """The ASGI application of `ax.socket`."""

    def __init__(self, subservers: AxEndpoint) -> None:
        self._subservers = subservers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == PATH:
            await self._subservers(scope, receive, send)
            return
        body = b'{"error":"not_found","message":"subservers register at /ax","details":{}}'
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})
