"""Capability annotations on their way up a tree (MCP-AX 9.1, 9.2)."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.frozen_node import (
    Leaf,
    MemoryNetwork,
    advance_time,
    frozen_node,
    in_frozen_time,
    node_chain,
    run_until_idle,
    tool,
)

from interlock.config.plan import AccessRule

FULL = {
    "latency_class": "slow",
    "consistency": "eventual",
    "mutable": True,
    "reversible": True,
    "idempotent": True,
    "transport": "can_cbor",
    "auth_scope": "write",
    "cost_class": "expensive",
    "availability": "scheduled",
    "schema_version": "1.2.3-rc.1+b5",
    "x-vendor": {"deep": [1, None, 1208925819614629174706175]},
    "nothing": None,
}
VALUES = {
    "consistency": ["strong", "eventual", "best_effort"],
    "transport": ["native", "uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json"],
    "cost_class": ["free", "metered", "expensive"],
    "availability": ["always", "scheduled", "best_effort", "degraded"],
}


def annotation(shown: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = shown["_meta"]["x-mcpax-capability"]
    return found


@pytest.mark.req("AX-9.1-1", "AX-9.2-1")
@in_frozen_time
async def test_a_full_annotation_is_the_same_at_the_leaf_and_three_hops_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge", "gate"]) as (root, edge, gate):
        await gate.leaf("bench", tools=[tool("act", FULL)], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        for depth, (node, way) in enumerate([(gate, ""), (edge, "gate."), (root, "edge.gate.")], start=1):
            shown = (await node.client().tools())[f"{way}bench.act"]
            assert annotation(shown) == FULL
            assert list(annotation(shown)) == list(FULL)
            assert "x-mcpax-declared" not in shown["_meta"]
            assert shown["_meta"]["x-mcpax-hops"] == depth


@pytest.mark.req("AX-9.2-1")
@in_frozen_time
async def test_declared_annotations_stay_visible_beside_changed_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = """
[ax]
require_proof = "never"
[[tool]]
match = "bench.act"
mutable = false
cost_class = "free"
"""
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"], {"edge": rules}) as (root, edge):
        bold = {"destructiveHint": False, "idempotentHint": True, "title": "Bold"}
        claims = {**FULL, "transport": "native"}
        doubted = [tool("act", claims), tool("bold", annotations=bold)]
        await edge.leaf("bench", tools=[tool("act", FULL), tool("plain", FULL)], heartbeat_interval_ms=0).joined()
        await edge.leaf("rogue", tools=doubted, proved=False, heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        for node, way in ((edge, ""), (root, "edge.")):
            tools = await node.client().tools()
            declared = {
                name: tools[way + name]["_meta"].get("x-mcpax-declared")
                for name in ("bench.act", "bench.plain", "rogue.act", "rogue.bold")
            }
            assert declared == {
                "bench.act": {"mutable": True, "cost_class": "expensive"},
                "bench.plain": None,
                "rogue.act": None,
                "rogue.bold": None,
            }
            assert annotation(tools[f"{way}bench.act"])["mutable"] is False
            assert annotation(tools[f"{way}rogue.act"]) == claims
            assert bold.items() <= tools[f"{way}rogue.bold"]["annotations"].items()
            for name in ("act", "bold"):
                assert tools[f"{way}rogue.{name}"]["_meta"]["x-mcpax-safety"] == "irreversible_mutable"


@pytest.mark.req("AX-9.2-1")
@in_frozen_time
async def test_only_availability_changes_when_the_leaf_is_lost_and_its_own_word_stays_to_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"]) as (root, edge):
        leaf = await edge.leaf("bench", tools=[tool("act", FULL)], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        client = root.client()
        await client.listen(toolsListChanged=True)
        leaf.cut()
        await advance_time(1.0)
        shown = (await client.tools())["edge.bench.act"]
        assert annotation(shown) == {**FULL, "availability": "degraded"}
        assert shown["_meta"]["x-mcpax-declared"] == {"availability": "scheduled"}
        assert client.heard("notifications/tools/list_changed") == []  # names and schemas are what they were


@pytest.mark.req("AX-9.1-1")
@pytest.mark.parametrize(
    "wrong",
    [None, [], "fast", 7, True, {"latency_class": "quick"}, {"mutable": "false"}, {"schema_version": 1}],
)
@in_frozen_time
async def test_a_tool_with_an_annotation_outside_the_schema_is_withheld_and_reported(
    tmp_path: Path, wrong: object
) -> None:
    bad = {**tool("bad"), "_meta": {"x-mcpax-capability": wrong}}
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[bad, tool("good")]).joined()
        listed = await node.client().tools()
        assert "bench.good" in listed
        assert "bench.bad" not in listed
        assert (await node.client().call("bench.bad"))["error"]["code"] == -32601
        assert [one["name"] for one in node.link("bench")["withheld"]] == ["bad"]
        (told,) = [one for one in leaf.heard if one.get("method") == "notifications/mcpax/tools_refused"]
        assert [(one["name"], one["reason"]) for one in told["params"]["tools"]] == [("bad", "capability_invalid")]


@pytest.mark.req("AX-9.1-4", "AX-9.1-7", "AX-9.1-10")
@pytest.mark.parametrize("key", VALUES)
@in_frozen_time
async def test_every_value_of_a_key_reaches_clients_unchanged_and_any_other_withholds_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    offered = [tool(f"is_{value}", {**FULL, key: value}) for value in VALUES[key]]
    wrong = [tool(f"odd_{number}", {**FULL, key: value}) for number, value in enumerate(["other", "", None, 1, []])]
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"]) as (root, edge):
        await edge.leaf("bench", tools=[*offered, *wrong], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        listed = await root.client().tools()
        for value in VALUES[key]:
            assert annotation(listed[f"edge.bench.is_{value}"])[key] == value
        assert not [name for name in listed if "odd" in name]


@pytest.mark.req("AX-9.1-7")
@in_frozen_time
async def test_the_transport_is_filled_from_the_registration_and_no_stub_can_claim_another(tmp_path: Path) -> None:
    silent = {key: value for key, value in FULL.items() if key != "transport"}
    offered = [
        tool("silent", silent),
        tool("none"),
        tool("honest", {**FULL, "transport": "uart_cbor"}),
        tool("liar", {**FULL, "transport": "native"}),
    ]
    async with frozen_node(tmp_path) as node:
        await node.leaf("stub", tools=offered, transport_class="uart_cbor").joined()
        listed = await node.client().tools()
        for name in ("silent", "none", "honest"):
            assert annotation(listed[f"stub.{name}"])["transport"] == "uart_cbor", name
        assert "stub.liar" not in listed
        (withheld,) = node.link("stub")["withheld"]
        assert "uart_cbor" in withheld["reason"]


@pytest.mark.req("AX-9.1-10")
@in_frozen_time
async def test_a_leaf_may_call_itself_degraded_and_is_called_all_the_same(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        weak = tool("weak", {**FULL, "availability": "degraded"})
        leaf = await node.leaf("bench", tools=[weak, tool("strong", FULL)], heartbeat_interval_ms=0).joined()
        client = node.client()
        assert (await client.call("bench.weak"))["result"]["content"][0]["text"] == "weak ran"
        leaf.cut()
        await run_until_idle()
        for name in ("bench.weak", "bench.strong"):
            assert annotation((await client.tools())[name])["availability"] == "degraded"
            refused = (await client.call(name))["error"]
            assert (refused["message"], refused["data"]["reason"]) == ("tool_degraded", "subserver_unreachable")
        assert leaf.asked("tools/call") == 1


@pytest.mark.req("AX-9.1-11")
@in_frozen_time
async def test_a_schema_version_is_a_semantic_version_and_another_version_is_another_definition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = ["1.0.0", "0.1.0-rc.1+b5"], ["1.0", "v1.0.0", "01.0.0", "", 1]
    versions = [*good, *bad]
    offered = [tool(f"t{number}", {**FULL, "schema_version": one}) for number, one in enumerate(versions)]
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=offered, heartbeat_interval_ms=0).joined()
        listed = await node.client().tools()
        assert {name for name in listed if name.startswith("bench.")} == {"bench.t0", "bench.t1"}
        leaf.tools = [tool("t0", {**FULL, "schema_version": "2.0.0"}), offered[1]]
        with caplog.at_level(logging.WARNING, "interlock.ax"):
            leaf.notify("notifications/tools/list_changed")
            await run_until_idle()
        assert "the definition of bench.t0 changed" in caplog.text
        assert "bench.t1 changed" not in caplog.text


# What a hop adds and raises


@pytest.mark.req("AX-9.2-2")
@in_frozen_time
async def test_hops_are_counted_by_aggregators_whatever_a_leaf_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boastful = {**tool("near"), "_meta": {"x-mcpax-hops": 7}}
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge", "gate"]) as (root, edge, gate):
        await gate.leaf("bench", tools=[boastful], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        hops = [
            (await node.client().tools())[f"{way}bench.near"]["_meta"]["x-mcpax-hops"]
            for node, way in ((gate, ""), (edge, "gate."), (root, "edge.gate."))
        ]
        assert hops == [1, 2, 3]


def _slow(leaf: Leaf, seconds: float) -> None:
    async def answer(params: dict[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return {"content": [{"type": "text", "text": "at last"}]}

    leaf.answer = answer


REALTIME = {**FULL, "latency_class": "realtime"}


@pytest.mark.req("AX-9.2-3")
@in_frozen_time
async def test_a_realtime_tool_behind_a_slow_link_is_listed_as_fast_after_twenty_calls(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("far", tools=[tool("act", REALTIME)], heartbeat_interval_ms=0).joined()
        _slow(leaf, 2.0)
        client = node.client()

        async def called() -> dict[str, Any]:
            await advance_time(0.03)
            answer = client.begin("tools/call", {"name": "far.act", "arguments": {}})
            await advance_time(2.5)
            return answer.result()

        for number in range(20):
            assert annotation((await client.tools())["far.act"])["latency_class"] == "realtime", number
            assert (await called())["error"]["message"] == "call_timeout"
        assert annotation((await client.tools())["far.act"])["latency_class"] == "realtime"  # lists do not flicker
        await advance_time(60.0)
        shown = (await client.tools())["far.act"]
        assert annotation(shown)["latency_class"] == "fast"
        assert shown["_meta"]["x-mcpax-declared"] == {"latency_class": "realtime"}
        assert (await called())["result"]["content"][0]["text"] == "at last"


@pytest.mark.req("AX-9.2-3")
@in_frozen_time
async def test_a_link_the_operator_calls_slow_raises_at_once_and_gives_the_time_of_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = AccessRule(who=("*",), link_latency_ms=700)
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"]) as (root, edge):
        leaf = await edge.leaf("far", tools=[tool("act", REALTIME)], rule=rule, heartbeat_interval_ms=0).joined()
        _slow(leaf, 4.9)
        await advance_time(1.0)
        for node, name in ((edge, "far.act"), (root, "edge.far.act")):
            client = node.client()
            shown = (await client.tools())[name]
            assert annotation(shown) == {**FULL, "latency_class": "fast"}
            assert shown["_meta"]["x-mcpax-declared"] == {"latency_class": "realtime"}
            answer = client.begin("tools/call", {"name": name, "arguments": {}})
            await advance_time(5.5)
            assert "result" in answer.result()


@pytest.mark.req("AX-9.2-4")
@in_frozen_time
async def test_a_class_is_never_lowered_however_fast_the_answers_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge", "gate"]) as (root, edge, gate):
        leaf = await gate.leaf("near", tools=[tool("act", FULL)], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        client = root.client()
        for _ in range(30):
            assert "result" in await client.call("edge.gate.near.act")
        await advance_time(61.0)
        for node, name in ((gate, "near.act"), (edge, "gate.near.act"), (root, "edge.gate.near.act")):
            assert annotation((await node.client().tools())[name])["latency_class"] == "slow"
        assert leaf.asked("tools/call") == 30


@pytest.mark.req("AX-9.2-4")
@in_frozen_time
async def test_a_class_that_was_raised_stays_raised_for_the_session_and_no_longer(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("far", tools=[tool("act", REALTIME)], heartbeat_interval_ms=0).joined()
        _slow(leaf, 2.0)
        client = node.client()
        client.begin("tools/call", {"name": "far.act", "arguments": {}})
        await advance_time(0.03)
        for _ in range(20):
            client.begin("tools/call", {"name": "far.act", "arguments": {}})
        await advance_time(61.0)
        assert annotation((await client.tools())["far.act"])["latency_class"] == "fast"
        leaf.answer = lambda params: {"content": []}
        for _ in range(100):
            assert "result" in await client.call("far.act")
        await advance_time(61.0)
        assert annotation((await client.tools())["far.act"])["latency_class"] == "fast"
        again = await node.leaf(
            "far", tools=[tool("act", REALTIME)], subserver_id=leaf.subserver_id, heartbeat_interval_ms=0
        ).joined()
        assert again.closed is None
        assert annotation((await client.tools())["far.act"])["latency_class"] == "realtime"
