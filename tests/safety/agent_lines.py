"""Clients of a node in this process over lines, on any surface and of either era."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, cast

from tests.aql.aql_schemas import check_answer, is_valid
from tests.safety.agents import LOOK, AgentNode
from tests.support.node_with_clock import CAPABLE, META, SECONDS

from interlock.core.calls.caller import Principal

PLACED = {"execute_agent": "execute", "record_execution_step": "create", "complete_execution": "execute"}
PLACED |= {"abort_execution": "execute", "confirm_operation": "execute", "verify_challenge": "create"}
PLACED |= {"get_execution": "read"}
STAMP = {
    META + "protocolVersion": "2026-07-28",
    META + "clientInfo": {"name": "one", "version": "1"},
    META + "clientCapabilities": CAPABLE,
}


class Lines:
    """A client over lines, of either era, that keeps every byte it gets."""

    def __init__(self, here: AgentNode, surface: str, client: str | None = None) -> None:
        """`client`: the principal that it is, where it is not `local`."""
        self.is_lost = False
        self.received = b""
        self._heard = here.heard
        self._stamp: dict[str, Any] = {"_meta": STAMP}
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._front = here.node.fronts.lines.make(None, surface)
        if client is not None:
            cast(Any, self._front).principal = here.principals.setdefault(client, Principal(client))
        self._front.connect(cast(Any, self))

    async def greet(self) -> "Lines":
        self._stamp = {}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        self.greeting = (await self.request("initialize", params))["result"]
        self._front.feed(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return self

    def begin(self, method: str, params: Any) -> "asyncio.Future[Any]":
        id = len(self._waiting) + 1
        waits = self._waiting[id] = asyncio.get_running_loop().create_future()
        meta = {**self._stamp.get("_meta", {}), **params.get("_meta", {})}
        stamp = {"_meta": meta} if meta else {}
        asked = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, **stamp}}
        self._front.feed(json.dumps(asked).encode() + b"\n")
        return waits

    async def request(self, method: str, params: Any) -> Any:
        async with asyncio.timeout(SECONDS):
            return await self.begin(method, params)

    async def send(self, tool: str, arguments: Any) -> Any:
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        envelope = json.loads(answer["result"]["content"][0]["text"])
        check_answer(envelope, arguments)
        return envelope

    async def do(self, operation: str, family: str | None = None, **params: Any) -> Any:
        where = family or PLACED.get(operation, "read")
        request = {"operation": operation, "params": params}
        assert is_valid("input", request)
        return await self.send(f"mcp_aql_{where}", request)

    async def step(self, hint: str = LOOK, **more: Any) -> Any:
        answer = await self.do("record_execution_step", element_name="coder", nextActionHint=hint, **more)
        return answer["data"]["autonomy"] if answer["success"] else answer["error"]

    async def introspect(self, **params: Any) -> Any:
        return (await self.do("introspect", **params))["data"]

    def write(self, data: bytes) -> None:
        self.received += data
        self._heard.append(data.decode())
        message = json.loads(data)
        if "method" not in message and not self._waiting[message["id"]].done():
            self._waiting[message["id"]].set_result(message)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return self.is_lost

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def leave(self) -> None:
        self._front.end()
