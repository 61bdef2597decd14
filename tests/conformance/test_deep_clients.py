"""Do clients that know nothing of trees list and call what stands three aggregators down, in all pairs of eras?"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.stdio import stdio_client
from tests.ax.tree import chain
from tests.conformance import toolbox
from tests.servers.start import raw
from tests.support.fleet import bridge
from tests.support.node_process import RunningNode, wait_for

from mcp import Client, StdioServerParameters

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.req("AX-1.1-1"),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
HERE = Path(__file__).parent
ERAS = ("legacy", "modern")
TOOLS = [f"edge__gate__{era}__echo" for era in ERAS]  # of a server of each era
PIPES = ["http", "stdio"]
Found = dict[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {era: {"command": raw("all", "--era", era)} for era in ERAS}
    with chain(tmp_path_factory.mktemp("deep"), ["edge", "gate"], servers) as nodes:
        names = {f"edge.gate.{era}.echo" for era in ERAS}
        wait_for(lambda: names <= {one["name"] for one in nodes[0].admin("/admin/tools")["tools"]})
        yield nodes[0]


def assert_found(found: Found, said: str) -> None:
    assert set(TOOLS) <= set(found["listed"])
    assert found["answers"] == {name: {"text": said} for name in TOOLS}


def run(command: list[str], **options: Any) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_the_second_line_of_the_python_sdk(root: RunningNode, mode: str, pipe: str) -> None:
    where: Any = f"{root.url}/mcp"
    if pipe == "stdio":
        command, *arguments = bridge(root)
        where = stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ)))
    async with Client(where, mode=mode) as client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        listed = [tool.name for tool in (await client.list_tools()).tools]
        answers = {name: (await client.call_tool(name, {"text": "through"})).structured_content for name in TOOLS}
    assert_found({"listed": listed, "answers": answers}, "through")


@pytest.mark.parametrize("pipe", PIPES)
def test_the_first_line_of_the_python_sdk(root: RunningNode, pipe: str) -> None:
    where = [f"{root.url}/mcp"] if pipe == "http" else bridge(root)
    command = [str(toolbox.sdk_v1()), str(HERE / "deep_client_v1.py"), ",".join(TOOLS), pipe, *where]
    assert_found(run(command), "through v1")


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize(("sdk", "era"), [("v1", "legacy"), ("v2", "legacy"), ("v2", "modern")])
def test_both_lines_of_the_typescript_sdk(root: RunningNode, sdk: str, era: str, pipe: str) -> None:
    where = {"url": f"{root.url}/mcp"} if pipe == "http" else {"command": bridge(root)}
    trial = {"sdk": sdk, "era": era, "tools": TOOLS, **where}
    program = (HERE / "deep_client.mjs").read_text()
    command = [str(toolbox.node()), "--input-type=module", "--eval", program]
    found = run(command, cwd=toolbox.npm_packages().parent, env={**os.environ, "TRIAL": json.dumps(trial)})
    assert_found(found, f"through {sdk}")


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector(root: RunningNode, tmp_path: Path, era: str, pipe: str) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "MCP_CATALOG_PATH": str(tmp_path / "catalog.json")}
    paths = os.environ.get("PYTHONPATH")
    where = ["--transport", "http", f"{root.url}/mcp"]
    if pipe == "stdio":  # it gives a program that it starts only those variables it is told to
        where = [*(["-e", f"PYTHONPATH={paths}"] if paths else []), "--", *bridge(root)]

    def inspect(*arguments: str) -> Any:
        command = [*toolbox.inspector(), "--cli", "--protocol-era", era, "--format", "json", "-q", *arguments, *where]
        return run(command, env=environment)["result"]

    answers = {}
    for name in TOOLS:
        called = inspect("--method", "tools/call", "--tool-name", name, "--tool-arg", "text=through")
        answers[name] = called["structuredContent"]
    listed = [tool["name"] for tool in inspect("--method", "tools/list")["tools"]]
    assert_found({"listed": listed, "answers": answers}, "through")
