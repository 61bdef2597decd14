"""The link to tools and resources that the node serves itself: room tools, the registry of names, counters.

To the catalog, the guard and clients it is a link like any other. A package declares its tools and resources as values
with a handler each; `catalog.local_items` turns the declarations into routes. There is no connection behind the link:
it is ready as soon as it exists, and every admitted call runs its handler in a background task.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, LatencyClass
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import AccessList, Call, Outcome, answer_failures
from interlock.core.calls.check import Admitted
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.links.link import Link, LinkEvents, ServerFacts
from interlock.mcp.methods import LATEST_MODERN, RESOURCES_READ, TOOLS_CALL, Era
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import ABSENT, Response, decode_value, encode_value
from interlock.wire.refusal import INVALID_PARAMS, UNAVAILABLE, Refusal

_RESOURCE_CAPABILITIES: Final = {"resources": Raw(b'{"listChanged":true,"subscribe":true}')}
_STORE_UNAVAILABLE: Final = Refusal(UNAVAILABLE, "unavailable", {"reason": "store"})
_RESOURCE_METHODS: Final = Refusal(INVALID_PARAMS, "this resource can only be read and subscribed to")


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a local tool. It is sent both as structured content and as text."""

    content: object
    is_error: bool = False
    text: str | None = None  # None: `content` as JSON

    def encode(self) -> bytes:
        """Return the result in the format of MCP 2026-07-28."""
        structured = encode_value(self.content)
        text = self.text if self.text is not None else structured.decode()
        return encode_value(
            {
                "resultType": "complete",
                "content": [{"type": "text", "text": text}],
                "structuredContent": Raw(structured),
                "isError": self.is_error,
            }
        )


# Takes the name of the principal and the arguments as JSON. A Refusal becomes a JSON-RPC error. May raise StoreError.
ToolHandler = Callable[[str, bytes], Awaitable[ToolResult | Refusal]]
# Takes the name of the principal and returns the text of the resource. StoreError may be raised.
ResourceHandler = Callable[[str], Awaitable[str | Refusal]]


class LocalTool(msgspec.Struct, frozen=True, kw_only=True):
    """Tool of the node: its definition and the function that runs it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    handler: ToolHandler
    output_schema: Mapping[str, Any] | None = None
    has_effect: bool = False  # every effect of a local tool can be undone
    latency_class: LatencyClass = LatencyClass.FAST
    timeout_s: float | None = None
    scope: Literal["read", "write"] = "read"  # that a caller needs

    @property
    def capability(self) -> Capability:
        return Capability(
            mutable=self.has_effect,
            reversible=True,
            idempotent=not self.has_effect,
            latency_class=self.latency_class,
            cost_class=CostClass.FREE,
            auth_scope=AuthScope.WRITE if self.has_effect else AuthScope.READ,
        )


class LocalResource(msgspec.Struct, frozen=True, kw_only=True):
    """Resource of the node, which clients can read and subscribe to.

    The package that declares the resource also publishes its updates.
    """

    uri: str
    name: str
    description: str
    mime_type: str
    handler: ResourceHandler

    @property
    def definition(self) -> dict[str, str]:
        """Return the definition in the format of MCP."""
        return {"uri": self.uri, "name": self.name, "description": self.description, "mimeType": self.mime_type}


class LocalLink(Link):
    """Link whose tools and resources are functions of this node."""

    def __init__(
        self,
        path: tuple[str, ...],
        events: LinkEvents,
        clock: Clock,
        *,
        tools: tuple[LocalTool, ...] = (),
        resources: tuple[LocalResource, ...] = (),
        members: AccessList | None = None,
        is_root: bool = False,
    ) -> None:
        """Create a link to the node itself.

        If `is_root` is true, its tools have names without a segment, directly at the root of the tree.
        """
        super().__init__(".".join(path), events, clock, kind="own", transport="memory")
        self.path = path
        self.is_root = is_root
        self.members = members
        self.tools = {tool.name: tool for tool in tools}
        self.resources = {resource.uri: resource for resource in resources}
        self.tells_updates = bool(resources)
        self._running = BackgroundTasks()
        capabilities = _RESOURCE_CAPABILITIES if resources else {}
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN, capabilities=capabilities))
        self.set_state(LinkState.READY, None)

    def send(self, admitted: Admitted[Call]) -> None:
        """Run the handler of the call. The answer arrives later, as on every other link."""
        call = admitted.command
        call.link = self
        self.calls += 1
        self._running.begin(answer_failures(call, self._answer(call)), name=self.segment)

    async def close(self) -> None:
        """Cancel the running handlers."""
        await self._running.close()

    async def _answer(self, call: Call) -> None:
        try:
            result = await self._run_handler(call)
        except StoreError:
            result = _STORE_UNAVAILABLE
        if isinstance(result, Refusal):
            call.on_failed(result, Outcome.REFUSED)
        else:
            call.on_response(Response(b"0", Raw(result), ABSENT), Era.MODERN)

    async def _run_handler(self, call: Call) -> bytes | Refusal:
        principal = call.caller.principal.name
        if call.method == TOOLS_CALL:
            tool = self.tools[decode_value(call.params["name"])]
            outcome = await tool.handler(principal, bytes(call.params.get("arguments") or b"{}"))
            return outcome.encode() if isinstance(outcome, ToolResult) else outcome
        if call.method != RESOURCES_READ:
            return _RESOURCE_METHODS
        resource = self.resources[decode_value(call.params["uri"])]
        text = await resource.handler(principal)
        if isinstance(text, Refusal):
            return text
        content = {"uri": resource.uri, "mimeType": resource.mime_type, "text": text}
        return encode_value({"resultType": "complete", "contents": [content], "ttlMs": 0, "cacheScope": "private"})
