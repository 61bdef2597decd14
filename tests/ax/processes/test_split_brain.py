"""Two aggregators of one tree on one store: a subserver has one of them (MCP-AX 13.4)."""

import asyncio
import contextlib
import json
import shutil
import stat
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import UNSET
from tests.ax.bare_subserver import BareSubserver, Refused, connect, tool
from tests.ax.tree import parents, wait_parent
from tests.store.nats_server import NatsServer
from tests.support.node_process import RunningNode, running_node, wait_for

from interlock.ax.ownership import Leases
from interlock.ax.parts import AxParts
from interlock.config.plan import Address, AxPlan, NodePlan, Plan
from interlock.core.store_backends import build_store
from interlock.node.node import Node
from interlock.operator.app import operator_app
from interlock.store.ports import Store


@contextlib.asynccontextmanager
async def _node(folder: Path, shared: Store, tree: str = "default") -> AsyncIterator[Any]:
    anywhere = Address("127.0.0.1", 0)
    plan = Plan(
        workspace=folder,
        data=folder / "data",
        node=NodePlan(listen=anywhere, operator_listen=anywhere),
        ax=AxPlan(tree=tree),
    )
    node = Node(plan, lambda operations, who, own: operator_app(operations, authenticate=who, own=own))
    node.get(AxParts).registrar.leases = Leases(shared.kv, node.stores.clock, node.stores.identity.aggregator_id, tree)
    await node.open()
    where = urlsplit(node.stores.addresses.public)
    try:
        yield SimpleNamespace(host=where.hostname, port=where.port, node=node)
    finally:
        await node.close()


async def _register(at: Any, segment: str = "plant", **options: Any) -> BareSubserver:
    leaf = BareSubserver(await connect(at), segment, tools=[tool("read")], **options)
    try:
        await leaf.register()
    except Refused:
        await leaf.stop()
        raise
    return leaf


