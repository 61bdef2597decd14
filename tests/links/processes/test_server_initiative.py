"""Does what a legacy server does in the middle of a call, beside answering it, find the right ear?"""

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.servers.start import serving
from tests.support.fleet import CAPABLE, bridge, stdio_table
from tests.support.node_process import RunningNode, running_node
from tests.support.odd_server import command
from tests.support.peers import LEGACY, HttpPeer, Peer, SsePeer, StdioPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

LINKS = ("stdio", "http", "sse")
FRONTS = ("http", "sse", "stdio")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    spoken = command("asides", "--era", "legacy")
    with serving(spoken) as http, serving(spoken) as sse:
        servers = {
            "stdio": stdio_table(spoken),
            "http": {"url": http},
            "sse": {"url": sse.removesuffix("/mcp") + "/sse", "transport": "sse"},
        }
        with running_node(tmp_path_factory.mktemp("asides"), servers) as running:
            yield running


@contextlib.asynccontextmanager
async def client(node: RunningNode, front: str) -> AsyncIterator[Peer]:
    if front == "http":
        opened: Peer = await HttpPeer.legacy(f"{node.url}/mcp", CAPABLE)
    elif front == "sse":
        opened = await SsePeer.legacy(f"{node.url}/sse", CAPABLE)
    else:
        opened = await StdioPeer.start(bridge(node), LEGACY, CAPABLE)
    async with opened as peer:
        if isinstance(peer, HttpPeer):
            await peer.listen()
        yield peer


@pytest.mark.parametrize("front", FRONTS)
async def test_a_ping_of_a_server_is_answered_by_the_node(node: RunningNode, front: str) -> None:
    async with client(node, front) as peer:
        for link in LINKS:
            assert (await peer.call(f"{link}__ping")).result["structuredContent"] == {"pong": {}}
        assert peer.asked == []


@pytest.mark.parametrize("front", FRONTS)
async def test_a_client_learns_that_the_page_it_was_sent_to_is_done(node: RunningNode, front: str) -> None:
    async with client(node, front) as peer:
        for link in LINKS:
            await peer.call(f"{link}__elicited")
            message = await peer.hear("notifications/elicitation/complete")
            assert message["params"] == {"elicitationId": "e-1", "x-more": {"n": 1.0}}


@pytest.mark.parametrize("front", FRONTS)
async def test_a_question_taken_back_is_taken_back_under_the_clients_id(node: RunningNode, front: str) -> None:
    async with client(node, front) as peer:
        for link in LINKS:
            reply = await peer.call(f"{link}__takes_back")
            assert reply.result["content"][0]["text"] == "took it back"
            asked = await peer.hear("sampling/createMessage")
            message = await peer.hear("notifications/cancelled")
            assert message["params"] == {"requestId": asked["id"], "reason": "found it"}


@pytest.mark.parametrize("front", FRONTS)
async def test_a_question_no_revision_knows_is_refused(node: RunningNode, front: str) -> None:
    async with client(node, front) as peer:
        for link in LINKS:
            said = (await peer.call(f"{link}__asks_strangely")).result["structuredContent"]["said"]
            assert said["code"] == -32601
        assert peer.asked == []
