"""One subserver at two aggregators of a tree, without a store between them: the parent they share sees it (13.4)."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.in_process.test_ax_cycles import at, below, registered, url
from tests.ax.levels import Level, level, until
from tests.ax.tree import ACCESS, parents
from tests.support.reserved_ports import reserve_port

pytestmark = pytest.mark.req("AX-13.4-2", "AX-13.4-4")


class Draft(BareSubserver):
    """A leaf that knows no more than the draft: it neither says nor answers who its parent is."""

    def __init__(self, socket: Any, segment: str, **options: Any) -> None:
        super().__init__(socket, segment, tools=[tool("read")], **options)
        del self.register_params["parent_id"]

    async def _serve(self, request: dict[str, Any]) -> None:
        if request["method"] == "mcpax/parent":
            error = {"code": -32601, "message": "Method not found"}
            await self.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
        else:
            await super()._serve(request)


def own_id(place: Level) -> str:
    return place.node.stores.identity.aggregator_id


async def register(place: Level, subserver_id: str, **more: Any) -> Draft:
    leaf = Draft(await connect(place), "plant", subserver_id=subserver_id, **more)
    try:
        await leaf.register()
    except Refused:
        await leaf.stop()
        raise
    return leaf


async def refused_by(place: Level, subserver_id: str, holder: Level, **more: Any) -> None:
    with pytest.raises(Refused) as refused:
        await register(place, subserver_id, **more)
    error = refused.value.error
    assert (error["code"], error["message"]) == (32113, "split_brain")
    assert error["data"]["holder_aggregator_id"] == own_id(holder)
    assert "plant" not in place.node.calls.keepers


@contextlib.asynccontextmanager
async def tree(folder: Path) -> AsyncIterator[tuple[Level, Level, Level, Level]]:
    """top over a over deep, and over b."""
    async with (
        level(folder / "top", ACCESS) as top,
        below(folder, "a", top) as a,
        below(folder, "deep", a) as deep,
        below(folder, "b", top) as b,
    ):
        yield top, a, deep, b


async def test_a_subserver_is_refused_by_every_other_aggregator_of_its_tree_until_it_has_left(tmp_path: Path) -> None:
    async with tree(tmp_path) as places:
        for first in places:
            leaf_id = str(uuid.uuid4())
            leaf = await register(first, leaf_id)
            for other in places:
                if other is not first:
                    await refused_by(other, leaf_id, first)
            assert (await leaf.beat())["status"] == "ok"
            await leaf.request("mcpax/deregister", {"session_id": leaf.session["session_id"]})
            await leaf.stop()
            for other in places:
                if other is not first:
                    moved = await until_taken(other, leaf_id)
                    await moved.request("mcpax/deregister", {"session_id": moved.session["session_id"]})
                    await moved.stop()


async def until_taken(place: Level, leaf_id: str) -> Draft:
    """That it has left is said up the tree in time of its own."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(Refused):
                return await register(place, leaf_id)


async def test_of_two_simultaneous_registrations_one_is_accepted(tmp_path: Path) -> None:
    async with tree(tmp_path) as (_, _, deep, b):
        for _ in range(20):
            leaf_id = str(uuid.uuid4())
            came = await asyncio.gather(*(register(one, leaf_id) for one in (deep, b)), return_exceptions=True)
            taken = [one for one in came if isinstance(one, Draft)]
            assert len(taken) == 1, came
            await taken[0].request("mcpax/deregister", {"session_id": taken[0].session["session_id"]})
            await taken[0].stop()


async def test_a_subserver_that_lost_its_aggregator_is_accepted_by_another_and_gives_up_its_session(
    tmp_path: Path,
) -> None:
    async with tree(tmp_path) as (_, a, deep, b):
        leaf_id = str(uuid.uuid4())
        first = await register(deep, leaf_id)
        await refused_by(b, leaf_id, deep, released_session="another")
        second = await register(b, leaf_id, released_session=first.session["session_id"])
        assert (await first.closed())[1] == "split_brain"  # it said that it gave this up
        await refused_by(a, leaf_id, b)
        second.cut()
        third = await until_taken(a, leaf_id)
        for one in (first, second, third):
            await one.stop()


