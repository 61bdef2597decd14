"""What a participant may read of the time before it came, on every way (`history_visibility`)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.rooms.mcp_client import client_token
from tests.rooms.participant import Bare, ask, joined, names, token
from tests.support.node_process import RunningNode, Wire, running_node

ROOMS = """
[rooms]
presence_grace_s = 0.1
full = ["client:*"]

[[room]]
topic = "all"

[[room]]
topic = "since_join"
history_visibility = "since_join"

[[room]]
topic = "none"
history_visibility = "none"
"""
PROPOSED = {"method": "tools/call", "params": {"name": "water", "arguments": {"secret": "of before"}}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("visibility"), {}, ROOMS) as started:
        yield started


async def shown(node: RunningNode, topic: str, path: str, secret: str) -> str:
    return str(await asyncio.to_thread(ask, node, f"/v0/topics/{topic}/{path}", secret))


async def tool(node: RunningNode, client: str, name: str, **arguments: Any) -> Any:
    def call() -> Any:
        with Wire(node, "/mcp", client_token(node, client)) as wire:
            return wire.modern("tools/call", {"name": f"rooms__{name}", "arguments": arguments}).message["result"]

    return (await asyncio.to_thread(call))["structuredContent"]


@pytest.mark.req("X-4.4.1-6", "X-10.2-1")
@pytest.mark.parametrize("topic", ["all", "since_join", "none"])
async def test_nothing_from_before_is_shown_where_the_room_says_so(node: RunningNode, topic: str) -> None:
    is_hidden = topic != "all"
    (newcomer, _), *_ = names("full")
    async with joined(node, *names("restricted"), topic=topic) as (proposer,):
        await proposer.say("of before")
        early = await proposer.send("mcp/proposal", PROPOSED, to=["robot"])
        await proposer.until(id=early)
        assert early in await shown(node, topic, "proposals", proposer.secret)
        secret = token(node, newcomer, topic, "full")
        came = await Bare.join(node, topic, secret, history="100")
        assert (await came.next())["payload"]["event"] == "welcome"
        reader = f"reader-{topic}"
        start = await tool(node, reader, "join", topic=topic)
        late = await proposer.send("mcp/proposal", {"method": "ping"}, to=["robot"])
        await came.until(id=late)
        told = str(came.heard)
        for again in ({"after": "1"}, {"after": early}, {"history": "100"}):
            resumed = await Bare.join(node, topic, secret, **again)
            mark = await proposer.say("of now")
            await resumed.until(id=mark)
            told += str(resumed.heard)
            await resumed.leave()
        lists = await shown(node, topic, "proposals", secret)
        for query in ("history", "history?after=1", f"history?after={early}", "history?limit=100"):
            told += await shown(node, topic, query, secret)
        assert (late in lists, early in lists, "of before" in lists) == (True, not is_hidden, not is_hidden)
        assert ("of before" in told) is not is_hidden
        read = await tool(node, reader, "read", topic=topic)
        listed = [proposal["proposalId"] for proposal in read["proposals"]]
        assert (late in listed, early in listed, "of before" in str(read)) == (True, not is_hidden, not is_hidden)
        for cursor in range(start["cursor"]):
            answer = await tool(node, reader, "read", topic=topic, cursor=cursor)
            assert (answer.get("error") == "history_gap", "of before" in str(answer)) == (is_hidden, not is_hidden)
        await came.leave()
