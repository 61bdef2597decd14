"""Introspection at a node: closed shapes, search, pages, examples that work, and only what a caller may call."""

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.aql.aql_node import TEXT, WRITES, AqlClient, aql_node, received_calls, schema, tool
from tests.support.frozen_node import in_frozen_time, run_until_idle

from interlock.aql.protocol.model import AqlOperation, Category
from interlock.aql.protocol.search import SearchIndex, term_weights
from interlock.core.calls.caller import Principal

PROTOCOL_TYPES = {
    *("SemanticCategory", "OperationInput", "OperationResult", "OperationSuccess", "OperationFailure"),
    "EndpointPermissions",
}


@pytest.mark.req("AQL-7.2-2", "AQL-7.3-1", "AQL-C.intro-1", "AQL-C.intro-2", "AQL-C.intro-6")
@in_frozen_time
async def test_the_four_forms_and_null_for_unknown_names(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        empty = await here.modern("aql-single").introspect("mcp_aql", query="operations")
        assert [one["name"] for one in empty["operations"]] == ["introspect"]
        await here.leaf()
        client = here.modern()
        listed = await client.introspect(query="operations")
        assert set(listed) == {"_protocol", "operations"}
        own = [one for one in listed["operations"] if one["name"] == "introspect"]
        assert [(one["semantic_category"], one["endpoint"]) for one in own] == [("READ", "read")]
        assert all(len(one["description"]) <= 120 and "\n" not in one["description"] for one in listed["operations"])
        details = (await client.introspect(query="operations", name="introspect"))["operation"]
        assert details["mcpTool"] == "mcp_aql_read"
        assert set(await client.introspect(query="types")) == {"types"}
        assert set(await client.introspect(query="types", name="OperationInput")) == {"type"}
        for unknown in ("nope", "", "docs.list_users"):
            result = await client.result(
                "mcp_aql_read", {"operation": "introspect", "params": {"query": "operations", "name": unknown}}
            )
            assert result["structuredContent"] == {"success": True, "data": {"operation": None}}
            assert result["isError"] is False
        assert await client.introspect(query="types", name="nope") == {"type": None}


@pytest.mark.req("AQL-7.2-3", "AQL-7.2-4", "AQL-C.intro-9")
@in_frozen_time
async def test_a_failed_introspection_has_a_code_and_a_message_only(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        client = here.modern()
        for params, code, said in (
            ({}, "VALIDATION_MISSING_PARAM", "'query'"),
            ({"query": "operation"}, "INVALID_QUERY_TYPE", "'operations', 'types'"),
            ({"query": "types", "nme": "x"}, "VALIDATION_UNKNOWN_PARAM", "nme"),
            ({"query": "types", "name": 5}, "VALIDATION_INVALID_TYPE", "'name'"),
            ({"query": "types", "name": {}}, "VALIDATION_INVALID_TYPE", "'name'"),
            ({"query": "operations", "first": 0}, "VALIDATION_INVALID_VALUE", "'first'"),
            ({"query": "operations", "first": True}, "VALIDATION_INVALID_TYPE", "'first'"),
        ):
            result = await client.result("mcp_aql_read", {"operation": "introspect", "params": params})
            error = result["structuredContent"]["error"]
            assert (error["code"], set(error)) == (code, {"code", "message"})
            assert said in error["message"]
        beside = await client.send("mcp_aql_read", {"operation": "introspect", "query": "types"})
        assert beside["success"]


@pytest.mark.req("AQL-9.1-1", "AQL-C.intro-10", "AQL-C.fields-4", "AQL-9.2-1")
@in_frozen_time
async def test_types_of_the_protocol_and_of_operations_all_resolve(tmp_path: Path) -> None:
    nested = {"type": "object", "properties": {"deep": {"type": "object", "properties": {"x": TEXT}}, "n": TEXT}}
    either = {"anyOf": [{"type": "string"}, {"type": "integer"}, nested]}
    tools = [
        tool(
            "make",
            annotations=WRITES,
            inputSchema={
                **schema(("a",), a=nested, b=either, c={"$ref": "#/$defs/thing"}, d={"type": "array", "items": nested}),
                "$defs": {"thing": {"type": "object", "properties": {"self": {"$ref": "#/$defs/thing"}}}},
            },
        )
    ]
    async with aql_node(tmp_path) as here:
        await here.leaf(tools=tools)
        client = here.modern()
        listed = {one["name"]: one for one in (await client.introspect(query="types"))["types"]}
        assert listed.keys() >= PROTOCOL_TYPES | {"DangerLevel", "FieldSelection", "ContentReference"}
        shown = (await client.introspect(query="types", name="SemanticCategory"))["type"]
        assert shown["values"] == ["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"]
        shown = (await client.introspect(query="types", name="OperationResult"))["type"]
        assert shown["members"] == ["OperationSuccess", "OperationFailure"]
        shown = (await client.introspect(query="types", name="FieldSelection"))["type"]
        assert [field["name"] for field in shown["fields"]] == ["presets", "fields", "computed_fields"]
        known = {"string", "integer", "number", "boolean", "array", "object", "null", "any", *listed}

        def used(fields: list[dict[str, Any]]) -> set[str]:
            words = {word for field in fields for word in field["type"].split(" | ")}
            items = {field["items"]["type"] for field in fields if isinstance(field.get("items", {}).get("type"), str)}
            return words | items

        details = (await client.introspect(query="operations", name="docs__make"))["operation"]
        assert used(details["parameters"]) <= known
        for name in listed:
            found = (await client.introspect(query="types", name=name))["type"]
            assert found is not None and found["kind"] == listed[name]["kind"]
            assert used(found.get("fields", [])) | set(found.get("members", [])) <= known


@pytest.mark.req("AQL-C.intro-7", "AQL-C.intro-8", "AQL-4.7.5-8", "AQL-10.1-3", "AQL-10.2-1")
@pytest.mark.req("AQL-4.7.5-9", "AQL-C.intro-10")
@in_frozen_time
async def test_the_protocol_object_says_what_is_in_force(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        said = (await here.modern().introspect(query="operations"))["_protocol"]
        assert (said["version"], said["conformance"], said["mode"]) == ("1.0.0-draft", "level-2", "semantic")
        assert said["concurrency"] == "fully-concurrent" and said["max_concurrent_requests"] == 1024
        assert said["limits"] == {
            "max_request_size": 1_048_576,
            "max_response_size": 10_485_760,
            "max_string_length": 1_048_576,
            "max_array_elements": 10_000,
            "max_nesting_depth": 32,
            "max_batch_operations": 50,
        }
        flags = said["capabilities"]
        assert flags["batch"] and flags["field_selection"] and flags["confirmation"] and flags["warnings"]
        assert not (flags["aggregations"] or flags["relationship_queries"] or flags["pagination"])
    off = "batch = false\nfield_selection = false\nlimits = { batch_operations = 7 }\ndanger = { enforce = false }\n"
    async with aql_node(tmp_path / "off", f'[gate]\nmode = "open"\n[aql]\n{off}') as here:
        await here.leaf()
        client = here.modern()
        said = (await client.introspect(query="operations"))["_protocol"]
        assert said["conformance"] == "level-1" and said["limits"]["max_batch_operations"] == 7
        flags = said["capabilities"]
        names = ("batch", "field_selection", "confirmation", "dangerous_operations")
        assert [flags[name] for name in names] == [False] * 4
        types = {one["name"] for one in (await client.introspect(query="types"))["types"]}
        assert types >= PROTOCOL_TYPES and not types & {"DangerLevel", "FieldSelection", "SafetyTier"}
        unknown = await client.do("docs__list_users", {"fields": "minimal"})
        assert unknown["error"]["details"]["unknown_params"] == ["fields"]
        assert (await client.do("docs__delete_document", {"document_id": "d"}, "delete"))["success"]
        batch = await client.send("mcp_aql_read", {"operations": [{"operation": "docs__list_users"}]})
        assert batch["error"]["code"] == "VALIDATION_MISSING_PARAM"
    for lacking in ("batch = false", "field_selection = false", 'mode = "single"'):
        async with aql_node(tmp_path / lacking[:5], f'[gate]\nmode = "open"\n[aql]\n{lacking}\n') as here:
            endpoint = "mcp_aql" if "mode" in lacking else "mcp_aql_read"
            said = (await here.modern().introspect(endpoint, query="operations"))["_protocol"]
            assert said["conformance"] == "level-1", lacking


@pytest.mark.req("AQL-4.3-2", "AQL-C.intro-4", "AQL-C.intro-11", "AQL-C.intro-13", "AQL-C.map-15")
@in_frozen_time
async def test_every_example_works_and_what_is_documented_is_what_is_taken(tmp_path: Path) -> None:
    tools = [
        tool("get_page", inputSchema=schema(("pageId", "kind"), pageId=TEXT, kind={"enum": ["a", "b"]})),
        tool(
            "create_thing",
            annotations=WRITES,
            inputSchema=schema(
                ("id", "count", "ratio", "flag", "list", "object", "date", "code", "maybe", "password"),
                id={**TEXT, "minLength": 12},
                count={"type": "integer", "minimum": 5, "multipleOf": 5},
                ratio={"type": "number", "exclusiveMinimum": 0},
                flag={"type": "boolean"},
                list={"type": "array", "items": {"type": "integer"}, "minItems": 2},
                object={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
                date={**TEXT, "format": "date-time"},
                code={**TEXT, "pattern": "^[A-Z]{3}$"},
                maybe={"anyOf": [{"type": "string"}, {"type": "null"}]},
                password=TEXT,
                note={**TEXT, "default": "none"},
                always={"const": "x"},
            ),
        ),
        tool("update_row", annotations=WRITES, inputSchema=schema(("row_id",), row_id=TEXT, name=TEXT)),
        tool("delete_row", annotations=WRITES, inputSchema=schema(("row_id",), row_id=TEXT)),
        tool("ping", inputSchema=schema()),
    ]
    async with aql_node(tmp_path) as here:
        await here.leaf(tools=tools)
        client = here.modern("aql-single")
        for one in (await client.introspect("mcp_aql", query="operations"))["operations"]:
            shown = (await client.introspect("mcp_aql", query="operations", name=one["name"]))["operation"]
            (request, *_) = [example["request"] for example in shown["examples"]]
            assert request["operation"] == one["name"]
            answer = await client.send("mcp_aql", request)
            assert answer["success"] or answer["error"]["code"] == "CONFIRMATION_REQUIRED", (request, answer)
            if one["name"] == "introspect":
                continue
            names = {parameter["name"] for parameter in shown["parameters"]}
            for parameter in shown["parameters"]:
                if parameter["required"]:
                    left = {key: value for key, value in request["params"].items() if key != parameter["name"]}
                    said = await client.send("mcp_aql", {"operation": one["name"], "params": left})
                    assert said["error"]["details"]["param_name"] == parameter["name"]
            for cross in {"fields", "confirmation_token", "if_match", "dry_run", "limit", "offset"} - names:
                params = {**request.get("params", {}), cross: "full"}
                said = await client.send("mcp_aql", {"operation": one["name"], "params": params})
                assert said["error"]["code"] == "VALIDATION_UNKNOWN_PARAM", cross
                assert said["error"]["details"]["unknown_params"] == [cross]
        shown = (await client.introspect("mcp_aql", query="operations", name="docs__create_thing"))["operation"]
        by_name = {parameter["name"]: parameter for parameter in shown["parameters"]}
        assert by_name["password"]["sensitive"] is True
        assert by_name["maybe"]["type"] == "string | null"
        assert by_name["note"]["default"] == "none"
        assert "exclusiveMinimum: 0" in by_name["ratio"]["description"]
        assert "multipleOf: 5" in by_name["count"]["description"]
        assert "const: x" in by_name["always"]["description"]
        assert by_name["list"]["items"] == {"type": "integer"}
        assert by_name["id"]["minLength"] == 12 and by_name["code"]["pattern"] == "^[A-Z]{3}$"


@pytest.mark.req("AQL-C.intro-3")
@in_frozen_time
async def test_details_have_the_members_of_the_specification_and_no_others(tmp_path: Path) -> None:
    """That they are closed is held by the schema which every answer here is validated by."""
    list_of = {"type": "array", "items": {"type": "string"}}
    tools = [
        tool("list_names", outputSchema=list_of),
        tool("list_things", outputSchema={"type": "array", "items": {"anyOf": []}}),
        tool("get_thing", outputSchema={"type": "object"}),
        tool("delete_thing", annotations=WRITES, deprecated=True, aliases=["x"], _meta={"danger": "none"}),
    ]
    required = {"name", "semantic_category", "endpoint", "mcpTool", "description", "permissions", "parameters"}
    optional = {"examples", "computed_fields", "aggregation_support", "relationship_capabilities", "lifecycle"}
    async with aql_node(tmp_path) as here:
        await here.leaf(tools=tools)
        client = here.modern()
        returned = {}
        for one in (await client.introspect(query="operations"))["operations"]:
            shown = (await client.introspect(query="operations", name=one["name"]))["operation"]
            assert required | {"returns"} <= set(shown) <= required | {"returns"} | optional
            returned[one["name"]] = shown["returns"]
        assert (returned["docs__list_names"]["name"], returned["docs__list_names"]["kind"]) == ("array", "scalar")
        assert returned["docs__list_names"]["description"].startswith("Items: string. ")
        assert returned["docs__list_things"]["description"].startswith("Items: any. ")
        assert returned["docs__get_thing"]["name"] == "object"
        assert returned["docs__delete_thing"]["name"] == "any"
        shown = (await client.introspect(query="operations", name="docs__delete_thing"))["operation"]
        assert "Danger: destructive" in shown["description"]


def many(count: int) -> list[dict[str, Any]]:
    words = ["invoice", "ticket", "branch", "sensor", "camera", "deploy", "email", "user", "file", "calendar"]
    return [
        tool(f"get_{words[n % 10]}_{n}", description=f"Gets the {words[n % 10]} number {n} of the archive.")
        for n in range(count)
    ]


@pytest.mark.req("AQL-C.intro-15", "AQL-X-15", "AQL-C.intro-14", "AQL-2.3.3-2")
@in_frozen_time
async def test_a_large_catalogue_is_read_by_pages_and_by_words(tmp_path: Path) -> None:
    extra = [
        tool("merge_pull_request", annotations=WRITES, description="Merges a pull request into its base branch."),
        tool("send_email", annotations=WRITES, description="Sends a message to somebody."),
        tool("read_file", description="Reads the content of a file."),
    ]
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=[*many(500), *extra])
        client = here.modern()
        result = await client.result("mcp_aql_read", {"operation": "introspect", "params": {"query": "operations"}})
        text = result["content"][0]["text"]
        assert len(text.encode()) < 8192
        first = json.loads(text)["data"]
        info = first["_protocol"]["page_info"]
        assert (info["total"], info["returned"]) == (505, len(first["operations"]))
        assert "search" in info["how"] and info["next"] == first["operations"][-1]["name"]
        names: list[str] = [one["name"] for one in first["operations"]]
        after = info["next"]
        while after is not None:
            page = await client.introspect(query="operations", first=200, after=after)
            names += [one["name"] for one in page["operations"]]
            after = page["_protocol"]["page_info"]["next"]
        assert names == sorted(names) and len(set(names)) == len(names) == 505
        for words, expected in (
            ("merge pull request", "docs__merge_pull_request"),
            ("send an email", "docs__send_email"),
            ("read file content", "docs__read_file"),
            ("introspect", "introspect"),
            ("invoice 120", "docs__get_invoice_120"),
        ):
            found = (await client.introspect(query="operations", search=words, first=5))["operations"]
            assert expected in [one["name"] for one in found], (words, found)
        page = await client.introspect(query="operations", prefix="docs__get_sensor_1", first=100)
        assert page["_protocol"]["page_info"]["total"] == len(page["operations"])
        assert all(one["name"].startswith("docs__get_sensor_1") for one in page["operations"])
        request = {"operation": "introspect", "params": {"query": "operations", "search": "camera"}}
        again = [(await client.result("mcp_aql_read", request))["content"][0]["text"] for _ in range(2)]
        assert again[0] == again[1]
        leaf.tools = [*leaf.tools, tool("zebra_crossing", description="New here.")]
        leaf.notify("notifications/tools/list_changed")
        await client.tools()
        for asking in (client, here.modern()):
            found = (await asking.introspect(query="operations", search="zebra"))["operations"]
            assert [one["name"] for one in found] == ["docs__zebra_crossing"]
        caller = here.node.fronts.modern.caller(Principal("local"), "http", None, "auto")
        calls = here.node.calls
        assert calls.aql.index(caller) is calls.aql.index(caller)  # one snapshot of the registry
        native = AqlOperation(name="get_zebra", category=Category.READ, description="Of this node.")
        calls.native_operations.add(native, cast(Any, None))
        found = (await here.modern().introspect(query="operations", search="zebra"))["operations"]
        assert {one["name"] for one in found} == {"docs__zebra_crossing", "get_zebra"}


@pytest.mark.req("AQL-2.3.3-2")
@in_frozen_time
async def test_what_a_session_has_introspected_reaches_no_other_session(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf("docs", tools=[tool("list_pages", inputSchema=schema())])
        await here.leaf("wiki", tools=[tool("list_topics")])

        async def operations(client: AqlClient) -> set[str]:
            listed = await client.introspect(query="operations")
            return {entry["name"] for entry in listed["operations"] if "__" in entry["name"]}

        docs, wiki, all_servers = here.modern(only="docs"), here.modern(only="wiki"), here.modern()
        for _ in range(2):  # the second time from what is cached
            assert await operations(docs) == {"docs__list_pages"}
            assert await operations(wiki) == {"wiki__list_topics"}
            assert await operations(all_servers) == {"docs__list_pages", "wiki__list_topics"}
        for client, hidden in ((docs, "wiki__list_topics"), (wiki, "docs__list_pages")):
            assert await client.introspect(query="operations", name=hidden) == {"operation": None}
            assert (await client.do(hidden))["error"]["code"] == "NOT_FOUND_OPERATION"
        leaf.tools = [tool("list_books")]
        leaf.notify("notifications/tools/list_changed")
        await run_until_idle()
        for client in (here.modern(only="docs"), docs):
            assert await operations(client) == {"docs__list_books"}
        assert await operations(here.modern(only="wiki")) == {"wiki__list_topics"}


@pytest.mark.req("AQL-X-5")
@in_frozen_time
async def test_an_uncallable_tool_is_byte_identical_to_a_missing_tool(tmp_path: Path) -> None:
    config = '[gate]\nmode = "open"\n[[access]]\nwho = ["local"]\nscope = "read"\n'
    async with aql_node(tmp_path, config) as here:
        leaf = await here.leaf()
        client = here.modern()
        hidden, missing = "docs__create_document", "docs__create_dokument"

        async def said(endpoint: str, arguments: dict[str, Any]) -> str:
            text = (await client.result(endpoint, arguments))["content"][0]["text"]
            return text.replace(hidden, "NAME").replace(missing, "NAME")

        listed = await client.introspect(query="operations")
        names = [one["name"] for one in listed["operations"]]
        assert names == ["docs__get_user", "docs__list_users", "introspect", "notifications_dropped"]
        assert "danger_levels" not in listed["_protocol"]
        for make in (
            lambda name: ("mcp_aql_create", {"operation": name, "params": {"title": "t", "body": "b"}}),
            lambda name: ("mcp_aql_create", {"operation": name, "params": {"bogus": 1}}),
            lambda name: ("mcp_aql_read", {"operation": name}),
            lambda name: ("mcp_aql_create", {"operations": [{"operation": name}]}),
            lambda name: ("mcp_aql_read", {"operation": "introspect", "params": {"query": "operations", "name": name}}),
            lambda name: (
                "mcp_aql_read",
                {"operation": "introspect", "params": {"query": "operations", "search": name}},
            ),
        ):
            assert await said(*make(hidden)) == await said(*make(missing))
        near = await client.do("docs__create_documen", family="create")
        assert "create_document" not in json.dumps(near["error"].get("details", {}).get("available", []))
        assert received_calls(leaf) == []


def test_a_search_over_twenty_thousand_operations_is_quick() -> None:
    nouns = [f"noun{n}" for n in range(400)]
    documents = [
        term_weights(
            f"server{n % 40}__get_{nouns[n % 400]}_list",
            f"Gets the list of {nouns[n % 400]} items with {nouns[(n * 7) % 400]} from server {n % 40}, by page.",
            ("page", "limit", "query"),
        )
        for n in range(20_000)
    ]
    index = SearchIndex(documents)
    for query in ("get list of noun17 items", "noun3 noun4", "get list items page", "server list"):
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            found = index.search(query, 10)
            times.append(time.perf_counter() - begun)
        assert found and min(times) < 0.02, (query, times)  # 5 ms on an idle machine; four times that under load


@in_frozen_time
async def test_a_name_that_is_not_known_is_answered_with_those_that_may_be_meant(tmp_path: Path) -> None:
    tools = [tool("list_users", inputSchema=schema()), tool("\u65e5\u672c", inputSchema=schema(), description="Looks.")]
    async with aql_node(tmp_path) as here:
        await here.leaf(tools=tools)
        client = here.modern()
        (hashed,) = [
            one["name"]
            for one in (await client.introspect(query="operations"))["operations"]
            if one["description"] == "Looks."
        ]
        for asked, meant in (("docs__list_usrs", "docs__list_users"), ("\u65e5\u672c", hashed)):
            arguments = {"operation": "introspect", "params": {"query": "operations", "name": asked}}
            result = await client.result("mcp_aql_read", arguments)
            assert json.loads(result["content"][0]["text"]) == {"success": True, "data": {"operation": None}}
            assert meant in result["content"][1]["text"] and asked in result["content"][1]["text"]
            assert (await client.send("mcp_aql_read", {"operation": asked}))["error"]["details"]["available"][
                0
            ] == meant
        found = await client.introspect(query="operations", search="\u65e5\u672c")
        assert [one["name"] for one in found["operations"]] == [hashed]
        nothing = {"operation": "introspect", "params": {"query": "operations", "name": "zzzz"}}
        assert len((await client.result("mcp_aql_read", nothing))["content"]) == 1


@pytest.mark.req("AQL-X-22")
@in_frozen_time
async def test_only_the_list_itself_describes_the_protocol(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        await here.leaf()
        client = here.modern()
        for params in ({}, {"first": 2}):
            protocol = (await client.introspect(query="operations", **params))["_protocol"]
            assert {"version", "conformance", "capabilities", "limits"} <= set(protocol)
        for params in ({"search": "document"}, {"prefix": "docs__"}, {"first": 2, "after": "docs__get_user"}):
            protocol = (await client.introspect(query="operations", **params))["_protocol"]
            assert {"version", "page_info"} <= set(protocol) <= {"version", "page_info", "danger_levels"}


@pytest.mark.req("AQL-X-21")
@in_frozen_time
async def test_a_description_says_where_the_flat_list_calls_a_tool_differently(tmp_path: Path) -> None:
    names = {
        "update_thing": (WRITES, "On the flat list it is not destructive."),
        "run_thing": (WRITES, "On the flat list it is not destructive."),
        "delete_thing": (WRITES, None),
        "create_thing": ({}, "On the flat list it is destructive."),
        "create_other": (WRITES, None),
        "run_other": ({}, None),
    }
    inputs = schema(("thing_id",), thing_id=TEXT, title=TEXT)
    async with aql_node(tmp_path, '[gate]\nmode = "open"\n') as here:
        await here.leaf(tools=[tool(name, annotations=own, inputSchema=inputs) for name, (own, _) in names.items()])
        client = here.modern()
        for name, (_, sentence) in names.items():
            details = (await client.introspect(query="operations", name=f"docs__{name}"))["operation"]
            if sentence is None:
                assert "On the flat list" not in details["description"], name
            else:
                assert sentence in details["description"], name
