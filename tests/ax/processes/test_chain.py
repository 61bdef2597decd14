"""Nodes below nodes: what a server at the end offers is listed, called and told at the root, through every hop.

The tree is root - edge - gate. At gate stand an unmodified server of each era and, in some tests, a bare leaf.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, bare_subserver, tool
from tests.ax.blocking_client import call
from tests.ax.tree import chain
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, wait_for
from tests.support.peers import HttpPeer

from mcp import Client

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
SERVERS = {
    "old": {"command": raw("all", "--era", "legacy")},
    "new": {"command": raw("all", "--era", "modern"), "definitions": "follow"},
}
WAY = "edge__gate__"
FRONTS = ["legacy", "modern"]
CELLS = [(front, server) for front in FRONTS for server in SERVERS]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningNode]]:
    with chain(tmp_path_factory.mktemp("chain"), ["edge", "gate"], SERVERS) as started:
        wait_for(lambda: {f"{WAY}{server}__echo" for server in SERVERS} <= names(started[0]))
        yield started


def listed(node: RunningNode, method: str = "tools/list") -> list[dict[str, Any]]:
    with Wire(node) as wire:
        result = wire.modern(method).message["result"]
    (member,) = [value for value in result.values() if isinstance(value, list)]
    return member


def names(node: RunningNode) -> set[str]:
    return {one["name"] for one in listed(node)}


@contextlib.asynccontextmanager
async def client(nodes: list[RunningNode], front: str, **capabilities: Any) -> AsyncIterator[HttpPeer]:
    """Judged by MCP's schema, unless it declares our extension, which tells it more."""
    url = f"{nodes[0].url}/mcp"
    plain = "dev.interlock/ax" not in str(capabilities)
    greet = HttpPeer.modern_ if front == "modern" else HttpPeer.legacy
    async with await greet(url, capabilities, judged=plain) as peer:
        if front == "legacy":
            await peer.listen()
        yield peer


@contextlib.asynccontextmanager
async def leaf(nodes: list[RunningNode], segment: str, **options: Any) -> AsyncIterator[BareSubserver]:
    """Registered with the lowest node, and listed at the root."""
    offered = options.pop("tools", [tool("read")])
    async with bare_subserver(nodes[-1], segment, tools=offered, **options) as registered:
        await asyncio.to_thread(wait_for, lambda: f"{WAY}{segment}__{offered[0]['name']}" in names(nodes[0]))
        yield registered


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_knows_no_tree_lists_and_calls_what_is_two_nodes_down(
    nodes: list[RunningNode], mode: str
) -> None:
    async with Client(f"{nodes[0].url}/mcp", mode=mode) as opened:
        tools = {one.name: one for one in (await opened.list_tools()).tools}
        for server in SERVERS:
            assert tools[f"{WAY}{server}__echo"].meta["x-mcpax-hops"] == 3
            answer = await opened.call_tool(f"{WAY}{server}__echo", {"text": "through"})
            assert answer.structured_content == {"text": "through"}


@pytest.mark.req("AX-3.1-4")
async def test_each_parent_puts_the_segment_it_assigned_in_front(nodes: list[RunningNode]) -> None:
    async with leaf(nodes, "stm32h7", tools=[tool("status")]):
        for depth, name in enumerate(["edge.gate.stm32h7.status", "gate.stm32h7.status", "stm32h7.status"]):
            tools = await asyncio.to_thread(nodes[depth].admin, "/admin/tools")
            assert name in {one["name"] for one in tools["tools"]}, depth


@pytest.mark.parametrize(("front", "server"), CELLS)
async def test_results_pass_byte_for_byte(nodes: list[RunningNode], front: str, server: str) -> None:
    async with client(nodes, front) as peer:
        answer = await peer.call(f"{WAY}{server}__echo", '{"n":1208925819614629174706175,"e":"\\u00e9","z":{}}')
        assert '"structuredContent":{"n":1208925819614629174706175,"e":"\\u00e9","z":{}}' in answer.result_text


