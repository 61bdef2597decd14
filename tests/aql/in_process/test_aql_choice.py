"""Which surface a client gets, and the settings that change how AQL requests are read."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.aql.aql_node import OPEN, WRITES, AqlNode, aql_node, received_calls, run_until_idle, schema, tool
from tests.support.frozen_node import in_frozen_time

from interlock.aql.protocol.envelope import AnswerWarning
from interlock.core.calls.caller import Principal


def sized(count: int) -> list[dict[str, Any]]:
    return [tool(f"get_{number}", description="x" * 380, inputSchema=schema()) for number in range(count)]


async def kind(here: AqlNode) -> str:
    """Which surface a client that comes now gets."""
    client = await here.legacy("")
    return "aql" if "mcp_aql_read" in await client.tools() else "flat"


@pytest.mark.req("AQL-X-6")
@in_frozen_time
async def test_auto_chooses_by_the_size_of_the_flat_list_with_hysteresis(tmp_path: Path) -> None:
    config = f'{OPEN}[mcp]\nsurface = "auto"\n[aql]\nauto_tokens = 2000\n'
    async with aql_node(tmp_path, config) as here:
        leaf = await here.leaf(tools=sized(5))
        early = await here.legacy("")
        assert "docs__get_0" in await early.tools()

        async def resize(count: int) -> str:
            leaf.tools = sized(count)
            leaf.notify("notifications/tools/list_changed")
            await early.tools()
            return await kind(here)

        assert await resize(30) == "aql"
        late = await here.legacy("")
        bytes_before = await late.tools()
        assert "docs__get_0" in await early.tools() and "mcp_aql_read" not in await early.tools()
        assert await resize(15) == "aql"  # a little below: the choice does not swing
        assert await resize(8) == "flat"
        assert await resize(15) == "flat"
        assert await late.tools() == bytes_before
        surfaces = here.node.operations.node.status().clients.surfaces
        assert any(each.startswith("local: aql (auto: the flat list has about") for each in surfaces)
        assert any(each.startswith("local: flat (auto:") for each in surfaces)


@pytest.mark.req("AQL-X-6")
@pytest.mark.parametrize("is_modern", [True, False])
@in_frozen_time
async def test_auto_is_decided_when_the_servers_have_come(tmp_path: Path, is_modern: bool) -> None:
    """What a client sends meanwhile, all at once, is answered in order on the surface that it then gets."""
    async with aql_node(tmp_path, f'{OPEN}[mcp]\nsurface = "auto"\n[aql]\nauto_tokens = 2000\n') as here:
        arrived = asyncio.Event()
        here.node.calls.dispatch.arrivals.expect(arrived.is_set, arrived.wait)
        client = here.modern("").client
        if not is_modern:
            greeting = asyncio.ensure_future(client.greet(level=None))
            await asyncio.sleep(0)
            client._waiting.clear()  # its answer is not waited for: the list is asked for at once
            greeting.cancel()
            client._feed(b'[{"jsonrpc":"2.0","method":"notifications/initialized"}]\n')
        listed = client.begin("tools/list")
        await run_until_idle()
        assert not listed.done() and not client.told
        await here.leaf(tools=sized(30))
        arrived.set()
        await run_until_idle()
        assert "mcp_aql_read" in {one["name"] for one in listed.result()["result"]["tools"]}
        answered = [one["result"]["serverInfo"]["name"] for one in client.told if "result" in one]
        assert len(answered) == (not is_modern)
        assert "mcp_aql_read" in {one["name"] for one in (await client.request("tools/list"))["result"]["tools"]}


@in_frozen_time
async def test_a_client_that_sends_much_before_its_surface_is_decided_is_let_go(tmp_path: Path) -> None:
    settings = '[mcp]\nsurface = "auto"\n[limits]\nmessage_bytes = 65536\n'
    async with aql_node(tmp_path, f"{OPEN}{settings}") as here:
        arrived = asyncio.Event()
        here.node.calls.dispatch.arrivals.expect(arrived.is_set, arrived.wait)
        front = here.node.fronts.lines.make(None)
        line = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":"%b"}}\n' % (b"x" * 60_000)
        for _ in range(4):
            front.feed(line)
        assert not front.done.is_set()
        front.feed(line)
        assert front.done.is_set()
        front.end()


@pytest.mark.req("AQL-X-6")
@in_frozen_time
async def test_an_access_rule_sets_the_surface_of_its_callers(tmp_path: Path) -> None:
    async with aql_node(tmp_path, f'{OPEN}[[access]]\nwho = ["local"]\nsurface = "aql-single"\n') as here:
        client = await here.legacy("")
        assert list(await client.tools()) == ["mcp_aql"]
        assert here.node.operations.node.status().clients.surfaces == {"local: aql-single ([[access]])": 1}


@pytest.mark.req("AQL-4.6.2-1", "AQL-4.6.2-3", "AQL-4.6.2-2")
@in_frozen_time
async def test_without_strict_mode_unknown_parameters_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = []
    for strict in ("true", "false"):
        async with aql_node(tmp_path / strict, f"{OPEN}[aql]\nstrict_mode = {strict}\n") as here:
            leaf = await here.leaf()
            client = here.modern()
            listed = await client.introspect(query="operations")
            details = await client.introspect(query="operations", name="docs__run_job")
            del listed["_protocol"]["session_id"]
            shown.append((listed, details))
            said = await client.do("docs__run_job", {"job": "j", "pullNumber": 3, "bogus": 1}, "execute")
            assert said["success"] is (strict == "false")
            if strict == "false":
                assert [one["details"]["deprecated_item"] for one in said["warnings"]] == ["pullNumber", "bogus"]
                assert received_calls(leaf) == [{"name": "run_job", "arguments": {"job": "j", "pullNumber": 3}}]
    assert shown[0] == shown[1]
    assert "docs__run_job: strict_mode is off, left out or renamed: pullNumber, bogus" in caplog.text


@pytest.mark.req("AQL-4.7.1-3")
@in_frozen_time
async def test_nul_passes_only_where_an_operator_allows_it(tmp_path: Path) -> None:
    tools = [tool(name, annotations=WRITES, inputSchema=schema(a={"type": "string"})) for name in ("any", "none")]
    tools.append(tool("open", annotations=WRITES, inputSchema={"type": "object"}))
    rule = "".join(f'[[tool]]\nmatch = "docs.{name}"\naql = {{ allow_nul = true }}\n' for name in ("any", "open"))
    async with aql_node(tmp_path, OPEN + rule) as here:
        leaf = await here.leaf(tools=tools)
        client = here.modern("aql-single")
        for name, expected in (("any", True), ("none", False)):
            said = await client.send("mcp_aql", {"operation": f"docs__{name}", "params": {"a": "x\x00y"}})
            assert said["success"] is expected
        assert said["error"]["code"] == "VALIDATION_INVALID_ENCODING"
        assert said["error"]["details"] == {"location": "params.a", "byte_offset": 2}
        given = {"operation": "docs__open", "params": {"arguments": {"a": "x\x00y"}}}
        assert (await client.send("mcp_aql", given))["success"]
        escape = {"a": "the escape \\u0000 of a program"}  # which is no U+0000
        assert (await client.send("mcp_aql", {"operation": "docs__none", "params": escape}))["success"]
        assert received_calls(leaf) == [
            {"name": "any", "arguments": {"a": "x\x00y"}},
            {"name": "open", "arguments": {"a": "x\x00y"}},
            {"name": "none", "arguments": escape},
        ]
        for name, says_so in (("any", True), ("open", True), ("none", False)):
            shown = (await client.introspect("mcp_aql", query="operations", name=f"docs__{name}"))["operation"]
            assert ("U+0000" in json.dumps(shown["parameters"])) is says_so


@pytest.mark.req("AQL-2.3.3-4")
@in_frozen_time
async def test_a_warning_is_shown_once_in_a_session_and_again_in_the_next(tmp_path: Path) -> None:
    async with aql_node(tmp_path, f"{OPEN}[aql]\nstrict_mode = false\n") as here:
        await here.leaf()
        for _ in range(2):
            client = await here.legacy()
            first = await client.do("docs__list_users", {"bogus": 1})
            assert [one["code"] for one in first["warnings"]] == ["DEPRECATION_WARNING"]
            assert "warnings" not in await client.do("docs__list_users", {"bogus": 1})
            assert len((await client.do("docs__list_users", {"bogus": 1, "other": 2}))["warnings"]) == 1
        stateless = here.node.fronts.modern.caller(Principal("local"), "http", None, "auto")
        warning = (AnswerWarning(code="DEPRECATION_WARNING", message="x"),)
        assert here.node.calls.aql.session_of(stateless) is None
        assert [here.node.calls.aql.unsaid(stateless, warning) for _ in range(2)] == [warning, warning]
