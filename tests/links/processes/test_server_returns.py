"""A server that ends again and again: is it there for whoever calls it, and started no more often than it may be?"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.drivers.driver_stage import until
from tests.servers.start import raw
from tests.support.local_node import LegacyClient, running

from interlock.links import keeper
from interlock.links.keeper import Keeper
from interlock.node.node import Node

ROUNDS = 6  # more than a server that keeps failing is waited for


def command(folder: Path, *words: str) -> str:
    """The command line of a server that notes each start, and does not start while a file `broken` is there."""
    script = folder / "start.sh"
    script.write_text('#!/bin/sh\necho >> "$0.starts"\n[ -e "$0.broken" ] && exit 3\nexec "$@"\n')
    script.chmod(0o700)
    return json.dumps([str(script), *words])


def starts(folder: Path) -> int:
    return len((folder / "start.sh.starts").read_bytes())


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    servers = f"[servers.one]\ncommand = {command(tmp_path, *raw('echo'))}\n"
    async with running(tmp_path, servers) as (node, _):
        yield node


def one(node: Node) -> Keeper:
    return node.calls.keepers["one"]


async def kill(node: Node) -> None:
    """End the server; the node knows of it afterwards."""
    assert one(node).link.pid is not None
    os.kill(one(node).link.pid, signal.SIGKILL)
    await until(lambda: one(node).link.pipe is None)


async def answered(client: LegacyClient) -> bool:
    reply = (await client.call("one__echo", {"n": 1}).message()).get("result")
    return reply is not None and reply["structuredContent"] == {"n": 1}


async def test_a_server_that_served_is_started_for_the_next_call_however_often_it_ended(
    node: Node, tmp_path: Path
) -> None:
    client = LegacyClient(node)
    loop = asyncio.get_running_loop()
    for _ in range(ROUNDS):
        assert await answered(client)
        await kill(node)
        began = loop.time()
        assert await answered(client)
        assert loop.time() - began < keeper.WAKE_LEAST_S + 3  # its start included
    assert starts(tmp_path) == ROUNDS + 1


async def test_a_server_that_ends_without_serving_is_started_at_a_bounded_rate(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "backoff_s", lambda attempt: 3600.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(ROUNDS):
        await kill(node)
        for _ in range(100):
            one(node).wake()
        assert await one(node).usable_within(10)
    assert starts(tmp_path) == ROUNDS + 1
    assert loop.time() - began >= (ROUNDS - 1) * keeper.WAKE_LEAST_S


async def test_a_call_starts_a_failed_server_long_before_its_backoff_is_over(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeper, "wakes_after_s", (0.1, 0.4))
    monkeypatch.setattr(keeper, "backoff_s", lambda attempt: 0.01 if attempt <= keeper.QUICK_RETURNS_MAX else 3600.0)
    client = LegacyClient(node)
    (tmp_path / "start.sh.broken").touch()
    await kill(node)
    await until(lambda: not one(node).may_return_soon)
    before, loop = starts(tmp_path), asyncio.get_running_loop()
    began = loop.time()
    while loop.time() - began < 2:  # each call is refused at once and wakes it, within the rate
        assert (await client.call("one__echo").error())["message"] == "tool_degraded"
        await asyncio.sleep(0.02)
    assert 2 <= starts(tmp_path) - before <= 6
    (tmp_path / "start.sh.broken").unlink()
    await client.call("one__echo").message()
    assert await one(node).usable_within(5)
    assert await answered(client)
