"""The tool an aggregator itself offers to the tree: how many notifications it had to drop (MCP-AX 12).

It is reached like every other, through catalog, guard and a link; at the other end of that link is this room.
"""

import asyncio
from typing import Final

from msgspec import Raw

from interlock.config.plan import Dial, ServerPlan
from interlock.protocol.ax.capability import AuthScope, Capability, CostClass, LatencyClass, hints
from interlock.protocol.ax.hop_metadata import CAPABILITY, HOPS, published_annotation
from interlock.protocol.ax.names import alias
from interlock.protocol.ax.notifications import Drops
from interlock.protocol.jsonrpc.codec import decode_untrusted, encode_fault, encode_result, encode_value
from interlock.protocol.jsonrpc.errors import METHOD_NOT_FOUND, Fault
from interlock.protocol.jsonrpc.messages import Request
from interlock.protocol.mcp.eras import LATEST_MODERN, Era
from interlock.protocol.mcp.methods import TOOLS_CALL
from interlock.runtime.base.clock import Clock
from interlock.runtime.base.link_state import LinkState
from interlock.runtime.calls.call import Pending
from interlock.runtime.catalog.routes import Route, Shelf
from interlock.runtime.links.handshake import modern_head
from interlock.runtime.links.link import Link, ServerFacts
from interlock.runtime.links.link_events import LinkEvents
from interlock.runtime.links.pipes import PipeOwner

NAME: Final = "notifications_dropped"
_CAPABILITY: Final = Capability(
    mutable=False,
    reversible=True,
    idempotent=True,
    latency_class=LatencyClass.REALTIME,
    cost_class=CostClass.FREE,
    auth_scope=AuthScope.READ,
)
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "total": {"type": "integer", "minimum": 0},
        "by_segment": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    },
    "required": ["total", "by_segment"],
}
_ITEM: Final = {
    "description": "How many notifications of subservers this aggregator dropped since it started, and whose.",
    "inputSchema": {"type": "object", "properties": {}},
    "outputSchema": _SCHEMA,
}


def own_shelf(drops: Drops, root_segment: str | None, events: LinkEvents, clock: Clock) -> Shelf:
    link = Link(ServerPlan(segment=NAME, reach=Dial(url="")), events, clock, vendor_meta=False)
    link.kind, link.transport = "own", "memory"
    link.pipe = _OwnPipe(link, drops)
    link.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
    link.stand(LinkState.READY, None)
    root = () if root_segment is None else (root_segment,)
    qualified = ".".join((*root, NAME))
    route = Route(
        link=link,
        qualified=qualified,
        alias=alias(qualified),
        local=NAME,
        original=NAME,
        wire_name=Raw(encode_value(NAME)),
        head=modern_head(TOOLS_CALL) + b"mcp-name: %b\r\n" % NAME.encode(),
        item={"name": Raw(encode_value(NAME)), **{key: Raw(encode_value(value)) for key, value in _ITEM.items()}},
        segments=root,
        below=(),
        capability=_CAPABILITY,
        meta={CAPABILITY: published_annotation(None, _CAPABILITY), HOPS: 1},
        hints=hints(_CAPABILITY, None),
        hops=1,
        timeout_s=0.5,
    )
    return Shelf(link=link, tools=(route,), digests=dict.fromkeys(("tools", "prompts", "resources", "templates"), b""))


class _OwnPipe:
    def __init__(self, owner: PipeOwner, drops: Drops) -> None:
        self._owner = owner
        self._drops = drops

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        request = decode_untrusted(message)
        if isinstance(request, Request):
            asyncio.get_running_loop().call_soon(self._owner.on_message, self._answer(request), origin)
        return None

    def _answer(self, request: Request) -> bytes:
        if request.method != TOOLS_CALL:
            return encode_fault(request.id, Fault(METHOD_NOT_FOUND, "Method not found"))
        counts = {"total": self._drops.total, "by_segment": dict(sorted(self._drops.by_segment.items()))}
        content = [{"type": "text", "text": encode_value(counts).decode()}]
        result = {"resultType": "complete", "content": content, "structuredContent": counts, "isError": False}
        return encode_result(request.id, encode_value(result))

    def abort(self, handle: object) -> bool:
        return False

    def throttle(self, seconds: float) -> None:
        pass

    async def close(self) -> None:
        pass
