"""Servers that come from a package: installed, recorded, started again. A folder is the registry."""

import json
import shutil
from pathlib import Path

from tests.process.package_sources import WheelFolder, wheel_folder
from tests.support.node_process import running_node, wait_for, write_config

__all__ = ["wheel_folder"]  # a fixture

SERVER = """
import json, sys

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("method") == "initialize":
            about = {"name": "tiny", "version": VERSION}
            version = asked["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        elif asked.get("method") == "tools/list":
            result = {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]}
        elif "id" in asked:
            error = {"code": -32601, "message": "no such method"}
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
            continue
        else:
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
TINY = {"tiny": {"pypi": "tiny-mcp"}}


def offer(wheel_folder: WheelFolder, version: str) -> None:
    wheel_folder.put("tiny-mcp", version, ("tiny-mcp",), SERVER.replace("VERSION", repr(version)))


def test_a_server_from_a_package_starts_again_as_it_was_without_the_registry(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    offer(wheel_folder, "1.0")
    with running_node(tmp_path / "n", TINY, env=wheel_folder.env) as node:
        node.wait_link("tiny", {"state": "ready"}, 60)
    record = json.loads(
        (tmp_path / "n" / "data" / "packages" / "pypi" / "tiny-mcp" / "interlock-pins.json").read_text()
    )
    assert (record["version"], record["integrity"][:7]) == ("1.0", "sha256:")
    shutil.rmtree(wheel_folder.folder)
    with running_node(tmp_path / "n", TINY, env=wheel_folder.env) as node:
        node.wait_link("tiny", {"state": "ready"}, 60)
        assert '"version": "1.0"' in json.dumps(node.link("tiny"))


def test_a_source_is_built_once_the_operator_allows_it_and_not_before(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    wheel_folder.put_source("tiny-mcp", f"open({str(proof)!r}, 'w')")
    with running_node(tmp_path / "n", TINY, env=wheel_folder.env) as node:
        wait_for(lambda: "drivers.allow_unverified_install" in json.dumps(node.link("tiny")), 60)
        assert not proof.exists()
        write_config(tmp_path / "n", TINY, "[drivers]\nallow_unverified_install = true\n")
        wait_for(proof.exists, 60)  # without a restart: the next attempt may
