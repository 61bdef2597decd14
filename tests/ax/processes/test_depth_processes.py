"""Eight nodes below one another, each a process of its own: list, call and notification through all of them."""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.blocking_client import listed
from tests.ax.tree import chain
from tests.support.node_process import RunningNode, Wire
from tests.support.peers import HttpPeer

SEGMENTS = [f"s{number}" for number in range(2, 9)]
CALLS = 50
PATIENCE_S = 20.0


def p50_ms(node: RunningNode, name: str) -> float:
    times = []
    with Wire(node) as wire:
        for _ in range(CALLS):
            began = time.perf_counter()
            assert "result" in wire.modern("tools/call", {"name": name, "arguments": {}}).message
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


@pytest.mark.req("AX-5.3-2")
async def test_eight_nodes_in_eight_processes(
    tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    extension = {"extensions": {"dev.interlock/ax": {}}}
    with chain(tmp_path, SEGMENTS, {}) as nodes:
        async with bare_subserver(nodes[-1], "leaf", tools=[tool("read")]) as leaf:
            name = ".".join((*SEGMENTS, "leaf", "read"))
            async with asyncio.timeout(PATIENCE_S):
                while name not in (found := await listed(nodes[0])):
                    pass
            assert found[name]["_meta"]["x-mcpax-hops"] == len(nodes) == 8
            async with await HttpPeer.modern_(f"{nodes[0].url}/mcp", extension, judged=False) as peer:
                peer.begin("subscriptions/listen", {"notifications": {}}, meta={"x-mcpax-events": True})
                await peer.hear("notifications/subscriptions/acknowledged")
                assert (await peer.call(name)).result["content"][0]["text"] == "read ran"
                await leaf.notify("notifications/vendor/rang", {"n": 1})
                told = (await peer.hear("notifications/vendor/rang"))["params"]["_meta"]
                assert told["x-mcpax-origin"] == name.removesuffix(".read")
            near = await asyncio.to_thread(p50_ms, nodes[-1], "leaf.read")
            far = await asyncio.to_thread(p50_ms, nodes[0], name)
            added = (far - near) / (len(nodes) - 1)
            record_testsuite_property("added p50 per hop, ms", round(added, 3))
            assert 0 < added < 500  # far from what bench/ measures, and all that a busy machine lets a test say
