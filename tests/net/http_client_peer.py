"""The other sides of the HTTP client: a raw server whose every byte the test writes, and a sink that records."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from interlock.net.http.client import HttpClient
from interlock.net.http.connection import FailureKind, Headers, HttpFailure

BOUND_S = 10.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TERMINAL = ("answer", "stream_end", "fail")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def turns(count: int = 6) -> None:
    """Let the loop poll its sockets: what was written to a loopback socket before has been read after."""
    for _ in range(count):
        await asyncio.sleep(0)


class Sink:
    """Records every event of one request as a tuple that begins with its name."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._changed = asyncio.Event()
        self.hooks: dict[str, Callable[[], object]] = {}

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._note("answer", status, headers, body)

    def on_stream(self, status: int, headers: Headers) -> None:
        self._note("stream", status, headers)

    def on_chunk(self, data: bytes) -> None:
        self._note("chunk", data)

    def on_stream_end(self) -> None:
        self._note("stream_end")

    def on_fail(self, failure: HttpFailure) -> None:
        self._note("fail", failure)

    def _note(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()
        if event[0] in self.hooks:
            self.hooks[event[0]]()

    @property
    def names(self) -> list[str]:
        return [event[0] for event in self.events]

    @property
    def streamed(self) -> bytes:
        return b"".join(event[1] for event in self.events if event[0] == "chunk")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> tuple[Any, ...]:
        """The terminal event, after making sure that nothing follows it."""
        await self.until(lambda: any(name in TERMINAL for name in self.names))
        await turns()
        assert [name for name in self.names if name in TERMINAL] == [self.names[-1]]
        assert self.names.count("stream") <= 1
        return self.events[-1]

    async def answer(self) -> tuple[int, bytes]:
        event = await self.end()
        assert event[0] == "answer", event
        return event[1], event[3]

    async def failure(self) -> HttpFailure:
        event = await self.end()
        assert event[0] == "fail", event
        failure = event[1]
        assert isinstance(failure, HttpFailure)
        assert isinstance(failure.kind, FailureKind)
        return failure


class Peer:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        connected = writer.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def request(self) -> bytes:
        """The next whole request."""
        async with asyncio.timeout(BOUND_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    return head + await self.reader.readexactly(int(line.partition(b":")[2]))
        return head

    async def send(self, *pieces: bytes) -> None:
        """Write the pieces so that the client reads them one by one."""
        async with asyncio.timeout(BOUND_S):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()
                await turns()

    async def serve(self, *answers: bytes) -> list[bytes]:
        seen = []
        for answer in answers:
            seen.append(await self.request())
            await self.send(answer)
        return seen

    async def eof(self) -> bytes:
        """What the client still sends before it closes; a reset counts as closing."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            async with asyncio.timeout(BOUND_S):
                await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass

    async def reset(self) -> None:
        connected = self.writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        await turns()


class Server:
    def __init__(self) -> None:
        self.accepted = 0
        self.port = 0
        self._new: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []

    async def peer(self) -> Peer:
        """The next connection that the client opens."""
        async with asyncio.timeout(BOUND_S):
            return await self._new.get()

    @property
    def waiting(self) -> int:
        """Connections that were opened and not yet taken by the test."""
        return self._new.qsize()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        peer = Peer(reader, writer)
        self._peers.append(peer)
        self._new.put_nowait(peer)

    async def stop(self) -> None:
        for peer in self._peers:
            await peer.close()


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.accept, "127.0.0.1", port, ssl=tls, limit=2**20, backlog=1024)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
        await listener.wait_closed()


@asynccontextmanager
async def client_of(server: Server | int, **options: Any) -> AsyncIterator[HttpClient]:
    port = server if isinstance(server, int) else server.port
    client = HttpClient(f"http://127.0.0.1:{port}", **{"max_body_bytes": 1_000_000, **options})
    try:
        yield client
    finally:
        await client.close()


def post(client: HttpClient, body: bytes = b"{}", sink: Sink | None = None) -> Sink:
    sink = sink or Sink()
    client.request(b"POST", b"/mcp", b"content-type: application/json\r\n", body, sink)
    return sink


async def all_of(works: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    async with asyncio.timeout(3 * BOUND_S):
        return await asyncio.gather(*works)
