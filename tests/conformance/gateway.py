"""A running node in front of given servers, with data of its own, once every one of them can be called."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.node_process import RunningNode, running_node, wait_for

START_SECONDS = 60.0


@contextlib.contextmanager
def node(servers: Mapping[str, str | list[str]], **more: Any) -> Iterator[RunningNode]:
    """Run Interlock in front of these servers, each a URL or a command. `more`: further keys of every one."""
    with ready_node({segment: table(reach) | more for segment, reach in servers.items()}) as running:
        yield running


@contextlib.contextmanager
def ready_node(tables: Mapping[str, Mapping[str, Any]], extra: str = "") -> Iterator[RunningNode]:
    """The same with the tables of the servers, and TOML that comes before them."""
    with tempfile.TemporaryDirectory() as folder, running_node(Path(folder), tables, extra, announced=False) as running:
        for segment in tables:
            wait_for(lambda segment=segment: running.link(segment)["state"] in ("ready", "slow"), START_SECONDS)
        yield running


def table(reach: str | list[str]) -> dict[str, Any]:
    return {"url": reach} if isinstance(reach, str) else {"command": reach[0], "args": reach[1:]}
