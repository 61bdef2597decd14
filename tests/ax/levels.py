"""Nodes below one another in this process, on real sockets, with one clock that a test sets for all of them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.ax.tree import ACCESS, parents
from tests.support.node_with_clock import AheadClock

from interlock.config.load import load
from interlock.node.node import Node
from interlock.operator.app import operator_app

SECONDS = 30.0
LISTEN = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'


class StillClock(AheadClock):
    """The time it was, and what a test adds."""

    def __init__(self) -> None:
        super().__init__()
        self._stands = (super().now(), super().wall())

    def now(self) -> float:
        return self._stands[0] + self.ahead

    def wall(self) -> float:
        return self._stands[1] + self.ahead


class Level:
    """One node and where it is reached; what `bare` and `Wire` take for a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        where = urlsplit(node.stores.addresses.public)
        self.url, self.host, self.port = node.stores.addresses.public, where.hostname or "", where.port or 0

    @property
    def ax(self) -> str:
        return f"ws://{self.host}:{self.port}/ax"

    def tools(self) -> dict[str, Any]:
        """Route by qualified name, as it stands."""
        return {
            route.qualified: route for items in self.node.calls.catalog.namespace.link_items for route in items.tools
        }

    async def until_listed(self, name: str) -> Any:
        async with asyncio.timeout(SECONDS):
            while name not in self.tools():  # noqa: ASYNC110  (what is waited for is the node's own state)
                await asyncio.sleep(0.01)
        return self.tools()[name]


async def until(holds: Callable[[], Any]) -> Any:
    async with asyncio.timeout(SECONDS):
        while not (found := holds()):  # noqa: ASYNC110  (what is waited for is the nodes' own state)
            await asyncio.sleep(0.01)
    return found


@contextlib.asynccontextmanager
async def level(folder: Path, said: str, clock: AheadClock | None = None) -> AsyncIterator[Level]:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "interlock.toml"
    listens = "" if "[node]" in said else LISTEN
    gate = "" if "[gate]" in said else '[gate]\nmode = "open"\n'
    config.write_text(f"{said}\n{listens}\n{gate}")
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, who, own: operator_app(operations, authenticate=who, own=own), clock)
    await node.open()
    try:
        yield Level(node)
    finally:
        await node.close()


@contextlib.asynccontextmanager
async def levels(
    folder: Path, count: int, said: Callable[[int], str] = lambda depth: "", clock: AheadClock | None = None
) -> AsyncIterator[list[Level]]:
    """The root first; each further node registers with the one before it, as l2, l3 and so on.

    `said` gives the configuration of each depth beside that, the root being 1.
    """
    async with contextlib.AsyncExitStack() as stack:
        found: list[Level] = []
        for depth in range(1, count + 1):
            above = parents((found[-1].ax, f"l{depth}")) if found else ""
            words = said(depth) + above + ("" if "[[access]]" in said(depth) else ACCESS)
            found.append(await stack.enter_async_context(level(folder / f"l{depth}", words, clock)))
        yield found


def way(count: int, *more: str, start: int = 2) -> str:
    """The dotted name from the node above level `start` down."""
    return ".".join((*(f"l{depth}" for depth in range(start, count + 1)), *more))
