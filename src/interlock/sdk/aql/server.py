"""The stdio server of one adapter, or of several in one session, in both eras of MCP."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.protocol.envelope import failed
from interlock.aql.protocol.errors import invalid_encoding
from interlock.net.message_pipe import MessagePipe
from interlock.sdk.aql.service import LOCAL, Service
from interlock.sdk.aql.signature import DeclarationInvalid
from interlock.sdk.aql.values import Context
from interlock.sdk.subserver import tools
from interlock.sdk.subserver.mcp_server import McpServer, Offer
from interlock.sdk.subserver.stdio import open_standard
from interlock.wire.jsonrpc.codec import Notification, Request, Response, decode_untrusted, encode_refusal
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized, message_too_large

if TYPE_CHECKING:
    from interlock.sdk.aql.adapter import Adapter

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024  # of a line; below it a request that is too large gets an envelope
RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024  # an envelope stands in a result twice
STRUCTURED_FROM: Final = "2025-06-18"  # the revision of MCP from which results have structuredContent


class EndpointTool(msgspec.Struct, frozen=True):
    """An endpoint of the adapter, as the server serves tools."""

    name: str
    listed: Raw
    service: Service
    is_async: bool = True

    async def answer(self, arguments: Raw, context: tools.Context, *, revision: str) -> dict[str, Any]:
        def make_context(operation: str) -> Context:
            return Context(operation, LOCAL, lambda: context.cancelled, context.progress)

        envelope, is_error = await self.service.answer(self.name, arguments, make_context)
        members: dict[str, Any] = {"content": [{"type": "text", "text": envelope.decode()}], "isError": is_error}
        if revision >= STRUCTURED_FROM:
            members["structuredContent"] = Raw(envelope)
        return members


async def serve_stdio(adapters: Sequence["Adapter"]) -> None:
    """Serve until standard input ends; what still runs then is cancelled. Raises DeclarationInvalid."""
    line = _Line(make_offer(adapters))
    line.begin(await open_standard(line, REQUEST_BYTES_MAX))
    await line.closed.wait()
    cancel_executions(adapters)


def cancel_executions(adapters: Sequence["Adapter"]) -> None:
    for adapter in adapters:
        for execution in adapter.executions:
            if execution.ended_at is None:  # AQL-2.3.3-3
                execution.cancel()


def make_offer(adapters: Sequence["Adapter"]) -> Offer:
    """Return the endpoints of all adapters. The first adapter names the server. Raise DeclarationInvalid."""
    served: dict[str, EndpointTool] = {}
    for adapter in adapters:
        service = Service(adapter)
        for item in service.definitions():
            if item["name"] in served:  # AQL-C.mode-4
                raise DeclarationInvalid(
                    f"two adapters of this session have the tool {item['name']!r}; give '{adapter.name}' a prefix"
                )
            served[item["name"]] = EndpointTool(item["name"], Raw(msgspec.json.encode(item)), service)
    first = adapters[0]
    return Offer(
        name=first.name,
        version=first.version,
        instructions="\n".join(item.description for item in adapters if item.description) or None,
        max_bytes=2 * RESPONSE_BYTES_MAX,
        tools=served,
    )


class _Line:
    """One client at the other end of a pipe."""

    def __init__(self, offer: Offer) -> None:
        self.closed = asyncio.Event()
        self._pipe: MessagePipe | None = None
        self._early: list[bytes] = []  # what came before there was a way to answer
        self._server = McpServer(offer, self._send, offer.name)

    def begin(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        early, self._early = self._early, []
        for data in early:
            self.on_message(data)

    def on_message(self, data: bytes) -> None:
        if self._pipe is None:
            self._early.append(data)
            return
        try:
            message = decode_untrusted(data)
        except CodecError as error:
            self._send(answer_unreadable(data) or encode_refusal(error.message_id, error.refusal))
            return
        match message:
            case Request():
                self._server.serve(message)
            case Notification():
                self._server.hear(message)
            case Response():
                self._server.hear_answer(message)

    def on_oversized(self, oversized: Oversized) -> None:
        if oversized.kind is MessageKind.REQUEST:
            self._send(encode_refusal(oversized.id, message_too_large(oversized.limit)))

    def on_closed(self, code: int, reason: str) -> None:
        self._server.leave()
        self.closed.set()

    def _send(self, message: bytes) -> bool:
        return self._pipe is not None and self._pipe.send(message)


def answer_unreadable(data: bytes) -> bytes | None:
    """Return the error envelope for a tools/call with bytes that are no UTF-8, if the rest of the call is readable
    (4.7.1).
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        offset = error.start
    else:
        return None
    try:
        message = decode_untrusted(data.decode(errors="replace").encode())
    except CodecError:
        return None
    if not isinstance(message, Request) or message.method != "tools/call":
        return None
    envelope = failed(invalid_encoding("request", offset)).decode()
    result = {
        "content": [{"type": "text", "text": envelope}],
        "structuredContent": Raw(envelope.encode()),
        "isError": False,
    }
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message.id, msgspec.json.encode(result))
