"""Roots: can a client move what a server may touch? Only for itself, and inside what the operator allows."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.rawserver.text import members, prepend
from tests.servers.start import raw, serving
from tests.support.authority import authority
from tests.support.fleet import (
    CAPABLE,
    FRONTS,
    LEGACY_CELLS,
    LEGACY_FRONTS,
    LEGACY_LINKS,
    MODERN_LINKS,
    Fleet,
    for_all,
    stdio_front,
    stdio_table,
    tool,
)
from tests.support.node_process import RunningNode, running_node
from tests.support.oauth_consent import give_consent, visit
from tests.support.peers import HttpPeer, Peer, SsePeer, StdioPeer, call_text

READING = Path(__file__).resolve().parents[2] / "servers" / "reading.py"
SHOP = {"roots": [{"uri": "file:///srv/shop", "name": "shop"}]}
NORTH = {"uri": "file:///srv/shop/north", "name": "north", "x-own": 18446744073709551616}
OUTSIDE = [
    "file:///etc",
    "file:///srv/shop/../../etc",
    "file:///srv/shop/%2e%2e/x",
    "file://else/srv/shop",
    "http://x/",
]


def recorded(node: RunningNode) -> list[Any]:
    records, page = [], node.admin("/admin/audit?limit=1000")
    while page["records"]:
        records += page["records"]
        page = node.admin(f"/admin/audit?limit=1000&after={records[-1]['seq']}")
    return [record for record in records if record["method"] == "roots/list"]


# A server that takes roots for its boundary


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    place = tmp_path_factory.mktemp("given")
    (place / "note.txt").write_text("a note")
    folder = tmp_path_factory.mktemp("reader")
    servers = {"files": for_all(stdio_table([sys.executable, str(READING), str(place)]))}
    with running_node(folder, servers, '[auth]\nanonymous = "loopback"\n') as node:
        node.wait_link("files", {"state": "ready"})
        yield node


async def connected(node: RunningNode, front: str) -> Peer:
    if front == "stdio-legacy":
        return await StdioPeer.start(stdio_front(node.config, node.data), "2025-11-25", CAPABLE)
    if front == "sse-legacy":
        return await SsePeer.legacy(f"{node.url}/sse", CAPABLE)
    token = node.admin("/admin/tokens", "POST", {"name": f"r{id(front)}", "for": "client", "scope": "read"})["token"]
    peer = await HttpPeer.legacy(f"{node.url}/mcp", CAPABLE, token=token)
    await peer.listen()
    return peer


@pytest.mark.parametrize("front", LEGACY_FRONTS)
async def test_a_clients_roots_do_not_move_what_a_shared_server_may_touch(reader: RunningNode, front: str) -> None:
    async with await connected(reader, front) as peer:
        peer.answers["roots/list"] = lambda params: {"roots": [{"uri": "file:///etc"}]}
        before = (await peer.call("files__folders")).result["structuredContent"]
        (given,) = before["folders"]
        await peer.notify("notifications/roots/list_changed")
        assert (await peer.call("files__read", {"path": "/etc/hostname"})).result["isError"] is True
        assert (await peer.call("files__folders")).result["structuredContent"] == before
        assert (await peer.call("files__read", {"path": f"{given}/note.txt"})).result["content"][0]["text"] == "a note"
        assert peer.asked == []
    assert recorded(reader) == []


# What every shared server of the older revisions is told, whoever calls


@pytest.mark.parametrize(("front", "link"), [*LEGACY_CELLS, *((f, link) for f in FRONTS[3:] for link in LEGACY_LINKS)])
@pytest.mark.asyncio(loop_scope="session")
async def test_roots_of_a_shared_server_are_the_operators(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        peer.answers["roots/list"] = lambda params: {"roots": [{"uri": "file:///etc"}]}
        reply = await peer.call(tool(link, "ask"), {"method": "roots/list", "params": {}, "rounds": 2})
        assert reply.result["structuredContent"]["answers"] == [SHOP] * 2
        assert peer.asked == []


@pytest.mark.parametrize("front", LEGACY_FRONTS)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_shared_server_does_not_learn_that_a_clients_roots_changed(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        await peer.notify("notifications/roots/list_changed")
        for link in LEGACY_LINKS:
            seen = (await peer.call(tool(link, "seen"))).result["structuredContent"]["messages"]
            assert [one for one in seen if one["method"] == "notifications/roots/list_changed"] == []


# 2026-07-28: roots belong to one request; they reach the server only inside of what the operator allows


@pytest.mark.parametrize("link", MODERN_LINKS)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_request_brings_only_roots_that_the_operator_allows(fleet: Fleet, link: str) -> None:
    before = len(recorded(fleet.node))
    async with fleet.peer("http-modern") as peer:
        params = call_text(tool(link, "ask"), {"method": "roots/list", "params": {}, "rounds": 1})
        first = await peer.request("tools/call", params)
        assert first.result["inputRequests"]["one"]["method"] == "roots/list"
        roots = {"roots": [{"uri": uri} for uri in OUTSIDE] + [NORTH], "x-more": 1}
        responses = json.dumps({"one": roots, "two": {"action": "decline"}})
        given = [("inputResponses", responses), ("requestState", members(first.result_text)["requestState"])]
        second = await peer.request("tools/call", prepend(given, params))
        told = second.result["structuredContent"]["inputResponses"]
        assert told == {"one": {"roots": [NORTH], "x-more": 1}, "two": {"action": "decline"}}
    *_, record = recorded(fleet.node)
    assert len(recorded(fleet.node)) == before + 1
    assert (record["who"], record["tool"], record["verdict"]) == ("local", link, "admitted")
    assert (record["roots"], record["withheld"]) == ([NORTH["uri"]], OUTSIDE)


@pytest.mark.parametrize(
    "responses", ['{"one":{"\\u0072oots":[{"uri":"file:///etc"}]}}', '{"a":{"roots":[{"uri":"file:///etc"}]},"a":{}}']
)
@pytest.mark.asyncio(loop_scope="session")
async def test_roots_are_found_however_they_are_spelled_and_whether_or_not_they_were_asked_for(
    fleet: Fleet, responses: str
) -> None:
    async with fleet.peer("http-modern") as peer:
        state = '"opaque \\u00e9 \\u005c state 1"'
        params = call_text(tool("new_http", "ask"), {"method": "elicitation/create"})
        reply = await peer.request(
            "tools/call", prepend([("requestState", state), ("inputResponses", responses)], params)
        )
        assert "/etc" not in reply.text


@pytest.mark.parametrize("link", MODERN_LINKS)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_legacy_client_brings_only_roots_that_the_operator_allows(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-legacy") as peer:
        peer.answers["roots/list"] = lambda params: {"roots": [{"uri": "file:///etc"}, NORTH]}
        reply = await peer.call(tool(link, "ask"), {"method": "roots/list", "params": {}, "rounds": 1})
        assert reply.result["structuredContent"]["inputResponses"] == {"one": {"roots": [NORTH]}}
    *_, record = recorded(fleet.node)
    assert (record["tool"], record["roots"], record["withheld"]) == (link, [NORTH["uri"]], ["file:///etc"])


# A session of the user's own


async def test_a_users_own_session_receives_that_users_roots_within_the_allowed_roots(tmp_path: Path) -> None:
    with (
        authority() as corp,
        serving(raw("all", "--era", "legacy", "--guard", corp.url)) as url,
        running_node(
            tmp_path,
            {"crm": {"url": url, "auth": {"per": "user"}, "roots": ["/srv/shop"]}},
            '[auth]\nanonymous = "never"\n[gate]\nmode = "open"\n',
        ) as node,
    ):
        give_consent(node, "crm", "the operator")
        peers = {}
        for name in ("ada", "bob"):
            token = node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})["token"]
            peer = peers[name] = await HttpPeer.legacy(f"{node.url}/mcp", CAPABLE, token=token)
            await peer.listen()
            refused = (await peer.call("crm__echo")).error
            assert visit(refused["data"]["url"], name).status == 200
        peers["ada"].answers["roots/list"] = lambda params: {"roots": [{"uri": "file:///etc"}, NORTH]}
        async with peers["ada"] as ada, peers["bob"] as bob:
            reply = await ada.call("crm__ask", {"method": "roots/list", "params": {}, "rounds": 1})
            assert reply.result["structuredContent"]["answers"] == [{"roots": [NORTH]}]
            assert bob.asked == []
            (record,) = recorded(node)
            assert (record["who"], record["roots"], record["withheld"]) == (
                "client:ada",
                [NORTH["uri"]],
                ["file:///etc"],
            )
            await bob.call("crm__echo")
            await ada.notify("notifications/roots/list_changed")
            seen = (await ada.call("crm__seen")).result["structuredContent"]["messages"]
            assert sum(one["method"] == "notifications/roots/list_changed" for one in seen) == 1
