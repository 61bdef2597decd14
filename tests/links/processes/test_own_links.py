"""Links of one's own: does each client have its own state and its own questions, and does the number stay bounded?"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.fleet import CAPABLE, stdio_table
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.peers import HttpPeer, Peer

CLIENTS = 8
FORM = {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {"c": {"type": "string"}}}}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 9}
MINE = {"elicitation/create": lambda who: {"action": "accept", "content": {"c": who}}}
MINE["sampling/createMessage"] = lambda who: {
    "role": "assistant",
    "model": "m",
    "content": {"type": "text", "text": who},
}


def server(*features: str, name: str = "raw", **keys: Any) -> dict[str, Any]:
    return {**stdio_table(raw(",".join(features or ("all",)), "--era", "legacy", "--name", name)), **keys}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {
        "own": server("all", "tasks", share="session", roots=["/srv/shop"]),
        "auto": server(),
        "thinking": server("all", name="sequential-thinking-server"),
        "each": server(share="principal"),
        "few": server(share="session", max_processes=2, idle_timeout_s=1),
        "one": server(share="node"),
    }
    with running_node(tmp_path_factory.mktemp("own"), servers, "[limits]\nown_processes = 20\n") as node:
        for segment in servers:
            node.wait_link(segment, {"state": "ready"})
        yield node


@contextlib.asynccontextmanager
async def clients(
    node: RunningNode, count: int, capabilities: Any = CAPABLE, **options: Any
) -> AsyncIterator[list[Any]]:
    """Sessions that end as they should."""
    peers = [await HttpPeer.legacy(f"{node.url}/mcp", capabilities, **options) for _ in range(count)]
    for peer in peers:
        await peer.listen()
    try:
        yield peers
    finally:
        for peer in peers:
            assert await peer.end() in (200, 204)
            await peer.close()
            peer.assert_clean()


async def own(node: RunningNode, segment: str) -> list[Any]:
    return (await asyncio.to_thread(node.link, segment))["own"]


async def until_gone(node: RunningNode, segment: str, left: int = 0) -> None:
    await asyncio.to_thread(wait_for, lambda: len(node.link(segment)["own"]) == left)


async def process(peer: Peer, segment: str) -> Any:
    return (await peer.call(f"{segment}__seen")).result["structuredContent"]["process"]


async def interview(peers: list[Any], segment: str, method: str) -> None:
    """All are asked before any has answered; each must hear its own question, and its server its own answer."""
    asked = FORM if method == "elicitation/create" else SAMPLE
    calls = []
    for number, peer in enumerate(peers):
        params = {**asked, "_meta": {"com.example/who": f"{segment} {number}"}}
        calls.append(peer.begin_call(f"{segment}__ask", {"method": method, "params": params}))
    questions = [await peer.hear(method) for peer in peers]
    said = [question["params"]["_meta"]["com.example/who"] for question in questions]
    assert said == [f"{segment} {number}" for number in range(len(peers))]
    for peer, question, who in reversed(list(zip(peers, questions, said, strict=True))):
        await peer.respond(question["id"], MINE[method](who))
    for call, who in zip(calls, said, strict=True):
        assert (await call.reply()).result["structuredContent"]["answers"] == [MINE[method](who)]


@pytest.mark.parametrize("method", MINE)
async def test_every_client_that_is_asked_at_once_receives_its_own_question(node: RunningNode, method: str) -> None:
    async with clients(node, CLIENTS) as peers:
        await interview(peers, "own", method)
        assert {one["per"] for one in await own(node, "own")} == {"session"}
        assert len({one["pid"] for one in await own(node, "own")}) == CLIENTS
    await until_gone(node, "own")


async def test_a_server_is_shared_until_it_asks_and_then_gives_each_session_its_own(node: RunningNode) -> None:
    async with clients(node, 3) as peers:
        first = [(await peer.call("auto__seen")).result["structuredContent"] for peer in peers]
        assert len({one["process"]["pid"] for one in first}) == 1
        assert await own(node, "auto") == []
        await interview(peers[:1], "auto", "elicitation/create")  # alone: it is plain whom it asks
        await interview(peers, "auto", "elicitation/create")
        shown = await asyncio.to_thread(node.link, "auto")
        assert (len(shown["own"]), shown["own_because"]) == (3, "it asks for elicitation")
        async with clients(node, 2, {}) as unable:  # those that cannot be asked share one that is not told otherwise
            seen = [(await peer.call("auto__seen")).result["structuredContent"] for peer in unable]
            assert len({one["process"]["pid"] for one in seen}) == 1
            assert [one["offered"] for one in seen] == [{"roots": {"listChanged": True}}] * 2
            assert "elicitation" in first[0]["offered"]
            assert [one["per"] for one in await own(node, "auto")].count("capabilities") == 1


async def test_calls_without_a_session_that_are_asked_at_once_are_each_asked_their_own(node: RunningNode) -> None:
    peer = await HttpPeer.modern_(f"{node.url}/mcp", CAPABLE)
    async with clients(node, 1) as peers, peer:
        await interview(peers, "auto", "elicitation/create")  # known to ask
        calls = [
            peer.begin_call("auto__ask", {"method": "elicitation/create", "params": {**FORM, "message": f"modern {n}"}})
            for n in range(3)
        ]
        for number, call in enumerate(calls):
            (question,) = (await call.reply()).result["inputRequests"].values()
            assert question["params"]["message"] == f"modern {number}"
        before = len(await own(node, "auto"))
        for _ in range(3):  # a call that waits for its client is no reason for another process
            reply = await peer.call("auto__ask", {"method": "elicitation/create", "params": FORM})
            assert reply.result["resultType"] == "input_required"
        assert len(await own(node, "auto")) == before


async def test_a_server_known_to_keep_state_keeps_it_apart(node: RunningNode) -> None:
    async with clients(node, 2, {}) as (ada, bob):
        pids = {(await process(peer, "thinking"))["pid"] for peer in (ada, bob)}
        assert len(pids) == 2
        await ada.call("thinking__echo")
        seen = (await bob.call("thinking__seen")).result["structuredContent"]["messages"]
        assert [one["method"] for one in seen].count("tools/call") == 2
        assert (await asyncio.to_thread(node.link, "thinking"))[
            "own_because"
        ] == "it counts the thoughts of one conversation"
    await until_gone(node, "thinking")


async def test_sessions_of_one_principal_may_share_what_no_other_principal_does(node: RunningNode) -> None:
    made = await asyncio.to_thread(node.admin, "/admin/tokens", "POST", {"name": "eve", "for": "client"})
    async with clients(node, 2) as (one, two), clients(node, 1, token=made["token"]) as (eve,):
        pids = [(await process(peer, "each"))["pid"] for peer in (one, two, eve)]
        assert pids[0] == pids[1] != pids[2]
        assert {link["principal"] for link in await own(node, "each")} == {"local", "client:eve"}


async def test_the_end_of_a_session_ends_its_process_and_no_other(node: RunningNode) -> None:
    async with clients(node, 1) as (stays,):
        async with clients(node, 1) as (goes,):
            pids = [(await process(peer, "own"))["pid"] for peer in (stays, goes)]
        await until_gone(node, "own", left=1)
        await asyncio.to_thread(wait_for, lambda: not alive(pids[1]))
        assert (await process(stays, "own"))["pid"] == pids[0]


async def test_a_process_that_crashes_takes_the_calls_of_its_session_alone(node: RunningNode) -> None:
    async with clients(node, 2) as (ada, bob):
        pids = [(await process(peer, "own"))["pid"] for peer in (ada, bob)]
        lost, kept = ada.begin_call("own__wait"), bob.begin_call("own__wait")
        await asyncio.to_thread(wait_for, lambda: [one["in_flight"] for one in node.link("own")["own"]] == [1, 1])
        os.kill(pids[0], signal.SIGKILL)
        assert (await lost.reply()).error["data"]["outcome"] == "unknown"
        assert not kept.future.done()
        assert (await process(ada, "own"))["pid"] not in pids
        assert (await process(bob, "own"))["pid"] == pids[1]
        await bob.cancel(kept)
        link = await asyncio.to_thread(node.link, "own")
        assert (link["state"], link["restarts"]) == ("ready", 0)  # the shared one


async def test_a_server_with_all_its_own_links_in_use_refuses_until_a_link_is_idle(node: RunningNode) -> None:
    async with clients(node, 3) as peers:
        waiting = [peer.begin_call("few__wait") for peer in peers[:2]]
        await asyncio.to_thread(wait_for, lambda: len(node.link("few")["own"]) == 2)
        error = (await peers[2].call("few__echo")).error
        assert (error["code"], error["data"]["reason"], error["data"]["limit"]) == (-32002, "own_links_full", 2)
        for peer, call in zip(peers, waiting, strict=False):
            await peer.cancel(call)
        await until_gone(node, "few")  # the idle time is a second
        await peers[2].call("few__echo")
        assert len(await own(node, "few")) == 1


async def test_a_thousand_sessions_start_no_more_processes_than_are_allowed(node: RunningNode) -> None:
    def besiege() -> None:
        sessions = []
        with Wire(node) as wire:
            for _ in range(1000):
                wire.initialize(CAPABLE)
                sessions.append(wire.session)
            assert node.link("few")["own"] == []
            refused = 0
            for wire.session in sessions[:30]:
                message = wire.legacy("tools/call", {"name": "few__echo", "arguments": {}}).message
                refused += message.get("error", {}).get("data", {}).get("reason") == "own_links_full"
                assert len(node.link("few")["own"]) <= 2
            assert refused >= 20
            for wire.session in sessions:
                wire.request("DELETE", wire.legacy_headers())

    await asyncio.to_thread(besiege)
    await until_gone(node, "few")


async def test_the_node_has_a_bound_for_all_servers_together(node: RunningNode) -> None:
    async with clients(node, 11) as peers:
        calls = [peer.begin_call(f"{segment}__wait") for peer in peers for segment in ("own", "thinking")]
        done, _ = await asyncio.wait([call.future for call in calls], timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert done.pop().result().error["data"] == {
            "reason": "own_links_full",
            "limit": 20,
            "outcome": "not_sent",
            "retry_after_ms": 60000,
        }
        links = (await asyncio.to_thread(node.admin, "/admin/links"))["links"]
        assert sum(len(link["own"]) for link in links) == 20
        for call in calls:
            if not call.future.done():
                await peers[calls.index(call) // 2].cancel(call)


async def test_everything_of_a_session_goes_over_its_own_link(node: RunningNode) -> None:
    async with clients(node, 2) as (ada, bob):
        for peer in (ada, bob):
            await peer.request("resources/subscribe", {"uri": "mcpax://own/raw://text"})
        await ada.request("logging/setLevel", {"level": "debug"})
        await ada.call("own__touch")
        assert (await ada.hear("notifications/resources/updated"))["params"]["uri"] == "mcpax://own/raw://text"
        await ada.call("own__log", {"level": "info", "data": "mine"})
        assert (await ada.hear("notifications/message"))["params"]["data"] == "mine"
        await bob.call("own__log", {"level": "info", "data": "his"})
        assert bob.heard("notifications/resources/updated", "notifications/message") == []
        reply = await ada.call("own__progress", {"steps": 2}, meta={"progressToken": "t"})
        assert [one["params"]["progress"] for one in ada.before(reply, "notifications/progress")] == [1, 2]
        ref = {"ref": {"type": "ref/prompt", "name": "own__greet"}, "argument": {"name": "who", "value": "a"}}
        assert (await ada.request("completion/complete", ref)).result["completion"]["values"] == ["a-one", "a-two"]
        waiting = ada.begin_call("own__wait")
        await asyncio.to_thread(wait_for, lambda: any(one["in_flight"] for one in node.link("own")["own"]))
        await ada.cancel(waiting)
        await until((lambda: cancelled(ada)), 1)
        assert await cancelled(bob) == 0
        await ada.request("resources/unsubscribe", {"uri": "mcpax://own/raw://text"})
        await ada.call("own__touch")
        assert ada.heard("notifications/resources/updated") == []


async def test_a_list_that_changes_in_one_process_is_announced_to_its_session(node: RunningNode) -> None:
    async with clients(node, 2) as (ada, bob):
        await bob.call("own__echo")
        for _ in range(3):
            await ada.call("own__change", {"kind": "prompts"})
        await ada.hear("notifications/prompts/list_changed")
        await bob.call("own__echo")
        assert bob.heard("notifications/prompts/list_changed") == []


async def test_a_task_lives_where_it_was_made_and_equal_ids_are_distinguished(node: RunningNode) -> None:
    async with clients(node, 2) as peers:
        made = [
            (await peer.request("tools/call", {"name": "own__job", "arguments": {}, "task": {"ttl": 60000}})).result
            for peer in peers
        ]
        ids = [one["task"]["taskId"] for one in made]
        assert ids[0] != ids[1]
        assert all(one.startswith("own.") for one in ids)
        for peer, task in zip(peers, ids, strict=True):
            assert (await peer.request("tasks/get", {"taskId": task})).result["taskId"] == task
            await peer.request("tasks/cancel", {"taskId": task})
            assert (await peer.request("tasks/get", {"taskId": task})).result["status"] == "cancelled"


async def test_a_session_tells_its_roots_to_its_own_process_within_what_the_operator_allows(node: RunningNode) -> None:
    async with clients(node, 2) as (ada, bob):
        ada.answers["roots/list"] = lambda _: {"roots": [{"uri": "file:///srv/shop/a"}, {"uri": "file:///etc"}]}
        bob.answers["roots/list"] = lambda _: {"roots": [{"uri": "file:///srv/shop/b"}]}
        for peer, root in ((ada, "file:///srv/shop/a"), (bob, "file:///srv/shop/b")):
            reply = await peer.call("own__ask", {"method": "roots/list", "params": {}})
            (answer,) = reply.result["structuredContent"]["answers"]
            assert [one["uri"] for one in answer["roots"]] == [root]
    records = (await asyncio.to_thread(node.admin, "/admin/audit?limit=1000"))["records"]
    of_roots = [one for one in records if one["method"] == "roots/list"]
    assert ["file:///etc"] in [one["withheld"] for one in of_roots]


async def test_a_process_learns_what_its_client_can_do(node: RunningNode) -> None:
    experimental = {"com.example/feature": {"a": 1}, "dev.interlock/ax": {}}
    async with clients(node, 1, {"sampling": {}, "experimental": experimental}) as (peer,):
        seen = (await peer.call("own.seen")).result["structuredContent"]["messages"]
        (greeting,) = [one["text"] for one in seen if one["method"] == "initialize"]
        offered = '{"sampling":{},"experimental":{"com.example/feature":{"a": 1}}}'
        assert f'"capabilities":{offered}' in greeting


async def test_status_shows_whose_process_each_is(node: RunningNode) -> None:
    async with clients(node, 1) as (peer,):
        pid = (await process(peer, "own"))["pid"]
        text = (await asyncio.to_thread(node.cli, "status", "own")).stdout
        assert f"process {pid}" in text
        assert "local" in text
        tree = (await asyncio.to_thread(node.cli, "status")).stdout
        assert "1 link of clients' own, of 1 principal" in tree
        assert "own+" not in tree


async def cancelled(peer: Peer) -> int:
    return len((await peer.call("own__cancelled")).result["structuredContent"]["ids"])


async def until(ask: Any, wanted: Any) -> None:
    async with asyncio.timeout(10):
        while await ask() != wanted:
            pass


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_items_of_a_batch_go_to_the_process_that_a_call_alone_goes_to(node: RunningNode) -> None:
    async with await HttpPeer.legacy(f"{node.url}/mcp/aql-single", CAPABLE) as peer:
        seen = {"operation": "own__seen"}
        for order in ((seen, {"operations": [seen]}), ({"operations": [seen]}, seen)):
            said = [(await peer.call("mcp_aql", asked)).result["structuredContent"] for asked in order]
            pids = {
                (one["results"][0]["result"] if "results" in one else one)["data"]["process"]["pid"] for one in said
            }
            assert len(pids) == 1
        assert await peer.end() in (200, 204)
    await until_gone(node, "own")
