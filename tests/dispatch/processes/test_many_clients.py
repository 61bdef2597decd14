"""Do many clients on shared links, with equal ids and tokens, each get their own and only their own?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.fleet import LINKS, Fleet, tool, uri
from tests.support.peers import META, Peer

pytestmark = pytest.mark.asyncio(loop_scope="session")

FRONTS = ("http-legacy", "sse-legacy", "http-modern")
PER_FRONT = 6


@contextlib.asynccontextmanager
async def crowd(fleet: Fleet) -> AsyncIterator[dict[str, Peer]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {
            f"{front} {number}": await stack.enter_async_context(fleet.peer(front))
            for front in FRONTS
            for number in range(PER_FRONT)
        }


async def test_equal_ids_at_once_get_their_own_answers(fleet: Fleet) -> None:
    async def speak(who: str, peer: Peer) -> None:
        for round_ in range(5):
            calls = {
                link: peer.begin_call(
                    tool(link, "echo"), {"who": who, "link": link, "round": round_}, request_id=f'"{link}"'
                )
                for link in LINKS
            }
            for link, call in calls.items():
                reply = await call.reply()
                assert reply.message["id"] == link
                assert reply.result["structuredContent"] == {"who": who, "link": link, "round": round_}

    async with crowd(fleet) as peers:
        await asyncio.gather(*(speak(who, peer) for who, peer in peers.items()))


@pytest.mark.parametrize("link", LINKS)
async def test_equal_progress_tokens_at_once_are_kept_apart(fleet: Fleet, link: str) -> None:
    async def speak(steps: int, peer: Peer) -> None:
        reply = await peer.call(tool(link, "progress"), {"steps": steps, "ms": 1}, meta={"progressToken": 1})
        notices = [message["params"] for message in peer.before(reply, "notifications/progress")]
        assert [(one["progressToken"], one["progress"], one["total"]) for one in notices] == [
            (1, step, steps) for step in range(1, steps + 1)
        ]

    async with crowd(fleet) as peers:
        await asyncio.gather(*(speak(steps, peer) for steps, peer in enumerate(peers.values(), start=1)))


async def test_a_client_may_have_many_calls_under_way(fleet: Fleet) -> None:
    async with fleet.peer("http-legacy") as peer:
        calls = [peer.begin_call(tool(LINKS[number % len(LINKS)], "echo"), {"n": number}) for number in range(100)]
        replies = [await call.reply() for call in calls]
        assert [reply.result["structuredContent"]["n"] for reply in replies] == list(range(100))


async def test_an_id_under_way_is_not_taken_twice(fleet: Fleet) -> None:
    async with fleet.peer("stdio-legacy") as legacy, fleet.peer("stdio-modern") as modern:
        for peer, link in ((legacy, "old_stdio"), (modern, "new_stdio")):
            held = peer.begin_call(tool(link, "wait"), request_id='"twice"')
            again = peer.begin_call(tool(link, "echo"), {"a": 1}, request_id='"twice"')
            assert (await again.reply()).error["code"] == -32600
            await peer.cancel(held)
            reply = await peer.call(tool(link, "echo"), {"a": 2})
            assert reply.result["structuredContent"] == {"a": 2}


async def test_subscribers_of_both_eras_receive_one_update_under_their_own_names(fleet: Fleet) -> None:
    text = uri("new_http", "raw://text")
    async with fleet.peer("http-legacy") as legacy, fleet.peer("http-modern") as modern:
        await legacy.request("resources/subscribe", {"uri": text})
        modern.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": [text]}}, request_id='"mine"')
        await modern.hear("notifications/subscriptions/acknowledged")
        async with asyncio.timeout(10):
            while not (legacy.heard() and modern.heard()):
                await legacy.call(tool("new_http", "touch"), {"uri": "raw://text"})
        assert legacy.heard()[0]["params"] == {"uri": text}
        assert modern.heard()[0]["params"] == {"uri": text, "_meta": {META + "subscriptionId": "mine"}}
