"""Does what a server says of its own accord reach the clients it is for, and nobody else?"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.fleet import (
    FRONTS,
    LEGACY_CELLS,
    LEGACY_LINKS,
    LINKS,
    MODERN_CELLS,
    MODERN_FRONTS,
    SAME_ERA,
    Fleet,
    link_command,
    stdio_front,
    stdio_table,
    tool,
    uri,
)
from tests.support.node_process import write_config
from tests.support.peers import LEGACY, META, MODERN, Ongoing, Peer, StdioPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SUBSCRIPTION = META + "subscriptionId"
ALL_CELLS = [(front, link) for front in FRONTS for link in LINKS]


# Progress


@pytest.mark.parametrize(("front", "link"), SAME_ERA)
async def test_progress_comes_in_order_under_the_clients_own_token(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        for token in ("schön, \\ 1", 7, 0):
            peer.forget()
            reply = await peer.call(tool(link, "progress"), {"steps": 5}, meta={"progressToken": token})
            notices = [message["params"] for message in peer.before(reply, "notifications/progress")]
            assert notices == [
                {"progressToken": token, "progress": step, "total": 5, "message": f"step {step}"}
                for step in range(1, 6)
            ]
            assert reply.result["content"][0]["text"] == "5 steps"


@pytest.mark.parametrize(("front", "link"), SAME_ERA)
async def test_a_client_without_a_token_receives_no_progress(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        reply = await peer.call(tool(link, "progress"), {"steps": 3})
        assert peer.before(reply, "notifications/progress") == []


# Logs


async def ask_for_logs(peer: Peer, level: str) -> None:
    if peer.modern:
        peer.log_level = level
    else:
        assert (await peer.request("logging/setLevel", {"level": level})).result == {}


async def logged(peer: Peer, link: str, level: str, data: Any) -> list[Any]:
    """What the client is told while it makes its server say this."""
    peer.forget()
    reply = await peer.call(tool(link, "log"), {"level": level, "data": data})
    return [message["params"] for message in peer.before(reply, "notifications/message")]


@pytest.mark.parametrize(("front", "link"), SAME_ERA)
async def test_a_client_receives_the_logs_of_its_level_and_above(fleet: Fleet, front: str, link: str) -> None:
    data = {"why": "heat é", "n": 1208925819614629174706175, "empty": {}}
    async with fleet.peer(front) as peer:
        await ask_for_logs(peer, "warning")
        assert await logged(peer, link, "info", data) == []
        for level in ("warning", "emergency"):
            assert await logged(peer, link, level, data) == [{"level": level, "logger": "raw", "data": data}]
        await ask_for_logs(peer, "debug")
        assert await logged(peer, link, "debug", "now") == [{"level": "debug", "logger": "raw", "data": "now"}]


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_each_session_has_its_own_log_level(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-legacy") as talkative, fleet.peer("http-legacy") as terse:
        await ask_for_logs(talkative, "debug")
        await ask_for_logs(terse, "error")
        assert len(await logged(talkative, link, "info", 1)) == 1
        assert await logged(terse, link, "info", 2) == []
        assert [one["data"] for one in await logged(terse, link, "error", 3)] == [3]
        assert terse.heard("notifications/message") == [{**terse.log[0]}]


@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_a_modern_request_without_a_level_gets_no_logs(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        assert await logged(peer, link, "emergency", "x") == []


@pytest.mark.parametrize("front", ["http-legacy", "sse-legacy", "stdio-legacy"])
async def test_an_unknown_log_level_is_refused(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        for level in ("loud", 3, None):
            assert (await peer.request("logging/setLevel", {"level": level})).error["code"] == -32602


# Lists


async def listen(peer: Peer, wanted: dict[str, Any], request_id: str | None = None) -> Ongoing:
    """Open a modern subscription and see it acknowledged."""
    ongoing = peer.begin("subscriptions/listen", {"notifications": wanted}, request_id=request_id)
    acknowledged = await peer.hear(ACKNOWLEDGED)
    assert acknowledged["params"] == {"_meta": {SUBSCRIPTION: json.loads(ongoing.id)}, "notifications": wanted}
    return ongoing


async def attend(peer: Peer, *, forget: bool = True) -> Callable[[], Awaitable[None]]:
    """Have the client hear of changed lists, however its era does that; gives how to stop."""
    if forget:
        peer.forget()
    if not peer.modern:
        return _nothing
    ongoing = await listen(peer, {"promptsListChanged": True, "resourcesListChanged": True, "toolsListChanged": True})

    async def stop() -> None:
        await peer.cancel(ongoing)

    return stop


async def _nothing() -> None:
    pass


async def names(peer: Peer) -> list[str]:
    return [one["name"] for one in (await peer.request("tools/list")).result["tools"]]


@pytest.mark.parametrize(("front", "link"), ALL_CELLS)
async def test_a_changed_list_is_announced_and_then_seen(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        stop = await attend(peer)
        before = await names(peer)
        await peer.call(tool(link, "change"), {"kind": "tools", "name": "late"})
        await peer.hear(CHANGED)
        assert set(await names(peer)) - set(before) == {tool(link, "late")}
        assert (await peer.call(tool(link, "late"))).result["content"][0]["text"] == "here"
        await peer.call(tool(link, "change"), {"kind": "tools", "name": "late"})
        await peer.hear(CHANGED)
        assert await names(peer) == before
        assert peer.heard() == []
        await stop()


@pytest.mark.parametrize(("front", "link"), ALL_CELLS)
async def test_an_announcement_without_a_change_is_passed_on_as_well(fleet: Fleet, front: str, link: str) -> None:
    """The server may mean what its list does not show; whoever is connected to it directly hears of it too."""
    async with fleet.peer(front) as peer:
        stop = await attend(peer)
        await peer.call(tool(link, "change"), {"kind": "prompts"})
        await peer.hear("notifications/prompts/list_changed")
        assert peer.heard() == []
        await stop()


async def test_only_those_who_see_the_server_learn_that_nothing_of_it_changed(fleet: Fleet) -> None:
    async with fleet.peer("http-legacy", path="/only/new_http") as other, fleet.peer("http-legacy") as peer:
        reads = await times_read(peer, "old_http", "prompts/list")
        for _ in range(20):
            await peer.call(tool("old_http", "change"), {"kind": "prompts"})
        await peer.hear("notifications/prompts/list_changed")
        await other.request("ping")
        assert other.heard() == []
        # What comes soon after is told together, and the server is asked for its list as seldom.
        await peer.call(tool("old_http", "change"), {"kind": "prompts"})
        await peer.hear("notifications/prompts/list_changed")
        assert await times_read(peer, "old_http", "prompts/list") - reads <= 6


async def times_read(peer: Peer, link: str, method: str) -> int:
    seen = (await peer.call(tool(link, "seen"))).result["structuredContent"]["messages"]
    return sum(one["method"] == method for one in seen)


@pytest.mark.parametrize("link", LINKS)
async def test_a_burst_of_changes_is_gathered_and_none_is_lost(fleet: Fleet, link: str) -> None:
    burst = [f"burst_{number:02}" for number in range(30)]
    async with fleet.peer("http-legacy") as peer:
        before = await names(peer)
        for _ in range(2):
            await asyncio.gather(*(peer.call(tool(link, "change"), {"kind": "tools", "name": name}) for name in burst))
            await peer.hear(CHANGED)
        async with asyncio.timeout(10):
            while await names(peer) != before:
                await peer.hear(CHANGED)
        assert sum(message.get("method") == CHANGED for message in peer.log) < len(burst)


async def test_a_session_without_a_stream_is_informed_when_it_opens_a_stream(fleet: Fleet) -> None:
    async with fleet.peer("http-legacy", stream=False) as peer, fleet.peer("http-legacy") as witness:
        for _ in range(2):
            await witness.call(tool("old_stdio", "change"), {"kind": "tools", "name": "unheard"})
            await witness.hear(CHANGED)
        assert peer.heard() == []
        await peer.listen()
        await peer.hear(CHANGED)
        assert peer.heard() == []


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_a_client_receives_nothing_before_its_greeting_and_no_older_change(tmp_path: Path, version: str) -> None:
    servers = {link: stdio_table(link_command(link)) for link in ("old_stdio", "new_stdio")}
    command = stdio_front(write_config(tmp_path, servers), tmp_path / "data")
    async with await StdioPeer.start(command, version) as peer:
        assert peer.log[0].get("result") == peer.greeting
        stop = await attend(peer, forget=False)
        await names(peer)
        for _ in range(2):
            await peer.call(tool("old_stdio", "change"), {"kind": "tools", "name": "late"})
            await peer.hear(CHANGED)
        assert peer.heard() == []
        await stop()


# Resources


async def touch(peer: Peer, link: str, own: str) -> None:
    await peer.call(tool(link, "touch"), {"uri": own})


@pytest.mark.parametrize(("front", "link"), LEGACY_CELLS)
async def test_a_subscriber_receives_its_resource_until_it_unsubscribes(fleet: Fleet, front: str, link: str) -> None:
    text, blob = uri(link, "raw://text"), uri(link, "raw://blob")
    async with fleet.peer(front) as peer:
        assert (await peer.request("resources/subscribe", {"uri": text})).result == {}
        await touch(peer, link, "raw://blob")
        await touch(peer, link, "raw://text")
        assert (await peer.hear(UPDATED))["params"] == {"uri": text}
        assert (await peer.request("resources/subscribe", {"uri": blob})).result == {}
        assert (await peer.request("resources/unsubscribe", {"uri": text})).result == {}
        await touch(peer, link, "raw://text")
        await touch(peer, link, "raw://blob")
        assert (await peer.hear(UPDATED))["params"] == {"uri": blob}
        assert (await peer.request("resources/unsubscribe", {"uri": blob})).result == {}
        assert peer.heard(UPDATED) == []


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_two_subscribers_share_one_subscription_at_the_server(fleet: Fleet, link: str) -> None:
    item = uri(link, "raw://item/shared")
    async with fleet.peer("http-legacy") as first, fleet.peer("sse-legacy") as second:
        for peer in (first, second):
            await peer.request("resources/subscribe", {"uri": item})
        await touch(first, link, "raw://item/shared")
        for peer in (first, second):
            assert (await peer.hear(UPDATED))["params"] == {"uri": item}
        await first.request("resources/unsubscribe", {"uri": item})
        await touch(first, link, "raw://item/shared")
        assert (await second.hear(UPDATED))["params"] == {"uri": item}
        await second.request("resources/unsubscribe", {"uri": item})
        seen = (await first.call(tool(link, "seen"))).result["structuredContent"]["messages"]
        said = [
            one["method"] for one in seen if one["text"].count("raw://item/shared") and one["method"] != "tools/call"
        ]
        assert said == ["resources/subscribe", "resources/unsubscribe"]
        assert first.heard(UPDATED) == []


@pytest.mark.parametrize("front", ["http-legacy", "sse-legacy", "stdio-legacy"])
async def test_subscribing_to_an_unknown_resource_is_refused(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        for method in ("resources/subscribe", "resources/unsubscribe"):
            assert (await peer.request(method, {"uri": "mcpax://nowhere/raw://text"})).error["code"] == -32002
            assert (await peer.request(method, {"uri": 7})).error["code"] == -32602


# subscriptions/listen


@pytest.mark.parametrize("request_id", ['"an id é"', "12345678901"])
@pytest.mark.parametrize(("front", "link"), MODERN_CELLS)
async def test_a_listener_gets_what_it_asked_for_tagged_with_its_own_id(
    fleet: Fleet, front: str, link: str, request_id: str
) -> None:
    text = uri(link, "raw://text")
    tag = {SUBSCRIPTION: json.loads(request_id)}
    async with fleet.peer(front) as peer:
        ongoing = await listen(peer, {"resourceSubscriptions": [text]}, request_id)
        await peer.call(tool(link, "change"), {"kind": "tools", "name": "unasked"})
        await touch(peer, link, "raw://blob")
        await touch(peer, link, "raw://text")
        assert (await peer.hear(UPDATED))["params"] == {"uri": text, "_meta": tag}
        changes = await listen(peer, {"toolsListChanged": True})
        await peer.call(tool(link, "change"), {"kind": "tools", "name": "unasked"})
        assert (await peer.hear(CHANGED))["params"] == {"_meta": {SUBSCRIPTION: json.loads(changes.id)}}
        assert peer.heard() == []
        await peer.cancel(ongoing)
        await touch(peer, link, "raw://text")
        await peer.call(tool(link, "change"), {"kind": "tools", "name": "marker"})
        await peer.hear(CHANGED)
        await peer.call(tool(link, "change"), {"kind": "tools", "name": "marker"})
        await peer.hear(CHANGED)
        assert peer.heard() == []
        await peer.cancel(changes)


@pytest.mark.parametrize("front", MODERN_FRONTS)
async def test_an_unknown_resource_is_left_out_of_what_is_acknowledged(fleet: Fleet, front: str) -> None:
    text = uri("new_http", "raw://text")
    async with fleet.peer(front) as peer:
        wanted = {"resourceSubscriptions": ["mcpax://nowhere/raw://text", text], "toolsListChanged": True}
        ongoing = peer.begin("subscriptions/listen", {"notifications": wanted})
        acknowledged = await peer.hear(ACKNOWLEDGED)
        assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": [text], "toolsListChanged": True}
        await peer.cancel(ongoing)
        for bad in ({}, {"notifications": []}, {"notifications": {"resourceSubscriptions": "raw://text"}}):
            assert (await peer.request("subscriptions/listen", bad)).error["code"] == -32602


async def test_a_listener_outlives_the_subscription_its_server_ends(fleet: Fleet) -> None:
    link = "new_http"
    async with fleet.peer("http-modern") as peer:
        listens = await times_read(peer, link, "subscriptions/listen")
        stop = await attend(peer)
        await peer.call(tool(link, "hang_up"))
        async with asyncio.timeout(10):
            while await times_read(peer, link, "subscriptions/listen") == listens:
                pass
        for _ in range(2):
            await peer.call(tool(link, "change"), {"kind": "tools", "name": "after"})
            await peer.hear(CHANGED)
        await stop()