async def _once_free(
    at: Any, left: Any, meanwhile: tuple[str, ...] = ("split_brain",), segment: str = "plant"
) -> BareSubserver:
    """The lease of one that took leave is given up in time of its own."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await _register(at, segment, subserver_id=left.subserver_id)
            except Refused as still:
                assert still.error["message"] in meanwhile


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
            assert holder == a.node.stores.identity.aggregator_id
            assert (await first.beat())["status"] == "ok"
            elsewhere = await _register(c, subserver_id=first.subserver_id)
            await first.request("mcpax/deregister", {"session_id": first.session["session_id"]})
            await first.closed()
            second = await _once_free(b, first)
            moved = await _register(a, subserver_id=first.subserver_id, released_session=second.session["session_id"])
            await second.beat()
            assert (await second.closed())[1] == "split_brain"
            for leaf in (first, elsewhere, second, moved):
                await leaf.stop()
    finally:
        await shared.close()


@pytest.mark.req("AX-13.4-2")
async def test_nodes_that_share_a_folder_settle_which_of_them_has_a_subserver(tmp_path: Path) -> None:
    share = f'[store]\nshared = "{tmp_path / "shared"}"\n'
    with running_node(tmp_path / "a", {}, share) as a, running_node(tmp_path / "b", {}, share) as b:
        first = await _register(a)
        with pytest.raises(Refused) as refused:
            await _register(b, subserver_id=first.subserver_id)
        assert (refused.value.error["code"], refused.value.error["message"]) == (32113, "split_brain")
        await first.request("mcpax/deregister", {"session_id": first.session["session_id"]})
        await first.closed()
        second = await _once_free(b, first)
        await first.stop()
        await second.stop()


@pytest.mark.req("AX-13.4-2", "AX-13.4-3")
async def test_nodes_that_share_servers_of_nats_settle_which_of_them_has_a_subserver(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.start()

    def share(name: str) -> str:
        listen = 'listen = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"'
        return f'[node]\nname = "{name}"\n{listen}\n[store]\nbackend = "nats"\nnats_url = "{server.url}"\n'

    try:
        with running_node(tmp_path / "a", {}, share("a")) as a, running_node(tmp_path / "b", {}, share("b")) as b:
            first = await _register(a)
            with pytest.raises(Refused) as refused:
                await _register(b, subserver_id=first.subserver_id)
            assert (refused.value.error["code"], refused.value.error["message"]) == (32113, "split_brain")
            assert refused.value.error["data"]["holder_aggregator_id"] == a.status_at_start["node"]["aggregator_id"]
            server.kill()
            wait_for(lambda: a.admin("/admin/status")["node"]["store_trouble"])
            with pytest.raises(Refused) as away:
                await _register(a, segment="other")
            assert (away.value.error["code"], away.value.error["message"]) == (32131, "unavailable")
            assert (await first.beat())["status"] == "ok"
            server.start()
            other = await _once_free(
                a, SimpleNamespace(subserver_id=str(uuid.uuid4())), ("unavailable",), segment="other"
            )
            await first.request("mcpax/deregister", {"session_id": first.session["session_id"]})
            await first.closed()
            second = await _once_free(b, first, ("split_brain", "unavailable"))
            for leaf in (first, other, second):
                await leaf.stop()
    finally:
        server.kill()


@pytest.mark.req("AX-13.4-3")
async def test_without_the_store_new_registrations_wait_and_old_registrations_go_on(tmp_path: Path) -> None:
    shared = build_store("sqlite", tmp_path / "shared")
    await shared.open()
    async with _node(tmp_path / "a", shared) as a:
        first = await _register(a)
        await shared.close()
        assert (await first.beat())["status"] == "ok"
        other = BareSubserver(await connect(a), "other")
        with pytest.raises(Refused) as away:
            await other.register()
        assert (away.value.error["code"], away.value.error["message"]) == (32131, "unavailable")
        assert (await first.beat())["status"] == "ok"
        await first.stop()
        await other.stop()


@pytest.mark.req("AX-6.1-2")
async def test_a_node_is_the_same_after_a_stop_a_crash_and_an_upgrade_and_a_copy_of_it_is_found_out(
    tmp_path: Path,
) -> None:
    shared = build_store("sqlite", tmp_path / "shared")
    await shared.open()
    home = tmp_path / "home"
    identity = home / "data" / "identity.json"
    try:
        async with _node(tmp_path / "a", shared) as a, _node(tmp_path / "b", shared) as b:
            seen = set()
            for how in ("stopped", "killed", "upgraded", "last"):
                async with _below(home, a.node.stores.addresses.public) as node:
                    await _until(
                        lambda: "edge" in a.node.calls.keepers and not a.node.calls.keepers["edge"].link.standing.reason
                    )
                    registration = a.node.operations.links.get("edge").registration
                    assert registration is not UNSET
                    seen.add(registration.subserver_id)
                    if how == "killed":
                        node.process.kill()
                    if how == "last":
                        assert stat.S_IMODE(identity.stat().st_mode) == 0o600
                        copied = tmp_path / "copied"
                        (copied / "data").mkdir(parents=True)
                        shutil.copy(identity, copied / "data" / "identity.json")
                        async with _below(copied, b.node.stores.addresses.public) as copy:
                            shown = await asyncio.to_thread(wait_parent, copy, {"state": "waiting"})
                            assert shown["reason"].startswith("split_brain")
                            assert "was the data folder copied?" in shown["next_step"]
                        assert "edge" not in b.node.calls.keepers
                        assert a.node.calls.keepers["edge"].link.standing.state.value == "ready"
                if how == "upgraded":  # whatever a later version writes beside it
                    identity.write_text(json.dumps({**json.loads(identity.read_text()), "made_by": "9.9.9"}))
            assert seen == {json.loads(identity.read_text())["aggregator_id"]}
    finally:
        await shared.close()


@contextlib.asynccontextmanager
async def _below(folder: Path, above: str) -> AsyncIterator[RunningNode]:
    url = above.replace("http://", "ws://") + "/ax"
    entered = running_node(folder, {}, parents((url, "edge"), authority=None))
    node = await asyncio.to_thread(entered.__enter__)
    try:
        yield node
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  (what is waited for is the node's own state)
            await asyncio.sleep(0.01)
