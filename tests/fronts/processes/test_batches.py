"""Batches of MCP 2025-03-26, from clients on every kind of pipe and from servers; other revisions have none."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.servers.rawserver.text import members
from tests.servers.start import raw, serving
from tests.support.fleet import Fleet, bridge, stdio_table, tool
from tests.support.node_process import running_node
from tests.support.peers import HttpPeer, Peer, SsePeer, StdioPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

VERSION = "2025-03-26"
PIPES = ("http", "sse", "stdio")
LINKS = ("old_stdio", "old_http", "new_http")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def peers(fleet: Fleet) -> AsyncIterator[dict[str, Peer]]:
    """A client of that revision on each pipe."""
    url = fleet.node.url
    async with contextlib.AsyncExitStack() as stack:
        yield {
            "http": await stack.enter_async_context(await HttpPeer.legacy(f"{url}/mcp", version=VERSION)),
            "sse": await stack.enter_async_context(await SsePeer.legacy(f"{url}/sse", version=VERSION)),
            "stdio": await stack.enter_async_context(await StdioPeer.start(bridge(fleet.node), VERSION)),
        }


def request(message_id: str, method: str = "ping", params: str = "{}") -> str:
    return f'{{"jsonrpc":"2.0","id":{message_id},"method":"{method}","params":{params}}}'


def call(message_id: str, name: str, arguments: str = "{}") -> str:
    return request(message_id, "tools/call", f'{{"name":"{name}","arguments":{arguments}}}')


def notification(method: str, params: str = "{}") -> str:
    return f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'


def batch(*messages: str) -> str:
    return "[" + ",".join(messages) + "]"


def by_id(text: str) -> dict[str, Any]:
    answers = json.loads(text)
    found = {json.dumps(one["id"]): one for one in answers}
    assert len(found) == len(answers)
    return found


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("link", LINKS)
async def test_the_requests_of_a_batch_are_answered_together(peers: dict[str, Peer], pipe: str, link: str) -> None:
    answers = by_id(
        await peers[pipe].batch(
            batch(
                call('"a"', tool(link, "echo"), '{"n":1208925819614629174706175}'),
                notification("notifications/roots/list_changed"),
                request("-7"),
                call("0", "no.such.tool"),
                request('""', "no/such/method"),
            )
        )
    )
    assert answers.keys() == {'"a"', "-7", "0", '""'}
    assert answers['"a"']["result"]["structuredContent"] == {"n": 1208925819614629174706175}
    assert answers["-7"]["result"] == {}
    assert "error" in answers["0"]
    assert answers['""']["error"]["code"] == -32601


@pytest.mark.parametrize("pipe", PIPES)
async def test_an_invalid_message_is_refused_alone(peers: dict[str, Peer], pipe: str) -> None:
    """JSON-RPC 2.0, 6: each gets its error, and the rest is served."""
    said = json.loads(await peers[pipe].batch(batch("1", "null", "[]", "[[1]]", "{}", request('"ok"'))))
    assert [one["error"]["code"] for one in said if "error" in one] == [-32600] * 5
    assert [one["id"] for one in said] == [None] * 5 + ["ok"]
    assert "no other batch" in said[2]["error"]["message"]
    assert said[5]["result"] == {}


@pytest.mark.parametrize("pipe", PIPES)
async def test_initialize_is_not_taken_in_a_batch(peers: dict[str, Peer], pipe: str) -> None:
    hello = request("1", "initialize", '{"protocolVersion":"2025-11-25","capabilities":{}}')
    assert "alone" in json.loads(await peers[pipe].batch(batch(hello)))[0]["error"]["message"]


@pytest.mark.parametrize("pipe", PIPES)
async def test_ten_thousand_messages_are_served_while_others_get_their_turn(
    fleet: Fleet, peers: dict[str, Peer], pipe: str
) -> None:
    peer = peers[pipe]
    many = asyncio.ensure_future(peer.batch(batch(*(request(str(one)) for one in range(10_000))), 60))
    slowest = 0.0
    async with fleet.peer("http-modern") as other:
        while not many.done():
            began = time.monotonic()
            await other.call(tool("new_http", "echo"))
            slowest = max(slowest, time.monotonic() - began)
    assert by_id(await many).keys() == {str(one) for one in range(10_000)}
    assert slowest < 2.0


@pytest.mark.parametrize("link", ["old_stdio", "new_http"])
async def test_more_calls_than_run_at_once_are_all_answered(peers: dict[str, Peer], link: str) -> None:
    calls = (call(str(one), tool(link, "echo"), f'{{"n":{one}}}') for one in range(300))
    answers = by_id(await peers["http"].batch(batch(*calls), 60))
    assert {one["result"]["structuredContent"]["n"] for one in answers.values()} == set(range(300))


async def test_a_batch_without_requests_is_accepted_and_has_no_answer(peers: dict[str, Peer]) -> None:
    peer = peers["http"]
    assert isinstance(peer, HttpPeer)
    answer = '{"jsonrpc":"2.0","id":"nobody-asked","result":{}}'
    assert await peer.post(batch(notification("notifications/x"), answer)) == (202, [""])


REFUSED = {
    "[]": (-32600, "asks for nothing"),
    " [ ] ": (-32600, "asks for nothing"),
    batch(*["{}"] * 10_001): (-32600, "at most 10000"),
    "[" + request("1"): (-32700, "not valid JSON"),
    "[" * 50_000 + "]" * 50_000: (-32700, "nested too deeply"),
    "[1,]": (-32700, "not valid JSON"),
    '[{"jsonrpc":"2.0","id":1,"method":"ping"}] x': (-32700, "not valid JSON"),
}


@pytest.mark.parametrize("body", REFUSED, ids=range(len(REFUSED)))
async def test_an_invalid_batch_is_refused_as_a_whole(peers: dict[str, Peer], body: str) -> None:
    peer = peers["http"]
    assert isinstance(peer, HttpPeer)
    status, (said,) = await peer.post(body)
    code, words = REFUSED[body]
    error = json.loads(said)
    assert (status, error["id"], error["error"]["code"]) == (400, None, code)
    assert words in error["error"]["message"]
    assert (await peer.request("ping")).result == {}


@pytest.mark.parametrize("front", ["http-legacy", "http-modern"])
async def test_other_revisions_learn_that_they_have_no_batches(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front, stream=False) as peer:
        status, (said,) = await peer.post(batch(request("1")))
        assert (status, json.loads(said)["error"]["code"]) == (400, -32600)
        assert "only MCP 2025-03-26 has batches" in json.loads(said)["error"]["message"]


@pytest.mark.parametrize("front", ["stdio-legacy", "stdio-modern"])
async def test_other_revisions_are_refused_on_stdio_too(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        peer.judged = False
        try:
            await peer._send(batch(request("1")))
            await peer.request("tools/list")
        finally:
            peer.judged = True
        refusal = next(one for one in peer.log if "error" in one)
        assert "only MCP 2025-03-26 has batches" in refusal["error"]["message"]
        peer.complaints.clear()  # an answer to nothing that the client sent alone


async def test_progress_opens_a_stream_on_which_every_answer_comes(peers: dict[str, Peer]) -> None:
    peer = peers["http"]
    assert isinstance(peer, HttpPeer)
    steps = request(
        "1",
        "tools/call",
        f'{{"name":"{tool("old_http", "progress")}","arguments":{{"steps":2}},"_meta":{{"progressToken":"p"}}}}',
    )
    status, said = await peer.post(batch(request("2"), steps, call("3", tool("old_stdio", "echo"))))
    messages = [one for text in said for one in (json.loads(text) if text.startswith("[") else [json.loads(text)])]
    assert status == 200
    assert {one["id"] for one in messages if "id" in one} == {1, 2, 3}
    assert [one["params"]["progressToken"] for one in messages if one.get("method") == "notifications/progress"]


async def test_a_client_that_disconnects_loses_the_calls_of_its_batch_that_have_not_begun(
    peers: dict[str, Peer], fleet: Fleet
) -> None:
    """A batch is many calls: unlike one legacy call, it is not kept for a client that does not come back."""
    async with await HttpPeer.legacy(f"{fleet.node.url}/mcp", version=VERSION) as peer:
        waits = [call(str(one), tool("old_http", "wait")) for one in range(100)]
        posted = asyncio.ensure_future(peer.post(batch(*waits)))
        waiting = []
        async with asyncio.timeout(10):
            while len(waiting) < 32:
                waiting = (await peers["stdio"].call(tool("old_http", "waiting"))).result["structuredContent"]["ids"]
        posted.cancel()
        await asyncio.gather(posted, return_exceptions=True)
        assert len(waiting) == 32
        assert await peer.end() == 204
        async with asyncio.timeout(10):
            while (await peers["stdio"].call(tool("old_http", "waiting"))).result["structuredContent"]["ids"]:
                pass


@pytest.mark.parametrize("pipe", ["stdio", "http"])
async def test_a_server_of_that_revision_may_answer_in_batches(tmp_path_factory: Any, pipe: str) -> None:
    command = raw("echo,batches", "--era", "legacy", "--speaks", VERSION)
    with contextlib.ExitStack() as stack:
        table = {"url": stack.enter_context(serving(command))} if pipe == "http" else stdio_table(command)
        node = stack.enter_context(running_node(tmp_path_factory.mktemp("batching"), {"it": table}))
        async with await HttpPeer.legacy(f"{node.url}/mcp") as peer:
            await peer.request("logging/setLevel", {"level": "debug"})
            reply = await peer.call("it__echo", '{"n":1.0}')
            assert members(members(reply.result_text)["structuredContent"])["n"] == "1.0"
            assert [one["params"]["data"] for one in peer.heard("notifications/message")] == ["in a batch"]
