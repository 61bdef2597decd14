"""Nodes that lose their parent, real processes all: they move to the backup, and the way through it works."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.ax.tree import ACCESS, ax_url, parent, parents, wait_parent
from tests.servers.start import raw
from tests.support import intervals
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

INTERVAL_S = 2.0
BEATING = {intervals.HEARTBEAT_MS: int(INTERVAL_S * 1000)}
TREE = dict[str, RunningNode]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[TREE]:
    """root over east and west; gate below east, with west as its backup."""
    with ExitStack() as stack:
        nodes = {"root": stack.enter_context(running_node(tmp_path / "root", {}, ACCESS))}
        for name in ("east", "west"):
            said = parents((ax_url(nodes["root"]), name)) + ACCESS
            nodes[name] = stack.enter_context(running_node(tmp_path / name, {}, said, settings=BEATING))
        said = parents((ax_url(nodes["east"]), "gate"), (ax_url(nodes["west"]), "gate")) + ACCESS
        bench = {"bench": {"command": raw("all")}}
        nodes["gate"] = stack.enter_context(running_node(tmp_path / "gate", bench, said, settings=BEATING))
        stack.callback(lambda: nodes["east"].process.kill())  # also when it is frozen
        wait_for(lambda: _answers(nodes["root"], "east__gate__bench__echo"))
        yield nodes


def _answers(node: RunningNode, name: str) -> bool:
    with Wire(node) as wire:
        return "result" in wire.modern("tools/call", {"name": name, "arguments": {}}).message


@pytest.mark.req("AX-13.3-3")
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_subtree_is_back_through_the_backup_before_three_intervals_are_over(tree: TREE, blow: int) -> None:
    tree["east"].process.send_signal(blow)
    struck = time.monotonic()
    wait_for(lambda: _answers(tree["root"], "west__gate__bench__echo"), 3 * INTERVAL_S)
    assert time.monotonic() - struck < 3 * INTERVAL_S
    with Wire(tree["root"]) as wire:
        error = wire.modern("tools/call", {"name": "east__gate__bench__echo", "arguments": {}}).message["error"]
    assert error["code"] in (32002, -32601)
    assert parent(tree["gate"], 1)["state"] == "registered"
    assert parent(tree["gate"], 0)["state"] in ("waiting", "standby")
    assert tree["gate"].admin("/admin/status")["parents"][0]["reason"]


def test_a_ring_of_nodes_does_not_close(tmp_path: Path) -> None:
    servers = {"bench": {"command": raw("all")}}
    with ExitStack() as stack:
        first = stack.enter_context(running_node(tmp_path / "first", servers, ACCESS))
        listen = f'[node]\nlisten = "127.0.0.1:{first.port}"\noperator_listen = "127.0.0.1:0"\n'
        second = stack.enter_context(running_node(tmp_path / "second", {}, ACCESS + parents((ax_url(first), "second"))))
        wait_parent(second, {"state": "registered"})
        third = stack.enter_context(running_node(tmp_path / "third", {}, ACCESS + parents((ax_url(second), "third"))))
        wait_parent(third, {"state": "registered"})
        assert first.stop() == 0
        closing = ACCESS + parents((ax_url(third), "first")) + listen
        nodes = (stack.enter_context(running_node(tmp_path / "first", servers, closing)), second, third)
        # Whoever would close the ring is refused; two that try at once may both be.
        refused = wait_for(
            lambda: [one for one in nodes if "registration_cycle" in str(parent(one)["reason"])], seconds=30
        )
        assert all("remove it" in parent(one)["next_step"] for one in refused)
        assert "registered" in {parent(one)["state"] for one in nodes}
        assert {parent(one)["state"] for one in nodes} != {"registered"}


def test_a_node_that_is_its_own_parent_is_refused(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ACCESS) as before:
        port = before.port
    listen = f'[node]\nlisten = "127.0.0.1:{port}"\noperator_listen = "127.0.0.1:0"\n'
    with running_node(tmp_path, {}, ACCESS + parents((f"ws://127.0.0.1:{port}/ax", "self")) + listen) as node:
        assert "registration_cycle" in wait_parent(node, {"state": "waiting"})["reason"]
