"""The same calls, flat and as operations, in semantic and in single mode: nothing is lost, and nothing differs."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.aql.aql_node import OPEN, READS, TEXT, TOOLS, WRITES, aql_node, received_calls, run_until_idle, schema, tool
from tests.aql.aql_schemas import is_valid
from tests.support.frozen_node import advance_time, in_frozen_time

OWN = "notifications_dropped"  # a tool of the node itself
MODES = {"aql": "mcp_aql_{}", "aql-single": "mcp_aql"}
NUMBER = 12345678901234567890
NESTED = {"type": "object", "properties": {"deepName": {"type": "object"}}}
FIXTURE: dict[str, list[dict[str, Any]]] = {
    "docs": [one for one in TOOLS if one["name"] != "delete_document"],
    "odd-names": [
        tool("readFile", inputSchema=schema(("filePath",), filePath=TEXT, maxSize={"type": "integer"})),
        tool("set-config", annotations=WRITES, inputSchema=schema(("id",), id=TEXT, settings=NESTED)),
        tool("open", annotations=WRITES, inputSchema={"type": "object", "properties": {"a": TEXT}}),
        tool("nothing", annotations=READS, inputSchema={"type": "object"}),
    ],
}
GIVEN: dict[str, dict[str, Any]] = {  # as a flat client writes them
    "docs.list_users": {"limit": 3},
    "docs.get_user": {"user_id": "1"},
    "docs.create_document": {"title": "t", "body": "b\u00fc\n", "tags": [1, {"keepMe": None}]},
    "docs.update_document": {"documentId": "d", "title": "x", "pageCount": NUMBER},
    "docs.run_job": {"job": "j", "config": {"maxRetries": 3, "deep": [{"camelCase": None}]}, "pullNumber": 7},
    "odd-names.readFile": {"filePath": "/a b", "maxSize": NUMBER},
    "odd-names.set-config": {"id": "1", "settings": {"deepName": {"x": 1.5}}},
    "odd-names.open": {"a": "x"},
    "odd-names.nothing": {},
}


def as_operation(details: dict[str, Any], flat: dict[str, Any]) -> dict[str, Any]:
    """What a client sends that knows the details of the operation alone: names in snake case, fields in `input`."""
    names = [one["name"] for one in details["parameters"]]
    plain = {name.replace("_", ""): name for name in names}
    params: dict[str, Any] = {}
    for key, value in flat.items():
        name = plain.get(key.replace("_", "").replace("-", "").lower())
        if name is not None:
            params[name] = value
        elif "input" in names:
            params.setdefault("input", {})["page_count" if key == "pageCount" else key] = value
        else:
            params.setdefault("arguments", {})[key] = value
    return params


@pytest.mark.req("AQL-1.1-1", "AQL-C.map-10")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_every_tool_is_an_operation_that_sends_and_answers_the_same(tmp_path: Path, era: str) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            leaves = {segment: await here.leaf(segment, tools) for segment, tools in FIXTURE.items()}
            client, flat = await here.client(era), (await here.client(era, "flat")).client
            listed = (await client.introspect(query="operations"))["operations"]
            tools = [one for one in here.node.operations.tools.list_all().tools if one.segment in FIXTURE]
            known = {f"{one.segment}.{one.original}": one.name for one in tools}
            named = {one: cast(Any, found.operation).name for one, found in zip(known, tools, strict=True)}
            assert {one["name"] for one in listed} == {"introspect", OWN, *named.values()}
            assert len(set(named.values())) == len(GIVEN) and set(known) == set(GIVEN)
            for name, arguments in GIVEN.items():
                leaf = leaves[name.split(".")[0]]
                for answer in (
                    {"structuredContent": {"z": NUMBER, "a": [1]}, "content": []},
                    {"content": [{"type": "text", "text": "it broke"}], "isError": True},
                ):
                    leaf.answer = lambda params, answer=answer: answer
                    result = (await flat.request("tools/call", {"name": known[name], "arguments": arguments}))["result"]
                    details = (await client.introspect(query="operations", name=named[name]))["operation"]
                    request = {"operation": named[name], "params": as_operation(details, arguments)}
                    said = await client.send(details["mcpTool"], request)
                    one, other = received_calls(leaf)[-2:]
                    assert json.dumps(one) == json.dumps(other), name
                    if result.get("isError"):
                        assert said["error"]["details"]["upstream_error"] == result["content"][0]["text"]
                    else:
                        assert said["data"] == result["structuredContent"]

    run()


@pytest.mark.req("AQL-C.map-10")
@in_frozen_time
async def test_absent_fields_are_not_sent_and_null_only_where_the_tool_takes_it(tmp_path: Path) -> None:
    nullable = {"type": ["string", "null"]}
    tools = [tool("update_it", annotations=WRITES, inputSchema=schema(("id",), id=TEXT, title=TEXT, note=nullable))]
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=tools)
        client = here.modern()
        for given in ({"title": "t"}, {"note": None}, {}):
            assert (await client.do("docs__update_it", {"id": "1", "input": given}, "update"))["success"]
        assert [one["arguments"] for one in received_calls(leaf)] == [
            {"id": "1", "title": "t"},
            {"id": "1", "note": None},
            {"id": "1"},
        ]
        refused = await client.do("docs__update_it", {"id": "1", "input": {"title": None}}, "update")
        assert refused["error"]["code"] == "VALIDATION_INVALID_TYPE" and len(received_calls(leaf)) == 3


def op(family: str, name: str, **params: Any) -> tuple[str, dict[str, Any]]:
    return family, {"operation": name, "params": params}


REQUESTS: list[tuple[str, Any]] = [
    op("read", "docs__list_users"),
    op("read", "docs__list_users", limit=3),
    op("read", "docs__list_users", limit=0),
    op("read", "docs__list_users", limit="x"),
    op("read", "docs__list_users", fields=["got"]),
    op("read", "docs__list_users", bogus=1),
    op("read", "docs__get_user"),
    op("read", "docs__get_user", user_id="1", _request_id="r"),
    ("read", {"operation": "docs__get_user", "user_id": "beside"}),
    ("read", {"operation": "docs__get_user", "params": []}),
    ("read", {"operation": 5}),
    ("read", {}),
    op("read", "nope"),
    op("create", "docs__create_document", title="t", body="b"),
    op("update", "docs__update_document", document_id="d", input={"title": "t"}),
    op("update", "docs__update_document", document_id="d", input={"titel": "t"}),
    op("delete", "docs__delete_document", document_id="d", _confirmation="conf_no"),
    op("execute", "docs__run_job", job="j", config={"a": [1]}),
    op("read", "introspect", query="types"),
    op("read", "introspect", query="nope"),
    op("read", "introspect"),
    ("read", {"operations": [op("", "docs__get_user", user_id="1")[1], op("", "nope")[1], {"params": {}}]}),
    ("read", {"operations": []}),
    ("read", {"operations": [{"operations": []}]}),
]


@pytest.mark.req("AQL-3.3-6", "AQL-5.1-1", "AQL-D-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_both_modes_answer_every_request_alike(tmp_path: Path, era: str) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            leaf = await here.leaf()
            answers: dict[str, list[Any]] = {}
            for surface, endpoint in MODES.items():
                client = await here.client(era, surface)
                answers[surface] = []
                for family, arguments in REQUESTS:
                    is_shaped = isinstance(arguments.get("operation"), str) and arguments.get("params") != []
                    assert is_valid("input", arguments) is is_shaped
                    said = await client.send(endpoint.format(family), arguments)
                    assert said["success"] in (True, False) and ("data" in said) is said["success"]
                    assert ("error" in said) is not said["success"]
                    answers[surface].append(said)
            assert answers["aql"] == answers["aql-single"]
            half = len(received_calls(leaf)) // 2
            assert received_calls(leaf)[:half] == received_calls(leaf)[half:] and half == 9

    run()


@pytest.mark.req("AQL-9.3-1")
@in_frozen_time
async def test_a_fast_call_may_overtake_a_slow_call_and_a_batch_keeps_its_order(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        slow = await here.leaf("slow")
        slow.mute = {"tools/call"}
        await here.leaf("fast")
        client = here.modern()
        operations = [op("", "slow__list_users")[1], op("", "fast__list_users")[1]]
        order: list[str] = []
        for name, one in zip(("slow", "fast"), operations, strict=True):
            waits = client.client.begin("tools/call", {"name": "mcp_aql_read", "arguments": one})
            waits.add_done_callback(lambda _, name=name: order.append(name))
        await run_until_idle()
        assert order == ["fast"]
        reply = {"structuredContent": {}, "content": [], "resultType": "complete"}
        slow.say({"jsonrpc": "2.0", "id": slow.heard[-1]["id"], "result": reply})
        await run_until_idle()
        assert order == ["fast", "slow"]
        both = client.client.begin("tools/call", {"name": "mcp_aql_read", "arguments": {"operations": operations}})
        await advance_time(1.0)
        assert not both.done()
        slow.say({"jsonrpc": "2.0", "id": slow.heard[-1]["id"], "result": reply})
        await run_until_idle()
        said = json.loads(both.result()["result"]["content"][0]["text"])
        assert [one["operation"] for one in said["results"]] == ["slow__list_users", "fast__list_users"]


@pytest.mark.req("AQL-C.map-3", "AQL-C.intro-6")
@in_frozen_time
async def test_an_operators_rule_for_a_tool_overrides_all_inference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [
        tool(name, annotations=WRITES, inputSchema=schema(("code",), code=TEXT, config={"type": "object"}))
        for name in ("named", "categorised", "placed", "update_it", "hidden", "delete_it", "list_it")
    ]
    rules = [
        ("named", 'aql = { name = "call_it" }'),
        ("categorised", 'aql = { category = "CREATE" }'),
        ("placed", 'aql = { family = "read" }'),
        ("update_it", 'aql = { identifiers = ["code"], merge = "upstream" }'),
        ("hidden", "hide = true"),
        ("delete_it", 'aql = { danger = "safe" }'),
        ("list_it", 'trust = "untested"'),
        ("unknown_tool", 'aql = { danger = "safe" }'),
    ]
    config = "".join(f'[[tool]]\nmatch = "docs.{name}"\n{said}\n' for name, said in rules)
    config += '[[tool]]\nmatch = "docs.named"\naql = { name = "second_rule" }\n'
    async with aql_node(tmp_path, OPEN + config) as here:
        leaf = await here.leaf(tools=tools)
        client = here.modern()
        listed = {one["name"]: one for one in (await client.introspect(query="operations"))["operations"]}
        assert set(listed) == {"introspect", OWN, "call_it", *(f"docs__{one}" for one in ("categorised", "placed"))} | {
            *("docs__update_it", "docs__delete_it", "docs__list_it")
        }
        assert listed["docs__categorised"]["semantic_category"] == "CREATE"
        assert (listed["docs__placed"]["endpoint"], listed["docs__placed"]["semantic_category"]) == ("read", "EXECUTE")
        assert listed["docs__update_it"]["semantic_category"] == "UPDATE"
        assert await client.introspect(query="operations", name="docs__hidden") == {"operation": None}
        assert (await client.do("call_it", {"code": "1"}, "execute"))["success"]
        assert (await client.do("docs__categorised", {"code": "1"}, "create"))["success"]
        assert (await client.do("docs__placed", {"code": "1"}, "read"))["success"]
        assert (await client.do("docs__update_it", {"code": "1", "input": {"config": {}}}, "update"))["success"]
        assert (await client.do("docs__delete_it", {"code": "1"}, "delete"))["success"]
        untested = await client.do("docs__list_it", {"code": "1"}, "execute")
        assert untested["error"]["code"] == "PERMISSION_DANGER_LEVEL_DENIED" and len(received_calls(leaf)) == 5
        shown = {one.name: one.operation for one in here.node.operations.tools.list_all().tools}
        made = cast(Any, shown["docs.categorised"])
        assert (made.name, made.category, made.rule) == ("docs__categorised", "CREATE", "operator")
    assert "docs.unknown_tool" in caplog.text and "docs.update_it" not in caplog.text


@pytest.mark.req("AQL-8.3-4", "AQL-C.map-8")
@in_frozen_time
async def test_the_reason_of_an_ambiguous_category_is_shown(tmp_path: Path) -> None:
    tools = [
        tool("frobnicate", annotations=WRITES, inputSchema=schema()),
        tool("delete_x", annotations=READS, inputSchema=schema()),
        tool("list_x", annotations=READS, inputSchema=schema()),
        tool("update_x", annotations=WRITES, inputSchema=schema(("id",), id=TEXT, settings={"type": "object"})),
    ]
    async with aql_node(tmp_path) as here:
        await here.leaf(tools=tools)
        client = here.modern()
        tools_now = [one for one in here.node.operations.tools.list_all().tools if one.segment == "docs"]
        shown = {one.original: cast(Any, one.operation) for one in tools_now}
        found = {name: (one.category, one.rule) for name, one in shown.items()}
        assert found == {
            "frobnicate": ("EXECUTE", "fallback"),
            "delete_x": ("DELETE", "contradiction"),
            "list_x": ("READ", "read_only"),
            "update_x": ("EXECUTE", "shape"),
        }
        assert 'aql = { merge = "upstream" }' in shown["update_x"].reason
        for name, one in shown.items():
            details = (await client.introspect(query="operations", name=f"docs__{name}"))["operation"]
            assert (one.reason is None) is (name == "list_x")
            assert details["description"].endswith(one.reason or "")
