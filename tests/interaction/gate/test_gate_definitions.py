"""Is a tool that does not say what it does asked about once, and is the answer remembered for that tool alone?"""

from pathlib import Path
from typing import Any

import pytest
from tests.interaction.gate.held import ANCHORED, ERAS, MARK, Client, Diary, classify, deny, gated_node, served, token
from tests.interaction.harness import RunningNode, running_node, wait_for


def is_gated(client: Client, name: str) -> bool:
    tools = {tool["_meta"]["x-mcpax-name"]: tool for tool in client.ask("tools/list", {})["result"]["tools"]}
    return bool(tools[name]["_meta"].get("x-mcpax-gated", False))


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool_class", ["read_only", "reversible"])
def test_what_a_person_said_once_is_remembered_over_restarts(tmp_path: Path, era: str, tool_class: str) -> None:
    diary = Diary(tmp_path / "diary.jsonl")
    with (
        gated_node(tmp_path / "node", diary) as node,
        Client(node, era) as client,
        Client(node, era, token(node, "other")) as other,
    ):
        demand = client.held("plant.silent", {"n": 1})
        assert demand["kind"] == "definition"
        assert "--class" in client.call("plant.silent", {"n": 2})["content"][0]["text"]
        assert other.held("plant.silent", {"n": 3})["confirmation_id"] == demand["confirmation_id"]
        assert is_gated(client, "plant.silent")
        assert not diary.read()

        assert "error" in classify(node, demand, tool_class, signed="irreversible")
        assert classify(node, demand, tool_class)["decision"]["answer"] == tool_class
        wait_for(lambda: not is_gated(client, "plant.silent"))
        for one in (client, other):
            assert one.call("plant.silent", {"n": 1})["structuredContent"] == {"did": "silent"}
    with gated_node(tmp_path / "node", diary) as node, Client(node, era) as client:
        assert client.call("plant.silent", {"n": 1})["structuredContent"] == {"did": "silent"}
    assert len(diary) == 3


def test_irreversible_makes_every_call_wait_for_a_confirmation_of_its_own(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        demand = client.held("plant.silent", {"n": 1})
        classify(node, demand, "irreversible")

        def asks_for_the_call() -> Any:
            answer = client.call("plant.silent", {"n": 1})["_meta"][MARK]
            return answer if "kind" not in answer else None

        call = wait_for(asks_for_the_call)
        assert call["confirmation_id"] != demand["confirmation_id"]
        assert call["call_digest"] != demand["call_digest"]
        assert not diary.read()


def test_a_denied_definition_is_not_called(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        deny(node, client.held("plant.silent"))
        answer = client.ask("tools/call", {"name": "plant.silent", "arguments": {}})
        assert "error" in answer or answer["result"]["isError"] is True
        assert not diary.read()


def test_what_was_said_of_one_server_is_not_said_of_another_that_copies_it(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary.jsonl")
    servers = {"plant": served(diary), "copy": served(diary)}
    with running_node(tmp_path / "node", servers, ANCHORED) as node, Client(node) as client:
        node.wait_link("plant", {"state": "ready"})
        node.wait_link("copy", {"state": "ready"})
        classify(node, client.held("plant.silent"), "read_only")
        wait_for(lambda: not is_gated(client, "plant.silent"))
        assert client.held("copy.silent")["kind"] == "definition"
        assert not diary.read()


def asked(node: RunningNode) -> list[Any]:
    found: list[Any] = node.admin("/approvals")["approvals"]
    return found


@pytest.mark.parametrize(
    "extra",
    [
        ANCHORED.replace('mode = "gated"', 'unannotated = "allow"'),
        ANCHORED + '[[tool]]\nmatch = "*.silent"\nreversible = true\n',
    ],
    ids=["allow", "overlay"],
)
def test_nobody_is_asked_where_the_operator_said_so_before(tmp_path: Path, extra: str) -> None:
    diary = Diary(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, extra) as node, Client(node) as client:
        assert client.call("plant.silent")["structuredContent"] == {"did": "silent"}
        assert asked(node) == []
        client.held("plant.fire")


def test_a_class_in_the_table_of_the_server_answers_the_question_and_closes_or_opens_the_gate(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary.jsonl")
    table = served(diary) | {"tools": {"silent": "read_only", "nudge": "irreversible", "fire": "reversible"}}
    with running_node(tmp_path / "node", {"plant": table}, ANCHORED) as node, Client(node) as client:
        node.wait_link("plant", {"state": "ready"})
        assert client.call("plant.silent")["structuredContent"] == {"did": "silent"}
        assert client.call("plant.fire")["structuredContent"] == {"did": "fire"}
        assert "kind" not in client.held("plant.nudge")


def test_the_gate_follows_its_configuration_while_the_node_runs(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        client.held("plant.fire")
        written = node.config.read_text()
        node.config.write_text(written.replace('mode = "gated"', 'mode = "open"'))
        wait_for(lambda: not is_gated(client, "plant.fire"))
        assert client.call("plant.fire")["structuredContent"] == {"did": "fire"}
        node.config.write_text(written)
        wait_for(lambda: is_gated(client, "plant.fire"))
        client.held("plant.fire", {"n": 2})
        assert len(diary) == 1
