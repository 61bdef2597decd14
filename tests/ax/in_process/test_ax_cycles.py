"""Circles of aggregators do not close (MCP-AX 5.3): not three levels away, and not after a move."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.levels import Level, level, until
from tests.ax.tree import ACCESS, parents
from tests.support.peers import HttpPeer
from tests.support.reserved_ports import reserve_port

from interlock.ax.parts import AxParts

pytestmark = pytest.mark.req("AX-5.3-3")


def at(port: int) -> str:
    return f'[node]\nlisten = "127.0.0.1:{port}"\noperator_listen = "127.0.0.1:0"\n'


def url(port: int) -> str:
    return f"ws://127.0.0.1:{port}/ax"


def standing(place: Level, number: int = 0) -> dict[str, Any]:
    """How a parent of this node stands."""
    found: dict[str, Any] = msgspec.to_builtins(place.node.operations.node.status().parents[number])
    return found


async def registered(place: Level, number: int = 0) -> None:
    await until(lambda: standing(place, number)["state"] == "registered")


@contextlib.asynccontextmanager
async def below(folder: Path, name: str, above: Level) -> AsyncIterator[Level]:
    async with level(folder / name, parents((above.ax, name)) + ACCESS) as place:
        await registered(place)
        yield place


async def test_a_circle_that_closes_three_levels_away_is_refused_and_the_tree_goes_on(tmp_path: Path) -> None:
    """a over b over c over d; a is told to register with d, which comes last."""
    port = reserve_port()
    async with (
        level(tmp_path / "a", parents((url(port), "a")) + ACCESS) as a,
        below(tmp_path, "b", a) as b,
        below(tmp_path, "c", b) as c,
        level(tmp_path / "d", parents((c.ax, "d")) + ACCESS + at(port)) as d,
    ):
        refused = await until(
            lambda: [one for one in (a, d) if "registration_cycle" in str(standing(one)["reason"])],
        )
        assert all("remove it" in standing(one)["next_step"] for one in refused)
        assert not {"a", "d"} <= {*c.node.calls.keepers, *d.node.calls.keepers}  # nobody is below itself
        for one in (b, c):
            assert standing(one)["state"] == "registered"
        async with bare_subserver(c, "leaf", tools=[tool("read")]):
            await a.until_listed("b.c.leaf.read")
            async with await HttpPeer.modern_(f"{a.url}/mcp") as peer:
                assert (await peer.call("b.c.leaf.read")).result["content"]


async def test_a_node_that_lost_its_parent_does_not_move_below_itself_and_goes_back_when_it_can(tmp_path: Path) -> None:
    """top over e over f over g; the backup of e is g."""
    top_port, g_port = reserve_port(), reserve_port()
    said = parents((url(top_port), "e"), (url(g_port), "e")) + ACCESS
    async with contextlib.AsyncExitStack() as stack:
        top = contextlib.AsyncExitStack()
        await top.enter_async_context(level(tmp_path / "top", ACCESS + at(top_port)))
        e = await stack.enter_async_context(level(tmp_path / "e", said))
        await registered(e)
        f = await stack.enter_async_context(below(tmp_path, "f", e))
        words = parents((f.ax, "g")) + ACCESS + at(g_port)
        g = await stack.enter_async_context(level(tmp_path / "g", words))
        await registered(g)
        await until(lambda: g.node.stores.identity.aggregator_id in e.node.get(AxParts).registrar.engine.subtree_ids())
        await top.aclose()
        await until(lambda: "registration_cycle" in str(standing(e, 1)["reason"]))
        assert "e" not in g.node.calls.keepers
        assert [standing(one)["state"] for one in (f, g)] == ["registered", "registered"]
        again = await stack.enter_async_context(level(tmp_path / "top", ACCESS + at(top_port)))
        await registered(e)
        await again.until_listed("e.notifications_dropped")


async def test_a_circle_that_a_move_further_down_closes_is_ended(tmp_path: Path) -> None:
    """a over b, and c beside them, which has a below it as soon as a moves there; then c moves below b."""
    a_port, c_port, gone = reserve_port(), reserve_port(), reserve_port()
    async with (
        level(tmp_path / "a", parents((url(gone), "a"), (url(c_port), "a")) + ACCESS + at(a_port)) as a,
        below(tmp_path, "b", a) as b,
        level(tmp_path / "c", parents((url(gone), "c"), (b.ax, "c")) + ACCESS + at(c_port)) as c,
    ):
        # Whichever of the two registers first, the other is refused or is told to go.
        await until(lambda: any("registration_cycle" in str(standing(one, 1)["reason"]) for one in (a, c)))
        assert [standing(one, 1)["state"] for one in (a, c)].count("registered") <= 1
        assert standing(b)["state"] == "registered"
        async with bare_subserver(b, "leaf", tools=[tool("read")]):
            await a.until_listed("b.leaf.read")
            # What the circle listed while it was closed goes level by level.
            await until(lambda: not [name for name in a.tools() if name.count("b.") > 1])


# One that lies about who is below it

SUBTREE = "x-mcpax-subtree-ids"


def own_id(place: Level) -> str:
    return place.node.stores.identity.aggregator_id


def session(above: Level, name: str) -> str:
    """Of the registration of `name`: another one would mean that it was away."""
    link: Any = above.node.calls.keepers[name].link
    return str(link.registration.session_id)


async def test_a_registrant_that_names_our_parent_is_refused_or_leaves_and_we_stay(tmp_path: Path) -> None:
    async with (
        level(tmp_path / "top", ACCESS) as top,
        below(tmp_path, "edge", top) as edge,
        bare_subserver(edge, "leaf", tools=[tool("read")]),
    ):
        await top.until_listed("edge.leaf.read")
        before = session(top, "edge")
        for claims in ({SUBTREE: [own_id(top)]}, {SUBTREE: [str(uuid.uuid4()), own_id(top).upper()]}):
            liar = BareSubserver(await connect(edge), "liar", **claims)
            with pytest.raises(Refused) as refused:
                await liar.register()
            assert refused.value.error["message"] == "registration_cycle"
            await liar.stop()
        first = str(uuid.uuid4())
        async with bare_subserver(edge, "liar", heartbeat_interval_ms=500, **{SUBTREE: [first]}) as later:
            with pytest.raises(Refused) as refused:
                await later.beat(**{SUBTREE: [first, own_id(top)]})
            assert refused.value.error["message"] == "registration_cycle"
            assert (await later.closed())[1] == "registration_cycle"
        assert session(top, "edge") == before
        async with await HttpPeer.modern_(f"{top.url}/mcp") as peer:
            assert (await peer.call("edge.leaf.read")).result["content"]


@pytest.mark.parametrize("named", [0, 1])
async def test_only_the_registrant_that_names_a_higher_aggregator_has_to_leave(tmp_path: Path, named: int) -> None:
    """top over a over b over c, and the liar below c: nobody near it knows the id."""
    async with (
        level(tmp_path / "top", ACCESS) as top,
        below(tmp_path, "a", top) as a,
        below(tmp_path, "b", a) as b,
        below(tmp_path, "c", b) as c,
        bare_subserver(c, "leaf", tools=[tool("read")]),
    ):
        await top.until_listed("a.b.c.leaf.read")
        before = [session(above, name) for above, name in ((top, "a"), (a, "b"), (b, "c"))]
        claimed = [own_id(top), own_id(a)][named]
        liar = BareSubserver(
            await connect(c), "liar", heartbeat_interval_ms=3000, **{SUBTREE: [str(uuid.uuid4()), claimed]}
        )
        await liar.register()
        assert (await liar.closed())[1] == "registration_cycle"
        assert "liar" not in c.node.calls.keepers
        assert [session(above, name) for above, name in ((top, "a"), (a, "b"), (b, "c"))] == before
        assert "a.b.c.leaf.read" in top.tools()
        await liar.stop()
        again = BareSubserver(await connect(c), "liar", **{SUBTREE: [claimed]})
        with pytest.raises(Refused) as refused:
            await again.register()
        assert refused.value.error["message"] == "registration_cycle"
        await again.stop()


async def test_a_registrant_that_named_our_parent_before_us_does_not_keep_us_away(tmp_path: Path) -> None:
    port = reserve_port()
    async with contextlib.AsyncExitStack() as stack:
        async with level(tmp_path / "top", ACCESS + at(port)) as once:
            top_id = own_id(once)
        edge = await stack.enter_async_context(level(tmp_path / "edge", parents((url(port), "edge")) + ACCESS))
        claims = {SUBTREE: [str(uuid.uuid4()), top_id]}
        liar = await stack.enter_async_context(bare_subserver(edge, "liar", heartbeat_interval_ms=500, **claims))
        top = await stack.enter_async_context(level(tmp_path / "top", ACCESS + at(port)))
        assert own_id(top) == top_id
        await registered(edge)
        assert (await liar.closed())[1] == "registration_cycle"
        assert standing(edge)["state"] == "registered"
