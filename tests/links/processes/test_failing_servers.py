"""A server that fails for a reason of its own: does the operator see why, and is it served well once it is mended?"""

import sys
from pathlib import Path

from tests.servers.start import raw
from tests.support.node_process import running_node

# Ends in order the first few times, whatever it is asked; then it is a server of both eras.
ENDS_FIRST = """
import os, pathlib, sys
count = pathlib.Path(sys.argv[1])
started = int(count.read_text()) if count.exists() else 0
count.write_text(str(started + 1))
if started < int(sys.argv[2]):
    sys.exit(0)
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


def test_a_server_that_ended_before_it_answered_is_asked_again_for_its_era(tmp_path: Path) -> None:
    program = tmp_path / "ends_first.py"
    program.write_text(ENDS_FIRST)
    both = raw("all")[1:]
    servers = {
        f"after{times}": {"command": [sys.executable, str(program), str(tmp_path / f"{times}.txt"), str(times), *both]}
        for times in (0, 1)
    }
    with running_node(tmp_path / "node", servers) as node:
        for segment in servers:
            node.wait_link(segment, {"state": "ready"})
        assert {segment: node.link(segment)["era"] for segment in servers} == dict.fromkeys(servers, "modern")


def test_the_status_shows_the_last_output_of_a_dead_server_and_a_missing_variable(tmp_path: Path) -> None:
    words = "import sys; print('first', file=sys.stderr); print('no such repository', file=sys.stderr); sys.exit(3)"
    servers = {
        "dead": {"command": [sys.executable, "-c", words]},
        "needy": {"command": [sys.executable, "-c", "pass"], "env": {"KEY": "${env:NOT_SET_ANYWHERE}"}},
        "good": {"command": raw("all")},
    }
    with running_node(tmp_path, servers) as node:
        node.wait_link("good", {"state": "ready"})
        node.wait_link("dead", {"state": "failed"})
        assert node.link("dead")["last_words"] == "no such repository"
        needy = node.wait_link("needy", {"state": "failed"})
        assert "environment variable NOT_SET_ANYWHERE" in needy["reason"]
        status = node.cli("status").stdout
        assert "it wrote: no such repository" in status
        assert "NOT_SET_ANYWHERE" in status
