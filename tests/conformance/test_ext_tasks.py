"""Does the official requester for tasks, which nobody here wrote, get its tasks through a node, in both eras?"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import toolbox
from tests.support.node_process import RunningNode
from tests.support.task_servers import RELATED, node_of_tasks

PROGRAM = Path(__file__).with_name("ext_tasks.mjs")
TEXT = [{"type": "text", "text": "done"}]
SERVERS = {"legacy": ("old_stdio", "old_http"), "modern": ("new_stdio", "new_http")}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with node_of_tasks(tmp_path_factory.mktemp("ext-tasks")) as running:
        yield running


def told(node: RunningNode, era: str, link: str, outcome: Any) -> Any:
    """What the program did: a task that ends at once, and one that it cancels."""
    ids = [f"{link} {kind}" for kind in ("quick", "slow")]
    trial = {"url": f"{node.url}/mcp", "era": era, "tool": f"{link}__job"}
    trial |= {"quick": {"id": ids[0], "outcome": outcome}, "slow": {"id": ids[1]}}
    done = subprocess.run(
        [str(toolbox.node()), "--input-type=module", "--eval", PROGRAM.read_text()],
        cwd=toolbox.npm_packages().parent,
        env={**os.environ, "TRIAL": json.dumps(trial)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("link", SERVERS["legacy"])
def test_the_requester_runs_lists_and_cancels_tasks_of_2025_11_25(node: RunningNode, link: str) -> None:
    said = told(node, "legacy", link, {"content": TEXT})
    assert said["kind"] == "task"
    assert said["id"].startswith(f"{link}.")
    assert said["result"] == {"content": TEXT, "_meta": {RELATED: {"taskId": said["id"], "x-own": [1]}}}
    assert said["cancelled"] == "cancelled"
    assert [status for task, status in said["listed"] if task.startswith(link)] == ["completed", "cancelled"]
    assert said["capabilities"]["cancellation"]


@pytest.mark.parametrize("link", SERVERS["modern"])
def test_the_requester_runs_and_cancels_tasks_of_the_extension(node: RunningNode, link: str) -> None:
    said = told(node, "modern", link, {"resultType": "complete", "content": TEXT})
    assert said["kind"] == "task"
    assert said["id"].startswith(f"{link}.")
    assert said["result"] == {"resultType": "complete", "content": TEXT}
    assert said["cancelled"] == "cancelled"