@pytest.mark.parametrize(("front", "server"), CELLS)
async def test_a_servers_own_error_passes_with_code_message_and_data(
    nodes: list[RunningNode], front: str, server: str
) -> None:
    async with client(nodes, front) as peer:
        given = {"code": 4711, "message": "no", "data": {"why": ["x"]}}
        assert (await peer.call(f"{WAY}{server}__refuse", given)).error == given


@pytest.mark.parametrize(("front", "server"), CELLS)
async def test_resources_prompts_and_completions_pass(nodes: list[RunningNode], front: str, server: str) -> None:
    async with client(nodes, front) as peer:
        path = f"edge.gate.{server}"
        resources = (await peer.request("resources/list")).result["resources"]
        assert f"mcpax://{path}/raw://text" in {one["uri"] for one in resources}
        templates = (await peer.request("resources/templates/list")).result["resourceTemplates"]
        assert f"mcpax://{path}/raw://item/{{id}}" in {one["uriTemplate"] for one in templates}
        for uri in ("raw://text", "raw://item/7"):
            read = await peer.request("resources/read", {"uri": f"mcpax://{path}/{uri}"})
            assert read.result["contents"][0]["text"] == f"text of {uri}"
        missing = await peer.request("resources/read", {"uri": f"mcpax://{path}/raw://none"})
        assert missing.error["code"] == (-32602 if front == "modern" else -32002)
        got = await peer.request("prompts/get", {"name": f"{WAY}{server}__greet", "arguments": {"who": "x"}})
        assert got.result["x-arguments"] == {"who": "x"}
        for ref in (
            {"type": "ref/prompt", "name": f"{WAY}{server}__greet"},
            {"type": "ref/resource", "uri": f"mcpax://{path}/raw://item/{{id}}"},
        ):
            argument = {"name": "who", "value": "a"}
            completed = await peer.request("completion/complete", {"ref": ref, "argument": argument})
            assert completed.result["completion"]["values"] == ["a-one", "a-two"]


@pytest.mark.parametrize(("front", "server"), CELLS)
async def test_progress_reaches_the_caller(nodes: list[RunningNode], front: str, server: str) -> None:
    async with client(nodes, front) as peer:
        answer = await peer.call(f"{WAY}{server}__progress", {"steps": 3}, meta={"progressToken": "mine"})
        told = [one["params"] for one in peer.before(answer, "notifications/progress")]
        assert [one["progress"] for one in told] == [1, 2, 3]
        assert {one["progressToken"] for one in told} == {"mine"}


@pytest.mark.req("AX-1.1-2", "AX-7.3-3")
@pytest.mark.parametrize(("front", "server"), CELLS)
async def test_a_cancelled_call_is_cancelled_at_the_server_and_leaves_no_hop_busy(
    nodes: list[RunningNode], front: str, server: str
) -> None:
    async with client(nodes, front) as peer:
        before = len((await peer.call(f"{WAY}{server}__cancelled")).result["structuredContent"]["ids"])
        ongoing = peer.begin_call(f"{WAY}{server}__wait")
        await _until(peer, f"{WAY}{server}__waiting", lambda found: found["ids"])
        await peer.cancel(ongoing)
        async with asyncio.timeout(1.0):
            await _until(peer, f"{WAY}{server}__cancelled", lambda found: len(found["ids"]) > before)
        for node in nodes:
            status = await asyncio.to_thread(node.admin, "/admin/status")
            assert status["calls"]["in_flight"] == 0


async def _until(peer: HttpPeer, name: str, shows: Any) -> None:
    async with asyncio.timeout(10):
        while not shows((await peer.call(name)).result["structuredContent"]):
            pass


