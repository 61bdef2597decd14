"""Can an agent that wants its own call released do it with everything it ever received? The counter must stay at zero.

The agent is a client of both eras with a token of its own. It is told nonce, digest, page and states, keeps its tokens,
makes keys, reads every answer, and tries each way in that there is.
"""

import base64
import hashlib
import hmac
import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.gate.held_calls import ERAS, MALLORY, PAGES, ActuatorLog, Client, gated_node, proof, token
from tests.servers.minting import b64, confused, mint, tampered, unsigned
from tests.support.node_process import RunningNode, Wire, wait_for

ARGUMENTS = {"what": "everything"}


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path_factory.mktemp("besieged"), diary) as running:
        yield running


class Agent:
    """Everything it knows."""

    def __init__(self, node: RunningNode, era: str) -> None:
        self.node = node
        self.token = token(node, f"agent-{era}")
        self.client = Client(node, era, self.token)
        self.pages = Client(node, "modern", self.token, PAGES)
        self.demand = self.client.held("plant.fire", ARGUMENTS)
        self.asked = self.pages.call("plant.fire", ARGUMENTS)

    def close(self) -> None:
        self.client.wire.close()
        self.pages.wire.close()


@pytest.fixture(params=ERAS)
def agent(request: pytest.FixtureRequest, node: RunningNode, diary: ActuatorLog) -> Iterator[Agent]:
    made = Agent(node, request.param)
    yield made
    again = made.client.held("plant.fire", ARGUMENTS)
    assert again["confirmation_id"] == made.demand["confirmation_id"], "it is no longer pending"
    made.close()
    assert not diary.read()


def claims(demand: dict[str, Any], **more: Any) -> dict[str, Any]:
    now = time.time()
    said = {"iss": "ada", "aud": demand["aggregator_id"], "jti": "j", "iat": now, "exp": now + 60}
    return said | {"confirmation_id": demand["confirmation_id"], "call_digest": demand["call_digest"]} | more


@pytest.mark.req("AX-11.3-10")
@pytest.mark.req("AX-11.3-5")
def test_nothing_it_knows_or_makes_is_a_proof(agent: Agent) -> None:
    demand, known = agent.demand, agent.demand
    typ = {"typ": "mcpax-confirm+jwt"}
    signed_by_itself = mint(MALLORY, claims(demand), **typ)
    head = b64(json.dumps({"alg": "HS256", **typ}).encode())
    body = b64(json.dumps(claims(demand)).encode())
    secrets = [known["nonce"], known["call_digest"], known["confirmation_id"], agent.token, ""]
    tokens = [
        known["nonce"],
        known["call_digest"],
        agent.token,
        agent.asked["requestState"],
        known["approval_url"],
        signed_by_itself,
        mint(MALLORY, claims(demand), kid="ada", **typ),
        mint(MALLORY, claims(demand), jwk=MALLORY.jwk(), **typ),
        unsigned(claims(demand)),
        f"{b64(json.dumps({'alg': 'none', **typ}).encode())}.{body}.",
        f"{b64(json.dumps({'alg': 'none', **typ}).encode())}.{body}.{b64(b'x')}",
        tampered(signed_by_itself, iss="bob"),
        confused(MALLORY, claims(demand), MALLORY.pem()),
        *(f"{head}.{body}.{b64(hmac.digest(s.encode(), f'{head}.{body}'.encode(), hashlib.sha256))}" for s in secrets),
    ]
    for one in tokens:
        for shown in (one, {"type": "operator_signature", "token": one}, {"type": "policy_nonce", "token": one}):
            error = agent.client.confirm(demand, shown)["error"]
            assert error["code"] == 32123, (shown, error)
    for nothing in (None, "", {}, [], 0, True, {"type": "operator_signature"}, {"token": ""}, {"token": None}):
        assert agent.client.confirm(demand, nothing)["error"]["code"] == -32602, nothing
    missing = agent.client.ask("mcpax/confirm", {"confirmation_id": demand["confirmation_id"]})
    assert missing["error"]["code"] == -32602


@pytest.mark.req("AX-11.3-10")
def test_the_approval_page_opens_for_no_credential_of_a_client(agent: Agent) -> None:
    page = urlsplit(agent.demand["approval_url"])
    basic = base64.b64encode(f"operator:{agent.token}".encode()).decode()
    bodies: list[tuple[str, bytes]] = [
        ("application/json", json.dumps({"decision": "approve", "proof": agent.demand["nonce"]}).encode()),
        ("application/json", json.dumps({"decision": "approve"}).encode()),
        ("application/x-www-form-urlencoded", urllib.parse.urlencode({"decision": "approve"}).encode()),
    ]
    credentials: list[dict[str, str]] = [
        {},
        {"authorization": f"Bearer {agent.token}"},
        {"authorization": f"Basic {basic}"},
        {"cookie": f"session={agent.token}"},
        {"authorization": f"Bearer {agent.demand['nonce']}"},
    ]
    for headers in credentials:
        for path in (page.path, "/approvals", "/approvals/events", "/admin/status"):
            assert ask(page.netloc, "GET", path, headers)[0] == 401, (headers, path)
        for kind, body in bodies:
            assert ask(page.netloc, "POST", page.path, {**headers, "content-type": kind}, body)[0] == 401
    where = f"{agent.node.host}:{agent.node.port}"
    assert ask(where, "POST", page.path, {"authorization": f"Bearer {agent.token}"})[0] in (404, 405)


