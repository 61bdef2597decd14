"""A list that is read again: what is the same is the same object, and a flood of changes is taken together.

The server here is a registered leaf without a connection: what it is asked goes straight to the test.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.local_node import running

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.connection import SubserverConnection
from interlock.ax.parts import AxParts
from interlock.ax.protocol.capability import AuthScope
from interlock.links import keeper as keepers
from interlock.links.keeper import Keeper
from interlock.links.listing import Items
from interlock.net.message_pipe import NORMAL
from interlock.node.node import Node

PATIENCE_S = 10.0
PAGE = 50


class Leaf:
    """It lists its tools in pages; a subserver and the pipe to it in one."""

    def __init__(self, node: Node, segment: str, **register: Any) -> None:
        guest = RegistrantIdentity(principal="subserver:leaf", scope=AuthScope.ADMIN, vouched=True)
        self.connection = SubserverConnection(
            node.get(AxParts).registrar, guest, transport="websocket", heartbeat_min_ms=100
        )
        self.connection.begin(self)
        self.tools: list[dict[str, Any]] = []
        self.asked = 0  # how often for the first page
        self.changed = asyncio.Event()
        params = {"subserver_id": str(uuid.uuid4()), "segment": segment, "parent_id": None, **register}
        self.say(id="register", method="mcpax/register", params=params)

    def say(self, **members: Any) -> None:
        message = json.dumps({"jsonrpc": "2.0", **members}).encode()
        asyncio.get_running_loop().call_soon(self.connection.on_message, message)

    def send(self, data: bytes) -> bool:
        message = json.loads(data)
        hints = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}
        if message.get("method") == "server/discover":
            capable = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}
            self.say(id=message["id"], result={**hints, **capable})
        elif message.get("method") == "tools/list":
            start = int(message["params"].get("cursor", "0"))
            self.asked += not start
            more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(self.tools) else {}
            self.say(id=message["id"], result={**hints, "tools": self.tools[start : start + PAGE], **more})
        return True

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        asyncio.get_running_loop().call_soon(self.connection.on_closed, code, reason)

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}, **more}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running(tmp_path, "") as (started, _):
        yield started


async def registered(node: Node, leaf: Leaf, segment: str = "leaf") -> Keeper:
    async with asyncio.timeout(PATIENCE_S):
        while segment not in node.calls.keepers or node.calls.keepers[segment].listing is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return node.calls.keepers[segment]


def listed(keeper: Keeper) -> Items:
    assert keeper.listing is not None
    return keeper.listing.tools


async def test_items_with_the_same_bytes_are_the_same_objects_again(node: Node) -> None:
    leaf = Leaf(node, "leaf")
    leaf.tools = [tool(f"t{number}") for number in range(120)]
    keeper = await registered(node, leaf)
    before = dict(listed(keeper).items)
    leaf.tools = [tool("new"), *leaf.tools[1:60], tool("t60", description="changed"), *leaf.tools[61:]]
    await keeper.refreshed("tools")
    after = dict(listed(keeper).items)
    assert list(after) == ["new", *(f"t{number}" for number in range(1, 120))]
    assert all((after[name] is before[name]) is (name != "t60") for name in after.keys() & before.keys())


async def test_no_item_keeps_the_page_alive_that_it_came_on(node: Node) -> None:
    leaf = Leaf(node, "leaf")
    leaf.tools = [tool("small"), tool("large", description="x" * 100_000)]
    keeper = await registered(node, leaf)
    items = listed(keeper)
    assert [len(raw) < 200 for raw in items.raws] == [True, False]
    assert all(len(bytes(member)) < 200 for member in dict(items.items)["small"].values())
    assert json.loads(items.raws[0]) == tool("small")


async def test_more_items_are_read_from_an_aggregator_than_from_a_leaf(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.links.listing.ITEMS_MAX", 100)
    monkeypatch.setattr("interlock.links.listing.AGGREGATED_MAX", 150)
    for segment, most in (("leaf", 100), ("below", 150)):
        subtree = {"x-mcpax-subtree-ids": [str(uuid.uuid4())]} if segment == "below" else {}
        leaf = Leaf(node, segment, **subtree)
        leaf.tools = [tool(f"t{number}") for number in range(220)]
        keeper = await registered(node, leaf, segment)
        items = listed(keeper)
        assert (len(items.items), len(items.raws)) == (most, most)
        assert any(f"first {most}" in why or f"more than {most}" in why for _, why in items.refused)


async def test_a_flood_of_changes_is_read_now_and_once_more_after_a_rest(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = keepers.REST_ITEMS_MIN + 20
    monkeypatch.setattr(keepers, "REST_PER_ITEM_S", 0.3 / many)
    leaf = Leaf(node, "leaf")
    leaf.tools = [tool(f"t{number}") for number in range(many)]
    keeper = await registered(node, leaf)
    first = leaf.asked
    await keeper.refreshed("tools")
    assert leaf.asked == first + 1  # the first after a quiet time is read at once
    began = asyncio.get_running_loop().time()
    for number in range(200):
        leaf.tools[0] = tool("t0", description=str(number))
        keeper.refresh("tools")
        await asyncio.sleep(0)
    assert leaf.asked == first + 1
    await keeper.refreshed("tools")
    assert leaf.asked == first + 2
    assert asyncio.get_running_loop().time() - began >= 0.25
    assert b'"199"' in listed(keeper).raws[0]  # the last word is heard


def test_no_list_rests_longer_than_a_part_of_the_usual_heartbeat_interval() -> None:
    assert keepers.REST_MAX_S <= 1.0
