"""Are long lists of many servers one list: in pages of our own, in one order, the same until a server changes?"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.servers.rawserver.text import members
from tests.servers.start import raw
from tests.support.fleet import stdio_table
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, SsePeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

MANY = {
    "zoo": ("many-tools", "--count", "1150", "--page", "100", "--era", "legacy"),
    "ant": ("many-tools", "--count", "1250", "--page", "70", "--era", "modern"),
    "ant_b": ("many-tools", "--count", "3", "--era", "modern"),
    "ant-b": ("all", "--era", "legacy"),
}
ERAS = {"legacy": LEGACY, "modern": MODERN}


def tables(segments: list[str]) -> dict[str, dict[str, Any]]:
    return {segment: stdio_table(raw(*MANY[segment])) for segment in segments}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("many"), tables(list(MANY))) as running:
        yield running


async def client(node: RunningNode, era: str, *, judged: bool = False, query: str = "") -> Peer:
    return await HttpPeer(f"{node.url}/mcp{query}", ERAS[era], judged=judged).greet()


async def pages(peer: Peer, method: str = "tools/list") -> list[dict[str, str]]:
    """Every page, as the texts of its members."""
    found: list[dict[str, str]] = []
    while not found or "nextCursor" in found[-1]:
        params = f'{{"cursor":{found[-1]["nextCursor"]}}}' if found else "{}"
        found.append(members((await peer.request(method, params)).result_text))
    return found


async def names(peer: Peer) -> list[str]:
    listed: list[str] = []
    cursor: dict[str, str] | None = {}
    while cursor is not None:
        result = (await peer.request("tools/list", cursor)).result
        listed += [tool["name"] for tool in result["tools"]]
        cursor = {"cursor": result["nextCursor"]} if "nextCursor" in result else None
    return listed


@pytest.mark.parametrize("era", ERAS)
async def test_every_tool_is_listed_once_over_pages_of_our_own(node: RunningNode, era: str) -> None:
    async with await client(node, era, query="?names=qualified") as peer:
        listed = await names(peer)
        first = (await peer.request("tools/list")).result
    assert len(set(listed)) == len(listed)
    assert len(first["tools"]) == 1000
    assert not first["nextCursor"].startswith("at-")
    expected = [
        f"{segment}.tool_{number:05}"
        for segment, n in (("zoo", 1150), ("ant", 1250), ("ant_b", 3))
        for number in range(n)
    ]
    assert listed[: len(expected)] == expected
    assert {name.partition(".")[0] for name in listed[len(expected) :]} == {"ant-b"}


@pytest.mark.parametrize("era", ERAS)
async def test_every_page_keeps_to_the_schema(node: RunningNode, era: str) -> None:
    async with await client(node, era, judged=True) as peer:
        assert len(await pages(peer)) == 3


@pytest.mark.parametrize("cursor", ['"at-100"', '""', '"il1:x"', '"@@"', "7", "null", "{}", '"' + "A" * 10_000 + '"'])
@pytest.mark.parametrize("era", ERAS)
async def test_a_cursor_that_is_not_ours_is_refused(node: RunningNode, era: str, cursor: str) -> None:
    async with await client(node, era) as peer:
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            assert (await peer.request(method, f'{{"cursor":{cursor}}}')).error["code"] == -32602


@pytest.mark.parametrize("era", ERAS)
async def test_the_bytes_of_a_list_stay_the_same_while_no_server_changes(node: RunningNode, era: str) -> None:
    async with await client(node, era) as one, await client(node, era) as other:
        before = [page["tools"] for page in await pages(one)]
        await one.call("ant-b__echo", {"a": 1})
        await other.call("ant-b__change", {"kind": "tools"})  # announced, but nothing changed
        await other.call("ant-b__change", {"kind": "prompts"})
        assert [page["tools"] for page in await pages(other)] == before
        assert [page["tools"] for page in await pages(one)] == before


async def test_a_restart_changes_nothing_and_the_configuration_the_order_of_servers(
    node: RunningNode, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        before = [await pages(await stack.enter_async_context(await client(node, era))) for era in ERAS]
    with running_node(tmp_path / "again", tables(list(MANY))) as restarted:
        for era, expected in zip(ERAS, before, strict=True):
            async with await client(restarted, era) as peer:
                assert [page["tools"] for page in await pages(peer)] == [page["tools"] for page in expected]
    with running_node(tmp_path / "again", tables(sorted(MANY, reverse=True))) as restarted:
        async with await client(restarted, "modern", query="?names=qualified") as peer:
            segments = [name.partition(".")[0] for name in await names(peer)]
            assert list(dict.fromkeys(segments)) == sorted(MANY, reverse=True)


async def test_one_page_serves_every_front_alike(node: RunningNode) -> None:
    async with await client(node, "legacy") as http, await SsePeer.legacy(f"{node.url}/sse", judged=False) as sse:
        assert (await http.request("tools/list")).result_text == (await sse.request("tools/list")).result_text
