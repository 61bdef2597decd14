"""Is nothing that cannot be undone done before a person agreed to this very call?"""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.gate.held_calls import (
    ADA,
    ANCHORED,
    ERAS,
    GATED,
    MARK,
    ActuatorLog,
    Client,
    anchor,
    approve,
    deny,
    gated_node,
    proof,
    token,
)
from tests.support.node_process import KNOWS_AX, RunningNode, wait_for


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path_factory.mktemp("gated"), diary) as running:
        yield running


@pytest.fixture(params=ERAS)
def client(request: pytest.FixtureRequest, node: RunningNode) -> Iterator[Client]:
    with Client(node, request.param) as made:
        yield made


def unique(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of no other test."""
    return {"by": request.node.name}


@pytest.mark.req("AX-11.3-2")
def test_a_held_call_says_what_is_to_be_confirmed(
    client: Client, node: RunningNode, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    arguments = {**unique(request), "z": [1, 2.5, {"é": None}], "a": True}
    result = client.call("plant.fire", arguments)
    demand = result["_meta"][MARK]
    assert result["isError"] is True
    assert result["structuredContent"] == demand
    assert result.get("resultType") == ("complete" if client.era == "modern" else None)
    assert (demand["status"], demand["tool"], demand["arguments"]) == ("confirmation_required", "plant.fire", arguments)
    assert demand["route"] == ["plant", "fire"]
    assert (demand["capability"]["mutable"], demand["capability"]["reversible"]) == (True, False)
    assert demand["approval_url"] == f"{node.operator_url}/approvals/{demand['confirmation_id']}"
    assert {"expires_at", "nonce", "call_digest"} <= demand.keys()
    (text,) = result["content"]
    assert "Not executed yet" in text["text"]
    assert demand["confirmation_id"] in text["text"]
    assert not diary.read("fire")


@pytest.mark.req("AX-11.3-2")
def test_a_tool_with_an_output_schema_is_described_in_meta_and_text_alone(client: Client, diary: ActuatorLog) -> None:
    result = client.call("plant.typed")
    assert "structuredContent" not in result
    assert result["_meta"][MARK]["status"] == "confirmation_required"
    assert not diary.read("typed")


@pytest.mark.req("AX-11.3-1")
@pytest.mark.parametrize("name", ["nudge", "look", "mutable_reversible", "fixed_final", "fixed_reversible"])
def test_reversible_calls_are_not_held(
    client: Client, diary: ActuatorLog, name: str, request: pytest.FixtureRequest
) -> None:
    before = len(diary.read(name))
    assert client.call(f"plant.{name}", unique(request))["structuredContent"] == {"did": name}
    assert len(diary.read(name)) == before + 1


@pytest.mark.req("AX-11.3-11")
def test_the_identical_call_runs_once_after_approval(
    client: Client, node: RunningNode, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    arguments = unique(request)
    demand = client.held("plant.fire", arguments)
    approve(node, demand)
    assert client.call("plant.fire", arguments)["structuredContent"] == {"did": "fire"}
    assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1
    again = client.held("plant.fire", arguments)
    assert again["confirmation_id"] != demand["confirmation_id"]
    assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1


@pytest.mark.req("AX-11.3-11")
@pytest.mark.req("AX-11.3-13")
def test_an_approval_is_good_for_no_other_call(
    node: RunningNode, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    arguments = {**unique(request), "n": 1}
    with Client(node, token=token(node, "first")) as first, Client(node, token=token(node, "second")) as second:
        demand = first.held("plant.fire", arguments)
        approve(node, demand)
        others = [
            first.held("plant.fire", {**arguments, "n": 2}),
            first.held("plant.fire", {**arguments, "n": "1"}),
            first.held("plant.hold", arguments),
            second.held("plant.fire", arguments),
        ]
        assert demand["confirmation_id"] not in [other["confirmation_id"] for other in others]
        assert not [entry for entry in diary.read() if entry["arguments"].get("by") == arguments["by"]]
        reordered = dict(reversed(arguments.items()))
        assert first.call("plant__fire", reordered)["structuredContent"] == {"did": "fire"}


@pytest.mark.req("AX-11.3-11")
def test_of_twenty_identical_calls_at_once_one_runs(
    node: RunningNode, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    arguments = unique(request)
    with Client(node) as client:
        approve(node, client.held("plant.fire", arguments))

    def call(_: int) -> Any:
        with Client(node) as one:
            return one.call("plant.fire", arguments)

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(call, range(20)))
    assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1
    ran = [result for result in results if not result.get("isError")]
    held = {result["_meta"][MARK]["confirmation_id"] for result in results if result.get("isError")}
    assert (len(ran), len(held)) == (1, 1)


@pytest.mark.req("AX-11.3-11")
def test_a_denied_call_is_answered_so_until_it_expires(
    client: Client, node: RunningNode, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    arguments = unique(request)
    demand = client.held("plant.fire", arguments)
    deny(node, demand, "not on a Friday")
    for _ in range(2):
        result = client.call("plant.fire", arguments)
        assert result["isError"] is True
        said = result["_meta"][MARK]
        assert (said["status"], said["confirmation_id"]) == ("confirmation_denied", demand["confirmation_id"])
        assert "not on a Friday" in result["content"][0]["text"]
    assert client.confirm(demand, proof(demand))["error"]["code"] == 32125
    assert not [entry for entry in diary.read() if entry["arguments"] == arguments]


@pytest.mark.req("AX-11.3-3")
def test_the_maker_of_the_call_gets_its_result_by_confirming(
    client: Client, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    arguments = unique(request)
    demand = client.held("plant.fire", arguments)
    unknown = {**demand, "confirmation_id": str(uuid.uuid4())}
    error = client.confirm(unknown, proof(unknown))["error"]
    assert (error["code"], error["message"]) == (32120, "confirmation_unknown")
    assert arguments not in [entry["arguments"] for entry in diary.read("fire")]
    answer = client.confirm(demand, {"type": "operator_signature", "token": proof(demand)})
    assert answer["result"]["structuredContent"] == {"did": "fire"}
    assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1
    assert client.confirm(demand, proof(demand))["error"]["code"] == 32122


@pytest.mark.req("AX-11.3-3")
def test_another_client_can_confirm_and_does_not_see_the_result(
    client: Client, node: RunningNode, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    arguments = unique(request)
    demand = client.held("plant.fire", arguments)
    with Client(node, client.era, token(node, f"other-{client.era}")) as other:
        answer = other.confirm(demand, proof(demand))
        assert {key: value for key, value in answer["result"].items() if key != "resultType"} == {"status": "confirmed"}
        assert not [entry for entry in diary.read() if entry["arguments"] == arguments]
        assert other.ask("mcpax/confirm", {"confirmation_id": "nobody", "proof": "x.y.z"})["error"]["code"] == 32120
    assert client.call("plant.fire", arguments)["structuredContent"] == {"did": "fire"}


@pytest.mark.req("AX-11.3-4")
def test_the_same_call_while_it_waits_is_the_same_confirmation(client: Client, request: pytest.FixtureRequest) -> None:
    arguments = unique(request)
    first, again = client.held("plant.fire", arguments), client.held("plant.fire", arguments)
    assert (first["confirmation_id"], first["expires_at"]) == (again["confirmation_id"], again["expires_at"])


BAD_ARGUMENTS = {
    "duplicate key": b'{"a":1,"a":2}',
    "lone surrogate": b'{"a":"\\ud800"}',
    "integer too large": b'{"a":9007199254740993}',
    "number with lost digits": b'{"a":0.1000000000000000055}',
    "no object": b"[1]",
}


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize("what", BAD_ARGUMENTS)
def test_arguments_that_mean_different_things_to_different_readers_are_refused(
    node: RunningNode, diary: ActuatorLog, what: str
) -> None:
    stamp = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"plant.fire","arguments":%b,"_meta":%b}}'
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "plant.fire"}
    done, waiting = len(diary), waiting_ids(node)
    with Client(node) as client:
        answer = client.wire.post(body % (BAD_ARGUMENTS[what], json.dumps(stamp).encode()), headers).message
    assert answer["error"]["code"] == -32602
    assert len(diary) == done
    assert waiting_ids(node) == waiting


def waiting_ids(node: RunningNode) -> list[str]:
    return [one["id"] for one in node.admin("/approvals?status=pending")["approvals"]]


@pytest.mark.req("AX-11.3-14")
def test_a_changed_definition_voids_what_was_asked(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        pending, approved = client.held("plant.fire", {"n": 1}), client.held("plant.fire", {"n": 2})
        approve(node, approved)
        client.call("plant.change")
        node.wait_link("plant", {"state": "ready"})

        def is_void() -> bool:
            return bool(client.confirm(pending, proof(pending))["error"]["code"] == 32124)

        wait_for(is_void)
        assert client.held("plant.fire", {"n": 2})["confirmation_id"] != approved["confirmation_id"]
        assert not diary.read("fire")


@pytest.mark.req("AX-11.3-9")
def test_a_proof_of_somebody_not_entitled_to_the_tool_is_refused(
    node: RunningNode, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    from tests.gate.held_calls import BOB

    with Client(node) as client:
        demand = client.held("plant.fire", unique(request))
        error = client.confirm(demand, proof(demand, BOB))["error"]
        assert (error["code"], error["data"]["reason"]) == (32123, "not_entitled")
    assert not [entry for entry in diary.read() if entry["arguments"] == unique(request)]


@pytest.mark.req("AX-11.3-1")
def test_an_open_gate_holds_nothing_but_what_also_names(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    extra = ANCHORED.replace('mode = "gated"', 'mode = "open"\nalso = ["plant.nudge"]')
    with gated_node(tmp_path / "node", diary, extra) as node, Client(node) as client:
        for name in ("fire", "silent", "mutable_final"):
            assert client.call(f"plant.{name}")["structuredContent"] == {"did": name}
        client.held("plant.nudge")
        assert not diary.read("nudge")


@pytest.mark.req("AX-11.3-1")
def test_without_anybody_who_may_approve_calls_are_held_and_the_way_out_is_named(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, GATED) as node, Client(node) as client:
        result = client.call("plant.fire")
        assert result["_meta"][MARK]["status"] == "confirmation_required"
        assert "`interlock status` tells its operator" in result["content"][0]["text"]

        def said() -> str:
            return " ".join(node.cli("status").stdout.split())

        assert "can approve calls yet (6 tools need it). Run interlock init: it makes a key" in said()
        gate = node.admin("/admin/status")["gate"]
        assert (gate["mode"], gate["without_approver"]) == ("gated", gate["tools"])
        assert gate["tools"] > gate["unclassified"] == 1
        demand = result["_meta"][MARK]
        assert client.confirm(demand, proof(demand))["error"]["code"] == 32123
        node.config.write_text(node.config.read_text() + anchor("ada", ADA, "*"))
        (waiting,) = wait_for(lambda: node.admin("/approvals?kind=enrolment")["approvals"])
        step = f"interlock approve {waiting['id'][:8]} --code CODE enrols ada, with the setup code on the terminal"
        assert f"Run {step.replace(' enrols', ': it enrols')}" in said()
        assert f"interlock approve {waiting['id'][:8]} --code CODE" in node.cli("doctor").stdout
        assert step in " ".join(node.cli("approve", demand["confirmation_id"]).stderr.split())
        assert not diary.read("fire")


@pytest.mark.req("AX-11.2-1")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mode", ["gated", "open"])
def test_only_what_changes_something_for_good_is_flagged(tmp_path: Path, era: str, mode: str) -> None:
    extra = ANCHORED.replace('mode = "gated"', f'mode = "{mode}"')
    with (
        gated_node(tmp_path / "node", ActuatorLog(tmp_path / "d"), extra, era) as node,
        Client(node, era, capabilities=KNOWS_AX) as client,
    ):
        listed = {tool["name"]: tool["_meta"] for tool in client.ask("tools/list", {})["result"]["tools"]}
    flagged = {name for name, meta in listed.items() if meta.get("x-mcpax-safety") == "irreversible_mutable"}
    four = {f"plant.{one}_{other}" for one in ("mutable", "fixed") for other in ("reversible", "final")}
    assert flagged & four == {"plant.mutable_final"}
    assert {"plant.fire", "plant.silent"} <= flagged
    gated = {name for name, meta in listed.items() if meta.get("x-mcpax-gated") is True}
    assert gated == (flagged if mode == "gated" else set())
