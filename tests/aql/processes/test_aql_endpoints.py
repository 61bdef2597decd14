"""The AQL endpoints of a real node: over HTTP in both eras and over stdio, with a client that has no code of ours."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.aql.aql_schemas import check_answer, is_valid
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node

from interlock.aql.cli import sample_server
from interlock.aql.cli.suite import LEGACY, MODERN, SAMPLE, CheckedSurface, LiveClient, run_suite

FIVE = [f"mcp_aql_{family}" for family in ("create", "read", "update", "delete", "execute")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    sample = [sys.executable, "-I", sample_server.__file__]
    servers = {"one": {"command": raw("echo")}, SAMPLE: {"command": sample}}
    with running_node(tmp_path_factory.mktemp("aql"), servers) as made:
        yield made


def envelope(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result["content"][0]["text"])
    assert result["structuredContent"] == found
    return found


@pytest.mark.parametrize(
    ("path", "names"), [("/mcp/aql", FIVE), ("/mcp/aql-single", ["mcp_aql"]), ("/mcp/aql/mcp", FIVE)]
)
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


class HttpClient(LiveClient):
    """The client of the conformance suite over HTTP."""

    def __init__(self, wire: Wire, version: str) -> None:
        self.version, self.kept = version, []
        self._ask = wire.modern if version == MODERN else wire.legacy

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(method, params).message
        return found


@pytest.mark.req("AQL-10.1-1")
def test_the_suite_of_level_1_passes_over_http(node: RunningNode) -> None:
    """Over stdio it is run by `check --aql`."""
    with contextlib.ExitStack() as stack:
        surfaces = []
        for mode, path, names in (("semantic", "/mcp/aql", FIVE), ("single", "/mcp/aql-single", ["mcp_aql"])):
            for version in (MODERN, LEGACY):
                wire = stack.enter_context(Wire(node, path))
                if version == LEGACY:
                    wire.initialize()
                reads = "mcp_aql_read" if mode == "semantic" else "mcp_aql"
                client, tools = HttpClient(wire, version), tuple(names)
                surfaces.append(
                    CheckedSurface(client=client, mode=cast(Any, mode), tools=tools, reads=reads, batch_max=50)
                )
        report = asyncio.run(run_suite(tuple(surfaces), 1))
    tests = [test for section in report.sections if section.level == 1 for test in section.tests]
    assert [test for test in tests if test.result != "passed"] == []
    assert (len(tests), report.level) == (6 * 4, 1)


@pytest.mark.req("AQL-4.7.1-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_text_that_is_not_utf_8_is_an_answer_of_the_endpoint(node: RunningNode, era: str) -> None:
    name = "mcp_aql_read"
    for wrong in (b"\xc0\xaf", b"\x80", b"\xe2\x82", b"\xed\xa0\x80"):
        with Wire(node, "/mcp/aql") as wire:
            headers: dict[str, str] = {}
            meta = b""
            if era == "legacy":
                wire.initialize()
                headers = wire.legacy_headers()
            else:
                headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
                meta = b',"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
            head = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"mcp_aql_read","arguments":'
            body = head + b'{"operation":"x%b"}%b}}' % (wrong, meta)
            answer = wire.post(body, headers).message
            assert answer["id"] == 7
            error = envelope(answer["result"])["error"]
            assert error["code"] == "VALIDATION_INVALID_ENCODING"
            assert error["details"] == {"location": "request", "byte_offset": body.index(wrong)}
            listed = wire.modern("tools/list") if era == "modern" else wire.legacy("tools/list")
            assert "result" in listed.message
            other = wire.post(b'{"jsonrpc":"2.0","id":8,"method":"ping","params":{"x":"%b"}}' % wrong, headers)
            assert other.message["error"]["code"] == -32700


def test_a_flat_client_beside_it_sees_every_tool(node: RunningNode) -> None:
    for path in ("/mcp", "/mcp/flat"):
        with Wire(node, path) as wire:
            names = [one["name"] for one in wire.modern("tools/list").message["result"]["tools"]]
            assert "one__echo" in names and "mcp_aql" not in names


def stdio(tmp_path: Path, lines: list[bytes], surface: str = "aql") -> dict[Any, Any]:
    config = tmp_path / "interlock.toml"
    config.write_text("")
    command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--surface", surface]
    done = subprocess.run(
        [*command, "--config", str(config), "--data", str(tmp_path / "data")],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return {one["id"]: one for one in map(json.loads, done.stdout.splitlines()) if "id" in one}


@pytest.mark.req("AQL-C.conf-1", "AQL-4.7.1-1")
def test_stdio_serves_the_surface_that_is_asked_for(tmp_path: Path) -> None:
    asked = {"operation": "introspect", "params": {"query": "operations"}}
    introspect = {"name": "mcp_aql_read", "arguments": asked}
    greet = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greet}).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"mcp_aql_read","arguments":{"operation":"\x80"}}}',
        b'{"jsonrpc":"2.0","id":4,"method":"ping"}',
        json.dumps({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": introspect}).encode(),
    ]
    answers = stdio(tmp_path, lines)
    assert [tool["name"] for tool in answers[2]["result"]["tools"]] == FIVE
    assert "introspect" in answers[1]["result"]["instructions"]
    assert envelope(answers[3]["result"])["error"]["code"] == "VALIDATION_INVALID_ENCODING"
    assert answers[4]["result"] == {}
    (content,) = answers[5]["result"]["content"]
    assert content["type"] == "text"
    operations = json.loads(content["text"])
    check_answer(operations, asked)
    assert is_valid("result", operations) and operations["success"] is True
    assert "introspect" in [one["name"] for one in operations["data"]["operations"]]


@pytest.mark.req("AQL-C.conf-1")
def test_stdio_serves_one_tool_to_a_client_of_2026(tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    asked = {"operation": "introspect", "params": {"query": "operations"}}
    call = {"name": "mcp_aql", "arguments": asked, "_meta": meta}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}).encode(),
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}).encode(),
    ]
    answers = stdio(tmp_path, lines, "aql-single")
    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == ["mcp_aql"]
    found = envelope(answers[2]["result"])
    check_answer(found, asked)
    assert found["data"]["_protocol"]["mode"] == "single"