async def test_subservers_of_a_lost_aggregator_can_register_elsewhere(tmp_path: Path) -> None:
    async with level(tmp_path / "top", ACCESS) as top, below(tmp_path, "b", top) as b:
        leaf_id = str(uuid.uuid4())
        async with below(tmp_path, "a", top) as a:
            leaf = await register(a, leaf_id)
            await refused_by(b, leaf_id, a)
        moved = await until_taken(b, leaf_id)
        await moved.stop()
        await leaf.stop()


async def test_two_nodes_that_accepted_a_subserver_without_a_parent_settle_it_when_they_have_a_parent(
    tmp_path: Path,
) -> None:
    port = reserve_port()
    async with contextlib.AsyncExitStack() as stack:
        places = []
        for name in ("a", "b"):
            words = parents((url(port), name)) + ACCESS
            places.append(await stack.enter_async_context(level(tmp_path / name, words)))
        a, b = places
        deep = await stack.enter_async_context(below(tmp_path, "deep", a))
        leaf_id = str(uuid.uuid4())
        leaves = [await register(one, leaf_id) for one in (deep, b)]
        top = await stack.enter_async_context(level(tmp_path / "top", ACCESS + at(port)))
        for one in (a, b):
            await registered(one)
        await until(lambda: any(leaf.socket.close_code is not None for leaf in leaves))
        (gone,) = [leaf for leaf in leaves if leaf.socket.close_code is not None]
        assert gone.socket.close_reason == "split_brain"
        (kept,) = [leaf for leaf in leaves if leaf is not gone]
        assert (await kept.beat())["status"] == "ok"
        assert len([name for name in top.tools() if name.endswith("plant.read")]) <= 1
        for leaf in leaves:
            await leaf.stop()


async def test_another_tree_is_another_matter(tmp_path: Path) -> None:
    async with (
        level(tmp_path / "north", '[ax]\ntree = "north"\n' + ACCESS) as north,
        level(tmp_path / "south", '[ax]\ntree = "south"\n' + ACCESS) as south,
    ):
        said = '[ax]\ntree = "north"\n' + parents((north.ax, "edge"))
        said += f'[[ax.parents]]\nurl = "{south.ax}"\nsegment = "edge"\ntree = "south"\n'
        async with level(tmp_path / "edge", said + ACCESS) as edge:
            await registered(edge, 0)
            await registered(edge, 1)
            leaf_id = str(uuid.uuid4())
            leaf = await register(edge, leaf_id)
            await refused_by(north, leaf_id, edge)
            other = await register(south, leaf_id)
            await leaf.stop()
            await other.stop()


async def test_a_leaf_claims_nothing_and_an_aggregator_releases_only_its_own(tmp_path: Path) -> None:
    async with level(tmp_path / "top", ACCESS) as top, below(tmp_path, "a", top) as a:
        leaf_id = str(uuid.uuid4())
        leaf = await register(a, leaf_id)
        claim = {"subserver_id": leaf_id, "aggregator_id": str(uuid.uuid4()), "session_hash": "0" * 64}
        with pytest.raises(Refused) as refused:
            await leaf.request("mcpax/claim", {"claims": [claim]})
        assert refused.value.error["code"] == -32601
        async with bare_subserver(top, "liar", **{"x-mcpax-subtree-ids": [str(uuid.uuid4())]}) as liar:
            assert liar.session["claims"] is True
            answer = await liar.request("mcpax/claim", {"released": [leaf_id], "claims": [claim]})
            assert answer["held"] == {leaf_id: own_id(a)}
            with pytest.raises(Refused) as refused:
                await liar.request("mcpax/claim", {"claims": [7]})
            assert refused.value.error["code"] == -32602
            await refused_by(top, leaf_id, a)
        await leaf.stop()


async def test_an_aggregator_that_moves_takes_its_subservers_along(tmp_path: Path) -> None:
    async with (
        level(tmp_path / "top", ACCESS) as top,
        below(tmp_path, "b", top) as b,
        contextlib.AsyncExitStack() as first,
    ):
        a = await first.enter_async_context(below(tmp_path, "a", top))
        words = parents((a.ax, "edge"), (b.ax, "edge")) + ACCESS
        async with level(tmp_path / "edge", words) as edge:
            await registered(edge)
            leaf_id = str(uuid.uuid4())
            leaf = await register(edge, leaf_id)
            await top.until_listed("a.edge.plant.read")
            await first.aclose()
            await registered(edge, 1)
            await top.until_listed("b.edge.plant.read")
            assert (await leaf.beat())["status"] == "ok"
            await refused_by(top, leaf_id, edge)
            await leaf.stop()
