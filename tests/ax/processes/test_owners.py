"""Segments that belong to a proved authority beyond any session, and the aggregator's restart (MCP-AX 4.2)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.blocking_client import call, listed, ready
from tests.support.node_process import RunningNode, running_node

ACCESS = """
[degraded]
enabled = false
[[access]]
who = ["subserver:owner"]
scope = "write"
authority = "dns:owner.example.com"
[[access]]
who = ["subserver:other"]
scope = "write"
authority = "dns:other.example.com"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def _token(node: RunningNode, name: str) -> str:
    return node.cli("access", "token", "--for", "subserver", "--name", name).stdout.strip()


async def _refusal(node: RunningNode, token: str, **register: str) -> tuple[int, str]:
    leaf = BareSubserver(await connect(node, token=token), "plant", **register)
    with pytest.raises(Refused) as refused:
        await leaf.register()
    await leaf.stop()
    return refused.value.error["code"], refused.value.error["message"]


@pytest.mark.req("AX-4.2-5", "AX-4.2-6")
async def test_ownership_outlives_the_session_and_the_aggregator(folder: Path) -> None:
    with running_node(folder, {}, extra=ACCESS) as node:
        owner, other = _token(node, "owner"), _token(node, "other")
        async with bare_subserver(node, "plant", token=owner, authority="dns:owner.example.com", tools=[tool("read")]):
            await ready(node, "plant", tools=1)
        await asyncio.to_thread(_until_gone, node)
        assert await _refusal(node, other, authority="dns:other.example.com") == (32115, "authority_conflict")
        assert await _refusal(node, other) == (32115, "authority_conflict")
        assert await _refusal(node, other, authority="dns:owner.example.com") == (32114, "authority_unverified")
    with running_node(folder, {}, extra=ACCESS) as node:
        assert "plant.read" not in await listed(node)
        assert await _refusal(node, other, authority="dns:other.example.com") == (32115, "authority_conflict")
        async with bare_subserver(node, "plant", token=owner, authority="dns:owner.example.com", tools=[tool("read")]):
            await ready(node, "plant", tools=1)
            assert "result" in await call(node, "plant__read")
        await asyncio.to_thread(_until_gone, node)
        freed = await asyncio.to_thread(node.cli, "links", "release", "plant")
        assert (freed.returncode, freed.stdout.strip()) == (0, "plant is free")
        async with bare_subserver(node, "plant", token=other, authority="dns:other.example.com"):
            pass
        nothing = await asyncio.to_thread(node.cli, "links", "release", "nowhere")
        assert nothing.returncode == 1


def _until_gone(node: RunningNode) -> None:
    from tests.support.node_process import wait_for

    wait_for(lambda: all(link["segment"] != "plant" for link in node.admin("/admin/links")["links"]))


@pytest.mark.req("AX-13.2-1")
async def test_outcomes_of_registrations_are_recorded(folder: Path) -> None:
    with running_node(folder, {}, extra=ACCESS) as node:
        owner = _token(node, "owner")
        async with bare_subserver(node, "plant", token=owner) as leaf:
            rival = BareSubserver(await connect(node, token=owner), "plant")
            with pytest.raises(Refused):
                await rival.register()
            await rival.stop()
            leaf.cut()
            await asyncio.to_thread(_until_gone, node)
        records = (await asyncio.to_thread(node.admin, "/admin/audit?limit=100"))["records"]
        seen = [(one["who"], one["method"], one["tool"], one["verdict"], one["outcome"]) for one in records]
        assert ("subserver:owner", "mcpax/register", "plant", "admitted", "ok") in seen
        assert ("subserver:owner", "mcpax/register", "plant", "refused", "refused") in seen
        assert ("subserver:owner", "notifications/mcpax/subserver_lost", "plant", "admitted", "lost") in seen
