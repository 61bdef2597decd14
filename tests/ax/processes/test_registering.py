"""What a registration must look like, who gets a segment, and what leaves no trace (MCP-AX 3.1, 4.2, 6.1, 6.2)."""

import asyncio
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.ax.bare_subserver import BareSubserver, Refused, address, bare_subserver, connect, tool
from tests.ax.blocking_client import call, listed, ready
from tests.support import intervals
from tests.support.node_process import RunningNode, Wire, running_node

from interlock.ax import connection

AGENTX_OPEN = bytes.fromhex("0101000000000000000000000000000000000000")

DRAFT_EXAMPLE = {
    "subserver_id": "550e8400-e29b-41d4-a716-446655440000",
    "segment": "stm32h7",
    "authority": "dns:edge01.factory.example.com",
    "capabilities": {"tools": True, "resources": False, "notifications": True},
    "heartbeat_interval_ms": 5000,
    "transport_class": "uart_cbor",
    "version": "2026-05-01",
}


async def _segments(node: RunningNode) -> list[str]:
    answer = await asyncio.to_thread(node.admin, "/admin/links")
    return [link["segment"] for link in answer["links"]]


@pytest.mark.req("AX-6.2-1", "AX-6.1-1", "AX-13.4-1")
async def test_the_example_of_the_draft_is_accepted_to_the_letter(node: RunningNode) -> None:
    leaf = BareSubserver(await connect(node), "stm32h7")
    leaf.register_params = DRAFT_EXAMPLE
    leaf.subserver_id = str(DRAFT_EXAMPLE["subserver_id"])
    answer = await leaf.register()
    assert answer["status"] == "registered"
    assert answer["assigned_segment"] == "stm32h7"
    assert answer["heartbeat_deadline_ms"] == 15000
    assert answer["budget"] == {}
    assert len(answer["session_id"]) >= 22  # 128 bits as text
    assert answer["aggregator_id"] == node.status_at_start["node"]["aggregator_id"]
    shown = (await asyncio.to_thread(node.link, "stm32h7"))["registration"]
    assert (shown["transport_class"], shown["version"], shown["verified"]) == ("uart_cbor", "2026-05-01", False)
    await leaf.request("mcpax/deregister", {"session_id": answer["session_id"]})
    await leaf.stop()


