"""One node in front of servers of both eras that make tasks, started once for all tests; and words for what tests do.

Each module of tests makes a fixture of `planted`. Tests name their tasks themselves, with a label each, so that they do
not meet. `SERVERS` of one era are reached over stdio and over HTTP; `plain_*` make no tasks.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.servers.rawserver.tasks import MADE_AT
from tests.servers.start import raw, serving
from tests.support.fleet import for_all, stdio_table, tool
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import META, Peer, Reply
from tests.support.two_era_node import Tree

EXTENSION = META + "tasks"
RELATED = META + "related-task"
SERVERS = {"legacy": ("old_stdio", "old_http"), "modern": ("new_stdio", "new_http")}
FRONTS = {"legacy": ("http-legacy", "sse-legacy", "stdio-legacy"), "modern": ("http-modern", "stdio-modern")}
LEGACY_CELLS = [(front, link) for front in FRONTS["legacy"] for link in SERVERS["legacy"]]
MODERN_CELLS = [(front, link) for front in FRONTS["modern"] for link in SERVERS["modern"]]
DECLARED: dict[str, Any] = {"extensions": {EXTENSION: {}}, "elicitation": {"form": {}}}
UNKNOWN = {"code": -32602, "message": "there is no such task", "data": {"reason": "task_unknown"}}
_PLANTED = pytest.StashKey[Tree]()
_labels = itertools.count(1)


def start_tree(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Tree:
    stash = request.config.stash
    if _PLANTED not in stash:
        stack = contextlib.ExitStack()
        request.config.add_cleanup(stack.close)
        stash[_PLANTED] = Tree(stack.enter_context(node_of_tasks(folders.mktemp("tasks"))))
    return stash[_PLANTED]


@contextlib.contextmanager
def node_of_tasks(folder: Path, *segments: str) -> Iterator[RunningNode]:
    """A node in front of these servers, or of all."""
    wanted = segments or (*SERVERS["legacy"], *SERVERS["modern"], "plain_old", "plain_new")
    with contextlib.ExitStack() as stack:
        tables: dict[str, dict[str, Any]] = {}
        for segment in wanted:
            era = "legacy" if "old" in segment else "modern"
            command = raw("echo" if segment.startswith("plain") else "tasks,echo,list-changed", "--era", era)
            over_http = segment.endswith("http")
            tables[segment] = (
                {"url": stack.enter_context(serving(command))} if over_http else for_all(stdio_table(command))
            )
        node = stack.enter_context(running_node(folder, tables))
        for segment in tables:
            node.wait_link(segment, {"state": "ready"})
        yield node


def label() -> str:
    return f"job {next(_labels)} é"


def declared(front: str) -> dict[str, Any]:
    """What a client on this front says of itself."""
    return DECLARED if front.endswith("modern") else {"elicitation": {}, "sampling": {}}


async def make(peer: Peer, link: str, name: str = "job", task: Any = None, meta: Any = None, **arguments: Any) -> Reply:
    """A call that becomes a task."""
    params = {"name": tool(link, name), "arguments": arguments}
    if not peer.modern:
        params["task"] = {"ttl": 60_000} if task is None else task
    return await peer.request("tools/call", params, meta=meta)


def task_id_of(reply: Reply) -> str:
    """The id the client sees."""
    found = reply.result["taskId"] if "taskId" in reply.result else reply.result["task"]["taskId"]
    assert isinstance(found, str)
    return found


async def made_by(peer: Peer, link: str, **arguments: Any) -> str:
    return task_id_of(await make(peer, link, **arguments))


async def ask_about_task(peer: Peer, method: str, task_id: Any, **more: Any) -> Reply:
    return await peer.request(f"tasks/{method}", {"taskId": task_id, **more})


async def drive_task(peer: Peer, link: str, name: str, **arguments: Any) -> Any:
    """Have a server do something with a task it knows by its own id."""
    return (await peer.call(tool(link, name), arguments)).result.get("structuredContent")


async def read_tasks(peer: Peer, link: str) -> Any:
    return await drive_task(peer, link, "book")


def state(task_id: str, status: str, era: str, ttl: str = "60000", poll: str = "20") -> str:
    """A task as the fixture writes it, under this id."""
    words = ("ttl", "pollInterval") if era == "legacy" else ("ttlMs", "pollIntervalMs")
    return (
        f'"x-before":{{ "z":1.0 }},"taskId":{json.dumps(task_id)},"status":"{status}","createdAt":"{MADE_AT}",'
        f'"lastUpdatedAt":"{MADE_AT}","{words[0]}":{ttl},"{words[1]}":{poll},"statusMessage":"\\u00e9 it is"'
    )


def without_extension(front: str) -> Mapping[str, Any]:
    return {} if front.endswith("modern") else declared(front)