@pytest.mark.parametrize(("front", "server"), CELLS)
async def test_a_servers_question_reaches_the_client_and_its_answer_the_server(
    nodes: list[RunningNode], front: str, server: str
) -> None:
    question = {"message": "which?", "requestedSchema": {"type": "object", "properties": {}}}
    answered = {"action": "accept", "content": {"colour": "blue"}}
    asked = {"method": "elicitation/create", "params": question}
    async with client(nodes, front, elicitation={}) as peer:
        peer.answers["elicitation/create"] = lambda _: answered
        answer = await peer.call(f"{WAY}{server}__ask", asked)
        if front == "modern":
            assert answer.result["resultType"] == "input_required"
            (key,) = answer.result["inputRequests"]
            retry = {"name": f"{WAY}{server}__ask", "arguments": asked, "inputResponses": {key: answered}}
            retry["requestState"] = answer.result["requestState"]
            answer = await peer.request("tools/call", retry)
        assert "blue" in answer.result_text


@pytest.mark.req("AX-6.3-6")
@pytest.mark.parametrize("front", FRONTS)
async def test_a_list_that_changes_at_the_bottom_is_reported_and_listed_at_the_root(
    nodes: list[RunningNode], front: str
) -> None:
    async with client(nodes, front) as peer:
        if front == "modern":
            peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await peer.hear("notifications/subscriptions/acknowledged")
        for there in (True, False):
            await peer.call(f"{WAY}new__change", {"kind": "tools", "name": "sprung"})
            await peer.hear("notifications/tools/list_changed")
            tools = (await peer.request("tools/list")).result["tools"]
            assert (f"{WAY}new__sprung" in {one["name"] for one in tools}) is there


@pytest.mark.req("AX-12-1")
@pytest.mark.parametrize(("front", "server"), CELLS)
async def test_a_watched_resource_is_reported_under_its_uri_in_the_tree(
    nodes: list[RunningNode], front: str, server: str
) -> None:
    uri = f"mcpax://edge.gate.{server}/raw://text"
    async with client(nodes, front) as peer:
        if front == "modern":
            peer.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})
            told = await peer.hear("notifications/subscriptions/acknowledged")
            assert told["params"]["notifications"] == {"resourceSubscriptions": [uri]}
        else:
            assert (await peer.request("resources/subscribe", {"uri": uri})).result == {}
        assert (await peer.call(f"{WAY}{server}__touch", {"uri": "raw://text"})).result
        assert (await peer.hear("notifications/resources/updated"))["params"]["uri"] == uri


@pytest.mark.req("AX-7.2-1", "AX-7.2-3", "AX-7.2-6")
@pytest.mark.parametrize("front", FRONTS)
async def test_the_route_is_the_same_on_every_link_and_the_cursor_one_further(
    nodes: list[RunningNode], front: str
) -> None:
    injected = {"x-mcpax-route": ["evil"], "x-mcpax-cursor": 0}
    async with leaf(nodes, f"bench-{front}") as low, client(nodes, front) as peer:
        name = f"{WAY}bench-{front}__read"
        assert (await peer.call(name, {"a": 1}, meta=injected)).result["content"][0]["text"] == "read ran"
        sent = await low.hear("tools/call")
        meta = sent["params"]["_meta"]
        assert meta["x-mcpax-route"] == ["edge", "gate", f"bench-{front}", "read"]
        assert meta["x-mcpax-cursor"] == 2  # the root has no segment; edge read 0, gate 1
        assert sent["params"]["name"] == "read"


