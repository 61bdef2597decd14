"""Two replicas of a node on one store: what is decided, issued or revoked at one counts at the other."""

import concurrent.futures
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.processes.test_gate_grants import granted, ran, shown
from tests.gate.held_calls import ANCHORED, MARK, ActuatorLog, Client, actuator_table, approve, classify, deny, proof
from tests.safety.processes.test_safety_loop_processes import SAFETY, Agent
from tests.store.nats_server import NatsServer
from tests.support.node_process import RunningNode, Wire, running_node, wait_for, write_config
from tests.support.replicas import SOON, Replicas, replica_config, running_replicas

pytestmark = [pytest.mark.timeout(120)]

FIRE = "plant.fire"
TRIES = 20
RULES = [{"at": "/n", "kind": "equals", "value": "granted"}]


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    with running_replicas(folder, {"plant": actuator_table(diary)}, ANCHORED) as running:
        for node in (running.one, running.other):
            node.wait_link("plant", {"state": "ready"})
        yield running


def status_of(node: RunningNode, demand: Any) -> str | None:
    found = node.admin(f"/approvals/{demand['confirmation_id']}")
    return found.get("status")


def test_replicas_are_one_aggregator(replicas: Replicas) -> None:
    ids = [node.admin("/admin/status")["node"]["aggregator_id"] for node in (replicas.one, replicas.other)]
    assert ids[0] == ids[1]
    for node in (replicas.one, replicas.other):
        wait_for(lambda node=node: node.admin("/admin/status")["node"]["replicas"] == 2)  # type: ignore[misc]
        assert "one of 2 replicas" in node.cli("status").stdout
    assert (replicas.one.data / "identity.json").read_bytes() == (replicas.other.data / "identity.json").read_bytes()


