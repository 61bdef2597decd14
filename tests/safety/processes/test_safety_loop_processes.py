"""The safety loop at a real node that is killed: an operator who has a key, an agent that has everything else."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gate.held_calls import ActuatorLog, actuator_table
from tests.support import intervals
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

SAFETY = """
[safety]
mode = "enforcing"
preapproved = true
agents.waiting = { preapproved = false }
agents.busy = {}
agents.coder = {}
"""
FAMILY = {"record_execution_step": "create", "verify_challenge": "create"}
SOON = {intervals.EXECUTIONS_FLUSH_S: 0.05}
LOOK = "calling plant.look to see what is there"


class Agent:
    def __init__(self, node: RunningNode, token: str) -> None:
        self.node, self.token = node, token
        self.received = b""

    def do(self, operation: str, **params: Any) -> Any:
        name = f"mcp_aql_{FAMILY.get(operation, 'execute')}"
        answer = self.call("/mcp/aql", name, {"operation": operation, "params": params})
        return json.loads(answer["result"]["content"][0]["text"])

    def call(self, path: str, tool: str, arguments: Any) -> Any:
        with Wire(self.node, path, self.token) as wire:
            answer = wire.modern("tools/call", {"name": tool, "arguments": arguments})
        self.received += answer.body
        return answer.message

    def step(self, name: str, hint: str) -> Any:
        return self.do("record_execution_step", element_name=name, nextActionHint=hint)


def run(node: RunningNode, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return node.cli(*words, "--json", env={**os.environ, "XDG_CONFIG_HOME": str(home)})


def entries_on_disk(node: RunningNode, bucket: str) -> list[bytes]:
    with contextlib.closing(sqlite3.connect(f"file:{node.data / 'store.db'}?mode=ro", uri=True)) as store:
        return [bytes(row[0]) for row in store.execute("SELECT value FROM kv WHERE bucket = ?", (bucket,))]


def make_key(home: Path) -> str:
    """The configuration of an approver with a key in this home."""
    words = [sys.executable, "-m", "interlock", "access", "key", "ada", "--no-passphrase", "--json"]
    subprocess.run(words, env={**os.environ, "XDG_CONFIG_HOME": str(home)}, capture_output=True, check=True, timeout=30)
    public = (home / "interlock" / "keys" / "ada.pub").read_text().strip()
    return f'[[anchor]]\nname = "ada"\nkey = {json.dumps(public)}\napproves = ["*"]\n'


@pytest.mark.req("AQL-8.8.3-5")
def test_a_block_reaches_agents_of_the_same_client_that_were_started_before(tmp_path: Path) -> None:
    servers = {"plant": actuator_table(ActuatorLog(tmp_path / "diary.jsonl"))}
    safety = (
        '[safety]\nmode = "enforcing"\npreapproved = true\n[approvals]\nchannels = ["command"]\ncommand = "/bin/true"\n'
    )
    with running_node(tmp_path, servers, safety) as node:
        agent = Agent(node, str(node.admin("/admin/tokens", "POST", {"name": "laptop", "for": "client"})["token"]))
        for name in ("helper", "coder"):
            assert agent.do("execute_agent", element_name=name)["data"]["status"] == "running"
        assert agent.step("helper", LOOK)["data"]["autonomy"]["continue"] is True
        assert agent.step("coder", "drop_table users")["data"]["autonomy"]["stopped"] is True
        called = agent.call("/mcp/flat", "plant.look", {})
        assert (called["error"]["code"], called["error"]["data"]["reason"]) == (32150, "agent_blocked")
        assert agent.step("helper", LOOK)["error"]["details"]["reason"] == "agent_blocked"


@pytest.mark.req("AQL-X-9", "AQL-8.8.3-3")
def test_a_block_survives_a_kill_and_only_an_operator_with_a_key_sees_the_code(tmp_path: Path) -> None:
    home, stranger = tmp_path / "home", tmp_path / "stranger"
    extra = make_key(home) + SAFETY
    servers = {"plant": actuator_table(ActuatorLog(tmp_path / "diary.jsonl"))}
    with running_node(tmp_path, servers, extra, settings=SOON) as node:
        token = json.loads(run(node, home, "access", "token", "--for", "client", "--name", "laptop").stdout)["token"]
        agent = Agent(node, token)
        for name, status in (("waiting", "pending"), ("busy", "running"), ("coder", "running")):
            assert agent.do("execute_agent", element_name=name)["data"]["status"] == status
        assert len(json.loads(run(node, home, "agents", "list").stdout)["agents"]) == 3
        wait_for(lambda: len(entries_on_disk(node, "executions")) == 3)
        stopped = agent.step("coder", "drop_table users")["data"]["autonomy"]
        node.process.kill()
        node.process.wait()
    assert stopped["stopped"] is True
    id = stopped["notifications"][-1]["metadata"]["verificationId"]
    with running_node(tmp_path, servers, extra, settings=SOON) as node:
        node.wait_link("plant", {"state": "ready"})
        again = Agent(node, token)
        found = {one["name"]: one for one in node.admin("/admin/agents")["agents"]}
        assert (found["coder"]["is_blocked"], found["coder"]["approval_id"]) == (True, id)
        assert (found["busy"]["status"], found["waiting"]["status"]) == ("failed", "cancelled")
        refused = again.do("execute_agent", element_name="coder")["error"]
        assert (refused["details"]["reason"], refused["details"]["verification_id"]) == ("agent_blocked", id)
        flat = again.call("/mcp/flat", "plant.look", {})
        assert (flat["error"]["code"], flat["error"]["data"]["reason"]) == (32150, "agent_blocked")
        for words in (("approvals", "show", id, "--code"), ("agents", "unblock", "coder", "--of", "client:laptop")):
            assert run(node, stranger, *words).returncode == 1  # being on the machine is no proof
        assert run(node, home, "approvals", "show", found["coder"]["approval_id"], "--code").returncode == 1
        shown = run(node, home, "agents", "unblock", "coder", "--code")
        assert shown.returncode == 0, shown.stderr
        secret = json.loads(shown.stdout)
        assert json.loads(run(node, home, "approvals", "show", secret["approval_id"], "--code").stdout) == secret
        answer = again.do("verify_challenge", challenge_id=secret["approval_id"], code=secret["code"])
        assert answer["data"] == {"verified": True, "element_name": "coder", "status": "unblocked"}
        assert again.do("execute_agent", element_name="coder")["data"]["status"] == "running"
        assert again.step("coder", "drop_table users")["data"]["autonomy"]["stopped"] is True
        assert run(node, home, "agents", "unblock", "coder").returncode == 0
        assert again.step("coder", LOOK)["data"]["autonomy"]["continue"] is True
        status = node.admin("/admin/status")["safety"]
        assert (status["mode"], status["blocked"]) == ("enforcing", 0)
    heard = agent.received + again.received + (tmp_path / "stderr.txt").read_bytes()
    heard += b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert secret["code"].encode() not in heard
    assert secret["code"].replace("-", "").encode() not in heard


DENYING = """
[gate]
mode = "open"
[safety]
mode = "enforcing"
preapproved = true
deny = ["plant.nudge", "rm -rf*"]
"""


@pytest.mark.req("AQL-X-17")
def test_an_approved_step_permits_the_calls_that_were_shown_and_nothing_denied(tmp_path: Path) -> None:
    home, diary = tmp_path / "home", ActuatorLog(tmp_path / "diary.jsonl")
    with running_node(tmp_path, {"plant": actuator_table(diary)}, make_key(home) + DENYING, settings=SOON) as node:
        node.wait_link("plant", {"state": "ready"})

        def approved(client: str, hint: str) -> tuple[Agent, Any]:
            """An agent whose step a person approved, for a reason that has nothing to do with the tools in it."""
            made = run(node, home, "access", "token", "--for", "client", "--name", client).stdout
            agent = Agent(node, json.loads(made)["token"])
            agent.do("execute_agent", element_name="coder")
            asked = agent.step("coder", hint)["data"]
            assert asked["autonomy"]["continue"] is False and "stopped" not in asked["autonomy"]
            shown = json.loads(run(node, home, "approvals", "show", asked["confirmation_id"]).stdout)
            assert run(node, home, "approve", asked["confirmation_id"], "--yes").returncode == 0
            return agent, shown["params"]["calls"]

        def reason(agent: Agent, tool: str, **arguments: Any) -> str:
            return str(agent.call("/mcp/flat", tool, arguments)["error"]["data"]["reason"])

        agent, calls = approved("quoting", 'preparing deploy_app with plant.look, see the note "plant.nudge" on it')
        assert calls == ["plant.look"]
        assert reason(agent, "plant.nudge") == "unreported_action"
        assert "result" in agent.call("/mcp/flat", "plant.look", {})

        agent, calls = approved("naming", "preparing deploy_app with nudge and look")
        assert calls == ["plant.look", "plant.nudge"]
        assert reason(agent, "plant.nudge") == "paused"  # the person agreed, and it is denied all the same
        wait_for(lambda: node.admin("/admin/status")["safety"]["blocked"] == 1)
        assert reason(agent, "plant.look") == "agent_blocked"

        agent, calls = approved("arguing", "preparing deploy_app with plant.look")
        assert reason(agent, "plant.look", args=["-rf", "/"], command="rm") == "paused"
        wait_for(lambda: node.admin("/admin/status")["safety"]["blocked"] == 2)
    assert [entry["tool"] for entry in diary.read()] == ["look"]


@pytest.mark.req("AQL-8.7.2-2", "AQL-8.7.2-3")
def test_the_step_limit_counts_for_the_agent_whatever_it_starts_again_or_is_called(tmp_path: Path) -> None:
    home, hint = tmp_path / "home", "writing a note about the roses"
    limited = '[safety]\nmode = "enforcing"\npreapproved = true\nmax_autonomous_steps = 3\n[safety.agents.named]\n'
    servers = {"plant": actuator_table(ActuatorLog(tmp_path / "diary.jsonl"))}
    extra = make_key(home) + limited
    with running_node(tmp_path, servers, extra, settings=SOON) as node:
        token = json.loads(run(node, home, "access", "token", "--for", "client", "--name", "laptop").stdout)["token"]
        agent = Agent(node, token)

        def left(name: str) -> Any:
            """Of the steps of a new execution, after its first one."""
            assert agent.do("execute_agent", element_name=name)["data"]["status"] == "running"
            asked = agent.step(name, hint)["data"]["autonomy"]
            agent.do("abort_execution", element_name=name)
            assert asked["continue"] is (asked["stepsRemaining"] > 0 or "reason" not in asked)
            return asked["stepsRemaining"] if asked["continue"] else asked["reason"]

        assert [left("coder"), left("coder"), left("named")] == [2, 1, 2]
        assert [left("other"), left("another")] == [0, "Step limit exceeded"]  # they share the count of their client
        wait_for(lambda: sorted(json.loads(each)["count"] for each in entries_on_disk(node, "agent-steps")) == [1, 4])
    with running_node(tmp_path, servers, extra, settings=SOON) as node:
        agent = Agent(node, token)
        assert [left("named"), left("coder")] == [1, "Step limit exceeded"]
        agent.do("execute_agent", element_name="coder")
        paused = agent.step("coder", hint)["data"]
        assert run(node, home, "approve", paused["confirmation_id"], "--yes").returncode == 0
        again = agent.step("coder", hint)["data"]["autonomy"]
        assert (again["continue"], again["stepsRemaining"]) == (True, 2)


@pytest.mark.req("AQL-8.6.1-2")
def test_every_client_that_is_required_includes_those_without_a_token(tmp_path: Path) -> None:
    servers = {"plant": actuator_table(ActuatorLog(tmp_path / "diary.jsonl"))}
    safety = '[safety]\nmode = "enforcing"\nrequire = ["client:*"]\n'
    with running_node(tmp_path, servers, safety) as node:
        node.wait_link("plant", {"state": "ready"})
        token = str(node.admin("/admin/tokens", "POST", {"name": "laptop", "for": "client"})["token"])
        for credential in (token, None):
            with Wire(node, "/mcp/flat", credential) as wire:
                called = wire.modern("tools/call", {"name": "plant.look", "arguments": {}}).message
                assert called["error"]["data"]["reason"] == "execution_required"
            with Wire(node, "/mcp/flat", credential) as wire:
                wire.initialize()
                called = wire.legacy("tools/call", {"name": "plant.look", "arguments": {}}).message
                assert called["error"]["data"]["reason"] == "execution_required"
        done = node.cli("tools", "call", "plant.look")
        assert (done.returncode, "execution_required" in done.stderr) == (1, True), done.stderr
