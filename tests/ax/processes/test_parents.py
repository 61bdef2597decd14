"""A node below a parent that has none of our code: what it registers, serves, refuses, and how it moves on."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.raw_aggregator import (
    PATIENCE_S,
    Aggregator,
    Answer,
    B,
    Session,
    aggregator,
    granted,
    refusing,
    silent,
)
from tests.ax.tree import parent, parents, wait_parent
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node

from interlock.dispatch.availability import CALLS_MAX, SHARES

SERVERS = {"bench": {"command": raw("all"), "definitions": "follow"}}
OPEN = '[[tool]]\nmatch = "bench.*"\nmutable = false\nauth_scope = "read"\n'
DEADLINE_MS = 600  # a parent may want beats more often than five seconds apart: here every 0.1 s


def grants(**members: Any) -> Answer:
    def answer(session: Session, request: dict[str, Any]) -> Any:
        given = granted(session, request)
        given["result"].update({"heartbeat_deadline_ms": DEADLINE_MS, "auth_scope": "admin", **members})
        return given

    return answer


@contextlib.asynccontextmanager
async def node_below(
    folder: Path, *above: Aggregator, servers: Any = None, extra: str = "", segment: str = "edge"
) -> AsyncIterator[RunningNode]:
    """Started and stopped beside the loop, on which its parents live."""
    said = parents(*((one.url, segment) for one in above), authority=None) + extra
    entered = running_node(folder, SERVERS if servers is None else servers, said)
    node = await asyncio.to_thread(entered.__enter__)
    try:
        yield node
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def joined(
    folder: Path, extra: str = "", *, servers: Any = None, **members: Any
) -> AsyncIterator[tuple[RunningNode, Session]]:
    async with aggregator() as above:
        above.answers["mcpax/register"] = grants(**members)
        async with node_below(folder, above, extra=extra, servers=servers) as node:
            session = await above.joined()
            await session.hears("mcpax/heartbeat")
            yield node, session


def registration(session: Session) -> dict[str, Any]:
    found: dict[str, Any] = session.all("mcpax/register")[-1]["params"]
    return found


async def listed(session: Session, wanted: str) -> dict[str, Any]:
    """The tools, once this one is among them."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            tools = {one["name"]: one for one in (await session.modern("tools/list"))["result"]["tools"]}
            if wanted in tools:
                return tools


async def routed(session: Session, route: Any, cursor: Any, name: str = "bench.echo", **more: Any) -> dict[str, Any]:
    meta = {"x-mcpax-route": route, "x-mcpax-cursor": cursor}
    return await session.modern("tools/call", name=name, arguments={"n": 1}, _meta=meta, **more)


# Registering


@pytest.mark.req("AX-5.3-1")
async def test_a_node_registers_as_the_aggregator_it_is_and_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with aggregator() as above:
        secret = 'secret = "ils_of_edge"\n'
        said = []
        for _ in range(2):
            async with node_below(tmp_path, above, extra=secret):
                said.append(registration(await above.joined()))
        identity = json.loads((tmp_path / "data" / "identity.json").read_text())
        assert [one["subserver_id"] for one in said] == [identity["aggregator_id"]] * 2
        assert said[0]["x-mcpax-subtree-ids"] == [identity["aggregator_id"]]
        assert said[0]["segment"] == "edge"
        assert said[0]["parent_id"] is None
        assert said[0]["capabilities"]["tools"] is True
        assert said[0]["capabilities"]["resources"] is True
        assert said[0]["version"] == "2026-05-01"
        assert {request.headers["Authorization"] for request in above.requests} == {"Bearer ils_of_edge"}


@pytest.mark.req("AX-5.3-4")
async def test_an_aggregator_that_joins_below_is_sent_in_the_next_heartbeat(tmp_path: Path) -> None:
    below = "cccccccc-cccc-4ccc-8ccc-cccccccccccc"
    access = '[[access]]\nwho = ["local"]\nscope = "admin"\n'
    async with joined(tmp_path, access, servers={}) as (node, session):
        own = registration(session)["subserver_id"]
        ids = [below, "dddddddd-dddd-4ddd-8ddd-dddddddddddd"]
        async with bare_subserver(node, "hall", subserver_id=below, **{"x-mcpax-subtree-ids": ids}):
            said = await _beat_with_subtree(session, 3)
            assert said[0] == own
            assert set(said) == {own, *ids}
            await session.socket.close()
            session = await session.aggregator.joined()
            asked = registration(session)["x-mcpax-subtree-ids"]
            assert (asked[0], len(asked), set(asked)) == (own, 3, {own, *ids})
        assert await _beat_with_subtree(session, 1) == [own]


