"""Do the client libraries that people use list, call, hear, answer and understand a refusal through one node?"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conformance import toolbox
from tests.conformance.gateway import ready_node, table

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).parent
GATE = '[gate]\nmode = "open"\nalso = ["memory.delete_entities"]\n'
AT_ONCE = 3
CLIENT_SECONDS = 120

Found = dict[str, Any]


class Library(NamedTuple):
    run: Callable[[str, Path], Found]  # with the node's URL and a home
    has_progress: bool = True
    has_questions: bool = True


def printed(command: list[str], **options: Any) -> Any:
    """The JSON on the last line."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False, **options)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


def python(library: str, interpreter: Callable[[], Path]) -> Callable[[str, Path], Found]:
    def run(url: str, home: Path) -> Found:
        command = [str(interpreter()), str(HERE / "library_client.py"), library, url]
        quiet = {**os.environ, "HOME": str(home), "MCP_USE_ANONYMIZED_TELEMETRY": "false"}
        return dict(json.loads(printed(command, env=quiet).splitlines()[-1]))

    return run


def typescript(sdk: str, era: str) -> Callable[[str, Path], Found]:
    def run(url: str, home: Path) -> Found:
        trial = json.dumps({"sdk": sdk, "era": era, "url": url})
        command = [str(toolbox.node()), "--input-type=module", "--eval", (HERE / "library_client.mjs").read_text()]
        environment = {**os.environ, "TRIAL": trial}
        return dict(json.loads(printed(command, cwd=toolbox.npm_packages().parent, env=environment)))

    return run


def inspector(url: str, home: Path) -> Found:
    environment = {**os.environ, "HOME": str(home), "MCP_CATALOG_PATH": str(home / "catalog.json")}
    command = [*toolbox.inspector(), "--cli", "--format", "json", "-q", "--transport", "http", url, "--method"]

    def inspect(*arguments: str) -> Any:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False, env=environment
        )
        return json.loads(done.stdout)["result"]

    def call(name: str, *arguments: str) -> str:
        return str(inspect("tools/call", "--tool-name", name, *arguments)["content"][0]["text"])

    return {
        "tools": [tool["name"] for tool in inspect("tools/list")["tools"]],
        "echo": call("everything__echo", "--tool-arg", "message=through"),
        "refused": call("memory__delete_entities", "--tool-arg", 'entityNames=["Ada"]'),
    }


LIBRARIES = {
    "python-sdk-v1": Library(python("sdk-v1", toolbox.sdk_v1)),
    "python-sdk-v2-legacy": Library(python("sdk-v2-legacy", toolbox.sdk_v2)),
    "python-sdk-v2-modern": Library(python("sdk-v2-modern", toolbox.sdk_v2)),
    "typescript-sdk-v1": Library(typescript("v1", "legacy")),
    "typescript-sdk-v2-legacy": Library(typescript("v2", "legacy")),
    "typescript-sdk-v2-modern": Library(typescript("v2", "modern")),
    "inspector": Library(inspector, has_progress=False, has_questions=False),
    "fastmcp": Library(python("fastmcp", lambda: toolbox.libraries("v2"))),
    "pydantic-ai": Library(python("pydantic-ai", lambda: toolbox.libraries("v2"))),
    "openai-agents": Library(
        python("openai-agents", lambda: toolbox.libraries("v2")), has_progress=False, has_questions=False
    ),
    "langchain-mcp-adapters": Library(python("langchain", lambda: toolbox.libraries("v1"))),
    "mcp-use": Library(python("mcp-use", lambda: toolbox.libraries("v1")), has_progress=False),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "Future[Found]"]]:
    """Every library at once, on one node."""
    home = tmp_path_factory.mktemp("libraries")
    tables = {
        "everything": table(toolbox.npm_server("everything", "stdio")),
        "memory": table(toolbox.npm_server("memory")) | {"env": {"MEMORY_FILE_PATH": str(home / "memory.jsonl")}},
    }
    with ready_node(tables, GATE) as node, ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(library.run, f"{node.url}/mcp", home) for name, library in LIBRARIES.items()}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_lists_calls_receives_answers_and_is_refused(name: str, running: dict[str, "Future[Found]"]) -> None:
    try:
        found = running[name].result()
    except toolbox.ToolMissing as missing:
        pytest.skip(f"{name.upper()} CANNOT BE HAD, it is not shown: {missing}")
    assert {tool.partition("__")[0] for tool in found["tools"]} == {"everything", "memory"}
    assert "Echo: through" in found["echo"]
    assert "Not executed yet. memory.delete_entities" in found["refused"]
    if LIBRARIES[name].has_progress:
        assert found["heard"] == [[1, 3], [2, 3], [3, 3]]
    if LIBRARIES[name].has_questions:
        assert "Name: Ada of the tests" in found["question"]
