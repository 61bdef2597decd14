"""Notifications of subservers on their way up a tree (MCP-AX 12)."""

import asyncio
from collections.abc import Mapping
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

from interlock.config.load import load
from interlock.config.problems import ConfigInvalid

TICK = "notifications/vendor/tick"
OVERFLOW = "notifications/mcpax/notification_overflow"
WIDE = "[ax]\nnotify_per_s = 100000\nnotify_buffer = 100000\n"
EXTENSION = {"dev.interlock/ax": {}}


def ticks(client: Client, origin: str) -> list[int]:
    return [one["n"] for one in client.heard(TICK) if one["_meta"]["x-mcpax-origin"] == origin]


async def dropped(node: FrozenNode, name: str = "notifications_dropped") -> dict[str, Any]:
    counts: dict[str, Any] = (await node.client().call(name))["result"]["structuredContent"]
    return counts


async def hearing(node: FrozenNode, era: str = "modern") -> Client:
    client = node.client()
    if era == "modern":
        await client.listen()
    else:
        await client.greet(**EXTENSION)
    return client


@pytest.mark.req("AX-12-2")
@in_frozen_time
async def test_ten_thousand_arrive_in_order_through_three_hops_while_another_floods_and_calls_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"root": WIDE, "edge": WIDE}  # only the lowest hop drops, so that every gap can be accounted for
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge", "gate"], wide) as (root, _, gate):
        teller = await gate.leaf("teller", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        flooder = await gate.leaf("flooder", heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        client = await hearing(root)
        for number in range(10_000):
            teller.notify(TICK, {"n": number})
            if number % 50 == 0:
                for extra in range(100):
                    flooder.notify(TICK, {"n": number * 100 + extra})
                assert "result" in await client.call("edge.gate.teller.read")
                await advance_time(0.02)
        await advance_time(20.0)
        for segment, sent in (("teller", 10_000), ("flooder", 20_000)):
            arrived = ticks(client, f"edge.gate.{segment}")
            assert arrived == sorted(set(arrived))
            told = [one["dropped"] for one in client.heard(OVERFLOW) if one["segment"] == f"edge.gate.{segment}"]
            assert len(arrived) + sum(told) == sent
            assert 0 < sum(told) < sent
        assert ticks(client, "edge.gate.teller")[-1] == 9999


@pytest.mark.req("AX-12-3")
@in_frozen_time
async def test_a_burst_of_150_passes_100_at_once_and_the_rest_at_the_rate(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        loud, quiet = [await node.leaf(name, heartbeat_interval_ms=0).joined() for name in ("loud", "quiet")]
        client = await hearing(node)
        for number in range(150):
            loud.notify(TICK, {"n": number})
        for number in range(50):
            quiet.notify(TICK, {"n": number})
        await run_until_idle()
        assert ticks(client, "loud") == list(range(100))
        assert ticks(client, "quiet") == list(range(50))
        await advance_time(0.25)
        assert ticks(client, "loud") == list(range(125))
        await advance_time(0.25)
        assert ticks(client, "loud") == list(range(150))


@pytest.mark.req("AX-12-3")
@in_frozen_time
async def test_the_rate_is_a_setting(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, "[ax]\nnotify_per_s = 5\n") as node:
        leaf = await node.leaf("loud", heartbeat_interval_ms=0).joined()
        client = await hearing(node)
        for number in range(10):
            leaf.notify(TICK, {"n": number})
        await run_until_idle()
        assert ticks(client, "loud") == list(range(5))
        await advance_time(0.61)
        assert ticks(client, "loud") == list(range(8))


PROGRESS = "notifications/progress"
NEWS = "notifications/tasks"
TASKS = "io.modelcontextprotocol/tasks"


async def progressing(client: Client, leaf: Leaf, token: str) -> tuple[Any, asyncio.Future[Any]]:
    """A call that waits for `answered`; and the token its server knows."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def wait() -> Any:
        return await answered

    leaf.answer = lambda params: wait()
    client.begin("tools/call", {"name": f"{leaf.segment}.read", "arguments": {}}, {"progressToken": token})
    await run_until_idle()
    return leaf.heard[-1]["params"]["_meta"]["progressToken"], answered


def progress(client: Client, token: str) -> list[int]:
    return [one["progress"] for one in client.heard(PROGRESS) if one["progressToken"] == token]


@pytest.mark.req("AX-12-3")
@in_frozen_time
async def test_progress_above_the_rate_is_coalesced_per_call_and_the_loss_is_counted(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        loud, quiet = [
            await node.leaf(name, tools=[tool("read")], heartbeat_interval_ms=0).joined() for name in ("loud", "quiet")
        ]
        client = await hearing(node)
        one, first = await progressing(client, loud, "one")
        two, second = await progressing(client, loud, "two")
        other, third = await progressing(client, quiet, "other")
        for number in range(120):
            loud.notify(PROGRESS, {"progressToken": one, "progress": number})
        loud.notify(TICK, {"n": 0})
        for number in range(10):
            loud.notify(PROGRESS, {"progressToken": two, "progress": number})
            quiet.notify(PROGRESS, {"progressToken": other, "progress": number})
        await run_until_idle()
        assert progress(client, "one") == list(range(100))
        assert progress(client, "two") == []
        assert progress(client, "other") == list(range(10))
        await advance_time(0.05)
        assert progress(client, "one") == [*range(100), 119]
        assert progress(client, "two") == [9]
        order = [one["params"].get("progressToken", "tick") for one in client.told]
        assert [one for one in order if one != "other"][-3:] == ["one", "tick", "two"]
        assert await dropped(node) == {"total": 28, "by_segment": {"loud": 28}}
        assert client.heard(OVERFLOW) == []
        for answered in (first, second, third):
            answered.set_result({"content": []})
        await run_until_idle()


@pytest.mark.req("AX-12-3")
@in_frozen_time
async def test_news_of_tasks_above_the_rate_are_coalesced_per_task(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, "[ax]\nnotify_per_s = 5\n") as node:
        leaf = node.leaf("loud", tools=[tool("job")], heartbeat_interval_ms=0)
        leaf.offers = {"extensions": {TASKS: {}}}
        await leaf.joined()
        at = "2026-11-17T00:00:00Z"
        state = {"taskId": "t1", "status": "working", "createdAt": at, "lastUpdatedAt": at, "ttlMs": None}
        leaf.answer = lambda params: {"resultType": "task", **state}
        client = node.client()
        declared = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
        made = await client.request("tools/call", {"name": "loud.job", "arguments": {}}, meta=declared)
        ours = made["result"]["taskId"]
        client.begin("subscriptions/listen", {"notifications": {"taskIds": [ours]}}, declared)
        await run_until_idle()
        for number in range(20):
            leaf.notify(NEWS, {**state, "statusMessage": str(number)})
        await run_until_idle()
        assert [one["statusMessage"] for one in client.heard(NEWS)] == ["0", "1", "2", "3", "4"]
        await advance_time(5.0)
        assert [one["statusMessage"] for one in client.heard(NEWS)] == ["0", "1", "2", "3", "4", "19"]
        assert await dropped(node) == {"total": 14, "by_segment": {"loud": 14}}


@pytest.mark.req("AX-12-3")
@in_frozen_time
async def test_progress_that_its_answer_overtook_is_counted_and_goes_to_no_other_call(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, "[ax]\nnotify_per_s = 1\n") as node:
        leaf = await node.leaf("loud", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        client = await hearing(node)
        token, answered = await progressing(client, leaf, "mine")
        for number in range(3):
            leaf.notify(PROGRESS, {"progressToken": token, "progress": number})
        answered.set_result({"content": []})
        await advance_time(5.0)
        assert progress(client, "mine") == [0]
        assert await dropped(node) == {"total": 2, "by_segment": {"loud": 2}}


@pytest.mark.req("AX-12-3")
@in_frozen_time
async def test_progress_of_no_call_takes_nothing_from_the_rate(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, "[ax]\nnotify_per_s = 1\n") as node:
        leaf = await node.leaf("loud", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        client = await hearing(node)
        for odd in (None, {}, {"progressToken": 10**30}, {"progressToken": "x"}, {"progressToken": [1]}):
            leaf.notify(PROGRESS, odd)
        leaf.notify(TICK, {"n": 7})
        await run_until_idle()
        assert ticks(client, "loud") == [7]


@pytest.mark.req("AX-12-3")
@pytest.mark.parametrize("key", ["notify_per_s", "notify_buffer"])
def test_a_rate_or_a_buffer_of_nothing_is_no_setting(tmp_path: Path, key: str) -> None:
    file = tmp_path / "interlock.toml"
    file.write_text(f"[ax]\n{key} = 0\n")
    with pytest.raises(ConfigInvalid, match=key):
        load(file, {}, {"data": str(tmp_path / "data")})


async def _flood(leaf: Leaf, count: int = 1200) -> None:
    for number in range(count):
        leaf.notify(TICK, {"n": number})
    await run_until_idle()


@pytest.mark.req("AX-12-4", "AX-12-6")
@in_frozen_time
async def test_of_1200_at_once_the_hundred_oldest_that_wait_are_dropped_and_reported_in_their_place(
    tmp_path: Path,
) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("loud", heartbeat_interval_ms=0).joined()
        client = await hearing(node)
        began = node.node.stores.clock.wall()
        await _flood(leaf)
        assert ticks(client, "loud") == list(range(100))
        await advance_time(15.0)
        assert ticks(client, "loud") == [*range(100), *range(200, 1200)]
        (told,) = client.heard(OVERFLOW)
        assert (told["segment"], told["dropped"]) == ("loud", 100)
        assert told["since"].endswith("Z")
        assert abs(_wall(told["since"]) - began) <= 1.0
        order = [one["params"].get("n", "gap") for one in client.told if one.get("method") in (TICK, OVERFLOW)]
        assert order[100:102] == ["gap", 200]


def _wall(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


@pytest.mark.req("AX-12-4")
@in_frozen_time
async def test_the_depth_of_the_buffer_is_a_setting(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, "[ax]\nnotify_buffer = 10\n") as node:
        leaf = await node.leaf("loud", heartbeat_interval_ms=0).joined()
        client = await hearing(node)
        await _flood(leaf, 150)
        await advance_time(5.0)
        assert ticks(client, "loud") == [*range(100), *range(140, 150)]


@pytest.mark.req("AX-12-6")
@in_frozen_time
async def test_an_endless_flood_is_reported_once_a_second(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("loud", heartbeat_interval_ms=0).joined()
        client = await hearing(node)
        for _ in range(100):
            await _flood(leaf, 100)
            await advance_time(0.1)
        told = client.heard(OVERFLOW)
        assert 8 <= len(told) <= 10
        await advance_time(20.0)
        assert len(ticks(client, "loud")) + sum(one["dropped"] for one in client.heard(OVERFLOW)) == 10_000


@pytest.mark.req("AX-12-6")
@in_frozen_time
async def test_plain_legacy_clients_are_informed_in_their_log(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("loud", heartbeat_interval_ms=0).joined()
        client = await node.client().greet()
        await _flood(leaf)
        await advance_time(1.0)
        (log,) = client.heard("notifications/message")
        assert (log["level"], log["logger"]) == ("warning", "mcpax")
        assert (log["data"]["event"], log["data"]["dropped"]) == ("notification_overflow", 100)
        assert client.heard(OVERFLOW) == []


@pytest.mark.req("AX-12-5")
@in_frozen_time
async def test_each_aggregator_of_the_tree_counts_its_own_drops_in_a_tool_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"root": WIDE + 'root_segment = "infra"\n'}
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"], config) as (root, edge):
        first, second = [await edge.leaf(name, heartbeat_interval_ms=0).joined() for name in ("one", "two")]
        await advance_time(1.0)
        tools = await root.client().tools()
        for name in ("infra.notifications_dropped", "infra.edge.notifications_dropped"):
            said = tools[name]["_meta"]["x-mcpax-capability"]
            assert (said["mutable"], said["cost_class"], said["latency_class"]) == (False, "free", "realtime")
            assert await dropped(root, name) == {"total": 0, "by_segment": {}}
        await _flood(first, 1200)
        await _flood(second, 1107)
        counted = {"total": 107, "by_segment": {"one": 100, "two": 7}}
        assert await dropped(root, "infra.edge.notifications_dropped") == counted
        assert await dropped(edge) == counted  # reading resets nothing
        assert await dropped(root, "infra.notifications_dropped") == {"total": 0, "by_segment": {}}


UPPER = "550E8400-E29B-41D4-A716-446655440000"
IDS: list[dict[str, Any]] = [
    {"x-mcpax-event-id": UPPER, "x-mcpax-causal-parent": None},
    {"x-mcpax-event-id": UPPER.lower(), "x-mcpax-causal-parent": UPPER},
    {"x-mcpax-event-id": "not a uuid", "x-mcpax-causal-parent": {"odd": [7]}},
    {"x-mcpax-causal-parent": None},
    {},
]


@pytest.mark.req("AX-12-7")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("place", ["_meta", "params"])
@in_frozen_time
async def test_event_ids_arrive_as_they_were_sent_after_three_hops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str, place: str
) -> None:
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge", "gate"]) as (root, _, gate):
        leaf = await gate.leaf("bell", heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        client = await hearing(root, era)
        for keys in IDS:
            leaf.notify(TICK, {"_meta": keys} if place == "_meta" else keys)
        await advance_time(1.0)
        heard = client.heard(TICK)
        assert [_ids(one["_meta"] if place == "_meta" else one) for one in heard] == IDS
        assert all(_ids(one if place == "_meta" else one["_meta"]) == {} for one in heard)


def _ids(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key.startswith(("x-mcpax-event", "x-mcpax-causal"))}


@pytest.mark.req("AX-12-8")
@in_frozen_time
async def test_our_own_events_have_ids_and_a_child_is_reported_before_its_parent_comes(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        late, early = [await node.leaf(name, heartbeat_interval_ms=0).joined() for name in ("late", "early")]
        client = await hearing(node)
        early.notify(TICK, {"n": 2, "_meta": {"x-mcpax-event-id": UPPER, "x-mcpax-causal-parent": UPPER.lower()}})
        await run_until_idle()
        assert ticks(client, "early") == [2]
        late.notify(TICK, {"n": 1, "_meta": {"x-mcpax-event-id": UPPER.lower()}})
        await run_until_idle()
        assert ticks(client, "late") == [1]
        await _flood(late)
        early.cut()
        await advance_time(1.0)
        own = [*client.heard(OVERFLOW), *client.heard("notifications/mcpax/subserver_lost")]
        ids = [one["_meta"]["x-mcpax-event-id"] for one in own]
        assert len(ids) == len(set(ids)) == 2
        assert all(len(one) == 36 for one in ids)
