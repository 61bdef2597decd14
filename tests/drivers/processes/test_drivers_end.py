"""When the node ends, however it ends: is anything left of the servers its drivers started?"""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.drivers.driver_node import Workspace, alive, wait_states
from tests.support import intervals
from tests.support.node_process import wait_for

SOONER = {intervals.INPUT_GRACE_S: 0.3, intervals.TERM_GRACE_S: 0.3}  # instead of 2 and 3 s
WITHIN_S = 2.5
SERVERS = {"plain-mcp": (), "stubborn-mcp": ("--ignores-term",), "forking-mcp": ("--forks",)}


def started(workspace: Workspace) -> list[int]:
    return [pid for id in SERVERS for pid in workspace.pids(id)]


@pytest.mark.req("AIP-transport-4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_no_process_of_any_driver_outlives_the_node(tmp_path: Path, number: signal.Signals) -> None:
    workspace = Workspace(tmp_path)
    for id, options in SERVERS.items():
        workspace.add(id, *options, tools={"echo": f"demo.{id[:-4]}"})
    with workspace.node(SOONER) as node:
        wait_states(node, "ready", *SERVERS)
        wait_for(lambda: len(started(workspace)) == 4)  # one forked
        assert all(map(alive, started(workspace)))
        began = time.monotonic()
        os.kill(node.process.pid, number)
        wait_for(lambda: not any(map(alive, started(workspace))), WITHIN_S + 10)
        took = time.monotonic() - began
    assert took < WITHIN_S
