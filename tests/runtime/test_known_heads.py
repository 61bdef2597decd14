"""Which heads of requests are remembered at the front?"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.runtime.leaving import STAMP, exchanged, free_ports

from interlock.config.load import load
from interlock.runtime.fronts.http_protocol import KNOWN_HEADS_MAX
from interlock.runtime.node.node import Node
from interlock.surface.operator.app import operator_app

DISCOVER = "mcp-protocol-version: 2026-07-28\r\nmcp-method: server/discover\r\n"


@contextlib.asynccontextmanager
async def front(folder: Path) -> AsyncIterator[tuple[Node, Any]]:
    port, operators = free_ports()
    config = folder / "interlock.toml"
    config.write_text(f'[node]\nlisten = "127.0.0.1:{port}"\noperator_listen = "127.0.0.1:{operators}"\n')
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, who: operator_app(operations, authenticate=who))
    await node.open()
    try:
        client = await asyncio.open_connection("127.0.0.1", port)
        yield node, client
        client[1].close()
    finally:
        await node.close()


def discover(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "server/discover", "params": {"_meta": STAMP}}


async def test_a_head_is_studied_when_it_comes_again_and_means_the_same_ever_after(tmp_path: Path) -> None:
    async with front(tmp_path) as (node, client):
        said = []
        studied = []
        for number in range(1, 5):
            answer, told = await exchanged(client, DISCOVER, discover(number))
            said.append((answer, told["id"] - number, told["result"]))
            studied.append(sum(known is not None for known in node.fronts.public.known_heads.values()))
        assert studied == [0, 1, 1, 1]
        assert said == [said[0]] * 4


async def test_heads_that_come_once_are_not_kept_and_their_table_is_bounded(tmp_path: Path) -> None:
    async with front(tmp_path) as (node, client):
        for number in range(KNOWN_HEADS_MAX + 10):
            await exchanged(client, f"{DISCOVER}x-trace: {number}\r\n", discover(1))
        assert set(node.fronts.public.known_heads.values()) == {None}
        assert len(node.fronts.public.known_heads) <= KNOWN_HEADS_MAX
