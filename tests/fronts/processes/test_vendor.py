"""What no revision of MCP has: does it pass within an era, to whom it concerns and to nobody else?"""

import asyncio
import json
from typing import Any

import pytest
from tests.fronts.processes.test_notices import attend
from tests.servers.rawserver.text import members
from tests.support.fleet import CROSS_ERA, LEGACY_LINKS, LINKS, MODERN_LINKS, SAME_ERA, Fleet, era, tool
from tests.support.mcp_judge import VENDOR as EVENT
from tests.support.peers import Peer

pytestmark = pytest.mark.asyncio(loop_scope="session")

PARAMS = '{"z":1.0,"a":{"n":1208925819614629174706175,"e":{}}}'
FEATURE = {"n": 1.0, "a": []}


async def seen(peer: Peer, name: str) -> list[Any]:
    found: list[Any] = (await peer.call(name)).result["structuredContent"]["messages"]
    return found


def told(method: str, **more: Any) -> str:
    pairs = "".join(f',"{key}":{json.dumps(value)}' for key, value in more.items())
    return f'{{"method":"{method}","params":{PARAMS}{pairs}}}'


@pytest.mark.parametrize(("front", "link"), SAME_ERA)
async def test_notifications_during_a_call_arrive_before_its_result(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        reply = await peer.call(tool(link, "tell"), told(EVENT))
        (heard,) = peer.before(reply, EVENT)
        assert heard["params"] == json.loads(PARAMS)


@pytest.mark.parametrize(("front", "link"), CROSS_ERA)
async def test_a_vendor_message_does_not_pass_into_the_other_era(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        assert (await peer.call(tool(link, "tell"), told(EVENT))).result["content"][0]["text"] == "told"
        assert peer.heard(EVENT) == []


@pytest.mark.parametrize(
    "method", ["tools/call", "sampling/createMessage", "notifications/mcpax/subserver_lost", "ping"]
)
async def test_a_request_without_an_id_is_no_notification_of_a_vendors(fleet: Fleet, method: str) -> None:
    async with fleet.peer("http-legacy") as peer:
        await peer.call(tool("old_http", "tell"), told(method))
        assert peer.heard() == []


@pytest.mark.parametrize("link", LINKS)
async def test_messages_without_a_call_reach_clients_of_that_server_and_era(fleet: Fleet, link: str) -> None:
    front, other = ("http-modern", "http-legacy") if era(link) == "modern" else ("http-legacy", "http-modern")
    elsewhere = next(one for one in LINKS if one != link and era(one) == era(link))
    async with (
        fleet.peer(front) as peer,
        fleet.peer(front) as second,
        fleet.peer(other) as foreign,
        fleet.peer(front, path=f"/only/{elsewhere}") as apart,
    ):
        stops = [await attend(one) for one in (peer, second, foreign, apart)]
        await peer.call(tool(link, "tell_all"), told(EVENT))
        for one in (peer, second):
            params = (await one.hear(EVENT))["params"]
            assert {key: value for key, value in params.items() if key != "_meta"} == json.loads(PARAMS)
            assert ("_meta" in params) is one.modern
        for one in (foreign, apart):
            await one.request("tools/list")
            assert one.heard(EVENT) == []
        for stop in stops:
            await stop()


async def test_many_are_informed_without_a_loss(fleet: Fleet) -> None:
    async with fleet.peer("http-legacy") as peer:
        await peer.call(tool("old_http", "tell_all"), told(EVENT, times=200))
        assert len([await peer.hear(EVENT) for _ in range(200)]) == 200


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_clients_notification_reaches_the_one_server_it_sees(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-legacy", path=f"/only/{link}") as peer:
        meta = '{"com.example/k":{ "n":1.0 },"x-api-key":"sk-1","x-mcpax-route":[]}'
        await peer.notify("notifications/com.example/did", f'{{"_meta":{meta},"n":1.0}}')
        await peer.notify("tools/call", '{"name":"echo","arguments":{}}')
        await peer.notify("com.example/do", "{}")
        await peer.notify("notifications/progress", '{"progressToken":1,"progress":1}')
        async with asyncio.timeout(10):
            while not (found := [one for one in await seen(peer, "seen") if "com.example/did" in one["text"]]):
                pass
        assert members(members(found[0]["text"])["params"]) == {"_meta": '{"com.example/k":{ "n":1.0 }}', "n": "1.0"}
        later = [one for one in await seen(peer, "seen") if one["id"] is None]
        assert not [one for one in later if one["method"] in ("tools/call", "com.example/do")]


async def test_of_several_servers_none_learns_what_may_be_meant_for_another(fleet: Fleet) -> None:
    async with fleet.peer("http-legacy") as peer:
        await peer.notify("notifications/com.example/whose", "{}")
        for link in LEGACY_LINKS:
            assert not [one for one in await seen(peer, tool(link, "seen")) if "example/whose" in one["text"]]


@pytest.mark.parametrize("front", ["http-legacy", "http-modern"])
async def test_experimental_capabilities_of_servers_are_offered_within_their_era(fleet: Fleet, front: str) -> None:
    links = LEGACY_LINKS if front == "http-legacy" else MODERN_LINKS
    ours = {"dev.interlock/ax": {}} if front == "http-legacy" else {}
    async with fleet.peer(front) as peer:
        offered = peer.greeting["capabilities"]["experimental"]
        assert offered == {f"{link}/com.example/feature": FEATURE for link in links} | ours
    async with fleet.peer(front, path=f"/only/{links[0]}") as peer:
        assert peer.greeting["capabilities"]["experimental"] == {"com.example/feature": FEATURE} | ours
    other = MODERN_LINKS[0] if front == "http-legacy" else LEGACY_LINKS[0]
    async with fleet.peer(front, path=f"/only/{other}") as peer:
        assert peer.greeting["capabilities"].get("experimental", {}) == ours
