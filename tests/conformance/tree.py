"""A node in front of reference servers of both eras, as other people's clients reach it."""

from pathlib import Path
from typing import NamedTuple

from tests.support.fleet import bridge
from tests.support.node_process import RunningNode

SEGMENTS = {"memory", "files", "everything", "sqlite", "time", "git"}


class Tree(NamedTuple):
    node: RunningNode
    folder: Path

    @property
    def url(self) -> str:
        return f"{self.node.url}/mcp"

    @property
    def sse(self) -> str:
        return f"{self.node.url}/sse"

    @property
    def command(self) -> list[str]:
        """`interlock serve --stdio`, which reaches the node that runs."""
        return bridge(self.node)
