"""What a client at the root sees and reaches (MCP-AX 3.1, 5.2, 7.1), the nodes below one another in this process."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.levels import StillClock, level, levels, until
from tests.ax.tree import ACCESS, parents
from tests.servers.start import raw
from tests.support.peers import HttpPeer

MANY = 1500  # more than one page


async def drained(peer: HttpPeer) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        result = (await peer.request("tools/list", cursor)).result
        tools += result["tools"]
        if "nextCursor" not in result:
            return tools
        cursor = {"cursor": result["nextCursor"]}


@pytest.mark.req("AX-3.1-2")
async def test_the_root_shows_one_flat_list_in_each_leafs_own_order_with_each_tool_once(tmp_path: Path) -> None:
    many = [tool(f"t{number}") for number in range(MANY)]
    few = [tool(name) for name in ("status", "-", "a", "a-b", "zz")]
    async with contextlib.AsyncExitStack() as stack:
        tree = await stack.enter_async_context(levels(tmp_path, 3))
        expected, by_leaf = set(), {}
        for at, segment, offered in ((0, "zz", few), (0, "a", few), (1, "l", few), (2, "deep", many), (2, "d", few)):
            await stack.enter_async_context(bare_subserver(tree[at], segment, tools=offered))
            way = ".".join((*("l2", "l3")[:at], segment))
            by_leaf[way] = [f"{way}.{one['name']}" for one in offered]
            expected |= set(by_leaf[way])
        expected |= {f"{way}notifications_dropped" for way in ("", "l2.", "l2.l3.")}
        await until(lambda: expected <= tree[0].tools().keys())
        for connect in (HttpPeer.modern_, HttpPeer.legacy):
            async with await connect(f"{tree[0].url}/mcp?names=qualified") as peer:
                names = [one["name"] for one in await drained(peer)]
                assert Counter(names) == dict.fromkeys(expected, 1)
                for way, own in by_leaf.items():  # nothing of another server among them
                    start = names.index(own[0])
                    assert names[start : start + len(own)] == own, way
                assert names == [one["name"] for one in await drained(peer)]


@pytest.mark.req("AX-3.1-5")
async def test_equal_local_names_reach_their_own_leaf_only(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    def counting(own: str) -> Any:
        def answer(params: dict[str, Any]) -> Any:
            counts[own] += 1
            return {"content": [{"type": "text", "text": own}]}

        return answer

    async with levels(tmp_path, 3) as tree, contextlib.AsyncExitStack() as stack:
        ways = {"north": "l2.l3.north", "south": "l2.l3.south", "near": "near"}
        for segment, at in (("north", 2), ("south", 2), ("near", 0)):
            leaf = bare_subserver(tree[at], segment, tools=[tool("status")], call=counting(segment))
            await stack.enter_async_context(leaf)
            await tree[0].until_listed(f"{ways[segment]}.status")
        async with await HttpPeer.modern_(f"{tree[0].url}/mcp") as peer:
            for turns, segment in enumerate(ways, start=1):
                for _ in range(turns):
                    reply = await peer.call(f"{ways[segment]}.status")
                    assert reply.result["content"][0]["text"] == segment
        assert counts == {"north": 1, "south": 2, "near": 3}


@pytest.mark.req("AX-A-2")
async def test_two_aggregators_may_each_have_the_same_segment_and_differ_by_prefix_under_one_root(
    tmp_path: Path,
) -> None:
    def named(own: str) -> Any:
        return lambda params: {"content": [{"type": "text", "text": own}]}

    async with level(tmp_path / "root", ACCESS) as root, contextlib.AsyncExitStack() as stack:
        for side in ("left", "right"):
            said = parents((root.ax, side)) + ACCESS
            node = await stack.enter_async_context(level(tmp_path / side, said))
            await stack.enter_async_context(bare_subserver(node, "jira", tools=[tool("search")], call=named(side)))
            await node.until_listed("jira.search")
        async with await HttpPeer.modern_(f"{root.url}/mcp") as peer:
            for side in ("left", "right"):
                await root.until_listed(f"{side}.jira.search")
                assert (await peer.call(f"{side}.jira.search")).result["content"][0]["text"] == side
            assert (await peer.call("jira.search")).error["data"]["reason"] == "tool_not_found"


STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
LIKE_A_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[^\"]*")


@pytest.mark.req("AX-7.1-2")
async def test_registered_at_is_the_time_of_the_registration_in_utc(tmp_path: Path) -> None:
    clock = StillClock()
    async with levels(tmp_path, 1, clock=clock) as (node,):

        def registered_at() -> str:
            return node.node.operations.tools.routes()["leaf.read"].registered_at

        async with bare_subserver(node, "leaf", tools=[tool("read")], heartbeat_interval_ms=0) as leaf:
            await node.until_listed("leaf.read")
            first = registered_at()
            assert STAMP.fullmatch(first)
            clock.ahead += 90
            leaf.tools = [tool("read"), tool("more")]
            await leaf.notify("notifications/tools/list_changed", {})
            await node.until_listed("leaf.more")
            assert registered_at() == first
            clock.ahead += 3600
            same = {"subserver_id": leaf.subserver_id, "heartbeat_interval_ms": 0}
            async with bare_subserver(node, "leaf", tools=[tool("read")], **same) as second:
                await until(lambda: "leaf.more" not in node.tools())
                assert STAMP.fullmatch(registered_at())
                assert registered_at() > first
                second.cut()
                link = node.node.calls.keepers["leaf"].link
                await until(lambda: link.standing.state.value == "degraded")
                async with await HttpPeer.modern_(f"{node.url}/mcp") as peer:
                    refused = await peer.call("leaf.read")
                operations = node.node.operations
                shown = msgspec.json.encode(
                    [operations.node.status(), operations.links.get("leaf"), operations.tools.routes(), refused.message]
                ).decode()
                stamps = LIKE_A_STAMP.findall(shown)
                assert len(stamps) > 5
                assert [one for one in stamps if not STAMP.fullmatch(one)] == []


CLIENTS = 6


@pytest.mark.req("AX-5.2-1", "AX-12-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_calls_with_equal_ids_keep_apart_their_answers_progress_and_cancellations(
    tmp_path: Path, era: str
) -> None:
    """All clients use the same id and the same progress token; the leaf answers in the reverse order."""
    arrived: list[dict[str, Any]] = []
    answered = asyncio.Event()

    async def last_come_first_served(params: dict[str, Any]) -> Any:
        arrived.append(params)
        place = len(arrived)
        if place == CLIENTS:
            answered.set()
        await answered.wait()
        for _ in range(10 * (CLIENTS - place)):
            await asyncio.sleep(0)
        return {"content": [], "structuredContent": {"said": params["arguments"]["said"]}}

    connect = HttpPeer.modern_ if era == "modern" else HttpPeer.legacy
    async with (
        levels(tmp_path, 2) as tree,
        bare_subserver(tree[-1], "leaf", tools=[tool("say")], call=last_come_first_served) as leaf,
        contextlib.AsyncExitStack() as stack,
    ):
        await tree[0].until_listed("l2.leaf.say")
        peers = [await stack.enter_async_context(await connect(f"{tree[0].url}/mcp")) for _ in range(CLIENTS)]
        for peer in peers:
            if era == "legacy":
                await peer.listen()
        ongoing = []
        for number, peer in enumerate(peers[:-1]):
            meta = {"progressToken": "t"}
            ongoing.append(peer.begin_call("l2.leaf.say", {"said": number}, request_id='"same"', meta=meta))
            await until(lambda number=number: len(arrived) == number + 1)
        requests = [one for one in leaf.heard if one.get("method") == "tools/call"]
        assert len({one["id"] for one in requests}) == CLIENTS - 1
        assert "same" not in {one["id"] for one in requests}
        told = {"progressToken": requests[2]["params"]["_meta"]["progressToken"], "progress": 1}
        await leaf.notify("notifications/progress", told)
        assert (await peers[2].hear("notifications/progress"))["params"] == {"progressToken": "t", "progress": 1}
        await peers[1].cancel(ongoing[1])
        cancelled = await leaf.hear("notifications/cancelled")
        assert cancelled["params"]["requestId"] == requests[1]["id"]
        reply = await peers[-1].call("l2.leaf.say", {"said": CLIENTS - 1}, request_id='"same"')
        assert reply.result["structuredContent"] == {"said": CLIENTS - 1}
        for number in (0, 2, 3, 4):
            reply = await ongoing[number].reply()
            assert reply.message["id"] == "same"
            assert reply.result["structuredContent"] == {"said": number}
        assert [one for at, peer in enumerate(peers) if at != 2 for one in peer.heard("notifications/progress")] == []
        assert [one for one in leaf.heard if one.get("method") == "notifications/cancelled"] == [cancelled]
        assert not ongoing[1].future.done() or ongoing[1].future.exception() is not None


@pytest.mark.req("AX-3.1-7")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_bare_uri_of_a_result_is_read_and_watched_through_two_hops_where_one_server_has_it(
    tmp_path: Path, era: str
) -> None:
    def said(depth: int) -> str:
        return f"[servers.bench]\ncommand = {json.dumps(raw('all'))}\n" if depth == 2 else ""

    connect = HttpPeer.modern_ if era == "modern" else HttpPeer.legacy
    async with levels(tmp_path, 2, said) as tree, await connect(f"{tree[0].url}/mcp") as peer:
        if era == "legacy":
            await peer.listen()
        await tree[0].until_listed("l2.bench.exact")
        linked = (await peer.call("l2.bench.exact", {"case": "resource-link"})).result["content"][0]["uri"]
        assert linked == "raw://text"
        for uri in (linked, "raw://item/9"):
            read = (await peer.request("resources/read", {"uri": uri})).result
            assert read["contents"] == [{"uri": uri, "mimeType": "text/plain", "text": f"text of {uri}"}]
        if era == "modern":
            peer.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": [linked]}})
            await peer.hear("notifications/subscriptions/acknowledged")
        else:
            assert (await peer.request("resources/subscribe", {"uri": linked})).result == {}
        await peer.call("l2.bench.touch", {"uri": linked})
        assert (await peer.hear("notifications/resources/updated"))["params"]["uri"] == linked
        missing = await peer.request("resources/read", {"uri": "raw://none"})
        assert missing.error["code"] == (-32602 if era == "modern" else -32002)


RULES = {
    1: '[[tool]]\nmatch = "l2.l3.leaf.read"\nbudget = { max_calls_per_minute = 1 }\n',
    2: '[gate]\nmode = "gated"\n[[tool]]\nmatch = "l3.leaf.secret"\nhide = true\n',
    3: "",
}


@pytest.mark.req("AX-1.2-1")
async def test_each_hop_lists_its_own_subtree_keeps_its_own_table_and_has_its_own_rules(tmp_path: Path) -> None:
    """The root has a budget; the node in the middle hides a tool and gates another; the lowest does neither."""
    erase = tool("erase", annotations={}, _meta={"x-mcpax-capability": {"mutable": True, "reversible": False}})
    offered = [tool("read"), tool("secret"), erase]
    async with (
        levels(tmp_path, 3, RULES.__getitem__) as tree,
        bare_subserver(tree[-1], "leaf", tools=offered, authority="dns:all.example") as leaf,
    ):

        def ran() -> list[str]:
            return [one["params"]["name"] for one in leaf.heard if one.get("method") == "tools/call"]

        for at, way in enumerate(("l2.l3.", "l3.", "")):
            await tree[at].until_listed(f"{way}leaf.erase")
            expected = {f"{way}leaf.read", f"{way}leaf.erase"} | ({"leaf.secret"} if at == 2 else set())
            async with await HttpPeer.modern_(f"{tree[at].url}/mcp?names=qualified") as peer:
                listed = {one["name"] for one in (await peer.request("tools/list")).result["tools"]}
                assert {name for name in listed if "leaf" in name} == expected
                reads = [await peer.call(f"{way}leaf.read") for _ in range(2)]
                assert reads[0].result["content"]
                assert ("budget_exceeded" in reads[1].text) is (at == 0)
                assert ("result" in (await peer.call(f"{way}leaf.secret")).message) is (at == 2)
                held = await peer.call(f"{way}leaf.erase")
                assert ("confirmation_required" in held.text) is (at < 2)
            assert ran().count("erase") == (at == 2)
            table = tree[at].node.operations.tools.routes()
            assert {name for name in table if "leaf" in name} == expected
            row = table[f"{way}leaf.read"]
            below = tree[at].node.calls.keepers[("l2", "l3", "leaf")[at]].link
            assert row.downstream_session == f"{below.registration.session_id[:4]}***"  # it is a secret of the two
            assert row.downstream_name == f"{('l3.', '', '')[at]}{'leaf.' if at < 2 else ''}read"
        assert Counter(ran()) == {"read": 5, "secret": 1, "erase": 1}


async def test_every_tool_says_how_long_it_takes_and_what_it_changes(tmp_path: Path) -> None:
    """Also one of an unmodified server of either era, and one of a leaf that says nothing."""

    def said(depth: int) -> str:
        servers = {era: json.dumps(raw("all", "--era", era)) for era in ("legacy", "modern")}
        if depth < 3:
            return ""
        return "".join(f"[servers.{era}]\ncommand = {command}\n" for era, command in servers.items())

    silent = {"name": "quiet", "inputSchema": {"type": "object"}}
    async with (
        levels(tmp_path, 3, said) as tree,
        bare_subserver(tree[-1], "leaf", tools=[silent], authority="dns:all.example"),
        await HttpPeer.legacy(f"{tree[0].url}/mcp", {"experimental": {"dev.interlock/ax": {}}}) as peer,
    ):
        for name in ("legacy.echo", "modern.echo", "leaf.quiet"):
            await tree[0].until_listed(f"l2.l3.{name}")
        tools = await drained(peer)
    assert len(tools) > 20
    for one in tools:
        capability = one["_meta"]["x-mcpax-capability"]
        assert capability["latency_class"] in ("realtime", "fast", "standard", "slow", "batch")
        assert {type(capability[key]) for key in ("mutable", "reversible", "idempotent")} == {bool}
        hints = one["annotations"]
        assert hints["readOnlyHint"] is not capability["mutable"] or one["name"].endswith(".echo")
