"""The `_meta` that goes down to an AX peer: laid out once for what callers say again and again, and never mixed up."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.links.in_process.test_list_again import Leaf, registered, tool
from tests.support.local_node import running

from interlock.ax.parents.parents import UpwardFront
from interlock.core.calls.caller import Principal
from interlock.links import registered as links
from interlock.node.node import Node

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
PATIENCE_S = 10.0


class Peer(Leaf):
    """It keeps what it was asked to run."""

    def __init__(self, node: Node, segment: str, **register: Any) -> None:
        super().__init__(node, segment, **register)
        self.calls: list[dict[str, Any]] = []

    def send(self, data: bytes) -> bool:
        message = json.loads(data)
        if message.get("method") == "tools/call":
            self.calls.append(message["params"])
            self.say(id=message["id"], result={"resultType": "complete", "content": []})
        return super().send(data)


class Parent:
    """What a parent says on the link that the node opened, and what it is answered."""

    def __init__(self, node: Node) -> None:
        self.front = UpwardFront(
            node.fronts.legacy,
            node.fronts.modern,
            node.calls.audience,
            Principal("parent:x", "admin"),
            "edge",
            self._answered,
        )
        self.answers: dict[Any, dict[str, Any]] = {}
        self.news = asyncio.Event()
        self._last = 0

    def _answered(self, data: bytes) -> bool:
        message = json.loads(data)
        self.answers[message.get("id")] = message
        self.news.set()
        return True

    async def call(self, name: str, **meta: Any) -> dict[str, Any]:
        self._last += 1
        path = ["root", "edge", *name.split(".")]
        route = {"x-mcpax-route": path, "x-mcpax-cursor": 1}
        params = {"name": name, "arguments": {"n": self._last}, "_meta": {**META, **route, **meta}}
        message = {"jsonrpc": "2.0", "id": self._last, "method": "tools/call", "params": params}
        assert self.front.take(json.dumps(message).encode())
        async with asyncio.timeout(PATIENCE_S):
            while self._last not in self.answers:
                self.news.clear()
                await self.news.wait()
        return self.answers[self._last]


async def test_each_call_goes_down_with_its_own_route_and_its_own_callers_words(tmp_path: Path) -> None:
    async with running(tmp_path, "") as (node, _):
        leaf = Peer(node, "leaf")
        leaf.tools = [tool("read"), tool("look")]
        await registered(node, leaf)
        parent = Parent(node)
        ann, ben = ({"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}} for name in ("ann", "ben"))
        said = [("read", ann), ("read", ann), ("look", ann), ("read", ben), ("read", {}), ("look", ann), ("read", ann)]
        for number, (name, who) in enumerate(said, 1):
            assert "result" in await parent.call(f"leaf.{name}", **who)
            sent = leaf.calls[-1]
            assert (sent["name"], sent["arguments"]) == (name, {"n": number})
            assert sent["_meta"] == {
                **META,
                **who,
                "x-mcpax-route": ["root", "edge", "leaf", name],
                "x-mcpax-cursor": 2,
            }


async def test_routing_metadata_of_single_calls_is_neither_lost_nor_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ROUTED_META_MAX", 4)
    async with running(tmp_path, "") as (node, _):
        leaf = Peer(node, "leaf")
        leaf.tools = [tool("read")]
        keeper = await registered(node, leaf)
        parent = Parent(node)
        for number in range(10):
            await parent.call("leaf.read", traceparent=f"00-{uuid.uuid4().hex}-{number:016x}-01", progressToken=number)
            await parent.call("leaf.read", tracestate="x" * 3000)
            await parent.call("leaf.read", traceparent=f"00-{number:032x}-{number:016x}-01")
            assert leaf.calls[-1]["_meta"]["traceparent"] == f"00-{number:032x}-{number:016x}-01"
            assert "progressToken" not in leaf.calls[-1]["_meta"]
            assert len(leaf.calls[-2]["_meta"]["tracestate"]) == 3000
            assert leaf.calls[-3]["_meta"]["progressToken"] != number or number == 0
        assert isinstance(keeper.link, links.RegisteredLink)
        assert len(keeper.link._routed_meta) <= 4


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "method": "mcpax/parent", "params": {"_meta": META}},
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"_meta": META}},
        {"jsonrpc": "2.0", "id": None, "method": "tools/list", "params": {"_meta": META}},
        {"jsonrpc": "1.0", "id": 1, "method": "tools/list", "params": {"_meta": META}},
        [],
    ],
)
async def test_an_unusual_request_is_left_to_the_complete_validation(tmp_path: Path, message: Any) -> None:
    async with running(tmp_path, "") as (node, _):
        parent = Parent(node)
        assert not parent.front.take(json.dumps(message).encode())
        assert parent.answers == {}


async def test_a_node_that_stops_takes_nothing_up(tmp_path: Path) -> None:
    async with running(tmp_path, "") as (node, _):
        parent = Parent(node)
        parent.front.close()
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
        assert not parent.front.take(json.dumps(message).encode())
