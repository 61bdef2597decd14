"""Two aggregators of one tree on one store: a subserver has one of them (MCP-AX 13.4)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.interaction.ax.bare import Bare, Refused, connect, tool

from interlock.config.plan import Address, AxPlan, NodePlan, Plan
from interlock.runtime.ax.records import Leases
from interlock.runtime.node import Node
from interlock.store.ports import Store
from interlock.store.registry import build_store
from interlock.surface.admin.app import operator_app


@contextlib.asynccontextmanager
async def _node(folder: Path, shared: Store, tree: str = "default") -> AsyncIterator[Any]:
    anywhere = Address("127.0.0.1", 0)
    plan = Plan(
        workspace=folder,
        data=folder / "data",
        node=NodePlan(listen=anywhere, operator_listen=anywhere),
        ax=AxPlan(tree=tree),
    )
    node = Node(plan, lambda operations, authenticate: operator_app(operations, authenticate=authenticate))
    node.registrar._leases = Leases(shared.kv, node.clock, node.identity.aggregator_id, tree)
    await node.start()
    where = urlsplit(node.url)
    try:
        yield SimpleNamespace(host=where.hostname, port=where.port, node=node)
    finally:
        await node.stop()


async def _register(at: Any, **options: Any) -> Bare:
    leaf = Bare(await connect(at), "plant", tools=[tool("read")], **options)
    try:
        await leaf.register()
    except Refused:
        await leaf.stop()
        raise
    return leaf


@pytest.mark.req("AX-13.4-2")
async def test_a_subserver_of_one_aggregator_is_refused_by_the_other(tmp_path: Path) -> None:
    shared = build_store("sqlite", tmp_path / "shared")
    await shared.open()
    try:
        async with (
            _node(tmp_path / "a", shared) as a,
            _node(tmp_path / "b", shared) as b,
            _node(tmp_path / "c", shared, tree="another") as c,
        ):
            first = await _register(a)
            with pytest.raises(Refused) as refused:
                await _register(b, subserver_id=first.subserver_id)
            assert (refused.value.error["code"], refused.value.error["message"]) == (32113, "split_brain")
            holder = refused.value.error["data"]["holder_aggregator_id"]
            assert holder == a.node.identity.aggregator_id
            assert (await first.beat())["status"] == "ok"
            elsewhere = await _register(c, subserver_id=first.subserver_id)
            await first.request("mcpax/deregister", {"session_id": first.session["session_id"]})
            await first.closed()
            async with asyncio.timeout(10):
                while True:
                    try:
                        second = await _register(b, subserver_id=first.subserver_id)
                        break
                    except Refused as still:
                        assert still.error["message"] == "split_brain"
            moved = await _register(a, subserver_id=first.subserver_id, released_session=second.session["session_id"])
            await second.beat()
            assert (await second.closed())[1] == "split_brain"
            for leaf in (first, elsewhere, second, moved):
                await leaf.stop()
    finally:
        await shared.close()


@pytest.mark.req("AX-13.4-3")
async def test_without_the_store_new_registrations_wait_and_old_ones_go_on(tmp_path: Path) -> None:
    shared = build_store("sqlite", tmp_path / "shared")
    await shared.open()
    async with _node(tmp_path / "a", shared) as a:
        first = await _register(a)
        await shared.close()
        assert (await first.beat())["status"] == "ok"
        other = Bare(await connect(a), "other")
        with pytest.raises(Refused) as away:
            await other.register()
        assert (away.value.error["code"], away.value.error["message"]) == (32131, "unavailable")
        assert (await first.beat())["status"] == "ok"
        await first.stop()
        await other.stop()
