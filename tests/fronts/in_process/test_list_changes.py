"""How often are clients and parents told that lists changed, and of which changes?"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.frozen_node import MemoryNetwork, node_chain, tool
from tests.support.frozen_time import advance_time, in_frozen_time

from interlock.core.calls.caller import Caller, Principal, ViewKey
from interlock.fronts.audience import Audience
from interlock.mcp.methods import Era

TOOLS = frozenset({"tools"})


class Member:
    def __init__(self, name: str, hop: Any = None) -> None:
        self.caller = Caller(Principal(name), Era.MODERN, "http", ViewKey(scope=name))
        self.caller.hop = hop
        self.heard: list[str] = []

    def on_lists_changed(self, kind: str) -> None:
        self.heard.append(kind)

    def news(self) -> int:
        heard, self.heard = self.heard, []
        assert set(heard) <= TOOLS
        return len(heard)


async def ten_times(change: Callable[[], None]) -> None:
    """In a tenth of a second."""
    for _ in range(10):
        change()
        await advance_time(0.01)
    await advance_time(1.0)


@pytest.mark.req("AX-6.3-6")
@in_frozen_time
async def test_ten_changes_are_reported_as_two_and_those_of_metadata_to_parents_alone() -> None:
    audience, client, parent = Audience({}), Member("client"), Member("parent", hop=object())
    members = cast(Any, (client, parent))
    for member in members:
        audience.join(member)
    await ten_times(lambda: audience.lists_changed(TOOLS))
    assert [one.news() for one in members] == [2, 2]
    await ten_times(lambda: audience.metadata_changed(TOOLS))
    assert [one.news() for one in members] == [0, 2]
    server = cast(Any, object())
    await ten_times(lambda: audience.list_announced(server, "tools", math.inf, lambda caller, link: caller.hop is None))
    assert [one.news() for one in members] == [2, 0]
    audience.metadata_changed(TOOLS)
    audience.lists_changed(TOOLS)
    await advance_time(1.0)
    assert [one.news() for one in members] == [1, 1]


@pytest.mark.req("AX-6.3-6")
@in_frozen_time
async def test_ten_deregistrations_below_are_reported_at_the_root_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a tenth of a second, and the list at the root is right long before it is old."""
    wires = MemoryNetwork(monkeypatch)
    async with node_chain(tmp_path, wires, ["edge"]) as (root, edge):
        offered = {"tools": [tool("read")], "heartbeat_interval_ms": 0}
        leaves = [await edge.leaf(f"leaf{number}", **offered).joined() for number in range(10)]
        await edge.leaf("stays", **offered).joined()
        await advance_time(1.0)
        client, plain = root.client(), await root.client().greet()
        await client.listen(toolsListChanged=True)
        assert len(await client.tools()) == 13
        (up,) = wires.ends["root"]
        before = sum(b"notifications/tools/list_changed" in one for one in up.carried)
        for leaf in leaves:
            await leaf.request("mcpax/deregister", {"session_id": leaf.session})
            await advance_time(0.01)
        await advance_time(1.0)
        assert 1 <= sum(b"notifications/tools/list_changed" in one for one in up.carried) - before <= 2
        for who in (client, plain):
            assert 1 <= len(who.heard("notifications/tools/list_changed")) <= 2
            own = {"notifications_dropped", "edge.notifications_dropped"}
            assert set(await who.tools()) == {"edge.stays.read"} | own
