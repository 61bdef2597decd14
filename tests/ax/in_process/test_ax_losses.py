"""Subservers that are lost, come back, or are claimed by two (MCP-AX 13)."""

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.frozen_node import (
    Client,
    FrozenNode,
    Leaf,
    MemoryNetwork,
    advance_time,
    frozen_node,
    in_frozen_time,
    node_chain,
    run_until_idle,
    tool,
)
from tests.support.frozen_time import FrozenClock, FrozenLoop

from interlock.ax.ownership import Leases
from interlock.ax.parts import AxParts
from interlock.ax.protocol.registration.registrations import LivenessState
from interlock.core.clock import rfc3339
from interlock.core.store_backends import build_store
from interlock.store.ports import Store

CHANGED = "notifications/tools/list_changed"
LOST = "notifications/mcpax/subserver_lost"
GRACE_S = 300.0
LEASE_S = 15.0
INTERVAL_S = 5.0  # of nodes below nodes
BEAT_S = INTERVAL_S / 2


async def watching(node: FrozenNode) -> Client:
    client = node.client()
    await client.listen(toolsListChanged=True)
    return client


def names(tools: dict[str, Any]) -> set[str]:
    return {name for name in tools if not name.endswith("notifications_dropped")}


# Coming back


@pytest.mark.req("AX-13.1-2")
@pytest.mark.parametrize("changed", [False, True])
@in_frozen_time
async def test_a_returning_server_is_listed_again_and_clients_learn_of_it_only_if_something_differs(
    tmp_path: Path, changed: bool
) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        client = await watching(node)
        leaf.cut()
        await advance_time(10.0)
        offered = [tool("read", description="otherwise")] if changed else [tool("read")]
        again = await node.leaf(
            "bench", tools=offered, subserver_id=leaf.subserver_id, heartbeat_interval_ms=0
        ).joined()
        await advance_time(1.0)
        assert again.session != leaf.session
        assert "bench.read" in await client.tools()
        assert (await client.call("bench.read"))["result"]["content"][0]["text"] == "read ran"
        assert again.asked("tools/call") == 1
        assert len(client.heard(CHANGED)) == (1 if changed else 0)


