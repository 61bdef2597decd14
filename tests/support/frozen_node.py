"""A whole node in a loop whose time stands still until a test moves it, with subservers and clients in memory.

The node is the one `interlock serve` runs, without its endpoints. A subserver is at the other end of a
`SubserverConnection`, as behind /ax; a client at the other end of a `LineFront`, as behind stdio; a parent behind an
`UpwardFront`. `Wires` is the network where nodes are below one another: it replaces only the dialling of a WebSocket.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import pytest
from tests.support.frozen_time import FrozenClock, advance_time, in_frozen_time, in_real_time, run_until_idle
from tests.support.memory_subserver import META, MODERN, Leaf, tool

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.connection import SubserverConnection
from interlock.ax.parents import parents
from interlock.ax.parents.parents import UpwardFront
from interlock.ax.parts import AxParts
from interlock.ax.protocol.capability import AuthScope
from interlock.config.load import load
from interlock.core.calls.caller import principal_for
from interlock.net.websocket import DialFailed
from interlock.node.node import Node
from interlock.wire.jsonrpc.codec import Notification, Request, decode_untrusted

__all__ = [
    "Client",
    "FrozenNode",
    "Leaf",
    "MemoryNetwork",
    "advance_time",
    "frozen_node",
    "in_frozen_time",
    "in_real_time",
    "node_chain",
    "run_until_idle",
    "tool",
]

STAMP = {
    META + "protocolVersion": MODERN,
    META + "clientCapabilities": {"extensions": {"dev.interlock/ax": {}}},
}


class FrozenNode:
    def __init__(self, node: Node) -> None:
        self.node = node

    def leaf(self, segment: str, **options: Any) -> Leaf:
        return Leaf(self.node.get(AxParts).registrar, segment, **options)

    def client(self, names: str = "qualified") -> "Client":
        front = self.node.fronts.lines.make(None)
        front.names = names
        client = Client(front.feed)
        front.connect(cast(Any, client))
        return client

    def parent(self, segment: str = "us", scope: str = "admin") -> "Client":
        node = self.node
        principal = principal_for("parent:above", cast(Any, scope), node.stores.current.plan.access)
        client = Client(lambda line: _serve(front, line))

        def send(message: bytes) -> bool:
            client.write(message)
            return True

        front = UpwardFront(node.fronts.legacy, node.fronts.modern, node.calls.audience, principal, segment, send)
        return client

    async def until(self, true: Callable[[], Any]) -> None:
        """What waits for a file or a thread takes its own time, however still ours stands."""
        async with in_real_time():
            while not true():  # noqa: ASYNC110  (what is waited for is the node's own state)
                await asyncio.sleep(0)

    def link(self, segment: str) -> dict[str, Any]:
        """As `interlock status` shows it."""
        shown: dict[str, Any] = msgspec.to_builtins(self.node.operations.links.get(segment))
        return shown

    def state(self, segment: str) -> str | None:
        keeper = self.node.calls.keepers.get(segment)
        return None if keeper is None else keeper.link.standing.state.value


def _serve(front: UpwardFront, line: bytes) -> None:
    message = decode_untrusted(line)
    if isinstance(message, Request):
        front.serve(message)
    elif isinstance(message, Notification):
        front.hear(message)


@contextlib.asynccontextmanager
async def frozen_node(folder: Path, config: str = "") -> AsyncIterator[FrozenNode]:
    file = folder / "interlock.toml"
    file.write_text(config)
    plan = load(file, {}, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, who: None, FrozenClock(), listen=False)
    await node.open()
    try:
        yield FrozenNode(node)
    finally:
        await node.close()


class Client:
    """Of 2026-07-28, unless it is greeted as one of 2025-11-25. Also the transport its front writes to."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._feed = feed
        self._stamp: dict[str, Any] = STAMP
        self._next = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.told: list[dict[str, Any]] = []  # what it did not ask for

    def begin(
        self, method: str, params: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> "asyncio.Future[dict[str, Any]]":
        self._next += 1
        waits = self._waiting[self._next] = asyncio.get_running_loop().create_future()
        asked = {"jsonrpc": "2.0", "id": self._next, "method": method}
        asked["params"] = {**(params or {})}
        if self._stamp or meta:
            asked["params"]["_meta"] = {**self._stamp, **(meta or {})}
        self._feed(json.dumps(asked).encode() + b"\n")
        return waits

    async def greet(self, *, level: str | None = "debug", **experimental: Any) -> "Client":
        """A session of 2025-11-25, with all logs; `level` None: it asks for none."""
        self._stamp = {}
        params = {"protocolVersion": "2025-11-25", "capabilities": {"experimental": experimental}}
        params["clientInfo"] = {"name": "still", "version": "1"}
        await self.request("initialize", params)
        self._feed(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        if level is not None:
            await self.request("logging/setLevel", {"level": level})
        return self

    async def request(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        answer = self.begin(method, params, **more)
        await run_until_idle()
        assert answer.done(), f"{method} is not answered while time stands still"
        return answer.result()

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self.request("tools/call", {"name": name, "arguments": dict(arguments or {})})

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in (await self.request("tools/list"))["result"]["tools"]}

    async def listen(self, **wanted: Any) -> None:
        """Hear of changed lists, and of what the tree tells."""
        self.begin("subscriptions/listen", {"notifications": wanted}, {"x-mcpax-events": True})
        await run_until_idle()

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [one.get("params", {}) for one in self.told if one.get("method") == method]

    # asyncio.WriteTransport, as far as a front needs one

    def write(self, data: bytes) -> None:
        message = json.loads(data)
        waits = self._waiting.pop(message.get("id"), None) if "method" not in message else None
        if waits is None:
            self.told.append(message)
        elif not waits.done():
            waits.set_result(message)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass


class End:
    """One end of a pipe in memory: a MessagePipe. What is sent comes out at the other end, in order, a turn later."""

    def __init__(self) -> None:
        self.sink: Any = None
        self.other: End = self
        self.is_open = True
        self.frozen = False  # whatever is sent from here, or to here, is lost
        self.carried: list[bytes] = []  # everything this end sent
        self._unread: deque[bytes] = deque()
        self._paused = False

    def send(self, message: bytes) -> bool:
        if self.is_open and not self.frozen and not self.other.frozen:
            self.carried.append(message)
            asyncio.get_running_loop().call_soon(self.other._receive, message)
        return self.is_open

    def close(self, code: int = 1000, reason: str = "") -> None:
        for end in (self, self.other):
            if end.is_open:
                end.is_open = False
                asyncio.get_running_loop().call_soon(end.sink.on_closed, code, reason)

    def abort(self) -> None:
        self.close(1006, "")

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        while self._unread and not self._paused:
            self.sink.on_message(self._unread.popleft())

    def _receive(self, message: bytes) -> None:
        self._unread.append(message)
        if not self._paused:
            self.resume_reading()


class MemoryNetwork:
    """Stands for the network between nodes: [[ax.parents]] of `ws://127.0.0.1:1/NAME/ax` leads to the house NAME."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.houses: dict[str, FrozenNode] = {}
        self.ends: dict[str, list[End]] = {}  # by the house dialled: the ends of those who dialled it
        self.down: set[str] = set()
        monkeypatch.setattr(parents, "dial", self._dial)

    async def _dial(self, url: str, sink: Any, **options: Any) -> End:
        name = urlsplit(url).path.split("/")[1]
        if name in self.down or name not in self.houses:
            raise DialFailed(f"{url} cannot be reached")
        near, far = End(), End()
        near.other, far.other = far, near
        guest = RegistrantIdentity(principal="subserver:below", scope=AuthScope.ADMIN, vouched=True)
        connection = SubserverConnection(
            self.houses[name].node.get(AxParts).registrar, guest, transport="websocket", heartbeat_min_ms=100
        )
        near.sink, far.sink = sink, connection
        connection.begin(cast(Any, far))
        self.ends.setdefault(name, []).append(near)
        return near

    def config(self, name: str, segment: str) -> str:
        return f'[[ax.parents]]\nurl = "ws://127.0.0.1:1/{name}/ax"\nsegment = "{segment}"\n'


@contextlib.asynccontextmanager
async def node_chain(
    folder: Path, wires: MemoryNetwork, segments: Sequence[str], config: Mapping[str, str] | None = None
) -> AsyncIterator[list[FrozenNode]]:
    """The root first, each further house below the one before it. `config` is TOML by segment, "root" for the root."""
    async with contextlib.AsyncExitStack() as stack:
        houses: list[FrozenNode] = []
        for depth, segment in enumerate(["root", *segments]):
            place = folder / segment
            place.mkdir()
            above = wires.config(["root", *segments][depth - 1], segment) if depth else ""
            own = (config or {}).get(segment, "")
            houses.append(await stack.enter_async_context(frozen_node(place, f"{own}\n{above}")))
            wires.houses[segment] = houses[-1]
            if depth:
                await houses[-2].until(lambda: houses[-2].state(segment) == "ready")  # noqa: B023 - within this turn
        yield houses