async def _beat_with_subtree(session: Session, count: int) -> list[str]:
    def found() -> list[str] | None:
        beats = [one["params"].get("x-mcpax-subtree-ids") for one in session.all("mcpax/heartbeat")]
        return next((ids for ids in reversed(beats) if ids is not None and len(ids) == count), None)

    async with asyncio.timeout(PATIENCE_S):
        while (ids := found()) is None:
            await session.hears("mcpax/heartbeat", len(session.all("mcpax/heartbeat")) + 1)
    return ids


async def test_heartbeats_never_leave_a_gap_of_an_interval_while_calls_run(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN, heartbeat_deadline_ms=4500) as (_, session):
        await listed(session, "bench.echo")
        at = [time.monotonic()]

        async def watch() -> None:
            for count in range(len(session.all("mcpax/heartbeat")), 5):
                await session.hears("mcpax/heartbeat", count + 1)
                at.append(time.monotonic())

        watching = asyncio.create_task(watch())
        while not watching.done():
            await asyncio.gather(*(session.call("bench.echo", n=n) for n in range(20)))
        await watching
        assert max(later - sooner for sooner, later in itertools.pairwise(at)) < 1.5


async def test_the_query_for_the_parent_is_answered_before_and_after_the_registration(tmp_path: Path) -> None:
    async with aggregator() as above:
        above.answers["mcpax/register"] = silent
        async with node_below(tmp_path, above, servers={}):
            session = await above.joined()
            before = (await session.ask("mcpax/parent"))["result"]
            asked = session.all("mcpax/register")[0]
            assert before == {"subserver_id": asked["params"]["subserver_id"], "parent_id": None}
            for method in ("server/discover", "tools/list", "tools/call"):
                assert (await session.modern(method))["error"]["code"] == -32600
            await session.say(grants()(session, asked))
            assert (await session.ask("mcpax/parent"))["result"]["parent_id"] == session.aggregator_id
            assert "result" in await session.modern("server/discover")


@pytest.mark.req("AX-6.3-4")
async def test_a_node_that_is_stopped_says_goodbye_and_its_record_tells_when_it_came_and_went(tmp_path: Path) -> None:
    async with joined(tmp_path, servers={}) as (node, session):
        assert await asyncio.to_thread(node.stop) == 0
        (goodbye,) = await session.hears("mcpax/deregister")
        assert goodbye["params"] == {"session_id": session.session_id}
        await session.closed()
        shown = await asyncio.to_thread(node.cli, "audit", "tail", "--json")
        assert "mcpax/register" in shown.stdout
        assert "mcpax/deregister" in shown.stdout
        assert f"parent:{session.aggregator.url}" in shown.stdout


# Serving


async def test_a_parent_of_either_era_is_served_on_the_same_link(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN) as (_, session):
        await listed(session, "bench.echo")
        modern = await session.modern("server/discover")
        assert set(modern["result"]["capabilities"]) >= {"tools", "prompts", "resources", "completions"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "up", "version": "1"}}
        assert (await session.ask("initialize", hello))["result"]["protocolVersion"] == "2025-11-25"
        await session.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        tools = (await session.ask("tools/list"))["result"]["tools"]
        assert "bench.echo" in {one["name"] for one in tools}
        called = await session.ask("tools/call", {"name": "bench.echo", "arguments": {"a": 1}})
        assert called["result"]["structuredContent"] == {"a": 1}
        assert (await session.call("bench.echo", b=2))["structuredContent"] == {"b": 2}
        await session.modern("tools/call", name="bench.change", arguments={"kind": "tools", "name": "sprung"})
        await session.hears("notifications/tools/list_changed")


