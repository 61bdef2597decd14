"""Servers that change what their tools are, after somebody trusted them: seen, shown, and stopped where the operator
says so. With the commands an operator uses, and a key of theirs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gate.held_calls import ActuatorLog, Client, gated_node
from tests.support.node_process import RunningNode, wait_for

OPEN = '[gate]\nmode = "open"\n'
PINNED = '[[tool]]\nmatch = "plant.fire"\npin = true\n'
FIRE = "plant.fire"


class Operator:
    """A person with a key of their own, at this machine."""

    def __init__(self, home: Path) -> None:
        self.env = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        made = self._run("access", "key", "ada", "--no-passphrase", "--json")
        self.anchor = f"[[anchor]]\nname = 'ada'\nkey = '{made['anchor']['key']}'\napproves = ['*']\n"

    def _run(self, *words: str) -> Any:
        command = [sys.executable, "-m", "interlock", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=self.env)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def does(self, node: RunningNode, *words: str) -> Any:
        done = node.cli(*words, "--json", env=self.env)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "home")


@pytest.fixture
def diary(tmp_path: Path) -> ActuatorLog:
    return ActuatorLog(tmp_path / "diary")


@pytest.fixture
def pinned(tmp_path: Path, operator: Operator, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path, diary, OPEN + PINNED + operator.anchor) as node:
        yield node


def names(client: Client) -> list[str]:
    return [tool["name"] for tool in client.ask("tools/list", {})["result"]["tools"]]


def definition(client: Client) -> Any:
    """What clients see of the tool that changes."""
    return next(tool for tool in client.ask("tools/list", {})["result"]["tools"] if tool["name"].endswith("fire"))


def waiting(node: RunningNode) -> list[Any]:
    found: list[Any] = node.admin("/approvals?kind=definition")["approvals"]
    return found


def withheld(node: RunningNode) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in node.link("plant")["withheld"]}


def test_a_pinned_tool_that_changes_is_withheld_until_the_change_is_accepted(
    pinned: RunningNode, operator: Operator, diary: ActuatorLog
) -> None:
    with Client(pinned) as client:
        client.call(FIRE)
        client.call("plant.change")
        (asked,) = wait_for(lambda: waiting(pinned))
        assert (asked["tool"], asked["requested_by"], asked["left_s"]) == (FIRE, "node", None)
        assert "pin" in withheld(pinned)["fire"]
        assert not any(name.endswith("fire") for name in names(client))
        assert client.refused(FIRE)["code"] == -32601
        whole = operator.does(pinned, "approvals", "show", asked["id"][:8])
        assert whole["params"]["after"]["description"] == "Another."
        assert "description" not in whole["params"]["before"]
        done = operator.does(pinned, "approve", asked["id"][:8], "--yes")
        assert (done["status"], done["decision"]["proof"]["anchor"]) == ("done", "ada")
        wait_for(lambda: withheld(pinned) == {})
        client.call(FIRE)
    assert len(diary.read("fire")) == 2
    assert "the definition of plant.fire changed" in (pinned.data.parent / "stderr.txt").read_text()


def test_a_changed_definition_is_not_accepted_without_a_key(pinned: RunningNode, diary: ActuatorLog) -> None:
    with Client(pinned) as client:
        client.call("plant.change")
        (asked,) = wait_for(lambda: waiting(pinned))
        refused = pinned.admin(f"/approvals/{asked['id']}", "POST", {"decision": "approve"})
        assert refused["error"] == "proof_required"
        assert client.refused(FIRE)["code"] == -32601
    assert diary.read("fire") == []


def test_an_accepted_definition_survives_a_restart_and_a_reverted_definition_is_a_change(
    tmp_path: Path, operator: Operator, diary: ActuatorLog
) -> None:
    extra = OPEN + PINNED + operator.anchor
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        client.call("plant.change")
        (asked,) = wait_for(lambda: waiting(node))
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:  # the server starts as it first was
        assert withheld(node) == {}
        assert [one["id"] for one in waiting(node)] == [asked["id"]]
        client.call("plant.change")
        wait_for(lambda: "fire" in withheld(node))
        (again,) = waiting(node)
        assert again["id"] == asked["id"]
        operator.does(node, "approve", again["id"], "--yes")
        wait_for(lambda: withheld(node) == {})
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        wait_for(lambda: waiting(node))
        assert client.refused(FIRE)["code"] == -32601
    assert diary.read("fire") == []


@pytest.mark.req("AX-11.N-2")
@pytest.mark.parametrize("what", ["required", "title", "meta", "outputSchema", "annotations"])
def test_clients_see_the_accepted_definition_until_a_person_accepts_the_change(
    tmp_path: Path, operator: Operator, diary: ActuatorLog, what: str
) -> None:
    extra = OPEN + operator.anchor
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        accepted = definition(client)
        client.call("plant.change", {"what": what})
        (asked,) = wait_for(lambda: waiting(node))
        assert definition(client) == accepted
        assert "the accepted one is listed" in node.admin(f"/admin/tools/{FIRE}")["changed"]
        assert [one["name"] for one in node.link("plant")["changed"]] == ["fire"]
        client.call(FIRE, {"anything": 1})
        assert len(diary.read("fire")) == 1
        operator.does(node, "deny", asked["id"][:8])
        client.call(FIRE)
        assert definition(client) == accepted
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        client.call("plant.change", {"what": what})
        wait_for(lambda: node.link("plant")["changed"])
        assert (definition(client), waiting(node)) == (accepted, [])
        again = node.admin(f"/admin/tools/{FIRE}/classify", "POST")
        operator.does(node, "approve", again["id"], "--yes")
        wait_for(lambda: definition(client) != accepted)
        assert "changed" not in node.admin(f"/admin/tools/{FIRE}")
        client.call(FIRE, {"sure": True})
    assert len(diary.read("fire")) == 3


@pytest.mark.req("AX-11.N-2")
def test_another_spelling_is_no_change_and_what_was_too_long_to_keep_is_withheld(
    tmp_path: Path, operator: Operator, diary: ActuatorLog
) -> None:
    extra = OPEN + operator.anchor
    with gated_node(tmp_path, diary, extra, definitions="follow") as node, Client(node) as client:
        client.call("plant.change", {"what": "long", "tool": "lengthy"})
        wait_for(lambda: any(name.endswith("lengthy") for name in names(client)))
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        client.call("plant.change", {"what": "spelling"})
        client.call("plant.change", {"what": "long", "tool": "lengthy"})
        wait_for(lambda: any(name.endswith("lengthy") for name in names(client)))
        assert waiting(node) == []
        assert "changed" not in node.admin(f"/admin/tools/{FIRE}")
        client.call("plant.change", {"what": "description", "tool": "lengthy"})
        (asked,) = wait_for(lambda: waiting(node))
        assert "too long" in withheld(node)["lengthy"]
        assert not any(name.endswith("lengthy") for name in names(client))
        operator.does(node, "approve", asked["id"][:8], "--yes")
        wait_for(lambda: any(name.endswith("lengthy") for name in names(client)))


@pytest.mark.req("AX-11.N-2")
def test_with_follow_no_one_is_asked_about_a_change(tmp_path: Path, operator: Operator, diary: ActuatorLog) -> None:
    extra = OPEN + operator.anchor
    with gated_node(tmp_path, diary, extra, definitions="follow") as node, Client(node) as client:
        client.call("plant.change")
        wait_for(lambda: definition(client).get("description") == "Another.")
        assert waiting(node) == []
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:  # what was followed was accepted
        wait_for(lambda: waiting(node))
        assert definition(client)["description"] == "Another."


def test_with_notify_a_change_is_shown_and_the_tool_stays_until_it_is_denied(
    tmp_path: Path, operator: Operator, diary: ActuatorLog
) -> None:
    extra = OPEN + operator.anchor
    with gated_node(tmp_path, diary, extra, definitions="notify") as node, Client(node) as client:
        client.call("plant.change")
        (asked,) = wait_for(lambda: waiting(node))
        client.call(FIRE)
        assert definition(client)["description"] == "Another."
        assert "not accepted yet" in node.admin(f"/admin/tools/{FIRE}")["changed"]
        operator.does(node, "deny", asked["id"][:8], "--reason", "I did not order that")
        wait_for(lambda: "denied" in withheld(node).get("fire", ""))
        assert client.refused(FIRE)["code"] == -32601
        again = node.admin(f"/admin/tools/{FIRE}/classify", "POST")
        assert (again["status"], again["answers"]) == ("pending", ["accept"])
        assert "denied" in withheld(node)["fire"]
        operator.does(node, "approve", again["id"], "--yes")
        wait_for(lambda: withheld(node) == {})
        client.call(FIRE)
        records = node.admin("/admin/audit?limit=1000")["records"]
    (decided,) = [one for one in records if one["method"] == "approvals/deny"]
    assert (decided["tool"], decided["reason"]) == (FIRE, "I did not order that")
    assert len(diary.read("fire")) == 2


def test_a_tool_nobody_classified_is_classified_once_and_remembered_by_its_definition(
    tmp_path: Path, operator: Operator, diary: ActuatorLog
) -> None:
    extra = '[gate]\nmode = "gated"\n' + operator.anchor
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        listed = {one["name"]: one["unclassified"] for one in node.admin("/admin/tools")["tools"]}
        assert {name for name, open_ in listed.items() if open_} == {"plant.silent"}
        assert 'match = "plant.silent"' in node.cli("tools", "classify").stdout
        assert node.admin("/admin/tools/plant.fire/classify", "POST")["error"] == "classified"
        assert node.admin("/admin/tools/plant.nosuch/classify", "POST")["error"] == "not_found"
        early = node.admin("/admin/tools/plant.silent/classify", "POST")
        demand = client.held("plant.silent")
        assert demand["confirmation_id"] == early["id"]
        assert client.held("plant.silent", {"other": 1})["confirmation_id"] == demand["confirmation_id"]
        done = operator.does(node, "approve", demand["confirmation_id"], "--class", "read_only", "--yes")
        assert done["decision"]["answer"] == "read_only"
        wait_for(lambda: not client.call("plant.silent").get("isError"))
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        client.call("plant.silent")
        assert waiting(node) == []
        assert not client.call("plant.silent").get("isError")
    assert len(diary.read("silent")) == 3


@pytest.mark.req("AX-11.N-2")
def test_what_the_definition_does_that_clients_see_can_be_decided_while_a_change_of_it_waits(
    tmp_path: Path, operator: Operator, diary: ActuatorLog
) -> None:
    extra = '[gate]\nmode = "gated"\n' + operator.anchor
    with gated_node(tmp_path, diary, extra) as node, Client(node) as client:
        demand = client.held("plant.silent")
        client.call("plant.change", {"what": "described", "tool": "silent"})
        wait_for(lambda: len(waiting(node)) == 2)
        assert demand["confirmation_id"] in {one["id"] for one in waiting(node)}
        done = operator.does(node, "approve", demand["confirmation_id"], "--class", "read_only", "--yes")
        assert (done["status"], done["decision"]["answer"]) == ("done", "read_only")
        wait_for(lambda: not client.call("plant.silent").get("isError"))
        (change,) = waiting(node)
        assert change["id"] != demand["confirmation_id"]
    assert len(diary.read("silent")) == 1
