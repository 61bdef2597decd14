"""`serve --stdio` beside a running node: bytes pumped between a desktop client and the node's own socket.

The socket speaks what stdio speaks, after one line that says which surface is wanted. It lies in the data folder, open
to its owner only, so a client that reaches it is `local`.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from interlock.fronts.stdio import LineFront, open_input, open_output

SOCKET: Final = "stdio.sock"
_GREETING: Final = b"interlock-stdio/1 "
_GREETING_BYTES_MAX: Final = 256


class BridgedClient(asyncio.Protocol):
    """The node's end: one desktop client behind a bridge."""

    def __init__(self, front: Callable[[str | None, str | None], LineFront], clients: set["BridgedClient"]) -> None:
        self._make = front
        self._clients = clients
        self._front: LineFront | None = None
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # a stream socket; uvloop's is no subclass
        self._clients.add(self)

    def data_received(self, data: bytes) -> None:
        if self._front is None:
            self._head += data
            line, newline, rest = self._head.partition(b"\n")
            if not newline and len(self._head) < _GREETING_BYTES_MAX:
                return
            if not line.startswith(_GREETING):
                self.transport.abort()
                return
            only, _, surface = line.removeprefix(_GREETING).decode("latin-1").strip("\r\n").partition(" ")
            self._front = self._make(only or None, surface.strip() or None)
            self._front.connect(self.transport)
            data = rest
        if data:
            self._front.feed(data)
            if self._front.done.is_set():
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.discard(self)
        if self._front is not None:
            if exc is not None:
                self._front.lose()
            self._front.end()


async def bridge(path: Path, only: str | None, surface: str | None = None) -> bool:
    """Pump until the client or the node ends. True when the client ended it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bool] = loop.create_future()

    def end(by_client: bool) -> None:
        if not ended.done():
            ended.set_result(by_client)

    stdout = await open_output()
    node, _ = await loop.create_unix_connection(lambda: _Pump(stdout, lambda: end(False)), str(path))
    node.write(_GREETING + f"{only or ''} {surface or ''}".rstrip(" ").encode() + b"\n")
    stdin = await open_input(_Pump(node, lambda: end(True)))
    try:
        return await ended
    finally:
        for transport in (stdin, node, stdout):
            transport.close()


class _Pump(asyncio.Protocol):
    def __init__(self, target: asyncio.WriteTransport, on_end: Callable[[], None]) -> None:
        self._target = target
        self._on_end = on_end

    def data_received(self, data: bytes) -> None:
        if not self._target.is_closing():
            self._target.write(data)

    def eof_received(self) -> bool:
        self._on_end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end()
