"""The first interlock.toml: short, commented, and one that runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from interlock.config.toml_text import toml_text

FOLDERS: Final = ("memory", "files")  # beside the file, which these servers may read and write
EXAMPLES: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # segment -> (what it is, its table)
    "time": ("The time anywhere, from a PyPI package.", {"pypi": "mcp-server-time"}),
    "memory": (
        "A small knowledge graph, from an npm package; kept in the folder memory.",
        {"npm": "@modelcontextprotocol/server-memory"},
    ),
    "files": (
        "The files in the folder files, from an npm package.",
        {"npm": "@modelcontextprotocol/server-filesystem", "args": ["files"]},
    ),
}
_MEMORY: Final = "MEMORY_FILE_PATH"
_UNAVAILABLE: Final = "# It runs with all your rights; with bubblewrap (docs/sandbox.md) these lines are its limits:"

_HEAD: Final = """\
# Interlock: many MCP servers, one namespace, one guard.
#   interlock check    finds mistakes in this file
#   interlock serve    starts the node, which takes up what changes here while it runs
# Every key has a default; `interlock check --effective` prints them all.

[node]
listen = "127.0.0.1:7411"            # MCP clients: http://127.0.0.1:7411/mcp
operator_listen = "127.0.0.1:7412"   # people

[auth]
anonymous = "loopback"   # programs on this machine need no token; or "never"

[gate]
# With nodes below that ask people themselves: mode = "defer" leaves it to them, so that each call is asked about once.
mode = "gated"             # what cannot be undone waits for you: interlock approvals, interlock approve ID
unannotated = "classify"   # a tool that does not say what it does is asked about once; "allow" lets it run
"""

_TAIL: Final = """\
# More ways to reach a server:
# [servers.mine]
# command = "python my_server.py"
# env = { API_KEY = "${env:MY_API_KEY}" }
#
# [servers.remote]
# url = "https://mcp.example.com/mcp"
# headers = { Authorization = "Bearer ${env:REMOTE_TOKEN}" }   # not needed for OAuth: interlock status says what is
"""


def starter_toml(
    segments: Iterable[str] = tuple(EXAMPLES), *, workspace: Path = Path("/"), is_sandboxed: bool = True
) -> str:
    """The text `interlock init` writes. Examples that are not asked for stand in it as comments.

    `workspace`: the folder of the file, which has `FOLDERS` in it. `is_sandboxed`: whether the machine has sandboxes.
    """
    wanted = frozenset(segments)
    unknown = wanted - EXAMPLES.keys()
    if unknown:
        raise ValueError(f"no example server {', '.join(sorted(unknown))}; there are {', '.join(EXAMPLES)}")
    blocks = [_HEAD]
    for segment, (about, table) in EXAMPLES.items():
        lines = [f"[servers.{segment}]", *(f"{name} = {toml_text(value)}" for name, value in table.items())]
        if segment == "memory":
            lines.append(f"env = {toml_text({_MEMORY: str(workspace / 'memory' / 'memory.jsonl')})}")
        limits = ["egress = []   # a sandbox without network"]
        if segment in FOLDERS:
            limits.append(f"files = {toml_text([segment])}")
        lines += limits if is_sandboxed else [_UNAVAILABLE, *(f"# {limit}" for limit in limits)]
        mark = "" if segment in wanted else "# "
        blocks.append(f"# {about}\n" + "".join(f"{mark}{line}\n" for line in lines))
    return "\n".join((*blocks, _TAIL))