@pytest.mark.req("AX-5.3-1")
async def test_a_modern_parent_that_does_not_listen_still_learns_of_changed_lists(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN) as (node, session):
        await listed(session, "bench.echo")
        told = len(session.all("notifications/tools/list_changed"))
        await session.modern("tools/call", name="bench.change", arguments={"kind": "tools", "name": "sprung"})
        shown: set[str] = set()
        while "bench.sprung" not in shown:  # the first may still be about what was there before
            told += 1
            await session.hears("notifications/tools/list_changed", told)
            shown = {one["name"] for one in (await session.modern("tools/list"))["result"]["tools"]}
        with Wire(node) as wire:
            own = {one["_meta"]["x-mcpax-name"] for one in wire.modern("tools/list").message["result"]["tools"]}
        assert own <= shown
        assert len(session.all("mcpax/register")) == 1


async def test_a_parents_listening_does_not_end_when_the_endpoint_checks_lapsed_tokens(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN) as (node, session):
        await listed(session, "bench.echo")
        params = {"notifications": {"toolsListChanged": True}, "_meta": _modern()}
        await session.say({"jsonrpc": "2.0", "id": "ear", "method": "subscriptions/listen", "params": params})
        await session.hears("notifications/subscriptions/acknowledged")
        await session.hears("mcpax/heartbeat", len(session.all("mcpax/heartbeat")) + 25)  # 2.5 s; it looks every second
        assert not [one for one in session.heard if one.get("id") == "ear"]
        assert (await asyncio.to_thread(node.admin, "/admin/status"))["clients"]["streams"] == 1


async def test_unknown_requests_of_the_tree_are_refused(tmp_path: Path) -> None:
    async with joined(tmp_path, servers={}) as (_, session):
        for method in ("mcpax/walk", "mcpax/register", "mcpax/heartbeat"):
            assert (await session.ask(method))["error"]["code"] == -32601


@pytest.mark.req("AX-7.2-1", "AX-7.2-2", "AX-7.2-4")
async def test_only_a_route_that_leads_here_and_to_the_tool_named_is_followed(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN, assigned_segment="west") as (node, session):
        await listed(session, "bench.echo")
        good = ["root", "west", "bench", "echo"]
        assert (await routed(session, good, 1))["result"]["structuredContent"] == {"n": 1}
        assert (await routed(session, good[1:], 0))["result"]["structuredContent"] == {"n": 1}
        either = await session.modern(
            "tools/call", name="bench.echo", **{"x-mcpax-route": good, "x-mcpax-cursor": 1, "arguments": {}}
        )
        assert "result" in either
        before = (await asyncio.to_thread(node.link, "bench"))["calls"]
        wrong: list[tuple[Any, Any]] = [
            (good, 0),
            (good, 2),
            (good, 4),
            (good, -1),
            (good, 1.5),
            (good, "1"),
            (good, True),
            (good, None),
            (["root", "edge", "bench", "echo"], 1),
            (["root", "west", "bench", "exact"], 1),
            (["root", "west", "bench"], 1),
            (["root", "west", "bench", "echo", "more"], 1),
            (["root", "west"], 1),
            ("west.bench.echo", 0),
            ({"0": "west"}, 0),
            ([], 0),
            (["root", 7, "bench", "echo"], 1),
            (["root", "west", "Bench", "echo"], 1),
            (["root", "west", "bench.echo"], 1),
            (["west"] * 2000, 0),
        ]
        for route, cursor in wrong:
            error = (await routed(session, route, cursor))["error"]
            assert error["code"] == 32118, (route, cursor)
            assert error["message"] == "route_mismatch"
        lone = await session.modern("tools/call", name="bench.echo", arguments={}, _meta={"x-mcpax-route": good})
        assert lone["error"]["code"] == 32118
        said_twice = await routed(session, good, 1, **{"x-mcpax-route": ["west", "bench", "exact"]})
        assert said_twice["error"]["code"] == 32118
        assert (await asyncio.to_thread(node.link, "bench"))["calls"] == before


async def test_the_routes_of_resources_prompts_and_completions_are_checked_as_well(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN) as (_, session):
        await listed(session, "bench.echo")
        uri = "mcpax://bench/raw://text"
        prompt = {"type": "ref/prompt", "name": "bench.greet"}
        template = {"type": "ref/resource", "uri": "mcpax://bench/raw://item/{id}"}
        argument = {"name": "who", "value": "a"}
        asked: list[tuple[str, dict[str, Any], list[str]]] = [
            ("resources/read", {"uri": uri}, ["edge", "bench"]),
            ("prompts/get", {"name": "bench.greet", "arguments": {"who": "x"}}, ["edge", "bench", "greet"]),
            ("completion/complete", {"ref": prompt, "argument": argument}, ["edge", "bench", "greet"]),
            ("completion/complete", {"ref": template, "argument": argument}, ["edge", "bench"]),
        ]
        for method, params, route in asked:
            for way, fits in ((route, True), (["edge", "other", *route[2:]], False), (["west", *route[1:]], False)):
                meta = {"x-mcpax-route": way, "x-mcpax-cursor": 0}
                answer = await session.modern(method, **params, _meta=meta)
                assert ("result" in answer) is fits, (method, way, answer)
                assert fits or answer["error"]["code"] == 32118


