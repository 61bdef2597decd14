"""The AQL endpoints of a real node: over HTTP in both eras and over stdio, with a client that has no code of ours."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interaction.harness import RunningNode, Wire, running_node
from tests.servers.start import raw

FIVE = [f"mcp_aql_{family}" for family in ("create", "read", "update", "delete", "execute")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("aql"), {"one": {"command": raw("echo")}}) as made:
        yield made


def envelope(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result["content"][0]["text"])
    assert result["structuredContent"] == found
    return found


@pytest.mark.parametrize(("path", "names"), [("/mcp/aql", FIVE), ("/mcp/aql-single", ["mcp_aql"])])
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_an_operation_is_found_and_called_over_http(node: RunningNode, path: str, names: list[str], era: str) -> None:
    reads = "mcp_aql" if "mcp_aql" in names else "mcp_aql_read"
    with Wire(node, path) as wire:
        if era == "legacy":
            wire.initialize()
        ask = wire.modern if era == "modern" else wire.legacy

        def send(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            return envelope(ask("tools/call", {"name": name, "arguments": arguments}).message["result"])

        assert [one["name"] for one in ask("tools/list").message["result"]["tools"]] == names
        asked = {"operation": "introspect", "params": {"query": "operations", "search": "echo"}}
        (found, *_) = send(reads, asked)["data"]["operations"]
        assert found["name"] == "one__echo"
        asked = {"operation": "introspect", "params": {"query": "operations", "name": "one__echo"}}
        details = send(reads, asked)["data"]["operation"]
        answer = send(details["mcpTool"], details["examples"][0]["request"])
        assert answer["success"] is True


def test_a_flat_client_beside_it_sees_every_tool(node: RunningNode) -> None:
    for path in ("/mcp", "/mcp/flat"):
        with Wire(node, path) as wire:
            names = [one["name"] for one in wire.modern("tools/list").message["result"]["tools"]]
            assert "one__echo" in names and "mcp_aql" not in names


def test_stdio_serves_the_surface_that_is_asked_for(tmp_path: Path) -> None:
    config = tmp_path / "interlock.toml"
    config.write_text("")
    greet = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greet},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--surface", "aql"]
    done = subprocess.run(
        [*command, "--config", str(config), "--data", str(tmp_path / "data")],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    answers = {one["id"]: one for one in map(json.loads, done.stdout.splitlines()) if "id" in one}
    assert [tool["name"] for tool in answers[2]["result"]["tools"]] == FIVE
    assert "introspect" in answers[1]["result"]["instructions"]