@pytest.mark.req("AX-6.1-1", "AX-3.1-3")
@pytest.mark.parametrize(
    ("first", "code"),
    [
        ('{"jsonrpc":"2.0","id":1,"method":"tools/list"}', -32600),
        ('{"jsonrpc":"2.0","id":1,"method":"mcpax/heartbeat","params":{"session_id":"x"}}', -32600),
        ('{"jsonrpc":"2.0","method":"mcpax/register","params":{"segment":"a"}}', -32602),
        ('{"jsonrpc":"2.0","id":1,"method":"mcpax/register","params":[]}', -32602),
        ('{"jsonrpc":"2.0","id":1,"method":"mcpax/register","params":{"segment":"a"}}', -32602),
        ('{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
        ("not json", -32700),
        ("[]", -32600),
    ],
)
async def test_any_message_before_a_registration_is_refused_and_closes_the_connection(
    node: RunningNode, first: str, code: int
) -> None:
    socket = await connect(node)
    await socket.send(first)
    answer = json.loads(await asyncio.wait_for(socket.recv(), 10))
    assert answer["error"]["code"] == code
    await asyncio.wait_for(socket.wait_closed(), 10)
    assert socket.close_code == 1008
    assert "a" not in await _segments(node)


@pytest.mark.req("AX-1.3-1", "AX-3.1-3")
async def test_a_binary_agentx_pdu_closes_the_connection(node: RunningNode) -> None:
    before = await _segments(node)
    socket = await connect(node)
    await socket.send(AGENTX_OPEN)
    await asyncio.wait_for(socket.wait_closed(), 10)
    assert socket.close_code == 1003
    assert await _segments(node) == before


@pytest.mark.req("AX-3.1-3")
async def test_silence_is_closed_after_the_time_for_registering(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, settings={intervals.REGISTER_WITHIN_S: 1.0}) as node:
        began = asyncio.get_running_loop().time()
        socket = await connect(node)
        await asyncio.wait_for(socket.wait_closed(), 20)
        assert asyncio.get_running_loop().time() - began > 0.95
        assert (socket.close_code, socket.close_reason) == (1008, "no mcpax/register within 1 s")
    assert connection.REGISTER_WITHIN_S == 10.0


@pytest.mark.req("AX-3.1-3")
@pytest.mark.parametrize("protocols", [None, ["mcp"], ["mcpax.v2"]])
async def test_another_subprotocol_is_refused_before_the_upgrade(node: RunningNode, protocols: Any) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(address(node), subprotocols=protocols)
    assert refused.value.response.status_code == 400
    assert json.loads(refused.value.response.body)["error"] == "protocol_required"


@pytest.mark.req("AX-4.2-2")
async def test_the_first_keeps_its_segment(node: RunningNode) -> None:
    async with bare_subserver(node, "first", tools=[tool("read")]) as first:
        await ready(node, "first", tools=1)
        second = BareSubserver(await connect(node), "first")
        with pytest.raises(Refused) as refused:
            await second.register()
        assert refused.value.error["code"] == 32110
        assert refused.value.error["message"] == "namespace_conflict"
        assert refused.value.error["data"]["segment"] == "first"
        assert refused.value.error["data"]["mcpax_error"] == "namespace_conflict"
        assert (await second.closed())[0] == 4409
        assert (await first.beat())["status"] == "ok"
        assert (await call(node, "first__read"))["result"]["content"][0]["text"] == "read ran"
        await second.stop()


@pytest.mark.req("AX-4.2-2")
async def test_of_two_that_race_for_a_segment_exactly_one_wins(node: RunningNode) -> None:
    racers = [BareSubserver(await connect(node), "raced") for _ in range(8)]
    outcomes = await asyncio.gather(*(racer.register() for racer in racers), return_exceptions=True)
    assert sum(isinstance(outcome, dict) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 7
    for racer in racers:
        await racer.stop()


@pytest.mark.req("AX-6.2-2")
async def test_a_session_is_worth_nothing_to_others(node: RunningNode) -> None:
    async with (
        bare_subserver(node, "owner-a", tools=[tool("read")]) as victim,
        bare_subserver(node, "owner-b") as thief,
    ):
        await ready(node, "owner-a", tools=1)
        for method in ("mcpax/heartbeat", "mcpax/deregister"):
            with pytest.raises(Refused) as refused:
                await thief.request(method, {"session_id": victim.session["session_id"]})
            assert (refused.value.error["code"], refused.value.error["message"]) == (32116, "session_unknown")
        assert (await victim.beat())["heartbeat_deadline_ms"] == 15000
        assert "owner-a.read" in await listed(node)
        given = [victim.session["session_id"], thief.session["session_id"]]
        for _ in range(8):
            async with bare_subserver(node, "owner-c", subserver_id=str(uuid.UUID(int=7))) as again:
                given.append(again.session["session_id"])
        assert len(set(given)) == 10
        assert min(map(len, given)) >= 22  # 128 bits as text


async def test_a_link_is_one_registration_and_unknown_methods_are_reported(node: RunningNode) -> None:
    async with bare_subserver(node, "twice") as leaf:
        with pytest.raises(Refused) as refused:
            await leaf.request("mcpax/register", {**leaf.register_params, "segment": "thrice"})
        assert refused.value.error["code"] == -32600
        with pytest.raises(Refused) as unknown:
            await leaf.request("mcpax/walk", {})
        assert unknown.value.error["code"] == -32601
        assert (await leaf.beat())["status"] == "ok"
        assert "thrice" not in await _segments(node)


def test_a_client_can_register_nothing(node: RunningNode) -> None:
    with Wire(node) as wire:
        for method in ("mcpax/register", "mcpax/heartbeat", "mcpax/deregister", "mcpax/parent"):
            assert wire.modern(method, DRAFT_EXAMPLE).message["error"]["code"] == -32601


@pytest.mark.parametrize("segment", ["rooms", "tools"])
async def test_segments_that_are_the_nodes_own_are_refused(node: RunningNode, segment: str) -> None:
    leaf = BareSubserver(await connect(node), segment)
    with pytest.raises(Refused) as refused:
        await leaf.register()
    assert refused.value.error["code"] in (32110, 32111)
    await leaf.stop()


@pytest.mark.req("AX-4.1-2")
@pytest.mark.parametrize("segment", ["Caps", "with.dot", "", "x" * 64, "with space", "größe"])
async def test_segments_that_are_none_are_refused(node: RunningNode, segment: str) -> None:
    before = await asyncio.to_thread(node.admin, "/admin/links")
    leaf = BareSubserver(await connect(node), segment)
    with pytest.raises(Refused) as refused:
        await leaf.register()
    error = refused.value.error
    assert (error["code"], error["message"]) == (32111, "namespace_invalid")
    assert ascii(segment)[:60] in error["data"]["detail"]
    await leaf.stop()
    after = await asyncio.to_thread(node.admin, "/admin/links")
    assert [one["segment"] for one in after["links"]] == [one["segment"] for one in before["links"]]


@pytest.mark.req("AX-13.4-4")
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"parent_id": str(uuid.uuid4())}, 32113),
        ({"parent_id": None}, None),
        ({"parent_id": 7}, -32602),
        ("unknown", None),
        ("silence", None),
    ],
)
async def test_a_subserver_that_says_nothing_of_a_parent_is_asked(
    node: RunningNode, answer: Any, code: int | None
) -> None:
    leaf = BareSubserver(await connect(node), f"asked-{uuid.uuid4().hex[:8]}")
    del leaf.register_params["parent_id"]
    leaf.answers = False
    registering = asyncio.create_task(leaf.register())
    asked = await leaf.hear("mcpax/parent")
    if isinstance(answer, dict):
        said = {"subserver_id": leaf.subserver_id, **answer}
        await leaf.send({"jsonrpc": "2.0", "id": asked["id"], "result": said})
    elif answer == "unknown":
        await leaf.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}})
    if code is None:
        assert (await registering)["status"] == "registered"
    else:
        with pytest.raises(Refused) as refused:
            await registering
        assert refused.value.error["code"] == code
    await leaf.stop()


