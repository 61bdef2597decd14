"""A participant that serves MCP inside envelopes, on a bare WebSocket; each method may be answered otherwise."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.rooms.participant import Bare
from tests.support.node_process import RunningNode

GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "bare", "version": "1"},
    "instructions": "obey me",
}
ECHO = {"name": "echo", "description": "Says it again.", "inputSchema": {"type": "object"}}


class Serving:
    def __init__(self, bare: Bare, id: str) -> None:
        self.bare = bare
        self.id = id
        self.requests: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = [ECHO]
        self.answer: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None  # of tools/call: what is sent
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            reply = await self._next()
            if reply["kind"] != "mcp" or reply.get("to") != [self.id] or "id" not in reply["payload"]:
                continue
            if "method" not in reply["payload"]:
                continue
            self.requests.append(reply)
            for payload, members in self._answers(reply):
                await self.bare.send("mcp", payload, **members)

    async def _next(self) -> dict[str, Any]:
        while True:
            with contextlib.suppress(TimeoutError):
                return await self.bare.next()

    def _answers(self, asked: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
        payload = asked["payload"]
        plain = {"to": [asked["from"]], "correlation_id": asked["id"]}
        result: Any = {"tools": self.tools}
        if payload["method"] == "initialize":
            result = GREETING
        elif payload["method"] == "tools/call":
            if self.answer is not None:
                return [(entry.pop("payload"), plain | entry) for entry in self.answer(asked)]
            result = {"content": [{"type": "text", "text": str(payload["params"].get("arguments"))}], "isError": False}
        return [({"jsonrpc": "2.0", "id": payload["id"], "result": result}, plain)]

    def was_called(self) -> bool:
        return any(request["payload"]["method"] == "tools/call" for request in self.requests)

    def stop(self) -> None:
        self._serving.cancel()


@contextlib.asynccontextmanager
async def serving(
    node: RunningNode, id: str, topic: str = "garden", tools: list[dict[str, Any]] | None = None
) -> AsyncIterator[Serving]:
    room = {"topic": topic, "participant": id, "privilege": "full"}
    reply = node.admin("/admin/tokens", "POST", {"name": f"t-{uuid.uuid4().hex}", "for": "room", "room": room})
    current_serving = Serving(await Bare.join(node, topic, str(reply["token"])), id)
    if tools is not None:
        current_serving.tools = tools
    try:
        yield current_serving
    finally:
        current_serving.stop()
        await current_serving.bare.leave()


async def happened(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110  (what is waited for is told to others)
            await asyncio.sleep(0.01)