@pytest.mark.req("AX-13.1-3")
@in_frozen_time
async def test_a_subserver_that_returns_with_another_schema_is_shown_and_called_with_the_new_schema(
    tmp_path: Path,
) -> None:
    schema = {"type": "object", "properties": {"bench": {"type": "integer"}}}
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        client = node.client()
        await client.tools()
        leaf.cut()
        await run_until_idle()
        assert (await client.tools())["bench.read"]["inputSchema"] == {"type": "object"}  # in its grace
        again = node.leaf("bench", subserver_id=leaf.subserver_id, heartbeat_interval_ms=0)
        again.tools = [tool("read", inputSchema=schema)]
        again.mute.add("tools/list")
        await again.joined()
        refused = (await client.call("bench.read"))["error"]
        assert (refused["message"], refused["data"]["reason"]) == ("tool_degraded", "relisting")
        (asked,) = [one for one in again.heard if one.get("method") == "tools/list"]
        result = {"resultType": "complete", "tools": again.tools, "ttlMs": 0, "cacheScope": "private"}
        again.say({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        await run_until_idle()
        assert (await client.tools())["bench.read"]["inputSchema"] == schema


@pytest.mark.req("AX-13.1-3")
@in_frozen_time
async def test_a_restarted_aggregator_lists_nothing_before_a_registration_and_has_kept_no_definition(
    tmp_path: Path,
) -> None:
    peculiar = "a description nobody else would write"
    schema = {"type": "object", "properties": {"peculiar_argument": {"type": "string"}}}
    offered = [tool("read", description=peculiar, inputSchema=schema)]
    subserver_id = str(uuid.uuid4())
    async with frozen_node(tmp_path) as node:
        await node.leaf("bench", tools=offered, subserver_id=subserver_id, authority="dns:a.example").joined()
        assert "bench.read" in await node.client().tools()
        await node.client().call("bench.read")
    kept = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert any(b"bench" in path.read_bytes() for path in kept)  # who owns it, and what was called
    for path in kept:
        for word in (peculiar.encode(), b"peculiar_argument"):
            assert word not in path.read_bytes(), path
    async with frozen_node(tmp_path) as node:
        assert names(await node.client().tools()) == set()
        leaf = node.leaf("bench", tools=offered, subserver_id=subserver_id, authority="dns:a.example")
        leaf.mute.add("tools/list")
        await leaf.joined()
        answer = node.client().begin("tools/list")
        await advance_time(11.0)  # longer than the first list waits for it
        assert names({one["name"]: one for one in answer.result()["result"]["tools"]}) == set()


# Missed beats


@pytest.mark.req("AX-6.3-2", "AX-13.3-3")
@pytest.mark.parametrize("answers", [True, False])
@in_frozen_time
async def test_two_missed_beats_end_nothing_and_only_a_silent_subserver_is_refused_calls(
    tmp_path: Path, answers: bool
) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[tool("read")], heartbeat_interval_ms=5000).joined()
        client = await watching(node)
        if not answers:
            leaf.mute.add("server/discover")
        for seconds in (10.1, 4.8):  # two intervals without a beat; until just before the third
            await advance_time(seconds)
            refused = not answers and seconds == 4.8
            assert node.state("bench") == ("degraded" if refused else "ready")
            assert ("error" in await client.call("bench.read")) is refused
            said = (await client.tools())["bench.read"]["_meta"]["x-mcpax-capability"]["availability"]
            assert said == ("degraded" if refused else "always")
        assert client.heard(LOST) == []
        await advance_time(0.2)
        assert [one["reason"] for one in client.heard(LOST)] == ["heartbeat_timeout"]
        assert leaf.closed == (1008, "heartbeat_timeout")


@pytest.mark.req("AX-13.1-1")
@pytest.mark.parametrize("reason", ["connection_lost", "heartbeat_timeout"])
@in_frozen_time
async def test_since_is_the_time_of_the_loss_and_not_that_of_the_notice(tmp_path: Path, reason: str) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FrozenLoop)
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[tool("read")], heartbeat_interval_ms=5000).joined()
        client, clock = await watching(node), FrozenClock()
        registered = clock.wall()
        if reason == "connection_lost":
            await advance_time(3.0)
            leaf.cut()
            lost = registered + 3.0
            await run_until_idle()
        else:
            loop.moved += 40.0  # the node did not run for so long
            lost = registered + 15.0  # three missed heartbeats
            await run_until_idle()
        await advance_time(60.0)
        (notice,) = client.heard(LOST)
        assert (notice["reason"], notice["since"]) == (reason, rfc3339(lost))


