"""Trees that are deep: 8, 12 and 20 nodes below one another (MCP-AX 5.3, 9.2)."""

from pathlib import Path

import pytest
from tests.interaction.ax.bare import bare, tool
from tests.interaction.peers import HttpPeer
from tests.runtime.levels import levels, way

DECLARED = {
    "latency_class": "standard",
    "consistency": "eventual",
    "mutable": False,
    "reversible": True,
    "idempotent": True,
    "transport": "native",
    "auth_scope": "read",
    "cost_class": "metered",
    "availability": "best_effort",
    "schema_version": "1.2.0-rc.1",
    "x-own": {"b": None, "a": [18446744073709551616]},
}


@pytest.mark.req("AX-5.3-2", "AX-1.1-3")
@pytest.mark.parametrize("depth", [8, 12, 20])
async def test_the_bottom_of_a_deep_tree_is_listed_called_and_heard_at_every_level(tmp_path: Path, depth: int) -> None:
    extension = {"experimental": {"dev.interlock/ax": {}}}
    async with levels(tmp_path, depth) as tree:
        offered = tool("read", _meta={"x-mcpax-capability": DECLARED})
        async with bare(tree[-1], "leaf", tools=[offered], authority="dns:all.example") as leaf:
            for at, place in enumerate(tree, start=1):
                route = await place.until_listed(way(depth, "leaf", "read", start=at + 1))
                assert route.hops == depth - at + 1
            async with await HttpPeer.legacy(f"{tree[0].url}/mcp", extension, judged=False) as peer:
                await peer.listen()
                listed = (await peer.request("tools/list")).result["tools"]
                found = {one["_meta"].get("x-mcpax-name", one["name"]): one for one in listed}
                name = way(depth, "leaf", "read")
                assert found[name]["_meta"]["x-mcpax-hops"] == depth
                assert found[name]["_meta"]["x-mcpax-capability"] == DECLARED
                assert "x-mcpax-declared" not in found[name]["_meta"]
                answer = await peer.call(found[name]["name"], {"n": 1})
                assert answer.result["content"][0]["text"] == "read ran"
                meta = (await leaf.hear("tools/call"))["params"]["_meta"]
                assert meta["x-mcpax-route"] == name.split(".")
                assert meta["x-mcpax-cursor"] == depth - 1
                await leaf.notify("notifications/vendor/rang", {"n": 1})
                told = await peer.hear("notifications/vendor/rang")
                assert told["params"]["_meta"]["x-mcpax-origin"] == way(depth, "leaf")