@pytest.mark.req("AX-10.2-2")
async def test_tools_beyond_the_granted_scope_are_not_listed_and_denied_by_name(tmp_path: Path) -> None:
    async with joined(tmp_path, auth_scope="read") as (node, session):
        tools = await listed(session, "bench.echo")  # which says that it only reads
        assert "bench.fail" not in tools
        denied = (await session.modern("tools/call", name="bench.fail", arguments={}))["error"]
        assert denied["code"] == 32117
        assert denied["message"] == "scope_denied"
        unknown = (await session.modern("tools/call", name="bench.nothing", arguments={}))["error"]
        assert unknown["code"] == -32601
        assert (await asyncio.to_thread(node.link, "bench"))["calls"] == 0


@pytest.mark.req("AX-13.2-2")
async def test_a_degraded_tool_is_refused_upward_in_the_drafts_own_words(tmp_path: Path) -> None:
    async with (
        joined(tmp_path, servers={}) as (node, session),
        bare_subserver(node, "frail", tools=[tool("read")]) as low,
    ):
        await listed(session, "frail.read")
        low.cut()
        await session.hears("notifications/mcpax/subserver_lost")
        began = time.monotonic()
        error = (await session.modern("tools/call", name="frail.read", arguments={}))["error"]
        assert time.monotonic() - began < 0.5
        assert error["code"] == -32002
        assert error["message"] == "tool_degraded"
        since = error["data"]["since"]
        assert error["data"] == {"reason": "subserver_unreachable", "since": since, "retry_after_ms": 5000}


# Hostile parents


async def test_a_parents_nonsense_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    nonsense = [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "[" * 50_000,
        '{"jsonrpc":"2.0"}',
        '{"jsonrpc":"1.0","id":1,"method":"tools/list"}',
        '{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
        '{"jsonrpc":"2.0","id":1,"method":7}',
        '{"jsonrpc":"2.0","id":"x","method":"tools/call","params":[1]}',
        '{"jsonrpc":"2.0","id":"y","method":"tools/call","params":{"_meta":7}}',
        '{"jsonrpc":"2.0","id":999,"result":{}}',
        '{"jsonrpc":"2.0","id":1,"result":{"status":"registered"}}',
        '{"jsonrpc":"2.0","id":"il-1","error":{"code":-1,"message":"no"}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
        '{"jsonrpc":"2.0","method":"notifications/mcpax/tools_refused","params":{"tools":7}}',
        '{"jsonrpc":"2.0","method":"notifications/mcpax/tools_refused","params":"\\u0007"}',
        '{"jsonrpc":"2.0","method":"mcpax/heartbeat"}',
    ]
    async with joined(tmp_path, OPEN) as (node, session):
        await listed(session, "bench.echo")
        for text in nonsense:
            await session.say(text)
        assert (await session.call("bench.echo", a=1))["structuredContent"] == {"a": 1}
        assert (await asyncio.to_thread(parent, node))["state"] == "registered"


async def test_a_frame_over_the_limit_is_left_out_and_the_link_goes_on(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN) as (node, session):
        await listed(session, "bench.echo")
        await session.say("x" * (17 * 1024 * 1024))
        assert (await session.call("bench.echo", a=1))["structuredContent"] == {"a": 1}
        assert (await asyncio.to_thread(parent, node))["state"] == "registered"


async def test_a_frame_that_is_none_of_the_protocols_ends_the_link_and_the_node_comes_back(tmp_path: Path) -> None:
    async with joined(tmp_path) as (node, session):
        first = session.session_id
        with contextlib.suppress(Exception):
            await session.say(b"\x00binary")
        await session.closed()
        again = await session.aggregator.joined()
        assert registration(again)["released_session"] == first
        await asyncio.to_thread(wait_parent, node, {"state": "registered"})


async def test_a_flood_of_a_parent_is_bounded_and_does_not_starve_the_nodes_own_clients(tmp_path: Path) -> None:
    async with joined(tmp_path, OPEN) as (node, session):
        await listed(session, "bench.echo")
        for number in range(100):  # listens that are never ended
            params = {"notifications": {"toolsListChanged": True}, "_meta": _modern()}
            await session.say({"jsonrpc": "2.0", "id": number, "method": "subscriptions/listen", "params": params})
        for number in range(1024 + CALLS_MAX // SHARES + 300):
            params = {"name": "bench.wait", "arguments": {}, "_meta": _modern()}
            await session.say({"jsonrpc": "2.0", "id": f"c{number}", "method": "tools/call", "params": params})

        def own_call() -> Any:
            with Wire(node) as wire:
                return wire.modern("tools/list").message

        assert "result" in await asyncio.to_thread(own_call)
        status = await asyncio.to_thread(node.admin, "/admin/status")
        assert status["clients"]["streams"] <= 16
        assert status["calls"]["in_flight"] <= 1024 + CALLS_MAX // SHARES  # limits.calls_in_flight, and those that wait
        refused = [one for one in session.heard if one.get("error", {}).get("message") == "tool_degraded"]
        assert {one["error"]["data"]["reason"] for one in refused} == {"link_busy"}
        await session.socket.close()
        await session.aggregator.joined()
        async with asyncio.timeout(PATIENCE_S):  # what nobody waits for any more is given up
            while (await asyncio.to_thread(node.admin, "/admin/status"))["calls"]["in_flight"]:
                pass


def _modern() -> dict[str, Any]:
    return {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }


# Losing a parent


@pytest.mark.req("AX-13.3-2")
async def test_a_lost_parent_is_left_for_the_next_and_not_returned_to(tmp_path: Path) -> None:
    async with aggregator() as first, aggregator(B) as second:
        for one in (first, second):
            one.answers["mcpax/register"] = grants()
        async with node_below(tmp_path, first, second) as node:
            before = await first.joined()
            await before.hears("mcpax/heartbeat")
            assert (await asyncio.to_thread(parent, node, 1))["state"] == "standby"
            await first.stop(abruptly=True)
            after = await second.joined()
            assert registration(after)["subserver_id"] == registration(before)["subserver_id"]
            assert registration(after)["segment"] == "edge"
            assert registration(after)["released_session"] == before.session_id
            assert registration(after)["parent_id"] is None
            await asyncio.to_thread(wait_parent, node, {"state": "registered"}, 1)
            await first.start()
            await after.hears("mcpax/heartbeat", 10)
            assert first.nobody_came
            lost = await asyncio.to_thread(parent, node, 0)
            assert lost["state"] in ("waiting", "standby")
            assert lost["reason"]


async def test_a_parent_that_freezes_is_left_after_one_unanswered_interval(tmp_path: Path) -> None:
    async with aggregator() as first, aggregator(B) as second:
        for one in (first, second):
            one.answers["mcpax/register"] = grants()
        async with node_below(tmp_path, first, second, servers={}):
            await (await first.joined()).hears("mcpax/heartbeat")
            first.answers["mcpax/heartbeat"] = silent
            froze = time.monotonic()
            await second.joined()
            assert time.monotonic() - froze < DEADLINE_MS / 1000


@pytest.mark.parametrize(
    ("code", "name", "hint"),
    [
        (32110, "namespace_conflict", "links release"),
        (32112, "registration_cycle", "remove it"),
        (32113, "split_brain", "copied"),
        (32114, "authority_unverified", "require_proof"),
    ],
)
async def test_a_refusal_is_shown_with_what_to_do_about_it(tmp_path: Path, code: int, name: str, hint: str) -> None:
    async with aggregator() as above:
        above.answers["mcpax/register"] = refusing(code, name)
        async with node_below(tmp_path, above, servers={}) as node:
            await above.joined()
            shown = await asyncio.to_thread(wait_parent, node, {"state": "waiting"})
            assert shown["reason"] == f"{name}: because"
            assert hint in shown["next_step"]
            assert shown["assigned_segment"] is None
            text = (await asyncio.to_thread(node.cli, "status")).stdout
            assert above.url in text
            assert name in text
            assert hint in " ".join(text.split())