async def test_our_own_id_as_parent_passes_and_another_does_not(node: RunningNode) -> None:
    own = node.status_at_start["node"]["aggregator_id"]
    async with bare_subserver(node, "parented", parent_id=own):
        pass
    leaf = BareSubserver(await connect(node), "stranger", parent_id=str(uuid.uuid4()))
    with pytest.raises(Refused) as refused:
        await leaf.register()
    assert refused.value.error["message"] == "split_brain"
    assert refused.value.error["data"]["holder_aggregator_id"] == leaf.register_params["parent_id"]
    await leaf.stop()


@pytest.mark.req("AX-7.1-1")
async def test_the_routing_table_has_its_four_columns(node: RunningNode) -> None:
    async with bare_subserver(node, "routed", tools=[tool("Read-It")]) as leaf:
        await ready(node, "routed", tools=1)
        printed = await asyncio.to_thread(node.cli, "tools", "routes", "--json")
        entry = json.loads(printed.stdout)["routed.read-it"]
        assert set(entry) == {"downstream_session", "downstream_name", "capability", "registered_at"}
        assert entry["downstream_name"] == "Read-It"
        assert leaf.session["session_id"] not in printed.stdout
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry["registered_at"])
        leaf.tools = [*leaf.tools, tool("further")]
        await leaf.notify("notifications/tools/list_changed")
        await ready(node, "routed", tools=2)
        again = json.loads((await asyncio.to_thread(node.cli, "tools", "routes", "--json")).stdout)
        assert again["routed.read-it"]["registered_at"] == entry["registered_at"]
