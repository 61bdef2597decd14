"""Aggregated tools as operations: names, categories, danger, parameters and the shape of updates."""

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.protocol.classification import LEAST_TRUST, TRUSTS, classify, danger_by_name, judge_danger, treatment
from interlock.aql.protocol.introspection import example_of
from interlock.aql.protocol.model import NAME, Category, Danger, operation_name, parameter_names
from interlock.aql.protocol.requests import OperationRequest, PayloadLimits, read_request
from interlock.aql.protocol.tool_operations import OperationRule, ToolFacts, classify_tool, declare_tool
from interlock.aql.protocol.validation import Arguments, Validator
from interlock.wire.jsonrpc.codec import decode_value, encode_value

TEXT = {"type": "string"}


def facts(local: str, schema: dict[str, Any] | None = None, **more: Any) -> ToolFacts:
    given: dict[str, Any] = {"is_read_only": False, "description": "Does it.", **more}
    return ToolFacts(name=operation_name(f"ns.{local}"), local=local, schema=schema or {}, **given)


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.req("AQL-C.map-1")
def test_qualified_names_become_operation_names() -> None:
    for qualified, expected in (
        ("infra.edge.stm32h7.dma2d_status", "infra__edge__stm32h7__dma2d_status"),
        ("fs.readFile", "fs__read_file"),
        ("web.getURLList", "web__get_url_list"),
        ("fs.get-sum", "fs__get_sum"),
        ("3d.print", "op_3d__print"),
    ):
        assert operation_name(qualified) == expected
    choose = random.Random(1)
    signs = string.ascii_letters + string.digits + "_-./ \u00e9$"
    for _ in range(10_000):
        name = "".join(choose.choice(signs) for _ in range(choose.randint(1, 40)))
        assert NAME.fullmatch(operation_name(name)), name


@pytest.mark.req("AQL-C.map-4")
def test_properties_become_parameters_and_go_back_to_their_spelling() -> None:
    assert parameter_names(["pullNumber", "$filter", "_id", "URL"]) == ["pull_number", "filter", "id", "url"]
    both = parameter_names(["userId", "user_id", "x"])
    assert both[2] == "x" and all(len(name) == len("user_id_x") + 4 for name in both[:2]) and both[0] != both[1]
    choose = random.Random(2)
    signs = "abcXYZ_$-9"
    for number in range(10_000):
        names = {
            "".join(choose.choice(signs) for _ in range(choose.randint(1, 5))) for _ in range(choose.randint(1, 5))
        }
        made = parameter_names(sorted(names))
        if len(set(made)) < len(made):
            continue  # a suffix may itself collide in names of five random signs; nothing is declared twice below
        assert all(NAME.fullmatch(name) for name in made)
        if number % 50 == 0:
            operation = declare_tool(facts("run", schema(**{name: {"type": "integer"} for name in names})))
            request = read_request(
                encode_value({"operation": "x", "params": {one.name: 1 for one in operation.parameters}}),
                PayloadLimits(),
            )
            assert isinstance(request, OperationRequest)
            sent = Validator(operation).validate(request)
            assert isinstance(sent, Arguments) and decode_value(sent.text) == dict.fromkeys(names, 1)


@pytest.mark.req("AQL-8.2-1", "AQL-8.1-1", "AQL-8.3-1", "AQL-8.3-3")
def test_the_table_of_the_specification_and_its_neighbours() -> None:
    table = {
        "create_user": "CREATE",
        "upload_file": "CREATE",
        "list_users": "READ",
        "search": "READ",
        "get_status": "READ",
        "update_profile": "UPDATE",
        "rename_file": "UPDATE",
        "delete_user": "DELETE",
        "purge_cache": "DELETE",
        "execute_job": "EXECUTE",
        "cancel_task": "EXECUTE",
    }
    reads = {"list_users", "search", "get_status"}
    for name, expected in table.items():
        assert classify(name, is_read_only=name in reads).category.value == expected
    for verb in ("create", "add", "upload", "register", "import", "insert"):
        assert classify(f"{verb}_thing", is_read_only=False).category is Category.CREATE
        assert classify(f"{verb}_thing", is_read_only=False, is_destructive=True).category is Category.EXECUTE
    assert classify("convert_time", is_read_only=True).category is Category.READ
    for name in ("delete_x", "write_x", "git_delete_branch", "search_and_replace"):
        found = classify(name, is_read_only=True)
        assert found.category is not Category.READ and found.rule == "contradiction" and found.reason
    for name in ("send_message", "merge_pull_request", "run_query", "frobnicate", "list_tables"):
        assert classify(name, is_read_only=False).category is Category.EXECUTE
    assert classify("create_or_update_file", is_read_only=False).category is Category.UPDATE


