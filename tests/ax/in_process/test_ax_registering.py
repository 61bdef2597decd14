"""What a registration says, what is refused without a trace, and one that promises no heartbeats (MCP-AX 6)."""

import asyncio
import json
import logging
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.frozen_node import (
    FrozenNode,
    Leaf,
    MemoryNetwork,
    advance_time,
    frozen_node,
    in_frozen_time,
    in_real_time,
    node_chain,
    run_until_idle,
    tool,
)

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.endpoint import DialBack
from interlock.ax.parts import AxParts
from interlock.ax.protocol.messages import Register, Registered
from interlock.ax.protocol.registration.registrations import SegmentOwner

CLASSES = ["native", "uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json"]
HOUR_S = 3600.0


def shown(node: FrozenNode, segment: str) -> dict[str, Any]:
    return node.link(segment)["registration"]


@pytest.mark.req("AX-6.1-3")
@pytest.mark.parametrize("said", [{}, {"authority": None}, {"authority": "dns:a.example"}])
@in_frozen_time
async def test_a_subserver_that_only_reads_needs_no_authority(tmp_path: Path, said: dict[str, str | None]) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("bench", tools=[tool("read")], proved=False, scope="read", **said).joined()
        assert "bench.read" in await node.client().tools()
        assert shown(node, leaf.segment)["authority"] == said.get("authority")


