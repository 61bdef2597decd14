"""Does the inspector's command line, of either era, see and call the tools of a tree of reference servers?"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import toolbox

pytestmark = pytest.mark.timeout(300)
Tree = tuple[str, Path]


def inspect(tree: Tree, home: Path, era: str, *arguments: str) -> Any:
    command = [*toolbox.inspector(), "--cli", f"{tree[0]}/mcp", "--transport", "http", "--protocol-era", era]
    environment = {**os.environ, "HOME": str(home), "MCP_CATALOG_PATH": str(home / "catalog.json")}
    done = subprocess.run(
        [*command, "--format", "json", "-q", *arguments], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)["result"]


@pytest.mark.parametrize("era", ["legacy", "modern", "auto"])
def test_it_lists_the_tools_of_every_server(reference_tree: Tree, tmp_path: Path, era: str) -> None:
    names = {tool["name"] for tool in inspect(reference_tree, tmp_path, era, "--method", "tools/list")["tools"]}
    wanted = {"memory__create_entities", "files__read_text_file", "time__get_current_time", "git__git_status"}
    assert wanted <= names


@pytest.mark.parametrize("era", ["legacy", "modern", "auto"])
def test_it_calls_tools_of_both_eras(reference_tree: Tree, tmp_path: Path, era: str) -> None:
    path = str(reference_tree[1] / "hello.txt")
    call = ("--method", "tools/call", "--tool-name")
    read = inspect(reference_tree, tmp_path, era, *call, "files__read_text_file", "--tool-arg", f"path={path}")
    assert read["content"][0]["text"] == "Hello from a file."
    now = inspect(reference_tree, tmp_path, era, *call, "time__get_current_time", "--tool-arg", "timezone=UTC")
    assert "UTC" in now["content"][0]["text"]
