"""Do outsiders release a held call, each in its own way, and only that call: a policy engine, an approval service?

Both are programs of their own that know nothing of the node but what a held call says.
"""

import http.client
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.gate.held_calls import (
    ADA,
    ANCHORED,
    BOB,
    ERAS,
    GATED,
    MALLORY,
    ActuatorLog,
    Client,
    anchor,
    approve,
    gated_node,
    proof,
    token,
)
from tests.servers.minting import confused, unb64, unsigned
from tests.servers.start import HERE, serving
from tests.support.node_process import RunningNode, wait_for


class Outsider:
    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def control(self, **words: Any) -> None:
        assert self.post("/control", words)[0] == 200

    def decide(self, demand: Any) -> Any:
        """What the engine makes of a held call; None: its policy says no."""
        status, proof = self.post("/decide", demand)
        return proof if status == 200 else None

    def grant(self, demand: Any) -> Any:
        """What the desk gives out once somebody there has said yes."""
        number = self.post("/requests", demand)[1]["number"]
        return self.post(f"/requests/{number}/grant", {})[1]


def _program(*words: str) -> list[str]:
    return [sys.executable, str(HERE / "approver.py"), *words]


class House:
    def __init__(self, node: RunningNode, engine: Outsider, desk: Outsider, diary: ActuatorLog) -> None:
        self.node, self.engine, self.desk, self.diary = node, engine, desk, diary

    def fired(self, arguments: Any) -> int:
        return [entry["arguments"] for entry in self.diary.read("fire")].count(arguments)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("signers")
    diary, public = ActuatorLog(folder / "diary.jsonl"), folder / "engine.pem"
    with serving(_program("engine", "--public", str(public))) as engine, serving(_program("desk")) as desk:
        anchors = (
            f'[[anchor]]\nname = "engine"\nkey = "{public}"\napproves = ["plant.fire"]\n'
            f'[[anchor]]\nname = "desk"\njwks = "{desk}/jwks"\napproves = ["plant.*"]\n'
        )
        with gated_node(folder / "node", diary, GATED + anchors) as node:
            yield House(node, Outsider(engine), Outsider(desk), diary)


@pytest.fixture
def client(house: House) -> Iterator[Client]:
    house.engine.control()
    house.desk.control()
    with Client(house.node) as made:
        yield made


@pytest.fixture
def arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"by": request.node.name, "amount": 7}


def refused(answer: Any) -> tuple[int, str]:
    return answer["error"]["code"], answer["error"]["data"]["reason"]


NO_TOKENS: tuple[Any, ...] = (None, "", 0, True, [], {}, {"type": "policy_nonce"}, {"token": ""}, {"token": 7})


@pytest.mark.req("AX-11.3-5")
@pytest.mark.parametrize("era", ERAS)
def test_a_proof_of_nobody_releases_nothing(house: House, arguments: Any, era: str) -> None:
    own = token(house.node, f"agent-{era}")
    with Client(house.node, era, own) as client:
        demand = client.held("plant.fire", arguments)
        left_out = client.ask("mcpax/confirm", {"confirmation_id": demand["confirmation_id"]})
        codes = [left_out["error"]["code"], *(client.confirm(demand, no)["error"]["code"] for no in NO_TOKENS)]
        assert set(codes) == {-32602}
        claims = unsigned_claims(demand)
        forged = (proof(demand, MALLORY), unsigned(claims), confused(ADA, claims, ADA.pem()), own, demand["nonce"])
        reasons = [refused(client.confirm(demand, one)) for one in forged]
        assert reasons == [(32123, one) for one in ("key_unknown", "algorithm", "algorithm", "malformed", "malformed")]
        assert client.held("plant.fire", arguments)["confirmation_id"] == demand["confirmation_id"]
        assert house.fired(arguments) == 0


def unsigned_claims(demand: Any) -> Any:
    return json.loads(unb64(proof(demand).split(".")[1]))


@pytest.mark.req("AX-11.3-7")
def test_a_policy_engine_releases_a_call_by_signing_its_nonce_with_its_digest(
    house: House, client: Client, arguments: Any
) -> None:
    demand = client.held("plant.fire", arguments)
    answer = client.confirm(demand, house.engine.decide(demand))
    assert answer["result"]["structuredContent"] == {"did": "fire"}
    assert house.fired(arguments) == 1