@pytest.mark.req("AX-11.3-11")
def test_a_call_approved_at_one_replica_runs_once_over_both(replicas: Replicas, diary: ActuatorLog) -> None:
    arguments = {"n": "over both"}
    with Client(replicas.one) as client:
        demand = client.held(FIRE, arguments)
    wait_for(lambda: status_of(replicas.other, demand) == "pending")
    approve(replicas.other, demand)
    wait_for(lambda: status_of(replicas.one, demand) == "approved")

    def call(node: RunningNode) -> Any:
        with Client(node) as client:
            return client.call(FIRE, arguments)

    with concurrent.futures.ThreadPoolExecutor(TRIES) as pool:
        results = list(pool.map(call, [replicas.one, replicas.other] * (TRIES // 2)))
    assert sum(not result.get("isError") for result in results) == 1
    assert [one["arguments"] for one in diary.read("fire")].count(arguments) == 1
    held = [result["_meta"][MARK] for result in results if result.get("isError")]
    assert {one["status"] for one in held} <= {"confirmation_required", "confirmation_used"}
    wait_for(lambda: {status_of(node, demand) for node in (replicas.one, replicas.other)} == {"done"})


def test_a_no_at_one_replica_is_a_no_at_the_other(replicas: Replicas) -> None:
    with Client(replicas.one) as here, Client(replicas.other) as there:
        demand = here.held(FIRE, {"n": "no"})
        wait_for(lambda: status_of(replicas.other, demand) == "pending")
        assert there.held(FIRE, {"n": "no"})["confirmation_id"] == demand["confirmation_id"]
        deny(replicas.other, demand, "not today")
        wait_for(lambda: status_of(replicas.one, demand) == "denied")
        said = here.call(FIRE, {"n": "no"})["_meta"][MARK]
        assert said["status"] == "confirmation_denied"


def test_a_proof_that_one_replica_took_the_other_does_not_take(replicas: Replicas) -> None:
    with Client(replicas.one) as here:
        first, second = here.held(FIRE, {"n": "proof 1"}), here.held(FIRE, {"n": "proof 2"})
    for one in (first, second):
        wait_for(lambda one=one: status_of(replicas.other, one) == "pending")  # type: ignore[misc]
    approve_with(replicas.one, first, "the-same-jti")
    refused = decide(replicas.other, second, proof(second, jti="the-same-jti"))
    assert "replay" in json.dumps(refused), refused


def approve_with(node: RunningNode, demand: Any, jti: str) -> None:
    assert decide(node, demand, proof(demand, jti=jti))["status"] == "approved"


def decide(node: RunningNode, demand: Any, token: str) -> Any:
    return node.admin(f"/approvals/{demand['confirmation_id']}", "POST", {"decision": "approve", "proof": token})


def test_a_tools_class_at_one_replica_is_its_class_at_the_other(replicas: Replicas) -> None:
    with Client(replicas.one) as here, Client(replicas.other) as there:
        demand = here.held("plant.silent", {})
        decided = classify(replicas.one, demand, "read_only")
        assert decided["status"] == "done", decided
        wait_for(lambda: not there.call("plant.silent", {}).get("isError"))


@pytest.mark.req("AX-11.3-11")
def test_a_standing_grant_is_used_as_often_as_it_says_over_all_replicas(replicas: Replicas) -> None:
    grant = granted(replicas.one, RULES, calls=3)
    with Client(replicas.one) as here, Client(replicas.other) as there:
        wait_for(lambda: shown(replicas.other, grant).get("state") == "active")
        results = [client.call(FIRE, {"n": "granted"}) for client in (here, there, here, there, here)]
    assert [ran(one) for one in results] == [True, True, True, False, False]


def test_tokens_of_one_replica_open_the_other_until_they_are_revoked(replicas: Replicas) -> None:
    made = replicas.one.admin("/admin/tokens", "POST", {"name": "wanderer", "for": "client"})

    def answered() -> int:
        with Wire(replicas.other, token=made["token"]) as wire:
            return wire.modern("tools/list").status

    wait_for(lambda: answered() == 200)
    replicas.one.admin("/admin/tokens/wanderer", "DELETE")
    wait_for(lambda: answered() == 401)


@pytest.mark.req("AQL-8.8.3-3")
def test_an_agent_that_one_replica_blocked_is_blocked_at_the_other(tmp_path: Path) -> None:
    servers = {"plant": actuator_table(ActuatorLog(tmp_path / "diary"))}
    with running_replicas(tmp_path, servers, ANCHORED + SAFETY) as running:
        made = running.one.admin("/admin/tokens", "POST", {"name": "laptop", "for": "client"})
        here, there = Agent(running.one, made["token"]), Agent(running.other, made["token"])
        assert here.do("execute_agent", element_name="coder")["data"]["status"] == "running"
        assert here.step("coder", "drop_table users")["data"]["autonomy"]["stopped"] is True
        running.other.wait_link("plant", {"state": "ready"})

        def refused() -> bool:
            said = there.call("/mcp/flat", "plant.look", {})
            return said.get("error", {}).get("data", {}).get("reason") == "agent_blocked"

        wait_for(refused)
        (waits,) = running.other.admin("/approvals?kind=verify")["approvals"]
        said = running.other.admin(f"/approvals/{waits['id']}", "POST", {"decision": "deny"})
        assert "another replica" in json.dumps(said), said


@pytest.mark.req("AQL-8.8.3-3")
def test_a_block_that_the_store_did_not_take_is_refused_and_reaches_all_later(tmp_path: Path) -> None:
    servers = {"plant": actuator_table(ActuatorLog(tmp_path / "diary"))}
    with running_replicas(tmp_path, servers, ANCHORED + SAFETY) as running:
        made = running.one.admin("/admin/tokens", "POST", {"name": "laptop", "for": "client"})
        here, there = Agent(running.one, made["token"]), Agent(running.other, made["token"])
        assert here.do("execute_agent", element_name="coder")["data"]["status"] == "running"
        running.other.wait_link("plant", {"state": "ready"})
        assert "result" in there.call("/mcp/flat", "plant.look", {})
        running.server.pause()
        refused = here.step("coder", "drop_table users")
        assert refused["success"] is False, refused
        blocked = here.call("/mcp/flat", "plant.look", {})["error"]["data"]["reason"]
        assert blocked == "agent_blocked"  # it counts here at once
        running.server.kill()  # with what it had not read
        running.server.start()

        def is_blocked_there() -> bool:
            said = there.call("/mcp/flat", "plant.look", {})
            return said.get("error", {}).get("data", {}).get("reason") == "agent_blocked"

        wait_for(is_blocked_there, 20.0)
        wait_for(lambda: running.other.admin("/approvals?kind=verify")["approvals"], 20.0)
        assert running.one.admin("/admin/status")["safety"]["blocked"] == 1


def test_a_call_begun_by_a_killed_replica_is_reported_as_unknown(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary")
    with running_replicas(tmp_path, {"plant": actuator_table(diary)}, ANCHORED) as running:
        running.other.wait_link("plant", {"state": "ready"})
        running.one.wait_link("plant", {"state": "ready"})
        go_on = tmp_path / "go on"
        arguments = {"until": str(go_on)}
        with Client(running.one) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
            demand = client.held("plant.hold", arguments)
            approve(running.one, demand)
            under_way = pool.submit(client.ask, "tools/call", {"name": "plant.hold", "arguments": arguments})
            wait_for(lambda: status_of(running.other, demand) == "used")
            running.one.process.send_signal(signal.SIGKILL)
            running.one.process.wait()
            with pytest.raises(Exception):  # noqa: B017  # its connection is gone, in one way or another
                under_way.result()
        wait_for(lambda: status_of(running.other, demand) == "unknown", 20.0)


def test_without_the_store_what_needs_it_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary")
    with running_replicas(tmp_path, {"plant": actuator_table(diary)}, ANCHORED) as running:
        running.one.wait_link("plant", {"state": "ready"})
        with Client(running.one) as client:
            demand = client.held(FIRE, {"n": 1})
            approve(running.one, demand)
            running.server.kill()
            assert not client.call("plant.look", {}).get("isError")
            assert client.refused(FIRE, {"n": 1})["code"] == 32131
            assert client.refused(FIRE, {"n": 2})["code"] == 32131
            assert not diary.read("fire")
            running.server.start()

            def is_back() -> bool:
                answer = client.ask("tools/call", {"name": FIRE, "arguments": {"n": 1}})
                return "result" in answer and not answer["result"].get("isError")

            wait_for(is_back, 20.0)
            assert len(diary.read("fire")) == 1


def test_a_data_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        with running_node(tmp_path / "alone", {}) as alone:
            assert alone.process.poll() is None
        with running_node(tmp_path / "first", {}, replica_config(server, ""), settings=SOON):
            pass
        config = write_config(tmp_path / "alone", {}, replica_config(server, ""))
        words = [sys.executable, "-m", "interlock", "serve", "--json", "--config", config, "--data", alone.data]
        refused = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert refused.returncode == 1
        assert "belongs to another node" in json.loads(refused.stdout)["message"]
    finally:
        server.kill()
