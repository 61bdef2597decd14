"""What is said of a tool travels with it: changed at the leaf it is changed at the root, and no client is alarmed."""

from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, bare_subserver, tool
from tests.ax.levels import Level, levels, until
from tests.support.peers import HttpPeer

NAME = "l2.l3.leaf.read"
CHANGED = "notifications/tools/list_changed"


def offered(description: str = "Reads.", **keys: Any) -> list[dict[str, Any]]:
    said = {"mutable": False, "latency_class": "fast", "consistency": "strong", **keys}
    return [tool("read", description=description, _meta={"x-mcpax-capability": said})]


async def offer(leaf: BareSubserver, tools: list[dict[str, Any]]) -> None:
    leaf.tools = tools
    listens = [one for one in leaf.heard if one.get("method") == "subscriptions/listen"]
    meta = {"io.modelcontextprotocol/subscriptionId": listens[-1]["id"]} if listens else {}
    await leaf.notify(CHANGED, {"_meta": meta})


def shown(root: Level) -> dict[str, Any]:
    """The capability as the root has it."""
    capability = root.tools()[NAME].capability
    return {"latency_class": capability.latency_class.value, "consistency": capability.consistency.value}


@pytest.mark.req("AX-1.2-2")
async def test_a_changed_annotation_shows_at_the_root_and_tells_no_client(tmp_path: Path) -> None:
    async with levels(tmp_path, 3) as tree, bare_subserver(tree[-1], "leaf", tools=offered()) as leaf:
        root = tree[0]
        await root.until_listed(NAME)
        await root.until_listed("l2.l3.notifications_dropped")
        assert shown(root) == {"latency_class": "fast", "consistency": "strong"}
        known = {"experimental": {"dev.interlock/ax": {}}}
        async with await HttpPeer.legacy(f"{root.url}/mcp", known) as peer:
            await peer.listen()
            await offer(leaf, offered(consistency="eventual", latency_class="slow"))
            await until(lambda: shown(root) == {"latency_class": "slow", "consistency": "eventual"})
            await offer(leaf, offered("Reads more.", consistency="best_effort", latency_class="slow"))
            await peer.hear(CHANGED)
            (listed,) = [one for one in (await peer.request("tools/list")).result["tools"] if one["name"] == NAME]
            assert listed["description"] == "Reads more."
            assert listed["_meta"]["x-mcpax-capability"]["consistency"] == "best_effort"
            assert peer.heard(CHANGED) == []  # the one for the description was the only one


async def test_a_tool_that_turns_dangerous_is_reported_to_clients(tmp_path: Path) -> None:
    authority = "dns:all.example"
    async with (
        levels(tmp_path, 2) as tree,
        bare_subserver(tree[-1], "leaf", tools=offered(), authority=authority) as leaf,
    ):
        await tree[0].until_listed("l2.leaf.read")
        async with await HttpPeer.legacy(f"{tree[0].url}/mcp") as peer:
            await peer.listen()
            leaf.tools = offered(mutable=True, reversible=False)
            del leaf.tools[0]["annotations"]
            await offer(leaf, leaf.tools)
            await peer.hear(CHANGED)


@pytest.mark.req("AX-13.2-1", "AX-13.2-5")
async def test_a_tool_degraded_far_below_is_degraded_at_the_root_and_recovers_there(tmp_path: Path) -> None:
    def availability() -> str:
        said: str = root.tools()[NAME].capability.availability.value
        return said

    tools = offered(availability="scheduled")
    async with levels(tmp_path, 3) as tree, bare_subserver(tree[-1], "leaf", tools=tools) as first:
        root = tree[0]
        await root.until_listed(NAME)
        await root.until_listed("l2.l3.notifications_dropped")
        async with await HttpPeer.legacy(f"{root.url}/mcp") as peer:
            await peer.listen()
            first.cut()
            await until(lambda: availability() == "degraded")
            assert root.tools()[NAME].meta["x-mcpax-declared"] == {"availability": "scheduled"}
            error = (await peer.call(NAME)).error
            assert (error["message"], error["data"]["reason"]) == ("tool_degraded", "subserver_unreachable")
            async with bare_subserver(tree[-1], "leaf", tools=tools, subserver_id=first.subserver_id):
                await until(lambda: availability() == "scheduled")
                assert "x-mcpax-declared" not in root.tools()[NAME].meta
                assert (await peer.call(NAME)).result["content"]
            assert peer.heard(CHANGED) == []
