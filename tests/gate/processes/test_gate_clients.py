"""Do clients that nobody here wrote live with the gate, on every front and in both eras?"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from tests.gate.held_calls import MARK, ActuatorLog, approve, gated_node
from tests.support.fleet import bridge
from tests.support.node_process import RunningNode

from mcp import Client as SdkClient
from mcp import StdioServerParameters

FRONTS = ["http legacy", "http 2026-07-28", "sse legacy", "stdio legacy", "stdio 2026-07-28"]
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path_factory.mktemp("sdk"), diary) as running:
        yield running


@contextlib.asynccontextmanager
async def client(node: RunningNode, front: str) -> AsyncIterator[SdkClient]:
    pipe, mode = front.split()
    where: Any = f"{node.url}/mcp"
    if pipe == "sse":
        where = sse_client(f"{node.url}/sse")
    elif pipe == "stdio":
        command = bridge(node)
        where = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))
    async with SdkClient(where, mode=mode) as opened:
        yield opened


@pytest.mark.req("AX-11.3-2")
@pytest.mark.req("AX-11.1-1")
@pytest.mark.parametrize("front", FRONTS)
async def test_an_unmodified_client_is_informed_and_completes_the_call(
    node: RunningNode, diary: ActuatorLog, front: str
) -> None:
    arguments = {"front": front}
    async with client(node, front) as opened:
        await opened.list_tools()  # so that results are held to their schemas
        for name in ("fire", "typed"):
            held = await opened.call_tool(f"plant__{name}", arguments)
            assert held.is_error
            assert "Not executed yet" in held.content[0].text
            assert held.meta is not None
            demand = held.meta[MARK]
            assert demand["arguments"] == arguments
            assert not [entry for entry in diary.read(name) if entry["arguments"] == arguments]
            approve(node, demand)
            done = await opened.call_tool(f"plant__{name}", arguments)
            assert not done.is_error
            assert done.structured_content == {"did": name}
            assert [entry["arguments"] for entry in diary.read(name)].count(arguments) == 1
