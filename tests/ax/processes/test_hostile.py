"""Subservers that lie, flood, imitate and send too much are contained, and others do not notice."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.blocking_client import call, listed, ready
from tests.support import intervals
from tests.support.node_process import MODERN, RunningNode, running_node, wait_for
from tests.support.peers import HttpPeer

MESSAGE_BYTES = 12 * 1024 * 1024


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    extra = f"[limits]\nmessage_bytes = {MESSAGE_BYTES}\n[degraded]\ngrace_s = 1\n"
    with running_node(tmp_path_factory.mktemp("hostile"), {}, extra=extra) as started:
        yield started


@contextlib.asynccontextmanager
async def _neighbour(node: RunningNode) -> AsyncIterator[str]:
    """An honest subserver that must be callable before and after."""
    segment = f"honest-{uuid.uuid4().hex[:8]}"
    # It promises no beat within the time of a test: one that a busy machine delays would be a loss.
    async with bare_subserver(node, segment, tools=[tool("read")], heartbeat_interval_ms=60_000):
        await ready(node, segment, tools=1)
        yield f"{segment}__read"
        assert (await call(node, f"{segment}__read"))["result"]["content"][0]["text"] == "read ran"


async def test_ten_thousand_tools_are_listed_and_more_are_refused_by_name(node: RunningNode) -> None:
    many = [tool(f"t{number}") for number in range(10_050)]
    async with _neighbour(node), bare_subserver(node, "many", tools=many) as leaf:
        await ready(node, "many", tools=10_000)
        shown = await listed(node)
        assert sum(name.startswith("many.") for name in shown) == 10_000
        withheld = (await asyncio.to_thread(node.link, "many"))["withheld"]
        assert any("beyond the first 10000" in one["reason"] for one in withheld)
        await leaf.request("mcpax/deregister", {"session_id": leaf.session["session_id"]})


async def test_a_description_of_ten_megabytes_is_left_out(node: RunningNode) -> None:
    tools = [tool("read"), tool("novel", description="x" * (10 * 1024 * 1024))]
    async with _neighbour(node), bare_subserver(node, "novelist", tools=tools):
        await ready(node, "novelist", tools=1)
        assert (await asyncio.to_thread(node.link, "novelist"))["withheld"][0]["name"] == "novel"


async def test_a_result_that_is_too_large_fails_its_call_only(node: RunningNode) -> None:
    text = {"big": "x" * MESSAGE_BYTES, "read": "small"}

    def answer(params: dict[str, Any]) -> Any:
        return {"content": [{"type": "text", "text": text[params["name"]]}]}

    async with _neighbour(node), bare_subserver(node, "giant", tools=[tool("big"), tool("read")], call=answer) as leaf:
        await ready(node, "giant", tools=2)
        refused = (await call(node, "giant__big"))["error"]
        assert (refused["code"], refused["data"]["limit_bytes"]) == (32132, MESSAGE_BYTES)
        await leaf.socket.send("x" * (MESSAGE_BYTES + 1))
        assert (await call(node, "giant__read"))["result"]["content"][0]["text"] == "small"
        padding = "x" * MESSAGE_BYTES
        with pytest.raises(Refused) as told:
            await leaf.request("mcpax/heartbeat", {"session_id": leaf.session["session_id"], "padding": padding})
        assert told.value.error["data"]["reason"] == "message_too_large"


async def test_a_message_that_is_too_large_before_the_registration_ends_the_connection(node: RunningNode) -> None:
    async with _neighbour(node):
        fresh = await connect(node)
        with contextlib.suppress(websockets.ConnectionClosed):
            await fresh.send("x" * (MESSAGE_BYTES + 1))
        await asyncio.wait_for(fresh.wait_closed(), 10)
        assert fresh.close_code == 1009


@pytest.mark.parametrize("names", [["honest.read"], ["a.b", "read"]])
async def test_a_leaf_whose_names_reach_into_other_namespaces_is_ended(node: RunningNode, names: list[str]) -> None:
    segment = f"mimic-{uuid.uuid4().hex[:8]}"
    async with _neighbour(node), bare_subserver(node, segment, tools=[tool(name) for name in names]) as leaf:
        refused = await leaf.hear("notifications/mcpax/tools_refused")
        assert refused["params"]["tools"][0]["reason"] == "namespace_invalid"
        assert (await leaf.closed())[0] == 1008
        assert not any(name.startswith(segment) for name in await listed(node))


async def test_names_that_collide_within_a_leaf_are_distinguished(node: RunningNode) -> None:
    originals = ["read", "Read", "READ", "other"]
    async with _neighbour(node), bare_subserver(node, "echoes", tools=[tool(name) for name in originals]):
        await ready(node, "echoes", tools=4)
        shown = [name for name in await listed(node) if name.startswith("echoes.")]
        assert len(set(shown)) == 4 and {"echoes.other", "echoes.read"} < set(shown)
        ran = {(await call(node, name))["result"]["content"][0]["text"] for name in shown}
        assert ran == {f"{name} ran" for name in originals}
        async with await HttpPeer(f"{node.url}/mcp/only/echoes", MODERN).greet() as peer:
            own = [one["name"] for one in (await peer.request("tools/list")).result["tools"]]
            assert sorted(own) == sorted(originals)
            for name in own:
                assert (await peer.call(name)).result["content"][0]["text"] == f"{name} ran"


async def test_nonsense_on_an_open_link_is_counted_and_then_ends_it(node: RunningNode) -> None:
    async with _neighbour(node), bare_subserver(node, "babble", tools=[tool("read")]) as leaf:
        await ready(node, "babble", tools=1)
        for _ in range(10):
            await leaf.socket.send("no json at all")
        assert "result" in await call(node, "babble__read")
        with contextlib.suppress(websockets.ConnectionClosed):
            for _ in range(1100):
                await leaf.socket.send('{"jsonrpc":"1.0"}')
        assert (await leaf.closed())[0] == 1008


async def test_answers_nobody_asked_for_change_nothing(node: RunningNode) -> None:
    async with _neighbour(node) as other, bare_subserver(node, "prompter", tools=[tool("read")]) as leaf:
        await ready(node, "prompter", tools=1)
        for guess in range(200):
            await leaf.send({"jsonrpc": "2.0", "id": guess, "result": {"content": [], "resultType": "complete"}})
        await leaf.beat()
        assert (await call(node, other))["result"]["content"][0]["text"] == "read ran"
        assert (await asyncio.to_thread(node.link, "prompter"))["stray"] >= 190


async def test_a_binary_frame_on_an_open_link_ends_it(node: RunningNode) -> None:
    async with _neighbour(node), bare_subserver(node, "binary") as leaf:
        await leaf.socket.send(b"\x00\x01")
        assert (await leaf.closed())[0] == 1003


async def test_a_flood_before_the_registration_is_answered_is_cut(node: RunningNode) -> None:
    async with _neighbour(node):
        leaf = BareSubserver(await connect(node), "eager")
        del leaf.register_params["parent_id"]
        leaf.answers = False
        await leaf.send({"jsonrpc": "2.0", "id": 1, "method": "mcpax/register", "params": leaf.register_params})
        await leaf.hear("mcpax/parent")
        with contextlib.suppress(websockets.ConnectionClosed):
            for number in range(300):
                await leaf.send({"jsonrpc": "2.0", "id": number + 2, "method": "mcpax/heartbeat", "params": {}})
        assert (await leaf.closed())[0] == 1008
        await leaf.stop()
        segments = [one["segment"] for one in (await asyncio.to_thread(node.admin, "/admin/links"))["links"]]
        assert "eager" not in segments


@pytest.mark.req("AX-5.3-5")
async def test_a_cycle_is_refused_when_it_registers_and_when_it_closes_later(node: RunningNode) -> None:
    own = node.status_at_start["node"]["aggregator_id"]
    for subtree in ([own], [str(uuid.uuid4()), own.upper()]):
        node_below = BareSubserver(await connect(node), "loop", **{"x-mcpax-subtree-ids": subtree})
        with pytest.raises(Refused) as refused:
            await node_below.register()
        assert (refused.value.error["code"], refused.value.error["message"]) == (32112, "registration_cycle")
        await node_below.stop()
    for bad in (["no-uuid"], [str(uuid.uuid4())] * 0 + [7], [str(uuid.uuid4()) for _ in range(10_001)]):
        odd = BareSubserver(await connect(node), "loop", **{"x-mcpax-subtree-ids": bad})
        with pytest.raises(Refused) as refused:
            await odd.register()
        assert refused.value.error["code"] == -32602
        await odd.stop()
    first = str(uuid.uuid4())
    async with bare_subserver(node, "loop", **{"x-mcpax-subtree-ids": [first]}) as later:
        assert (await later.beat(**{"x-mcpax-subtree-ids": [first, str(uuid.uuid4())]}))["status"] == "ok"
        with pytest.raises(Refused) as refused:
            await later.beat(**{"x-mcpax-subtree-ids": [first, own]})
        assert refused.value.error["message"] == "registration_cycle"
        assert (await later.closed())[0] == 1008


async def test_an_aggregator_below_brings_dotted_names_and_gets_the_route(node: RunningNode) -> None:
    meta = {"x-mcpax-hops": 2, "x-mcpax-capability": {"mutable": False, "latency_class": "fast"}}
    tools = [tool("gw.stm32h7.dma2d_status", _meta=meta)]
    async with bare_subserver(node, "edge", tools=tools, **{"x-mcpax-subtree-ids": [str(uuid.uuid4())]}) as below:
        await ready(node, "edge", tools=1)
        shown = (await listed(node))["edge.gw.stm32h7.dma2d_status"]
        assert shown["_meta"]["x-mcpax-hops"] == 3
        answer = await call(node, "edge__gw__stm32h7__dma2d_status")
        assert "result" in answer, answer
        sent = (await below.hear("tools/call"))["params"]
        assert sent["name"] == "gw.stm32h7.dma2d_status"
        assert sent["_meta"]["x-mcpax-route"] == ["edge", "gw", "stm32h7", "dma2d_status"]
        assert sent["_meta"]["x-mcpax-cursor"] == 0


async def test_a_client_that_writes_a_route_itself_has_no_effect(node: RunningNode) -> None:
    from tests.support.node_process import Wire

    async with bare_subserver(node, "forged", tools=[tool("read")]) as leaf:
        await ready(node, "forged", tools=1)

        def ask() -> Any:
            with Wire(node) as wire:
                forged = {"x-mcpax-route": ["elsewhere", "write"], "x-mcpax-cursor": 1, "x-mcpax-origin": "x"}
                return wire.modern("tools/call", {"name": "forged__read", "arguments": {}}, meta=forged).message

        assert "result" in await asyncio.to_thread(ask)
        sent = (await leaf.hear("tools/call"))["params"]["_meta"]
        assert (sent["x-mcpax-route"], sent["x-mcpax-cursor"]) == (["forged", "read"], 0)
        assert "x-mcpax-origin" not in sent
        assert json.dumps(sent).count("elsewhere") == 0


async def test_a_crowd_that_connects_and_says_nothing_is_kept_small(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, settings={intervals.REGISTER_WITHIN_S: 120.0}) as node:  # all of them fit into it
        async with _neighbour(node):
            crowd = []
            with pytest.raises(websockets.InvalidStatus) as refused:
                for _ in range(1001):
                    crowd.append(await connect(node))
            assert refused.value.response.status_code == 503
            for one in crowd:
                one.transport.abort()
        async with _neighbour(node):
            pass


async def test_a_flood_of_changed_lists_costs_the_node_few_readings(node: RunningNode) -> None:
    many = [tool(f"t{number}", description="x" * 300) for number in range(5000)]
    async with _neighbour(node) as other, bare_subserver(node, "restless", tools=many) as leaf:
        await ready(node, "restless", tools=5000)
        before = sum(message.get("method") == "tools/list" for message in leaf.heard)
        for number in range(400):
            leaf.tools[0] = tool("t0", description=str(number))
            await leaf.notify("notifications/tools/list_changed")
        leaf.tools.append(tool("last"))
        await leaf.notify("notifications/tools/list_changed")
        assert (await call(node, other))["result"]["content"][0]["text"] == "read ran"
        await asyncio.to_thread(wait_for, lambda: "error" not in node.admin("/admin/tools/restless.last"))
        asked = sum(message.get("method") == "tools/list" for message in leaf.heard) - before
        assert 1 <= asked <= 20, asked
        await leaf.request("mcpax/deregister", {"session_id": leaf.session["session_id"]})


async def test_many_megabytes_of_descriptions_are_cut_off_by_name(node: RunningNode) -> None:
    """Each item is within its limit and each page within that of a message; all of them together are too much."""
    page = [tool(f"t{number}", description="x" * 1_000_000) for number in range(10)]
    async with _neighbour(node), bare_subserver(node, "epic", tools=page) as leaf:
        leaf.pages = 8
        await leaf.notify("notifications/tools/list_changed")
        link = await ready(node, "epic", tools=60)
        assert [one["reason"] for one in link["withheld"]] == [
            "what comes after the first 67108864 bytes of its tools/list"
        ]


async def test_an_aggregators_names_that_imitate_others_stay_below_its_own(node: RunningNode) -> None:
    async with _neighbour(node) as other:
        imitated = other.replace("__", ".")
        tools = [tool(imitated), tool("notifications_dropped"), tool(f"{imitated}.more")]
        async with bare_subserver(node, "ape", tools=tools, **{"x-mcpax-subtree-ids": [str(uuid.uuid4())]}) as ape:
            await ready(node, "ape", tools=3)
            shown = await listed(node)
            assert {name for name in shown if name.startswith("ape.")} == {f"ape.{one['name']}" for one in tools}
            assert (await call(node, other))["result"]["content"][0]["text"] == "read ran"
            assert not any(message.get("method") == "tools/call" for message in ape.heard)
            assert "result" in await call(node, "notifications_dropped")
            assert not any(message.get("method") == "tools/call" for message in ape.heard)
