"""An MCP client beside the participants of rooms: it runs in threads, so that they can answer it meanwhile."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from tests.support.node_process import KNOWS_AX, RunningNode, Wire


@functools.cache
def client_token(node: RunningNode, name: str) -> str:
    return str(node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})["token"])


class Client:
    """An MCP client beside the participants, in threads of its own."""

    def __init__(self, node: RunningNode, name: str, path: str = "/mcp?names=qualified") -> None:
        self.wire = Wire(node, path, client_token(node, name))

    async def tools(self) -> dict[str, Any]:
        members: dict[str, Any] = {}
        cursor: dict[str, Any] = {}
        while True:
            answer = await asyncio.to_thread(self.wire.modern, "tools/list", cursor, capabilities=KNOWS_AX)
            result = answer.message["result"]
            members |= {tool["name"]: tool for tool in result["tools"] if tool["name"].startswith("rooms.")}
            if "nextCursor" not in result:
                return members
            cursor = {"cursor": result["nextCursor"]}

    async def until(self, check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                listed = await self.tools()
                if check(listed):
                    return listed
                await asyncio.sleep(0.02)

    async def until_listed(self, *names: str) -> dict[str, Any]:
        return await self.until(lambda listed: set(names) <= listed.keys())

    async def call(self, name: str, **arguments: Any) -> Any:
        params = {"name": name, "arguments": arguments}
        return (await asyncio.to_thread(self.wire.modern, "tools/call", params)).message
