"""Does the inspector's command line, of either era, see and use the servers of a tree of both eras?"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import toolbox
from tests.conformance.tree import SEGMENTS, Tree

pytestmark = pytest.mark.timeout(300)
every_era = pytest.mark.parametrize("era", ["legacy", "modern", "auto"])


def inspect(tree: Tree, home: Path, era: str, *arguments: str, stdio: bool = False) -> Any:
    environment = {**os.environ, "HOME": str(home), "MCP_CATALOG_PATH": str(home / "catalog.json")}
    where = ["--transport", "http", tree.url]
    if stdio:  # the inspector gives a program that it starts only those variables it is told to
        paths = os.environ.get("PYTHONPATH")
        where = [*(["-e", f"PYTHONPATH={paths}"] if paths else []), "--", *tree.command]
    done = subprocess.run(
        [*toolbox.inspector(), "--cli", "--protocol-era", era, "--format", "json", "-q", *arguments, *where],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)["result"]


@every_era
def test_the_inspector_lists_the_tools_of_every_server(tree: Tree, tmp_path: Path, era: str) -> None:
    tools = inspect(tree, tmp_path, era, "--method", "tools/list")["tools"]
    assert {tool["name"].partition("__")[0] for tool in tools} == SEGMENTS


@every_era
def test_the_inspector_calls_tools_of_both_eras(tree: Tree, tmp_path: Path, era: str) -> None:
    path = str(tree.folder / "hello.txt")
    call = ("--method", "tools/call", "--tool-name")
    read = inspect(tree, tmp_path, era, *call, "files__read_text_file", "--tool-arg", f"path={path}")
    assert read["content"][0]["text"] == "Hello from a file."
    now = inspect(tree, tmp_path, era, *call, "time__get_current_time", "--tool-arg", "timezone=UTC")
    assert "UTC" in now["content"][0]["text"]


@every_era
def test_the_inspector_reads_prompts_and_resources(tree: Tree, tmp_path: Path, era: str) -> None:
    prompt = inspect(tree, tmp_path, era, "--method", "prompts/get", "--prompt-name", "everything__simple-prompt")
    assert prompt["messages"]
    resources = inspect(tree, tmp_path, era, "--method", "resources/list")["resources"]
    read = inspect(tree, tmp_path, era, "--method", "resources/read", "--uri", resources[0]["uri"])
    assert read["contents"][0]["text"]


@every_era
def test_the_inspector_works_over_stdio(tree: Tree, tmp_path: Path, era: str) -> None:
    tools = inspect(tree, tmp_path, era, "--method", "tools/list", stdio=True)["tools"]
    assert {tool["name"].partition("__")[0] for tool in tools} == SEGMENTS
