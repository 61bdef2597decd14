"""A node in this process with a clock that a test sets, and subservers in memory that register with it."""

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Raw
from tests.support.local_node import running
from tests.support.node_with_clock import META, SECONDS, AheadClock, ModernRequest

from interlock.approvals.trust.registrant import registrant_identity
from interlock.ax.connection import SubserverConnection
from interlock.ax.parts import AxParts
from interlock.core.calls.caller import Hop, principal_for
from interlock.core.link_state import LinkState
from interlock.fronts.sessions import ClientSession
from interlock.mcp.modern_requests import validate_request
from interlock.node.node import Node
from interlock.wire.jsonrpc.codec import Request, Response
from interlock.wire.refusal import Refusal

LEGACY_HELLO = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "c", "version": "1"}}
Call = Callable[[Mapping[str, Any]], Any]


def tool(name: str, **capability: Any) -> dict[str, Any]:
    """Reading and free, unless the capability annotation says otherwise."""
    said = {"mutable": False, "reversible": True, **capability}
    return {"name": name, "inputSchema": {"type": "object"}, "_meta": {"x-mcpax-capability": said}}


TOOLS = [
    tool("read"),
    tool("write", mutable=True),
    tool("metered", cost_class="metered"),
    tool("expensive", cost_class="expensive"),
    tool("quick", latency_class="realtime"),
]


class Leaf:
    """A subserver, and the MessagePipe to it."""

    def __init__(self, budget_node: "BudgetNode", segment: str, era: str, call: Call | None) -> None:
        self.segment = segment
        self.ran: list[str] = []  # the tools that were called
        self.reads = True
        self._era = era
        self._call = call or (lambda params: {"content": [], "structuredContent": {"ran": params["name"]}})
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        who = registrant_identity(
            "subserver:" + segment, budget_node.node.stores.current.plan.access, on_this_machine=True, tls=None
        )
        self._connection = SubserverConnection(
            budget_node.node.get(AxParts).registrar, who, transport="websocket", heartbeat_min_ms=100
        )
        self._connection.begin(self)
        self.registered: dict[str, Any] = {}

    async def register(self, **more: Any) -> dict[str, Any]:
        said = {
            "subserver_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, self.segment)),
            "segment": self.segment,
            "parent_id": None,
            **more,
        }
        answer = await self.ask("mcpax/register", {"heartbeat_interval_ms": 0, **said})
        self.registered = answer["result"]
        return self.registered

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """A request of its own, and the whole answer."""
        request_id = f"up-{next(self._ids)}"
        answer = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._say({"id": request_id, "method": method, "params": params})
        return await asyncio.wait_for(answer, SECONDS)

    def hang_up(self) -> None:
        self._connection.on_closed(1000, "went away")

    # MessagePipe

    def send(self, message: bytes) -> bool:
        if self.reads:
            asyncio.get_running_loop().call_soon(self._hear, json.loads(message))
        return self.reads

    def close(self, code: int = 1000, reason: str = "") -> None:
        asyncio.get_running_loop().call_soon(self._connection.on_closed, code, reason)

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def _hear(self, message: dict[str, Any]) -> None:
        method, request_id = message.get("method"), message.get("id")
        if method is None:
            self._waiting.pop(request_id).set_result(message)
        elif request_id is not None:
            result = self._answer(method, message.get("params", {}))
            if isinstance(result, asyncio.Future):
                result.add_done_callback(lambda done: self._reply(request_id, done.result()))
            elif result is not None:
                self._reply(request_id, result)

    def _answer(self, method: str, params: Mapping[str, Any]) -> Any:
        if method == "tools/list":
            return {"tools": TOOLS, "ttlMs": 60_000, "cacheScope": "private"}
        if method == "tools/call":
            self.ran.append(params["name"])
            return self._call(params)
        if method == "server/discover" and self._era == "modern":
            return {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "ttlMs": 0,
                "cacheScope": "private",
            }
        if method == "initialize" and self._era == "legacy":
            return {**LEGACY_HELLO, "serverInfo": {"name": "leaf", "version": "1"}, "capabilities": {"tools": {}}}
        return {"error": {"code": -32601, "message": "Method not found"}}

    def _reply(self, request_id: Any, result: dict[str, Any]) -> None:
        if "error" in result:
            self._say({"id": request_id, **result})
        else:
            self._say({"id": request_id, "result": {"resultType": "complete", **result}})

    def _say(self, message: dict[str, Any]) -> None:
        self._connection.on_message(json.dumps({"jsonrpc": "2.0", **message}).encode())


