"""A server lists tools whose schemas take for ever to walk. Everybody else goes on, and the operator learns of it."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import Wire, running_node
from tests.support.odd_server import command
from tests.wire.hostile_schemas import around, cyclic, deep, doubled, odd

TOOLS = {
    "doubled": json.dumps(doubled(30, "anyOf")),
    "doubled_update": json.dumps(doubled(30, "oneOf")),
    "nested": json.dumps(doubled(30, "names")),
    "circle": json.dumps(cyclic("anyOf")),
    "deep": deep(150, "anyOf"),
    "many_items": json.dumps(dict(odd())["a billion items"]),
    "pattern": json.dumps(dict(odd())["a pattern that goes back and forth"]),
    "plain": json.dumps(around({"type": "string"}, {})),
}
BEYOND = {"doubled", "doubled_update", "deep"}


@pytest.mark.req("AQL-C.map-18")
def test_nobody_waits_for_a_tool_whose_schema_takes_for_ever(tmp_path: Path) -> None:
    servers = {"one": {"command": raw("echo")}, "odd": {"command": command("schemas", "--names", json.dumps(TOOLS))}}
    answers: dict[str, Any] = {}
    with running_node(tmp_path, servers) as node:

        def introspect() -> None:
            with Wire(node, "/mcp/aql-single") as wire:
                for name in TOOLS:
                    asked = {"operation": "introspect", "params": {"query": "operations", "name": f"odd__{name}"}}
                    result = wire.modern("tools/call", {"name": "mcp_aql", "arguments": asked}).message["result"]
                    answers[name] = result["structuredContent"]["data"]["operation"]
                asked = {"operation": "odd__doubled", "params": {"arguments": {"p": 1}}}
                result = wire.modern("tools/call", {"name": "mcp_aql", "arguments": asked}).message["result"]
                answers["call"] = result["structuredContent"]

        asking = threading.Thread(target=introspect, daemon=True)
        asking.start()
        with Wire(node) as wire:
            calls = 0
            while asking.is_alive() or calls < 5:
                reply = wire.modern("tools/call", {"name": "one.echo", "arguments": {"n": calls}}).message
                assert "result" in reply, reply
                calls += 1
        asking.join()
        assert answers["call"]["success"] is True, answers["call"]
        first = {name: answers[name]["parameters"][0] for name in TOOLS}  # beside it there is `fields`
        shown = {name: (one["name"], one["type"]) for name, one in first.items()}
        assert all(shown[name] == ("arguments", "object") for name in BEYOND), shown
        assert shown["plain"] == ("p", "string")
        assert shown["many_items"] == ("p", "array")
        details = {name: node.admin(f"/admin/tools/odd.{name}")["schema_excess"] for name in TOOLS}
        assert {name for name, excess in details.items() if excess is not None} == BEYOND
        assert "2000 schemas for one value" in details["doubled"]
        text = node.cli("tools", "show", "odd.doubled").stdout
        assert "counts as object" in text, text
    log = (tmp_path / "stderr.txt").read_text()
    assert log.count("the schema of odd.doubled counts as object") == 1, log
    assert "the schema of odd.plain" not in log
