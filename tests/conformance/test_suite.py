"""Does the official suite pass? In every cell, through a node, and for the fixture alone."""

import json
import urllib.request

import pytest
from tests.conformance import suite

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", suite.CELLS, ids=lambda cell: cell.name)
def test_the_suite_finds_nothing_that_is_not_expected(cell: suite.Cell) -> None:
    with suite.target(cell) as url:
        if cell.client == "modern":
            assert simple_text(url) == "This is a simple text response for testing."
        results = suite.run(cell, url)
    suite.keep(cell, results)
    assert suite.judge(cell, results) == []


def simple_text(url: str) -> str:
    """What test_simple_text says: the suite is content with an error in its place."""
    params = {"name": "test_simple_text", "arguments": {}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "test_simple_text",
    }
    with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers)) as answer:
        text = answer.read().decode()
    message = json.loads(text if text.startswith("{") else text.partition("data: ")[2])
    return str(message["result"]["content"][0]["text"])


def test_a_failure_without_an_entry_and_a_stale_entry_are_both_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = suite.CELLS[0]
    results = {"ping": suite.Scenario(scored=True, passed=1, failing={"ping": "no answer"})}
    monkeypatch.setattr(suite, "expected", lambda cell: {"tools-list": {"tools-order": "because"}})
    assert [complaint.split(":")[0] for complaint in suite.judge(cell, results)] == ["ping", "tools-list"]
    monkeypatch.setattr(suite, "expected", lambda cell: {"ping": {"ping": "because"}})
    assert suite.judge(cell, results) == []
