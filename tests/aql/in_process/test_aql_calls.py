"""Batches, confirmation tokens, limits and encodings of AQL calls; gates, budgets, progress and cancellation through
them as through flat calls."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from tests.aql.aql_node import (
    OPEN,
    TEXT,
    WRITES,
    AqlClient,
    AqlNode,
    aql_node,
    received_calls,
    run_until_idle,
    schema,
    tool,
)
from tests.aql.aql_schemas import is_valid
from tests.support.frozen_node import Client, advance_time, in_frozen_time

from interlock.aql.operation_index import OperationContext
from interlock.aql.protocol.errors import OperationFailed, permission_denied
from interlock.aql.protocol.model import AqlOperation, AqlParameter, Category
from interlock.core.calls.caller import Principal

ERAS = ["modern", "legacy"]
UTC = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"


def code(envelope: dict[str, Any]) -> str:
    return cast(str, envelope["error"]["code"]) if not envelope["success"] else "ok"


def one(name: str, **params: Any) -> dict[str, Any]:
    return {"operation": name, "params": params}


def deleting(item: str = "d", **more: Any) -> dict[str, Any]:
    return one("docs__delete_document", document_id=item, **more)


# Batches


@pytest.mark.req("AQL-C.batch-1", "AQL-C.batch-4")
@in_frozen_time
async def test_a_malformed_batch_runs_nothing(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        item = one("docs__list_users")
        for arguments in (
            {"operations": []},
            {"operations": "x"},
            {"operations": {"a": 1}},
            {"operations": [item], "operation": "docs__list_users"},
            {"operations": [item], "params": {}},
            {"operations": [item, {"operations": [item]}]},
        ):
            result = await client.result("mcp_aql_read", arguments)
            error = result["structuredContent"]["error"]
            assert (error["code"], set(error), result["isError"]) == (
                "BATCH_VALIDATION_ERROR",
                {"code", "message"},
                False,
            )
        assert received_calls(leaf) == []
        failing = await client.result("mcp_aql_read", {"operations": [one("nope"), one("nope")]})
        assert failing["structuredContent"]["success"] is True and failing["isError"] is False


@pytest.mark.req("AQL-C.batch-2", "AQL-C.batch-3", "AQL-C.batch-5")
@pytest.mark.parametrize("era", ERAS)
def test_items_run_in_order_and_fail_alone(tmp_path: Path, era: str) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            leaf = await here.leaf()
            client = await here.client(era)
            items = [
                one("docs__get_user", user_id="1"),
                one("docs__get_user"),
                one("nope"),
                one("docs__create_document", title="t", body="b"),
                {"params": {}},
                one("docs__get_user", user_id="2"),
            ]
            said = await client.send("mcp_aql_read", {"operations": items})
            assert is_valid("batch", said)
            assert [code(item["result"]) for item in said["results"]] == [
                "ok",
                "VALIDATION_MISSING_PARAM",
                "NOT_FOUND_OPERATION",
                "VALIDATION_ENDPOINT_MISMATCH",
                "VALIDATION_MISSING_PARAM",
                "ok",
            ]
            assert said["summary"] == {"total": 6, "succeeded": 2, "failed": 4}
            assert [item["index"] for item in said["results"]] == list(range(6))
            assert [call["arguments"] for call in received_calls(leaf)] == [{"user_id": "1"}, {"user_id": "2"}]
            single = await here.client(era, "aql-single")
            mixed = await single.send("mcp_aql", {"operations": [items[0], items[3]]})
            assert [code(item["result"]) for item in mixed["results"]] == ["ok", "ok"]

    run()


@pytest.mark.req("AX-9.1-5", "AQL-C.batch-3")
@in_frozen_time
async def test_no_item_of_a_batch_runs_beside_another_and_none_that_changes_something_is_repeated(
    tmp_path: Path,
) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        begun: list[asyncio.Future[Any]] = []

        async def answer(params: dict[str, Any]) -> Any:
            begun.append(asyncio.get_running_loop().create_future())
            return await begun[-1]

        leaf.answer = answer
        items = [
            one("docs__get_user", user_id="1"),
            one("docs__create_document", title="t", body="b"),
            one("docs__get_user", user_id="2"),
        ]
        asked = here.modern("aql-single").client.begin(
            "tools/call", {"name": "mcp_aql", "arguments": {"operations": items}}
        )
        for number in (1, 2):
            await run_until_idle()
            assert len(begun) == number
            begun[-1].set_result({"content": [], "isError": number == 2})
        await run_until_idle()
        leaf.cut()
        await advance_time(60.0)
        results = json.loads(asked.result()["result"]["content"][0]["text"])["results"]
        assert [item["result"]["success"] for item in results] == [True, False, False]
        assert [call["name"] for call in received_calls(leaf)] == ["get_user", "create_document", "get_user"]


@pytest.mark.req("AQL-C.batch-6", "AQL-C.batch-7")
@in_frozen_time
async def test_a_confirmation_halts_a_batch_and_the_rest_is_sent_again_with_the_token(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern("aql-single")
        items = [one("docs__get_user", user_id="1"), deleting(), one("docs__get_user", user_id="2")]
        halted = await client.send("mcp_aql", {"operations": items})
        assert halted["summary"] == {"total": 3, "succeeded": 1, "failed": 0, "halted": 1, "pending": 1}
        assert (halted["halted_at"]["index"], halted["halted_at"]["operation"]) == (1, "docs__delete_document")
        assert halted["pending_operations"] == [{"index": 2, **items[2]}]
        assert len(received_calls(leaf)) == 1 and "confirmation" not in halted["halted_at"]["result"]
        token = halted["halted_at"]["result"]["error"]["details"]["confirmation_token"]
        rest = [{"operation": left["operation"], "params": left["params"]} for left in halted["pending_operations"]]
        changed = await client.send("mcp_aql", {"operations": [deleting("e", confirmation_token=token), *rest]})
        assert [code(item["result"]) for item in changed["results"]] == ["TOKEN_SCOPE_MISMATCH", "ok"]
        done = await client.send("mcp_aql", {"operations": [deleting(confirmation_token=token), *rest]})
        assert [code(item["result"]) for item in done["results"]] == ["ok", "ok"]
        assert [call["name"] for call in received_calls(leaf)][-2:] == ["delete_document", "get_user"]


@pytest.mark.req("AQL-C.batch-8")
@in_frozen_time
async def test_a_batch_has_fifty_items_at_most(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf()
        client = here.modern()
        fits = await client.send("mcp_aql_read", {"operations": [one("docs__list_users")] * 50})
        assert fits["summary"]["succeeded"] == 50
        more = await client.send("mcp_aql_read", {"operations": [one("docs__list_users")] * 51})
        assert code(more) == "VALIDATION_PAYLOAD_TOO_LARGE" and "50" in more["error"]["message"]
        assert len(received_calls(leaf)) == 50


# Confirmation tokens


@pytest.mark.req("AQL-C.token-1", "AQL-C.token-2", "AQL-C.token-3", "AQL-C.token-4", "AQL-C.token-5", "AQL-C.token-6")
@pytest.mark.req("AQL-4.7.2-2")
@pytest.mark.parametrize("era", ERAS)
def test_a_token_releases_its_own_call_once(tmp_path: Path, era: str) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            leaf = await here.leaf()
            client = await here.client(era)

            async def send(**params: Any) -> dict[str, Any]:
                return await client.do("docs__delete_document", params, "delete")

            async def token() -> str:
                said = await send(document_id="d")
                assert code(said) == "CONFIRMATION_REQUIRED"
                details = said["error"]["details"]
                assert set(details) == {
                    *("operation", "danger_level", "reasons", "confirmation_message"),
                    *("confirmation_token", "expires_at"),
                }
                assert details["confirmation_token"] == said["confirmation"]["token"]
                assert details["expires_at"] == said["confirmation"]["expires_at"]
                assert re.fullmatch(UTC, details["expires_at"])
                return cast(str, details["confirmation_token"])

            tokens = {await token() for _ in range(20)}
            assert len(tokens) == 20 and all(re.fullmatch("conf_[A-Za-z0-9_-]{43}", each) for each in tokens)
            first, second, third, *_ = sorted(tokens)
            assert received_calls(leaf) == []
            assert code(await send(document_id="e", confirmation_token=first)) == "TOKEN_SCOPE_MISMATCH"
            assert code(await send(document_id="d", confirmation_token=first)) == "ok"
            assert code(await send(document_id="d", confirmation_token=first)) == "TOKEN_ALREADY_USED"
            assert code(await send(document_id="d", _confirmation=second)) == "ok"
            assert code(await send(document_id="d", _confirmation=third, confirmation_token=first)) == "TOKEN_INVALID"
            beside = {"operation": "docs__delete_document", "document_id": "d", "params": {"_confirmation": third}}
            assert code(await client.send("mcp_aql_delete", beside)) == "ok"
            assert [call["arguments"] for call in received_calls(leaf)] == [{"documentId": "d"}] * 3
            unknown = [await send(document_id="d", confirmation_token=each) for each in ("x", "conf_" + "a" * 43)]
            other = await here.client("legacy")
            foreign = await other.do(
                "docs__delete_document", {"document_id": "d", "_confirmation": await token()}, "delete"
            )
            for said in [*unknown, foreign]:
                assert (code(said), said["error"]["message"]) == ("TOKEN_INVALID", "Invalid confirmation token")
            raced = await token()
            asks = [
                client.client.begin(
                    "tools/call", {"name": "mcp_aql_delete", "arguments": deleting(confirmation_token=raced)}
                )
                for _ in range(2)
            ]
            await run_until_idle()
            raced_codes = [code(json.loads(ask.result()["result"]["content"][0]["text"])) for ask in asks]
            assert sorted(raced_codes) == ["TOKEN_ALREADY_USED", "ok"]
            expiring = await token()
            await advance_time(301.0)
            expired = await send(document_id="d", confirmation_token=expiring)
            assert code(expired) == "TOKEN_EXPIRED"
            assert set(expired["error"]["details"]) == {"token", "expired_at", "current_time"}
            assert all(re.fullmatch(UTC, expired["error"]["details"][at]) for at in ("expired_at", "current_time"))
            assert "'d'" not in json.dumps(expired)

    run()


@pytest.mark.req("AQL-2.3.2-3", "AQL-2.3.5-4", "AQL-X-16")
@in_frozen_time
async def test_a_token_and_a_session_end_with_the_connection(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        await here.leaf()
        first = await here.legacy()
        ids = [(await first.introspect(query="operations"))["_protocol"]["session_id"] for _ in range(2)]
        token = (await first.send("mcp_aql_delete", deleting()))["error"]["details"]["confirmation_token"]
        failed = await first.result("mcp_aql_read", {"operation": "nope"})
        assert failed["_meta"] == {"dev.interlock/aql-session": ids[0]}
        assert "session_id" not in json.dumps(failed["structuredContent"])
        (session,) = here.node.fronts.sessions.by_id.values()
        here.node.fronts.sessions.close(session, "closed by the client")
        again = await here.legacy()
        other = (await again.introspect(query="operations"))["_protocol"]["session_id"]
        assert ids[0] == ids[1] != other and other.startswith("aqls_")
        assert code(await again.send("mcp_aql_delete", deleting(confirmation_token=token))) == "TOKEN_INVALID"
        stateless = here.node.fronts.modern.caller(Principal("local"), "http", None, "auto")
        shown = here.node.calls.aql.protocol(here.node.calls.aql.endpoints("semantic"), stateless)
        assert "session_id" not in shown


@pytest.mark.req("AQL-X-13", "AQL-C.danger-4")
@in_frozen_time
async def test_names_raise_the_danger_and_only_a_declared_forbidden_denies(tmp_path: Path) -> None:
    tools = [
        tool("list_production", inputSchema=schema()),
        tool("reset_password", annotations=WRITES, inputSchema=schema()),
        tool("force_sync", annotations=WRITES, inputSchema=schema()),
        tool("nuke", annotations=WRITES, inputSchema=schema()),
        tool("run", annotations=WRITES, inputSchema=schema()),
    ]
    rules = (
        '[[tool]]\nmatch = "docs.nuke"\naql = { danger = "forbidden" }\n'
        '[[tool]]\nmatch = "docs.force_sync"\naql = { danger = "safe" }\n'
        '[[tool]]\nmatch = "docs.run"\ntrust = "untested"\n'
    )
    async with aql_node(tmp_path, OPEN + rules) as here:
        leaf = await here.leaf(tools=tools)
        client = here.modern("aql-single")
        said = {each["name"]: await client.send("mcp_aql", {"operation": f"docs__{each['name']}"}) for each in tools}
        assert {name: code(envelope) for name, envelope in said.items()} == {
            "list_production": "ok",
            "reset_password": "CONFIRMATION_REQUIRED",
            "force_sync": "ok",
            "nuke": "PERMISSION_DANGER_LEVEL_DENIED",
            "run": "PERMISSION_DANGER_LEVEL_DENIED",
        }
        details = said["nuke"]["error"]["details"]
        assert details["danger_level"] == "forbidden" and details["minimum_trust_required"] == "certified"
        assert [call["name"] for call in received_calls(leaf)] == ["list_production", "force_sync"]
        listed = (await client.introspect("mcp_aql", query="operations"))["_protocol"]["danger_levels"]
        assert listed == {"docs__nuke": "forbidden", "docs__reset_password": "forbidden"}
        shown = (await client.introspect("mcp_aql", query="operations", name="docs__reset_password"))["operation"]
        assert "forbidden" in shown["description"] and "confirmation is needed" in shown["description"]
        levels = (await client.introspect("mcp_aql", query="types", name="DangerLevel"))["type"]["values"]
        assert levels == ["safe", "reversible", "destructive", "dangerous", "forbidden"]


# Limits and encodings


def raw_call(client: Client, arguments: bytes, name: str = "mcp_aql_read") -> "asyncio.Future[dict[str, Any]]":
    """A tools/call of a legacy client whose arguments are these very bytes."""
    inner = cast(Any, client)
    inner._next += 1
    waits = inner._waiting[inner._next] = asyncio.get_running_loop().create_future()
    head = f'{{"jsonrpc":"2.0","id":{inner._next},"method":"tools/call","params":{{"name":"{name}","arguments":'
    inner._feed(head.encode() + arguments + b"}}\n")
    return cast("asyncio.Future[dict[str, Any]]", waits)


async def raw_envelope(client: AqlClient, arguments: bytes) -> dict[str, Any]:
    waits = raw_call(client.client, arguments)
    await run_until_idle()
    return cast(dict[str, Any], json.loads(waits.result()["result"]["content"][0]["text"]))


@pytest.mark.req("AQL-4.7.1-1", "AQL-4.7.1-2", "AQL-4.7.5-2", "AQL-4.7.5-5", "AQL-4.7.5-7")
@in_frozen_time
async def test_every_limit_is_exact_and_hostile_text_is_named(tmp_path: Path) -> None:
    tools = [tool("take", inputSchema={"type": "object", "properties": {"a": {}, "b": {}}})]
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=tools)
        client = await here.legacy()

        def request(value: bytes, more: bytes = b'""') -> bytes:
            return b'{"operation":"docs__take","params":{"a":%b,"b":%b}}' % (value, more)

        async def refused(arguments: bytes) -> tuple[str, Any]:
            said = await raw_envelope(client, arguments)
            return code(said), said.get("error", {}).get("details", {})

        size = 1_048_576 - len(request(b'""', b'""'))
        half, rest = size // 2, size - size // 2
        whole = request(b'"%b"' % (b"x" * half), b'"%b"' % (b"y" * rest))
        assert len(whole) == 1_048_576 and (await refused(whole))[0] == "ok"
        over = request(b'"%b"' % (b"x" * half), b'"%b"' % (b"y" * (rest + 1)))
        assert await refused(over) == (
            "VALIDATION_PAYLOAD_TOO_LARGE",
            {"limit_type": "request_size", "limit_value": 1_048_576, "actual_value": 1_048_577, "unit": "bytes"},
        )
        array = b"[%b]" % b",".join([b"1"] * 10_000)
        assert (await refused(request(array)))[0] == "ok"
        assert (await refused(request(b'{"in":[%b]}' % array.replace(b"[", b"[1,"))))[1] == {
            "limit_type": "array_elements",
            "limit_value": 10_000,
            "actual_value": 10_001,
            "unit": "elements",
        }
        assert (await refused(request(b"[" * 30 + b"]" * 30)))[0] == "ok"
        assert (await refused(request(b"[" * 31 + b"]" * 31)))[1]["actual_value"] == 33
        items = b'{"operations":[%b]}' % request(b"[" * 31 + b"]" * 31)
        assert (await refused(items))[1]["limit_type"] == "nesting_depth"
        for text in (rb'"\ud800"', rb'{"\udc00":1}', rb'"a\u0000b"'):
            name, details = await refused(request(text))
            assert name == "VALIDATION_INVALID_ENCODING" and details["byte_offset"] > 0 and details["location"]
        for wrong in (b"\xc0\xaf", b"\x80", b"\xe2\x82", b"\xed\xa0\x80"):
            name, details = await refused(request(b'"%b"' % wrong))
            assert (name, details["location"]) == ("VALIDATION_INVALID_ENCODING", "request")
            assert details["byte_offset"] > 0
        assert (await refused(request(rb'"\ud83d\ude00"')))[0] == "ok"
        assert (await refused(b'{"operation":"docs__take","params":{"a":1,"a":2}}'))[0] == "VALIDATION_INVALID_VALUE"
        twice = await refused(b'{"operation":"docs__take", "operation":"docs__take"}')
        assert twice[0] == "VALIDATION_INVALID_VALUE"
        assert len(received_calls(leaf)) == 4


@pytest.mark.req("AQL-4.7.5-3")
@in_frozen_time
async def test_an_answer_over_the_limit_is_replaced_and_says_that_it_ran(tmp_path: Path) -> None:
    async with aql_node(tmp_path, f"{OPEN}[aql]\nlimits = {{ response_bytes = 1048576 }}\n") as here:
        leaf = await here.leaf()
        leaf.answer = lambda params: {"content": [{"type": "text", "text": "x" * 1_048_600}]}
        said = await here.modern().do("docs__list_users")
        details = said["error"]["details"]
        assert (details["limit_type"], details["limit_value"], details["executed"]) == (
            "response_size",
            1_048_576,
            True,
        )
        assert "fields" in details["hint"] and details["unit"] == "bytes"


@in_frozen_time
async def test_of_a_batch_only_the_item_that_is_too_large_is_replaced(tmp_path: Path) -> None:
    async with aql_node(tmp_path, f"{OPEN}[aql]\nlimits = {{ response_bytes = 1048576 }}\n") as here:
        leaf = await here.leaf()
        sizes = iter((10, 600_000, 600_000, 10))
        leaf.answer = lambda params: {"content": [{"type": "text", "text": "x" * next(sizes)}]}
        said = await here.modern().send("mcp_aql_read", {"operations": [{"operation": "docs__list_users"}] * 4})
        codes = [one["result"].get("error", {}).get("code") for one in said["results"]]
        assert codes == [None, None, "VALIDATION_PAYLOAD_TOO_LARGE", None]
        assert said["results"][2]["result"]["error"]["details"]["executed"] is True
        assert said["summary"] == {"total": 4, "succeeded": 3, "failed": 1}


# As a flat call


@pytest.mark.req("AQL-C.map-13")
@pytest.mark.parametrize("era", ERAS)
def test_an_error_of_the_server_is_a_failure_in_a_result(tmp_path: Path, era: str) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            leaf = await here.leaf()
            leaf.mute = {"tools/call"}
            client = await here.client(era)
            for number, expected in (
                (-32602, "VALIDATION_INVALID_TYPE"),
                (-32601, "NOT_FOUND_OPERATION"),
                (-32603, "INTERNAL_ERROR"),
                (32117, "PERMISSION_DENIED"),  # scope_denied
                (7, "INTERNAL_ERROR"),
            ):
                waits = client.client.begin(
                    "tools/call", {"name": "mcp_aql_read", "arguments": one("docs__list_users")}
                )
                await run_until_idle()
                error = {"code": number, "message": "no, thank you"}
                leaf.say({"jsonrpc": "2.0", "id": leaf.heard[-1]["id"], "error": error})
                await run_until_idle()
                assert code(waits.result()["result"]["structuredContent"]) == expected

    run()


@pytest.mark.req("AQL-C.map-13", "AQL-8.1-5")
@in_frozen_time
async def test_failures_of_the_way_are_failures_of_the_operation(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        quick = tool("list_users", {"latency_class": "fast", "mutable": False, "reversible": True})
        runs = tool("run", {"latency_class": "fast", "mutable": True, "reversible": True})
        leaf = await here.leaf(tools=[quick, runs])
        client = here.modern()
        leaf.mute = {"tools/call"}
        for endpoint, name in (("mcp_aql_read", "list_users"), ("mcp_aql_execute", "run")):
            waits = client.client.begin("tools/call", {"name": endpoint, "arguments": one(f"docs__{name}")})
            await advance_time(6.0)
            timeout = waits.result()["result"]["structuredContent"]
            assert (code(timeout), timeout["error"]["details"]["reason"]) == ("INTERNAL_ERROR", "timeout")
        await advance_time(60.0)
        assert [call["name"] for call in received_calls(leaf)] == ["list_users", "run"]  # none is sent again
        leaf.cut()
        await run_until_idle()
        lost = await client.do("docs__list_users")
        assert code(lost) == "INTERNAL_ERROR"
        assert lost["error"]["details"]["reason"] == "subserver_unreachable"
        assert "retry_after_ms" in lost["error"]["details"]


@in_frozen_time
async def test_a_gated_call_waits_for_a_person_and_takes_no_token(tmp_path: Path) -> None:
    rules = '[gate]\nmode = "gated"\nalso = ["docs.delete_document"]\n'
    async with aql_node(tmp_path, rules) as here:
        leaf = await here.leaf()
        for era in ERAS:
            client = await here.client(era)
            await held(here, client, leaf)


@pytest.mark.req("AQL-X-23")
@in_frozen_time
async def test_a_held_operation_says_what_the_held_call_of_the_tool_says(tmp_path: Path) -> None:
    async with aql_node(tmp_path, '[gate]\nalso = ["docs.delete_document"]\n') as here:
        await here.leaf()
        answers = []
        for surface, params in (
            ("flat", {"name": "docs.delete_document", "arguments": {"documentId": "d"}}),
            ("aql", {"name": "mcp_aql_delete", "arguments": deleting()}),
        ):
            waits = here.modern(surface).client.begin("tools/call", params)
            await here.house.until(waits.done)
            answers.append(waits.result()["result"])
        flat, envelope = answers[0]["content"][0]["text"], answers[1]["structuredContent"]
        assert flat.startswith("Not executed yet.")
        assert envelope["error"]["message"].endswith(flat)


async def held(here: AqlNode, client: AqlClient, leaf: Any) -> None:
    waits = client.client.begin("tools/call", {"name": "mcp_aql_delete", "arguments": deleting()})
    await here.house.until(waits.done)
    said = waits.result()["result"]["structuredContent"]
    assert code(said) == "CONFIRMATION_REQUIRED"
    assert set(said["error"]["details"]) >= {"operation", "danger_level", "confirmation_id", "approval_url"}
    assert "confirmation_token" not in json.dumps(said) and "confirmation" not in said
    assert received_calls(leaf) == []


@pytest.mark.parametrize(
    ("annotations", "also", "shown"),
    [({}, "x.*", "destructive"), ({"readOnlyHint": False}, "x.*", "destructive"), (WRITES, "docs.*", "reversible")],
)
@in_frozen_time
async def test_a_held_call_shows_the_danger_it_is_held_for(
    tmp_path: Path, annotations: dict[str, bool], also: str, shown: str
) -> None:
    async with aql_node(tmp_path, f'[gate]\nalso = ["{also}"]\n') as here:
        await here.leaf(tools=[tool("run_job", annotations=annotations)])
        client = here.modern("aql-single")
        waits = client.client.begin("tools/call", {"name": "mcp_aql", "arguments": {"operation": "docs__run_job"}})
        await here.house.until(waits.done)
        details = waits.result()["result"]["structuredContent"]["error"]["details"]
        assert details["danger_level"] == shown and "confirmation_id" in details


@pytest.mark.req("AQL-C.map-13", "AQL-C.err-7")
@in_frozen_time
async def test_budgets_refuse_and_say_when_to_come_again(tmp_path: Path) -> None:
    budget = "budget = { max_calls_per_minute = 2, max_mutable_calls_per_session = 1 }"
    async with aql_node(tmp_path, f'{OPEN}[[access]]\nwho = ["local"]\n{budget}\n') as here:
        await here.leaf()
        client = here.modern("aql-single")
        job = {"operation": "docs__run_job", "params": {"job": "j"}}
        assert (await client.send("mcp_aql", job))["success"]
        spent = await client.send("mcp_aql", job)
        assert code(spent) == "RATE_LIMIT_QUOTA_EXHAUSTED"
        assert set(spent["error"]["details"]) == {"metric", "current", "hard_stop_threshold", "resets_at"}
        assert (await client.send("mcp_aql", one("docs__list_users")))["success"]
        often = await client.send("mcp_aql", one("docs__list_users"))
        assert code(often) == "RATE_LIMIT_EXCEEDED"
        details = often["error"]["details"]
        assert set(details) == {"limit", "remaining", "window", "resets_at", "retry_after_seconds"}
        assert details["retry_after_seconds"] > 0 and details["limit"] == 2 and details["resets_at"].endswith("Z")


@pytest.mark.req("AQL-C.err-7")
@in_frozen_time
async def test_a_quota_warns_from_eighty_percent_on_and_refuses_when_it_is_used_up(tmp_path: Path) -> None:
    budget = "budget = { max_mutable_calls_per_session = 10 }"
    async with aql_node(tmp_path, f'{OPEN}[[access]]\nwho = ["local"]\n{budget}\n') as here:
        await here.leaf()
        client = here.modern("aql-single")
        job = {"operation": "docs__run_job", "params": {"job": "j"}}
        said = [await client.send("mcp_aql", job) for _ in range(11)]
        warned = [number for number, one in enumerate(said, 1) if "warnings" in one]
        assert warned == [8, 9, 10] and [one["success"] for one in said] == [True] * 10 + [False]
        (warning,) = said[7]["warnings"]
        assert (warning["code"], warning["message"]) == ("RATE_LIMIT_QUOTA_WARNING", "Approaching quota limit")
        assert warning["details"] == {"metric": "max_mutable_calls_per_session", "current": 8, "warn_threshold": 8}
        assert said[10]["error"]["code"] == "RATE_LIMIT_QUOTA_EXHAUSTED"
        assert said[10]["error"]["details"] == {
            "metric": "max_mutable_calls_per_session",
            "current": 10,
            "hard_stop_threshold": 10,
            "resets_at": None,
        }
        assert "warnings" not in await client.send("mcp_aql", one("docs__list_users"))  # it changes nothing


@pytest.mark.req("AQL-X-8")
@pytest.mark.parametrize("era", ERAS)
def test_cancelling_reaches_the_server_and_ends_a_batch(tmp_path: Path, era: str) -> None:
    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            leaf = await here.leaf()
            leaf.mute = {"tools/call"}
            client = await here.client(era)
            for arguments in (one("docs__get_user", user_id="1"), {"operations": [one("docs__list_users")] * 3}):
                before, told = len(received_calls(leaf)), leaf.asked("notifications/cancelled")
                client.client.begin("tools/call", {"name": "mcp_aql_read", "arguments": arguments})
                await run_until_idle()
                request_id = cast(Any, client.client)._next
                assert len(received_calls(leaf)) == before + 1
                cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
                cast(Any, client.client)._feed(json.dumps(cancel).encode() + b"\n")
                await run_until_idle()
                assert leaf.asked("notifications/cancelled") == told + 1
                assert len(received_calls(leaf)) == before + 1

    run()


# Native operations


@pytest.mark.req("AQL-1.4-1", "AQL-5.1-2", "AQL-5.1-3", "AQL-C.tool-8")
@in_frozen_time
async def test_an_operation_of_the_node_itself_is_listed_validated_and_called(tmp_path: Path) -> None:
    values: list[Any] = [{"a": 1}, [1], "x", 5, False, None]
    seen: list[dict[str, Any]] = []

    async def handler(context: OperationContext, params: dict[str, Any]) -> Any:
        seen.append(params)
        if params["kind"] == 90:
            raise OperationFailed(permission_denied("not_today"))
        if params["kind"] == 91:
            raise KeyError("internal detail")
        context.tell_progress(1, 2, "half")
        return values[params["kind"]]

    declared = AqlOperation(
        name="get_value",
        category=Category.READ,
        description="Gets a value.",
        parameters=(AqlParameter(name="kind", type="integer", required=True, minimum=0),),
    )
    async with aql_node(tmp_path) as here:
        here.node.calls.native_operations.add(declared, handler)
        with pytest.raises(ValueError, match="already"):
            here.node.calls.native_operations.add(declared, handler)
        client = here.modern()
        names = [each["name"] for each in (await client.introspect(query="operations"))["operations"]]
        assert "get_value" in names
        shown = (await client.introspect(query="operations", name="get_value"))["operation"]
        assert [each["name"] for each in shown["parameters"]] == ["kind"]
        for kind, value in enumerate(values):
            assert await client.do("get_value", {"kind": kind}) == {"success": True, "data": value}
        denied = await client.do("get_value", {"kind": 90})
        assert denied["error"]["code"] == "PERMISSION_DENIED"
        broken = await client.result("mcp_aql_read", one("get_value", kind=91))
        assert broken["isError"] is True and "internal detail" not in json.dumps(broken)
        assert broken["structuredContent"]["error"]["details"].keys() == {"ref"}
        big = await client.do("get_value", {"kind": 2**53})
        assert (code(big), big["error"]["details"]["expected_type"]) == ("VALIDATION_INVALID_TYPE", "string")
        assert code(await client.do("get_value", {"kind": "1"})) == "VALIDATION_INVALID_TYPE"
        assert code(await client.do("get_value", {})) == "VALIDATION_MISSING_PARAM"
        assert len(seen) == 8
        answer = client.client.begin("tools/call", {"name": "mcp_aql_read", "arguments": one("get_value", kind=0)})
        await run_until_idle()
        assert not client.client.heard("notifications/progress") and answer.done()
        await client.client.request(
            "tools/call", {"name": "mcp_aql_read", "arguments": one("get_value", kind=0)}, meta={"progressToken": 7}
        )
        (told,) = client.client.heard("notifications/progress")
        assert (told["progressToken"], told["progress"], told["total"], told["message"]) == (7, 1, 2, "half")
        for has_own, expected in ((True, 7), (False, 9)):
            client.client.told.clear()
            inner = {**one("get_value", kind=0), "_meta": {"progressToken": 9}}
            meta: Any = {"meta": {"progressToken": 7}} if has_own else {}
            await client.client.request("tools/call", {"name": "mcp_aql_read", "arguments": inner}, **meta)
            (told,) = client.client.heard("notifications/progress")
            assert told["progressToken"] == expected


@pytest.mark.req("AQL-C.fields-1", "AQL-C.map-17")
@in_frozen_time
async def test_fields_cut_what_a_read_returns(tmp_path: Path) -> None:
    own = tool("list_own", inputSchema=schema(fields={"type": "array", "items": TEXT}))
    tools = [tool("list_users", inputSchema=schema()), tool("run_it", annotations=WRITES, inputSchema=schema()), own]
    user = {"id": 1, "userName": "ada", "settings": {"theme": "dark", "size": 3}, "big": [1], "note": None}
    async with aql_node(tmp_path) as here:
        leaf = await here.leaf(tools=tools)
        data: Any = user
        leaf.answer = lambda params: {"structuredContent": data, "content": []}
        client = here.modern()

        async def cut(fields: Any) -> Any:
            said = await client.do("docs__list_users", {"fields": fields})
            return said["data"] if said["success"] else code(said)

        assert await cut(["id", "settings.theme", "missing"]) == {"id": 1, "settings": {"theme": "dark"}}
        assert await cut(["user_name"]) == {"userName": "ada"}
        assert await cut("full") == user
        assert await cut("minimal") == {"id": 1, "userName": "ada"}
        assert await cut("standard") == {"id": 1, "userName": "ada", "note": None}
        for wrong in ("most", ["A"], ["a..b"], [5], {"a": 1}):
            assert await cut(wrong) in ("VALIDATION_INVALID_VALUE", "VALIDATION_INVALID_TYPE")
        camel = await client.do("docs__list_users", {"fields": ["userName"]})
        assert camel["error"]["details"]["did_you_mean"] == {"userName": "user_name"}
        assert "did you mean 'user_name'?" in camel["error"]["message"]
        for paths, missed in ((["nmae", "id"], ["nmae"]), (["settings.tone"], ["settings.tone"]), (["id"], [])):
            warnings = (await client.do("docs__list_users", {"fields": paths})).get("warnings", [])
            assert [one["details"]["unknown_fields"] for one in warnings] == ([missed] if missed else [])
            for one in warnings:
                assert one["details"]["valid_fields"] == ["big", "id", "note", "settings", "user_name"]
        data = {"items": [user, user], "pageInfo": {"hasNextPage": True}}
        assert await cut(["id"]) == {"items": [{"id": 1}, {"id": 1}], "pageInfo": {"hasNextPage": True}}
        unknown = await client.do("docs__run_it", {"fields": "full"}, "execute")
        assert code(unknown) == "VALIDATION_UNKNOWN_PARAM"
        data = user
        assert (await client.do("docs__list_own", {"fields": ["id"]}))["data"] == user
        assert received_calls(leaf)[-1]["arguments"] == {"fields": ["id"]}


@pytest.mark.req("AQL-C.meta-1")
@in_frozen_time
async def test_a_request_id_is_echoed_where_the_shape_has_a_place(tmp_path: Path) -> None:
    async with aql_node(tmp_path) as here:
        await here.leaf()
        client = here.modern()
        plain = await client.do("docs__list_users")
        assert "_meta" not in plain
        asked = {"operation": "docs__list_users", "_request_id": "r1"}
        assert (await client.send("mcp_aql_read", asked))["_meta"] == {"request_id": "r1"}
        failed = await client.send("mcp_aql_read", {"operation": "nope", "_request_id": "r2"})
        assert "_meta" not in failed and failed["error"]["details"]["request_id"] == "r2"
        shown = await client.send("mcp_aql_read", {"operation": "introspect", "query": "types", "_request_id": "r3"})
        assert set(shown) == {"success", "data"}
    async with aql_node(tmp_path / "timed", f"{OPEN}[aql]\nresponse_meta = true\n") as here:
        await here.leaf()
        assert (await here.modern().do("docs__list_users"))["_meta"].keys() == {"duration_ms"}
