"""How long a silent subserver is waited for (MCP-AX 7.3), by a clock that only the tests move."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, bare_subserver, tool
from tests.ax.levels import Level, StillClock, levels, until
from tests.servers.start import raw
from tests.support.node_process import Wire, running_node
from tests.support.peers import HttpPeer

from interlock.dispatch.calls_under_way import SWEEP_S, next_sweep_s, timeout_refusal

TIMES = {"realtime": 0.5, "fast": 5.0, "standard": 30.0, "slow": 120.0}
CLASSES = [*TIMES, "batch"]
SOON_S = 0.001
SLACK_S = 0.05  # per hop below
CAPABILITY = "x-mcpax-capability"


def tools(prefix: str = "", **meta: Any) -> list[dict[str, Any]]:
    return [
        tool(f"{prefix}{one}", _meta={CAPABILITY: {"mutable": False, "latency_class": one}, **meta}) for one in CLASSES
    ]


async def never(params: dict[str, Any]) -> Any:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def silent(
    tmp_path: Path, count: int = 1, **options: Any
) -> AsyncIterator[tuple[list[Level], BareSubserver, StillClock]]:
    """So many nodes, and a leaf below them that answers no call."""
    clock = StillClock()
    given = {"tools": tools(), "call": never, **options}
    async with levels(tmp_path, count, clock=clock) as tree, bare_subserver(tree[-1], "leaf", **given) as leaf:
        for at, place in enumerate(tree):
            here = ".".join((*(f"l{depth}" for depth in range(at + 2, count + 1)), "leaf", given["tools"][0]["name"]))
            await place.until_listed(here)
        yield tree, leaf, clock


def look(*tree: Level) -> None:
    """Every node looks at its deadlines, the outermost first."""
    for place in tree:
        place.node.calls.dispatch.under_way._sweep()


@pytest.mark.req("AX-7.3-1")
@pytest.mark.parametrize("latency_class", TIMES)
async def test_a_silent_leaf_is_given_up_when_the_time_of_its_class_is_over_and_not_before(
    tmp_path: Path, latency_class: str
) -> None:
    async with silent(tmp_path) as ((node,), leaf, clock), await HttpPeer.modern_(f"{node.url}/mcp") as peer:
        ongoing = peer.begin_call(f"leaf.{latency_class}")
        request = await leaf.hear("tools/call")
        clock.ahead += TIMES[latency_class] - SOON_S
        look(node)
        assert len(node.node.calls.dispatch.under_way.calls) == 1
        clock.ahead += SOON_S
        look(node)
        error = (await ongoing.reply()).error
        assert (error["code"], error["message"]) == (32130, "call_timeout")
        assert error["data"] == {
            "timeout_ms": TIMES[latency_class] * 1000,
            "latency_class": latency_class,
            "hop": 1,
            "outcome": "unknown",
        }
        cancelled = await leaf.hear("notifications/cancelled")
        assert cancelled["params"]["requestId"] == request["id"]
        link = node.node.calls.keepers["leaf"].link
        before = link.stray
        late = {"resultType": "complete", "content": []}
        await leaf.send({"jsonrpc": "2.0", "id": request["id"], "result": late})
        await until(lambda: link.stray == before + 1)
        assert peer.log == [peer.log[0], {"jsonrpc": "2.0", "id": peer.log[-1]["id"], "error": error}]


PLAIN = [tool("plain", _meta={CAPABILITY: {"mutable": False}})]
SERVER_S = 300.0  # timeout_s of a server, where nothing else is written


@pytest.mark.req("AX-7.3-1")
async def test_a_tool_without_a_class_has_its_servers_timeout_and_progress_restarts_it(tmp_path: Path) -> None:
    async with (
        silent(tmp_path, tools=PLAIN) as ((node,), leaf, clock),
        await HttpPeer.modern_(f"{node.url}/mcp") as peer,
    ):
        (listed,) = [one for one in (await peer.request("tools/list")).result["tools"] if one["name"] == "leaf__plain"]
        assert "latency_class" not in listed.get("_meta", {}).get(CAPABILITY, {})  # standard, which is the default
        ongoing = peer.begin_call("leaf.plain", meta={"progressToken": 7})
        request = await leaf.hear("tools/call")
        clock.ahead += SERVER_S - SOON_S
        look(node)
        token = request["params"]["_meta"]["progressToken"]
        await leaf.send(
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
        )
        await peer.hear("notifications/progress")
        clock.ahead += SOON_S
        look(node)
        clock.ahead += SERVER_S - SOON_S
        look(node)
        assert len(node.node.calls.dispatch.under_way.calls) == 1
        clock.ahead += SOON_S
        look(node)
        error = (await ongoing.reply()).error
        assert error["data"]["timeout_ms"] == SERVER_S * 1000


@pytest.mark.req("AX-7.3-1")
async def test_no_hop_above_gives_up_on_a_tool_without_a_class_before_its_own_hop_does(tmp_path: Path) -> None:
    async with (
        silent(tmp_path, 3, tools=PLAIN) as (tree, leaf, clock),
        await HttpPeer.legacy(f"{tree[0].url}/mcp") as peer,
    ):
        ongoing = peer.begin_call("l2.l3.leaf.plain")
        await leaf.hear("tools/call")
        clock.ahead += SERVER_S + SOON_S
        look(*tree[:-1])
        assert [len(one.node.calls.dispatch.under_way.calls) for one in tree] == [1, 1, 1]
        look(tree[-1])
        assert (await ongoing.reply()).error["data"]["hop"] == 1


@pytest.mark.req("AX-7.3-1")
def test_the_time_of_a_configured_server_is_the_operators_and_a_class_goes_before_it(tmp_path: Path) -> None:
    rule = '[[tool]]\nmatch = "quick.echo"\nlatency_class = "realtime"\n'
    servers = {name: {"command": raw("never"), "timeout_s": 2} for name in ("silent", "quick")}
    with running_node(tmp_path, servers, rule) as node, Wire(node) as wire:
        for segment, timeout_ms in (("silent", 2000), ("quick", 500)):
            node.wait_link(segment, {"state": "ready"})
            error = wire.modern("tools/call", {"name": f"{segment}__echo", "arguments": {}}).message["error"]
            assert (error["message"], error["data"]["timeout_ms"]) == ("call_timeout", timeout_ms)


@pytest.mark.req("AX-7.3-1")
async def test_the_innermost_hop_gives_up_first_and_names_itself(tmp_path: Path) -> None:
    async with silent(tmp_path, 3) as (tree, leaf, clock), await HttpPeer.legacy(f"{tree[0].url}/mcp") as peer:
        ongoing = peer.begin_call("l2.l3.leaf.realtime")
        await leaf.hear("tools/call")
        clock.ahead += TIMES["realtime"] + SOON_S
        look(*tree[:-1])
        assert [len(one.node.calls.dispatch.under_way.calls) for one in tree] == [1, 1, 1]
        look(tree[-1])
        error = (await ongoing.reply()).error
        assert error["data"] == {"timeout_ms": 500, "latency_class": "realtime", "hop": 1, "outcome": "unknown"}
        assert [len(one.node.calls.dispatch.under_way.calls) for one in tree] == [0, 0, 0]


@pytest.mark.req("AX-7.3-1")
async def test_a_hop_above_a_silent_aggregator_waits_fifty_milliseconds_longer_per_hop_and_says_which_it_is(
    tmp_path: Path,
) -> None:
    below = {"x-mcpax-subtree-ids": [str(uuid.uuid4())]}
    offered = tools("gate.leaf.", **{"x-mcpax-hops": 2})
    async with (
        silent(tmp_path, tools=offered, **below) as ((node,), leaf, clock),
        await HttpPeer.modern_(f"{node.url}/mcp") as peer,
    ):
        ongoing = peer.begin_call("leaf.gate.leaf.fast")
        await leaf.hear("tools/call")
        clock.ahead += TIMES["fast"] + 2 * SLACK_S - SOON_S
        look(node)
        assert len(node.node.calls.dispatch.under_way.calls) == 1
        clock.ahead += SOON_S
        look(node)
        data = (await ongoing.reply()).error["data"]
        assert data == {"timeout_ms": 5100, "latency_class": "fast", "hop": 3, "outcome": "unknown"}


@pytest.mark.req("AX-7.3-2")
async def test_a_batch_call_takes_the_time_it_takes_and_its_progress_passes(tmp_path: Path) -> None:
    ready = asyncio.Event()

    async def at_last(params: dict[str, Any]) -> Any:
        await ready.wait()
        return {"content": [{"type": "text", "text": "done"}]}

    async with (
        silent(tmp_path, 2, call=at_last) as (tree, leaf, clock),
        await HttpPeer.legacy(f"{tree[0].url}/mcp") as peer,
    ):
        await peer.listen()
        ongoing = peer.begin_call("l2.leaf.batch", meta={"progressToken": "mine"})
        request = await leaf.hear("tools/call")
        for minute in range(1, 11):
            clock.ahead += 60
            look(*tree)
            token = request["params"]["_meta"]["progressToken"]
            await leaf.notify("notifications/progress", {"progressToken": token, "progress": minute})
            told = await peer.hear("notifications/progress")
            assert told["params"] == {"progressToken": "mine", "progress": minute}
        ready.set()
        assert (await ongoing.reply()).result["content"][0]["text"] == "done"


@pytest.mark.req("AX-7.3-2")
@pytest.mark.parametrize("end", ["cancelled", "hung up", "lost"])
async def test_a_batch_call_ends_early_when_its_caller_goes_or_its_subserver_is_lost(tmp_path: Path, end: str) -> None:
    async with silent(tmp_path, 2) as (tree, leaf, clock):
        connect = HttpPeer.modern_ if end == "hung up" else HttpPeer.legacy
        async with await connect(f"{tree[0].url}/mcp") as peer:
            ongoing = peer.begin_call("l2.leaf.batch")
            request = await leaf.hear("tools/call")
            clock.ahead += 600
            look(*tree)
            assert [len(one.node.calls.dispatch.under_way.calls) for one in tree] == [1, 1]
            if end == "lost":
                leaf.cut()
                error = (await ongoing.reply()).error
                assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", "unknown")
            else:
                await peer.cancel(ongoing)
                cancelled = await leaf.hear("notifications/cancelled")
                assert cancelled["params"]["requestId"] == request["id"]
            await until(lambda: not any(one.node.calls.dispatch.under_way.calls for one in tree))


def test_deadlines_are_looked_at_when_they_are_due() -> None:
    calls: list[Any] = [SimpleNamespace(deadline=deadline) for deadline in (inf, 100.5, 100.03)]
    assert next_sweep_s(calls, 100.0) == pytest.approx(0.03)
    assert next_sweep_s(calls[:2], 100.0) == SWEEP_S
    assert next_sweep_s((), 100.0) == SWEEP_S
    assert 0 < next_sweep_s(calls, 100.03) < 0.01  # the loop woke early


@pytest.mark.parametrize(("link", "outcome"), [(None, "not_sent"), (object(), "unknown")])
def test_a_call_that_never_left_is_reported_as_not_sent(link: Any, outcome: str) -> None:
    call: Any = SimpleNamespace(timeout_s=30.0, link=link)
    assert timeout_refusal(call, None).details == {
        "timeout_ms": 30_000,
        "latency_class": "standard",
        "hop": 1,
        "outcome": outcome,
    }
