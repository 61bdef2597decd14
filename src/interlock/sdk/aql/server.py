"""The MCP servers of one adapter, or of several in one session: over standard input and output, and over HTTP.

Both serve both eras of MCP. The HTTP server is an ASGI application for Streamable HTTP at /mcp. A request is answered
with its result alone, or with a stream if progress is reported before it. A modern request stands on its own and is
cancelled when its client disconnects. A legacy client has a session, whose id it sends with each request; its
cancellations come as requests too. SESSIONS_MAX bounds the sessions, because clients may leave without ending theirs.

On an address that other machines can reach, a bearer token is required. On a loopback address, pages of a browser are
rejected by their Origin and Host.
"""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from interlock.aql.protocol.envelope import failed, tool_result
from interlock.aql.protocol.errors import find_invalid_encoding
from interlock.mcp.methods import CANCELLED, INITIALIZE
from interlock.mcp.modern_requests import validate_request
from interlock.net.message_pipe import MessagePipe
from interlock.net.protocol.address_scope import is_loopback
from interlock.sdk.aql.service import Service
from interlock.sdk.aql.signature import DeclarationInvalid
from interlock.sdk.subserver import tools
from interlock.sdk.subserver.mcp_server import McpServer, ToolOffer, cancelled_request, is_modern
from interlock.sdk.subserver.stdio import open_standard
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized, message_too_large
from interlock.wire.refusal import INVALID_REQUEST, Refusal
from interlock.wire.sse import encode_event

if TYPE_CHECKING:
    from interlock.sdk.aql.adapter import Adapter

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024  # of a line; below it a request that is too large gets an envelope
RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024  # of an envelope, which a result contains twice
STRUCTURED_FROM: Final = "2025-06-18"  # the revision of MCP from which results have structuredContent


class ServedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint of an MCP-AQL adapter, offered as an MCP tool."""

    name: str
    listed: Raw
    service: Service
    is_async: bool = True

    async def answer(self, arguments: Raw, context: tools.Context, *, revision: str) -> dict[str, Any]:
        envelope, is_error = await self.service.answer(self.name, arguments, context)
        members: dict[str, Any] = {"content": [{"type": "text", "text": envelope.decode()}], "isError": is_error}
        if revision >= STRUCTURED_FROM:
            members["structuredContent"] = Raw(envelope)
        return members


async def serve_stdio(adapters: Sequence["Adapter"]) -> None:
    """Serve adapters over standard input and output until the input ends, then cancel everything that still runs. Raise
    DeclarationInvalid if two tools have the same name.
    """
    line = _StdioClient(make_offer(adapters))
    line.begin(await open_standard(line, REQUEST_BYTES_MAX))
    await line.closed.wait()
    cancel_executions(adapters)


def cancel_executions(adapters: Sequence["Adapter"]) -> None:
    """Cancel all executions that still run, because the server ends."""
    for adapter in adapters:
        for execution in adapter.executions:
            if execution.ended_at is None:  # AQL-2.3.3-3
                execution.cancel()


def make_offer(adapters: Sequence["Adapter"]) -> ToolOffer:
    """Return the endpoints of all adapters as one set of MCP tools. The server has the name of the first adapter. Raise
    DeclarationInvalid if two tools have the same name.
    """
    served: dict[str, ServedEndpoint] = {}
    for adapter in adapters:
        service = Service(adapter)
        for item in service.definitions():
            if item["name"] in served:  # AQL-C.mode-4
                why = f"two adapters of this session have the tool {item['name']!r}; give '{adapter.name}' a prefix"
                raise DeclarationInvalid(why)
            served[item["name"]] = ServedEndpoint(item["name"], Raw(msgspec.json.encode(item)), service)
    first = adapters[0]
    instructions = "\n".join(item.description for item in adapters if item.description) or None
    return ToolOffer(first.name, first.version, instructions, 2 * RESPONSE_BYTES_MAX, served)


class _StdioClient:
    """The client that is connected to standard input and output."""

    def __init__(self, offer: ToolOffer) -> None:
        self.closed = asyncio.Event()
        self._pipe: MessagePipe | None = None
        self._early: list[bytes] = []  # messages that arrived before the pipe could take answers
        self._server = McpServer(offer, self._send, offer.name)

    def begin(self, pipe: MessagePipe) -> None:
        """Start to answer the client. Messages that arrived before the pipe was ready are handled first."""
        self._pipe = pipe
        early, self._early = self._early, []
        for data in early:
            self.on_message(data)

    def on_message(self, data: bytes) -> None:
        """Handle a message from the client. If the pipe is not ready yet, keep the message for later."""
        if self._pipe is None:
            self._early.append(data)
            return
        try:
            message = codec.decode_untrusted(data)
        except codec.CodecError as error:
            self._send(answer_unreadable(data) or codec.encode_refusal(error.message_id, error.refusal))
            return
        match message:
            case codec.Request():
                self._server.serve(message)
            case codec.Notification():
                self._server.hear(message)
            case codec.Response():
                pass  # this server sends no requests

    def on_oversized(self, oversized: Oversized) -> None:
        if oversized.kind is MessageKind.REQUEST:
            self._send(codec.encode_refusal(oversized.id, message_too_large(oversized.limit)))

    def on_closed(self, code: int, reason: str) -> None:
        self._server.leave()
        self.closed.set()

    def _send(self, message: bytes) -> bool:
        return self._pipe is not None and self._pipe.send(message)


def answer_unreadable(data: bytes) -> bytes | None:
    """Return the error envelope for a tools/call that contains invalid UTF-8 (4.7.1). Return None if the bytes are
    valid UTF-8 or not a tools/call.
    """
    if (fault := find_invalid_encoding(data)) is None:
        return None
    try:
        message = codec.decode_untrusted(data.decode(errors="replace").encode())
    except codec.CodecError:
        return None
    if not isinstance(message, codec.Request) or message.method != "tools/call":
        return None
    return codec.encode_result(message.id, tool_result(failed(fault), is_error=False, is_modern=False))


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PATH: Final = "/mcp"
SESSIONS_MAX: Final = 1000  # legacy clients; beyond, the session that was unused for longest ends
CONNECTIONS_MAX: Final = 256
H_SESSION: Final = b"mcp-session-id"
_ANSWER: Final = b'{"jsonrpc":"2.0","id":'
_JSON: Final = b"application/json"


def run_http(adapters: Sequence["Adapter"], address: str, token: str | None) -> None:
    """Serve adapters over HTTP until the process is asked to stop. Raise ValueError if the address is invalid or a
    required token is missing.
    """
    import uvicorn

    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"{address!r} is no HOST:PORT")
    app = HttpApplication(adapters, token, is_open=not is_loopback(host.strip("[]")))
    uvicorn.run(app, host=host.strip("[]"), port=int(port), log_level="warning", limit_concurrency=CONNECTIONS_MAX)


class _Session(msgspec.Struct):
    """The session of a legacy client: its negotiated MCP revision and its running requests by id."""

    agreed: str
    running: dict[bytes, McpServer] = {}


class HttpApplication:
    """The ASGI application that serves one or more adapters."""

    def __init__(self, adapters: Sequence["Adapter"], token: str | None = None, *, is_open: bool = False) -> None:
        """Create the application. `is_open` means that other machines can reach it, so that a token is required."""
        if is_open and not token:
            raise ValueError("an address that others reach needs a token")
        self._adapters = adapters
        self._offer = make_offer(adapters)
        self._token = token
        self._is_open = is_open
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        while scope["type"] == "lifespan":
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                cancel_executions(self._adapters)
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        session_id = headers.get(H_SESSION, b"").decode("latin-1")
        if (refused := self._find_refusal(scope["path"], headers)) is not None:
            return await _reply(send, refused)
        if scope["method"] == "DELETE":
            ended = self._sessions.pop(session_id, None)
            return await _reply(send, 204 if ended is not None else 404)
        if scope["method"] != "POST":
            return await _reply(send, 405, head=[(b"allow", b"POST, DELETE")])
        if (body := await _read_body(receive)) is None:
            return await _reply(send, 413)
        try:
            message = codec.decode_untrusted(body)
        except codec.CodecError as error:
            envelope = answer_unreadable(body)
            refusal = codec.encode_refusal(error.message_id, error.refusal)
            return await _reply(send, 400 if envelope is None else 200, envelope or refusal)
        if (session := self._sessions.get(session_id)) is not None:
            self._sessions.move_to_end(session_id)
        if isinstance(message, codec.Request):
            return await self._request(message, session, headers, receive, send)
        if isinstance(message, codec.Notification) and session is not None:
            # The cancelled request of a legacy session arrived with another HTTP request.
            server = session.running.get(cancelled_request(message))
            if server is not None:
                server.hear(message)
        return await _reply(send, 202)

    def _find_refusal(self, path: str, headers: Mapping[bytes, bytes]) -> int | None:
        """Return the HTTP status for a request that is refused, or None if it is allowed.

        If there is a token, a request needs it. If other machines cannot reach the address, the Host and the Origin of
        a request must also name this machine, with a token too. So web pages of other hosts are refused, and DNS
        rebinding is prevented.
        """
        if path != PATH:
            return 404
        if self._token is not None:
            authorization = headers.get(b"authorization", b"")
            if not hmac.compare_digest(authorization, b"Bearer " + self._token.encode()):
                return 401
        if self._is_open:
            return None
        origin = headers.get(b"origin")
        named = [b"//" + headers.get(b"host", b"")] + ([origin] if origin is not None else [])
        return None if all(_is_on_this_machine(host) for host in named) else 403

    async def _request(
        self,
        request: codec.Request,
        session: _Session | None,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a JSON-RPC request. A legacy client needs a session, a modern one does not."""
        outgoing: asyncio.Queue[bytes] = asyncio.Queue()

        def take(message: bytes) -> bool:
            outgoing.put_nowait(message)
            return True

        server = McpServer(self._offer, take, self._offer.name)
        head: list[tuple[bytes, bytes]] = []
        modern = is_modern(request)
        if modern:
            validated = validate_request(request, headers)
            if isinstance(validated, Refusal):
                return await _reply(send, validated.mcp_status, codec.encode_refusal(request.id, validated))
        elif request.method == INITIALIZE:
            session = _Session(server.agreed)
        elif session is None:
            status, problem = (404, "unknown or ended") if H_SESSION in headers else (400, "missing")
            refusal = Refusal(INVALID_REQUEST, f"the session is {problem}; send initialize first")
            return await _reply(send, status, codec.encode_refusal(request.id, refusal))
        else:
            server.agreed = session.agreed
        if session is not None:
            session.running[request.id] = server
        try:
            server.serve(request)
            if session is not None and request.method == INITIALIZE:
                session.agreed = server.agreed
                while len(self._sessions) >= SESSIONS_MAX:
                    self._sessions.popitem(last=False)
                new_id = secrets.token_urlsafe(24)
                self._sessions[new_id] = session
                head = [(H_SESSION, new_id.encode())]
            await _answer(outgoing, server, request.id, receive, send, head, is_cancelled_by_leaving=modern)
        finally:
            server.leave()
            if session is not None:
                session.running.pop(request.id, None)


