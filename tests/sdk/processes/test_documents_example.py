"""The example adapter as a program, driven by a client that has no code of ours, in both eras."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "examples" / "documents" / "documents.py"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Client:
    """Lines to standard input, lines from standard output."""

    def __init__(self, file: Path, version: str) -> None:
        self.version = version
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._count = 0
        if version != "2026-07-28":
            info = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            self.request("initialize", info)

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        if self.version == "2026-07-28":
            params = {**params, "_meta": META}
        text = json.dumps({"jsonrpc": "2.0", "id": self._count, "method": method, "params": params})
        return self.send(text.encode())

    def send(self, line: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def call(self, tool: str, operation: str, **params: Any) -> dict[str, Any]:
        arguments = {"operation": operation, "params": params}
        result = self.request("tools/call", {"name": f"mcp_aql_{tool}", "arguments": arguments})["result"]
        envelope: dict[str, Any] = json.loads(result["content"][0]["text"])
        if self.version >= "2025-06-18":
            assert result["structuredContent"] == envelope
        else:
            assert "structuredContent" not in result
        return envelope

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(10) == 0
        self._process.stdout.close()


@pytest.mark.req("AQL-4.5.1-5", "AQL-4.5.2-2")
def test_the_worked_example_and_removal_by_null(tmp_path: Path) -> None:
    """The documents of 4.5.1 and 4.5.2, through the running example."""
    client = Client(tmp_path / "documents.db", "2026-07-28")
    created = client.call("create", "create_document", title="Old Title", body="text", author="alice")["data"]
    key = created["id"]
    client.call(
        "update", "update_document", document_id=key, input={"metadata": {"priority": "low", "tags": ["draft"]}}
    )

    def state() -> dict[str, Any]:
        data = client.call("read", "get_document", document_id=key)["data"]
        return {name: value for name, value in data.items() if name in ("title", "metadata", "body")}

    before = {"title": "Old Title", "metadata": {"priority": "low", "tags": ["draft"], "author": "alice"}}
    assert state() == {**before, "body": "text"}
    changes = {"title": "New Title", "metadata": {"priority": "high", "tags": ["published", "reviewed"]}}
    client.call("update", "update_document", document_id=key, input=changes)
    after = {
        "title": "New Title",
        "metadata": {"priority": "high", "tags": ["published", "reviewed"], "author": "alice"},
    }
    assert state() == {**after, "body": "text"}
    removed = client.call("update", "update_document", document_id=key, input={"body": None})["data"]
    assert "body" not in removed
    assert state() == after
    client.call("update", "update_document", document_id=key, input={"metadata": {"author": None}})
    without_author = {**after, "metadata": {**after["metadata"], "author": None}}
    assert state() == without_author  # the schema says that it exists without a value
    refused = client.call("update", "update_document", document_id=key, input={"metadata": {"tags": None}})["error"]
    assert refused["code"] == "VALIDATION_INVALID_TYPE"
    assert refused["details"]["param_name"] == "input.metadata.tags"
    assert state() == without_author
    client.end()


@pytest.mark.req("AQL-C.tool-5", "AQL-2.3.4-1", "AQL-4.7.1-1")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", "2026-07-28"])
def test_documents_are_made_found_changed_and_outlive_the_program(tmp_path: Path, version: str) -> None:
    client = Client(tmp_path / "documents.db", version)
    listed = client.request("tools/list", {})["result"]["tools"]
    assert [item["name"] for item in listed] == [
        f"mcp_aql_{family}" for family in ("create", "read", "update", "delete", "execute")
    ]
    operations = client.call("read", "introspect", query="operations")["data"]["operations"]
    assert len([operation for operation in operations if not operation["name"].endswith("_execution")]) >= 10
    data = client.call("create", "create_document", title="Notes", body="a b a", author="ada")["data"]
    items = client.call("read", "search", query="notes")["data"]["items"]
    assert [entry["id"] for entry in items] == [data["id"]]
    changed = client.call("update", "update_document", document_id=data["id"], input={"metadata": {"priority": "high"}})
    assert changed["data"]["metadata"] == {"priority": "high", "author": "ada", "tags": []}
    bad = client.send(
        b'{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"mcp_aql_read","arguments":'
        b'{"operation":"search","params":{"query":"\xc0\xaf"}}}}'
    )
    error = json.loads(bad["result"]["content"][0]["text"])["error"]
    assert error["code"] == "VALIDATION_INVALID_ENCODING"
    assert error["details"]["byte_offset"] > 0
    client.end()
    again = Client(tmp_path / "documents.db", version)
    assert again.call("read", "get_document", document_id=data["id"])["data"]["metadata"]["author"] == "ada"
    again.end()


def test_answers_of_the_example_may_go_into_a_file(tmp_path: Path) -> None:
    """No event loop takes a file for a pipe."""
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n"
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE
        )
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(request)
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while not (tmp_path / "out").stat().st_size and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        _, errors = process.communicate(timeout=20)
    assert json.loads((tmp_path / "out").read_bytes())["id"] == 1
    assert b"Traceback" not in errors and process.returncode == 0
