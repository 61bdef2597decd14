"""The load generator: keep-alive connections, one request in flight on each, a fixed number of requests.

    python -m bench.load < job.json

The job comes on the first line of stdin. After the warm-up it prints `ready` and waits for a line, so that the one who
started it can read the contestant's CPU time between warm-up and measurement; then it prints the result as JSON. Every
answer is checked: status 200, the id that was asked for, a result. A list is read to its last page and counts as one.
"""

import asyncio
import sys
import time
from array import array
from typing import Literal

import httptools
import msgspec
import uvloop

from bench.heads import PLAIN, REAL, HeadSet, HeadWriter

FIRST_ID = 1_000_000_000  # ids keep their width
LENGTHS = 32  # arguments come in so many lengths: no two calls in a row have the same head, as with real clients
META = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{},'
    b'"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}'
)


class Job(msgspec.Struct):
    port: int
    path: str = "/mcp"
    era: str = "modern"
    method: str = "tools/call"
    name: str = "echo"
    token: str | None = None
    heads: Literal["same", "lengths", "real"] = "lengths"  # what differs between requests: see bench.heads
    text_bytes: int = 0  # so much more in every call's arguments
    beside_bytes: int = 0  # one connection more has calls with so much in their arguments, which are not counted
    connections: int = 16
    warmup: int = 1000
    count: int = 10000


class Result(msgspec.Struct):
    count: int
    seconds: float
    p50_us: float
    p99_us: float
    answer_bytes: int
    tools: int  # in the last list
    pages: int


class Failed(Exception):
    """An answer was not the expected one; the figures would be worthless."""


class Request:
    """The bytes of a request, around its id."""

    def __init__(self, job: Job, wanted: HeadSet, session: bytes = b"") -> None:
        call = job.method == "tools/call"
        self.call = b'"name":"%b","arguments":{"count":3,"text":"' % job.name.encode() if call else b""
        self.before = b'{"jsonrpc":"2.0","id":'
        self.method = job.method.encode()
        self.meta = [META] if job.era == "modern" else []
        mcp = [b"mcp-protocol-version: %b" % (b"2026-07-28" if job.era == "modern" else b"2025-11-25")]
        if job.era == "modern":
            mcp.append(b"mcp-method: %b" % job.method.encode())
            if call:
                mcp.append(b"mcp-name: %b" % job.name.encode())
        if session:
            mcp.append(b"mcp-session-id: %b" % session)
        self.writer = HeadWriter(wanted, job.path, b"127.0.0.1:%d" % job.port, job.token, mcp)
        lengths = 1 if job.heads == "same" else LENGTHS
        texts = [b"hello, world".ljust(12 + job.text_bytes + number, b".") for number in range(lengths)]
        self.variants = [self.around([self.call + text + b'"}'] if call else []) for text in texts]

    def around(self, params: list[bytes]) -> bytes:
        """What comes after the body's id."""
        return b',"method":"%b","params":{%b}}' % (self.method, b",".join([*params, *self.meta]))

    def pieces(self, number: int, cursor: bytes = b"") -> tuple[bytes, ...]:
        """What is written, piece by piece."""
        after = self.around([b'"cursor":"%b"' % cursor]) if cursor else self.variants[number % len(self.variants)]
        body = b"%b%d%b" % (self.before, number, after)
        head = self.writer.head(len(body), number)
        return (head, body) if self.writer.is_body_apart else (head + body,)


class Run:
    """One burst of requests over all connections."""

    def __init__(self, count: int) -> None:
        self.left, self.next_id = count, FIRST_ID
        self.open = 0
        self.latencies = array("q")
        self.answer_bytes = self.pages = self.tools = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Failed(reason))