REAL: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "real_tools.json").read_text("utf-8"))


def classified(one: dict[str, Any], **hints: Any) -> tuple[str, str]:
    told = {**one["annotations"], **hints}
    found = classify_tool(
        facts(
            one["tool"].partition(".")[2],
            one["inputSchema"],
            is_read_only=told.get("readOnlyHint") is True,
            is_destructive=told.get("destructiveHint"),
        )
    )[0]
    return found.category.value, found.rule


@pytest.mark.req("AQL-C.map-7", "AQL-8.1-2")
def test_real_tools_keep_the_categories_that_were_recorded() -> None:
    """Definitions of real servers; the categories were recorded from the classifier and read through."""
    assert len(REAL) >= 120
    assert [one["tool"] for one in REAL if classified(one) != (one["category"], one["rule"])] == []
    for one in REAL:
        silent = {"readOnlyHint": None, "destructiveHint": None}
        assert classified(one, **silent)[0] != "READ"  # a name alone is no evidence
        if one["annotations"].get("readOnlyHint") is not True:
            assert one["category"] != "READ", one
        if one["category"] == "CREATE":
            assert classified(one, destructiveHint=True) == ("EXECUTE", "contradiction")
        if one["rule"] == "fallback":
            assert classified(one, readOnlyHint=True)[0] == "READ"
    unannotated = {"tool": "sqlite.list_tables", "annotations": {}, "inputSchema": {"type": "object"}}
    assert classified(unannotated) == ("EXECUTE", "fallback")


@pytest.mark.req("AQL-C.map-8", "AQL-C.map-9", "AQL-8.3-2", "AQL-8.5.3-2")
def test_only_what_can_be_merged_by_forwarding_is_an_update() -> None:
    number = {"type": "integer"}
    issue = schema(
        ("owner", "repo", "issue_number"),
        owner=TEXT,
        repo=TEXT,
        issue_number=number,
        title=TEXT,
        labels={"type": "array", "items": TEXT},
    )
    update = declare_tool(facts("update_issue", issue))
    assert update.category is Category.UPDATE
    assert [one.name for one in update.parameters] == ["owner", "repo", "issue_number", "input"]
    assert update.input_type is not None and [one.name for one in update.input_type.fields] == ["title", "labels"]
    assert update.by_name["input"].type == "NsUpdateIssueInput"
    write = declare_tool(facts("write_file", schema(("path", "content"), path=TEXT, content=TEXT)))
    assert write.category is Category.UPDATE
    settings = schema(("id", "settings"), id=TEXT, settings={"type": "object"})
    plain = classify_tool(facts("set_config", settings))[0]
    assert plain.category is Category.EXECUTE and "settings" in plain.reason
    assert 'aql = { merge = "upstream" }' in plain.reason
    unidentified = classify_tool(facts("update_it", schema((), title=TEXT)))[0]
    assert unidentified.category is Category.EXECUTE and "aql = { identifiers = [...] }" in unidentified.reason
    assert plain.reason in declare_tool(facts("set_config", settings)).description
    ruled = declare_tool(facts("set_config", settings, rule=OperationRule(merge="upstream")))
    assert ruled.category is Category.UPDATE
    for one in (ruled, declare_tool(facts("set_config", settings))):
        assert (one.permissions.read_only, one.permissions.destructive) == (False, True)
    assert declare_tool(facts("update_it", schema(("id",), id=TEXT))).category is Category.EXECUTE
    chosen = OperationRule(identifiers=("title",))
    assert [one.name for one in declare_tool(facts("update_issue", issue, rule=chosen)).parameters] == [
        "title",
        "input",
    ]
    own = schema(("id", "input"), id=TEXT, input={"type": "object", "properties": {"a": TEXT}})
    kept = declare_tool(facts("update_own", own))
    assert [one.name for one in kept.parameters] == ["id", "input"]
    request = read_request(
        encode_value({"operation": "x", "params": {"id": "1", "input": {"a": "b"}}}), PayloadLimits()
    )
    assert isinstance(request, OperationRequest)
    sent = Validator(kept).validate(request)
    assert isinstance(sent, Arguments) and decode_value(sent.text) == {"id": "1", "input": {"a": "b"}}
    for verb, said in (("upload", "Similar to create."), ("rename", "Similar to update."), ("create", "")):
        made = declare_tool(facts(f"{verb}_file", schema(("path", "content"), path=TEXT, content=TEXT))).description
        assert said in made and ("Similar" in made) is bool(said)
    upsert = classify_tool(facts("create_or_update_file", schema(("path", "content"), path=TEXT, content=TEXT)))[0]
    assert upsert.category is Category.UPDATE


