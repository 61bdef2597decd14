"""From tools to operations at a node: names that meet, parameters of real schemas, names that give way, batches."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import pytest
from tests.aql.aql_node import OPEN, READS, TEXT, TOOLS, WRITES, aql_node, received_calls, run_until_idle, schema, tool
from tests.aql.aql_schemas import is_valid
from tests.support.frozen_node import in_frozen_time

from interlock.aql.operation_index import OperationContext
from interlock.aql.protocol.classification import TRUSTS
from interlock.aql.protocol.model import AqlOperation, Category, Danger
from interlock.core.calls.caller import Principal

X = [tool("x", annotations=WRITES, inputSchema=schema())]


def code(envelope: dict[str, Any]) -> str:
    return "ok" if envelope["success"] else str(envelope["error"]["code"])


@pytest.mark.req("AQL-C.map-2")
@pytest.mark.parametrize("order", list(permutations(["a-b", "a_b"])))
def test_a_name_that_two_would_have_leads_to_neither_in_either_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            client = here.modern("aql-single")
            leaves = {order[0]: await here.leaf(order[0], X)}
            assert code(await client.send("mcp_aql", {"operation": "a_b__x"})) == "ok"
            leaves[order[1]] = await here.leaf(order[1], X)
            said = await client.send("mcp_aql", {"operation": "a_b__x"})
            assert code(said) == "NOT_FOUND_OPERATION" and [len(received_calls(one)) for one in leaves.values()] == [
                1,
                0,
            ]
            both = said["error"]["details"]["available"]
            assert sorted(both) == sorted(name for name in both if name.startswith("a_b__x_x") and len(name) == 16)
            for name in both:
                assert code(await client.send("mcp_aql", {"operation": name})) == "ok"
            assert [len(received_calls(one)) for one in leaves.values()] == [2, 1]
            leaves[order[0]].cut()  # what is left alone has its own name still, and nobody else's
            await run_until_idle()

    run()


@pytest.mark.req("AQL-C.map-2")
@in_frozen_time
async def test_a_native_and_a_reserved_name_are_not_taken_by_a_tool(tmp_path: Path) -> None:
    rules = "".join(
        f'[[tool]]\nmatch = "docs.{name}"\naql = {{ name = "{given}" }}\n'
        for name, given in (("x", "introspect"), ("y", "get_native"))
    )

    async def handler(context: OperationContext, params: dict[str, Any]) -> str:
        return "native"

    async with aql_node(tmp_path, OPEN + rules) as here:
        native = here.node.calls.native_operations
        native.add(AqlOperation(name="get_native", category=Category.READ, description="Gets."), handler)
        leaf = await here.leaf(tools=[*X, tool("y", annotations=WRITES, inputSchema=schema())])
        client = here.modern("aql-single")
        assert (await client.send("mcp_aql", {"operation": "get_native"}))["data"] == "native"
        listed = [one["name"] for one in (await client.introspect("mcp_aql", query="operations"))["operations"]]
        taken = [name for name in listed if name.startswith(("introspect_x", "get_native_x"))]
        assert len(taken) == 2 and listed.count("introspect") == 1
        for name in taken:
            assert code(await client.send("mcp_aql", {"operation": name})) == "ok"
        assert len(received_calls(leaf)) == 2


@pytest.mark.req("AQL-C.map-15")
@in_frozen_time
async def test_keywords_of_a_property_are_shown_and_enforced(tmp_path: Path) -> None:
    given = schema(
        ("query",),
        query={**TEXT, "description": "Words.", "minLength": 2, "maxLength": 9, "pattern": "^[a-z]+$"},
        size={"type": "integer", "default": 10, "minimum": 1, "maximum": 20, "multipleOf": 2},
        mode={"enum": ["fast", "slow"]},
        when={**TEXT, "format": "date-time"},
        names={"type": "array", "items": {"$ref": "#/$defs/name"}, "maxItems": 2},
        where={"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        either={"anyOf": [{"type": "string"}, {"$ref": "#/$defs/name"}]},
        apiKey=TEXT,
        secret={**TEXT, "writeOnly": True},
    ) | {"$defs": {"name": {"type": "object", "properties": {"first": TEXT}, "required": ["first"]}}}
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=[tool("list_it", annotations=READS, inputSchema=given)])
        client = here.modern()
        shown = (await client.introspect(query="operations", name="docs__list_it"))["operation"]
        by = {one["name"]: one for one in shown["parameters"]}
        assert by["query"] == {
            "name": "query",
            "type": "string",
            "required": True,
            "description": "Words.",
            "minLength": 2,
            "maxLength": 9,
            "pattern": "^[a-z]+$",
        }
        size = {key: by["size"][key] for key in ("type", "default", "minimum", "maximum")}
        assert size == {"type": "integer", "default": 10, "minimum": 1, "maximum": 20}
        assert "multipleOf: 2" in by["size"]["description"] and "maxItems: 2" in by["names"]["description"]
        assert by["mode"]["enum"] == ["fast", "slow"] and by["when"]["format"] == "date-time"
        assert by["api_key"]["sensitive"] is True and by["secret"]["sensitive"] is True
        assert "sensitive" not in by["query"]
        for named in (by["where"]["type"], by["names"]["items"]["type"]):
            details = (await client.introspect(query="types", name=named))["type"]
            assert is_valid("type", details) and details["kind"] == "object"
        for params, path in (
            ({"query": "UPPER"}, "query"),
            ({"query": "ab", "size": 3}, "size"),
            ({"query": "ab", "size": 22}, "size"),
            ({"query": "ab", "mode": "other"}, "mode"),
            ({"query": "ab", "names": [{}]}, "names.0.first"),
            ({"query": "ab", "where": {"lat": "x"}}, "where.lat"),
        ):
            error = (await client.do("docs__list_it", params))["error"]
            assert error["code"].startswith("VALIDATION_") and error["details"]["param_name"] == path
        assert received_calls(leaf) == []
        assert (await client.do("docs__list_it", {"query": "ab", "when": "noon"}))["success"]
        assert received_calls(leaf) == [
            {"name": "list_it", "arguments": {"query": "ab", "when": "noon"}}
        ]  # no default is added


@pytest.mark.req("AQL-C.map-17")
@in_frozen_time
async def test_parameters_of_the_node_give_way_to_those_of_a_tool(tmp_path: Path) -> None:
    tools = [
        tool("list_it", annotations=READS, inputSchema=schema(fields={"type": "array", "items": TEXT})),
        tool("delete_it", annotations=WRITES, inputSchema=schema(confirmation_token=TEXT, if_match=TEXT)),
    ]
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=tools)
        client = here.modern()
        shown = (await client.introspect(query="operations", name="docs__list_it"))["operation"]["parameters"]
        assert [one["name"] for one in shown] == ["fields"] and "minimal" not in json.dumps(shown)
        data = (await client.do("docs__list_it", {"fields": ["nothing"]}))["data"]
        assert data == {"got": {"fields": ["nothing"]}}  # nothing is cut here
        given = {"confirmation_token": "mine", "if_match": "e1"}
        asked = await client.do("docs__delete_it", given, "delete")
        assert code(asked) == "CONFIRMATION_REQUIRED"
        token = asked["error"]["details"]["confirmation_token"]
        assert (await client.do("docs__delete_it", {**given, "_confirmation": token}, "delete"))["success"]
        assert received_calls(leaf)[-1]["arguments"] == given


@pytest.mark.req("AQL-C.batch-3")
@in_frozen_time
async def test_items_are_read_at_their_turn_in_order_and_an_item_that_raises_disturbs_none(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def handler(context: OperationContext, params: dict[str, Any]) -> Any:
        seen.append(context.operation.name)
        raise KeyError("x")

    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        native = here.node.calls.native_operations
        native.add(AqlOperation(name="get_broken", category=Category.READ, description="Breaks."), handler)
        client = here.modern()
        leaf.mute = {"tools/call"}
        get = "docs__get_user"
        items = [
            {"operation": get, "params": {"user_id": "1"}},
            {"operation": "get_broken"},
            {"operation": "gone__later", "params": {}},
            {"operation": get, "params": {"user_id": 5}},
            {"operation": get, "params": {"user_id": "2"}},
        ]
        waits = client.client.begin("tools/call", {"name": "mcp_aql_read", "arguments": {"operations": items}})
        await run_until_idle()
        assert len(received_calls(leaf)) == 1 and seen == []  # the second waits for its turn
        await here.leaf("gone", [tool("later", annotations=READS, inputSchema=schema())])
        leaf.mute = set()
        reply = {"structuredContent": {"n": 1}, "content": [], "resultType": "complete"}
        leaf.say({"jsonrpc": "2.0", "id": leaf.heard[-1]["id"], "result": reply})
        await run_until_idle()
        said = json.loads(waits.result()["result"]["content"][0]["text"])
        codes = [code(one["result"]) for one in said["results"]]
        assert codes == ["ok", "INTERNAL_ERROR", "ok", "VALIDATION_INVALID_TYPE", "ok"]
        assert [one["arguments"] for one in received_calls(leaf)] == [{"user_id": "1"}, {"user_id": "2"}]


@pytest.mark.req("AQL-C.token-2", "AQL-C.token-6")
@in_frozen_time
async def test_a_token_is_for_its_parameters_in_any_order_and_place_and_is_used_before_it_runs(tmp_path: Path) -> None:
    takes = schema(("a",), a=TEXT, b={"type": "number"}, c={"type": "object"})
    tools = [tool(name, annotations=WRITES, inputSchema=takes) for name in ("delete_it", "delete_other")]
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=tools)
        other = await here.leaf("second", tools)
        client = here.modern()

        async def send(text: str, name: str = "docs__delete_it") -> str:
            return code(await client.send("mcp_aql_delete", json.loads(text.replace("NAME", name))))

        async def token() -> str:
            said = await client.do("docs__delete_it", {"a": "1", "b": 10, "c": {"x": 1, "y": 2}}, "delete")
            return cast(str, said["error"]["details"]["confirmation_token"])

        whole = '"a":"1","b":10,"c":{"x":1,"y":2}'
        for form in (
            '{"operation":"NAME","params":{"c":{"y":2,"x":1},"b":1e1,"a":"1","confirmation_token":"T"}}',
            '{"operation":"NAME","a":"1","params":{"b":10.0,"c":{"x":1,"y":2},"_confirmation":"T"}}',
            f'{{"operation":"NAME",{whole},"confirmation_token":"T"}}',
        ):
            assert await send(form.replace('"T"', json.dumps(await token()))) == "ok"
        assert len(received_calls(leaf)) == 3
        kept = json.dumps(await token())
        good = f'{{"operation":"NAME","params":{{{whole},"confirmation_token":{kept}}}}}'
        for changed, name in (
            (good.replace('"a":"1"', '"a":"2"'), "docs__delete_it"),
            (good.replace('"b":10,', ""), "docs__delete_it"),
            (good.replace('"y":2', '"y":3'), "docs__delete_it"),
            (good, "docs__delete_other"),
            (good, "second__delete_it"),
        ):
            assert await send(changed, name) == "TOKEN_SCOPE_MISMATCH"
        leaf.mute = {"tools/call"}  # it takes the call and dies
        waits = client.client.begin(
            "tools/call",
            {"name": "mcp_aql_delete", "arguments": json.loads(good.replace("NAME", "docs__delete_it"))},
        )
        await run_until_idle()
        assert await send(good) == "TOKEN_ALREADY_USED"
        leaf.cut()
        await run_until_idle()
        assert code(json.loads(waits.result()["result"]["content"][0]["text"])) == "INTERNAL_ERROR"
        assert received_calls(other) == [] and len(received_calls(leaf)) == 4


@pytest.mark.req("AQL-C.danger-3", "AQL-C.danger-1")
@in_frozen_time
async def test_every_cell_of_danger_and_trust_is_answered_as_the_matrix_has_it(tmp_path: Path) -> None:
    tools = [
        tool(f"run_{trust}_{danger.word}", annotations=WRITES, inputSchema=schema())
        for trust in TRUSTS
        for danger in Danger
    ]
    rules = "".join(
        f'[[tool]]\nmatch = "docs.run_{trust}_{danger.word}"\ntrust = "{trust}"\naql = {{ danger = "{danger.word}" }}\n'
        for trust in TRUSTS
        for danger in Danger
    )
    least = {"safe": "generated", "reversible": "validated", "destructive": "validated"}
    least |= {"dangerous": "community_reviewed", "forbidden": "certified"}
    async with aql_node(tmp_path, OPEN + rules) as here:
        leaf = await here.leaf(tools=[*tools, *TOOLS])
        client = here.modern()
        order = list(TRUSTS)
        ran = 0
        for trust in TRUSTS:
            for danger in Danger:
                name = f"docs__run_{trust}_{danger.word}"
                assert (await client.introspect(query="operations", name=name))["operation"]["name"] == name
                said = await client.do(name, family="execute")
                if order.index(trust) < order.index(least[danger.word]):
                    assert code(said) == "PERMISSION_DANGER_LEVEL_DENIED"
                    assert said["error"]["details"] == {
                        "operation": name,
                        "danger_level": danger.word,
                        "adapter_trust": trust,
                        "minimum_trust_required": least[danger.word],
                        "reasons": ["declared by the operator"],
                    }
                elif danger >= Danger.DESTRUCTIVE:
                    assert code(said) == "CONFIRMATION_REQUIRED"
                else:
                    assert code(said) == "ok"
                    ran += 1
        assert len(received_calls(leaf)) == ran == 7
        caller = here.node.fronts.modern.caller(Principal("local"), "http", None, "auto")
        for entry in here.node.calls.aql.index(caller).entries:
            if entry.route is not None and entry.category is Category.READ:
                assert entry.classification[0].rule == "read_only"  # nothing is READ by fallback
                assert entry.route.capability is not None and not entry.route.capability.mutable


@pytest.mark.req("AQL-4.7.5-1", "AQL-4.7.5-4", "AQL-4.7.5-5", "AQL-4.7.5-6", "AQL-4.7.5-7")
@in_frozen_time
async def test_every_limit_holds_in_semantic_single_and_batch_calls_before_anything_is_sent(tmp_path: Path) -> None:
    limits = "limits = { array_elements = 100, nesting_depth = 8, string_bytes = 65536, request_bytes = 200000 }"
    given = schema(a=True, b=True)
    async with aql_node(tmp_path, f"{OPEN}[aql]\n{limits}\n") as here:
        leaf = await here.leaf(tools=[tool("list_it", annotations=READS, inputSchema=given)])

        def nested(depth: int) -> Any:
            value: Any = {}
            for _ in range(depth - 1):
                value = [value]
            return value

        cases: list[tuple[str, int, str, Any, Any]] = [
            ("array_elements", 100, "elements", [0] * 100, [0] * 101),
            ("string_length", 65_536, "bytes", "x" * 65_536, "x" * 65_537),
            ("string_length", 65_536, "bytes", "\u00e9" * 32_768, "\u00e9" * 32_768 + "x"),
            ("string_length", 65_536, "bytes", {"k" * 65_536: 1}, {"k" * 65_537: 1}),
            ("nesting_depth", 8, "levels", None, None),
            ("request_size", 200_000, "bytes", None, None),
        ]
        ran = 0
        for surface, endpoint, in_batch in (
            ("aql", "mcp_aql_read", False),
            ("aql-single", "mcp_aql", False),
            ("aql", "mcp_aql_read", True),
        ):
            client = await here.legacy(surface)

            async def send(value: Any, more: Any = None, client: Any = client, endpoint: str = endpoint) -> Any:
                params = {"a": value} if more is None else {"a": value, "b": more}
                asked = {"operation": "docs__list_it", "params": params}
                said = await client.send(endpoint, {"operations": [asked]} if in_batch else asked)  # noqa: B023
                return said["results"][0]["result"] if in_batch and "results" in said else said  # noqa: B023

            over_batch = 2 if in_batch else 0
            for limit_type, value, unit, fits, breaks in cases:
                if limit_type == "nesting_depth":
                    fits, breaks = nested(6 - over_batch), nested(7 - over_batch)
                elif limit_type == "request_size":
                    empty = len(json.dumps({"operation": "docs__list_it", "params": {"a": [""] * 4}}))
                    empty += len(json.dumps({"operations": []})) if in_batch else 0
                    rest = 200_000 - empty
                    fits = ["x" * (rest // 4)] * 3 + ["x" * (rest - 3 * (rest // 4))]
                    breaks = [*fits[:3], fits[3] + "x"]
                assert code(await send(fits)) == "ok", (limit_type, in_batch)
                ran += 1
                said = await send(breaks)
                assert code(said) == "VALIDATION_PAYLOAD_TOO_LARGE"
                details = said["error"]["details"]
                assert (details["limit_type"], details["limit_value"], details["unit"]) == (limit_type, value, unit)
                assert details["actual_value"] == value + 1
        assert len(received_calls(leaf)) == ran == 18
