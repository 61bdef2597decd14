"""Trees that are deep: 8, 12 and 20 nodes below one another (MCP-AX 5.3, 9.2)."""

from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.levels import Level, levels, until, way
from tests.ax.tree import ACCESS
from tests.support.peers import HttpPeer

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
async def test_the_bottom_of_a_deep_tree_is_listed_called_and_received_at_every_level(
    tmp_path: Path, depth: int
) -> None:
    extension = {"experimental": {"dev.interlock/ax": {}}}
    async with levels(tmp_path, depth) as tree:
        offered = tool("read", _meta={"x-mcpax-capability": DECLARED})
        async with bare_subserver(tree[-1], "leaf", tools=[offered], authority="dns:all.example") as leaf:
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


SLOW_LINK = 6
DEPTH = 12


async def test_a_slow_link_raises_the_latency_class_above_it_and_nothing_lowers_a_class(tmp_path: Path) -> None:
    """The link into level 6 takes 700 ms by its operator's word; the leaf answers at once."""

    def said(depth: int) -> str:
        return f"{ACCESS}link_latency_ms = 700\n" if depth == SLOW_LINK else ""

    def offered(name: str) -> dict[str, Any]:
        return tool(name, _meta={"x-mcpax-capability": {"mutable": False, "latency_class": name}})

    classes = ["realtime", "fast", "standard", "slow", "batch"]
    async with (
        levels(tmp_path, DEPTH, said) as tree,
        bare_subserver(tree[-1], "leaf", tools=[offered(name) for name in classes]),
    ):
        await tree[0].until_listed(way(DEPTH, "leaf", "slow"))
        async with await HttpPeer.modern_(f"{tree[0].url}/mcp") as peer:
            for _ in range(25):  # enough to be measured, far below every class
                await peer.call(way(DEPTH, "leaf", "slow"))
        for at, place in enumerate(tree, start=1):
            for name in classes:
                route = place.tools()[way(DEPTH, "leaf", name, start=at + 1)]
                raised = name == "realtime" and at <= SLOW_LINK
                assert route.capability.latency_class.value == ("fast" if raised else name), (at, name)
                assert route.meta.get("x-mcpax-declared") == ({"latency_class": "realtime"} if raised else None)
                assert route.hops == DEPTH - at + 1


async def test_a_tool_beyond_the_hops_a_node_allows_is_withheld_there_and_listed_below(tmp_path: Path) -> None:
    def said(depth: int) -> str:
        return "[ax]\nmax_hops = 2\n" if depth == 1 else ""

    async with levels(tmp_path, 3, said) as tree, bare_subserver(tree[-1], "leaf", tools=[tool("read")]):
        await tree[1].until_listed("l3.leaf.read")
        beyond = {"l3.leaf.read": "hops_exceeded", "l3.notifications_dropped": "hops_exceeded"}
        await until(lambda: withheld(tree[0]) == beyond)
        assert "l2.notifications_dropped" in tree[0].tools()


def withheld(place: Level) -> dict[str, str | None]:
    """Of what stands below this node."""
    return {one.name: one.code for items in place.node.calls.catalog.namespace.link_items for one in items.withheld}