@pytest.mark.req("AQL-C.danger-1", "AQL-C.danger-2")
def test_names_raise_the_danger_and_declarations_override() -> None:
    for name, expected in (
        ("force_delete_all", Danger.FORBIDDEN),
        ("delete_all_rows", Danger.FORBIDDEN),
        ("drop_table", Danger.FORBIDDEN),
        ("purge_cache", Danger.DANGEROUS),
        ("erase_permanently", Danger.DANGEROUS),
        ("deploy_production", Danger.FORBIDDEN),
        *((f"{word}_x", Danger.DANGEROUS) for word in ("force", "bulk_delete", "override", "bypass", "purge")),
        *((f"x_{word}", Danger.DANGEROUS) for word in ("permanently", "without_backup")),
        *((f"{word}_x", Danger.FORBIDDEN) for word in ("drop", "delete_all", "truncate", "reset", "destroy", "wipe")),
        ("x_production", Danger.FORBIDDEN),
        ("get_x", None),
    ):
        assert danger_by_name(name) == expected
    assert judge_danger("force_sync", Category.EXECUTE, declared=Danger.SAFE).level is Danger.SAFE
    assert judge_danger("run", Category.EXECUTE, is_irreversible=True).level is Danger.DESTRUCTIVE
    assert judge_danger("list_production", Category.READ, is_read_only=True).level is Danger.SAFE
    assert judge_danger("frobnicate", Category.EXECUTE).level is Danger.REVERSIBLE


@pytest.mark.req("AQL-C.danger-3")
def test_all_cells_of_the_matrix_of_trust_and_danger() -> None:
    order = list(TRUSTS)
    for danger in Danger:
        for trust in TRUSTS:
            found = treatment(danger, trust)
            if trust == "untested" or order.index(trust) < order.index(LEAST_TRUST[danger]):
                assert found == "deny"
            else:
                assert found == ("confirm" if danger >= Danger.DESTRUCTIVE else "allow")
    cells = {danger: [treatment(danger, trust) for trust in TRUSTS] for danger in Danger}
    assert cells == {
        Danger.SAFE: ["deny", "allow", "allow", "allow", "allow"],
        Danger.REVERSIBLE: ["deny", "deny", "allow", "allow", "allow"],
        Danger.DESTRUCTIVE: ["deny", "deny", "confirm", "confirm", "confirm"],
        Danger.DANGEROUS: ["deny", "deny", "deny", "confirm", "confirm"],
        Danger.FORBIDDEN: ["deny", "deny", "deny", "deny", "confirm"],
    }
    assert treatment(Danger.FORBIDDEN, "community_reviewed", is_declared=False) == "confirm"


def test_examples_of_odd_schemas_are_accepted() -> None:
    for properties in (
        {"a": {"type": ["string", "null"]}},
        {"a": {"enum": [3, 4]}},
        {"a": {"const": "x"}},
        {"a": {"type": "integer", "minimum": 7, "maximum": 7}},
        {"a": {"type": "string", "format": "uuid"}},
        {"a": {}},
    ):
        operation = declare_tool(facts("run", schema(("a",), **properties)))
        request = read_request(encode_value(example_of(operation).request), PayloadLimits())
        assert isinstance(request, OperationRequest)
        assert isinstance(Validator(operation).validate(request), Arguments), properties