@pytest.mark.req("AX-12-1")
@pytest.mark.parametrize("front", FRONTS)
async def test_notifications_of_a_leaf_arrive_with_the_way_they_came(nodes: list[RunningNode], front: str) -> None:
    segment = f"bell-{front}"
    extension = {"dev.interlock/ax": {}}
    offered = {"extensions": extension} if front == "modern" else {"experimental": extension}
    async with leaf(nodes, segment) as low, client(nodes, front, **offered) as peer:
        if front == "modern":
            peer.begin("subscriptions/listen", {"notifications": {}}, meta={"x-mcpax-events": True})
            await peer.hear("notifications/subscriptions/acknowledged")
        else:
            await peer.request("logging/setLevel", {"level": "debug"})
        params = {"n": 1, "_meta": {"x-mcpax-event-id": "A-b", "x-mcpax-causal-parent": None, "x-mcpax-origin": "x.y"}}
        await low.notify("notifications/vendor/rang", params)
        told = (await peer.hear("notifications/vendor/rang"))["params"]
        assert told["_meta"]["x-mcpax-origin"] == f"edge.gate.{segment}"
        assert told["_meta"]["x-mcpax-event-id"] == "A-b"
        assert told["_meta"]["x-mcpax-causal-parent"] is None
        if front == "legacy":
            await low.notify("notifications/message", {"level": "warning", "logger": "hot", "data": "x"})
            assert (await peer.hear("notifications/message"))["params"]["logger"] == f"edge.gate.{segment}.hot"


@pytest.mark.req("AX-13.1-1", "AX-13.2-2", "AX-13.2-3")
@pytest.mark.parametrize("front", FRONTS)
async def test_a_lost_leaf_is_reported_to_the_root_and_its_calls_are_refused_with_the_numbers_of_the_edge(
    nodes: list[RunningNode], front: str
) -> None:
    segment = f"frail-{front}"
    extension = {"dev.interlock/ax": {}}
    offered = {"extensions": extension} if front == "modern" else {"experimental": extension}
    async with leaf(nodes, segment) as low, client(nodes, front, **offered) as peer:
        if front == "modern":
            peer.begin("subscriptions/listen", {"notifications": {}}, meta={"x-mcpax-events": True})
            await peer.hear("notifications/subscriptions/acknowledged")
        low.cut()
        told = (await peer.hear("notifications/mcpax/subserver_lost"))["params"]
        assert told["segment"] == f"edge.gate.{segment}"
        assert told["reason"] == "connection_lost"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told["since"])
        error = (await peer.call(f"{WAY}{segment}__read")).error
        assert error["message"] == "tool_degraded"
        assert error["data"]["reason"] == "subserver_unreachable"
        assert error["code"] == (32002 if front == "modern" else -32002)
        assert error["data"].pop("mcpax_code", -32002) == -32002
        near = (await call(nodes[-1], f"{segment}__read"))["error"]["data"]
        assert error["data"] == {"reason": "subserver_unreachable", "since": told["since"], "retry_after_ms": 5000}
        assert error["data"] == {key: value for key, value in near.items() if key != "mcpax_code"}


@pytest.mark.req("AX-7.2-6")
async def test_the_record_of_each_hop_names_who_asked_it_and_the_way_from_there(nodes: list[RunningNode]) -> None:
    async with client(nodes, "modern") as peer:
        await peer.call(f"{WAY}old__exact")
    who, names = [], []
    for node in nodes:
        records = (await asyncio.to_thread(node.admin, "/admin/audit?limit=1000"))["records"]
        last = [one for one in records if one.get("method") == "tools/call"][-1]
        who.append(last["who"])
        names.append(last["tool"])
    above = [f"parent:ws://{node.host}:{node.port}/ax" for node in nodes[:-1]]
    assert who == ["local", *above], json.dumps(who)
    assert names == ["edge.gate.old.exact", "gate.old.exact", "old.exact"]


def test_the_status_draws_what_lies_below_a_node_segment_by_segment(nodes: list[RunningNode]) -> None:
    edge = nodes[0].link("edge")
    seen = {tuple(one["path"]): one for one in edge["below"]}
    assert [seen[path]["hops"] for path in (("gate",), ("gate", "new"), ("gate", "old"))] == [3, 3, 3]
    servers = seen[("gate", "new")]["tools"] + seen[("gate", "old")]["tools"]
    assert 0 < servers <= seen[("gate",)]["tools"] <= edge["tools"]  # the nodes between have a tool of their own
    assert seen[("gate", "new")]["degraded"] == 0
    drawn = nodes[0].cli("status").stdout
    assert "gate" in drawn and "  . old" in drawn.replace("·", ".")
