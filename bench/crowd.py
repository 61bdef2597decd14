"""A crowd of clients that stay: legacy sessions with open streams, or modern calls that wait for an answer.

    python -m bench.crowd < job.json

The job comes on the first line of stdin. Every further line opens what the job asks for, and the next one ends it: each
is answered by a line, `open` or `ended`, once every server answer has come and was the expected one.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import httptools
import msgspec
import uvloop

from bench.load import META, Failed
from bench.processes import raise_descriptors

ACCEPT = [b"content-type: application/json", b"accept: application/json, text/event-stream"]
HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"bench","version":"1"}}}'
)
READY = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
PING = b'{"jsonrpc":"2.0","id":2,"method":"ping"}'
CAPABLE = META.replace(b'clientCapabilities":{}', b'clientCapabilities":{"elicitation":{"form":{}}}')
SURE = b'{"action":"accept","content":{"sure":true}}'


class Job(msgspec.Struct):
    kind: str  # sessions or calls
    port: int
    token: str
    count: int
    name: str = ""  # of the tool that asks
    at_once: int = 128  # requests under way while the crowd gathers or leaves


class Answered(msgspec.Struct):
    resultType: str = ""  # noqa: N815
    requestState: str = ""  # noqa: N815
    inputRequests: dict[str, msgspec.Raw] = {}  # noqa: N815


class Message(msgspec.Struct):
    result: Answered


decode_message = msgspec.json.Decoder(Message).decode


class Connection(asyncio.Protocol):
    """One request at a time. A stream is answered by its head and then left open."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if (waiting := getattr(self, "waiting", None)) is not None and not waiting.done():
            waiting.set_exception(Failed(f"the connection was closed in the middle of a request: {exc}"))

    async def ask(self, data: bytes, *wanted: int) -> bytes:
        self.parser = httptools.HttpResponseParser(self)
        self.chunks: list[bytes] = []
        self.session = b""
        self.wanted = wanted
        self.waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return await self.waiting

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"mcp-session-id":
            self.session = value
        elif lowered == b"content-type" and value == b"text/event-stream":
            self.done()

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)

    def on_message_complete(self) -> None:
        self.done()

    def done(self) -> None:
        if self.waiting.done():
            return
        status, body = self.parser.get_status_code(), b"".join(self.chunks)
        if status in self.wanted and b'"error"' not in body:
            self.waiting.set_result(body)
        else:
            self.waiting.set_exception(Failed(f"status {status}, body {body[:300]!r}"))


async def connect(job: Job) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", job.port)
    return connection


def request(job: Job, method: bytes, headers: list[bytes], body: bytes = b"") -> bytes:
    host = [b"host: 127.0.0.1:%d" % job.port, b"authorization: Bearer %b" % job.token.encode()]
    length = [b"content-length: %d" % len(body)] if body else []
    return b"\r\n".join([b"%b /mcp HTTP/1.1" % method, *host, *headers, *length, b"", body])


class Session:
    """A legacy client: a connection for its requests and one for its stream."""

    def __init__(self, job: Job) -> None:
        self.job = job

    async def open(self) -> None:
        job = self.job
        self.requests = await connect(job)
        await self.requests.ask(request(job, b"POST", ACCEPT, HELLO), 200)
        if not self.requests.session:
            raise Failed("initialize brought no session")
        self.head = [b"mcp-session-id: %b" % self.requests.session, b"mcp-protocol-version: 2025-11-25"]
        await self.requests.ask(request(job, b"POST", ACCEPT + self.head, READY), 202)
        self.stream = await connect(job)
        await self.stream.ask(request(job, b"GET", [b"accept: text/event-stream", *self.head]), 200)

    async def end(self) -> None:
        if self.stream.lost:
            raise Failed("the stream of a session was closed")
        await self.requests.ask(request(self.job, b"POST", ACCEPT + self.head, PING), 200)
        await self.requests.ask(request(self.job, b"DELETE", self.head), 204)
        self.requests.transport.close()
        self.stream.transport.close()


class WaitingCall:
    """A modern client's call. Nobody keeps a connection for it: the state it was given is all there is."""

    def __init__(self, job: Job, pool: "Pool", number: int) -> None:
        self.job, self.pool, self.number = job, pool, number

    async def open(self) -> None:
        said = decode_message(await self._post(b"")).result
        if said.resultType != "input_required" or not said.requestState or len(said.inputRequests) != 1:
            raise Failed(f"not asked, but answered: {said}")
        key = next(iter(said.inputRequests))
        self.again = b',"requestState":"%b","inputResponses":{"%b":%b}' % (
            said.requestState.encode(),
            key.encode(),
            SURE,
        )

    async def end(self) -> None:
        said = decode_message(await self._post(self.again)).result
        if said.resultType != "complete":
            raise Failed(f"not complete: {said}")

    async def _post(self, more: bytes) -> bytes:
        name = self.job.name.encode()
        params = b'"name":"%b","arguments":{"text":"call %d"},%b%b' % (name, self.number, CAPABLE, more)
        body = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%b}}' % (self.number, params)
        head = [b"mcp-protocol-version: 2026-07-28", b"mcp-method: tools/call", b"mcp-name: %b" % name]
        async with self.pool as connection:
            return await connection.ask(request(self.job, b"POST", ACCEPT + head, body), 200)


class Pool:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.idle: list[Connection] = []
        self.taken: dict[asyncio.Task[None] | None, Connection] = {}

    async def __aenter__(self) -> Connection:
        connection = self.idle.pop() if self.idle else await connect(self.job)
        self.taken[asyncio.current_task()] = connection
        return connection

    async def __aexit__(self, *_: object) -> None:
        self.idle.append(self.taken.pop(asyncio.current_task()))

    def close(self) -> None:
        for connection in self.idle:
            connection.transport.close()
        self.idle.clear()


async def each(jobs: list[Callable[[], Awaitable[None]]], at_once: int) -> None:
    """All of them, so many at a time."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


async def run(job: Job) -> None:
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        pool = Pool(job)
        crowd: list[Session] | list[WaitingCall]
        if job.kind == "sessions":
            crowd = [Session(job) for _ in range(job.count)]
        else:
            crowd = [WaitingCall(job, pool, number) for number in range(1, job.count + 1)]
        await each([one.open for one in crowd], job.at_once)
        pool.close()
        print("open", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        await each([one.end for one in crowd], job.at_once)
        pool.close()
        print("ended", flush=True)


if __name__ == "__main__":
    raise_descriptors()
    given = msgspec.json.decode(sys.stdin.readline(), type=Job)
    try:
        uvloop.run(run(given))
    except* Failed as failures:
        sys.exit(f"the crowd was not answered as expected: {failures.exceptions[0]}")
