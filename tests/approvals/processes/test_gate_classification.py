"""Are many tools classified with one signature, each entry judged by itself, and names heard that contradict?"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.processes.test_gate_definitions import Operator
from tests.gate.held_calls import ADA, BOB, GATED, MALLORY, ActuatorLog, Client, anchor, gated_node, proof
from tests.support.node_process import RunningNode, wait_for

ANCHORS = GATED + anchor("ada", ADA, "*") + anchor("bob", BOB, "plant.b*")


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, operator: Operator) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("classes")
    own_key = operator.anchor.replace("name = 'ada'", "name = 'ada-here'")
    with gated_node(folder, ActuatorLog(folder / "diary.jsonl"), ANCHORS + own_key, definitions="notify") as running:
        yield running


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    with Client(node) as made:
        yield made


def offer(node: RunningNode, client: Client, tool: str, what: str = "plain") -> None:
    client.call("plant.change", {"tool": tool, "what": what})
    wait_for(lambda: "error" not in node.admin(f"/admin/tools/plant.{tool}"), 20)


def proposals(node: RunningNode) -> dict[str, Any]:
    return {one["tool"]: one for one in node.admin("/admin/classification")["tools"]}


def entry(node: RunningNode, tool: str, tool_class: str) -> dict[str, str]:
    return {"tool": tool, "digest": proposals(node)[tool]["digest"], "class": tool_class}


def sign(node: RunningNode, entries: list[dict[str, str]], signer: Any = ADA, **changes: Any) -> Any:
    id = str(uuid.uuid4())
    rows = sorted(entries, key=lambda one: one["tool"])
    text = json.dumps(
        {"v": 1, "kind": "classification", "id": id, "entries": rows}, sort_keys=True, separators=(",", ":")
    )
    demand = {
        "aggregator_id": node.admin("/admin/classification")["aggregator_id"],
        "confirmation_id": id,
        "call_digest": hashlib.sha256(text.encode()).hexdigest(),
    }
    return node.admin(
        "/admin/classification", "POST", {"id": id, "entries": entries, "proof": proof(demand, signer, **changes)}
    )


def is_held(client: Client, tool: str) -> bool:
    return bool(client.call(tool).get("isError"))


def tools_of(answer: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    return [one["tool"] for one in answer["classified"]], {one["tool"]: one["why"] for one in answer["left_out"]}


def test_one_signature_classifies_many_and_names_what_it_left_out(node: RunningNode, client: Client) -> None:
    for tool in ("a_list", "b_list", "b_mend", "b_gone"):
        offer(node, client, tool)
    rows = proposals(node)
    assert {rows[f"plant.{tool}"]["class"] for tool in ("a_list", "b_list")} == {"read_only"}
    assert (rows["plant.b_mend"]["class"], rows["plant.b_mend"]["by"]) == ("irreversible", "nothing")
    waiting = client.held("plant.b_list")  # a question that waits is answered too
    entries = [
        entry(node, "plant.a_list", "read_only"),
        entry(node, "plant.b_list", "read_only"),
        entry(node, "plant.b_mend", "reversible"),
        entry(node, "plant.b_gone", "read_only"),
        {"tool": "plant.nowhere", "digest": "0" * 64, "class": "read_only"},
    ]
    offer(node, client, "b_gone", "description")
    wait_for(lambda: "plant.b_gone" not in proposals(node), 20)
    for signer, changes in ((MALLORY, {}), (ADA, {"call_digest": "0" * 64}), (ADA, {"aud": "x"}), (ADA, {"exp": 1})):
        assert sign(node, entries, signer, **changes)["error"] == "proof_invalid"
    assert sign(node, [*entries, entries[0]])["error"] == "invalid_body"
    done, left = tools_of(sign(node, entries, BOB))
    assert done == ["plant.b_list", "plant.b_mend"]
    assert left == {
        "plant.a_list": "the signer may not approve it",
        "plant.b_gone": "its definition changed since",
        "plant.nowhere": "no such tool is listed",
    }
    wait_for(lambda: not is_held(client, "plant.b_list"), 20)
    assert not is_held(client, "plant.b_mend")
    assert is_held(client, "plant.a_list")
    assert node.admin(f"/approvals/{waiting['confirmation_id']}")["status"] == "done"
    assert tools_of(sign(node, entries[:1]))[0] == ["plant.a_list"]
    wait_for(lambda: not is_held(client, "plant.a_list"), 20)
    records = node.admin("/admin/audit?after=0&limit=1000")["records"]
    ruled = {(one["method"], one["tool"], one["answer"], one["anchor"]) for one in records if one.get("answer")}
    assert ruled == {
        ("approvals/approve", "plant.b_list", "read_only", "bob"),
        ("approvals/classify", "plant.b_mend", "reversible", "bob"),
        ("approvals/approve", "plant.a_list", "read_only", "ada"),
    }


def test_a_tool_declared_read_only_whose_name_says_otherwise_is_asked_about(node: RunningNode, client: Client) -> None:
    offer(node, client, "deleteAll", "read_only")
    name = "plant.delete_all"
    wait_for(lambda: name in proposals(node), 20)
    row = proposals(node)[name]
    assert (row["class"], row["by"], row["is_open"]) == ("irreversible", "name", False)
    assert row["question"] == "it is said to only read, and its name says 'delete'"
    assert not is_held(client, name)  # the server's word, until a person says otherwise
    assert tools_of(sign(node, [entry(node, name, "irreversible")]))[0] == [name]
    wait_for(lambda: is_held(client, name), 20)
    assert name not in proposals(node)


def test_the_command_signs_what_it_shows(node: RunningNode, client: Client, operator: Operator) -> None:
    for tool in ("c_read", "c_wipe"):
        offer(node, client, tool)
    words = ("tools", "classify", "plant.c_*", "--class", "c_wipe=reversible", "--yes", "--key", "ada")
    done = operator.does(node, *words)
    assert {one["tool"]: one["class"] for one in done["classified"]} == {
        "plant.c_read": "read_only",
        "plant.c_wipe": "reversible",
    }
    wait_for(lambda: not is_held(client, "plant.c_wipe"), 20)
    assert not is_held(client, "plant.c_read")


def test_rulings_of_one_signature_survive_a_restart(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, ANCHORS) as node:
        assert tools_of(sign(node, [entry(node, "plant.silent", "reversible")]))[0] == ["plant.silent"]
    with gated_node(tmp_path / "node", diary, ANCHORS) as node, Client(node) as client:
        assert not is_held(client, "plant.silent")
