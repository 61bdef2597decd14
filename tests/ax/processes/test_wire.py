"""What goes over an AX link and over a client's, taken down in full (MCP-AX 1, 2)."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.ax.bare_subserver import Refused, bare_subserver, tool
from tests.ax.blocking_client import call, ready
from tests.ax.link_tap import link_tap
from tests.ax.tree import ACCESS, ax_url, parents
from tests.support.node_process import RunningNode, Wire, running_node
from tests.support.peers import HttpPeer

LEAF = """
import sys
from interlock.sdk.subserver import Subserver
leaf = Subserver("plant", parents=[sys.argv[1]], state=sys.argv[2], heartbeat_interval_ms=200)

@leaf.tool(mutable=False)
async def ring() -> str:
    leaf.notify("notifications/vendor/rang", {"n": 1})
    return "rang"

leaf.run()
"""
OF_MCP = {"server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"}
LATER = ("mcpax/heartbeat", "mcpax/deregister")
OF_MCP |= {"subscriptions/listen", "notifications/subscriptions/acknowledged", "notifications/cancelled"}


@contextmanager
def leaf_process(folder: Path, url: str) -> Iterator["subprocess.Popen[bytes]"]:
    script = folder / "leaf.py"
    script.write_text(LEAF)
    process = subprocess.Popen([sys.executable, str(script), url, str(folder / "state")])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.req("AX-1-1")
async def test_one_life_holds_these_methods_and_no_others(node: RunningNode, tmp_path: Path) -> None:
    async with link_tap(ax_url(node)) as link:
        with leaf_process(tmp_path, link.url) as process:
            await ready(node, "plant", tools=1)
            assert (await call(node, "plant.ring"))["result"]["content"][0]["text"] == "rang"
            await link.heard("up", "notifications/vendor/rang")
            await link.heard("up", "mcpax/heartbeat")
            process.send_signal(signal.SIGTERM)
            await link.heard("up", "mcpax/deregister")
            await asyncio.to_thread(process.wait, 10)
    assert link.methods("up") - OF_MCP == {"mcpax/register", *LATER, "notifications/vendor/rang"}
    assert link.methods("down") <= OF_MCP
    assert {"tools/list", "tools/call"} <= link.methods("down")
    session = next(one["result"]["session_id"] for one in link.down if "session_id" in one.get("result", {}))
    said = [one["params"]["session_id"] for one in link.up if one.get("method") in LATER]
    assert set(said) == {session}


@pytest.mark.req("AX-1-1")
async def test_other_methods_of_the_tree_are_unknown_at_every_endpoint(node: RunningNode) -> None:
    def asked_by_a_client(method: str) -> int:
        with Wire(node) as wire:
            code: int = wire.modern(method).message["error"]["code"]
            return code

    async with bare_subserver(node, "asking", tools=[tool("read")]) as leaf:
        for method in ("mcpax/walk", "mcpax/get", "mcpax/REGISTER", "mcpax/"):
            with pytest.raises(Refused) as refused:
                await leaf.request(method, {"session_id": leaf.session["session_id"]})
            assert refused.value.error["code"] == -32601
            assert await asyncio.to_thread(asked_by_a_client, method) == -32601
        await leaf.beat()


@pytest.mark.req("AX-2-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_an_aggregator_is_an_mcp_server_whatever_is_below_it(tmp_path: Path, era: str) -> None:
    """Every answer is put before MCP's schema."""
    connect = HttpPeer.modern_ if era == "modern" else HttpPeer.legacy
    with running_node(tmp_path / "above", {}, ACCESS) as above:

        async def listed() -> set[str]:
            async with await connect(f"{above.url}/mcp?names=qualified") as peer:
                assert "tools" in peer.greeting["capabilities"]
                return {one["name"] for one in (await peer.request("tools/list")).result["tools"]}

        assert await listed() == set()
        async with bare_subserver(above, "one", tools=[tool("read")]):
            await ready(above, "one", tools=1)
            assert await listed() == {"one.read", "notifications_dropped"}
            said = parents((ax_url(above), "edge")) + ACCESS
            entered = running_node(tmp_path / "below", {}, said)
            below = await asyncio.to_thread(entered.__enter__)
            try:
                async with (
                    bare_subserver(below, "two", tools=[tool("read")]),
                    bare_subserver(above, "three", tools=[tool("read")]),
                ):
                    await ready(above, "three", tools=1)
                    await ready(above, "edge", tools=2)
                    names = {"one.read", "three.read", "edge.two.read"}
                    names |= {"notifications_dropped", "edge.notifications_dropped"}
                    assert await listed() == names
                    status = await asyncio.to_thread(above.admin, "/admin/status")
                    kinds = {one["segment"]: one["kind"] for one in status["links"]}
                    assert kinds == {"one": "leaf", "three": "leaf", "edge": "aggregator"}
                    text = (await asyncio.to_thread(above.cli, "status")).stdout
                    assert "aggregator" in next(line for line in text.splitlines() if "edge" in line)
                    assert "leaf" in next(line for line in text.splitlines() if "three" in line)
            finally:
                await asyncio.to_thread(entered.__exit__, None, None, None)
