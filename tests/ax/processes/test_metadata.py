"""What only MCP-AX says of a tool is told to those above when it changes, and to no client (MCP-AX 6.3, 13.2).

The tree is root - edge. At edge stand a bare leaf with a short heartbeat interval and an unmodified server.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.blocking_client import call, hearing, told
from tests.ax.tree import chain
from tests.servers.start import raw, serving
from tests.support.node_process import KNOWS_AX, RunningNode, Wire, wait_for

INTERVAL_S = 2.0
CHANGED = "notifications/tools/list_changed"


class Server:
    """An unmodified server that can go and come back where it was."""

    def __init__(self) -> None:
        self.start()

    def start(self, port: int = 0) -> None:
        self._running = serving(raw("all", "--era", "modern"), port)
        self.url = self._running.__enter__()

    def stop(self) -> None:
        self._running.__exit__(None, None, None)

    def come_back(self) -> None:
        self.start(urlsplit(self.url).port or 0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[list[RunningNode]]:
    with chain(tmp_path_factory.mktemp("metadata"), ["edge"], {"plain": {"url": server.url}}) as started:
        yield started


def _shown(node: RunningNode, name: str) -> dict[str, Any]:
    """What the list says of a tool in `_meta`; nothing where it has none."""
    with Wire(node, "/mcp?names=qualified") as wire:
        tools = wire.modern("tools/list", capabilities=KNOWS_AX).message["result"]["tools"]
    return next((one["_meta"] for one in tools if one["name"] == name), {})


async def _until(node: RunningNode, name: str, seconds: float = 20.0, **wanted: str) -> dict[str, Any]:
    """Until the capability of the tool has these values."""

    def look() -> dict[str, Any] | None:
        meta = _shown(node, name)
        said = meta.get("x-mcpax-capability", {})
        return meta if all(said.get(key) == value for key, value in wanted.items()) else None

    found: dict[str, Any] = await asyncio.to_thread(wait_for, look, seconds)
    return found


@contextlib.asynccontextmanager
async def _told_nothing(nodes: list[RunningNode]) -> AsyncIterator[None]:
    """A client of the root whose prompt cache is nobody's to spoil: it is told only of what comes after this."""
    root, edge = nodes
    async with hearing(root) as heard:
        yield
        segment = f"herald-{uuid.uuid4().hex[:8]}"
        async with bare_subserver(edge, segment, tools=[tool("read")]):
            await told(heard, CHANGED)
            assert await asyncio.to_thread(_shown, root, f"edge.{segment}.read")


@pytest.mark.req("AX-13.2-1")
async def test_a_leaf_that_misses_heartbeats_is_degraded_at_the_root_and_whole_again_with_the_next(
    nodes: list[RunningNode],
) -> None:
    root, edge = nodes
    interval_ms = int(INTERVAL_S * 1000)
    async with bare_subserver(edge, "faint", tools=[tool("read")], heartbeat_interval_ms=interval_ms) as leaf:
        await _until(root, "edge.faint.read", availability="always")
        async with _told_nothing(nodes):
            leaf.answers = False
            await _until(edge, "faint.read", availability="degraded")
            meta = await _until(root, "edge.faint.read", INTERVAL_S, availability="degraded")
            assert meta["x-mcpax-declared"] == {"availability": "always"}
            leaf.answers = True
            await leaf.beat()
            meta = await _until(root, "edge.faint.read", INTERVAL_S, availability="always")
            assert "x-mcpax-declared" not in meta
        await leaf.beat()
        assert (await call(root, "edge__faint__read"))["result"]["content"][0]["text"] == "read ran"


async def test_a_leaf_that_is_cut_off_is_degraded_at_the_root_until_it_is_back(nodes: list[RunningNode]) -> None:
    root, edge = nodes
    async with bare_subserver(edge, "torn", tools=[tool("read")]) as leaf:
        await _until(root, "edge.torn.read", availability="always")
        async with _told_nothing(nodes):
            leaf.cut()
            await _until(root, "edge.torn.read", INTERVAL_S, availability="degraded")
            returned = bare_subserver(edge, "torn", tools=[tool("read")], subserver_id=leaf.subserver_id)
            async with returned:
                await _until(root, "edge.torn.read", INTERVAL_S, availability="always")


async def test_an_unmodified_server_that_is_away_is_degraded_at_the_root_until_it_is_back(
    nodes: list[RunningNode], server: Server
) -> None:
    root, edge = nodes
    await _until(root, "edge.plain.exact", availability="always")
    async with _told_nothing(nodes):
        server.stop()
        await call(root, "edge__plain__exact")  # somebody has to notice
        await _until(edge, "plain.exact", availability="degraded")
        await _until(root, "edge.plain.exact", INTERVAL_S, availability="degraded")
        server.come_back()
        await _until(edge, "plain.exact", availability="always")
        await _until(root, "edge.plain.exact", INTERVAL_S, availability="always")


async def test_metadata_that_a_leaf_changes_is_read_again_everywhere_and_reported_to_no_client(
    nodes: list[RunningNode],
) -> None:
    root, edge = nodes

    def read(latency_class: str) -> dict[str, Any]:
        return tool("read", _meta={"x-mcpax-capability": {"mutable": False, "latency_class": latency_class}})

    async with bare_subserver(edge, "ageing", tools=[read("fast")]) as leaf:
        await _until(root, "edge.ageing.read", latency_class="fast")
        async with _told_nothing(nodes):
            leaf.tools = [read("slow")]
            await leaf.notify(CHANGED)
            await _until(root, "edge.ageing.read", INTERVAL_S, latency_class="slow")