@pytest.mark.req("AX-11.3-7")
def test_the_signer_does_not_sign_a_call_that_its_policy_forbids(house: House, client: Client, arguments: Any) -> None:
    assert house.engine.decide(client.held("plant.fire", {**arguments, "amount": 101})) is None


@pytest.mark.req("AX-11.3-7")
def test_an_old_nonce_another_calls_nonce_or_a_nonce_alone_releases_nothing(
    house: House, client: Client, arguments: Any
) -> None:
    demand = client.held("plant.fire", arguments)
    other = client.held("plant.fire", {**arguments, "amount": 8})
    answers = {}
    for claims in ({"nonce": other["nonce"]}, {"call_digest": None}, {"call_digest": other["call_digest"]}):
        house.engine.control(claims=claims)
        answers[json.dumps(claims)] = refused(client.confirm(demand, house.engine.decide(demand)))
    assert list(answers.values()) == [(32123, "nonce"), (32123, "digest"), (32123, "digest")]
    house.engine.control(claims={"nonce": None})
    assert refused(client.confirm(demand, house.engine.decide(demand))) == (32123, "nonce")
    house.engine.control()
    assert refused(client.confirm(demand, house.engine.decide(other))) == (32123, "confirmation")
    assert client.confirm(demand, house.engine.decide(demand))["result"]["structuredContent"] == {"did": "fire"}
    again = client.held("plant.fire", arguments)
    house.engine.control(claims={"nonce": demand["nonce"]})  # of the round before
    assert refused(client.confirm(again, house.engine.decide(again))) == (32123, "nonce")
    assert house.fired(arguments) == 1


@pytest.mark.req("AX-11.3-8")
def test_a_token_of_an_approval_service_releases_the_call_it_was_given_for(
    house: House, client: Client, arguments: Any
) -> None:
    demand = client.held("plant.fire", arguments)
    token = house.desk.grant(demand)
    assert client.confirm(demand, token)["result"]["structuredContent"] == {"did": "fire"}
    assert house.fired(arguments) == 1
    assert client.confirm(demand, token)["error"]["code"] == 32122


@pytest.mark.req("AX-11.3-8")
@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"call_digest": None}, "digest"),
        ({"call_digest": None, "tool": "plant.fire"}, "digest"),
        ({"confirmation_id": None}, "confirmation"),
        ({"aud": "plant.fire"}, "audience"),
        ({"jti": None}, "claims"),
        ({"exp": 4_000_000_000}, "lifetime"),
        ({"exp": 1_000_000_000}, "expired"),
    ],
)
def test_a_token_for_the_tool_in_general_releases_nothing(
    house: House, client: Client, arguments: Any, claims: Any, why: str
) -> None:
    demand = client.held("plant.fire", arguments)
    house.desk.control(claims=claims)
    assert refused(client.confirm(demand, house.desk.grant(demand))) == (32123, why)
    assert house.fired(arguments) == 0
    assert client.held("plant.fire", arguments)["confirmation_id"] == demand["confirmation_id"]


@pytest.mark.req("AX-11.3-9")
def test_a_signer_without_a_right_to_the_tool_is_refused(house: House, client: Client, arguments: Any) -> None:
    demand = client.held("plant.hold", arguments)
    assert refused(client.confirm(demand, house.engine.decide(demand))) == (32123, "not_entitled")


