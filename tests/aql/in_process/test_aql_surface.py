"""MCP-AQL at a node: five endpoints over its tools, in both eras, with the calls that a flat client would make."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.aql.aql_node import OPEN, AqlNode, aql_node, received_calls, schema, tool
from tests.support.frozen_node import in_frozen_time

ERAS = ["modern", "legacy"]
FIVE = [f"mcp_aql_{family}" for family in ("create", "read", "update", "delete", "execute")]


def code(envelope: dict[str, Any]) -> str:
    return envelope["error"]["code"] if not envelope["success"] else "ok"


# What is listed


@pytest.mark.req("AQL-3.3-1", "AQL-X-7", "AQL-C.mode-2")
@in_frozen_time
async def test_five_tools_are_the_same_bytes_while_servers_come_and_go(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        clients = [await here.client(era) for era in ERAS]

        async def listed() -> list[bytes]:
            answers = [(await one.client.request("tools/list"))["result"]["tools"] for one in clients]
            return [json.dumps(answer).encode() for answer in answers]

        empty = await listed()
        assert list(await clients[0].tools()) == FIVE
        leaf = await here.leaf()
        joined = await listed()
        leaf.tools = [*leaf.tools, tool("get_more")]
        leaf.notify("notifications/tools/list_changed")
        listed_again = await listed()
        leaf.cut()
        assert empty == joined == listed_again == await listed()
        assert not [one for client in clients for one in client.client.heard("notifications/tools/list_changed")]
        assert len(set(empty)) == 1
        described = (await clients[0].introspect(query="operations"))["_protocol"]
        assert (described["mode"], described["profile"]) == ("semantic", "crude")
        for one in await clients[0].tools():
            assert "docs__" not in json.dumps((await clients[0].tools())[one])


@pytest.mark.req("AQL-6.1-1", "AQL-6.1-2", "AQL-6.1-3", "AQL-C.tool-1", "AQL-C.tool-3")
@in_frozen_time
async def test_descriptions_schemas_and_annotations_of_the_endpoints(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        await here.leaf()
        client = here.modern()
        tools = await client.tools()
        hints = {n: (t["annotations"]["readOnlyHint"], t["annotations"]["destructiveHint"]) for n, t in tools.items()}
        assert hints == {
            "mcp_aql_create": (False, False),
            "mcp_aql_read": (True, False),
            "mcp_aql_update": (False, True),
            "mcp_aql_delete": (False, True),
            "mcp_aql_execute": (False, True),
        }
        for name, one in tools.items():
            assert '{"operation":"introspect"' in one["description"] and "search" in one["description"]
            assert name == "mcp_aql_read" or "mcp_aql_read" in one["description"]
            assert set(one["inputSchema"]["properties"]) == {"operation", "params", "operations"}
            assert not {"required", "anyOf", "oneOf", "additionalProperties"} & set(one["inputSchema"])
        expected = {
            "docs__create_document": (False, False),
            "docs__get_user": (True, False),
            "docs__update_document": (False, True),
            "docs__delete_document": (False, True),
            "docs__run_job": (False, True),
        }
        for name, (read_only, destructive) in expected.items():
            details = (await client.introspect(query="operations", name=name))["operation"]
            assert details["permissions"] == {"readOnly": read_only, "destructive": destructive}
    async with aql_node(tmp_path / "alone", '[gate]\nmode = "open"\n[aql]\nbatch = false\n') as here:
        (one,) = (await here.modern("aql-single").tools()).values()
        assert one["inputSchema"]["required"] == ["operation"]
        assert set(one["inputSchema"]["properties"]) == {"operation", "params"}


@pytest.mark.req("AQL-3.3-4", "AQL-C.mode-3")
@in_frozen_time
async def test_single_mode_and_all_give_the_same_envelopes(tmp_path: Path) -> None:
    config = '[gate]\nmode = "open"\n[aql]\nmode = "all"\n'
    async with aql_node(tmp_path, config) as here:
        await here.leaf()
        single, every = here.modern("aql-single"), here.modern()
        assert list(await single.tools()) == ["mcp_aql"]
        assert list(await every.tools()) == [*FIVE, "mcp_aql"]
        calls = {
            "read": ("docs__get_user", {"user_id": "1"}),
            "create": ("docs__create_document", {"title": "t", "body": "b"}),
            "update": ("docs__update_document", {"document_id": "d", "input": {"title": "t"}}),
            "execute": ("docs__run_job", {"job": "j"}),
        }
        for family, (name, params) in calls.items():
            semantic = await every.do(name, params, family)
            alone = await single.send("mcp_aql", {"operation": name, "params": params})
            both = await every.send("mcp_aql", {"operation": name, "params": params})
            assert semantic["success"] and semantic == alone == both
        deletes = {"operation": "docs__delete_document", "params": {"document_id": "d"}}
        for client, endpoint in ((single, "mcp_aql"), (every, "mcp_aql_delete"), (every, "mcp_aql")):
            assert code(await client.send(endpoint, deletes)) == "CONFIRMATION_REQUIRED"
            halted = await client.send(endpoint, {"operations": [deletes]})
            assert code(halted["halted_at"]["result"]) == "CONFIRMATION_REQUIRED"
        name = {"query": "operations", "name": "docs__get_user"}
        assert (await single.introspect("mcp_aql", **name))["operation"]["mcpTool"] == "mcp_aql"
        shown = (await every.introspect("mcp_aql_read", **name))["operation"]
        assert (shown["mcpTool"], shown["endpoint"]) == ("mcp_aql_read", "read")
        assert (await every.introspect(query="operations"))["_protocol"]["mode"] == "all"


@pytest.mark.req("AQL-3.3-2", "AQL-3.3-3", "AQL-6.2-2")
@pytest.mark.parametrize(
    ("settings", "families"),
    [
        ('profile = "discover_query_manage_operate"', ["discover", "query", "manage", "operate"]),
        ('profile = "database"', ["inspect", "query", "mutate", "administer"]),
        ('profile = "hardware"', ["discover", "observe", "control", "maintain"]),
        (
            'profile = "mine"\n'
            'families = { look = ["READ"], touch = ["CREATE", "UPDATE", "DELETE"], run = ["EXECUTE"] }',
            ["look", "touch", "run"],
        ),
    ],
)
def test_each_operation_is_taken_by_exactly_one_tool(tmp_path: Path, settings: str, families: list[str]) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path, f'[gate]\nmode = "open"\n[aql]\n{settings}\n') as here:
            await here.leaf()
            client = here.modern()
            assert list(await client.tools()) == [f"mcp_aql_{family}" for family in families]
            params = {
                "introspect": {"query": "types"},
                "docs__list_users": {},
                "docs__create_document": {"title": "t", "body": "b"},
                "docs__update_document": {"document_id": "d", "input": {}},
                "docs__run_job": {"job": "j"},
            }
            for name, given in params.items():
                answers = {family: await client.do(name, given, family) for family in families}
                takes = [family for family, envelope in answers.items() if envelope["success"]]
                others = [code(envelope) for envelope in answers.values() if not envelope["success"]]
                assert len(takes) == 1, (name, answers)
                assert set(others) == {"VALIDATION_ENDPOINT_MISMATCH"}
                where = f"mcp_aql_{takes[0]}"
                asked = (await client.do("introspect", {"query": "types"}, families[0]))["success"]
                reads = f"mcp_aql_{families[0]}" if asked else where
                shown = await client.introspect(reads, query="operations", name=name)
                assert (shown["operation"]["endpoint"], shown["operation"]["mcpTool"]) == (takes[0], where)

    run()


# Requests


@pytest.mark.req("AQL-4.1-1", "AQL-4.1-2", "AQL-C.tool-7")
@in_frozen_time
async def test_wrong_shapes_are_answered_with_the_right_shape(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        for arguments, expected, param in (
            ({}, "VALIDATION_MISSING_PARAM", "operation"),
            ({"tool": "x", "args": {}}, "VALIDATION_MISSING_PARAM", "operation"),
            ({"operation": 5}, "VALIDATION_INVALID_TYPE", "operation"),
            ({"operation": None}, "VALIDATION_INVALID_TYPE", "operation"),
            ({"operation": ""}, "VALIDATION_INVALID_TYPE", "operation"),
            ([1], "VALIDATION_INVALID_TYPE", "arguments"),
            ('{"operation":"x"}', "VALIDATION_INVALID_TYPE", "arguments"),
        ):
            said = await client.send("mcp_aql_read", arguments)
            assert (code(said), said["error"]["details"]["param_name"]) == (expected, param)
            assert '{"operation":"introspect"' in said["error"]["message"]
        for params, actual in (([], "array"), ("{}", "string"), (None, "null"), (3, "number")):
            said = await client.send("mcp_aql_read", {"operation": "docs__list_users", "params": params})
            details = said["error"]["details"]
            assert (details["param_name"], details["expected_type"]) == ("params", "object")
            assert (code(said), details["actual_type"]) == ("VALIDATION_INVALID_TYPE", actual)
        assert (await client.do("docs__list_users"))["success"]
        assert (await client.send("mcp_aql_read", {"operation": "docs__list_users"}))["success"]
        unknown = await client.client.request("tools/call", {"name": "mcp_aql_reed", "arguments": {}})
        assert unknown["error"]["code"] == -32601
        flat = await client.client.request("tools/call", {"name": "docs__list_users", "arguments": {}})
        assert flat["error"]["code"] == -32601
        assert len(received_calls(leaf)) == 2


@pytest.mark.req("AQL-4.2-1", "AQL-4.6.1-1", "AQL-4.6.1-2", "AQL-4.6-1", "AQL-4.6-2", "AQL-4.6.2-2")
@in_frozen_time
async def test_parameters_are_in_params_or_beside_and_unknown_parameters_are_refused(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        assert (await client.send("mcp_aql_read", {"operation": "docs__get_user", "user_id": "1"}))["success"]
        both = {"operation": "docs__get_user", "user_id": "1", "params": {"user_id": "2"}}
        assert (await client.send("mcp_aql_read", both))["success"]
        exempt = {"operation": "docs__get_user", "_x": 1, "params": {"user_id": "3", "_meta": {}, "_anything": 2}}
        assert (await client.send("mcp_aql_read", exempt))["success"]
        assert [one["arguments"] for one in received_calls(leaf)] == [{"user_id": each} for each in "123"]
        for request in (
            {"operation": "docs__get_user", "user_id": "1", "bogus": 1, "more": 2},
            {"operation": "docs__get_user", "params": {"user_id": "1", "bogus": 1, "more": 2}},
        ):
            said = await client.send("mcp_aql_read", request)
            assert code(said) == "VALIDATION_UNKNOWN_PARAM"
            assert "bogus, more" in said["error"]["message"]
            details = said["error"]["details"]
            assert set(details) == {"operation", "unknown_params", "valid_params"}
            assert sorted(details["unknown_params"]) == ["bogus", "more"]
            assert details["valid_params"] == ["user_id", "fields"]
        camel = await client.do("docs__run_job", {"job": "j", "pullNumber": 3}, "execute")
        assert camel["error"]["details"]["did_you_mean"] == {"pullNumber": "pull_number"}
        proto = await client.do("docs__get_user", {"user_id": "1", "__proto__": {"x": 1}, "constructor": 1})
        assert sorted(proto["error"]["details"]["unknown_params"]) == ["__proto__", "constructor"]
        assert len(received_calls(leaf)) == 3


@pytest.mark.req("AQL-3.2-1", "AQL-6.2-3", "AQL-8.5.2-1", "AQL-C.err-5")
@in_frozen_time
async def test_the_earliest_step_that_fails_is_answered(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        wrong = await client.send("mcp_aql_create", {"operation": "nope", "params": {"bogus": 1}})
        assert code(wrong) == "NOT_FOUND_OPERATION"
        wrong = await client.send("mcp_aql_create", {"operation": "docs__get_user", "params": {"bogus": 1}})
        assert code(wrong) == "VALIDATION_ENDPOINT_MISMATCH"
        assert wrong["error"]["message"] == (
            "Operation 'docs__get_user' must be called via mcp_aql_read, not mcp_aql_create"
        )
        details = {"operation": "docs__get_user", "expected_endpoint": "read", "actual_endpoint": "create"}
        assert wrong["error"]["details"] == {**details, "expected_tool": "mcp_aql_read"}
        for spelling in ("docs__List_Users", "docs.list_users", "docs__listUsers", "docs__list_us\u0435rs"):
            said = await client.send("mcp_aql_read", {"operation": spelling})
            assert code(said) == "NOT_FOUND_OPERATION"
            assert said["error"]["message"].startswith(f"Unknown operation: '{spelling}'")
            assert said["error"]["details"]["operation"] == spelling
            assert said["error"]["details"]["available"][0] == "docs__list_users"
            assert len(said["error"]["details"]["available"]) <= 10
            assert "introspect" in said["error"]["message"]
            assert "safety loop" not in said["error"]["message"]
        assert received_calls(leaf) == []


@pytest.mark.req("AQL-C.err-4", "AQL-5.3-1")
@in_frozen_time
async def test_required_then_types_then_unknown_then_constraints(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        said = await client.do("docs__create_document", {"titel": 5}, "create")
        assert code(said) == "VALIDATION_MISSING_PARAM"
        assert said["error"]["message"].startswith(
            "Missing required parameter 'title' for operation 'docs__create_document'. Expected: string (Its title)"
        )
        details = said["error"]["details"]
        assert (details["param_name"], details["operation"]) == ("title", "docs__create_document")
        assert (details["missing_params"], details["unknown_params"]) == (["title", "body"], ["titel"])
        said = await client.do("docs__list_users", {"limit": "many", "bogus": 1})
        assert code(said) == "VALIDATION_INVALID_TYPE"
        assert said["error"]["message"] == "Parameter 'limit' expected 'integer', got 'string'"
        assert said["error"]["details"] == {
            "param_name": "limit",
            "expected_type": "integer",
            "actual_type": "string",
            "value": "many",
        }
        assert code(await client.do("docs__list_users", {"limit": 101, "bogus": 1})) == "VALIDATION_UNKNOWN_PARAM"
        said = await client.do("docs__list_users", {"limit": 101})
        assert (code(said), said["error"]["details"]["param_name"]) == ("VALIDATION_INVALID_VALUE", "limit")
        assert received_calls(leaf) == []


@pytest.mark.req("AQL-C.map-5", "AQL-4.5.3-1", "AQL-4.5.3-2", "AQL-4.5.3-5", "AQL-4.5.3-3", "AQL-4.5.3-4")
@in_frozen_time
async def test_names_are_mapped_and_values_are_not(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        job = {"job": "j", "config": {"maxRetries": 3, "deep": [{"camelCase": None}]}, "pull_number": 7}
        assert (await client.do("docs__run_job", job, "execute"))["success"]
        update = {"document_id": "d", "input": {"page_count": 12345678901234567890}}
        assert (await client.do("docs__update_document", update, "update"))["success"]
        assert [one["arguments"] for one in received_calls(leaf)] == [
            {"job": "j", "config": job["config"], "pullNumber": 7},
            {"documentId": "d", "pageCount": 12345678901234567890},
        ]
        flat = await client.do("docs__update_document", {"document_id": "d", "title": "t"}, "update")
        assert (code(flat), flat["error"]["details"]["param_name"]) == ("VALIDATION_MISSING_PARAM", "input")
        assert flat["error"]["details"]["unknown_params"] == ["title"]
        for given, expected in ((None, "null"), ([], "array"), ("x", "string"), (3, "number")):
            said = await client.do("docs__update_document", {"document_id": "d", "input": given}, "update")
            assert (code(said), said["error"]["details"]["actual_type"]) == ("VALIDATION_INVALID_TYPE", expected)
            assert said["error"]["details"]["expected_type"] == "object"
            assert said["error"]["details"]["param_name"] == "input"
        said = await client.do("docs__update_document", {"document_id": "d", "input": {"titel": 1}}, "update")
        assert code(said) == "VALIDATION_UNKNOWN_FIELD"
        assert said["error"]["details"] == {
            "operation": "docs__update_document",
            "unknown_fields": ["titel"],
            "valid_fields": ["title", "page_count"],
            "did_you_mean": {"titel": "title"},
        }
        for same in ("d", "e"):
            inner = {"document_id": "d", "input": {"document_id": same}}
            said = await client.do("docs__update_document", inner, "update")
            assert code(said) == "VALIDATION_UNKNOWN_FIELD" and "in params" in said["error"]["message"]
        for member, wrong in (("title", None), ("page_count", "many")):
            said = await client.do("docs__update_document", {"document_id": "d", "input": {member: wrong}}, "update")
            assert code(said) == "VALIDATION_INVALID_TYPE"
            assert said["error"]["details"]["param_name"] == f"input.{member}"
        assert len(received_calls(leaf)) == 2


@pytest.mark.req("AQL-C.map-6", "AQL-X-14")
@in_frozen_time
async def test_an_open_tool_takes_further_members_through_arguments(tmp_path: Path) -> None:
    tools = [
        tool("anything", annotations={"destructiveHint": False}, inputSchema={"type": "object"}),
        tool(
            "mixed",
            annotations={"destructiveHint": False},
            inputSchema={"type": "object", "properties": {"when": {"type": "string", "format": "date-time"}}}
            | {"additionalProperties": {"type": "integer"}},
        ),
        tool("silent", inputSchema={"type": "object", "properties": {"a": {"type": "string"}}}),
    ]
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=tools)
        client = here.modern()
        assert (await client.do("docs__anything", {"arguments": {"any": 1}}, "execute"))["success"]
        mixed = {"when": "2026-02-04 10:30", "arguments": {"extra": 5}}
        assert (await client.do("docs__mixed", mixed, "execute"))["success"]
        assert [one["arguments"] for one in received_calls(leaf)] == [
            {"any": 1},
            {"when": "2026-02-04 10:30", "extra": 5},
        ]
        twice = await client.do("docs__mixed", {"when": "x", "arguments": {"when": "y"}}, "execute")
        assert code(twice) == "VALIDATION_INVALID_VALUE"
        assert code(await client.do("docs__silent", {"b": 1})) == "VALIDATION_UNKNOWN_PARAM"
        assert code(await client.do("docs__mixed", {"arguments": {"x": "no"}}, "execute")) == "VALIDATION_INVALID_TYPE"


# Answers


@pytest.mark.req("AQL-C.map-11", "AQL-C.tool-5", "AQL-5.1-1", "AQL-4.7.4-2")
@in_frozen_time
async def test_results_become_data_and_binary_content_stays_content(tmp_path: Path) -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    cases: list[tuple[dict[str, Any], Any]] = [
        (
            {"structuredContent": {"z": 1, "a": 12345678901234567890}, "content": []},
            {"z": 1, "a": 12345678901234567890},
        ),
        ({"content": [{"type": "text", "text": '{"b":1,"a":[null]}'}]}, {"b": 1, "a": [None]}),
        ({"content": [{"type": "text", "text": "just words"}]}, "just words"),
        ({"content": [{"type": "text", "text": "{broken"}]}, "{broken"),
        ({"content": []}, None),
        (
            {"content": [{"type": "text", "text": "see"}, image]},
            {
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image", "mime_type": "image/png", "content_index": 1},
                ]
            },
        ),
    ]
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        for era in ERAS:
            client = await here.client(era)
            for result, data in cases:
                leaf.answer = lambda params, result=result: {**result, "_meta": {"com.example/x": 1}}
                said = await client.result("mcp_aql_read", {"operation": "docs__list_users"})
                assert json.loads(said["content"][0]["text"]) == {"success": True, "data": data}
                assert said["structuredContent"] == {"success": True, "data": data}
                assert said["content"][1:] == ([image] if image in result["content"] else [])
                assert said["isError"] is False and said["_meta"] == {"com.example/x": 1}
                if data == cases[0][1]:
                    assert '"data":{"z":1,"a":12345678901234567890}' in said["content"][0]["text"].replace(" ", "")
        older = here.modern()
        cast(Any, older.client)._stamp = {}
        params = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        await older.client.request("initialize", params)
        plain = await older.result("mcp_aql_read", {"operation": "docs__list_users"})
        assert "structuredContent" not in plain and json.loads(plain["content"][0]["text"])["success"] is True
        details = (await client.introspect(query="types", name="ContentReference"))["type"]
        assert [field["name"] for field in details["fields"]] == ["type", "mime_type", "content_index"]
        shown = (await client.introspect(query="operations", name="docs__list_users"))["operation"]
        assert "ContentReference" in shown["returns"]["description"]


@pytest.mark.req("AQL-C.map-12")
@in_frozen_time
async def test_a_failed_tool_is_a_failure_with_its_own_words(tmp_path: Path) -> None:
    def failing(text: str, **more: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": text}], "isError": True, **more}

    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        own = {"success": False, "error": {"code": "NOT_FOUND_RESOURCE", "message": "no such", "details": {"a": 1}}}
        for result, expected, is_error in (
            (failing(json.dumps(own)), own["error"], False),
            (
                failing('{"status": 409, "why": "taken"}'),
                {"code": "CONFLICT_ALREADY_EXISTS", "details": {"http_status": 409}},
                False,
            ),
            (
                failing("disk full\nat line 3"),
                {"code": "INTERNAL_ERROR", "message": "Internal error: 'disk full'"},
                True,
            ),
        ):
            leaf.answer = lambda params, result=result: result
            said = await client.result("mcp_aql_read", {"operation": "docs__list_users"})
            error = said["structuredContent"]["error"]
            for key, value in expected.items():
                if isinstance(value, dict):
                    assert value.items() <= error["details"].items()
                else:
                    assert error[key] == value
            assert said["isError"] is is_error
        assert error["details"]["upstream_error"] == "disk full\nat line 3"
        assert error["details"]["source_tool"] == "docs.list_users"
        leaf.answer = lambda params: failing("x" * 9000)
        error = (await client.do("docs__list_users"))["error"]
        assert len(error["details"]["upstream_error"]) == 4096


@in_frozen_time
async def test_annotations_of_content_are_kept(tmp_path: Path) -> None:
    noted = {"audience": ["user"], "priority": 1}
    text = {"type": "text", "text": "words", "annotations": noted}
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        for result in ({"content": [text]}, {"content": [text], "structuredContent": {"a": 1}}):
            leaf.answer = lambda params, result=result: result
            said = await client.result("mcp_aql_read", {"operation": "docs__list_users"})
            assert said["content"][0]["annotations"] == noted
        leaf.answer = lambda params: {"content": [text, {"type": "text", "text": "more"}]}
        listed = (await client.do("docs__list_users"))["data"]["content"]
        assert listed == [text, {"type": "text", "text": "more"}]


@in_frozen_time
async def test_a_missing_field_of_an_object_leads_to_its_type(tmp_path: Path) -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer", "description": "How far"}}, "required": ["x"]}
    given = schema(at=point, route={"type": "array", "items": point})
    async with aql_node(tmp_path) as here:
        await here.leaf(tools=[tool("list_at", inputSchema=given)])
        client = here.modern()
        for params, where in (({"at": {}}, "at.x"), ({"route": [{"x": 1}, {}]}, "route.1.x")):
            error = (await client.do("docs__list_at", params))["error"]
            assert f"Missing required parameter '{where}'" in error["message"]
            assert "Expected: integer (How far)" in error["message"]
            asked = json.loads("{" + error["message"].partition("See {")[2])
            shown = await client.introspect(**asked["params"])
            assert [field["name"] for field in shown["type"]["fields"]] == ["x"]


async def call_all(here: AqlNode, names: list[str]) -> list[str]:
    client = here.modern("aql-single")
    return [code(await client.send("mcp_aql", {"operation": name})) for name in names]


@pytest.mark.req("AQL-C.map-2", "AQL-6.2-1", "AQL-8.5.4-1")
@in_frozen_time
async def test_tools_that_would_share_a_name_are_all_suffixed(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        await here.leaf("a-b", [tool("x", inputSchema=schema())])
        assert await call_all(here, ["a_b__x"]) == ["ok"]
        second = await here.leaf("a_b", [tool("x", inputSchema=schema())])
        client = here.modern("aql-single")
        said = await client.send("mcp_aql", {"operation": "a_b__x"})
        assert code(said) == "NOT_FOUND_OPERATION"
        both = said["error"]["details"]["available"]
        assert len(both) == 2 and all(name.startswith("a_b__x_x") and len(name) == len("a_b__x_x") + 8 for name in both)
        assert await call_all(here, both) == ["ok", "ok"]
        assert len(received_calls(second)) == 1
    reserved = '[[tool]]\nmatch = "docs.list_x"\naql = { name = "execute_agent" }\n'
    async with aql_node(tmp_path / "reserved", OPEN + reserved) as here:
        leaf = await here.leaf(tools=[tool("list_x", inputSchema=schema())])
        listed = (await here.modern().introspect(query="operations"))["operations"]
        (name,) = [one["name"] for one in listed if one["name"].startswith("execute_agent")]
        assert await call_all(here, ["execute_agent", name]) == ["NOT_FOUND_OPERATION", "ok"]
        assert len(received_calls(leaf)) == 1
