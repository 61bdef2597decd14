"""A node with tools in memory and clients of its AQL surfaces, in a loop whose time stands still."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

from tests.aql.aql_schemas import check_answer, is_valid
from tests.support.frozen_node import Client, FrozenNode, Leaf, frozen_node, run_until_idle, tool

OPEN = '[gate]\nmode = "open"\n'
TEXT = {"type": "string"}


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


READS = {"readOnlyHint": True}
WRITES = {"destructiveHint": False}
TOOLS = [
    tool("list_users", inputSchema=schema(limit={"type": "integer", "minimum": 1, "maximum": 100})),
    tool("get_user", inputSchema=schema(("user_id",), user_id={**TEXT, "description": "Whose"})),
    tool(
        "create_document",
        annotations=WRITES,
        inputSchema=schema(
            ("title", "body"), title={**TEXT, "description": "Its title"}, body=TEXT, tags={"type": "array"}
        ),
    ),
    tool(
        "update_document",
        annotations=WRITES,
        inputSchema=schema(("documentId",), documentId=TEXT, title=TEXT, pageCount={"type": "integer"}),
    ),
    tool("delete_document", annotations=WRITES, inputSchema=schema(("documentId",), documentId=TEXT)),
    tool(
        "run_job",
        annotations=WRITES,
        description="Runs a job.",
        inputSchema=schema(("job",), job=TEXT, config={"type": "object"}, **{"pullNumber": {"type": "integer"}}),
    ),
]


class AqlClient:
    """A client of one AQL surface. `send` gives the envelope; `result` the whole MCP result."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def tools(self) -> dict[str, dict[str, Any]]:
        return await self.client.tools()

    async def result(self, endpoint: str, arguments: Any, **more: Any) -> dict[str, Any]:
        answer = await self.client.request("tools/call", {"name": endpoint, "arguments": arguments, **more})
        assert "result" in answer, answer
        return cast(dict[str, Any], answer["result"])

    async def send(self, endpoint: str, arguments: Any, **more: Any) -> dict[str, Any]:
        result = await self.result(endpoint, arguments, **more)
        envelope = json.loads(result["content"][0]["text"])
        assert result.get("structuredContent", envelope) == envelope
        check_answer(envelope, arguments)
        return cast(dict[str, Any], envelope)

    async def do(self, operation: str, params: Mapping[str, Any] | None = None, family: str = "read") -> dict[str, Any]:
        request = {"operation": operation, "params": dict(params or {})}
        assert is_valid("input", request)
        return await self.send(f"mcp_aql_{family}", request)

    async def introspect(self, endpoint: str = "mcp_aql_read", **params: Any) -> Any:
        envelope = await self.send(endpoint, {"operation": "introspect", "params": params})
        assert envelope["success"] is True, envelope
        return envelope["data"]


class AqlNode:
    def __init__(self, here: FrozenNode) -> None:
        self.house = here
        self.node = here.node

    async def leaf(self, segment: str = "docs", tools: Any = TOOLS, **options: Any) -> Leaf:
        leaf = await self.house.leaf(segment, tools=tools, **{"heartbeat_interval_ms": 0, **options}).joined()
        leaf.answer = lambda params: {"structuredContent": {"got": params["arguments"]}, "content": []}
        return leaf

    def modern(self, surface: str = "aql", only: str | None = None) -> AqlClient:
        """A client. `only`: the only server that it sees."""
        front = self.node.fronts.lines.make(only, surface)
        client = Client(front.feed)
        front.connect(cast(Any, client))
        return AqlClient(client)

    async def legacy(self, surface: str = "aql") -> AqlClient:
        made = self.modern(surface)
        await made.client.greet(level=None)
        return made

    async def client(self, era: str, surface: str = "aql") -> AqlClient:
        return self.modern(surface) if era == "modern" else await self.legacy(surface)


def received_calls(leaf: Leaf) -> list[dict[str, Any]]:
    """What the leaf's tools were called with: name and arguments."""
    calls = [one["params"] for one in leaf.heard if one.get("method") == "tools/call"]
    return [{"name": one["name"], "arguments": one.get("arguments")} for one in calls]


@contextlib.asynccontextmanager
async def aql_node(folder: Path, config: str = OPEN) -> AsyncIterator[AqlNode]:
    folder.mkdir(parents=True, exist_ok=True)
    async with frozen_node(folder, config) as here:
        yield AqlNode(here)


__all__ = [
    "OPEN",
    "READS",
    "TEXT",
    "TOOLS",
    "WRITES",
    "AqlClient",
    "AqlNode",
    "aql_node",
    "received_calls",
    "run_until_idle",
    "schema",
    "tool",
]
