"""Does everything in a sandbox end with it, and with the node? What a server starts on its own is no exception."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers.caging import attempt, find_marked_processes, hostile, needs_sandbox, process_mark, wait_until_none
from tests.support import intervals
from tests.support.node_process import RunningNode, running_node, wait_for

pytestmark = needs_sandbox

GONE_S = 6.0  # AIP-transport-4
SOONER = {intervals.INPUT_GRACE_S: 0.3, intervals.TERM_GRACE_S: 0.3}  # instead of 2 and 3 s
GONE_SOONER_S = 2.5


def end(number: signal.Signals) -> Callable[[RunningNode], None]:
    def ended(node: RunningNode) -> None:
        node.process.send_signal(number)

    return ended


ENDINGS = {
    "SIGTERM": end(signal.SIGTERM),
    "SIGINT": end(signal.SIGINT),
    "SIGKILL": end(signal.SIGKILL),
}


@pytest.mark.req("AIP-transport-4")
@pytest.mark.parametrize("ending", ENDINGS)
def test_no_descendant_of_a_sandboxed_server_survives_the_node(tmp_path: Path, ending: str) -> None:
    mark, deaf = process_mark(), process_mark()
    servers = {
        "caged": {"command": hostile("--mark", mark), "egress": ["localhost"]},
        "deaf": {"command": hostile("--deaf", "--mark", deaf), "egress": []},
    }
    with running_node(tmp_path, servers, settings=SOONER) as node:
        before = len(find_marked_processes(mark))
        assert attempt(node, "caged", "fork_away") == {"done": "away"}
        wait_for(lambda: len(find_marked_processes(mark)) > before)
        assert find_marked_processes(deaf)
        ENDINGS[ending](node)
        wait_until_none(mark, GONE_SOONER_S)
        wait_until_none(deaf, GONE_SOONER_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.process.wait(timeout=GONE_S)


def test_without_a_sandbox_what_forks_away_survives_the_node(tmp_path: Path) -> None:
    mark = process_mark()
    with running_node(tmp_path, {"free": {"command": hostile("--mark", mark)}}) as node:
        before = set(find_marked_processes(mark))
        assert attempt(node, "free", "fork_away") == {"done": "away"}
        (away,) = wait_for(lambda: set(find_marked_processes(mark)) - before)
        node.stop()
    assert find_marked_processes(mark) == [away]
    os.kill(away, signal.SIGKILL)


def test_a_server_that_is_restarted_leaves_nothing_of_its_former_sandbox(tmp_path: Path) -> None:
    mark = process_mark()
    with running_node(tmp_path, {"caged": {"command": hostile("--mark", mark), "egress": []}}) as node:
        assert attempt(node, "caged", "fork_away") == {"done": "away"}
        former = set(find_marked_processes(mark))
        assert node.cli("links", "restart", "caged").returncode == 0
        wait_for(lambda: not former & set(find_marked_processes(mark)), GONE_S)
        node.wait_link("caged", {"state": "ready"})
        assert attempt(node, "caged", "run", "true") == {"done": ""}


def test_a_server_that_is_killed_from_outside_takes_its_sandbox_with_it_and_comes_back(tmp_path: Path) -> None:
    mark = process_mark()
    with running_node(tmp_path, {"caged": {"command": hostile("--mark", mark), "egress": []}}) as node:
        attempt(node, "caged", "fork_away")
        former, pid = set(find_marked_processes(mark)), node.link("caged")["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not former & set(find_marked_processes(mark)), GONE_S)
        node.wait_link("caged", {"state": "ready"})


def test_a_server_in_a_sandbox_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    script = tmp_path / "patient" / "server.py"
    script.parent.mkdir()
    script.write_text(PATIENT)
    server = {"command": [sys.executable, str(script), str(told / "ended")], "files": [str(told)]}
    with running_node(tmp_path, {"caged": server}, settings={intervals.INPUT_GRACE_S: 0.3}) as node:
        node.wait_link("caged", {"state": "ready"})
        node.stop()
    assert (told / "ended").read_text() == "asked"


PATIENT = """
import json, pathlib, signal, sys, time
def asked(number, frame):
    pathlib.Path(sys.argv[1]).write_text("asked")
    sys.exit(0)
signal.signal(signal.SIGTERM, asked)
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"tools": []} if message["method"] == "tools/list" else {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "p", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
while True:
    time.sleep(1)
"""
