"""Nodes below nodes: what a server at the end offers is listed, called and told at the root, through every hop."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client
from tests.interaction.ax.tree import chain
from tests.interaction.harness import RunningNode, Wire, wait_for
from tests.servers.start import raw

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
MODES = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningNode]]:
    servers = {"bench": {"command": raw("all")}}
    with chain(tmp_path_factory.mktemp("chain"), ["edge", "gate"], servers) as started:
        wait_for(lambda: "edge__gate__bench__echo" in names(started[0]))
        yield started


def names(node: RunningNode) -> set[str]:
    with Wire(node) as wire:
        listed = wire.modern("tools/list").message
        return {tool["name"] for tool in listed["result"]["tools"]}


@pytest.mark.parametrize("mode", MODES)
async def test_a_tool_two_hops_down_is_listed_and_called_by_a_client_that_knows_no_tree(
    nodes: list[RunningNode], mode: str
) -> None:
    async with Client(f"{nodes[0].url}/mcp", mode=mode) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        assert listed["edge__gate__bench__echo"].meta["x-mcpax-hops"] == 3
        answer = await client.call_tool("edge__gate__bench__echo", {"text": "through"})
        assert answer.structured_content == {"text": "through"}
