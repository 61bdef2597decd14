"""An aggregator written against the bare WebSocket, with none of our code, that does as it is told."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import websockets

PATIENCE_S = 10.0
A = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}

Answer = Callable[["Session", dict[str, Any]], Any]  # a message to send back, or None for silence


def granted(session: "Session", request: dict[str, Any]) -> Any:
    interval = request["params"]["heartbeat_interval_ms"]
    session.session_id = f"session-{session.aggregator_id[0]}-{next(session.aggregator.sessions)}"
    result = {
        "status": "registered",
        "assigned_segment": request["params"]["segment"],
        "session_id": session.session_id,
        "heartbeat_deadline_ms": 3 * interval,
        "budget": {},
        "aggregator_id": session.aggregator_id,
        "tree": "default",
        "auth_scope": "read",
    }
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def alive(session: "Session", request: dict[str, Any]) -> Any:
    return {"jsonrpc": "2.0", "id": request["id"], "result": {"status": "ok", "heartbeat_deadline_ms": 15000}}


def gone(session: "Session", request: dict[str, Any]) -> Any:
    return {"jsonrpc": "2.0", "id": request["id"], "result": {"status": "deregistered"}}


def refusing(code: int, name: str) -> Answer:
    def answer(session: "Session", request: dict[str, Any]) -> Any:
        error = {"code": code, "message": name, "data": {"mcpax_error": name, "detail": "because"}}
        return {"jsonrpc": "2.0", "id": request["id"], "error": error}

    return answer


def silent(session: "Session", request: dict[str, Any]) -> Any:
    return None


class Session:
    """One link of one subserver."""

    def __init__(self, aggregator: "Aggregator", socket: Any) -> None:
        self.aggregator = aggregator
        self.aggregator_id = aggregator.aggregator_id
        self.socket = socket
        self.session_id = ""
        self.heard: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._answers: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        async for text in self.socket:
            message = json.loads(text)
            self.heard.append(message)
            self._changed.set()
            if "method" not in message:
                waiting = self._answers.pop(message.get("id"), None)
                if waiting is not None:
                    waiting.set_result(message)
                continue
            answer = self.aggregator.answers.get(message["method"], silent)(self, message)
            if answer is not None:
                await self.socket.send(answer if isinstance(answer, str | bytes) else json.dumps(answer))
        self._changed.set()

    async def ask(self, method: str, params: dict[str, Any] | None = None, *, id: Any = None) -> dict[str, Any]:
        """The answer, error or result."""
        key = id if id is not None else f"down-{next(self._ids)}"
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[key] = waiting
        await self.say({"jsonrpc": "2.0", "id": key, "method": method, "params": params or {}})
        return await asyncio.wait_for(waiting, PATIENCE_S)

    async def modern(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.ask(method, {**params, "_meta": {**MODERN_META, **params.get("_meta", {})}})

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.modern("tools/call", name=name, arguments=arguments)
        result = answer["result"]
        assert isinstance(result, dict), answer
        return result

    async def say(self, message: Any) -> None:
        await self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def all(self, method: str) -> list[dict[str, Any]]:
        return [one for one in self.heard if one.get("method") == method]

    async def hears(self, method: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until a method was heard so often."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.all(method)) < times:
                self._changed.clear()
                await self._changed.wait()
        return self.all(method)

    async def closed(self) -> int:
        await asyncio.wait_for(self.socket.wait_closed(), PATIENCE_S)
        code = self.socket.close_code
        assert isinstance(code, int)
        return code


class Aggregator:
    def __init__(self, aggregator_id: str) -> None:
        self.aggregator_id = aggregator_id
        self.sessions = itertools.count(1)
        self.answers: dict[str, Answer] = {
            "mcpax/register": granted,
            "mcpax/heartbeat": alive,
            "mcpax/deregister": gone,
        }
        self.links: list[Session] = []
        self.requests: list[Any] = []
        self.port = 0
        self._arrived: asyncio.Queue[Session] = asyncio.Queue()
        self._server: Any = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ax"

    async def start(self) -> None:
        self._server = await websockets.serve(
            self._accept,
            "127.0.0.1",
            self.port,
            subprotocols=[websockets.Subprotocol("mcpax.v1")],
            ping_interval=None,
            close_timeout=0.5,
            max_size=None,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self, *, abruptly: bool = False) -> None:
        if abruptly:
            for link in self.links:
                link.socket.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    async def joined(self) -> Session:
        """The next link on which something was registered."""
        session = await asyncio.wait_for(self._arrived.get(), PATIENCE_S)
        await session.hears("mcpax/register")
        return session

    @property
    def nobody_came(self) -> bool:
        return self._arrived.empty()

    async def _accept(self, socket: Any) -> None:
        session = Session(self, socket)
        self.links.append(session)
        self.requests.append(socket.request)
        self._arrived.put_nowait(session)
        with contextlib.suppress(websockets.ConnectionClosed):
            await session.serve()


@contextlib.asynccontextmanager
async def aggregator(aggregator_id: str = A) -> AsyncIterator[Aggregator]:
    one = Aggregator(aggregator_id)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()