class Client:
    """Of either era."""

    def __init__(self, budget_node: "BudgetNode", era: str, who: str, parent: str | None, capabilities: Any) -> None:
        node = budget_node.node
        self._node = node
        principal = principal_for(who, None, node.stores.current.plan.access)
        self._capabilities = capabilities
        self._session: ClientSession | None = None
        self.stream = ModernRequest()
        if era == "legacy":
            hello = Raw(json.dumps({**LEGACY_HELLO, "capabilities": capabilities}).encode())
            request = Request(b"0", "initialize", hello)
            opened = node.fronts.legacy.initialize(request, principal, "http", None, "auto")
            assert isinstance(opened, ClientSession)
            opened.attach(self.stream)
            node.fronts.legacy.welcome(opened, request, ModernRequest())
            self._session, self.caller = opened, opened.caller
        else:
            self.caller = node.fronts.modern.caller(principal, "http", None, "auto")
        if parent is not None:
            self.caller.hop = Hop(parent)

    def ask(self, method: str, params: Mapping[str, Any]) -> ModernRequest:
        asked = ModernRequest()
        request_id = str(asked.id).encode()
        if self._session is not None:
            request = Request(request_id, method, Raw(json.dumps(params).encode()))
            asked.running = self._node.fronts.legacy.handle(self._session, request, asked)
            return asked
        stamp = {
            META + "protocolVersion": "2026-07-28",
            META + "clientInfo": {"name": "c", "version": "1"},
            META + "clientCapabilities": self._capabilities,
        }
        climbed = validate_request(
            Request(request_id, method, Raw(json.dumps({**params, "_meta": stamp}).encode())), None
        )
        assert not isinstance(climbed, Refusal), climbed
        asked.running = self._node.fronts.modern.handle(self.caller, climbed, asked, None)
        return asked

    def answer(self, request_id: Any, result: Any) -> None:
        """To what a legacy client was asked."""
        assert self._session is not None
        said = Response(json.dumps(request_id).encode(), Raw(json.dumps(result).encode()), Raw(b""))
        self._node.fronts.legacy.handle(self._session, said, ModernRequest())

    def call(self, name: str, arguments: Any = None) -> ModernRequest:
        return self.ask("tools/call", {"name": name, "arguments": {} if arguments is None else arguments})


class BudgetNode:
    def __init__(self, node: Node, clock: AheadClock) -> None:
        self.node, self.clock = node, clock

    async def leaf(self, segment: str = "leaf", *, era: str = "modern", call: Call | None = None, **more: Any) -> Leaf:
        leaf = Leaf(self, segment, era, call)
        await leaf.register(**more)
        shown = b'"%b.read"' % segment.encode()
        await until(lambda: shown in self.node.calls.dispatch.view(self.client().caller.key).tools)
        await until(lambda: self.node.calls.keepers[segment].link.standing.state is LinkState.READY)
        return leaf

    def client(
        self, era: str = "modern", who: str = "local", *, parent: str | None = None, capabilities: Any = None
    ) -> Client:
        return Client(self, era, who, parent, capabilities or {})

    def used(self, segment: str = "leaf") -> dict[str, int]:
        """What the operator sees of a link's budget."""
        shown = self.node.operations.links.get(segment).budget
        assert shown is not None
        return {name: limit.used for name, limit in shown.items()}


@contextlib.asynccontextmanager
async def budget_node(folder: Path, configuration: str = "") -> AsyncIterator[BudgetNode]:
    """Registrants may write without proof; the rest is as the test says."""
    rules = '[ax]\nrequire_proof = "never"\n[[access]]\nwho = ["subserver:*"]\nscope = "admin"\n'
    async with running(folder, configuration + "\n" + rules) as (node, clock):
        yield BudgetNode(node, clock)


async def outcomes(asked: list[ModernRequest]) -> list[str]:
    """In order: "ran", or the limit that refused it."""
    messages = [await one.message() for one in asked]
    return ["ran" if "result" in one else one["error"]["data"]["budget"] for one in messages]


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110  (what is waited for is the node's own state)
            await asyncio.sleep(0.005)
