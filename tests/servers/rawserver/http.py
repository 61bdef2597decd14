"""Streamable HTTP of both eras on one URL, and the HTTP+SSE of 2024-11-05, on a hand-written HTTP/1.1 server.

Strict on purpose: a missing or contradicting header is refused as the specification asks, so that a gateway that
forgets one is found out.
"""

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from .guard import Guard
from .server import (
    LEGACY_VERSIONS,
    META,
    MODERN_VERSION,
    Message,
    Refusal,
    Server,
    Session,
    error_message,
    http_status,
    unsupported_version,
)
from .text import header_text

OUTBOX_MAX = 1000  # messages a flood puts ahead of a slow stream
BODY_MAX = 256 * 1024 * 1024
REASONS = {200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
NAMED |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


class Reader(asyncio.StreamReader):
    """A reader that says when the peer has gone, without anybody reading."""

    def __init__(self) -> None:
        super().__init__(limit=BODY_MAX)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.gone.set()


@dataclass
class Request:
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    folded: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.folded = dict(self.headers)


class Response:
    """The answer to one HTTP request: JSON, or a stream of events as soon as something comes before the answer."""

    def __init__(self, writer: asyncio.StreamWriter, headers: dict[str, str], always_stream: bool) -> None:
        self.writer, self.headers, self.always_stream, self.streaming = writer, headers, always_stream, False

    async def plain(self, status: int, body: bytes = b"", **headers: str) -> None:
        kind = {"content-type": "application/json"} if body else {}
        self._head(status, {**kind, "content-length": str(len(body)), **headers})
        self.writer.write(body)
        await self.writer.drain()

    async def stream(self) -> None:
        self.streaming = True
        self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        await self.writer.drain()

    async def send(self, message: bytes, event: str = "message") -> None:
        if not self.streaming:
            await self.stream()
        data = b"event: %b\ndata: %b\n\n" % (event.encode(), message)
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def finish(self, messages: Sequence[bytes], status: int) -> None:
        if not self.streaming and not self.always_stream and len(messages) == 1:
            await self.plain(status, messages[0])
            return
        for message in messages:
            await self.send(message)
        await self.end()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in {**headers, **self.headers}.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


class HttpPipe:
    def __init__(self, server: Server, *, token: str | None, always_stream: bool, forget_after: int | None) -> None:
        self.server, self.token, self.always_stream = server, token, always_stream
        self.forget_after = forget_after  # calls a session lives for
        self.calls: dict[str, int] = {}
        self.guard: Guard | None = None

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, Reader)
        try:
            while (request := await read_request(reader)) is not None:
                response = Response(writer, {}, self.always_stream)
                task = asyncio.create_task(self._answer(request, response, reader))
                gone = asyncio.create_task(reader.gone.wait())
                await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                if not task.done():
                    task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if task.cancelled() or task.exception() is not None:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request, response: Response, reader: Reader) -> None:
        if self.guard is not None and await self._is_guarded(self.guard, request, response):
            return
        if self.token is not None and request.folded.get("authorization") != f"Bearer {self.token}":
            await response.plain(401, www_authenticate='Bearer realm="raw", error="invalid_token"')
        elif request.path == "/sse" and request.method == "GET":
            await self._sse_stream(response)
        elif request.path == "/messages" and request.method == "POST":
            await self._sse_post(request, response)
        elif request.path != "/mcp":
            await response.plain(404)
        elif request.method == "POST":
            await self._post(request, response)
        elif not self.server.serves("legacy"):
            await response.plain(405, allow="POST")
        else:
            await self._legacy_stream(request, response)

    async def _is_guarded(self, guard: Guard, request: Request, response: Response) -> bool:
        document = guard.document(request.path) if request.method == "GET" else None
        if document is not None:
            await response.plain(200, document)
            return True
        if request.path not in ("/mcp", "/sse", "/messages"):
            return False
        refusal = await guard.refusal(request.folded, request.body)
        if refusal is not None:
            status, challenge = refusal
            await response.plain(status, **({"www_authenticate": challenge} if challenge else {}))
        return refusal is not None

    async def _post(self, request: Request, response: Response) -> None:
        try:
            message = Message.parse(request.body)
        except Refusal as refusal:
            await response.plain(400, error_message(None, refusal))
            return
        message.headers = request.folded
        self.server.record(message)
        version = request.folded.get("mcp-protocol-version")
        try:
            if version is None or version in LEGACY_VERSIONS or not self.server.serves("modern"):
                await self._legacy_post(message, version, response)
            else:
                await self._modern_post(message, request, response)
        except Refusal as refusal:
            await response.plain(http_status(refusal.code), error_message(message.id, refusal))

    async def _modern_post(self, message: Message, request: Request, response: Response) -> None:
        if message.method is None:
            raise Refusal(-32600, "a modern client posts requests only")
        if message.id is None:
            await response.plain(202)
            return
        check_headers(message, request.headers)
        session = Session("modern")  # nothing outlives the request
        self.server.sessions[f"modern-{id(session)}"] = session
        try:
            await self.server.request(message, session, response)
        except asyncio.CancelledError:
            self.server.cancelled.append(message.id)
            raise
        finally:
            del self.server.sessions[f"modern-{id(session)}"]

    async def _legacy_post(self, message: Message, version: str | None, response: Response) -> None:
        if not self.server.serves("legacy"):
            raise unsupported_version(version or "")
        if version is not None and version not in LEGACY_VERSIONS:
            raise Refusal(-32600, f"Bad Request: Unsupported protocol version: {version}")
        if message.method == "initialize":
            session = Session(secrets.token_hex(16))
            self.server.sessions[session.id] = session
            response.headers["mcp-session-id"] = session.id
        else:
            found = await self._session(message.headers, response)
            if found is None:
                return
            session = found
        if message.method is None or message.id is None:
            await self.server.notice(message, session)
            await response.plain(202)
            return
        if message.method == "tools/call" and self._spent(session):
            self.server.sessions.pop(session.id, None)
            await response.plain(404, error_message(message.id, Refusal(-32001, "Session not found")))
            return
        await self._in_task(message, session, response)

    async def _in_task(self, message: Message, session: Session, response: Response) -> None:
        """A legacy request goes on when its stream breaks: only notifications/cancelled ends it."""
        task = asyncio.create_task(self.server.request(message, session, response))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                await response.plain(200) if not response.streaming else await response.end()
            else:
                raise

    def _spent(self, session: Session) -> bool:
        self.calls[session.id] = self.calls.get(session.id, 0) + 1
        return self.forget_after is not None and self.calls[session.id] > self.forget_after

    async def _session(self, headers: dict[str, str], response: Response) -> Session | None:
        session_id = headers.get("mcp-session-id")
        if session_id is None:
            await response.plain(400, error_message(None, Refusal(-32600, "Bad Request: Missing session ID")))
        elif session_id not in self.server.sessions:
            await response.plain(404, error_message(None, Refusal(-32001, "Session not found")))
        else:
            return self.server.sessions[session_id]
        return None

    async def _legacy_stream(self, request: Request, response: Response) -> None:
        session = await self._session(request.folded, response)
        if session is None:
            return
        if request.method == "DELETE":
            del self.server.sessions[session.id]
            await response.plain(200)
        elif request.method == "GET":
            await response.stream()
            while True:
                await response.send(await session.outbox.get())
        else:
            await response.plain(405, allow="GET, POST, DELETE")

    async def _sse_stream(self, response: Response) -> None:
        session = Session(secrets.token_hex(16))
        self.server.sessions[session.id] = session
        try:
            await response.send(f"/messages?session_id={session.id}".encode(), event="endpoint")
            while True:
                await response.send(await session.outbox.get())
        finally:
            self.server.sessions.pop(session.id, None)

    async def _sse_post(self, request: Request, response: Response) -> None:
        session = self.server.sessions.get(request.query.removeprefix("session_id="))
        if session is None:
            await response.plain(404)
            return
        try:
            message = Message.parse(request.body)
        except Refusal as refusal:
            await response.plain(400, error_message(None, refusal))
            return
        message.headers = request.folded
        self.server.record(message)
        await response.plain(202)
        if message.method is None or message.id is None:
            await self.server.notice(message, session)
            return
        task = asyncio.create_task(self.server.request(message, session, Outbox(session)))
        _RUNNING.add(task)
        task.add_done_callback(_RUNNING.discard)