@pytest.mark.req("AX-13.1-1", "AX-12-6")
@pytest.mark.parametrize(("level", "hears"), [(None, True), ("warning", True), ("error", False)])
@in_frozen_time
async def test_a_plain_legacy_client_learns_of_a_loss_without_asking_for_logs(
    tmp_path: Path, level: str | None, hears: bool
) -> None:
    async with frozen_node(tmp_path) as node:
        client = await node.client().greet(level=level)
        leaf = await node.leaf("bench", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        leaf.notify("notifications/message", {"level": "error", "data": "its own"})
        leaf.cut()
        await run_until_idle()
        told = [one for one in client.heard("notifications/message") if one.get("logger") == "mcpax"]
        assert [(one["level"], one["data"]["event"], one["data"]["segment"]) for one in told] == (
            [("warning", "subserver_lost", "bench")] if hears else []
        )
        assert len(client.heard("notifications/message")) - len(told) == (level is not None)


# Calls under way


@pytest.mark.req("AX-13.1-4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@in_frozen_time
async def test_calls_under_way_end_with_the_link_say_what_is_known_and_are_not_made_again(
    tmp_path: Path, era: str
) -> None:
    begun: list[str] = []

    async def never(params: dict[str, Any]) -> Any:
        begun.append(params["name"])
        await asyncio.Event().wait()

    async with frozen_node(tmp_path) as node:
        offered = [tool("act", annotations={"idempotentHint": True, "destructiveHint": False})]
        leaf = await node.leaf("bench", tools=offered, heartbeat_interval_ms=0).joined()
        leaf.answer = never
        client = node.client()
        if era == "legacy":
            await client.greet()
        calls = [client.begin("tools/call", {"name": "bench.act", "arguments": {}}) for _ in range(3)]
        await run_until_idle()
        leaf.cut()
        await run_until_idle()  # no time passes: it is told as soon as it is known
        for call in calls:
            error = call.result()["error"]
            assert error["code"] == (-32002 if era == "legacy" else 32002)
            assert (error["data"]["reason"], error["data"]["outcome"]) == ("subserver_unreachable", "unknown")
        again = node.leaf("bench", tools=offered, subserver_id=leaf.subserver_id, heartbeat_interval_ms=0)
        again.answer = never
        await again.joined()
        await advance_time(60.0)
        assert len(begun) == 3
        assert again.asked("tools/call") == 0


@pytest.mark.req("AX-13.1-4")
@in_frozen_time
async def test_a_call_that_was_not_sent_says_so(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[tool("act")], heartbeat_interval_ms=0).joined()
        leaf.deaf = True  # its connection takes nothing any more, which the node does not know yet
        error = (await node.client().call("bench.act"))["error"]
        assert error["message"] == "tool_degraded"
        assert error["data"]["outcome"] == "not_sent"
        assert leaf.asked("tools/call") == 0


# The end of the grace


async def _lost(node: FrozenNode, **options: Any) -> Leaf:
    leaf = await node.leaf("bench", tools=[tool("read")], heartbeat_interval_ms=0, **options).joined()
    leaf.cut()
    await run_until_idle()
    return leaf


@pytest.mark.req("AX-13.2-4", "AX-13.2-2")  # a call is answered while time stands still
@pytest.mark.parametrize(("config", "grace_s"), [("", GRACE_S), ("[degraded]\ngrace_s = 20\n", 20.0)])
@in_frozen_time
async def test_degraded_tools_are_listed_until_the_grace_is_over_and_then_gone(
    tmp_path: Path, config: str, grace_s: float
) -> None:
    async with frozen_node(tmp_path, config) as node:
        client = await watching(node)
        await _lost(node)
        await advance_time(1.0)
        client.told.clear()
        await advance_time(grace_s - 2.0)
        assert names(await client.tools()) == {"bench.read"}
        assert (await client.call("bench.read"))["error"]["message"] == "tool_degraded"
        await advance_time(1.0)
        assert names(await client.tools()) == set()
        assert (await client.call("bench.read"))["error"]["code"] == -32601
        await advance_time(10.0)
        assert len(client.heard(CHANGED)) == 1


@pytest.mark.req("AX-13.2-4")
@in_frozen_time
async def test_a_return_one_second_before_the_end_of_the_grace_cancels_the_removal(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        client = await watching(node)
        leaf = await _lost(node)
        await advance_time(GRACE_S - 1.0)
        client.told.clear()
        await node.leaf("bench", tools=[tool("read")], subserver_id=leaf.subserver_id, heartbeat_interval_ms=0).joined()
        await advance_time(GRACE_S)
        assert "result" in await client.call("bench.read")
        assert client.heard(CHANGED) == []


# A whole subtree


@pytest.mark.req("AX-13.3-1", "AX-13.1-1")
@pytest.mark.parametrize("degraded", [True, False])
@pytest.mark.parametrize("how", ["cut", "frozen"])
@in_frozen_time
async def test_a_lost_aggregator_takes_all_below_it_along_in_one_change_and_one_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, degraded: bool, how: str
) -> None:
    config = {"root": f"[degraded]\nenabled = {str(degraded).lower()}\n"}
    wires = MemoryNetwork(monkeypatch)
    async with node_chain(tmp_path, wires, ["edge"], config) as (root, edge):
        for name in ("one", "two", "three"):
            await edge.leaf(name, tools=[tool("read")], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        client = await watching(root)
        below = {f"edge.{name}.read" for name in ("one", "two", "three")}
        assert names(await client.tools()) == below
        wires.down.add("root")
        (end,) = wires.ends["root"]
        if how == "cut":
            end.abort()
            await advance_time(1.0)
        else:
            end.frozen = True
            await advance_time(16.0)
        (told,) = client.heard(LOST)
        assert told["segment"] == "edge"
        assert told["reason"] == ("connection_lost" if how == "cut" else "heartbeat_timeout")
        tools = await client.tools()
        if degraded:
            said = {name: tools[name]["_meta"]["x-mcpax-capability"]["availability"] for name in names(tools)}
            assert said == dict.fromkeys(below, "degraded")
            assert client.heard(CHANGED) == []
        else:
            assert names(tools) == set()
            assert len(client.heard(CHANGED)) == 1


# Two that want the same


@pytest.mark.req("AX-13.3-3")
@pytest.mark.parametrize("how", ["cut", "frozen"])
@in_frozen_time
async def test_at_every_phase_of_the_beat_two_levels_are_back_before_three_intervals_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """root over east and west; gate below one of them, deep below gate, the leaf below deep. Each strike moves gate."""
    wires = MemoryNetwork(monkeypatch)
    above = {
        "root": "",
        "east": wires.config("root", "east"),
        "west": wires.config("root", "west"),
        "gate": wires.config("east", "gate") + wires.config("west", "gate"),
        "deep": wires.config("gate", "deep"),
    }
    async with contextlib.AsyncExitStack() as stack:
        for name, config in above.items():
            (tmp_path / name).mkdir()
            wires.houses[name] = await stack.enter_async_context(frozen_node(tmp_path / name, config))
            await advance_time(1.0)
        root, deep = wires.houses["root"], wires.houses["deep"]
        await deep.leaf("leaf", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        client = root.client()
        own = dict(zip(("east", "west"), wires.ends["root"], strict=True))
        for phase, (old, new) in zip(range(10), itertools.cycle([("east", "west"), ("west", "east")]), strict=False):
            await advance_time(1.0 + phase * BEAT_S / 10)
            assert "result" in await client.call(f"{old}.gate.deep.leaf.read"), phase
            wires.down.add(old)
            for end in (wires.ends[old][-1], own[old]):
                end.frozen = how == "frozen"
                if how == "cut":
                    end.abort()
            await advance_time(2 * INTERVAL_S)
            await root.until(lambda: wires.houses[new].state("gate") == "ready")  # noqa: B023 - within this turn
            await advance_time(INTERVAL_S - 0.1)
            assert "result" in await client.call(f"{new}.gate.deep.leaf.read"), phase
            assert (await client.call(f"{old}.gate.deep.leaf.read"))["error"]["code"] in (32002, -32601), phase
            wires.down.discard(old)
            await advance_time(1.0)
            await root.until(lambda: root.state(old) == "ready")  # noqa: B023 - within this turn
            own[old] = wires.ends["root"][-1]  # it is back, without its children


@pytest.mark.req("AX-13.4-5")
@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
@in_frozen_time
async def test_the_first_registrant_has_the_segment_in_every_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        async with frozen_node(folder) as node:
            rivals = {name: node.leaf("plant", heartbeat_interval_ms=0) for name in "abc"}
            for name in order:
                rivals[name].say(
                    {"jsonrpc": "2.0", "id": "r", "method": "mcpax/register", "params": rivals[name].register_params}
                )
                await node.until(lambda: any("id" in one for one in rivals[name].heard))  # noqa: B023
            won = [name for name, leaf in rivals.items() if "result" in leaf.heard[0]]
            assert won == [order[0]]


@contextlib.asynccontextmanager
async def two_houses(folder: Path) -> AsyncIterator[tuple[FrozenNode, FrozenNode]]:
    """Of one tree, on one store."""
    shared: Store = build_store("sqlite", folder / "shared")
    await shared.open()
    try:
        async with contextlib.AsyncExitStack() as stack:
            found = []
            for name in ("a", "b"):
                (folder / name).mkdir()
                opened = await stack.enter_async_context(frozen_node(folder / name))
                node = opened.node
                node.get(AxParts).registrar.leases = Leases(
                    shared.kv, node.stores.clock, node.stores.identity.aggregator_id, "default"
                )
                found.append(opened)
            yield found[0], found[1]
    finally:
        await shared.close()


def serves(node: FrozenNode) -> bool:
    standing = node.node.get(AxParts).registrar.engine.find("plant")
    return standing is not None and standing.state in (LivenessState.LIVE, LivenessState.SUSPECT)


async def settled(*nodes: FrozenNode) -> None:
    """Until no lease is being written."""
    for node in nodes:
        registrar = node.node.get(AxParts).registrar
        await node.until(lambda: not any(one.renewing for one in registrar._members.values()))  # noqa: B023
    await run_until_idle()


@pytest.mark.req("AX-13.4-5")
@pytest.mark.parametrize("gives_up", [True, False])
@in_frozen_time
async def test_after_a_partition_two_never_serve_one_subserver_for_longer_than_a_lease(
    tmp_path: Path, gives_up: bool
) -> None:
    async with two_houses(tmp_path) as (a, b):
        first = await a.leaf("plant", tools=[tool("read")]).joined()
        for _ in range(3):
            await first.beat()
            await settled(a)
            await advance_time(2.5)
        # From here on nothing of it reaches a, which cannot know that.
        clock = a.node.stores.clock
        cut_at = clock.now()
        both = 0.0
        released = {"released_session": first.session} if gives_up else {}
        second: Leaf | None = None
        while clock.now() - cut_at < 4 * LEASE_S:
            if second is None:
                at_b = b.leaf("plant", tools=[tool("read")], subserver_id=first.subserver_id, **released)
                answer = await at_b.register()
                if "result" in answer:
                    second, at_b.session = at_b, answer["result"]["session_id"]
                else:
                    assert answer["error"]["message"] == "split_brain"
                    assert serves(a) or clock.now() - cut_at < LEASE_S
            else:
                await second.beat()
                await settled(b)
            both += 1.0 if serves(a) and serves(b) else 0.0
            await advance_time(1.0)
        assert second is not None
        assert both <= LEASE_S
        assert (serves(a), serves(b)) == (False, True)
        if not gives_up:
            assert both == 0.0


@pytest.mark.req("AX-13.4-5")
@pytest.mark.parametrize("interval_ms", [5000, 0])
@in_frozen_time
async def test_a_subserver_that_still_speaks_to_its_aggregator_is_refused_by_another(
    tmp_path: Path, interval_ms: int
) -> None:
    async with two_houses(tmp_path) as (a, b):
        first = await a.leaf("plant", tools=[tool("read")], heartbeat_interval_ms=interval_ms).joined()
        for _ in range(20):
            if interval_ms:
                await first.beat()
            await settled(a)
            clone = b.leaf("plant", subserver_id=first.subserver_id, heartbeat_interval_ms=interval_ms)
            refused = (await clone.register())["error"]
            assert refused["data"]["holder_aggregator_id"] == a.node.stores.identity.aggregator_id
            await advance_time(2.5)
        assert (serves(a), serves(b)) == (True, False)
        assert json.dumps(first.heard).count("tools_refused") == 0
