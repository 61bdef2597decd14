"""What a tree lists: names, and how long a list is believed (MCP-AX 4.1, 4.2, 4.3, 5.1)."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
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

TTL_S = 60


def names(tools: dict[str, Any]) -> set[str]:
    return set(tools) - {"notifications_dropped"}


# Names


@pytest.mark.req("AX-4.1-1", "AX-3.1-4", "AX-7.1-1")
@in_frozen_time
async def test_the_name_of_the_draft_is_made_of_root_aggregator_leaf_and_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infra = '[ax]\nroot_segment = "infra"\n'
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"], {"root": infra}) as (root, edge):
        await edge.leaf("stm32h7", tools=[tool("dma2d_status")]).joined()
        await advance_time(1.0)
        client = root.client()
        assert "infra.edge.stm32h7.dma2d_status" in await client.tools()
        assert "stm32h7.dma2d_status" in await edge.parent().tools()
        tables = {**root.node.operations.tools.routes(), **edge.node.operations.tools.routes()}
        assert tables["infra.edge.stm32h7.dma2d_status"].downstream_name == "stm32h7.dma2d_status"
        assert tables["stm32h7.dma2d_status"].downstream_name == "dma2d_status"
        assert "result" in await client.call("infra.edge.stm32h7.dma2d_status")
        for odd in (
            ".infra.edge.stm32h7.dma2d_status",
            "infra.edge.stm32h7.dma2d_status.",
            "infra..edge.stm32h7.dma2d_status",
            "infra.edge.stm32h7..dma2d_status",
            ".",
            "",
        ):
            assert (await client.call(odd))["error"]["code"] == -32601, odd
        assert not [one for one in await client.tools() if "" in one.split(".")]


@pytest.mark.req("AX-4.1-4")
@in_frozen_time
async def test_a_name_of_255_characters_is_listed_and_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, gate, leaf = "e" * 63, "g" * 63, "l" * 63  # three and their dots are 192 characters: 63 are left
    offered = [tool("t" * 63), tool("short")]
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), [edge, gate]) as (root, _, low):
        await low.leaf(leaf, tools=offered).joined()
        await advance_time(1.0)
        longest = f"{edge}.{gate}.{leaf}.{'t' * 63}"
        assert len(longest) == 255
        client = root.client()
        assert longest in await client.tools()
        assert (await client.call(longest))["result"]["content"][0]["text"] == f"{'t' * 63} ran"


@pytest.mark.req("AX-4.1-4")
@in_frozen_time
async def test_a_name_too_long_for_the_root_stays_listed_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infra = '[ax]\nroot_segment = "r"\n'
    edge, gate, leaf = "e" * 63, "g" * 63, "l" * 63
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), [edge, gate], {"root": infra}) as (root, middle, low):
        await low.leaf(leaf, tools=[tool("t" * 62), tool("t" * 61)]).joined()
        await advance_time(1.0)
        at_root, at_edge = await root.client().tools(), await middle.client().tools()
        too_long, just = f"{gate}.{leaf}.{'t' * 62}", f"{gate}.{leaf}.{'t' * 61}"
        assert len(f"r.{edge}.{too_long}") == 256
        assert {too_long, just} <= names(at_edge)
        assert f"r.{edge}.{just}" in at_root
        assert f"r.{edge}.{too_long}" not in at_root
        (withheld,) = [one for one in root.link(edge)["withheld"] if one["name"] == too_long]
        assert "256 characters, the limit is 255" in withheld["reason"]
        assert (await root.client().call(f"r.{edge}.{too_long}"))["error"]["code"] == -32601


@pytest.mark.req("AX-4.2-1")
@in_frozen_time
async def test_a_registration_is_answered_before_the_tools_are_asked_for(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[tool("read")]).joined()
        said = [one.get("method", "the answer") for one in leaf.heard]
        assert said[0] == "the answer"
        assert said.index("server/discover") < said.index("tools/list")
        assert "bench.read" in await node.client().tools()


@pytest.mark.req("AX-4.2-1")
@in_frozen_time
async def test_a_subserver_that_never_lists_stays_registered_without_tools_and_is_reported_after_five_seconds(
    tmp_path: Path,
) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = node.leaf("mute", tools=[tool("read")], heartbeat_interval_ms=0)
        leaf.mute.add("tools/list")
        await leaf.joined()
        await advance_time(4.9)
        assert node.link("mute")["reason"] is None
        await advance_time(0.2)
        shown = node.link("mute")
        assert (shown["state"], shown["tools"]) == ("slow", 0)
        assert "tools/list was not answered within 5 s" in shown["reason"]
        assert shown["registration"]["liveness"] == "live"
        assert names(await node.client().tools()) == set()


@pytest.mark.req("AX-4.3-1")
@pytest.mark.parametrize("listed", [["a.b"], ["fine", "a.b"]])
@in_frozen_time
async def test_a_leaf_that_lists_a_dot_is_ended_and_none_of_its_tools_is_shown(
    tmp_path: Path, listed: list[str]
) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("dotted", tools=[tool(name) for name in listed]).joined()
        (told,) = [one for one in leaf.heard if one.get("method") == "notifications/mcpax/tools_refused"]
        assert [(one["name"], one["reason"]) for one in told["params"]["tools"]] == [("a.b", "namespace_invalid")]
        assert leaf.closed == (1008, "namespace_invalid: a.b")
        assert node.state("dotted") is None
        page = await node.node.operations.audit.page(0, 100)
        records = [msgspec.json.decode(record) for record in page.records]
        ended = [one["reason"] for one in records if (one["method"], one["tool"]) == ("mcpax/deregister", "dotted")]
        assert ended == ["namespace_invalid"]
        assert names(await node.client().tools()) == set()


@pytest.mark.req("AX-4.3-1")
@pytest.mark.parametrize(("listed", "passes"), [("x.y.z", True), ("x..z", False), ("X.y", False), (".x", False)])
@in_frozen_time
async def test_an_aggregator_lists_dots_between_valid_segments_only(tmp_path: Path, listed: str, passes: bool) -> None:
    own_id = "0b5f33c5-6d5c-4c3e-9a0e-1f6a5c1f4a11"
    async with frozen_node(tmp_path) as node:
        below = node.leaf("sub", tools=[tool(listed)], subserver_id=own_id)
        below.register_params["x-mcpax-subtree-ids"] = [own_id]
        await below.joined()
        assert (f"sub.{listed}" in await node.client().tools()) is passes
        assert (below.closed is None) is passes


# How long a list is believed


@pytest.mark.req("AX-5.1-1")
@in_frozen_time
async def test_within_its_life_a_list_is_asked_for_once_and_answered_alike_to_clients_and_parents(
    tmp_path: Path,
) -> None:
    async with frozen_node(tmp_path) as node:
        leaves = [await node.leaf(name, tools=[tool("read")], heartbeat_interval_ms=0).joined() for name in "ab"]
        client, parent = node.client(), node.parent()
        answers = []
        for who in (client, parent, client):
            answers.append((await who.request("tools/list"))["result"])
            await advance_time(19.0)
        assert answers[0]["tools"] == answers[1]["tools"] == answers[2]["tools"]
        assert [leaf.asked("tools/list") for leaf in leaves] == [1, 1]


@pytest.mark.req("AX-5.1-1")
@pytest.mark.parametrize("how", ["registered", "deregistered", "list_changed", "degraded"])
@in_frozen_time
async def test_a_reported_change_ends_the_life_of_the_list_at_once(tmp_path: Path, how: str) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("a", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        client = node.client()
        assert names(await client.tools()) == {"a.read"}
        if how == "registered":
            await node.leaf("b", tools=[tool("read")], heartbeat_interval_ms=0).joined()
            assert names(await client.tools()) == {"a.read", "b.read"}
        elif how == "deregistered":
            await leaf.request("mcpax/deregister", {"session_id": leaf.session})
            assert names(await client.tools()) == set()
        elif how == "list_changed":
            leaf.tools = [tool("write")]
            leaf.notify("notifications/tools/list_changed")
            await run_until_idle()
            assert names(await client.tools()) == {"a.write"}
        else:
            leaf.cut()
            await run_until_idle()
            shown = (await client.tools())["a.read"]
            assert shown["_meta"]["x-mcpax-capability"]["availability"] == "degraded"


@pytest.mark.req("AX-5.1-2")
@in_frozen_time
async def test_an_old_list_is_asked_for_once_however_many_want_it_and_read_to_its_last_page(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        many = [tool(f"t{number:03}") for number in range(250)]
        leaf = node.leaf("a", tools=many, heartbeat_interval_ms=0, page=100)
        other = node.leaf("b", tools=[tool("read")], heartbeat_interval_ms=0)
        await leaf.joined()
        await other.joined()
        assert (leaf.asked("tools/list"), other.asked("tools/list")) == (3, 1)
        await advance_time(TTL_S)
        clients = [node.client() for _ in range(50)]
        answers = []
        for client in clients:
            answers.append(client.begin("tools/list"))
            await asyncio.sleep(0)  # they do not all come in one turn
        await run_until_idle()
        for answer in answers:
            assert len(answer.result()["result"]["tools"]) == 252
        assert (leaf.asked("tools/list"), other.asked("tools/list")) == (6, 2)


@pytest.mark.req("AX-5.1-2")
@pytest.mark.parametrize("fault", ["hangs", "refuses"])
@in_frozen_time
async def test_a_subserver_that_does_not_list_again_keeps_its_tools_and_delays_no_other(
    tmp_path: Path, fault: str
) -> None:
    async with frozen_node(tmp_path) as node:
        bad = await node.leaf("bad", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        good = await node.leaf("good", tools=[tool("old")], heartbeat_interval_ms=0).joined()
        await advance_time(TTL_S)
        (bad.mute if fault == "hangs" else bad.refuses).add("tools/list")
        good.tools = [tool("new")]
        answer = node.client().begin("tools/list")
        await advance_time(5.0)
        assert {one["name"] for one in answer.result()["result"]["tools"]} >= {"bad.read", "good.new"}
        await advance_time(0.1)
        shown = node.link("bad")
        assert shown["state"] == "slow"
        assert "tools/list" in shown["reason"]
        assert "result" in await node.client().call("bad.read")


@pytest.mark.req("AX-5.1-2")
@in_frozen_time
async def test_a_subserver_that_did_not_answer_is_listed_again_when_its_list_is_old(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bad", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        await advance_time(TTL_S)
        leaf.mute.add("tools/list")
        answer = node.client().begin("tools/list")
        await advance_time(6.0)
        assert answer.done()
        leaf.mute.clear()
        leaf.tools = [tool("write")]
        asked = leaf.asked("tools/list")
        assert names(await node.client().tools()) == {"bad.read"}
        assert leaf.asked("tools/list") == asked  # one that hangs is not waited for with every list
        await advance_time(TTL_S)
        assert names(await node.client().tools()) == {"bad.write"}
        assert node.link("bad")["state"] == "ready"


async def _changed_unheard(node: FrozenNode, **options: Any) -> tuple[Leaf, Client]:
    leaf = await node.leaf("a", tools=[tool("old")], heartbeat_interval_ms=0, **options).joined()
    leaf.tools = [tool("new")]
    return leaf, node.client()


@pytest.mark.req("AX-5.1-3")
@pytest.mark.parametrize(("config", "life_s"), [("", 60.0), ("[ax]\nlist_ttl_s = 7\n", 7.0)])
@pytest.mark.parametrize("list_changed", [True, False])
@in_frozen_time
async def test_a_change_nobody_announced_is_seen_when_the_list_is_old_and_not_before(
    tmp_path: Path, config: str, life_s: float, list_changed: bool
) -> None:
    async with frozen_node(tmp_path, config) as node:
        _, client = await _changed_unheard(node, list_changed=list_changed)
        await advance_time(life_s - 1)
        before = (await client.request("tools/list"))["result"]
        assert names({one["name"]: one for one in before["tools"]}) == {"a.old"}
        assert before["ttlMs"] == 1000
        await advance_time(1.0)
        assert names(await client.tools()) == {"a.new"}


@pytest.mark.req("AX-5.1-3")
@pytest.mark.parametrize("list_changed", [True, False])
@in_frozen_time
async def test_a_life_of_nothing_asks_each_time(tmp_path: Path, list_changed: bool) -> None:
    async with frozen_node(tmp_path, "[ax]\nlist_ttl_s = 0\n") as node:
        leaf, client = await _changed_unheard(node, list_changed=list_changed)
        answer = (await client.request("tools/list"))["result"]
        assert {one["name"] for one in answer["tools"]} >= {"a.new"}
        assert answer["ttlMs"] == 0
        asked = leaf.asked("tools/list")
        await client.tools()
        assert leaf.asked("tools/list") == asked + 1


@pytest.mark.req("AX-5.1-3")
@in_frozen_time
async def test_a_server_that_says_its_list_is_good_for_less_is_asked_sooner(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        _, client = await _changed_unheard(node, list_changed=False, ttl_ms=10_000)
        await advance_time(9.0)
        before = (await client.request("tools/list"))["result"]
        assert {one["name"] for one in before["tools"]} >= {"a.old"}
        assert before["ttlMs"] <= 10_000
        await advance_time(1.0)
        assert names(await client.tools()) == {"a.new"}
