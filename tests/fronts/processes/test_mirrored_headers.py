"""Are arguments a 2026-07-28 tool wants repeated as headers checked at our door and written anew for its server?"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.servers.start import raw, serving
from tests.support.fleet import bridge, stdio_table
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, SsePeer, StdioPeer, header_value

pytestmark = pytest.mark.asyncio(loop_scope="session")

REGIONS = ("eu-west", "größe", " spaced ", "")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    with serving(raw("header-params", "--era", "modern")) as url:
        servers = {"far": {"url": url}, "near": stdio_table(raw("header-params", "--era", "modern"))}
        with running_node(tmp_path_factory.mktemp("mirrors"), servers) as running:
            yield running


async def region_sent(peer: Peer, region: str, **options: dict[str, str]) -> str:
    """What the server found in its header."""
    return (await peer.call("far__regional", {"region": region}, **options)).result["content"][0]["text"]


async def test_a_header_that_agrees_passes_and_is_written_for_the_server(node: RunningNode) -> None:
    async with await HttpPeer.modern_(f"{node.url}/mcp") as peer:
        for region in REGIONS:
            sent = {"mcp-param-region": header_value(region)}
            assert await region_sent(peer, region, headers=sent) == region
        reply = await peer.call("far__regional", {})
        assert reply.result["content"][0]["text"] == ""


@pytest.mark.parametrize("sent", [{}, {"mcp-param-region": "elsewhere"}, {"mcp-param-region": "=?base64?@@?="}])
@pytest.mark.parametrize("server", ["far", "near"])
async def test_a_header_that_is_missing_or_differs_is_refused(
    node: RunningNode, server: str, sent: dict[str, str]
) -> None:
    async with await HttpPeer.modern_(f"{node.url}/mcp") as peer:
        reply = await peer.call(f"{server}__regional", {"region": "eu-west"}, headers=sent)
        assert (reply.status, reply.error["code"]) == (400, -32020)


async def test_clients_that_send_no_such_headers_are_served_all_the_same(node: RunningNode) -> None:
    async with (
        await HttpPeer.legacy(f"{node.url}/mcp") as http,
        await SsePeer.legacy(f"{node.url}/sse") as sse,
        await StdioPeer.start(bridge(node), LEGACY) as legacy,
        await StdioPeer.start(bridge(node), MODERN) as modern,
    ):
        for peer in (http, sse, legacy, modern):
            for region in REGIONS:
                assert await region_sent(peer, region) == region


async def test_a_tool_with_an_invalid_header_is_withheld_and_the_schema_of_the_others_kept(node: RunningNode) -> None:
    async with await HttpPeer.modern_(f"{node.url}/mcp") as peer:
        tools = {one["name"]: one for one in (await peer.request("tools/list")).result["tools"]}
    assert tools.keys() == {"far__regional", "near__regional"}
    for tool in tools.values():
        assert tool["inputSchema"]["properties"]["region"] == {"type": "string", "x-mcp-header": "Region"}
    assert [one["name"] for one in node.link("far")["withheld"]] == ["badly_mirrored"]
