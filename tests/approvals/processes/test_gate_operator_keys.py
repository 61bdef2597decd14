"""From `interlock init` to a call that ran: does a person with their own key, and nobody else, release it?"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import preloaded
from tests.gate.held_calls import GATED, ActuatorLog, Client, gated_node
from tests.support import intervals
from tests.support.node_process import RunningNode

PASSPHRASE = "correct horse"


class Person:
    """Somebody at the machine of the node, with a home of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        self.env = {**kept, "HOME": str(home), **preloaded.settings({intervals.SCRYPT_N: 2**12})}

    def run(self, node: RunningNode, *words: str, passphrase: str | None = PASSPHRASE) -> Any:
        given = {} if passphrase is None else {"INTERLOCK_PASSPHRASE": passphrase}
        return node.cli(*words, env={**self.env, **given})

    def anchor(self, *words: str) -> str:
        """Makes a key; gives what belongs into the node's configuration."""
        import subprocess

        command = [sys.executable, "-m", "interlock", "access", "key", *words]
        env = {**self.env, "INTERLOCK_PASSPHRASE": PASSPHRASE}
        done = subprocess.run(command, env=env, cwd=self.home, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout


class Place:
    def __init__(self, node: RunningNode, diary: ActuatorLog, ada: Person, eve: Person) -> None:
        self.node, self.diary, self.ada, self.eve = node, diary, ada, eve

    def fired(self, arguments: Any) -> int:
        return [entry["arguments"] for entry in self.diary.read("fire")].count(arguments)

    def status(self, demand: Any) -> str:
        return str(self.node.admin(f"/approvals/{demand['confirmation_id']}")["status"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("keys")
    ada, eve = Person(folder / "ada"), Person(folder / "eve")
    for person in (ada, eve):
        person.home.mkdir()
    anchors = ada.anchor("ada") + ada.anchor("ada-p256", "--kind", "es256", "--approves", "plant.fire")
    eve.anchor("ada")  # the same name, another key, which no node knows
    diary = ActuatorLog(folder / "diary.jsonl")
    with gated_node(folder / "node", diary, GATED + anchors) as node:
        yield Place(node, diary, ada, eve)


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with Client(place.node) as made:
        yield made


@pytest.fixture
def arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"by": request.node.name, "z": [1, 2.50, {"é": None}], "a": "b"}


@pytest.mark.req("AX-11.3-6")
@pytest.mark.parametrize("key", ["ada", "ada-p256"])
def test_an_operator_approves_with_their_own_key_and_the_call_runs(
    place: Place, client: Client, arguments: Any, key: str
) -> None:
    demand = client.held("plant.fire", arguments)
    done = place.ada.run(place.node, "approve", demand["confirmation_id"], "--yes", "--key", key)
    assert done.returncode == 0, done.stderr
    assert (place.status(demand), place.fired(arguments)) == ("approved", 0)
    assert client.call("plant.fire", arguments)["structuredContent"] == {"did": "fire"}
    assert place.fired(arguments) == 1
    assert client.held("plant.fire", arguments)["confirmation_id"] != demand["confirmation_id"]
    records = place.node.admin("/admin/audit?after=0&limit=1000")["records"]
    decisions = [one for one in records if one.get("approval") == demand["confirmation_id"] and one.get("jti")]
    assert [(one["anchor"], one["proof"], one["digest"]) for one in decisions] == [
        (key, "operator_signature", demand["call_digest"])
    ]


def test_a_call_without_arguments_can_be_approved(place: Place, client: Client) -> None:
    answer = client.ask("tools/call", {"name": "plant.mutable_final"})["result"]
    demand = answer["_meta"]["x-mcpax-confirmation"]
    done = place.ada.run(place.node, "approve", demand["confirmation_id"], "--yes", "--key", "ada")
    assert done.returncode == 0, done.stderr
    answer = client.ask("tools/call", {"name": "plant.mutable_final"})["result"]
    assert answer["structuredContent"] == {"did": "mutable_final"}


def test_another_persons_key_of_the_same_name_releases_nothing(place: Place, client: Client, arguments: Any) -> None:
    demand = client.held("plant.fire", arguments)
    done = place.eve.run(place.node, "approve", demand["confirmation_id"], "--yes", "--json")
    assert done.returncode == 1
    refused = json.loads(done.stdout)
    assert (refused["error"], refused["details"]["reason"]) == ("proof_invalid", "key_unknown")
    assert (place.status(demand), place.fired(arguments)) == ("pending", 0)


def test_being_on_the_machine_is_no_proof(place: Place, client: Client, arguments: Any) -> None:
    demand = client.held("plant.fire", arguments)
    path = f"/approvals/{demand['confirmation_id']}"
    for body in ({"decision": "approve"}, {"decision": "approve", "proof": demand["nonce"]}):
        assert place.node.admin(path, "POST", body)["error"] in ("proof_required", "proof_invalid")
    assert (place.status(demand), place.fired(arguments)) == ("pending", 0)


def test_a_wrong_passphrase_signs_nothing(place: Place, client: Client, arguments: Any) -> None:
    demand = client.held("plant.fire", arguments)
    words = ("approve", demand["confirmation_id"], "--yes", "--key", "ada")
    for passphrase in ("house", None):
        done = place.ada.run(place.node, *words, passphrase=passphrase)
        assert done.returncode == 1
        assert "passphrase" in done.stderr
    assert place.status(demand) == "pending"


def test_a_key_for_other_tools_is_refused(place: Place, client: Client, arguments: Any) -> None:
    demand = client.held("plant.mutable_final", arguments)
    words = ("approve", demand["confirmation_id"], "--yes", "--json", "--key", "ada-p256")
    done = place.ada.run(place.node, *words)
    assert json.loads(done.stdout)["details"]["reason"] == "not_entitled"
    assert place.status(demand) == "pending"


@pytest.mark.req("AX-11.3-6")
def test_a_key_that_was_taken_back_approves_nothing_any_more(tmp_path: Path) -> None:
    ada, diary = Person(tmp_path / "home"), ActuatorLog(tmp_path / "diary.jsonl")
    ada.home.mkdir()
    with gated_node(tmp_path / "node", diary, GATED + ada.anchor("ada")) as node, Client(node) as client:
        approved, pending = client.held("plant.fire", {"n": 1}), client.held("plant.fire", {"n": 2})
        assert ada.run(node, "approve", approved["confirmation_id"], "--yes").returncode == 0
        key = ada.home / ".config" / "interlock" / "keys" / "ada.key"
        kept = key.read_bytes()
        assert ada.run(node, "access", "key", "ada", "--revoke").returncode == 0
        assert not key.exists()
        key.write_bytes(kept)  # a copy that somebody had
        key.chmod(0o600)
        done = ada.run(node, "approve", pending["confirmation_id"], "--yes", "--json")
        assert json.loads(done.stdout)["details"]["reason"] == "revoked"
        assert client.held("plant.fire", {"n": 1})["confirmation_id"] != approved["confirmation_id"]
    assert not diary.read("fire")


def test_from_init_to_a_call_that_ran(tmp_path: Path) -> None:
    """As a person goes: init writes the key into the configuration that the node then runs with."""
    import subprocess

    ada, diary = Person(tmp_path / "home"), ActuatorLog(tmp_path / "diary.jsonl")
    ada.home.mkdir()
    env = {**ada.env, "INTERLOCK_PASSPHRASE": PASSPHRASE}
    command = [sys.executable, "-m", "interlock", "init", "--key", "me", "--data", str(tmp_path / "d")]
    subprocess.run(command, env=env, cwd=ada.home, check=True, capture_output=True, timeout=30)
    written = (ada.home / "interlock.toml").read_text()
    anchor = written[written.index("[[anchor]]") :]
    with gated_node(tmp_path / "node", diary, GATED + anchor) as node, Client(node) as client:
        demand = client.held("plant.fire")
        assert ada.run(node, "approve", demand["confirmation_id"], "--yes").returncode == 0
        assert client.call("plant.fire")["structuredContent"] == {"did": "fire"}
    assert len(diary.read("fire")) == 1
