"""Does a 2026-07-28 client get a server's error with the HTTP status and the bytes that the server itself answers?"""

import sys
from collections.abc import Iterator

import pytest
from tests.servers.start import HERE, serving
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import HttpPeer

COMMAND = [sys.executable, str(HERE / "refusing.py")]
CODES = [-32601, -32602, -32600, -32603, -32700, -32021, -32002, -32000, 7, 32002]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(COMMAND) as url:
        yield url


@pytest.fixture(scope="module")
def node(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("refusing"), {"sdk": {"url": server}}) as running:
        yield running


@pytest.mark.parametrize("code", CODES)
async def test_a_servers_error_has_the_status_of_a_direct_connection(node: RunningNode, server: str, code: int) -> None:
    async with (
        await HttpPeer.modern_(server, judged=False) as direct,
        await HttpPeer.modern_(f"{node.url}/mcp", judged=False) as client,
    ):
        expected = await direct.call("refuse", {"code": code})
        reply = await client.call("sdk__refuse", {"code": code})
    assert expected.error["code"] == code
    assert (reply.status, reply.error) == (expected.status, expected.error)


@pytest.mark.req("AX-13.2-3")
async def test_a_servers_own_word_for_a_missing_resource_passes_unchanged(node: RunningNode, server: str) -> None:
    async with (
        await HttpPeer.modern_(server, judged=False) as direct,
        await HttpPeer.modern_(f"{node.url}/mcp", judged=False) as client,
    ):
        expected = await direct.request("resources/read", {"uri": "refusing://gone"})
        listed = (await client.request("resources/list")).result["resources"]
        reply = await client.request("resources/read", {"uri": listed[0]["uri"]})
    assert expected.error["code"] == -32002
    assert (reply.status, reply.error) == (expected.status, expected.error)
