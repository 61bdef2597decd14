"""Does what a server says reach the client as the bytes it was said in, and the other way round?

One corpus is sent to a server directly and to the same kind of server through a node, by the same clients.
"""

import asyncio
import json
from collections.abc import Iterator

import pytest
import pytest_asyncio
from tests.servers.rawserver.text import array, members, reading_deeply, string
from tests.support.corpus import Behind, Place, corpus
from tests.support.fleet import CROSS_ERA, FRONTS, LINKS, SAME_ERA, Fleet, era, tool
from tests.support.json_cutting import elements
from tests.support.peers import Peer

pytestmark = pytest.mark.asyncio(loop_scope="session")

Outcomes = dict[str, str]


@pytest.fixture(scope="module", autouse=True)
def reads_deeply() -> Iterator[None]:
    with reading_deeply():
        yield


async def outcomes(peer: Peer, place: Place) -> Outcomes:
    return {
        label: (await peer.request(method, params(place))).outcome_text for label, (method, params) in corpus().items()
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def direct(fleet: Fleet) -> dict[str, Outcomes]:
    """What each server answers when nobody stands between."""
    found = {}
    for link in LINKS:
        async with fleet.directly(link) as peer:
            found[link] = await outcomes(peer, Place())
    return found


def different(direct: Outcomes, through: Outcomes) -> dict[str, tuple[str, str]]:
    assert direct.keys() == through.keys()
    return {label: (direct[label], through[label]) for label in direct if direct[label] != through[label]}


@pytest.mark.parametrize(("front", "link"), SAME_ERA)
async def test_every_answer_is_byte_equal_to_the_servers_own(
    fleet: Fleet, direct: dict[str, Outcomes], front: str, link: str
) -> None:
    async with fleet.peer(front) as peer:
        peer.judged = False  # some of these results keep to no schema, directly as little as here
        try:
            through = await outcomes(peer, Behind(link))
        finally:
            peer.judged = True
    assert different(direct[link], through) == {}


@pytest.mark.parametrize(("front", "link"), CROSS_ERA)
async def test_across_eras_only_the_members_that_differ_are_touched(
    fleet: Fleet, direct: dict[str, Outcomes], front: str, link: str
) -> None:
    async with fleet.peer(front) as peer:
        peer.judged = False
        try:
            through = await outcomes(peer, Behind(link))
        finally:
            peer.judged = True
    expected = {label: list(translated(text, label, link, front).items()) for label, text in direct[link].items()}
    assert {
        label: (expected[label], text)
        for label, text in through.items()
        if expected[label] != list(members(text).items())
    } == {}


def with_object_alone(said: dict[str, str]) -> dict[str, str]:
    """Before 2026-07-28 structuredContent is an object; anything else is told as text."""
    value = said.get("structuredContent")
    if value is None or value.startswith("{"):
        return said
    content = array([*elements(said["content"]), f'{{"type":"text","text":{string(value)}}}'])
    return {**{key: one for key, one in said.items() if key != "structuredContent"}, "content": content}


def translated(text: str, label: str, link: str, front: str) -> dict[str, str]:
    """The server's answer as the other era says it, member by member."""
    said = members(text)
    if "code" in said and "message" in said:
        code = said["code"]
        if label.startswith("read"):
            code = "-32602" if era(front) == "modern" else "-32002"
        return {**said, "code": code}
    if era(front) == "legacy":
        said = {key: value for key, value in said.items() if key not in ("resultType", "ttlMs", "cacheScope")}
        return with_object_alone(said)
    said = {"resultType": '"complete"', **said}
    return {**said, "ttlMs": "0", "cacheScope": '"private"'} if label.startswith("read") else said


@pytest.mark.parametrize(("front", "link"), SAME_ERA)
async def test_params_reach_the_server_as_the_client_wrote_them(fleet: Fleet, front: str, link: str) -> None:
    arguments = '{ "z":1.0,"a":99999999999999999999999999, "é":"\\u00e9\\/" ,"e":{}}'
    params = f'{{"x-first":{{ "b":1,"a":[] }},"name":"{tool(link, "echo")}","arguments":{arguments},"x-last":1e2}}'
    vendor = '{"com.example/k":{ "n":18446744073709551616,"e":{} },"traceparent":"00-0-0-00"}'
    async with fleet.peer(front) as peer:
        await peer.request("tools/call", params, meta=vendor)
        seen = (await peer.call(tool(link, "seen"))).result["structuredContent"]["messages"]
    call = next(members(one["text"])["params"] for one in reversed(seen) if "x-first" in one["text"])
    arrived = members(call)
    assert [key for key in arrived if key != "_meta"] == ["x-first", "name", "arguments", "x-last"]
    assert {key: arrived[key] for key in ("x-first", "arguments", "x-last")} == {
        "x-first": '{ "b":1,"a":[] }',
        "arguments": arguments,
        "x-last": "1e2",
    }
    assert arrived["name"] == '"echo"'
    meta = members(arrived["_meta"])
    assert meta["com.example/k"] == '{ "n":18446744073709551616,"e":{} }'
    assert meta["traceparent"] == '"00-0-0-00"'


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("front", ["http-legacy", "http-modern", "sse-legacy"])
async def test_a_request_written_over_several_lines_reaches_every_kind_of_server(
    fleet: Fleet, front: str, link: str
) -> None:
    arguments = '{\n  "case": "plain",\r\n  "a": [\n    1,\n    {}\n  ],\n  "é": "\\n"\n}'
    async with fleet.peer(front) as peer:
        await peer.request("tools/call", f'{{\n"name": "{tool(link, "exact")}",\n"arguments": {arguments}\n}}')
        seen = (await peer.call(tool(link, "seen"))).result["structuredContent"]["messages"]
    call = json.loads(next(one["text"] for one in reversed(seen) if '"exact"' in one["text"]))
    assert call["params"]["arguments"] == {"case": "plain", "a": [1, {}], "é": "\n"}


IDS = ('"é \\u00e9 \\/ \\""', '""', "0", "-1", "123456789012345678901234567890", '"1"', '"null"', "1.0", "-2E3")
LONG_IDS = ('"' + "x" * 60_000 + '"', "7" * 4000)


@pytest.mark.parametrize("front", FRONTS)
async def test_an_id_comes_back_as_it_was_written(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        for request_id in (*IDS, *LONG_IDS):
            for link in LINKS[:: 1 if request_id in IDS else 3]:
                reply = await peer.call(tool(link, "echo"), {"a": 1}, request_id=request_id)
                assert members(reply.text)["id"] == request_id
                assert reply.result["structuredContent"] == {"a": 1}
            for method, params in (("tools/list", {}), ("tools/call", {"name": "no.such"})):
                reply = await peer.request(method, params, request_id=request_id)
                assert members(reply.text)["id"] == request_id


@pytest.mark.parametrize("link", LINKS)
async def test_a_client_of_one_server_lists_and_calls_the_servers_own_names(fleet: Fleet, link: str) -> None:
    async with fleet.directly(link) as peer:
        own = [one["name"] for one in (await peer.request("tools/list")).result["tools"]]
    for front in ("http-legacy", "http-modern"):
        async with fleet.peer(front, path=f"/only/{link}") as peer:
            listed = [one["name"] for one in (await peer.request("tools/list")).result["tools"]]
            assert sorted(listed) == sorted(own)
            assert (await peer.call("echo", '{"a":1}')).result["structuredContent"] == {"a": 1}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("front", ["http-legacy", "http-modern"])
async def test_a_dropped_connection_means_what_it_means_in_the_clients_era(fleet: Fleet, front: str, link: str) -> None:
    """Legacy: the call goes on, and is cancelled by a notification. Modern: it is cancelled."""
    async with fleet.peer(front) as peer, fleet.peer("http-modern") as other:

        async def waiting() -> list[str]:
            found: list[str] = (await other.call(tool(link, "waiting"))).result["structuredContent"]["ids"]
            return found

        before = await waiting()
        ongoing = peer.begin_call(tool(link, "wait"))
        async with asyncio.timeout(10):
            while len(await waiting()) == len(before):
                pass
            await peer.hang_up(ongoing)
            if not peer.modern:
                assert len(await waiting()) == len(before) + 1
                await peer.notify("notifications/cancelled", f'{{"requestId":{ongoing.id}}}')
            while len(await waiting()) != len(before):
                pass
