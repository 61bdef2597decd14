"""Does a 2026-07-28 client that opens pages hear of the gate in its own way, and learn nothing that would open it?"""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from tests.gate.held_calls import MARK, PAGES, ActuatorLog, Client, approve, gated_node, proof, token
from tests.support.node_process import RunningNode

KEY = "confirmation"


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path_factory.mktemp("pages"), diary) as running:
        yield running


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    with Client(node, capabilities=PAGES) as made:
        yield made


def answered(action: str) -> dict[str, Any]:
    return {KEY: {"action": action}}


def demand_of(node: RunningNode, arguments: dict[str, Any]) -> Any:
    """The same principal's view without pages: what a person's tool would sign."""
    with Client(node) as plain:
        return plain.held("plant.fire", arguments)


@pytest.mark.req("AX-11.3-12")
def test_the_gate_is_a_page_to_visit_and_the_answer_a_hint_to_look_again(
    client: Client, node: RunningNode, diary: ActuatorLog
) -> None:
    arguments = {"n": "page"}
    asked = client.call("plant.fire", arguments)
    assert asked["resultType"] == "input_required"
    (question,) = asked["inputRequests"].values()
    assert question["method"] == "elicitation/create"
    assert question["params"]["mode"] == "url"
    demand = demand_of(node, arguments)
    assert question["params"]["url"] == demand["approval_url"]
    assert question["params"]["message"]

    state = asked["requestState"]
    again = client.call("plant.fire", arguments, requestState=state, inputResponses=answered("accept"))
    assert again["resultType"] == "input_required"
    assert not diary.read("fire")

    approve(node, demand)
    done = client.call("plant.fire", arguments, requestState=again["requestState"], inputResponses=answered("accept"))
    assert done["structuredContent"] == {"did": "fire"}
    assert [entry["arguments"] for entry in diary.read("fire")] == [arguments]


@pytest.mark.req("AX-11.3-12")
def test_declining_takes_the_call_back(client: Client, node: RunningNode, diary: ActuatorLog) -> None:
    arguments = {"n": "decline"}
    asked = client.call("plant.fire", arguments)
    demand = demand_of(node, arguments)
    said = client.call("plant.fire", arguments, requestState=asked["requestState"], inputResponses=answered("decline"))
    assert said["isError"] is True
    assert said["_meta"][MARK]["status"] == "confirmation_denied"
    assert client.confirm(demand, proof(demand))["error"]["code"] == 32124
    assert not [entry for entry in diary.read() if entry["arguments"] == arguments]


@pytest.mark.req("AX-11.3-12")
def test_a_state_that_is_changed_foreign_or_of_another_call_is_refused(client: Client, node: RunningNode) -> None:
    arguments = {"n": "state"}
    state = client.call("plant.fire", arguments)["requestState"]
    head, body = state[:5], base64.urlsafe_b64decode(state[5:] + "==")
    changed = head + base64.urlsafe_b64encode(body[:-1] + bytes([body[-1] ^ 1])).decode().rstrip("=")
    for bad in (changed, head, head + "!!", head + "AAAA"):
        assert client.refused("plant.fire", arguments, requestState=bad)["code"] == -32602
    assert client.refused("plant.fire", {"n": "other"}, requestState=state)["code"] == -32602
    assert client.refused("plant.typed", arguments, requestState=state)["code"] == -32602
    with Client(node, token=token(node, "thief"), capabilities=PAGES) as thief:
        assert thief.refused("plant.fire", arguments, requestState=state)["code"] == -32602


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"form": {}}}, {"elicitation": {}}])
@pytest.mark.req("AX-11.3-12")
def test_clients_that_open_no_pages_get_the_plain_form(node: RunningNode, capabilities: dict[str, Any]) -> None:
    with Client(node, capabilities=capabilities) as client:
        client.held("plant.fire", {"n": "plain"})
    with Client(node, "legacy", capabilities={"elicitation": {"url": {}, "form": {}}}) as legacy:
        legacy.held("plant.fire", {"n": "plain"})


def test_a_server_that_asks_first_is_answered_under_the_same_approval(node: RunningNode, diary: ActuatorLog) -> None:
    """The server's own question is part of the call a person agreed to; its state is good for one more round."""
    arguments = {"n": "asks"}
    with Client(node, capabilities={"roots": {}}) as client:
        demand = client.held("plant.ask_first", arguments)
        approve(node, demand)
        asked = client.call("plant.ask_first", arguments)
        assert asked["resultType"] == "input_required"
        assert not diary.read("ask_first")
        client.held("plant.ask_first", arguments)
        client.held("plant.ask_first", arguments, requestState="made up")
        round_two = {"requestState": asked["requestState"], "inputResponses": {"r": {"roots": []}}}
        assert "isError" not in client.call("plant.ask_first", arguments, **round_two)
        assert len(diary.read("ask_first")) == 1
        assert client.call("plant.ask_first", arguments, **round_two)["isError"] is True
        assert len(diary.read("ask_first")) == 1