@pytest.mark.req("AX-11.3-9")
def test_an_unreachable_key_set_releases_nothing(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with serving(_program("desk")) as url:
        desk = Outsider(url)
        desk.control(failing=True)
        anchors = f'[[anchor]]\nname = "desk"\njwks = "{url}/jwks"\napproves = ["*"]\n'
        with gated_node(tmp_path / "node", diary, GATED + anchors) as node, Client(node) as client:
            demand = client.held("plant.fire")
            assert refused(client.confirm(demand, desk.grant(demand))) == (32131, "anchor_keys")
            assert client.held("plant.fire")["confirmation_id"] == demand["confirmation_id"]
            assert not diary.read("fire")


@pytest.mark.req("AX-11.3-9")
def test_every_decision_is_on_record_with_anchor_jti_and_digest(house: House, client: Client, arguments: Any) -> None:
    demand = client.held("plant.fire", arguments)
    house.desk.control(claims={"jti": "the-one"})
    client.confirm(demand, house.desk.grant(demand))
    records = house.node.admin("/admin/audit?after=0&limit=1000")["records"]
    (decision,) = [one for one in records if one.get("jti") == "the-one"]
    assert (decision["anchor"], decision["proof"], decision["verdict"]) == ("desk", "approval_token", "approved")
    assert (decision["digest"], decision["approval"]) == (demand["call_digest"], demand["confirmation_id"])


@pytest.mark.req("AX-11.3-15")
def test_a_proof_is_used_once_also_after_a_restart_and_from_elsewhere(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, ANCHORED) as node, Client(node) as client:
        demand = client.held("plant.fire")
        used = proof(demand)
        assert client.confirm(demand, used)["result"]["structuredContent"] == {"did": "fire"}
        assert client.confirm(demand, used)["error"]["code"] == 32122
        with Client(node, "legacy", token(node, "elsewhere")) as other:
            assert other.confirm(demand, used)["error"]["code"] == 32122
            assert other.confirm(demand, proof(demand))["error"]["code"] == 32122
        later = client.held("plant.fire")
        other_call = client.held("plant.mutable_final")
        assert "result" in client.confirm(other_call, proof(other_call, jti="once"))
        assert refused(client.confirm(later, proof(later, jti="once"))) == (32122, "replayed")
    with gated_node(tmp_path / "node", diary, ANCHORED) as node, Client(node) as client:
        assert client.confirm(demand, used)["error"]["code"] == 32122
        assert refused(client.confirm(later, proof(later, jti="once"))) == (32122, "replayed")
    assert len(diary.read("fire")) == 1


@pytest.mark.req("AX-11.3-9")
def test_an_anchor_that_is_removed_takes_its_unused_approvals_along(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, ANCHORED) as node, Client(node) as client:
        demand = client.held("plant.fire")
        approve(node, demand, ADA)
    with gated_node(tmp_path / "node", diary, GATED + anchor("bob", BOB, "*")) as node, Client(node) as client:
        assert client.held("plant.fire")["confirmation_id"] != demand["confirmation_id"]
    assert not diary.read("fire")


@pytest.mark.req("AX-11.3-9")
@pytest.mark.parametrize("instead", [anchor("ada", ADA, "office.*"), ""], ids=["narrowed", "removed"])
def test_an_anchor_that_is_removed_while_the_node_runs_takes_them_along_at_once(tmp_path: Path, instead: str) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, ANCHORED) as node, Client(node) as client:
        demand = client.held("plant.fire")
        approve(node, demand)
        written = node.config.read_text()
        node.config.write_text(written.replace(anchor("ada", ADA, "*"), instead))
        approval = f"/approvals/{demand['confirmation_id']}"
        wait_for(lambda: node.admin(approval)["status"] == "void")
        assert client.held("plant.fire")["confirmation_id"] != demand["confirmation_id"]
    assert not diary.read("fire")


def test_a_revoked_operator_key_releases_nothing_any_more(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, ANCHORED) as node, Client(node) as client:
        approved, pending = client.held("plant.fire", {"n": 1}), client.held("plant.fire", {"n": 2})
        approve(node, approved)
        home = {"env": {**os.environ, "HOME": str(tmp_path), "PATH": ""}}
        done = node.cli("access", "key", "ada", "--revoke", "--json", **home)
        assert json.loads(done.stdout)["voided"] == [approved["confirmation_id"]], done.stderr
        assert client.held("plant.fire", {"n": 1})["confirmation_id"] != approved["confirmation_id"]
        assert refused(client.confirm(pending, proof(pending))) == (32123, "revoked")
    with gated_node(tmp_path / "node", diary, ANCHORED) as node, Client(node) as client:
        assert refused(client.confirm(pending, proof(pending))) == (32123, "revoked")
    assert not diary.read("fire")