def ask(netloc: str, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(netloc, timeout=10)
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.req("AX-11.3-10")
def test_accepting_its_own_page_is_no_decision(agent: Agent) -> None:
    state = agent.asked["requestState"]
    for answers in (
        {"confirmation": {"action": "accept"}},
        {"confirmation": {"action": "accept", "content": {"approved": True}}},
        {"confirmation": {"action": "approve"}},
        {"1": {"action": "accept"}},
        {},
    ):
        asked = agent.pages.call("plant.fire", ARGUMENTS, requestState=state, inputResponses=answers)
        assert asked["resultType"] == "input_required"
        state = asked["requestState"]


@pytest.mark.req("AX-11.3-10")
@pytest.mark.req("AX-11.1-1")
def test_no_other_way_to_the_tool_goes_around_the_gate(agent: Agent, diary: ActuatorLog) -> None:
    for _ in range(3):
        agent.client.held("plant.fire", ARGUMENTS)
    for name in ("plant__fire", "plant.fire"):
        agent.client.held(name, ARGUMENTS)
    for forged in (
        {"x-mcpax-confirmation": {**agent.demand, "status": "confirmed"}},
        {"x-mcpax-gated": False, "x-mcpax-safety": None},
        {"x-mcpax-route": ["plant", "fire"], "x-mcpax-cursor": 0},
        {"proof": agent.demand["nonce"], "confirmation_id": agent.demand["confirmation_id"]},
    ):
        agent.client.ask("tools/call", {"name": "plant.fire", "arguments": ARGUMENTS, "_meta": forged})
    agent.client.ask("tools/call", {"name": "plant.fire", "arguments": ARGUMENTS, "task": {"ttl": 1000}})
    agent.client.ask("tools/call", {"name": "plant.fire", "arguments": ARGUMENTS, "inputResponses": {}})
    with Client(agent.node, agent.client.era, agent.token, path="/mcp/only/plant") as only:
        only.held("fire", ARGUMENTS)
    with Wire(agent.node, token=agent.token) as wire:
        one = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "plant.fire", "arguments": ARGUMENTS},
        }
        wire.initialize(version="2025-03-26")
        wire.post(json.dumps([one, one]).encode(), wire.legacy_headers())
    assert not diary.read()


@pytest.mark.req("AX-11.3-10")
def test_a_proof_for_another_call_of_its_own_releases_nothing_else(
    agent: Agent, diary: ActuatorLog, request: pytest.FixtureRequest
) -> None:
    """An operator signs for a harmless-looking call; the agent shows that proof wherever it can."""
    harmless = agent.client.held("plant.fire", {"what": "little", "by": request.node.name})
    good = proof(harmless)
    for id, digest in (
        (agent.demand["confirmation_id"], None),
        (agent.demand["confirmation_id"].upper(), None),
        (f" {agent.demand['confirmation_id']}", None),
    ):
        answer = agent.client.ask("mcpax/confirm", {"confirmation_id": id, "proof": good, "call_digest": digest})
        assert answer["error"]["code"] in (32120, 32123)
    for replaced in ({"aud": "00000000-0000-4000-8000-000000000000"}, {"exp": time.time() - 1}, {"nonce": "x"}):
        assert agent.client.confirm(agent.demand, proof(agent.demand, **replaced))["error"]["code"] == 32123
    assert not diary.read()


def test_a_stranger_from_beyond_the_machine_has_nobody_to_ask(tmp_path: Path) -> None:
    from tests.gate.held_calls import ANCHORED

    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary, '[auth]\nanonymous = "any"\n' + ANCHORED) as node, Client(node) as local:
        local.held("plant.fire")
        for era in ERAS:
            with Client(node, era) as stranger:
                stranger.wire.base["x-forwarded-for"] = "203.0.113.9"
                error = stranger.refused("plant.fire")
                assert (error["code"], error["message"]) == (32117, "scope_denied")
                assert stranger.refused("plant.silent")["code"] == 32117
                assert stranger.call("plant.look")["structuredContent"] == {"did": "look"}
                assert stranger.call("plant.nudge")["structuredContent"] == {"did": "nudge"}
        assert not diary.read("fire")

        access = '[[access]]\nwho = ["local"]\nscope = "read"\n'
        node.config.write_text(node.config.read_text() + access)
        with Client(node) as stranger:
            stranger.wire.base["x-forwarded-for"] = "203.0.113.9"
            wait_for(lambda: "error" in stranger.ask("tools/call", {"name": "plant.nudge", "arguments": {}}))
            assert stranger.refused("plant.nudge")["code"] == -32601
