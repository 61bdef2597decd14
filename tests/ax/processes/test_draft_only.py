"""Peers that speak only what the draft's text shows (MCP-AX 4.2, 5, 6): no greeting, no session_id, no method more."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import connect
from tests.ax.blocking_client import call, listed, ready
from tests.ax.raw_aggregator import B, Session, aggregator
from tests.ax.tree import parents
from tests.servers.start import raw
from tests.support import intervals
from tests.support.node_process import RunningNode, running_node

READ = {"name": "dma2d_status", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


class DraftLeaf:
    """It registers as 6.1 is written and answers tools/list and tools/call. To anything else it has no answer, or the
    error of a method it does not have."""

    def __init__(self, socket: Any, segment: str, *, silent: bool) -> None:
        self._socket = socket
        self._segment = segment
        self._silent = silent
        self.asked: list[str] = []
        self.answers: dict[Any, dict[str, Any]] = {}
        self._news = asyncio.Event()

    async def say(self, **message: Any) -> None:
        await self._socket.send(json.dumps({"jsonrpc": "2.0", **message}))

    async def ask(self, request_id: int, method: str, **params: Any) -> dict[str, Any]:
        await self.say(id=request_id, method=method, **params)
        async with asyncio.timeout(10):
            while request_id not in self.answers:
                self._news.clear()
                await self._news.wait()
        return self.answers[request_id]

    async def register(self, subserver_id: str) -> dict[str, Any]:
        params = {
            "subserver_id": subserver_id,
            "segment": self._segment,
            "capabilities": {"tools": True, "resources": False, "notifications": True},
            "heartbeat_interval_ms": 1000,
            "transport_class": "uart_cbor",
            "version": "2026-05-01",
        }
        return await self.ask(1, "mcpax/register", params=params)

    async def read(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            if "method" not in message:
                self.answers[message["id"]] = message
                self._news.set()
                continue
            self.asked.append(message["method"])
            if message["method"] == "tools/list":
                await self.say(id=message["id"], result={"tools": [READ]})
            elif message["method"] == "tools/call":
                said = f"{message['params']['name']} is idle"
                await self.say(id=message["id"], result={"content": [{"type": "text", "text": said}]})
            elif "id" in message and not self._silent:
                await self.say(id=message["id"], error={"code": -32601, "message": "Method not found"})


@contextlib.asynccontextmanager
async def draft_leaf(node: RunningNode, segment: str, *, silent: bool) -> AsyncIterator[DraftLeaf]:
    socket = await connect(node)
    leaf = DraftLeaf(socket, segment, silent=silent)
    reading = asyncio.create_task(leaf.read())
    try:
        yield leaf
    finally:
        await socket.close()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    sooner = {intervals.GREET_REGISTERED_S: 1.0}  # a silent leaf does not answer the greeting
    with running_node(tmp_path_factory.mktemp("draft"), {}, settings=sooner) as started:
        yield started


@pytest.mark.req("AX-4.2-1", "AX-6.3-1", "AX-6.3-4")
@pytest.mark.parametrize("silent", [False, True])
async def test_a_leaf_with_tools_list_and_tools_call_only_is_listed_called_and_leaves(
    node: RunningNode, silent: bool
) -> None:
    segment = f"stm32h7-{'silent' if silent else 'plain'}"
    async with draft_leaf(node, segment, silent=silent) as leaf:
        registered = await leaf.register(f"550e8400-e29b-41d4-a716-44665544000{int(silent)}")
        assert registered["result"]["status"] == "registered"
        beating = asyncio.create_task(_beat(leaf))
        try:
            await ready(node, segment, tools=1)
            assert f"{segment}.dma2d_status" in await listed(node)
            answer = await call(node, f"{segment}__dma2d_status")
            assert answer["result"]["content"][0]["text"] == "dma2d_status is idle"
            assert "notifications/initialized" not in leaf.asked
            await asyncio.sleep(3.5)  # three intervals and more: its beats without a session_id count
            assert (await call(node, f"{segment}__dma2d_status"))["result"] == answer["result"]
        finally:
            beating.cancel()
        assert [one["result"]["status"] for name, one in leaf.answers.items() if name >= 1000][-1] == "ok"
        assert (await leaf.ask(3, "mcpax/deregister"))["result"] == {"status": "deregistered"}
        assert f"{segment}.dma2d_status" not in await listed(node)


async def _beat(leaf: DraftLeaf) -> None:
    number = 1000
    while True:
        number += 1
        await leaf.ask(number, "mcpax/heartbeat", **({"params": {}} if number % 2 else {}))
        await asyncio.sleep(0.5)


def _granted(session: Session, request: dict[str, Any]) -> Any:
    result = {
        "status": "registered",
        "assigned_segment": request["params"]["segment"],
        "session_id": "a3f7c",
        "heartbeat_deadline_ms": 600,
        "budget": {"max_calls_per_minute": 60, "max_mutable_calls_per_session": 10},
    }
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def _empty(session: Session, request: dict[str, Any]) -> Any:
    return {"jsonrpc": "2.0", "id": request["id"], "result": {}}


@pytest.mark.req("AX-5.1-1", "AX-5.2-1", "AX-6.2-1")
async def test_a_parent_that_does_not_greet_lists_and_calls_and_need_not_say_more_than_that_it_lives(
    tmp_path: Path,
) -> None:
    """It answers the registration as 6.2 is written, and heartbeats with an empty result."""
    bench = {"bench": {"command": raw("all")}}
    async with aggregator() as above, aggregator(B) as backup:
        for one in (above, backup):
            one.answers["mcpax/register"] = _granted
            one.answers["mcpax/heartbeat"] = _empty
        said = parents((above.url, "edge"), (backup.url, "edge"), authority=None)
        said += '[[tool]]\nmatch = "bench.*"\nmutable = false\nauth_scope = "read"\n'
        entered = running_node(tmp_path, bench, said)
        await asyncio.to_thread(entered.__enter__)
        try:
            session = await above.joined()
            async with asyncio.timeout(20):
                while not (tool := await _maybe_listed(session, "bench.echo")):
                    await session.hears("notifications/tools/list_changed")
            assert tool["_meta"]["x-mcpax-capability"]["mutable"] is False
            meta = {"x-mcpax-route": ["edge", "bench", "echo"], "x-mcpax-cursor": 0}
            answer = await session.ask("tools/call", {"name": "bench.echo", "arguments": {"n": 1}, "_meta": meta})
            assert "result" in answer
            missing = await session.ask("tools/call", {"name": "bench.nothing", "arguments": {}})
            assert missing["error"]["code"] == -32601
            await session.hears("mcpax/heartbeat", 10)
            assert backup.nobody_came  # an answered beat is a sign of life, whatever the answer holds
        finally:
            await asyncio.to_thread(entered.__exit__, None, None, None)


async def _maybe_listed(session: Session, name: str) -> dict[str, Any] | None:
    tools = (await session.ask("tools/list"))["result"]["tools"]
    return next((one for one in tools if one["name"] == name), None)
