"""Is nobody asked for a call that could not run, and nothing charged for one that waits? (MCP-AX 11.4)"""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.gate.held_calls import ANCHORED, ERAS, ActuatorLog, Client, approve, gated_node, proof, token
from tests.support.node_process import RunningNode

MUTABLE = "max_mutable_calls_per_session"
POOR = f'[[access]]\nwho = ["client:poor-*"]\nbudget = {{ {MUTABLE} = 1 }}\n'


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path_factory.mktemp("spent"), diary, ANCHORED + POOR) as running:
        yield running


class Poor(Client):
    """One of its own budget: one call that changes something."""

    def __init__(self, node: RunningNode, era: str) -> None:
        name = f"poor-{uuid.uuid4().hex[:8]}"
        self.who, self.token = f"client:{name}", token(node, name)
        super().__init__(node, era, self.token)


@pytest.fixture(params=ERAS)
def poor(request: pytest.FixtureRequest, node: RunningNode) -> Iterator[Poor]:
    with Poor(node, request.param) as made:
        yield made


def used(node: RunningNode, client: Poor) -> int:
    found = [one for one in node.admin("/admin/status")["budgets"] if one["name"] == client.who]
    return sum(one["limits"][MUTABLE]["used"] for one in found)


@pytest.mark.req("AX-11.4-4")
def test_a_call_that_waits_costs_nothing_and_is_charged_when_it_runs(
    node: RunningNode, poor: Poor, diary: ActuatorLog
) -> None:
    arguments = {"by": poor.who}
    demand = poor.held("plant.fire", arguments)
    assert poor.held("plant.fire", arguments)["confirmation_id"] == demand["confirmation_id"]
    assert used(node, poor) == 0
    approve(node, demand)
    assert used(node, poor) == 0
    assert poor.call("plant.fire", arguments)["structuredContent"] == {"did": "fire"}
    assert used(node, poor) == 1
    assert poor.refused("plant.fire", arguments)["message"] == "budget_exceeded"
    assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1


@pytest.mark.req("AX-11.4-4")
def test_no_approval_is_requested_for_a_call_beyond_the_budget(node: RunningNode, poor: Poor) -> None:
    poor.call("plant.nudge", {"by": poor.who})
    refused = poor.refused("plant.fire", {"by": poor.who})
    assert refused["data"]["budget"] == MUTABLE
    waiting = node.admin("/approvals")["approvals"]
    assert [one for one in waiting if one["requested_by"] == poor.who] == []


def test_an_approval_is_not_used_up_by_a_call_that_the_budget_refuses(
    node: RunningNode, poor: Poor, diary: ActuatorLog
) -> None:
    arguments = {"by": poor.who}
    demand = poor.held("plant.fire", arguments)
    poor.call("plant.nudge", arguments)
    answer = poor.confirm(demand, proof(demand))
    assert answer["error"]["message"] == "budget_exceeded"
    assert node.admin(f"/approvals/{demand['confirmation_id']}")["status"] == "approved"
    assert arguments not in [entry["arguments"] for entry in diary.read("fire")]


def test_of_identical_calls_at_once_one_runs_and_one_is_charged(
    node: RunningNode, poor: Poor, diary: ActuatorLog
) -> None:
    arguments = {"by": poor.who}
    approve(node, poor.held("plant.fire", arguments))

    def call(_: int) -> Any:
        with Client(node, poor.era, poor.token) as one:
            return one.ask("tools/call", {"name": "plant.fire", "arguments": arguments})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(call, range(20)))
    assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1
    assert sum(not answer.get("result", {"isError": True}).get("isError") for answer in answers) == 1
    assert used(node, poor) == 1
