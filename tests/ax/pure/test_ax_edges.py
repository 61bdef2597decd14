"""What changes where an AX link meets a client of 2026-07-28, and where a resource of the tree lies."""

import ast
import json
import re
from pathlib import Path

import pytest
from msgspec import Raw

import interlock
from interlock.ax.protocol.names import nested_segments
from interlock.mcp.results import error_to_modern, find_modern_error

DEGRADED = {"code": -32002, "message": "tool_degraded", "data": {"reason": "subserver_unreachable", "since": "x"}}
SPENT = {"code": -32003, "message": "budget_exceeded", "data": {"budget": "calls", "limit": 3}}


def raw(error: object) -> Raw:
    return Raw(json.dumps(error).encode())


@pytest.mark.req("AX-13.2-3")
@pytest.mark.parametrize(("error", "code"), [(DEGRADED, 32002), (SPENT, 32003)])
def test_the_drafts_own_numbers_become_ours_for_a_modern_client_and_nothing_else_changes(
    error: dict[str, object], code: int
) -> None:
    for brought in (find_modern_error(raw(error)), error_to_modern(raw(error))):
        assert brought is not None
        said = json.loads(brought)
        assert said.pop("code") == code
        assert said["data"].pop("mcpax_code") == error["code"]
        assert said == {"message": error["message"], "data": error["data"]}


@pytest.mark.req("AX-13.2-3")
@pytest.mark.parametrize(
    "error",
    [
        {"code": -32002, "message": "Resource not found", "data": {"uri": "a://b", "reason": "gone"}},
        {"code": -32002, "message": "tool_degraded"},
        {"code": -32002, "message": "tool_degraded", "data": {"uri": "a://b"}},
        {"code": -32002, "message": "tool_degraded", "data": "reason"},
        {"code": -32002, "message": ["tool_degraded"], "data": {"reason": "x"}},
        {"code": -32002.0, "message": "tool_degraded", "data": {"reason": "x"}},
        {"code": -32003, "message": "tool_degraded", "data": {"reason": "x"}},
        {"code": -32601, "message": "tool_degraded -32002", "data": {"reason": "x"}},
        {"message": "-32002", "data": {"reason": "x"}},
        "-32002",
        ["-32003"],
    ],
)
def test_every_other_error_stays_what_it_is(error: object) -> None:
    assert find_modern_error(raw(error)) is None


@pytest.mark.parametrize(
    ("uri", "way"),
    [
        ("mcpax://gate.bench/raw://text", ("gate", "bench")),
        ("mcpax://bench/raw://text", ("bench",)),
        ("mcpax://a-1.0.b__c/", ("a-1", "0", "b__c")),
        ("raw://text", ()),
        ("mcpax://bench", ()),
        ("mcpax:///raw://text", ()),
        ("mcpax://Bench/x", ()),
        ("mcpax://a..b/x", ()),
        ("", ()),
    ],
)
def test_the_route_to_a_resource_is_in_its_uri_where_an_aggregator_marks_it_as_part_of_the_tree(
    uri: str, way: tuple[str, ...]
) -> None:
    assert nested_segments(uri) == way


# Where a number of the closed range stands: tables of what legacy clients hear, and of what others say.
CLOSED_HERE = {
    "wire/refusal.py": 3,
    "mcp/results.py": 2,
    "rooms/protocol/envelope.py": 1,
    "drivers/contracts/call.py": 1,
}


@pytest.mark.req("AX-13.2-3")
def test_no_error_of_ours_has_a_number_that_is_closed_to_new_codes() -> None:
    """Outside those tables such a number is only said in data.mcpax_code."""
    source = Path(interlock.__file__).parent
    found: dict[str, int] = {}
    for path in source.rglob("*.py"):
        text = path.read_text("utf-8")
        if not re.search(r"320[01]\d", text):
            continue
        tree = ast.parse(text)
        said = {
            id(value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and key.value == "mcpax_code"
        }
        for node in ast.walk(tree):
            match node:
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(code))) if code in range(32000, 32020):
                    name = path.relative_to(source).as_posix()
                    found[name] = found.get(name, 0) + (id(node) not in said)
    found = {name: count for name, count in found.items() if count}
    assert found == CLOSED_HERE
