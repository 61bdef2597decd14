"""What is written for a server that has no files: contracts and a driver, from what it lists."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drivers.driver_texts import binding, driver, told

from interlock.ax.protocol.capability import ToolClass
from interlock.drivers.protocol.authoring import (
    DraftedContract,
    DraftedDriver,
    contract_id_of,
    draft_contract,
    draft_contracts,
    draft_driver,
    proposed_renames,
)
from interlock.drivers.protocol.binding.effects import effects_of, find_contradiction, proposed_class
from interlock.drivers.protocol.binding.match import Bound, match
from interlock.drivers.protocol.files.contract import read_contract
from interlock.drivers.protocol.problems import FileProblem

DRAFT_07 = "http://json-schema.org/draft-07/schema#"
ENTITIES = {
    "type": "object",
    "properties": {
        "entities": {"type": "array", "items": {"type": "object", "additionalProperties": False}},
        "relations": {"type": "array", "items": {"type": "object", "required": ["from", "to"]}},
    },
    "required": ["entities", "relations"],
    "additionalProperties": False,
}
READ_GRAPH = {
    "name": "read_graph",
    "title": "Read Graph",
    "description": "Read the entire knowledge graph",
    "inputSchema": {"$schema": DRAFT_07, "type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
    "execution": {"taskSupport": "forbidden"},
    "outputSchema": {"$schema": DRAFT_07, **ENTITIES},
}
GIT_STATUS = {
    "name": "git_status",
    "description": "Shows the working tree status",
    "inputSchema": {"properties": {"repo_path": {"type": "string"}}, "required": ["repo_path"], "type": "object"},
}


def tool(name: str = "do", **changed: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **changed}


def drafted(item: Any, driver_id: str = "x-mcp", **more: Any) -> DraftedContract:
    found = draft_contract(item, driver_id, **more)
    assert isinstance(found, DraftedContract), found
    reading = read_contract(found.text.encode(), "TOOL.md")
    assert reading.problems == ()
    assert reading.value == found.contract
    return found


def refused(item: Any) -> tuple[FileProblem, ...]:
    found = draft_contract(item, "x-mcp")
    assert isinstance(found, tuple)
    assert found
    return found


@pytest.mark.req("AIP-author-4")
def test_a_tool_with_schemas_becomes_a_contract_with_the_same() -> None:
    made = drafted(READ_GRAPH, "memory-mcp").contract
    assert made.outputs == ENTITIES
    assert made.inputs == {"type": "object", "properties": {}}
    assert (made.id, made.name, made.version) == ("memory.read-graph", "Read Graph", "1.0.0")
    assert made.listed_as == "memory.read_graph"
    assert made.description == "Read the entire knowledge graph"


@pytest.mark.req("AIP-author-4")
def test_a_tool_that_says_nothing_of_its_output_answers_text() -> None:
    made = drafted(GIT_STATUS, "git-mcp").contract
    assert made.outputs == {
        "type": "object",
        "required": ["content"],
        "properties": {"content": {"type": "string"}},
    }
    assert made.inputs == GIT_STATUS["inputSchema"]


@pytest.mark.req("AIP-author-4")
def test_older_keywords_of_both_schemas_are_rewritten() -> None:
    old = {
        "$schema": DRAFT_07,
        "type": "object",
        "properties": {"p": {"$ref": "#/definitions/pair"}},
        "definitions": {"pair": {"type": "array", "items": [{"type": "string"}], "additionalItems": False}},
        "dependencies": {"p": ["q"]},
    }
    made = drafted(tool(inputSchema=old, outputSchema=old)).contract
    assert (
        made.inputs
        == made.outputs
        == {
            "type": "object",
            "properties": {"p": {"$ref": "#/$defs/pair"}},
            "$defs": {"pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": False}},
            "dependentRequired": {"p": ["q"]},
        }
    )


@pytest.mark.req("AIP-author-4")
@pytest.mark.parametrize(
    ("driver_id", "name", "expected"),
    [
        ("filesystem-mcp", "read_file", "filesystem.read-file"),
        ("filesystem-mcp", "readFile", "filesystem.read-file"),
        ("x-mcp", "a/b c.d", "x.a-b-c-d"),
        ("x", "__go__", "x.go"),
        ("my.files-mcp", "get", "my.files.get"),
    ],
)
def test_the_id_is_the_driver_and_the_tool_with_dashes(driver_id: str, name: str, expected: str) -> None:
    assert contract_id_of(driver_id, name) == expected
    assert drafted(tool(name), driver_id).contract.id == expected


@pytest.mark.parametrize("name", ["日本", "___", "-", "a" * 300, "日本" * 200])
@pytest.mark.parametrize("driver_id", ["x-mcp", "d" * 76 + "-mcp"])
def test_a_name_without_letters_or_end_still_gives_an_id_of_its_own(name: str, driver_id: str) -> None:
    made = drafted(tool(name), driver_id).contract
    assert made.id != drafted(tool(name + "x"), driver_id).contract.id
    assert len(made.id) <= 80


@pytest.mark.req("AIP-author-4")
def test_tools_whose_contracts_would_have_one_id_are_refused_and_named() -> None:
    tools = [tool("read_file"), tool("readFile"), tool("other")]
    for order in (tools, tools[::-1]):
        contracts, problems = draft_contracts(order, "x-mcp")
        assert [each.contract.id for each in contracts] == ["x.other"]
        (problem,) = problems
        assert problem.code == "id_collision"
        assert "'read_file'" in problem.message
        assert "'readFile'" in problem.message


def test_a_contract_gets_the_id_and_the_class_that_a_person_chose() -> None:
    (first, second), _ = draft_contracts(
        [tool("read_file"), tool("other")],
        "x-mcp",
        contract_ids={"read_file": "fs-read"},
        classes={"read_file": "read_only"},
    )
    assert (first.contract.id, first.contract.approval, first.contract.listed_as) == ("fs-read", "auto", "x.read_file")
    assert second.contract.approval == "policy:unannotated"


@pytest.mark.req("AIP-author-3")
def test_the_binding_of_a_drafted_contract_renames_and_extracts_nothing() -> None:
    made = drafted(READ_GRAPH, "memory-mcp")
    entry = {"version": "^1.0.0", "metadata": {"mcp": {"tool_name": "read_graph"}}}
    assert made.binding() == {"tool": "memory.read-graph", **entry}
    assert made.binding("./tools/read-graph/TOOL.md") == {"tool": "./tools/read-graph/TOOL.md", **entry}


EFFECTS = [
    ({"readOnlyHint": True}, None, (), "auto", 0, False),
    ({"readOnlyHint": True, "idempotentHint": True}, None, (), "auto", 0, True),
    ({"destructiveHint": False}, None, ("external:x-mcp",), "policy:gate", 2, False),
    ({"destructiveHint": False, "openWorldHint": False}, None, ("external:x-mcp",), "policy:gate", 1, False),
    ({"destructiveHint": True, "idempotentHint": True}, None, ("external:x-mcp",), "policy:gate", 3, True),
    ({"readOnlyHint": False}, None, ("external:x-mcp",), "policy:gate", 3, False),
    ({"readOnlyHint": False, "destructiveHint": False}, None, ("external:x-mcp",), "policy:gate", 2, False),
    (None, None, ("external:x-mcp",), "policy:unannotated", 2, False),
    ({"idempotentHint": True}, None, ("external:x-mcp",), "policy:unannotated", 2, False),
    (None, "read_only", (), "auto", 0, False),
    ({"idempotentHint": True}, "read_only", (), "auto", 0, False),
    (None, "reversible", ("external:x-mcp",), "policy:gate", 2, False),
    ({"openWorldHint": False}, "reversible", ("external:x-mcp",), "policy:gate", 1, False),
    ({"readOnlyHint": True}, "irreversible", ("external:x-mcp",), "policy:gate", 3, False),
]


@pytest.mark.req("AIP-author-5")
@pytest.mark.parametrize(("annotations", "said", "mutates", "approval", "risk", "idempotent"), EFFECTS)
def test_effects_come_from_a_person_else_from_annotations_in_the_cautious_direction(
    annotations: Any, said: ToolClass | None, mutates: tuple[str, ...], approval: str, risk: int, idempotent: bool
) -> None:
    item = tool() if annotations is None else tool(annotations=annotations)
    made = drafted(item, tool_class=said).contract
    assert (made.mutates, made.approval, made.risk_level, made.idempotent) == (mutates, approval, risk, idempotent)


@pytest.mark.parametrize(
    ("name", "annotations", "expected"),
    [
        ("read_query", None, "read_only"),
        ("listTables", None, "read_only"),
        ("write_query", None, "irreversible"),
        ("append_insight", None, "reversible"),
        ("create_table", None, "reversible"),
        ("get_and_delete", None, "irreversible"),
        ("frobnicate", None, "irreversible"),
        ("", None, "irreversible"),
        ("delete_all", {"readOnlyHint": True}, "irreversible"),
        ("get_post", {"readOnlyHint": True}, "read_only"),
        ("read", {"readOnlyHint": False}, "irreversible"),
        ("read", {"destructiveHint": False}, "reversible"),
        ("read", {"readOnlyHint": True, "destructiveHint": True}, "irreversible"),
        ("read", {"title": "x"}, "read_only"),
    ],
)
def test_a_class_is_proposed_from_annotations_else_from_verbs(name: str, annotations: Any, expected: str) -> None:
    assert proposed_class(tool(name, annotations=annotations)).tool_class == expected


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        *(("add_note", "add"), ("addNote", "add"), ("add-note", "add"), ("notes.add", "add"), ("ADD_NOTE", "add")),
        *(
            ("deleteFile", "delete"),
            ("browserDelete2", "delete"),
            ("HTTPDelete", "delete"),
            ("x-delete--all", "delete"),
        ),
        *(("get_and_delete", "delete"), ("searchOrReplace", "replace"), ("run_query", "run"), ("fs_write", "write")),
        *(("address", None), ("get_address", None), ("additions", None), ("deleted_files", None), ("padding", None)),
        *(("get_post", None), ("list_commits", None), ("read_update_log", None), ("listCalls", None), ("", None)),
        *(("getPost", None), ("frobnicate", None), ("löschen", None), ("delete" * 400, None)),
    ],
)
def test_a_read_only_class_is_questioned_where_a_whole_word_of_the_name_says_otherwise(
    name: str, verb: str | None
) -> None:
    question = find_contradiction(name, "read_only")
    assert question == (None if verb is None else f"it is said to only read, and its name says {verb!r}")
    assert find_contradiction(name, "reversible") is None
    proposed = proposed_class(tool(name, annotations={"readOnlyHint": True}))
    assert (proposed.question, proposed.tool_class == "read_only") == (question, verb is None)
    assert proposed.by == ("annotations" if verb is None else "name")


def test_arguments_outweigh_a_name_that_only_reads() -> None:
    takes = {"type": "object", "properties": {"path": {}, "newContent": {}}}
    proposed = proposed_class(tool("get_file", inputSchema=takes))
    assert (proposed.tool_class, proposed.by) == ("irreversible", "schema")
    assert proposed.question == "its name says that it only reads, and it takes 'newContent'"
    for schema in ({}, {"properties": 1}, {"properties": {"path": {}, "discontent": {}}}, None, []):
        assert proposed_class(tool("get_file", inputSchema=schema)).tool_class == "read_only"
    assert proposed_class(tool("frobnicate")).by == "nothing"


def test_a_proposal_is_no_effect() -> None:
    assert effects_of(None, "x-mcp").approval == "policy:unannotated"


@pytest.mark.parametrize(
    "item",
    [
        None,
        [],
        {},
        tool(""),
        {"name": 3, "inputSchema": {}},
        {"name": "a"},
        tool(inputSchema=True),
        tool(inputSchema={"type": "string"}),
        tool(inputSchema={"type": "nonsense"}),
        tool(inputSchema={"properties": {"a": {"$ref": "https://elsewhere.example/x"}}}),
        tool(outputSchema=[]),
        tool(outputSchema={"enum": ["\0"]}),
        tool(inputSchema={"properties": {"k" * 2000: {}}}),
        tool(inputSchema={"default": {"<<": 1}}),
        tool(inputSchema={"enum": list(range(30_000))}),
    ],
)
def test_a_definition_that_no_file_can_hold_is_refused_in_words(item: Any) -> None:
    assert all(each.message and each.hint for each in refused(item))


def test_a_deep_schema_is_refused_and_not_followed() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"not": deep}
    refused(tool(inputSchema=deep))


def test_invisible_characters_are_removed_and_long_texts_cut() -> None:
    made = drafted(
        tool(title=" Two\nlines\x00 \u202eof it ", description="Seen\u200b\x1b[31m\r\nnext\ud800" + "x" * 3000)
    ).contract
    assert made.name == "Two lines of it"
    assert made.description.startswith("Seen[31m\nnextxxx")
    assert len(made.description) == 2000
    assert drafted(tool("do", title="\u200b", description="\n")).contract.description == "do"
    assert drafted(tool("\u200b")).contract.name == "Tool"


@given(
    st.fixed_dictionaries(
        {"name": st.text(min_size=1, max_size=30)},
        optional={"title": st.text(max_size=100), "description": st.text(max_size=60), "annotations": st.none()},
    ),
    st.sampled_from([{"type": "object"}, {"properties": {"no": {"const": "1.0"}, "é: #": {"default": "\n x"}}}]),
)
def test_any_tool_name_of_a_server_gives_a_contract_that_reads_back(
    item: dict[str, Any], schema: dict[str, Any]
) -> None:
    made = drafted({**item, "inputSchema": schema})
    assert made.contract.inputs == schema


def test_a_driver_is_written_that_reads_back_without_a_warning() -> None:
    made = drafted(READ_GRAPH, "memory-mcp")
    data = {
        "name": "Memory",
        "id": "memory-mcp",
        "description": "A knowledge graph.",
        "server": {"kind": "npm", "package": "@modelcontextprotocol/server-memory@2026.8.31"},
        "transport": "stdio",
        "implements": [made.binding()],
        "network": {"egress": []},
    }
    found = draft_driver(data, "# Memory\n\nA graph.")
    assert isinstance(found, DraftedDriver)
    assert found.problems == ()
    assert found.driver.key == "memory-mcp@1"
    assert found.driver.implements[0].tool_name == "read_graph"
    assert found.text.startswith("---\nname: Memory\nid: memory-mcp\n")
    assert found.text.endswith("---\n\n# Memory\n\nA graph.\n")


@pytest.mark.req("AIP-author-3")
@pytest.mark.parametrize(
    "item",
    [
        READ_GRAPH,
        tool(
            "convert",
            inputSchema={
                "$schema": DRAFT_07,
                "type": "object",
                "properties": {"pair": {"$ref": "#/definitions/pair"}, "mode": {"enum": ["a", "b"]}},
                "required": ["pair"],
                "definitions": {"pair": {"type": "array", "items": {"type": ["string", "null"]}}},
                "additionalProperties": False,
            },
            outputSchema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        ),
    ],
)
def test_a_drafted_contract_binds_to_its_tool_without_a_warning(item: dict[str, Any]) -> None:
    made = drafted(item, "memory-mcp")
    found = draft_driver(driver(id="memory-mcp", implements=[made.binding()]))
    assert isinstance(found, DraftedDriver)
    bound = match(found.driver, found.driver.implements[0], made.contract, item)
    assert isinstance(bound, Bound), bound
    assert bound.warnings == ()


def test_a_driver_that_would_not_load_is_not_written() -> None:
    found = draft_driver(driver(server={"kind": "npm", "package": "x", "env": {"API_TOKEN": "ghp_" + "a" * 36}}))
    assert isinstance(found, tuple)
    assert [code for code, _ in told(found)] == ["plaintext_secret"]
    assert isinstance(draft_driver({}), tuple)


def test_warnings_of_a_driver_are_handed_on() -> None:
    found = draft_driver(driver(id="filesystem", implements=[binding()]))
    assert isinstance(found, DraftedDriver)
    assert [code for code, _ in told(found.problems)] == ["id_suffix"]


def schema(**types: str) -> dict[str, Any]:
    return {"properties": {name: {"type": kind} for name, kind in types.items()}}


@pytest.mark.req("AIP-author-3")
@pytest.mark.parametrize(
    ("inputs", "arguments", "expected"),
    [
        (schema(sql="string"), schema(query="string"), {"sql": "query"}),
        (schema(sql="string"), schema(query="integer"), {}),
        (schema(sql="string"), schema(sql="string", other="string"), {}),
        (schema(path="string"), schema(file_path="string", mode="string"), {"path": "file_path"}),
        (schema(path="string"), schema(one="string", two="string"), {}),
        (schema(a="string", b="string"), schema(c="string"), {}),
        (
            schema(limit="integer", q="string"),
            schema(max_limit="integer", query="string"),
            {"limit": "max_limit", "q": "query"},
        ),
        ({}, schema(a="string"), {}),
        ({"properties": {"a": {}}}, {"properties": {"b": {}}}, {}),
        ({"properties": 3}, {"properties": {"b": True}}, {}),
    ],
)
def test_a_rename_is_proposed_only_where_types_match_and_one_name_is_left(
    inputs: dict[str, Any], arguments: dict[str, Any], expected: dict[str, str]
) -> None:
    assert proposed_renames(inputs, arguments) == expected