class Connection(asyncio.Protocol):
    run: Run
    busy = False

    def __init__(self, request: Request) -> None:
        self.request = request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.chunks: list[bytes] = []

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy:
            self.run.fail(f"the connection was closed in the middle of a request: {exc}")

    def send(self) -> None:
        run = self.run
        if run.left == 0:
            self.busy = False
            run.open -= 1
            if run.open == 0 and not run.done.done():
                run.done.set_result(None)
            return
        run.left -= 1
        self.number, run.next_id = run.next_id, run.next_id + 1
        self.busy = True
        self.read = self.pages = self.tools = 0
        self.started = time.perf_counter_ns()
        self.write(self.request.pieces(self.number))

    def write(self, pieces: tuple[bytes, ...]) -> None:
        """Each piece in a turn of its own, so that it is a packet of its own."""
        self.transport.write(pieces[0])
        for piece in pieces[1:]:
            asyncio.get_running_loop().call_soon(self.transport.write, piece)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)

    def on_message_complete(self) -> None:
        ended = time.perf_counter_ns()
        run = self.run
        body, self.chunks = b"".join(self.chunks), []
        right = b"%d" % self.number in body and b'"result"' in body and b'"isError":true' not in body
        if self.parser.get_status_code() != 200 or not right:
            self.busy = False
            run.fail(f"status {self.parser.get_status_code()}, body {body[:300]!r}")
            return
        self.parser = httptools.HttpResponseParser(self)
        self.read += len(body)
        self.pages += 1
        if self.request.method == b"tools/list":
            self.tools += body.count(b'"inputSchema"')
            if cursor := next_cursor(body):
                self.write(self.request.pieces(self.number, cursor))
                return
        run.latencies.append(ended - self.started)
        run.answer_bytes, run.pages, run.tools = self.read, self.pages, self.tools
        self.send()


def next_cursor(body: bytes) -> bytes:
    _, found, rest = body.partition(b'"nextCursor":"')
    return rest.partition(b'"')[0] if found else b""


async def burst(connections: list[Connection], count: int) -> tuple[Run, float]:
    run = Run(count)
    run.open = len(connections)
    started = time.perf_counter()
    for connection in connections:
        connection.run = run
        connection.send()
    await run.done
    return run, time.perf_counter() - started


async def legacy_session(job: Job) -> bytes:
    """Open a session; its id, or nothing when the server keeps none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
    hello = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
        b'"clientInfo":{"name":"bench","version":"1"}}}'
    )
    ready = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    session = b""
    for body in (hello, ready):
        headers = [b"POST %b HTTP/1.1" % job.path.encode(), b"host: 127.0.0.1:%d" % job.port]
        headers += [b"content-type: application/json", b"accept: application/json, text/event-stream"]
        if session:
            headers += [b"mcp-session-id: %b" % session, b"mcp-protocol-version: 2025-11-25"]
        if job.token is not None:
            headers.append(b"authorization: Bearer %b" % job.token.encode())
        writer.write(b"\r\n".join([*headers, b"content-length: %d" % len(body), b"", body]))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
            raise Failed(f"initialize: {head[:200]!r}")
        pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
        fields = {name.lower(): value.strip() for name, _, value in pairs}
        session = fields.get(b"mcp-session-id", session)
        await skip_body(reader, fields)
    writer.close()
    return session


async def skip_body(reader: asyncio.StreamReader, fields: dict[bytes, bytes]) -> None:
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    else:
        await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def begin_beside(job: Job, session: bytes) -> Run:
    """Large calls one after the other, until `end_beside`."""
    request = Request(msgspec.structs.replace(job, text_bytes=job.beside_bytes, heads="same"), PLAIN, session)
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(request), "127.0.0.1", job.port
    )
    connection.run = run = Run(sys.maxsize)
    run.open = 1
    connection.send()
    return run


async def end_beside(run: Run) -> None:
    """Raises Failed where not even one was answered."""
    run.left = 0
    await run.done
    if not run.latencies:
        raise Failed("no large call was answered beside the small ones")


async def measure(job: Job) -> Result:
    loop = asyncio.get_running_loop()
    session = await legacy_session(job) if job.era == "legacy" else b""
    requests = [Request(job, wanted, session) for wanted in (REAL if job.heads == "real" else (PLAIN,))]
    connections = []
    for number in range(job.connections):
        request = requests[number % len(requests)]
        _, connection = await loop.create_connection(lambda request=request: Connection(request), "127.0.0.1", job.port)
        connections.append(connection)
    await burst(connections, job.warmup)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    beside = await begin_beside(job, session) if job.beside_bytes else None
    run, seconds = await burst(connections, job.count)
    if beside is not None:
        await end_beside(beside)
    latencies = sorted(run.latencies)
    return Result(
        count=len(latencies),
        seconds=seconds,
        p50_us=latencies[len(latencies) // 2] / 1000,
        p99_us=latencies[len(latencies) * 99 // 100] / 1000,
        answer_bytes=run.answer_bytes,
        tools=run.tools,
        pages=run.pages,
    )


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.readline(), type=Job)
    try:
        print(msgspec.json.encode(uvloop.run(measure(given))).decode(), flush=True)
    except Failed as failure:
        sys.exit(f"the load was not answered as expected: {failure}")
