"""A whole node in a loop whose time stands still until a test moves it, with subservers and clients in memory.

Nothing is patched: the node is the one `interlock serve` runs, without its doors. A subserver stands at the other end
of a `Visitor`, as behind /ax; a client at the other end of a `LineFront`, as behind stdio; a parent behind an
`UpwardFront`, as behind [[ax.parents]].
"""

import asyncio
import contextlib
import functools
import json
import math
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from interlock.config.load import load
from interlock.config.plan import AccessRule
from interlock.protocol.ax.capability import AuthScope
from interlock.protocol.jsonrpc.codec import decode_untrusted
from interlock.protocol.jsonrpc.messages import Notification, Request
from interlock.runtime.ax import parents
from interlock.runtime.ax.peers import Guest
from interlock.runtime.ax.visitor import Visitor
from interlock.runtime.callers import principal_for
from interlock.runtime.fronts.upward import UpwardFront
from interlock.runtime.node import Node
from interlock.transport.websocket import DialFailed

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
STAMP = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
TURNS_MAX = 100_000  # of the loop without a rest: what does not come to one by then never will
WALL = 1_800_000_000.0


class StillLoop(asyncio.SelectorEventLoop):
    """Its time is `moved`; files, threads and processes go on in theirs."""

    moved = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = 0.0  # a timer before its time would find nothing due, and fire again for ever

    def time(self) -> float:
        return self.moved