@pytest.mark.req("AX-6.1-6")
@in_frozen_time
async def test_the_six_transport_classes_are_accepted_and_shown(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        for name in CLASSES:
            await node.leaf(name, transport_class=name).joined()
            assert shown(node, name)["transport_class"] == name
        for odd in ("carrier_pigeon", "x-lora", "x-", "X-lora", "x-" + "l" * 62):
            refused = (await node.leaf("odd", transport_class=odd).register())["error"]
            assert (refused["code"], refused["data"]["member"]) == (-32602, "transport_class")


@pytest.mark.req("AX-14-3", "AX-6.1-6")
@in_frozen_time
async def test_a_private_transport_class_of_the_configuration_is_accepted_and_passes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"edge": '[ax]\ntransport_classes = ["x-lora"]\n[[tool]]\nmatch = "own.*"\ntransport = "x-bus"\n'}
    async with node_chain(tmp_path, MemoryNetwork(monkeypatch), ["edge"], config) as (root, edge):
        far = edge.leaf("far", tools=[tool("read")], transport_class="x-lora", heartbeat_interval_ms=0)
        assert shown(edge, (await far.joined()).segment)["transport_class"] == "x-lora"
        said = [tool("lora", {"mutable": False, "transport": "x-lora"}), tool("odd", {"transport": "x-other"})]
        await edge.leaf("near", tools=said, heartbeat_interval_ms=0).joined()
        await edge.leaf("own", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        await advance_time(1.0)
        tools = await root.client().tools()
        found = {name: one["_meta"]["x-mcpax-capability"]["transport"] for name, one in tools.items()}
        assert found["edge.far.read"] == found["edge.near.lora"] == "x-lora"
        assert found["edge.own.read"] == "x-bus"
        assert "edge.near.odd" not in found
        refused = (await root.leaf("far", transport_class="x-lora").register())["error"]
        assert refused["data"]["known"][-1] == "mqtt_json"
        assert refused["data"]["known"] == CLASSES


@pytest.mark.req("AX-6.1-7")
@in_frozen_time
async def test_a_version_nobody_knows_is_accepted_shown_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with frozen_node(tmp_path) as node:
        with caplog.at_level(logging.INFO, "interlock.ax"):
            for number, version in enumerate(["2026-05-01", "1999-01-01", "1999-01-01", "tomorrow"]):
                await node.leaf(f"leaf{number}", version=version).joined()
                assert shown(node, f"leaf{number}")["version"] == version
            await node.leaf("silent").joined()
            await node.leaf("silent2").joined()
            assert shown(node, "silent")["version"] is None
        words = [record.getMessage() for record in caplog.records if "version" in record.getMessage()]
        assert [word for word in words if "2026-05-01" in word.partition("we speak")[0]] == []
        assert len([word for word in words if "1999-01-01" in word]) == 1
        assert len([word for word in words if "tomorrow" in word]) == 1
        assert len([word for word in words if "names no version" in word]) == 1
        refused = (await node.leaf("long", version="x" * 65).register())["error"]
        assert (refused["code"], refused["data"]["member"]) == (-32602, "version")


@pytest.mark.req("AX-13.4-4")
@in_frozen_time
async def test_a_registrant_that_names_no_parent_has_two_seconds_to_answer_the_query(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = node.leaf("mute")
        del leaf.register_params["parent_id"]
        leaf.mute.add("mcpax/parent")
        leaf.say({"jsonrpc": "2.0", "id": "r", "method": "mcpax/register", "params": leaf.register_params})
        await node.until(lambda: leaf.heard)
        await advance_time(1.9)
        assert [one.get("method") for one in leaf.heard] == ["mcpax/parent"]
        await advance_time(0.2)
        await node.until(lambda: len(leaf.heard) > 1)
        assert leaf.heard[1]["result"]["status"] == "registered"


# Refusals

OTHER = str(uuid.uuid4())


async def _conflict(node: FrozenNode) -> Leaf:
    await node.leaf("plant", tools=[tool("read")]).joined()
    return node.leaf("plant")


async def _cycle(node: FrozenNode) -> Leaf:
    own = node.node.stores.identity.aggregator_id
    return node.leaf("plant", **{"x-mcpax-subtree-ids": [OTHER, own]})


async def _owned(node: FrozenNode) -> None:
    owner = SegmentOwner(segment="plant", authority="theirs.example", subserver_id=OTHER)
    await node.node.get(AxParts).registrar.owners.keep(owner)


async def _unverified(node: FrozenNode) -> Leaf:
    await _owned(node)
    return node.leaf("plant", proved=False, authority="dns:theirs.example")


async def _another_authority(node: FrozenNode) -> Leaf:
    await _owned(node)
    return node.leaf("plant", authority="dns:ours.example")


async def _insecure(node: FrozenNode) -> Leaf:
    return node.leaf("plant", secure=False, **{"x-mcpax-subtree-ids": [OTHER]})


REFUSALS = {
    "namespace_conflict": (32110, _conflict),
    "namespace_invalid": (32111, lambda node: node.leaf("Plant")),
    "registration_cycle": (32112, _cycle),
    "split_brain": (32113, lambda node: node.leaf("plant", parent_id=OTHER)),
    "authority_unverified": (32114, _unverified),
    "authority_conflict": (32115, _another_authority),
    "link_insecure": (32119, _insecure),
}


@pytest.mark.req("AX-6.2-5")
@pytest.mark.parametrize("name", REFUSALS)
@in_frozen_time
async def test_a_refused_registration_is_named_and_leaves_no_trace(tmp_path: Path, name: str) -> None:
    code, prepare = REFUSALS[name]
    async with frozen_node(tmp_path) as node:
        made = prepare(node)
        leaf = await made if asyncio.iscoroutine(made) else made
        registrar = node.node.get(AxParts).registrar
        before = (registrar.engine.all(), await registrar.owners.all(), dict(node.node.calls.keepers))
        error = (await leaf.register())["error"]
        assert (error["code"], error["message"], error["data"]["mcpax_error"]) == (code, name, name)
        assert error["data"]["detail"]
        assert leaf.closed is not None
        assert leaf.closed[1] == name
        assert leaf.heard[-1]["error"] == error  # closed behind the error, and nothing was said after it
        assert (registrar.engine.all(), await registrar.owners.all(), dict(node.node.calls.keepers)) == before


@pytest.mark.req("AX-6.2-5")
@in_frozen_time
async def test_a_registrant_whose_connection_ends_while_it_registers_leaves_no_trace(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        other = await node.leaf("other", tools=[tool("read")]).joined()
        gone = node.leaf("plant")
        gone.say({"jsonrpc": "2.0", "id": "r", "method": "mcpax/register", "params": gone.register_params})
        gone.cut()
        records: list[Any] = []
        async with in_real_time():
            while not [one for one in records if one["tool"] == "plant"]:
                page = await node.node.operations.audit.page(0, 100)
                records = [msgspec.json.decode(record) for record in page.records]
        registrar = node.node.get(AxParts).registrar
        assert [one.session.segment for one in registrar.engine.all()] == ["other"]
        again = await node.leaf("plant", subserver_id=gone.subserver_id).joined()
        await advance_time(15.0)  # the time of the others goes on
        assert [one.closed for one in (other, again)] == [(1008, "heartbeat_timeout")] * 2


@pytest.mark.req("AX-6.2-5")
@in_frozen_time
async def test_malformed_params_are_refused_as_such_and_leave_no_trace(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = node.leaf("plant", heartbeat_interval_ms="soon")
        error = (await leaf.register())["error"]
        assert (error["code"], error["data"]["member"]) == (-32602, "heartbeat_interval_ms")
        assert leaf.closed is not None
        assert node.state("plant") is None
        await node.leaf("plant").joined()


@in_frozen_time
async def test_repeated_requests_for_a_taken_segment_are_recorded_twice(tmp_path: Path) -> None:
    async with frozen_node(tmp_path) as node:
        await node.leaf("plant", heartbeat_interval_ms=0).joined()
        for _ in range(20):
            assert (await node.leaf("plant").register())["error"]["message"] == "namespace_conflict"
        await advance_time(60.0)
        node.node.stores.refusals.settle()
        page = await node.node.operations.audit.page(0, 100)
        records = [msgspec.json.decode(record) for record in page.records]
        refused = [(one["method"], one["tool"], one["reason"]) for one in records if one["outcome"] == "refused"]
        assert refused == [
            ("mcpax/register", "plant", "namespace_conflict"),
            ("mcpax/register", "plant", "namespace_conflict, 19 times more"),
        ]


# Without heartbeats


@pytest.mark.req("AX-6.3-3")
@in_frozen_time
async def test_a_subserver_that_promises_no_heartbeat_stays_for_an_hour_and_leaves_with_its_link(
    tmp_path: Path,
) -> None:
    async with frozen_node(tmp_path) as node:
        leaf = await node.leaf("quiet", tools=[tool("read")], heartbeat_interval_ms=0).joined()
        await advance_time(HOUR_S)
        assert node.state("quiet") == "ready"
        assert shown(node, "quiet")["liveness"] == "live"
        assert "result" in await node.client().call("quiet.read")
        leaf.cut()
        await run_until_idle()
        assert node.state("quiet") == "degraded"
        assert shown(node, "quiet")["liveness"] == "lost"
        assert (await node.client().call("quiet.read"))["error"]["message"] == "tool_degraded"


class Endpoint:
    """A subserver that is dialled back, on a socket of its own."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.mute = False
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/mcp"

    async def stop(self) -> None:
        self.server.close()
        for writer in self._writers:
            writer.close()
        await self.server.wait_closed()

    async def until_answered(self, method: str, times: int) -> None:
        async with in_real_time():
            while self.answered.count(method) < times:  # noqa: ASYNC110  (of a socket, in a loop whose time stands)
                await asyncio.sleep(0)
        await run_until_idle()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                message = json.loads(await reader.readexactly(length)) if length else {}
                if not self.mute:
                    self._answer(writer, message)
        except asyncio.IncompleteReadError:
            pass

    def _answer(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        method = message.get("method", "")
        result: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover":
            result |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        elif method == "tools/list":
            result |= {"tools": [tool("read")]}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
        self.answered.append(method)


@pytest.mark.req("AX-6.3-3")
@in_frozen_time
async def test_a_subserver_dialled_back_without_heartbeats_is_removed_when_two_probes_fail(tmp_path: Path) -> None:
    endpoint = Endpoint()
    url = await endpoint.start()
    async with frozen_node(tmp_path) as node:
        registrar = node.node.get(AxParts).registrar
        request = Register(subserver_id=OTHER, segment="far", parent_id=None, heartbeat_interval_ms=0, endpoint=url)
        way = DialBack(RegistrantIdentity(principal="subserver:far", vouched=True), (url,))
        answer = await registrar.register(request, "", way)
        assert isinstance(answer, Registered)
        registrar.welcome(answer.session_id)
        await node.until(lambda: node.state("far") == "ready")
        for probes in (1, 2, 3):
            await advance_time(30.0)
            await endpoint.until_answered("server/discover", 1 + probes)
        assert node.state("far") == "ready"
        endpoint.mute = True
        await advance_time(30.0 + 10.0)  # the first that fails
        assert node.state("far") == "ready"
        await advance_time(30.0 + 9.0)
        assert node.state("far") == "ready"
        await advance_time(1.1)
        assert node.state("far") == "degraded"
        assert "did not answer twice" in node.link("far")["reason"]
        await endpoint.stop()
