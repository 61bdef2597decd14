"""The closed shapes of MCP-AQL: our own schemas against the published vectors, the pages, and companion documents."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.aql.aql_node import AqlClient
from tests.aql.aql_schemas import is_valid
from tests.safety.agent_lines import Lines
from tests.sdk.aql_library import Library

from interlock.aql.protocol.model import AqlParameter, Danger, TypeDeclaration

DOCS = Path(__file__).parents[3] / "docs"
FIELD = {"name": "x", "type": "string", "required": False}
# The vectors of the specification's typedetails fixtures.
VALID: list[dict[str, Any]] = [
    {"name": "Status", "kind": "enum", "description": "Status codes", "values": ["active", "inactive"]},
    {"name": "Color", "kind": "enum", "values": ["red", "green"]},
    {"name": "User", "kind": "object", "description": "A user", "fields": [FIELD, {**FIELD, "minimum": 0}]},
    {"name": "EmptyConfig", "kind": "object", "fields": []},
    {"name": "SearchResult", "kind": "union", "description": "Possible results", "members": ["User", "Document"]},
    {"name": "DateTime", "kind": "scalar", "description": "ISO 8601 date-time string"},
    {"name": "JSON", "kind": "scalar"},
]
INVALID: list[dict[str, Any]] = [
    {"name": "Bad", "kind": "enum", "values": ["a"], "fields": [FIELD]},
    {"name": "Bad", "kind": "enum", "values": ["a"], "members": ["A"]},
    {"name": "Bad", "kind": "object", "fields": [], "values": ["a"]},
    {"name": "Bad", "kind": "object", "fields": [], "members": ["A"]},
    {"name": "Bad", "kind": "union", "members": ["A"], "fields": [FIELD]},
    {"name": "Bad", "kind": "union", "members": ["A"], "values": ["x"]},
    {"name": "Bad", "kind": "scalar", "fields": [FIELD]},
    {"name": "Bad", "kind": "scalar", "values": ["a"]},
    {"name": "Bad", "kind": "scalar", "members": ["A"]},
    {"kind": "enum", "values": ["a"]},
    {"name": "Incomplete"},
    {"name": "BadKind", "kind": "map", "description": "Not a valid kind"},
    {"name": "Extra", "kind": "scalar", "unknown_field": True},
]


@pytest.mark.req("AQL-C.intro-5", "AQL-D-1")
def test_details_of_types_are_closed_and_those_we_make_are_valid() -> None:
    assert (len(VALID), len(INVALID)) == (7, 13)
    assert [one for one in VALID if not is_valid("type", one)] == []
    assert [one for one in INVALID if is_valid("type", one)] == []
    field = AqlParameter(name="level", type="integer", enum=(1, 2), minimum=1)
    for declared in (
        TypeDeclaration(name="T", kind="enum", values=("a",)),
        TypeDeclaration(name="T", kind="object", fields=(field,)),
        TypeDeclaration(name="T", kind="union", members=("A",)),
        TypeDeclaration(name="T", kind="scalar", description="x"),
    ):
        assert is_valid("type", declared.details()) and set(declared.info()) <= {"name", "kind", "description"}
    assert field.info()["enum"] == [1, 2]  # of numbers: inline, because values of an enum type are texts
    assert not is_valid("type", {"name": "T", "kind": "enum", "values": [1, 2]})


@pytest.mark.req("AQL-0-1", "AQL-D-1")
def test_shapes_that_contradict_the_schemas_of_the_companion_documents_are_refused() -> None:
    info = {"name": "get_x", "semantic_category": "READ", "endpoint": "read", "description": "Gets."}
    details = {
        **info,
        "mcpTool": "mcp_aql_read",
        "permissions": {"readOnly": True, "destructive": False},
        "parameters": [],
        "returns": {"name": "X", "kind": "object"},
    }

    def listed(data: Any, **more: Any) -> bool:
        return is_valid("introspection", {"success": True, "data": data, **more})

    assert listed({"operations": [info]}) and listed({"operation": details}) and listed({"type": None})
    assert not listed({"operations": [info]}, _meta={})
    assert not listed({"operations": [info]}, warnings=[])
    assert not listed({"operations": [info], "_protocol": {"version": "1.0.0-draft", "mode": "crude"}})
    assert not listed({"operations": [info], "_protocol": {"version": "v1"}})
    for more in ("danger", "danger_level", "supports_pagination", "aliases", "deprecated"):
        assert not listed({"operation": {**details, more: True}})
    assert not listed({"operation": {**details, "returns": {"name": "X", "kind": "list"}}})
    assert not listed({"types": [{"name": "T", "kind": "enum", "values": ["a"]}]})
    assert not is_valid("introspection", {"success": False, "error": {"code": "X", "message": "m", "details": {}}})
    for wrong in ({"success": "true", "data": 1}, {"data": 1}, {"success": True, "data": 1, "error": {}}):
        assert not is_valid("result", wrong)
    for request, is_good in (
        ({"operation": "list_x", "params": {}}, True),
        ({"operation": "list_x", "user_id": 1}, True),
        ({"operation": "listX"}, False),
        ({"operation": "list_x", "params": []}, False),
        ({"params": {}}, False),
    ):
        assert is_valid("input", request) is is_good
    assert all(is_valid("danger", one.word) for one in Danger) and not is_valid("danger", "high")


INFO = {"name": "get_x", "semantic_category": "READ", "endpoint": "read", "description": "Gets."}
COMPANION = [  # each as a document beside the specification shows it, against a schema
    ({"operation": "introspect", "params": {"query": "operations"}}, {"operations": [INFO | {"danger_level": "safe"}]}),
    ({"operation": "introspect", "params": {"query": "types"}}, {"types": [{"name": "T", "kind": "list"}]}),
    ({"operation": "list_x"}, None),
]


@pytest.mark.req("AQL-0-1", "AQL-D-1")
@pytest.mark.parametrize(("request_", "data"), COMPANION)
@pytest.mark.parametrize("client", ["surface", "lines", "library"])
def test_every_client_of_the_tests_fails_the_run_upon_such_an_answer(
    monkeypatch: pytest.MonkeyPatch, client: str, request_: dict[str, Any], data: Any
) -> None:
    envelope = {"success": True, "data": data} if data is not None else {"success": True, "result": 1}
    result = {"content": [{"type": "text", "text": json.dumps(envelope)}]}

    async def answer(*_: Any, **__: Any) -> Any:
        return json.dumps(envelope).encode(), False

    async def respond(*_: Any) -> Any:
        return {"result": result}

    class Answering:
        request = staticmethod(respond)

    async def ask() -> None:
        match client:
            case "surface":
                await AqlClient(Answering()).send("mcp_aql", request_)  # type: ignore[arg-type]
            case "lines":
                monkeypatch.setattr(Lines, "request", respond)
                await Lines.__new__(Lines).send("mcp_aql", request_)
            case _:
                library = Library()
                monkeypatch.setattr(library.service, "answer", answer)
                await library.send("read", json.dumps(request_))

    with pytest.raises(jsonschema_rs.ValidationError):
        asyncio.run(ask())


@pytest.mark.req("AQL-0-1")
def test_the_examples_on_our_pages_are_valid() -> None:
    checked = 0
    for page in ("aql.md", "aql-adapters.md", "safety-loop.md"):
        for block in re.findall(r"```json\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
            for line in block.strip().splitlines():
                one = json.loads(line)
                name = "input" if "operation" in one else "result"
                assert is_valid(name, one), (page, line)
                checked += 1
    assert checked >= 6
