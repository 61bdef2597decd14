"""Real nodes below one another, each a process of its own."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.node_process import RunningNode, running_node, wait_for

ACCESS = '[[access]]\nwho = ["local"]\nscope = "admin"\nauthority = "dns:all.example"\n'


def parents(*above: tuple[str, str], authority: str | None = "dns:all.example") -> str:
    """TOML of [[ax.parents]]: (url, segment) in their order."""
    said = f'authority = "{authority}"\n' if authority is not None else ""
    return "".join(f'[[ax.parents]]\nurl = "{url}"\nsegment = "{segment}"\n{said}' for url, segment in above)


def ax_url(node: RunningNode) -> str:
    return f"ws://{node.host}:{node.port}/ax"


def parent(node: RunningNode, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = node.admin("/admin/status")["parents"][number]
    return found


def wait_parent(node: RunningNode, wanted: Mapping[str, Any], number: int = 0, seconds: float = 20.0) -> dict[str, Any]:
    """Until this parent shows these values."""

    def shows() -> Any:
        found = parent(node, number)
        return found if all(found[key] == value for key, value in wanted.items()) else None

    found: dict[str, Any] = wait_for(shows, seconds)
    return found


@contextlib.contextmanager
def chain(
    folder: Path, segments: Sequence[str], servers: Mapping[str, Mapping[str, Any]], extra: str = ""
) -> Iterator[list[RunningNode]]:
    """The root first; each further node registers with the one before it. `servers` are those of the last."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(running_node(folder / "root", {}, ACCESS))]
        for depth, segment in enumerate(segments, start=1):
            last = depth == len(segments)
            more = parents((ax_url(nodes[-1]), segment)) + ACCESS + (extra if last else "")
            nodes.append(stack.enter_context(running_node(folder / segment, servers if last else {}, more)))
            wait_parent(nodes[-1], {"state": "registered", "assigned_segment": segment})
            nodes[-2].wait_link(segment, {"state": "ready"})
        yield nodes
