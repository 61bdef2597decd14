"""Servers that speak both eras: is a legacy client met in its own, where alone a tool can ask in mid-call?"""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.start import HERE, raw, serving
from tests.support.fleet import CAPABLE, stdio_table
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import HttpPeer

BOTH = [sys.executable, str(HERE / "both_eras.py")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with serving(BOTH) as both, serving(raw("all", "--era", "modern")) as modern:
        servers = {
            "both": {"url": both},
            "modern": {"url": modern},
            "shared": stdio_table([*BOTH, "--stdio"]),
            "each": {**stdio_table([*BOTH, "--stdio"]), "share": "session"},
        }
        with running_node(tmp_path_factory.mktemp("both"), servers) as node:
            for segment in servers:
                node.wait_link(segment, {"state": "ready", "era": "modern"})
            yield node


async def own(node: RunningNode, segment: str) -> list[Any]:
    return list((await asyncio.to_thread(node.link, segment))["own"])


async def text(peer: Any, name: str) -> str:
    return str((await peer.call(name)).result["content"][0]["text"])


async def test_a_legacy_client_that_can_be_asked_is_asked_in_mid_call(node: RunningNode) -> None:
    peer = await HttpPeer.legacy(f"{node.url}/mcp", CAPABLE)
    peer.answers["elicitation/create"] = lambda params: {"action": "accept", "content": {"colour": "green"}}
    try:
        assert await text(peer, "both__ask") == "accept: green"
        (link,) = await own(node, "both")
        assert link["per"] == "session"
        assert (await asyncio.to_thread(node.link, "both"))["own_because"] == "it speaks the era of legacy clients too"
        assert await text(peer, "each__ask") == "accept: green"  # a process of its own is what its operator chose
    finally:
        await peer.end()
        await peer.close()


async def test_modern_clients_and_clients_that_cannot_be_asked_share_one_link(node: RunningNode) -> None:
    for peer in (
        await HttpPeer.legacy(f"{node.url}/mcp", {}),
        await HttpPeer.modern_(f"{node.url}/mcp", CAPABLE),
    ):
        assert (await text(peer, "both__ask")).startswith("it cannot ask")
        assert await own(node, "both") == []
        await peer.close()


async def test_a_program_is_not_started_twice_for_it(node: RunningNode) -> None:
    legacy = await HttpPeer.legacy(f"{node.url}/mcp", CAPABLE)
    modern = await HttpPeer.modern_(f"{node.url}/mcp", CAPABLE)
    assert await text(legacy, "shared__process") == await text(modern, "shared__process")
    await legacy.end()
    for peer in (legacy, modern):
        await peer.close()


async def test_a_server_of_one_era_is_asked_once_and_shared(node: RunningNode) -> None:
    for _ in range(2):
        peer = await HttpPeer.legacy(f"{node.url}/mcp", CAPABLE)
        assert "result" in (await peer.call("modern__echo")).message
        assert await own(node, "modern") == []
        await peer.end()
        await peer.close()
    seen = (await asyncio.to_thread(node.link, "modern"))["own_because"]
    assert seen is None