def still(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test runs in a loop whose time stands still."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=StillLoop) as runner:
            runner.run(test(*args, **named))

    return run


class StillClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return WALL + self.now()


async def turns() -> None:
    """Until nobody has anything to do any more at this point in time."""
    loop: Any = asyncio.get_running_loop()
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if not loop._ready:
            return
    raise AssertionError(f"the node does not come to rest: {loop._ready}")


async def move(seconds: float) -> None:
    """Let time pass, timer by timer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    until = loop.moved + seconds
    await turns()
    while True:
        due = [timer.when() for timer in cast(Any, loop)._scheduled if not timer.cancelled() and timer.when() <= until]
        if not due:
            break
        loop.moved = max(loop.moved, math.nextafter(min(due), math.inf))
        await turns()
    loop.moved = max(loop.moved, until)
    await turns()


@contextlib.asynccontextmanager
async def real_patience() -> AsyncIterator[None]:
    """A bound in the time of people, for a node that is broken."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    late = threading.Timer(10.0, lambda: loop.call_soon_threadsafe(cast(Any, task).cancel))
    late.start()
    try:
        yield
    finally:
        late.cancel()
        late.join()


class House:
    def __init__(self, node: Node) -> None:
        self.node = node

    def leaf(self, segment: str, **options: Any) -> "Leaf":
        return Leaf(self, segment, **options)

    def client(self, names: str = "qualified") -> "Client":
        front = self.node.line_front(None)
        cast(Any, front)._names = names
        client = Client(front.feed)
        front.connect(cast(Any, client))
        return client

    def parent(self, segment: str = "us", scope: str = "admin") -> "Client":
        node = self.node
        principal = principal_for("parent:above", cast(Any, scope), node.plan.access)
        client = Client(lambda line: _serve(front, line))

        def send(message: bytes) -> bool:
            client.write(message)
            return True

        front = UpwardFront(node.legacy, node.modern, node.audience, principal, segment, send)
        return client

    async def until(self, true: Callable[[], Any]) -> None:
        """What waits for a file or a thread takes its own time, however still ours stands."""
        async with real_patience():
            while not true():  # noqa: ASYNC110  (what is waited for is the node's own state)
                await asyncio.sleep(0)

    def link(self, segment: str) -> dict[str, Any]:
        """As `interlock status` shows it."""
        return self.node.operations.link(segment)

    def state(self, segment: str) -> str | None:
        keeper = self.node.keepers.get(segment)
        return None if keeper is None else keeper.link.standing.state.value


def _serve(front: UpwardFront, line: bytes) -> None:
    message = decode_untrusted(line)
    if isinstance(message, Request):
        front.serve(message)
    elif isinstance(message, Notification):
        front.hear(message)


@contextlib.asynccontextmanager
async def house(folder: Path, config: str = "") -> AsyncIterator[House]:
    file = folder / "interlock.toml"
    file.write_text(config)
    plan = load(file, {}, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, who: None, StillClock())
    await node.start(listen=False)
    try:
        yield House(node)
    finally:
        await node.stop()


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

    async def greet(self, **experimental: Any) -> "Client":
        """A session of 2025-11-25, with all logs."""
        self._stamp = {}
        params = {"protocolVersion": "2025-11-25", "capabilities": {"experimental": experimental}}
        params["clientInfo"] = {"name": "still", "version": "1"}
        await self.request("initialize", params)
        self._feed(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        await self.request("logging/setLevel", {"level": "debug"})
        return self

    async def request(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        answer = self.begin(method, params, **more)
        await turns()
        assert answer.done(), f"{method} is not answered while time stands still"
        return answer.result()

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self.request("tools/call", {"name": name, "arguments": dict(arguments or {})})

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in (await self.request("tools/list"))["result"]["tools"]}

    async def listen(self, **wanted: Any) -> None:
        """Hear of changed lists, and of what the tree tells."""
        self.begin("subscriptions/listen", {"notifications": wanted}, {"x-mcpax-events": True})
        await turns()

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [one["params"] for one in self.told if one.get("method") == method]

    # asyncio.WriteTransport, as far as a front needs one

    def write(self, data: bytes) -> None:
        message = json.loads(data)
        waits = self._waiting.pop(message.get("id"), None) if "method" not in message else None
        if waits is None:
            self.told.append(message)
        elif not waits.done():
            waits.set_result(message)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Leaf:
    """A subserver of 2026-07-28, and the pipe the node talks to it through."""

    def __init__(
        self,
        owner: House,
        segment: str,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        scope: str = "admin",
        proved: bool = True,
        secure: bool = True,
        rule: AccessRule | None = None,
        subserver_id: str | None = None,
        page: int = 1000,
        list_changed: bool = True,
        ttl_ms: int = 60_000,
        **register: Any,
    ) -> None:
        self.segment = segment
        self.tools = [dict(one) for one in tools]
        self.subserver_id = subserver_id or str(uuid.uuid4())
        self.register_params = {
            "subserver_id": self.subserver_id,
            "segment": segment,
            "capabilities": {"tools": True, "notifications": True},
            "parent_id": None,
            **register,
        }
        self.heard: list[dict[str, Any]] = []  # every message of the node, in order
        self.answer: Callable[[dict[str, Any]], Any] = self._plain
        self.mute: set[str] = set()  # methods it never answers
        self.refuses: set[str] = set()
        self.closed: tuple[int, str] | None = None
        self.deaf = False  # it takes no message any more
        self._page = page
        self._list_changed = list_changed
        self._ttl_ms = ttl_ms
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        guest = Guest(
            principal=f"subserver:{segment}", scope=AuthScope(scope), rule=rule, vouched=proved, secure=secure
        )
        self._visitor = Visitor(owner.node.registrar, guest, transport="websocket", heartbeat_min_ms=100)
        self._visitor.begin(cast(Any, self))

    # What a test lets it do

    async def register(self) -> dict[str, Any]:
        return await self.request("mcpax/register", self.register_params)

    async def joined(self) -> "Leaf":
        answer = await self.register()
        assert answer["result"]["status"] == "registered"
        self.session = answer["result"]["session_id"]
        return self

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        name = f"up-{uuid.uuid4()}"
        waits = self._waiting[name] = asyncio.get_running_loop().create_future()
        self.say({"jsonrpc": "2.0", "id": name, "method": method, "params": params})
        async with real_patience():
            answer = await waits
        await turns()
        return answer

    async def beat(self) -> dict[str, Any]:
        return await self.request("mcpax/heartbeat", {"session_id": self.session})

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.say({"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})})

    def say(self, message: Mapping[str, Any]) -> None:
        self._visitor.on_message(json.dumps(message).encode())

    def cut(self) -> None:
        """Its connection ends without a word."""
        if self.closed is None:
            self.closed = (1006, "")
            self._visitor.on_closed(1006, "")

    def asked(self, method: str) -> int:
        return sum(one.get("method") == method for one in self.heard)

    # MessagePipe

    def send(self, message: bytes) -> bool:
        if self.closed is not None or self.deaf:
            return False
        said = json.loads(message)
        self.heard.append(said)
        if "method" not in said:
            waits = self._waiting.pop(said["id"], None)
            if waits is not None and not waits.done():
                waits.set_result(said)
        elif "id" in said and said["method"] not in self.mute:
            task = asyncio.get_running_loop().create_task(self._serve(said))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.closed is None:
            self.closed = (code, reason)
            asyncio.get_running_loop().call_soon(self._visitor.on_closed, code, reason)

    def abort(self) -> None:
        self.cut()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def _plain(self, params: dict[str, Any]) -> Any:
        return {"content": [{"type": "text", "text": f"{params['name']} ran"}]}

    async def _serve(self, request: dict[str, Any]) -> None:
        method, params = request["method"], request.get("params", {})
        result: Any = None
        if method in self.refuses:
            pass
        elif method == "server/discover":
            tools = {"listChanged": True} if self._list_changed else {}
            result = {"supportedVersions": [MODERN], "capabilities": {"tools": tools}, "ttlMs": 0}
            result["cacheScope"] = "private"
        elif method == "tools/list":
            at = int(params.get("cursor", "0"))
            result = {"tools": self.tools[at : at + self._page], "ttlMs": self._ttl_ms, "cacheScope": "private"}
            if at + self._page < len(self.tools):
                result["nextCursor"] = str(at + self._page)
        elif method == "subscriptions/listen":
            meta = {META + "subscriptionId": request["id"]}
            self.notify(
                "notifications/subscriptions/acknowledged",
                {"_meta": meta, "notifications": params.get("notifications", {})},
            )
            return
        elif method == "tools/call":
            result = self.answer(params)
            if asyncio.iscoroutine(result):
                result = await result
        if self.closed is not None:
            return
        if result is None:
            code = -32603 if method in self.refuses else -32601
            error = {"code": code, "message": "no"}
            self.say({"jsonrpc": "2.0", "id": request["id"], "error": error})
        else:
            self.say({"jsonrpc": "2.0", "id": request["id"], "result": {"resultType": "complete", **result}})


def tool(name: str, capability: Any = None, **more: Any) -> dict[str, Any]:
    annotations = more.pop("annotations", {"readOnlyHint": True})
    made: dict[str, Any] = {"name": name, "inputSchema": {"type": "object"}, "annotations": annotations, **more}
    if capability is not None:
        made["_meta"] = {"x-mcpax-capability": capability}
    return made


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


class Wires:
    """Stands for the network between nodes: [[ax.parents]] of `ws://127.0.0.1:1/NAME/ax` leads to the house NAME."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.houses: dict[str, House] = {}
        self.ends: dict[str, list[End]] = {}  # by the house dialled: the ends of those who dialled it
        self.down: set[str] = set()
        monkeypatch.setattr(parents, "dial", self._dial)

    async def _dial(self, url: str, sink: Any, **options: Any) -> End:
        name = urlsplit(url).path.split("/")[1]
        if name in self.down or name not in self.houses:
            raise DialFailed(f"{url} cannot be reached")
        near, far = End(), End()
        near.other, far.other = far, near
        guest = Guest(principal="subserver:below", scope=AuthScope.ADMIN, vouched=True)
        visitor = Visitor(self.houses[name].node.registrar, guest, transport="websocket", heartbeat_min_ms=100)
        near.sink, far.sink = sink, visitor
        visitor.begin(cast(Any, far))
        self.ends.setdefault(name, []).append(near)
        return near

    def config(self, name: str, segment: str) -> str:
        return f'[[ax.parents]]\nurl = "ws://127.0.0.1:1/{name}/ax"\nsegment = "{segment}"\n'


@contextlib.asynccontextmanager
async def chain(
    folder: Path, wires: Wires, segments: Sequence[str], config: Mapping[str, str] | None = None
) -> AsyncIterator[list[House]]:
    """The root first, each further house below the one before it. `config` is TOML by segment, "root" for the root."""
    async with contextlib.AsyncExitStack() as stack:
        houses: list[House] = []
        for depth, segment in enumerate(["root", *segments]):
            place = folder / segment
            place.mkdir()
            above = wires.config(["root", *segments][depth - 1], segment) if depth else ""
            own = (config or {}).get(segment, "")
            houses.append(await stack.enter_async_context(house(place, f"{own}\n{above}")))
            wires.houses[segment] = houses[-1]
            if depth:
                await houses[-2].until(lambda: houses[-2].state(segment) == "ready")  # noqa: B023 - within this turn
        yield houses
