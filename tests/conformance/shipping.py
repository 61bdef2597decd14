"""Writes the driver folders that come with Interlock, from what the reference servers themselves list (AIP-compat-3).

    python -m tests.conformance.shipping

installs each server as its DRIVER.md says, asks it for its tools and writes src/interlock/shipped/drivers. What a list
does not say stands here: where a server works, what it may touch, what its tools do, how its text is read.
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.conformance import toolbox

from interlock.ax.protocol.capability import ToolClass
from interlock.drivers.protocol.authoring import DraftedContract, DraftedDriver, draft_contract, draft_driver

SHIPPED: Final = toolbox.ROOT / "src" / "interlock" / "shipped" / "drivers"
PLACE: Final = "/workspace"
_SCOPE: Final = "@modelcontextprotocol"
_ROWS: Final = {
    "type": "object",
    "required": ["rows"],
    "properties": {"rows": {"type": "array", "items": {"type": "object"}}},
}
_BLOCKS: Final = {
    "type": "object",
    "required": ["content"],
    "properties": {"content": {"type": "array", "items": {"type": "object"}}},
}
_LINES: Final = {
    "type": "object",
    "required": ["entries"],
    "properties": {"entries": {"type": "array", "items": {"type": "string"}}},
}
_AS_LINES: Final = {"result_parse": {"from": "text", "as": "lines", "into": "entries"}}
_AS_ROWS: Final = {"result_parse": {"from": "text", "as": "python_literal", "into": "rows"}}


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    description: str
    server: Mapping[str, Any]
    rest: Mapping[str, Any] = {}  # of the frontmatter
    body: str
    classes: Mapping[str, ToolClass] = {}  # where the server says nothing
    outputs: Mapping[str, Mapping[str, Any]] = {}
    ours: Mapping[str, Mapping[str, Any]] = {}  # metadata.interlock of a binding


def _npm(name: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"kind": "npm", "package": f"{_SCOPE}/server-{name}@2026.8.31", "args": list(args), **more}


def _pypi(name: str, version: str, *args: str) -> dict[str, Any]:
    return {"kind": "pypi", "package": f"mcp-server-{name}=={version}", "args": list(args)}


_NO_NETWORK: Final = {"network": {"egress": []}, "region": ["self-hosted"]}
_WRITES: Final = {"sandbox": {"fs": {"write": [PLACE]}}}
_HERE: Final = f"`{PLACE}` stands for the folder it works in: write yours in its place, everywhere in this file."

DRIVERS: Final = (
    Shipped(
        id="filesystem-mcp",
        name="Filesystem",
        description="Reads, writes, moves and searches files below one folder.",
        server=_npm("filesystem", PLACE),
        rest=_NO_NETWORK,
        outputs=dict.fromkeys(("list_directory", "search_files"), _LINES),
        ours=dict.fromkeys(("list_directory", "search_files"), _AS_LINES),
        body=f"The reference server for files. {_HERE}",
    ),
    Shipped(
        id="memory-mcp",
        name="Memory",
        description="A knowledge graph of entities, relations and observations that is kept in one file.",
        server=_npm("memory", env={"MEMORY_FILE_PATH": f"{PLACE}/memory.jsonl"}),
        rest=_NO_NETWORK | _WRITES,
        body=f"The reference server for memory. {_HERE}",
    ),
    Shipped(
        id="everything-mcp",
        name="Everything",
        description="Exercises every feature of MCP; for trying clients and gateways, not for work.",
        server=_npm("everything", "stdio"),
        rest=_NO_NETWORK,
        body="The reference server for tests. Without a network `gzip-file-as-resource` has nothing to fetch.",
        outputs=dict.fromkeys(
            (
                "get-annotated-message",
                "get-resource-links",
                "get-resource-reference",
                "get-tiny-image",
                "gzip-file-as-resource",
            ),
            _BLOCKS,
        ),
    ),
    Shipped(
        id="sequential-thinking-mcp",
        name="Sequential thinking",
        description="Keeps a chain of numbered thoughts that can be revised and branched.",
        server=_npm("sequential-thinking"),
        rest=_NO_NETWORK,
        body="The reference server for thinking in steps. It keeps its thoughts in memory, as long as it runs.",
    ),
    Shipped(
        id="git-mcp",
        name="Git",
        description="Looks at and changes one git repository: status, differences, history, commits, branches.",
        server=_pypi("git", "2026.10.19", "--repository", PLACE),
        rest=_NO_NETWORK | {"sandbox": {"fs": {"write": [PLACE]}, "exec": {"spawn": ["git"]}}},
        body=f"The reference server for git, which has to be installed. {_HERE}",
    ),
    Shipped(
        id="time-mcp",
        name="Time",
        description="Tells the time in any time zone and converts between zones.",
        server=_pypi("time", "2026.10.19", "--local-timezone", "UTC"),
        rest=_NO_NETWORK,
        body="The reference server for time. Write your own zone behind `--local-timezone`.",
    ),
    Shipped(
        id="fetch-mcp",
        name="Fetch",
        description="Fetches a page of the web and returns it as Markdown.",
        server=_pypi("fetch", "2026.10.24"),
        rest={"network": {"egress": ["*"]}},
        body="The reference server for web pages. It reaches any public host unless you name some in `network.egress`.",
    ),
    Shipped(
        id="sqlite-mcp",
        name="SQLite",
        description="Queries and changes one SQLite database.",
        server=_pypi("sqlite", "2025.4.25", "--db-path", f"{PLACE}/data.db"),
        rest={
            # It says mcp>=1.6 and works with the first line of the SDK only.
            "install": [{"method": "pip", "package": "mcp-server-sqlite", "with": ["mcp<2"]}],
            **_NO_NETWORK,
            **_WRITES,
        },
        body=f"An archived reference server for SQLite. {_HERE}",
        classes={
            "read_query": "read_only",
            "list_tables": "read_only",
            "describe_table": "read_only",
            "write_query": "irreversible",
            "create_table": "reversible",
            "append_insight": "reversible",
        },
        outputs=dict.fromkeys(("read_query", "list_tables", "describe_table"), _ROWS),
        ours=dict.fromkeys(("read_query", "list_tables", "describe_table"), _AS_ROWS),
    ),
)


def files_of(shipped: Shipped, tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Path below the driver's folder, and text."""
    files: dict[str, str] = {}
    implements = []
    for tool in tools:
        name = tool["name"]
        drafted = draft_contract(
            tool, shipped.id, tool_class=shipped.classes.get(name), outputs=shipped.outputs.get(name)
        )
        assert isinstance(drafted, DraftedContract), drafted
        path = f"tools/{drafted.contract.id.partition('.')[2]}/TOOL.md"
        binding = drafted.binding(f"./{path}")
        if name in shipped.ours:
            binding["metadata"]["interlock"] = shipped.ours[name]
        implements.append(binding)
        files[path] = drafted.text
    server = {key: value for key, value in shipped.server.items() if value != []}
    driver = draft_driver(
        {
            "name": shipped.name,
            "id": shipped.id,
            "description": shipped.description,
            "server": server,
            "transport": "stdio",
            "implements": implements,
            **shipped.rest,
        },
        f"# {shipped.name}\n\n{shipped.body}",
    )
    assert isinstance(driver, DraftedDriver), driver
    files["DRIVER.md"] = driver.text
    return files


async def main() -> None:
    from tests.conformance.test_shipped_servers import listed

    shutil.rmtree(SHIPPED, ignore_errors=True)
    for shipped in DRIVERS:
        for path, text in files_of(shipped, await listed(shipped)).items():
            (SHIPPED / shipped.id / path).parent.mkdir(parents=True, exist_ok=True)
            (SHIPPED / shipped.id / path).write_text(text, encoding="utf-8")
        print(shipped.id, Path(SHIPPED / shipped.id).relative_to(toolbox.ROOT))


if __name__ == "__main__":
    asyncio.run(main())
