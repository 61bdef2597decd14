"""Both ends of our WebSocket, each against a peer made of the bare `websockets` package."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from interlock.fronts.http_protocol import UPGRADED
from interlock.fronts.sockets import AxSocket
from interlock.net.message_pipe import MessagePipe
from interlock.net.websocket import AcceptedPipe, dial
from interlock.wire.jsonrpc.oversized import Oversized

MAX_BYTES = 200_000
PATIENCE_S = 10.0
SUBPROTOCOL = "mcpax.v1"


class RecordedMessages:
    """A sink that remembers, and lets a test wait for what it hears."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.oversized: list[Oversized] = []
        self.closed: list[tuple[int, str]] = []
        self._changed = asyncio.Event()

    def on_message(self, data: bytes) -> None:
        assert not self.closed
        self.messages.append(data)
        self._changed.set()

    def on_oversized(self, found: Oversized) -> None:
        self.oversized.append(found)
        self._changed.set()

    def on_closed(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))
        self._changed.set()

    async def until(self, true: Callable[["RecordedMessages"], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true(self):
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> tuple[int, str]:
        await self.until(lambda heard: bool(heard.closed))
        assert len(self.closed) == 1
        return self.closed[0]


class End(Protocol):
    """A way to have one of our pipes open, with a foreign peer at the other end."""

    def __call__(
        self, *, ping_every_s: float = 20.0, pong_within_s: float = 10.0
    ) -> contextlib.AbstractAsyncContextManager[tuple[MessagePipe, RecordedMessages, Any]]: ...


@contextlib.asynccontextmanager
async def dialled(
    *, ping_every_s: float = 20.0, pong_within_s: float = 10.0
) -> AsyncIterator[tuple[MessagePipe, RecordedMessages, Any]]:
    peers: asyncio.Queue[Any] = asyncio.Queue()

    async def accept(peer: Any) -> None:
        peers.put_nowait(peer)
        await peer.wait_closed()

    async with websockets.serve(
        accept,
        "127.0.0.1",
        0,
        subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
        ping_interval=None,
        max_size=None,
        max_queue=1,
        compression=None,
        close_timeout=0.2,
    ) as server:
        heard = RecordedMessages()
        pipe = await dial(
            f"ws://127.0.0.1:{port_of(server)}/ax",
            heard,
            subprotocol=SUBPROTOCOL,
            max_bytes=MAX_BYTES,
            ping_every_s=ping_every_s,
            pong_within_s=pong_within_s,
        )
        try:
            yield pipe, heard, await asyncio.wait_for(peers.get(), PATIENCE_S)
        finally:
            pipe.abort()
            await heard.end()


@contextlib.asynccontextmanager
async def accepted(
    *, ping_every_s: float = 20.0, pong_within_s: float = 10.0
) -> AsyncIterator[tuple[MessagePipe, RecordedMessages, Any]]:
    made: asyncio.Queue[tuple[AcceptedPipe, RecordedMessages]] = asyncio.Queue()

    async def door(socket: WebSocket) -> None:
        await socket.accept(subprotocol=SUBPROTOCOL)
        heard = RecordedMessages()
        pipe = AcceptedPipe(
            socket.scope["extensions"][UPGRADED],
            heard,
            max_bytes=MAX_BYTES,
            ping_every_s=ping_every_s,
            pong_within_s=pong_within_s,
        )
        made.put_nowait((pipe, heard))
        await pipe.run()

    async with serving(door) as url:
        peer = await websockets.connect(
            url,
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
            ping_interval=None,
            max_size=None,
            max_queue=1,
            compression=None,
            close_timeout=0.2,
        )
        pipe, heard = await asyncio.wait_for(made.get(), PATIENCE_S)
        try:
            yield pipe, heard, peer
        finally:
            pipe.abort()
            await heard.end()
            peer.transport.abort()
            await peer.wait_closed()


@contextlib.asynccontextmanager
async def serving(door: Callable[[WebSocket], Any]) -> AsyncIterator[str]:
    """The address of a WebSocket as the node has it, with this behind it."""
    config = uvicorn.Config(
        Starlette(routes=[WebSocketRoute("/ax", door)]),
        ws=AxSocket,
        ws_max_size=MAX_BYTES,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"ws://127.0.0.1:{listening.getsockname()[1]}/ax"
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, PATIENCE_S)


def port_of(server: Any) -> int:
    port = next(iter(server.sockets)).getsockname()[1]
    assert isinstance(port, int)
    return port
