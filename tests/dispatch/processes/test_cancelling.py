"""Does a server hear that nobody wants its answer any more, and only then?"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.fleet import (
    CAPABLE,
    LEGACY_LINKS,
    LINKS,
    SAME_ERA,
    Fleet,
    era,
    five_servers,
    stdio_front,
    tool,
)
from tests.support.node_process import write_config
from tests.support.peers import LEGACY, MODERN, HttpPeer, Ongoing, Peer, StdioPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def ids(peer: Peer, link: str, which: str) -> list[Any]:
    return (await peer.call(tool(link, which))).result["structuredContent"]["ids"]


async def until(peer: Peer, link: str, which: str, holds: Callable[[list[Any]], bool]) -> list[Any]:
    async with asyncio.timeout(10):
        while not holds(found := await ids(peer, link, which)):
            pass
    return found


async def hold(peer: Peer, link: str, **options: Any) -> tuple[Ongoing, Any]:
    """A call that never ends, once the server has it, and the id it has there."""
    standing = await ids(peer, link, "waiting")  # subscriptions
    ongoing = peer.begin_call(tool(link, "wait"), **options)
    found = await until(peer, link, "waiting", lambda found: len(found) > len(standing))
    (waiting,) = (one for one in found if one not in standing)
    return ongoing, waiting


async def assert_cancelled(witness: Peer, link: str, waiting: Any) -> None:
    await until(witness, link, "cancelled", lambda found: waiting in found)
    await until(witness, link, "waiting", lambda found: waiting not in found)


@pytest.mark.parametrize(("front", "link"), SAME_ERA)
async def test_a_cancelled_call_is_cancelled_at_the_server(fleet: Fleet, front: str, link: str) -> None:
    async with fleet.peer(front) as peer:
        ongoing, waiting = await hold(peer, link)
        await peer.cancel(ongoing)
        await assert_cancelled(peer, link, waiting)
        assert not any(message.get("id") == int(ongoing.id) and "result" in message for message in peer.log)


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_the_http_request_of_a_cancelled_legacy_call_ends(fleet: Fleet, link: str) -> None:
    """No answer follows a cancellation, but a connection must not hang for ever after one."""
    async with fleet.peer("http-legacy") as peer:
        ongoing, waiting = await hold(peer, link)
        await peer.cancel(ongoing)
        await assert_cancelled(peer, link, waiting)
        assert ongoing.task is not None
        async with asyncio.timeout(5):
            await asyncio.wait([ongoing.task])


@pytest.mark.parametrize("link", LINKS)
async def test_a_modern_client_that_closes_its_connection_cancels_its_call(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-modern") as peer:
        ongoing, waiting = await hold(peer, link)
        await peer.hang_up(ongoing)
        await assert_cancelled(peer, link, waiting)


@pytest.mark.parametrize("link", LINKS)
async def test_a_client_that_leaves_the_old_transport_cancels_its_calls(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-modern") as witness, fleet.peer("sse-legacy") as peer:
        _, waiting = await hold(peer, link)
        await peer.hang_up()
        await assert_cancelled(witness, link, waiting)


@pytest.mark.parametrize("link", LINKS)
async def test_a_session_that_is_deleted_cancels_its_calls(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-modern") as witness, fleet.peer("http-legacy") as peer:
        _, waiting = await hold(peer, link)
        assert await peer.end() in (200, 204)
        await assert_cancelled(witness, link, waiting)


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_the_end_of_stdin_cancels_the_calls_of_that_client(tmp_path: Path, version: str) -> None:
    with five_servers() as (urls, tables):
        config = write_config(tmp_path, {link: tables[link] for link in urls})
        async with await StdioPeer.start(stdio_front(config, tmp_path / "data"), version, CAPABLE) as peer:
            held = {link: (await hold(peer, link))[1] for link in urls}
        for link, url in urls.items():
            said = LEGACY if era(link) == "legacy" else MODERN
            async with await HttpPeer(url, said, judged=False).greet() as witness:
                async with asyncio.timeout(10):
                    while held[link] not in (await witness.call("cancelled")).result["structuredContent"]["ids"]:
                        pass


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_client_cannot_cancel_anothers_call_by_its_id(fleet: Fleet, link: str) -> None:
    async with fleet.peer("http-legacy") as owner, fleet.peer("http-legacy") as other:
        ongoing, waiting = await hold(owner, link, request_id="424242")
        await other.notify("notifications/cancelled", {"requestId": 424242})
        await other.notify("notifications/cancelled", {"requestId": waiting})
        await other.notify("notifications/cancelled", {"requestId": "424242"})
        await other.notify("notifications/cancelled", {})
        assert waiting in await ids(other, link, "waiting")
        await owner.cancel(ongoing)
        await assert_cancelled(owner, link, waiting)
