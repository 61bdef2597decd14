"""How much do clients that know nothing of MCP-AX read, and who is told everything (MCP-AX 3.2)?"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.frozen_node import Client, MemoryNetwork, advance_time, frozen_node, in_frozen_time, node_chain

LIMIT = 1.25
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "tail": {"type": "number", "description": "If provided, returns only the last N lines of the file"},
        "head": {"type": "number", "description": "If provided, returns only the first N lines of the file"},
    },
    "required": ["path"],
    "$schema": "http://json-schema.org/draft-07/schema#",
}
READS = "Read the complete contents of a file from the file system as text. Only works within allowed directories."
PLAIN: list[dict[str, Any]] = [  # as real servers define theirs
    {"name": "read_text_file", "description": READS, "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
    {"name": "write_file", "description": READS, "inputSchema": SCHEMA},
    {
        "name": "move_file",
        "title": "Move File",
        "description": READS,
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": False, "idempotentHint": False, "destructiveHint": False},
    },
]


def plain(client: Client) -> Client:
    client._stamp = {key: {} if key.endswith("Capabilities") else value for key, value in client._stamp.items()}
    return client


def size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


@pytest.mark.req("AX-3.2-2", "AX-9.2-2", "AX-11.2-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("names", ["auto", "qualified"])
@in_frozen_time
async def test_a_plain_tool_costs_an_ordinary_client_at_most_a_quarter_more(
    tmp_path: Path, era: str, names: str
) -> None:
    async with frozen_node(tmp_path) as node:
        await node.leaf("filesystem", tools=PLAIN, heartbeat_interval_ms=0).joined()
        client = plain(node.client(names)) if era == "modern" else await node.client(names).greet()
        tools = [one for one in (await client.tools()).values() if "_file" in one["name"]]
        own = {one["name"]: one for one in PLAIN}
        assert len(tools) == 3
        for one in tools:
            local = one["name"].replace("__", ".").partition(".")[2]
            assert size(one) <= LIMIT * size(own[local]), one
            meta: dict[str, Any] = {"x-mcpax-name": f"filesystem.{local}"} if names == "auto" else {}
            meta["x-mcpax-hops"] = 1
            if local == "write_file":
                meta["x-mcpax-safety"] = "irreversible_mutable"
            assert one == own[local] | {"name": one["name"], "_meta": meta}


@pytest.mark.req("AX-3.2-2", "AX-1.1-6")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@in_frozen_time
async def test_those_who_declare_the_extension_and_parents_learn_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    slow = {**PLAIN[1], "name": "slow", "_meta": {"x-mcpax-capability": {"latency_class": "slow"}}}
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"]) as (root, edge):
        await edge.leaf("files", tools=[*PLAIN, slow], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        asking = root.client("auto")
        if era == "legacy":
            await asking.greet(**{"dev.interlock/ax": {}})
        tools = await asking.tools()
        parents = await edge.parent().tools()
        for found, way, hops in ((tools, "edge.", 2), (parents, "", 1)):
            for name in ("read_text_file", "write_file", "move_file", "slow"):
                meta = found[f"{way}files.{name}"]["_meta"]
                assert len(meta["x-mcpax-capability"]) == 10
                assert meta["x-mcpax-hops"] == hops
            for tool in found.values():
                assert {"latency_class", "mutable", "reversible"} <= tool["_meta"]["x-mcpax-capability"].keys()
            assert found[f"{way}files.write_file"]["_meta"]["x-mcpax-gated"] is True
            assert found[f"{way}files.write_file"]["annotations"]["destructiveHint"] is True
        flagged = {"x-mcpax-hops": 2, "x-mcpax-safety": "irreversible_mutable"}
        others = await plain(root.client("qualified")).tools()
        assert others["edge.files.slow"]["_meta"] == {
            "x-mcpax-capability": {"latency_class": "slow"},
            **flagged,
        }
        assert others["edge.files.write_file"]["_meta"] == flagged
        assert others["edge.files.read_text_file"]["_meta"] == {"x-mcpax-hops": 2}
