"""Does a node take the descriptors it may have, and park no more calls than they allow?"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.process.limits import WANTED

resource = pytest.importorskip("resource", reason="no such limits here")

PROGRAM = """
import json, os, resource, sys
from pathlib import Path
from interlock.config.load import load
from interlock.process import limits as descriptors
from interlock.node.node import Node

soft, hard, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
descriptors.raise_descriptor_limit()
(folder / "interlock.toml").write_text("")
plan = load(folder / "interlock.toml", os.environ, {"data": str(folder / "data")}).plan
node = Node(plan, lambda operations, authenticate: None)
limits = resource.getrlimit(resource.RLIMIT_NOFILE), descriptors.descriptor_limit()
print(json.dumps([*limits, node.calls.dispatch.under_way.parking.room]))
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 900), (900, 900)])
def test_a_node_raises_its_limit_as_far_as_it_may(tmp_path: Path, soft: int, hard: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    limits, known, room = json.loads(ran.stdout)
    assert (limits, known, room) == ([900, 900], 900, 600)


def test_a_node_takes_no_more_than_it_can_use(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= WANTED:
        pytest.skip("this machine grants no more than that")
    command = [sys.executable, "-c", PROGRAM, "1024", str(hard), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(ran.stdout)[1] == WANTED
