"""The inbox of a running node, over its real doors: who gets in, what is told, and that stopping waits for nobody."""

import base64
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.gate.held_calls import ActuatorLog, Client, gated_node, proof
from tests.support.node_process import RunningNode, wait_for

STOP_SECONDS = 8.0  # of the ten that calls under way would be given


@pytest.fixture
def diary(tmp_path: Path) -> ActuatorLog:
    return ActuatorLog(tmp_path / "diary")


@pytest.fixture
def node(tmp_path: Path, diary: ActuatorLog) -> Iterator[RunningNode]:
    with gated_node(tmp_path, diary) as running:
        yield running


def token(node: RunningNode, door: str, *more: str) -> str:
    made = node.cli("access", "token", "--for", door, "--name", f"for-{door}", "--json", *more)
    return str(json.loads(made.stdout)["token"])


def ask(node: RunningNode, method: str, path: str, authorization: str | None, body: Any = None) -> tuple[int, Any]:
    """At the operator door, over TCP."""
    connection = http.client.HTTPConnection(urlsplit(node.operator_url).netloc, timeout=10)
    headers = {"accept": "application/json", "content-type": "application/json"}
    headers |= {"authorization": authorization} if authorization is not None else {}
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_credentials_of_an_agent_neither_read_nor_decide_approvals(node: RunningNode, diary: ActuatorLog) -> None:
    mine = token(node, "client")
    with Client(node, token=mine) as client:
        demand = client.held("plant.fire")
        path = urlsplit(demand["approval_url"]).path
        assert demand["approval_url"].startswith(node.operator_url)
        basic = base64.b64encode(f"me:{mine}".encode()).decode()
        for authorization in (f"Bearer {mine}", f"Basic {basic}", f"Bearer {demand['nonce']}", None):
            for method, body in (("GET", None), ("POST", {"decision": "approve", "proof": demand["nonce"]})):
                status, answer = ask(node, method, path, authorization, body)
                assert (status, answer["error"]) in ((401, "self_approval"), (401, "unauthorised"))
        assert client.held("plant.fire")["confirmation_id"] == demand["confirmation_id"]
    assert len(diary) == 0


def test_an_operator_decides_over_the_network_with_a_proof(node: RunningNode, diary: ActuatorLog) -> None:
    operator, viewer = token(node, "operator"), token(node, "operator", "--scope", "read")
    with Client(node) as client:
        demand = client.held("plant.fire", {"n": 1})
        path = urlsplit(demand["approval_url"]).path
        body = {"decision": "approve", "proof": proof(demand)}
        assert ask(node, "POST", path, f"Bearer {viewer}", body)[1]["error"] == "role_required"
        assert ask(node, "POST", path, f"Bearer {operator}", {"decision": "approve"})[1]["error"] == "proof_required"
        status, decided = ask(node, "POST", path, f"Bearer {operator}", body)
        assert (status, decided["status"], decided["decision"]["by"]) == (200, "approved", "operator:for-operator")
        assert client.call("plant.fire", {"n": 1}).get("isError") is not True
        wait_for(lambda: node.admin(path)["status"] == "done")
        assert node.admin(path)["params"] is None
    assert len(diary) == 1


def test_a_password_counts_for_pages_alone(node: RunningNode) -> None:
    """A browser sends it along with what any page makes it send."""
    basic = "Basic " + base64.b64encode(b"me:" + token(node, "operator").encode()).decode()
    assert ask(node, "GET", "/approvals", basic)[0] == 200
    assert ask(node, "POST", "/admin/links/plant/restart", basic)[0] == 401
    assert ask(node, "GET", "/admin/tokens", basic)[0] == 401


def test_events_tell_what_happens_and_do_not_hold_up_the_end_of_the_node(node: RunningNode) -> None:
    connection = http.client.HTTPConnection(urlsplit(node.operator_url).netloc, timeout=10)
    connection.request("GET", "/approvals/events", headers={"authorization": f"Bearer {token(node, 'operator')}"})
    stream = connection.getresponse()
    assert stream.headers["content-type"].startswith("text/event-stream")
    with Client(node) as client:
        demand = client.held("plant.fire", {"path": "s3cret-name"})

        def told() -> Any:
            while not (line := stream.readline()).startswith(b"data: "):
                assert line, "the stream ended"
            assert b"s3cret-name" not in line
            return json.loads(line.removeprefix(b"data: "))

        assert (event := told())["id"] == demand["confirmation_id"], event
        denied = node.cli("deny", demand["confirmation_id"][:8], "--reason", "not today", "--json")
        assert json.loads(denied.stdout)["status"] == "denied"
        assert (told()["status"]) == "denied"
        refused = client.call("plant.fire", {"path": "s3cret-name"})
        assert "not today" in json.dumps(refused)
    begun = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - begun < STOP_SECONDS
    assert stream.read().strip() == b""
    stream.close()
    connection.close()


def test_status_says_that_somebody_waits(node: RunningNode) -> None:
    with Client(node) as client:
        client.held("plant.fire")
    assert node.admin("/admin/status")["approvals"]["waiting"] == 1
    assert "1 decision for you: interlock approvals" in node.cli("status").stdout
