"""A subserver with none of the product's code registers, lists, serves and leaves."""

import asyncio

import pytest
from tests.ax.bare_subserver import LEGACY, MODERN, bare_subserver, tool
from tests.support.node_process import RunningNode, Wire


async def _call(node: RunningNode, name: str, arguments: dict[str, object] | None = None) -> dict[str, object]:
    def call() -> dict[str, object]:
        with Wire(node) as wire:
            return wire.modern("tools/call", {"name": name, "arguments": arguments or {}}).message

    return await asyncio.to_thread(call)


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_a_bare_subserver_registers_and_serves(node: RunningNode, era: str) -> None:
    async with bare_subserver(node, f"plant-{era[:4]}", tools=[tool("read")], era=era) as leaf:
        assert leaf.session["status"] == "registered"
        assert leaf.session["assigned_segment"] == leaf.segment
        assert leaf.session["heartbeat_deadline_ms"] == 15000
        await asyncio.to_thread(node.wait_link, leaf.segment, {"state": "ready", "tools": 1})
        answer = await _call(node, f"{leaf.segment}__read", {"bench": 3})
        assert answer["result"]["content"][0]["text"] == "read ran"
        sent = next(m for m in leaf.heard if m.get("method") == "tools/call")
        assert sent["params"]["name"] == "read"
        assert sent["params"]["_meta"]["x-mcpax-route"] == [leaf.segment, "read"]
        assert sent["params"]["_meta"]["x-mcpax-cursor"] == 0
