"""A subserver in memory, at the other end of a `SubserverConnection`."""

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tests.support.frozen_time import in_real_time, run_until_idle

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.connection import SubserverConnection
from interlock.ax.protocol.capability import AuthScope
from interlock.ax.registrar import Registrar
from interlock.config.plan import AccessRule

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


class Leaf:
    """A subserver of 2026-07-28, and the pipe the node talks to it through."""

    def __init__(
        self,
        registrar: Registrar,
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
        self.offers: dict[str, Any] = {}  # capabilities beside its tools
        self.mute: set[str] = set()  # methods it never answers
        self.refuses: set[str] = set()
        self.closed: tuple[int, str] | None = None
        self.deaf = False  # it takes no message any more
        self._page = page
        self._list_changed = list_changed
        self._ttl_ms = ttl_ms
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        guest = RegistrantIdentity(
            principal=f"subserver:{segment}", scope=AuthScope(scope), rule=rule, vouched=proved, secure=secure
        )
        self._connection = SubserverConnection(registrar, guest, transport="websocket", heartbeat_min_ms=100)
        self._connection.begin(cast(Any, self))

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
        async with in_real_time():
            answer = await waits
        await run_until_idle()
        return answer

    async def beat(self) -> dict[str, Any]:
        return await self.request("mcpax/heartbeat", {"session_id": self.session})

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.say({"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})})

    def say(self, message: Mapping[str, Any]) -> None:
        self._connection.on_message(json.dumps(message).encode())

    def cut(self) -> None:
        """Its connection ends without a word."""
        if self.closed is None:
            self.closed = (1006, "")
            self._connection.on_closed(1006, "")

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
            asyncio.get_running_loop().call_soon(self._connection.on_closed, code, reason)

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
            result = {"supportedVersions": [MODERN], "capabilities": {"tools": tools, **self.offers}, "ttlMs": 0}
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
