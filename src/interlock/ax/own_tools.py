"""The tool an aggregator itself offers to the tree: how many notifications it had to drop (MCP-AX 12).

It is reached like every other, through catalog, guard and a link; at the other end of that link is the node itself.
"""

from typing import Final

from msgspec import Raw

from interlock.ax.own_link import OwnLink
from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, LatencyClass, hints
from interlock.ax.protocol.hop_metadata import CAPABILITY, HOPS, published_annotation
from interlock.ax.protocol.names import alias
from interlock.ax.protocol.notifications import Drops
from interlock.catalog.routes import LinkItems, Route
from interlock.core.clock import Clock
from interlock.links.handshake import modern_head
from interlock.links.link_events import LinkEvents
from interlock.mcp.methods import TOOLS_CALL
from interlock.wire.jsonrpc.codec import encode_value

NAME: Final = "notifications_dropped"  # AX-12-5
_CAPABILITY: Final = Capability(
    mutable=False,  # AX-12-5
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


def own_items(drops: Drops, root_segment: str | None, events: LinkEvents, clock: Clock) -> LinkItems:
    link = OwnLink(NAME, events, clock, lambda: _result(drops))
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
    return LinkItems(
        link=link, tools=(route,), digests=dict.fromkeys(("tools", "prompts", "resources", "templates"), b"")
    )


def _result(drops: Drops) -> bytes:
    counts = {"total": drops.total, "by_segment": dict(sorted(drops.by_segment.items()))}  # AX-12-5
    content = [{"type": "text", "text": encode_value(counts).decode()}]
    return encode_value({"resultType": "complete", "content": content, "structuredContent": counts, "isError": False})
