"""The plainest client beside a subserver of the same test: blocking calls on another thread."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.support.node_process import KNOWS_AX, RunningNode, Wire, wait_for


async def call(node: RunningNode, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The whole answer of a 2026-07-28 client's call."""

    def ask() -> dict[str, Any]:
        with Wire(node, **options) as wire:
            return wire.modern("tools/call", {"name": name, "arguments": arguments or {}}).message

    return await asyncio.to_thread(ask)


async def legacy_call(node: RunningNode, name: str) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        with Wire(node) as wire:
            wire.initialize()
            return wire.legacy("tools/call", {"name": name, "arguments": {}}).message

    return await asyncio.to_thread(ask)


async def listed(node: RunningNode) -> dict[str, dict[str, Any]]:
    """Every tool by its qualified name."""

    def ask() -> dict[str, dict[str, Any]]:
        with Wire(node, "/mcp?names=qualified") as wire:
            found, cursor = {}, {}
            while True:
                result = wire.modern("tools/list", cursor, capabilities=KNOWS_AX).message["result"]
                found |= {tool["name"]: tool for tool in result["tools"]}
                if "nextCursor" not in result:
                    return found
                cursor = {"cursor": result["nextCursor"]}

    return await asyncio.to_thread(ask)


async def ready(node: RunningNode, segment: str, **wanted: Any) -> dict[str, Any]:
    """The link, once it is there and shows these values."""
    shows = {"state": "ready", **wanted}

    def look() -> Any:
        link = node.link(segment)
        return all(link.get(key) == value for key, value in shows.items()) and link

    return await asyncio.to_thread(wait_for, look, 20.0)


@contextlib.asynccontextmanager
async def hearing(node: RunningNode, capabilities: dict[str, Any] | None = None) -> AsyncIterator["asyncio.Queue[Any]"]:
    """A legacy client with an open stream and the log level debug; what it is told, in order."""
    wire = Wire(node)
    await asyncio.to_thread(wire.initialize, capabilities or {})
    await asyncio.to_thread(wire.legacy, "logging/setLevel", {"level": "debug"})
    reader, writer = await asyncio.open_connection(node.host, node.port, limit=64 * 1024 * 1024)
    writer.write(
        f"GET /mcp HTTP/1.1\r\nhost: {node.host}:{node.port}\r\naccept: text/event-stream\r\n"
        f"mcp-session-id: {wire.session}\r\nmcp-protocol-version: 2025-11-25\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def read() -> None:
        while line := await reader.readline():
            if line.startswith(b"data: "):
                heard.put_nowait(json.loads(line[6:]))

    task = asyncio.create_task(read())
    try:
        yield heard
    finally:
        task.cancel()
        writer.close()
        wire.close()


async def told(heard: "asyncio.Queue[Any]", method: str, seconds: float = 10.0) -> dict[str, Any]:
    """The next notification of that method; others before it are passed over."""
    async with asyncio.timeout(seconds):
        while True:
            message = await heard.get()
            if message.get("method") == method:
                return message
