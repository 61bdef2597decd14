"""A subserver made of the bare `websockets` package and none of the product's code.

`Bare` speaks mcpax.v1 and plain MCP of either era on one connection; a test may take any part of it into its own hands.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import websockets
from tests.support.node_process import RunningNode

PATIENCE_S = 10.0
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
SUBPROTOCOL = "mcpax.v1"

Answer = Callable[[dict[str, Any]], Awaitable[Any] | Any]


class Refused(Exception):
    """An error answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(json.dumps(error))
        self.error = error


def tool(name: str, **more: Any) -> dict[str, Any]:
    annotations = more.pop("annotations", {"readOnlyHint": True})
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": annotations, **more}


def address(node: RunningNode) -> str:
    return f"ws://{node.host}:{node.port}/ax"


async def connect(node: RunningNode, *, token: str | None = None, **options: Any) -> Any:
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    kept = {"subprotocols": [SUBPROTOCOL], "compression": None, "max_size": None, "ping_interval": None, **options}
    return await websockets.connect(address(node), additional_headers=headers, **kept)


class BareSubserver:
    def __init__(
        self,
        socket: Any,
        segment: str,
        *,
        tools: Sequence[dict[str, Any]] = (),
        era: str = MODERN,
        call: Answer | None = None,
        subserver_id: str | None = None,
        list_meta: Mapping[str, Any] | None = None,
        **register: Any,
    ) -> None:
        self.socket = socket
        self.segment = segment
        self.tools = list(tools)
        self.era = era
        self.call = call or (lambda params: {"content": [{"type": "text", "text": f"{params['name']} ran"}]})
        self.subserver_id = subserver_id or str(uuid.uuid4())
        self.register_params = {
            "subserver_id": self.subserver_id,
            "segment": segment,
            "capabilities": {"tools": True, "notifications": True},
            "parent_id": None,
            **register,
        }
        self.heard: list[dict[str, Any]] = []  # every message from the aggregator, in order
        self.session: dict[str, Any] = {}
        self.answers = True
        self.pages = 1
        self.list_meta = list_meta
        self._waiting: dict[Any, asyncio.Future[Any]] = {}
        self._news = asyncio.Event()
        self._next_id = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reader = asyncio.create_task(self._read())

    async def send(self, message: Mapping[str, Any]) -> None:
        await self.socket.send(json.dumps(message))

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})})

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        self._next_id += 1
        request_id = f"up-{self._next_id}"
        waits = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        message = await asyncio.wait_for(waits, PATIENCE_S)
        if "error" in message:
            raise Refused(message["error"])
        return message["result"]

    async def register(self) -> dict[str, Any]:
        self.session = await self.request("mcpax/register", self.register_params)
        return self.session

    async def beat(self, **more: Any) -> Any:
        return await self.request("mcpax/heartbeat", {"session_id": self.session["session_id"], **more})

    async def until(self, true: Callable[["BareSubserver"], Any], seconds: float = PATIENCE_S) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := true(self)):
                self._news.clear()
                await self._news.wait()
        return found

    async def hear(self, method: str) -> dict[str, Any]:
        """The first message of that method."""
        return await self.until(
            lambda bare_subserver: next((m for m in bare_subserver.heard if m.get("method") == method), None)
        )

    async def closed(self) -> tuple[int | None, str]:
        await asyncio.wait_for(self.socket.wait_closed(), PATIENCE_S)
        return self.socket.close_code, self.socket.close_reason or ""

    async def stop(self) -> None:
        self._reader.cancel()
        for task in list(self._tasks):
            task.cancel()
        await self.socket.close()
        await asyncio.gather(self._reader, *self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Without a word."""
        self.socket.transport.abort()

    async def _read(self) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            async for text in self.socket:
                message = json.loads(text)
                self.heard.append(message)
                self._news.set()
                if "method" not in message:
                    waits = self._waiting.pop(message.get("id"), None)
                    if waits is not None and not waits.done():
                        waits.set_result(message)
                elif "id" in message and self.answers:
                    task = asyncio.create_task(self._serve(message))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: dict[str, Any]) -> None:
        method, params = request["method"], request.get("params", {})
        result: Any = None
        if method == "server/discover" and self.era == MODERN:
            result = {
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {"listChanged": True}},
                "ttlMs": 0,
                "cacheScope": "private",
            }
        elif method == "initialize" and self.era == LEGACY:
            result = {
                "protocolVersion": LEGACY,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "bare", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": self.tools}
            number = int(params.get("cursor", "0"))
            if self.pages > 1:  # the same tools on each, under other names
                result = {"tools": [{**one, "name": f"{one['name']}-{number}"} for one in self.tools]}
            if number + 1 < self.pages:
                result["nextCursor"] = str(number + 1)
            if self.list_meta is not None:
                result["_meta"] = self.list_meta
            if self.era == MODERN:
                result |= {"ttlMs": 60_000, "cacheScope": "private"}
        elif method == "subscriptions/listen":
            meta = {"io.modelcontextprotocol/subscriptionId": request["id"]}
            await self.notify(
                "notifications/subscriptions/acknowledged",
                {"_meta": meta, "notifications": params.get("notifications", {})},
            )
            return
        elif method == "tools/call":
            result = self.call(params)
            if asyncio.iscoroutine(result):
                result = await result
        elif method == "mcpax/parent":
            result = {"subserver_id": self.subserver_id, "parent_id": None}
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            await self.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
            return
        if self.era == MODERN and isinstance(result, dict) and method != "mcpax/parent":
            result = {"resultType": "complete", **result}
        with contextlib.suppress(websockets.ConnectionClosed):
            await self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})


@contextlib.asynccontextmanager
async def bare_subserver(
    node: RunningNode, segment: str, *, token: str | None = None, **options: Any
) -> AsyncIterator[BareSubserver]:
    """Registered, and listed as far as it has tools."""
    leaf = BareSubserver(await connect(node, token=token), segment, **options)
    try:
        await leaf.register()
        yield leaf
    finally:
        await leaf.stop()
