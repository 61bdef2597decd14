"""The route and its cursor (MCP-AX 7.2): the draft's own example, and names that tempt to cut them up."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.blocking_client import listed
from tests.ax.link_tap import link_tap
from tests.ax.tree import ACCESS, ax_url, chain, parents
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import HttpPeer

GATEWAY = Path(__file__).parents[1] / "gateway_leaf.py"
ROUTE = ["infra", "edge", "stm32h7", "dma2d_status"]
PATIENCE_S = 20.0


@contextlib.asynccontextmanager
async def beside(entered: Any) -> AsyncIterator[RunningNode]:
    """A node that is started and stopped beside the loop, on which the taps live."""
    node = await asyncio.to_thread(entered.__enter__)
    try:
        yield node
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)


@contextlib.contextmanager
def gateway(url: str, state: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, str(GATEWAY), url, str(state)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def until_listed(node: RunningNode, *names: str) -> dict[str, dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        while not set(names) <= (found := await listed(node)).keys():
            pass
    return found


@pytest.mark.req("AX-7.2-1", "AX-7.2-3", "AX-7.2-5", "AX-7.2-6")
@pytest.mark.parametrize("front", ["modern", "legacy"])
async def test_the_walk_through_of_the_draft(tmp_path: Path, front: str) -> None:
    async with (
        beside(running_node(tmp_path / "infra", {}, '[ax]\nroot_segment = "infra"\n' + ACCESS)) as root,
        link_tap(ax_url(root)) as first,
        beside(running_node(tmp_path / "edge", {}, parents((first.url, "edge")) + ACCESS)) as edge,
        link_tap(ax_url(edge)) as second,
    ):
        with gateway(second.url, tmp_path / "gateway"):
            await until_listed(root, ".".join(ROUTE))
            connect = HttpPeer.modern_ if front == "modern" else HttpPeer.legacy
            async with await connect(f"{root.url}/mcp") as peer:
                reply = await peer.call(".".join(ROUTE))
    for link, cursor, name in ((first, 1, "stm32h7.dma2d_status"), (second, 2, "dma2d_status")):
        params = (await link.heard("down", "tools/call"))["params"]
        assert params["name"] == name
        assert (params["_meta"]["x-mcpax-route"], params["_meta"]["x-mcpax-cursor"]) == (ROUTE, cursor)
        assert ROUTE[cursor] == link.up[0]["params"]["segment"]  # the receiver finds itself at the cursor
    assert reply.result["structuredContent"] == {"route": ROUTE, "cursor": 3}


@pytest.mark.req("AX-7.2-2")
async def test_segments_that_look_like_separators_or_numbers_are_routed_right(tmp_path: Path) -> None:
    """`a__b` and `b` below `a` are different, as are `0`, `00` and `-`."""
    odd = ["0", "00", "-", "--", "a__b", "b", "_", "a-b", "63" * 31]
    with chain(tmp_path, ["a", "a__b"], {}) as nodes:
        async with contextlib.AsyncExitStack() as stack:
            for segment in odd:

                def answer(params: dict[str, Any], own: str = segment) -> Any:
                    return {"content": [], "structuredContent": {"leaf": own, "tool": params["name"]}}

                offered = [tool(name) for name in odd]
                await stack.enter_async_context(bare_subserver(nodes[-1], segment, tools=offered, call=answer))
            wanted = [f"a.a__b.{segment}.{name}" for segment in odd for name in odd]
            found = await until_listed(nodes[0], *wanted)
            assert set(wanted) == {name for name in found if not name.endswith("notifications_dropped")}
            async with await HttpPeer.modern_(f"{nodes[0].url}/mcp") as peer:
                tools = (await peer.request("tools/list")).result["tools"]
                aliases = {one["_meta"].get("x-mcpax-name", one["name"]): one["name"] for one in tools}
                for segment in odd:
                    for name in odd:
                        dotted = f"a.a__b.{segment}.{name}"
                        for spelled in (dotted, aliases[dotted]):
                            reply = await peer.call(spelled)
                            assert reply.result["structuredContent"] == {"leaf": segment, "tool": name}, spelled
