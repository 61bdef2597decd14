"""A workspace with a driver in front of a server that gives its secrets away."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.drivers.driver_node import Workspace
from tests.drivers.driver_texts import contract, secret, text
from tests.support.node_process import LEGACY, RunningNode
from tests.support.peers import HttpPeer

SERVER = Path(__file__).parents[1] / "servers" / "confiding.py"
ID = "confiding-mcp"
TOOLS = {name: f"demo.{name}" for name in ("env", "fail", "talk", "wait", "leave")}
INPUTS = {"type": "object", "properties": {"name": {"type": "string"}, "until": {"type": "string"}}}
MARKER = "marker-5f0c9d1e7a-marker"


def confide(
    workspace: Workspace, *args: str, entries: list[dict[str, Any]], env: dict[str, str], id: str = ID, **changed: Any
) -> Path:
    """`entries`: of its own SECRETS.md."""
    server = {"kind": "binary", "path": sys.executable, "args": [str(SERVER), *args], "env": env}
    auth = {"ref": "./SECRETS.md", **changed.pop("auth", {})}
    tools = changed.pop("tools", TOOLS)
    folder = workspace.add(id, tools=tools, server=server, auth=auth, **changed)
    for named in tools.values():
        said = contract(id=named, inputs=INPUTS, outputs={"type": "object"})
        (folder / "tools" / named / "TOOL.md").write_bytes(text(said))
    (folder / "SECRETS.md").write_bytes(text({"secrets": [secret(**entry) for entry in entries]}))
    return folder


def set_secret(node: RunningNode, slug: str, value: str) -> Any:
    done = node.cli("secrets", "set", slug, "--json", input=value + "\n")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def greeted(node: RunningNode) -> Any:
    return HttpPeer(f"{node.url}/mcp", LEGACY).greet()


def rows(node: RunningNode, method: str) -> list[dict[str, Any]]:
    out = node.cli("audit", "export").stdout
    records = [json.loads(line) for line in out.splitlines()]
    records = [each.get("record", each) for each in records]
    return [each for each in records if each.get("method") == method]
