"""How long a call took, in the metadata of its result, where an operator wants it (MCP-AX 7.2)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, bare_subserver, tool
from tests.ax.levels import Level, StillClock, levels
from tests.servers.rawserver.text import members
from tests.support.peers import HttpPeer

from interlock.ax.protocol.hop_metadata import with_latency

pytestmark = pytest.mark.req("AX-7.2-8")
KEY = "x-mcpax-latency-ms"
ON = "[mcp]\nlatency_meta = true\n"
RESULT = {"structuredContent": {"z": 1.0, "a": [2**80]}, "content": [], "_meta": {"com.example/k": {"b": 1}}}


@contextlib.asynccontextmanager
async def patient(
    tmp_path: Path, *on: int
) -> AsyncIterator[tuple[list[Level], BareSubserver, StillClock, asyncio.Event]]:
    """Two nodes, of which those at the depths `on` write the time, and a leaf that answers when told."""
    ready, clock = asyncio.Event(), StillClock()

    async def answer(params: dict[str, Any]) -> Any:
        await ready.wait()
        return RESULT

    def said(depth: int) -> str:
        return ON if depth in on else ""

    async with (
        levels(tmp_path, 2, said, clock) as tree,
        bare_subserver(tree[-1], "leaf", tools=[tool("work")], call=answer) as leaf,
    ):
        await tree[0].until_listed("l2.leaf.work")
        yield tree, leaf, clock, ready


async def took(tmp_path: Path, era: str, *on: int) -> dict[str, str]:
    """The members of the result of a call for which the leaf took a quarter of a second."""
    async with patient(tmp_path, *on) as (tree, leaf, clock, ready):
        connect = HttpPeer.modern_ if era == "modern" else HttpPeer.legacy
        async with await connect(f"{tree[0].url}/mcp") as peer:
            ongoing = peer.begin_call("l2.leaf.work")
            await leaf.hear("tools/call")
            clock.ahead += 0.25
            ready.set()
            found: dict[str, str] = members((await ongoing.reply()).result_text)
            return found


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("on", [(1, 2), (1,), (2,)], ids=["every hop", "the outer", "the inner"])
async def test_a_hop_that_is_configured_to_writes_the_time_and_touches_nothing_else(
    tmp_path: Path, era: str, on: tuple[int, ...]
) -> None:
    found = await took(tmp_path, era, *on)
    assert members(found.pop("_meta")) == {"com.example/k": '{"b": 1}', KEY: "250"}
    plain = {"structuredContent": '{"z": 1.0, "a": [1208925819614629174706176]}', "content": "[]"}
    assert found == (plain if era == "legacy" else {"resultType": '"complete"', **plain})


async def test_by_default_nothing_is_written(tmp_path: Path) -> None:
    assert members((await took(tmp_path, "modern"))["_meta"]) == {"com.example/k": '{"b": 1}'}


async def test_each_hop_says_what_it_saw_itself_and_an_error_says_nothing(tmp_path: Path) -> None:
    async with patient(tmp_path, 1, 2) as (tree, leaf, _, ready):
        ready.set()
        async with await HttpPeer.legacy(f"{tree[1].url}/mcp") as peer:
            reply = await peer.call("leaf.work")
            assert reply.result["_meta"][KEY] == 0
            assert KEY not in (await peer.call("leaf.none")).text
        leaf.call = lambda params: {"content": [], "isError": True, "_meta": {KEY: 7}}
        async with await HttpPeer.legacy(f"{tree[0].url}/mcp") as peer:
            assert (await peer.call("l2.leaf.work")).result["_meta"] == {KEY: 0}


@pytest.mark.parametrize(
    ("result", "written"),
    [
        (b"{}", b'{"_meta":{"x-mcpax-latency-ms":5}}'),
        (b'{"a":1.0,"a2":[ 1 ]}', b'{"a":1.0,"a2":[ 1 ],"_meta":{"x-mcpax-latency-ms":5}}'),
        (b'{"_meta":{"x-mcpax-latency-ms":900},"a":{}}', b'{"_meta":{"x-mcpax-latency-ms":5},"a":{}}'),
        (b'{"_meta":7}', b'{"_meta":7}'),
        (b'{"_meta":null}', b'{"_meta":null}'),
        (b"[]", b"[]"),
    ],
)
def test_the_time_has_one_place_and_what_has_none_stays_as_it_is(result: bytes, written: bytes) -> None:
    assert with_latency(result, 5) == written
    assert with_latency(b"{}", -1) == b'{"_meta":{"x-mcpax-latency-ms":0}}'
