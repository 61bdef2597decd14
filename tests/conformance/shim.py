"""A renaming proxy between the official suite and a node: HTTP/1.1, `renaming` done to the messages, all else verbatim.

Header lines pass with their blanks and their order, so that what the suite does to headers reaches the node. One
connection in is one connection out, and the end of either is the end of both.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from tests.conformance import renaming

START_SECONDS = 10.0
HEAD_BYTES_MAX = 1 << 20
NO_BODY = (b"204", b"304")

Lines = list[bytes]  # the first line of a message and its headers


@contextlib.contextmanager
def renamed(base: str) -> Iterator[str]:
    """Run the proxy in front of a node; gives the URL for the suite."""
    proxy = Proxy(base)
    thread = threading.Thread(target=asyncio.run, args=(proxy.serve(),))
    thread.start()
    try:
        if not proxy.ready.wait(START_SECONDS):
            raise RuntimeError("the renaming proxy did not start")
        yield f"http://127.0.0.1:{proxy.port}/mcp"
    finally:
        proxy.loop.call_soon_threadsafe(proxy.stopped.set)
        thread.join()


class Proxy:
    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self.node = (parts.hostname, parts.port)
        self.ready = threading.Event()
        self.port = 0

    async def serve(self) -> None:
        self.loop, self.stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self.connected, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self.stopped.wait()
        server.close()

    async def connected(self, suite: asyncio.StreamReader, to_suite: asyncio.StreamWriter) -> None:
        node, to_node = await asyncio.open_connection(*self.node, limit=HEAD_BYTES_MAX)
        ways = [asyncio.ensure_future(requests(suite, to_node)), asyncio.ensure_future(answers(node, to_suite))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            done = await asyncio.gather(*ways, return_exceptions=True)
            to_suite.close()
            to_node.close()
        for problem in done:
            if isinstance(problem, Exception) and not isinstance(
                problem, ConnectionError | asyncio.IncompleteReadError
            ):
                raise problem


async def requests(suite: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
    while True:
        lines = await head(suite)
        body = await whole(suite, lines)
        message = parsed(body)
        if message is not None:
            name = header(lines, b"mcp-name")
            if name is not None:
                written = renaming.name_header(message.get("method"), name.decode("latin-1"))
                replace(lines, b"mcp-name", written.encode("latin-1"))
            body = changed(body, renaming.to_node)
        if body or header(lines, b"content-length") is not None:
            replace(lines, b"content-length", str(len(body)).encode())
        to_node.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        await to_node.drain()


async def answers(node: asyncio.StreamReader, to_suite: asyncio.StreamWriter) -> None:
    while True:
        lines = await head(node)
        if (header(lines, b"content-type") or b"").startswith(b"text/event-stream"):
            to_suite.write(b"\r\n".join(lines) + b"\r\n\r\n")
            await events(node, to_suite)
            continue
        body = b"" if lines[0].split(b" ")[1] in NO_BODY else await whole(node, lines)
        body = changed(body, renaming.to_suite)
        if body:
            replace(lines, b"content-length", str(len(body)).encode())
        to_suite.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        await to_suite.drain()


async def events(node: asyncio.StreamReader, to_suite: asyncio.StreamWriter) -> None:
    """Pass a chunked event stream line by line."""
    begun = b""
    while chunk := await one_chunk(node):
        *complete, begun = (begun + chunk).split(b"\n")
        passed = b"".join(event_line(line) + b"\n" for line in complete)
        if passed:
            to_suite.write(b"%x\r\n%b\r\n" % (len(passed), passed))
            await to_suite.drain()
    to_suite.write(b"0\r\n\r\n")


def event_line(line: bytes) -> bytes:
    return b"data: " + changed(line[5:].strip(), renaming.to_suite) if line.startswith(b"data:") else line


async def head(reader: asyncio.StreamReader) -> Lines:
    return (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")


async def whole(reader: asyncio.StreamReader, lines: Lines) -> bytes:
    """A body, out of its chunks."""
    if header(lines, b"transfer-encoding") is None:
        return await reader.readexactly(int(header(lines, b"content-length") or 0))
    lines[:] = [line for line in lines if not line.lower().startswith(b"transfer-encoding:")] + [b"content-length: 0"]
    body = b""
    while chunk := await one_chunk(reader):
        body += chunk
    return body


async def one_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readline()).split(b";")[0], 16)
    return (await reader.readexactly(size + 2))[:-2]


def header(lines: Lines, name: bytes) -> bytes | None:
    """The value without the blank before it; those after it are the suite's business."""
    return next((line.partition(b":")[2].lstrip() for line in lines[1:] if line.lower().startswith(name + b":")), None)


def replace(lines: Lines, name: bytes, value: bytes) -> None:
    for at, line in enumerate(lines):
        if line.lower().startswith(name + b":"):
            lines[at] = line.partition(b":")[0] + b": " + value


def parsed(body: bytes) -> renaming.Json | None:
    try:
        message = json.loads(body)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def changed(body: bytes, rename: Callable[[renaming.Json], None]) -> bytes:
    message = parsed(body)
    if message is None:
        return body
    rename(message)
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
