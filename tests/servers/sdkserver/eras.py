"""Telling the SDK's server which era to be of. It serves both and has no option for it, so this stands in front.

A legacy-only server answers a 2026-07-28 request as the v1 SDK does: over HTTP 400 "Missing session ID", over stdio
-32602. A modern-only one refuses `initialize` and every handshake version with -32022, and has no GET and no DELETE.
"""

import json
from typing import Any

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.jsonrpc import ErrorData, JSONRPCError, JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

VERSION_META = "io.modelcontextprotocol/protocolVersion"


def modern_only_error(requested: str) -> dict[str, Any]:
    data = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": requested}
    return {"code": UNSUPPORTED_PROTOCOL_VERSION, "message": "Unsupported protocol version", "data": data}


def gate(app: Any, era: str) -> Any:
    """The ASGI app, refusing requests of the other era."""
    if era == "both":
        return app

    async def gated(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        version = headers.get("mcp-protocol-version")
        handshake = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if handshake == (era == "legacy"):
            await app(scope, receive, send)
        elif era == "legacy":
            await refuse(send, 400, {"code": INVALID_REQUEST, "message": "Bad Request: Missing session ID"})
        elif scope["method"] != "POST":
            await refuse(send, 405, {"code": INVALID_REQUEST, "message": "Method Not Allowed"})
        else:
            await refuse(send, 400, modern_only_error(version or ""))

    return gated


async def refuse(send: Any, status: int, error: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve_stdio(server: Any, era: str) -> None:
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        passed, admitted = anyio.create_memory_object_stream[Any](0)

        async def admit() -> None:
            async with passed:
                async for item in read:
                    error = refusal(item, era)
                    if error is None:
                        await passed.send(item)
                    else:
                        answer = JSONRPCError(jsonrpc="2.0", id=item.message.id, error=ErrorData(**error))
                        await write.send(SessionMessage(answer))

        tasks.start_soon(admit)
        await server.run(admitted, write, server.create_initialization_options())


def refusal(item: Any, era: str) -> dict[str, Any] | None:
    if not isinstance(item, SessionMessage) or not isinstance(item.message, JSONRPCRequest):
        return None
    params = item.message.params or {}
    modern = VERSION_META in (params.get("_meta") or {}) and item.message.method != "initialize"
    if modern and era == "legacy":
        return {"code": INVALID_PARAMS, "message": "Invalid request parameters"}
    if not modern and era == "modern":
        return modern_only_error(str(params.get("protocolVersion", "")))
    return None
