"""A node that is killed at any step: never two dispatches, never a lost approval, and an honest word about the outcome.

Each test kills the node at one step of one approved call, starts it again on the same data, and looks: at what the
actuator did, at what the record says, and at what the next identical call does.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from tests import preloaded
from tests.gate.actuator_server import command
from tests.gate.held_calls import ANCHORED, ERAS, MARK, ActuatorLog, Client, actuator_table, approve, proof
from tests.servers.start import serving
from tests.support.node_process import RunningNode, running_node, wait_for

MORTAL = Path(__file__).parents[1] / "dying_node.py"
# step -> the status afterwards, how often it was done, whether the next identical call runs it
STEPS = {
    "create:pending:before": (None, {0}, False),
    "create:pending:after": ("pending", {0}, False),
    "update:approved:before": ("pending", {0}, False),
    "update:approved:after": ("approved", {0}, True),
    "update:used:before": ("approved", {0}, True),
    "update:used:after": ("unknown", {0}, False),
    "sent": ("unknown", {0, 1}, False),
    "heard": ("unknown", {1}, False),
    "update:done:before": ("unknown", {1}, False),
    "update:done:after": ("done", {1}, False),
}


def mortal(step: str) -> dict[str, str]:
    return {"MORTAL": step, preloaded.FIRST: str(MORTAL)}


def live_and_die(node: RunningNode, era: str) -> None:
    """Make the call, have it approved, make it again; until the node is gone."""
    with contextlib.suppress(OSError, EOFError, ValueError, AssertionError), Client(node, era) as client:
        approve(node, client.held("plant.fire", {"n": 1}))
        client.call("plant.fire", {"n": 1})
        node.process.wait(timeout=20)
    assert node.process.wait(timeout=20) == -9


def statuses(node: RunningNode) -> list[str]:
    found = node.admin("/approvals?status=all")["approvals"]
    return [one["status"] for one in found]


@pytest.mark.req("AX-11.3-11")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step(tmp_path: Path, step: str, era: str) -> None:
    expected, counts, runs = STEPS[step]
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    servers = {"plant": actuator_table(diary, era)}
    with running_node(tmp_path / "node", servers, ANCHORED, env=mortal(step)) as node:
        node.wait_link("plant", {"state": "ready"})
        live_and_die(node, era)
    done = len(diary)
    assert done in counts
    with running_node(tmp_path / "node", servers, ANCHORED) as node, Client(node, era) as client:
        node.wait_link("plant", {"state": "ready"})
        assert statuses(node) == ([] if expected is None else [expected])
        result: dict[str, Any] = client.call("plant.fire", {"n": 1})
        assert (result.get("isError") is not True) is runs
        assert len(diary) == done + runs
        if not runs:
            demand = result["_meta"][MARK]
            assert client.confirm(demand, proof(demand))["result"]["structuredContent"] == {"did": "fire"}
            assert len(diary) == done + 1
        verified = node.cli("audit", "verify")
        assert verified.returncode == 0, verified.stdout


def test_twenty_redemptions_at_once_and_a_kill_in_the_middle_dispatch_at_most_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    diary = ActuatorLog(tmp_path / "diary.jsonl")
    servers = {"plant": actuator_table(diary)}
    with running_node(tmp_path / "node", servers, ANCHORED, env=mortal("sent")) as node:
        node.wait_link("plant", {"state": "ready"})
        with Client(node) as client:
            approve(node, client.held("plant.fire", {"n": 1}))

        def call(_: int) -> None:
            with contextlib.suppress(OSError, EOFError, ValueError, AssertionError), Client(node) as one:
                one.call("plant.fire", {"n": 1})

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(call, range(20)))
        assert node.process.wait(timeout=20) == -9
    assert len(diary) <= 1
    done = len(diary)
    with running_node(tmp_path / "node", servers, ANCHORED) as node, Client(node) as client:
        node.wait_link("plant", {"state": "ready"})
        assert "approved" not in statuses(node)
        client.held("plant.fire", {"n": 1})
        assert len(diary) == done


def test_a_server_that_says_it_forgot_the_session_does_not_get_the_call_twice(tmp_path: Path) -> None:
    """Whether it looked at the call before it said so is only its word: an approved call is not sent again."""
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with (
        serving(command(diary.path, "--era", "legacy", "--forget-after", "1")) as url,
        running_node(tmp_path / "node", {"plant": {"url": url}}, ANCHORED) as node,
        Client(node) as client,
    ):
        node.wait_link("plant", {"state": "ready"})
        demand = client.held("plant.fire")
        approve(node, demand)
        client.call("plant.look", {"n": 1})
        error = client.refused("plant.fire")
        assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", "unknown")
        assert not diary.read("fire")
        wait_for(lambda: node.admin(f"/approvals/{demand['confirmation_id']}")["status"] == "unknown")
        node.wait_link("plant", {"state": "ready"})
        assert client.call("plant.look", {"n": 2})["structuredContent"] == {"did": "look"}
        client.held("plant.fire")
        assert not diary.read("fire")


def test_a_server_that_dies_with_the_call_leaves_its_outcome_unknown_and_is_not_asked_again(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with running_node(tmp_path / "node", {"plant": actuator_table(diary)}, ANCHORED) as node, Client(node) as client:
        pid = node.wait_link("plant", {"state": "ready"})["pid"]
        arguments = {"until": str(tmp_path / "never")}
        demand = client.held("plant.hold", arguments)
        approve(node, demand)
        from threading import Thread

        answers: list[Any] = []
        thread = Thread(
            target=lambda: answers.append(client.ask("tools/call", {"name": "plant.hold", "arguments": arguments}))
        )
        thread.start()
        wait_for(lambda: diary.read("hold"))
        os.kill(pid, 9)
        thread.join(20)
        (answer,) = answers
        assert answer["error"]["data"]["outcome"] == "unknown"
        node.wait_link("plant", {"state": "ready"})
        ended = wait_for(
            lambda: (one := node.admin(f"/approvals/{demand['confirmation_id']}"))["status"] == "unknown" and one
        )
        assert ended.get("params") is None
        client.held("plant.hold", arguments)
        assert len(diary.read("hold")) == 1