def _is_on_this_machine(address: bytes) -> bool:
    """Return whether the address in a Host or Origin header names this machine."""
    try:
        return is_loopback(urlsplit(address.decode("latin-1")).hostname or "")
    except ValueError:
        return False


async def _read_body(receive: Receive) -> bytes | None:
    """Read a request body, or return None if it is too large."""
    body, more = bytearray(), True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > REQUEST_BYTES_MAX:
            return None
    return bytes(body)


async def _answer(
    outgoing: asyncio.Queue[bytes],
    server: McpServer,
    request_id: bytes,
    receive: Receive,
    send: Send,
    head: list[tuple[bytes, bytes]],
    *,
    is_cancelled_by_leaving: bool,
) -> None:
    """Send the answer to a request as a single response. If progress is reported first, send an event stream that ends
    with the answer.
    """

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(wait_for_disconnect())
    is_stream = False
    try:
        while True:
            following = asyncio.ensure_future(outgoing.get())
            await asyncio.wait((following, gone), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                if is_cancelled_by_leaving:
                    named = codec.encode_value({"requestId": Raw(request_id)})
                    server.hear(codec.Notification(CANCELLED, Raw(named)))
                return None
            message = following.result()
            is_last = message.startswith(_ANSWER)
            if is_last and not is_stream:
                return await _reply(send, 200, message, head)
            if not is_stream:
                is_stream = True
                lines = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *head]
                await send({"type": "http.response.start", "status": 200, "headers": lines})
            event = encode_event(message, event=b"message")
            await send({"type": "http.response.body", "body": event, "more_body": not is_last})
            if is_last:
                return None
    finally:
        gone.cancel()


async def _reply(send: Send, status: int, body: bytes = b"", head: list[tuple[bytes, bytes]] | None = None) -> None:
    lines = [(b"content-length", str(len(body)).encode()), *(head or ())]
    if body:
        lines.append((b"content-type", _JSON))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