_RUNNING: set[asyncio.Task[None]] = set()


class Outbox:
    """The channel of HTTP+SSE: every answer goes on the session's one stream."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def send(self, message: bytes) -> None:
        self.session.outbox.put_nowait(message)

    async def finish(self, messages: Sequence[bytes], status: int) -> None:
        for message in messages:
            await self.send(message)


def check_headers(message: Message, headers: list[tuple[str, str]]) -> None:
    """The ladder of 2026-07-28 for one request."""
    for key in ("protocolVersion", "clientCapabilities"):
        if META + key not in message.meta:
            raise Refusal(-32602, f"_meta lacks {META}{key}")
    expected = {"mcp-protocol-version": message.version, "mcp-method": message.method}
    named = NAMED.get(message.method or "")
    if named is not None and named in message.params:
        expected["mcp-name"] = json.loads(message.params[named])
    for name, value in expected.items():
        sent = [header_text(given) for key, given in headers if key == name]
        if sent != [value]:
            raise Refusal(-32020, f"{name} says {sent}, the body {value!r}")
    if message.version != MODERN_VERSION:
        raise unsupported_version(message.version or "")


async def read_request(reader: Reader) -> Request | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    start, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = start.split(" ", 2)
    path, _, query = target.partition("?")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    request = Request(method, path, query, headers)
    if "chunked" in request.folded.get("transfer-encoding", ""):
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            request.body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        request.body = await reader.readexactly(int(request.folded.get("content-length", "0")))
    return request


async def serve(pipe: HttpPipe, port: int) -> None:
    """Listen on loopback; the first line on stdout is the URL."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: asyncio.StreamReaderProtocol(Reader(), pipe.connection), "127.0.0.1", port
    )
    host, bound = listener.sockets[0].getsockname()[:2]
    if pipe.guard is not None:
        pipe.guard.url = f"http://{host}:{bound}/mcp"
    print(f"http://{host}:{bound}/mcp", flush=True)

    async def to_streams(data: bytes) -> None:
        open_to = [session.outbox for session in pipe.server.sessions.values() if session.initialized]
        wanting = [outbox for outbox in open_to if outbox.qsize() < OUTBOX_MAX]
        for outbox in wanting:
            outbox.put_nowait(data.rstrip(b"\n"))
        await asyncio.sleep(0 if wanting else 0.01)

    await asyncio.gather(listener.serve_forever(), *(fault.started(to_streams) for fault in pipe.server.faults))
