"""A new kind of server is one class and one entry in the table of kinds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import interlock

SECONDS = 60.0
TABLE = "drivers/protocol/kinds.py"
TABLE_HEAD = "# The table of kinds by the value of server.kind"
# Servers of kind `inline` are a Python program, written in hexadecimal.
KIND = """
import sys


class Inline(LocalServer, frozen=True, kw_only=True, tag="inline"):
    kind: ClassVar[str] = "inline"
    keys: ClassVar[tuple[str, ...]] = ("code", "args", "env", "cwd")
    registry_type: ClassVar[str | None] = "inline"

    code: str

    @property
    def program(self) -> str:
        return sys.executable

    @property
    def program_args(self) -> tuple[str, ...]:
        return ("-c", f"exec(bytes.fromhex('{self.code}'))")

    @property
    def source(self) -> str | None:
        return self.code
"""
SERVER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request.get("id") is None: continue
    match request["method"]:
        case "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "inline", "version": "1"}
        case "tools/list":
            annotations = {"readOnlyHint": True}
            schema = {"type": "object"}
            result = {"tools": [{"name": "look", "inputSchema": schema, "annotations": annotations}]}
        case _:
            answer = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}}
            print(json.dumps(answer), flush=True)
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """Copy the program, and add the kind `inline` to the copy: a class before the table, and an entry in it."""
    sources = tmp_path / "sources"
    package = sources / "interlock"
    shutil.copytree(Path(interlock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / TABLE).read_text()
    assert text.count(TABLE_HEAD) == 1 and text.count("RemoteServer)") == 1
    text = text.replace(TABLE_HEAD, f"{KIND}\n\n{TABLE_HEAD}").replace("RemoteServer)", "RemoteServer, Inline)")
    (package / TABLE).write_text(text)
    return sources


def run(sources: Path, workspace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(sources), "HOME": str(workspace), "INTERLOCK_DATA": str(workspace / "data")}
    command = [sys.executable, "-m", "interlock", *words]
    return subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NO BUBBLEWRAP HERE: interlock add is not shown")
def test_one_class_and_one_entry_of_the_table_add_a_kind_of_server(extended: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "interlock.toml").write_text('[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n')

    added = run(extended, workspace, "add", f"inline:{SERVER.encode().hex()}", "--as", "toy-mcp", "--yes", "--json")

    assert added.returncode == 0, added.stdout
    folder = workspace / ".drivers" / "toy-mcp"
    block = yaml.safe_load((folder / "DRIVER.md").read_text().split("---")[1])["server"]
    assert block["kind"] == "inline"
    assert block["code"] == SERVER.encode().hex()
    shown = json.loads(run(extended, workspace, "drivers", "show", "toy-mcp", "--json").stdout)
    assert shown["server_kind"] == "inline"
    assert [binding["tool_name"] for binding in shown["bindings"]] == ["look"]
    assert run(extended, workspace, "check", str(folder)).returncode == 0


def test_a_block_of_an_unknown_kind_is_refused_with_the_list_of_kinds(extended: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toy-mcp"
    folder.mkdir()
    block = {"name": "Toy", "id": "toy-mcp", "description": "A toy.", "version": "1.0.0", "kind": "mcp"}
    block |= {"server": {"kind": "outline"}, "transport": "stdio", "implements": []}
    (folder / "DRIVER.md").write_text(f"---\n{yaml.safe_dump(block)}---\n")

    checked = run(extended, tmp_path, "check", str(folder))

    assert checked.returncode != 0
    assert "write one of binary, npm, pypi, docker, remote, inline" in checked.stdout + checked.stderr
