"""Does the gate hold a call that comes through an AQL surface as it holds a flat one, and let it go once?"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.gate.held_calls import ERAS, PAGES, ActuatorLog, Client, approve, gated_node, proof
from tests.support.node_process import RunningNode

PATH = "/mcp/aql-single"


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path_factory.mktemp("aql"), diary) as running:
        yield running


def fire(arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"operation": "plant__fire", "params": {"arguments": arguments, **more}}


def demand_of(node: RunningNode, arguments: dict[str, Any]) -> Any:
    """What a flat client of the same principal is told of the same call."""
    with Client(node) as plain:
        return plain.held("plant.fire", arguments)


def fired(diary: ActuatorLog, arguments: dict[str, Any]) -> int:
    return sum(entry["arguments"] == arguments for entry in diary.read("fire"))


@pytest.mark.req("AQL-C.map-13", "AX-11.1-1")
@pytest.mark.parametrize("era", ERAS)
def test_an_approved_call_runs_once_and_no_token_opens_the_gate(
    node: RunningNode, diary: ActuatorLog, era: str
) -> None:
    arguments = {"n": era}
    with Client(node, era, path=PATH) as client:

        def send(**more: Any) -> Any:
            return client.call("mcp_aql", fire(arguments, **more))["structuredContent"]

        held = send()["error"]
        assert held["code"] == "CONFIRMATION_REQUIRED"
        assert held["details"].keys() == {"operation", "danger_level", "confirmation_id", "approval_url", "expires_at"}
        demand = demand_of(node, arguments)
        assert held["details"]["confirmation_id"] == demand["confirmation_id"]
        assert send(_confirmation="conf_" + "a" * 43)["error"]["details"] == held["details"]
        assert fired(diary, arguments) == 0
        approve(node, demand)
        assert send() == {"success": True, "data": {"did": "fire"}}
        again = send()["error"]
        assert again["code"] == "CONFIRMATION_REQUIRED"
        assert again["details"]["confirmation_id"] != demand["confirmation_id"]
        assert fired(diary, arguments) == 1


@pytest.mark.req("AQL-C.map-13", "AX-11.1-1")
@pytest.mark.parametrize("era", ERAS)
def test_a_confirmation_with_a_proof_runs_the_call_once(node: RunningNode, diary: ActuatorLog, era: str) -> None:
    arguments = {"n": f"confirmed-{era}"}
    with Client(node, era, path=PATH) as client:
        client.call("mcp_aql", fire(arguments))
        demand = demand_of(node, arguments)
        assert client.confirm(demand, proof(demand))["result"]["structuredContent"] == {"did": "fire"}
        assert client.call("mcp_aql", fire(arguments))["structuredContent"]["error"]["code"] == "CONFIRMATION_REQUIRED"
        assert fired(diary, arguments) == 1


@pytest.mark.req("AQL-C.map-13", "AX-11.1-1")
def test_a_client_that_opens_pages_is_sent_to_a_page_but_not_from_a_batch(
    node: RunningNode, diary: ActuatorLog
) -> None:
    arguments = {"n": "page"}
    with Client(node, capabilities=PAGES, path=PATH) as client:
        asked = client.call("mcp_aql", fire(arguments))
        assert asked["resultType"] == "input_required"
        (question,) = asked["inputRequests"].values()
        demand = demand_of(node, arguments)
        assert (question["params"]["mode"], question["params"]["url"]) == ("url", demand["approval_url"])
        batch = client.call("mcp_aql", {"operations": [fire(arguments)]})["structuredContent"]
        error = batch["halted_at"]["result"]["error"]
        assert error["code"] == "CONFIRMATION_REQUIRED"
        assert error["details"]["confirmation_id"] == demand["confirmation_id"]
        approve(node, demand)
        retried = {"requestState": asked["requestState"], "inputResponses": {"confirmation": {"action": "accept"}}}
        done = client.call("mcp_aql", fire(arguments), **retried)
        assert done["structuredContent"] == {"success": True, "data": {"did": "fire"}}
        assert fired(diary, arguments) == 1
