"""Do gates and budgets act on what a call means, and not on the verb it travels by? (MCP-AX 1.2)"""

from collections.abc import Iterator

import pytest
from tests.gate.held_calls import ANCHORED, ActuatorLog, approve, gated_node
from tests.gate.processes.test_gate_clients import client
from tests.support.node_process import RunningNode

MUTABLE = "max_mutable_calls_per_session"
LIMITED = f'[[access]]\nwho = ["local"]\nbudget = {{ {MUTABLE} = 100 }}\n'
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path_factory.mktemp("meaning"), diary, ANCHORED + LIMITED) as running:
        yield running


def used(node: RunningNode) -> int:
    found = [one for one in node.admin("/admin/status")["budgets"] if one["name"] == "local"]
    return sum(one["limits"][MUTABLE]["used"] for one in found)


@pytest.mark.req("AX-1.2-3")
@pytest.mark.parametrize("front", ["http legacy", "http 2026-07-28", "stdio legacy", "stdio 2026-07-28"])
async def test_of_tools_behind_one_url_only_what_cannot_be_undone_is_held_and_only_changes_are_counted(
    node: RunningNode, diary: ActuatorLog, front: str
) -> None:
    arguments = {"front": front}
    async with client(node, front) as opened:
        before = used(node)
        looked = await opened.call_tool("plant__look", arguments)
        assert not looked.is_error
        assert used(node) == before
        nudged = await opened.call_tool("plant__nudge", arguments)
        assert not nudged.is_error
        assert used(node) == before + 1
        held = await opened.call_tool("plant__fire", arguments)
        assert held.is_error
        assert used(node) == before + 1
        assert not [entry for entry in diary.read("fire") if entry["arguments"] == arguments]
        assert held.meta is not None
        approve(node, held.meta["x-mcpax-confirmation"])
        assert not (await opened.call_tool("plant__fire", arguments)).is_error
        assert used(node) == before + 2
