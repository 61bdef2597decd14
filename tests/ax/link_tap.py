"""A tap on an AX link: it stands between a registrant and an aggregator, passes every frame on and notes it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import websockets

SUBPROTOCOL = websockets.Subprotocol("mcpax.v1")
PATIENCE_S = 10.0


class LinkTap:
    def __init__(self, target: str) -> None:
        """`target` is the aggregator's ws:// address of /ax."""
        self._target = target
        self.up: list[dict[str, Any]] = []  # what the registrant said
        self.down: list[dict[str, Any]] = []  # what the aggregator said
        self.port = 0
        self._news = asyncio.Event()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ax"

    async def heard(self, way: str, method: str) -> dict[str, Any]:
        """The first message of that method on its way `up` or `down`."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := [one for one in getattr(self, way) if one.get("method") == method]):
                self._news.clear()
                await self._news.wait()
        return found[0]

    def methods(self, way: str) -> set[str]:
        return {one["method"] for one in getattr(self, way) if "method" in one}

    async def _accept(self, below: Any) -> None:
        given = below.request.headers.get("authorization")
        headers = {"authorization": given} if given else {}
        async with websockets.connect(
            self._target, subprotocols=[SUBPROTOCOL], additional_headers=headers, max_size=None
        ) as above:
            ways = [
                asyncio.create_task(self._pass_on(below, above, self.up)),
                asyncio.create_task(self._pass_on(above, below, self.down)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        await below.close()

    async def _pass_on(self, source: Any, to: Any, notes: list[dict[str, Any]]) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            async for text in source:
                notes.append(json.loads(text))
                self._news.set()
                await to.send(text)


@contextlib.asynccontextmanager
async def link_tap(target: str) -> AsyncIterator[LinkTap]:
    made = LinkTap(target)
    async with websockets.serve(
        made._accept, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], max_size=None, close_timeout=0.5
    ) as server:
        made.port = next(iter(server.sockets)).getsockname()[1]
        yield made
