"""One node in two trees: it serves both, and within one tree it has one parent (MCP-AX 3.1)."""

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.levels import Level, level, until
from tests.ax.tree import ACCESS
from tests.support.peers import HttpPeer

from interlock.ax.parts import AxParts
from interlock.node.cli.tree import parent_lines


def tree(name: str) -> str:
    return f'[ax]\ntree = "{name}"\n'


def parent(above: Level, segment: str, name: str | None = None) -> str:
    said = "" if name is None else f'tree = "{name}"\n'
    return f'[[ax.parents]]\nurl = "{above.ax}"\nsegment = "{segment}"\nauthority = "dns:all.example"\n{said}'


def states(node: Level) -> list[tuple[str, str]]:
    return [(one.tree, one.state) for one in node.node.operations.node.status().parents]


@pytest.mark.req("AX-3.1-1")
async def test_a_node_registers_with_the_roots_of_two_trees_and_serves_both(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        north = await stack.enter_async_context(level(tmp_path / "north", tree("north") + ACCESS))
        spare = await stack.enter_async_context(level(tmp_path / "spare", tree("north") + ACCESS))
        south_life = await stack.enter_async_context(contextlib.AsyncExitStack())
        south = await south_life.enter_async_context(level(tmp_path / "south", tree("south") + ACCESS))
        said = tree("north") + parent(north, "shared") + parent(south, "lent", "south") + parent(spare, "shared")
        shared = await stack.enter_async_context(level(tmp_path / "shared", said + ACCESS))
        await until(lambda: states(shared) == [("north", "registered"), ("south", "registered"), ("north", "standby")])
        drawn = parent_lines(
            shared.node.operations.node.status().parents,
            width=80,
            now=datetime.now(UTC),
            ascii_only=True,
        )
        assert [line.plain.partition("  for")[0] for line in drawn] == [
            f"^ {north.ax}  registered as shared in north",
            f"^ {south.ax}  registered as lent in south",
            f"^ {spare.ax}  standby in north",
        ]
        await stack.enter_async_context(bare_subserver(shared, "leaf", tools=[tool("read")]))
        for root, segment in ((north, "shared"), (south, "lent")):
            await root.until_listed(f"{segment}.leaf.read")
            async with await HttpPeer.modern_(f"{root.url}/mcp") as peer:
                assert (await peer.call(f"{segment}.leaf.read")).result["content"][0]["text"] == "read ran"
        held = {
            "subserver_id": shared.node.stores.identity.aggregator_id,
            "parent_id": north.node.stores.identity.aggregator_id,
        }
        second = BareSubserver(await connect(spare), "shared", **held)
        with pytest.raises(Refused) as refused:
            await second.register()
        assert refused.value.error["message"] == "split_brain"
        await second.stop()
        await south_life.aclose()
        await until(lambda: states(shared)[1][1] == "waiting")
        assert states(shared)[0] == ("north", "registered")
        async with await HttpPeer.modern_(f"{north.url}/mcp") as peer:
            assert (await peer.call("shared.leaf.read")).result["content"][0]["text"] == "read ran"


async def test_a_parent_of_another_tree_than_named_refuses_and_names_its_own(tmp_path: Path) -> None:
    async with (
        level(tmp_path / "north", tree("north") + ACCESS) as north,
        level(tmp_path / "child", parent(north, "child", "south") + ACCESS) as child,
    ):
        await until(lambda: states(child) == [("south", "waiting")])
        (shown,) = child.node.operations.node.status().parents
        assert "tree" in (shown.reason or "")
        assert "child" not in north.node.calls.keepers


@pytest.mark.req("AX-5.3-3")
async def test_a_circle_through_two_trees_is_a_circle(tmp_path: Path) -> None:
    async with (
        level(tmp_path / "top", tree("one") + ACCESS) as top,
        level(tmp_path / "low", tree("two") + parent(top, "low", "one") + ACCESS) as low,
    ):
        await until(lambda: states(low) == [("one", "registered")])
        closing = BareSubserver(
            await connect(low),
            "top",
            subserver_id=top.node.stores.identity.aggregator_id,
            **{"x-mcpax-subtree-ids": list(top.node.get(AxParts).registrar.engine.subtree_ids())},
        )
        with pytest.raises(Refused) as refused:
            await closing.register()
        assert refused.value.error["message"] == "registration_cycle"
        await closing.stop()
