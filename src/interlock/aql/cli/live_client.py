"""A client of one AQL surface of a node in this process: it knows what an MCP client knows, and keeps what was said."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from interlock.aql.protocol.answer_schemas import check_answer
from interlock.node.node import Node

LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
PATIENCE_S: Final = 10.0
_META: Final = "io.modelcontextprotocol/"
_INFO: Final = {"name": "interlock-check", "version": "1"}


class LiveClient:
    """`kept`: every request with its answer, in order."""

    def __init__(self, node: Node, surface: Any, version: str) -> None:
        self._next = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._stamp: dict[str, Any] = {}
        self.version = version
        self.kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        if version == MODERN:
            self._stamp = {f"{_META}protocolVersion": MODERN, f"{_META}clientCapabilities": {}}
        front = node.fronts.lines.make(None, surface)
        self._feed: Callable[[bytes], None] = front.feed
        front.connect(cast(Any, self))

    async def greet(self) -> None:
        if self.version == LEGACY:
            params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": _INFO}
            await self.request("initialize", params)
            self._feed(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._next += 1
        waits: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[self._next] = waits
        meta = {"_meta": self._stamp} if self._stamp else {}
        asked = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": {**params, **meta}}
        self._feed(json.dumps(asked).encode() + b"\n")
        answer = await asyncio.wait_for(waits, PATIENCE_S)
        self.kept.append((asked, answer))
        return answer

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in (await self.request("tools/list", {}))["result"]["tools"]}

    async def send(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The envelope. Raises ValueError where the answer has not the form of the specification."""
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        if "result" not in answer:
            raise ValueError(f"{tool} answered with an error of JSON-RPC: {answer.get('error')}")
        result = answer["result"]
        first = result["content"][0]
        if first["type"] != "text":
            raise ValueError(f"content[0] is {first['type']!r} and not text")
        envelope = json.loads(first["text"])
        if result.get("structuredContent", envelope) != envelope:
            raise ValueError("structuredContent and the text of content[0] differ")
        check_answer(envelope, arguments)
        return cast(dict[str, Any], envelope)

    async def introspect(self, tool: str, **params: Any) -> dict[str, Any]:
        envelope = await self.send(tool, {"operation": "introspect", "params": params})
        if envelope["success"] is not True:
            raise ValueError(f"introspect is answered {envelope['error']['code']}")
        return cast(dict[str, Any], envelope["data"])

    # asyncio.WriteTransport, as far as a front needs one

    def write(self, data: bytes) -> None:
        message = json.loads(data)
        waits = self._waiting.pop(message.get("id"), None) if "method" not in message else None
        if waits is not None and not waits.done():
            waits.set_result(message)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass
