"""A registration from its first beat to the end of its grace, seen by clients (MCP-AX 6.3, 12, 13.1, 13.2)."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.blocking_client import call, hearing, legacy_call, listed, ready, told
from tests.support.node_process import RunningNode, running_node, wait_for
from websockets.exceptions import InvalidHandshake

GRACE_S = 2.0
EXTENSION = {"experimental": {"dev.interlock/ax": {}}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("life"), {}, extra=f"[degraded]\ngrace_s = {GRACE_S}\n") as started:
        yield started


def _availability(shown: dict[str, Any]) -> str:
    return shown["_meta"]["x-mcpax-capability"]["availability"]


@pytest.mark.req("AX-13.2-1", "AX-13.2-2", "AX-6.3-2")
async def test_a_silent_subserver_is_degraded_and_then_removed(node: RunningNode) -> None:
    async with bare_subserver(node, "silent", tools=[tool("read")], heartbeat_interval_ms=300) as leaf:
        await ready(node, "silent", tools=1)
        before = time.time()
        code, reason = await leaf.closed()
        assert (code, reason) == (1008, "heartbeat_timeout")
        began = time.monotonic()
        modern = (await call(node, "silent__read"))["error"]
        assert time.monotonic() - began < 0.5
        legacy = (await legacy_call(node, "silent__read"))["error"]
        assert (modern["code"], legacy["code"]) == (32002, -32002)
        assert modern["message"] == legacy["message"] == "tool_degraded"
        assert legacy["data"] == {
            "reason": "subserver_unreachable",
            "since": legacy["data"]["since"],
            "retry_after_ms": 300,
        }
        assert modern["data"] == {**legacy["data"], "mcpax_code": -32002}
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", legacy["data"]["since"])
        assert before - 1 <= _wall(legacy["data"]["since"]) <= time.time()
        shown = await listed(node)
        assert _availability(shown["silent.read"]) == "degraded"

        await asyncio.to_thread(
            wait_for,
            lambda: all(one["segment"] != "silent" for one in node.admin("/admin/links")["links"]),
            GRACE_S + 5,
        )
        assert "silent.read" not in await listed(node)
        assert (await call(node, "silent__read"))["error"]["code"] == -32601


def _wall(text: str) -> float:
    import calendar

    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


@pytest.mark.req("AX-6.3-2")
async def test_two_misses_and_a_beat_are_no_loss(node: RunningNode) -> None:
    async with bare_subserver(node, "faint", tools=[tool("read")], heartbeat_interval_ms=400) as leaf:
        await ready(node, "faint", tools=1)
        leaf.answers = False  # it is stuck, and misses its beats
        await asyncio.to_thread(node.wait_link, "faint", {"state": "degraded"})
        assert (await call(node, "faint__read"))["error"]["message"] == "tool_degraded"
        leaf.answers = True
        assert (await leaf.beat())["heartbeat_deadline_ms"] == 1200
        assert (await call(node, "faint__read"))["result"]["content"][0]["text"] == "read ran"

        assert _availability((await listed(node))["faint.read"]) == "always"


@pytest.mark.req("AX-6.3-5", "AX-6.3-4", "AX-13.1-1")
async def test_a_subserver_that_deregisters_is_gone_at_once_and_its_segment_is_free(node: RunningNode) -> None:
    async with (
        bare_subserver(node, "polite", tools=[tool("read")]) as leaf,
        bare_subserver(node, "beside", tools=[tool("read")]) as other,
    ):
        await ready(node, "polite", tools=1)
        await ready(node, "beside", tools=1)
        session = {"session_id": leaf.session["session_id"]}
        async with hearing(node) as heard:
            assert await leaf.request("mcpax/deregister", session) == {"status": "deregistered"}
            assert "polite.read" not in await listed(node)
            assert (await call(node, "polite__read"))["error"]["code"] == -32601
            assert "beside.read" in await listed(node)
            assert "result" in await call(node, "beside__read")
            assert (await other.beat())["status"] == "ok"
            assert (await leaf.closed())[0] == 1000
            await told(heard, "notifications/tools/list_changed")
            while not heard.empty():
                assert heard.get_nowait()["method"] != "notifications/message"
    async with bare_subserver(node, "polite", tools=[tool("read")]):
        await ready(node, "polite", tools=1)


@pytest.mark.req("AX-13.1-4")
async def test_calls_under_way_end_when_the_subserver_is_cut_off(node: RunningNode) -> None:
    begun = asyncio.Event()

    async def never(params: dict[str, Any]) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async with (
        bare_subserver(node, "cut", tools=[tool("slow")], call=never) as leaf,
        hearing(node) as plain,
        hearing(node, EXTENSION) as knowing,
    ):
        await ready(node, "cut", tools=1)
        calling = asyncio.create_task(legacy_call(node, "cut__slow"))
        await asyncio.wait_for(begun.wait(), 10)
        cut_at = time.monotonic()
        leaf.cut()
        error = (await calling)["error"]
        assert time.monotonic() - cut_at < 1
        assert (error["code"], error["message"]) == (-32002, "tool_degraded")
        assert (error["data"]["reason"], error["data"]["outcome"]) == ("subserver_unreachable", "unknown")
        lost = await told(knowing, "notifications/mcpax/subserver_lost")
        assert (lost["params"]["segment"], lost["params"]["reason"]) == ("cut", "connection_lost")
        assert lost["params"]["_meta"]["x-mcpax-event-id"]
        log = await told(plain, "notifications/message")
        assert (log["params"]["level"], log["params"]["logger"]) == ("warning", "mcpax")
        assert log["params"]["data"]["event"] == "subserver_lost"
    assert sum(m.get("method") == "tools/call" for m in leaf.heard) == 1


@pytest.mark.req("AX-13.2-5")
async def test_a_returning_subserver_takes_its_names_back_with_its_new_definitions(node: RunningNode) -> None:
    first = BareSubserver(await connect(node), "back", tools=[tool("read", description="old")])
    await first.register()
    await ready(node, "back", tools=1)
    first.cut()
    await asyncio.to_thread(node.wait_link, "back", {"state": "degraded"})
    stranger = BareSubserver(await connect(node), "back")
    with pytest.raises(Refused) as refused:
        await stranger.register()
    assert refused.value.error["message"] == "namespace_conflict"
    tools = [tool("read", description="old"), tool("further", description="new")]
    second = BareSubserver(await connect(node), "back", tools=tools, subserver_id=first.subserver_id)
    second.answers = False
    await second.register()
    assert second.session["session_id"] != first.session["session_id"]
    await second.hear("server/discover")
    error = (await call(node, "back__read"))["error"]
    assert (error["code"], error["data"]["reason"]) == (32002, "relisting")
    second.answers = True
    for message in [m for m in second.heard if m.get("method") == "server/discover"]:
        await second._serve(message)
    await ready(node, "back", tools=2)
    shown = (await listed(node))["back.further"]
    assert (shown["description"], _availability(shown)) == ("new", "always")
    assert "result" in await call(node, "back__read")
    for leaf in (first, stranger, second):
        await leaf.stop()


async def test_a_reconnecting_subserver_supersedes_itself(node: RunningNode) -> None:
    async with bare_subserver(node, "twin", tools=[tool("read")]) as old:
        await ready(node, "twin", tools=1)
        async with bare_subserver(node, "twin", tools=[tool("read")], subserver_id=old.subserver_id) as new:
            assert (await old.closed())[0] == 4409
            await ready(node, "twin", tools=1)
            assert "result" in await call(node, "twin__read")
            assert any(m.get("method") == "tools/call" for m in new.heard)
            assert not any(m.get("method") == "tools/call" for m in old.heard)


async def test_lists_that_change_are_read_again(node: RunningNode) -> None:
    async with bare_subserver(node, "moody", tools=[tool("one")]) as leaf, hearing(node) as heard:
        await ready(node, "moody", tools=1)
        while not heard.empty():
            heard.get_nowait()
        leaf.tools = [tool("one"), tool("two")]
        await leaf.notify("notifications/tools/list_changed")
        await ready(node, "moody", tools=2)
        await told(heard, "notifications/tools/list_changed")
        assert "moody.two" in await listed(node)


@pytest.mark.req("AX-6.1-4")
async def test_capabilities_that_a_registration_leaves_out_are_not_requested(node: RunningNode) -> None:
    capabilities = {"tools": False, "resources": False, "notifications": False}
    async with (
        bare_subserver(node, "mute", tools=[tool("read")], capabilities=capabilities) as leaf,
        hearing(node) as heard,
    ):
        await leaf.notify("notifications/custom", {"n": 1})
        await ready(node, "mute", tools=0)
        await asyncio.to_thread(wait_for, lambda: node.link("mute")["registration"]["unwanted_notifications"] == 1)
        asked = {message.get("method") for message in leaf.heard}
        assert not asked & {"tools/list", "resources/list", "resources/templates/list"}
        while not heard.empty():
            assert heard.get_nowait()["method"] != "notifications/custom"


async def test_notifications_arrive_in_order_with_their_origin_and_untouched_ids(node: RunningNode) -> None:
    async with bare_subserver(node, "vocal", tools=[tool("read")]) as leaf, hearing(node, EXTENSION) as heard:
        await ready(node, "vocal", tools=1)
        for number in range(50):
            meta = {"x-mcpax-event-id": "MADE-UP", "x-mcpax-causal-parent": None, "x-mcpax-origin": "another"}
            await leaf.notify("notifications/vendor/tick", {"n": number, "_meta": meta})
        for number in range(50):
            message = await told(heard, "notifications/vendor/tick")
            assert message["params"]["n"] == number
            assert message["params"]["_meta"] == {
                "x-mcpax-event-id": "MADE-UP",
                "x-mcpax-causal-parent": None,
                "x-mcpax-origin": "vocal",
            }
        await leaf.notify("notifications/message", {"level": "info", "logger": "core", "data": "hello"})
        log = await told(heard, "notifications/message")
        assert log["params"]["logger"] == "vocal.core"


async def test_a_flood_is_held_back_counted_and_reported(node: RunningNode) -> None:
    async with bare_subserver(node, "flood", tools=[tool("read")]) as leaf, hearing(node, EXTENSION) as heard:
        await ready(node, "flood", tools=1)
        for number in range(3000):
            await leaf.notify("notifications/vendor/tick", {"n": number})
        overflow = await told(heard, "notifications/mcpax/notification_overflow", 30)
        assert overflow["params"]["segment"] == "flood"
        assert overflow["params"]["dropped"] > 0
        assert (await call(node, "flood__read"))["result"]["content"][0]["text"] == "read ran"
        counted = (await call(node, "notifications_dropped"))["result"]["structuredContent"]
        assert counted["total"] >= counted["by_segment"]["flood"] >= overflow["params"]["dropped"]
        capability = (await listed(node))["notifications_dropped"]["_meta"]["x-mcpax-capability"]
        assert (capability["mutable"], capability["cost_class"], capability["latency_class"]) == (
            False,
            "free",
            "realtime",
        )


async def test_a_node_that_stops_answers_what_is_under_way_and_sends_its_subservers_away(tmp_path: Path) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def held(params: dict[str, Any]) -> Any:
        begun.set()
        await may_end.wait()
        return {"content": [{"type": "text", "text": "after all"}]}

    with running_node(tmp_path, {}) as own:
        async with bare_subserver(own, "held", tools=[tool("slow")], call=held) as leaf:
            await ready(own, "held", tools=1)
            calling = asyncio.create_task(call(own, "held__slow"))
            await asyncio.wait_for(begun.wait(), 10)
            stopping = asyncio.create_task(asyncio.to_thread(own.stop))
            with pytest.raises((OSError, InvalidHandshake)):
                while True:
                    await (await connect(own)).close()
            may_end.set()
            assert (await calling)["result"]["content"][0]["text"] == "after all"
            assert (await leaf.closed())[0] == 1001
            assert await stopping == 0
