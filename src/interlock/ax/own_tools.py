"""The tool that an aggregator itself offers to the tree: how many notifications it had to drop (MCP-AX 12)."""

from typing import Final

from interlock.ax.protocol.capability import LatencyClass
from interlock.ax.protocol.notifications import Drops
from interlock.catalog.local_items import local_items
from interlock.catalog.routes import LinkItems
from interlock.core.clock import Clock
from interlock.links.link_events import LinkEvents
from interlock.links.local_link import LocalLink, LocalTool, ToolResult

NAME: Final = "notifications_dropped"  # AX-12-5
_OUTPUT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "total": {"type": "integer", "minimum": 0},
        "by_segment": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    },
    "required": ["total", "by_segment"],
}


def own_items(drops: Drops, root_segment: str | None, events: LinkEvents, clock: Clock) -> LinkItems:
    """Return the catalog items of the tool that reports `drops`."""

    async def count_drops(principal: str, arguments: bytes) -> ToolResult:
        # AX-12-5
        return ToolResult(content={"total": drops.total, "by_segment": dict(sorted(drops.by_segment.items()))})

    tool = LocalTool(
        name=NAME,
        description="How many notifications of subservers this aggregator dropped since it started, and whose.",
        input_schema={"type": "object", "properties": {}},
        output_schema=_OUTPUT_SCHEMA,
        handler=count_drops,
        # AX-12-5
        has_effect=False,
        latency_class=LatencyClass.REALTIME,
        timeout_s=0.5,
    )
    return local_items(LocalLink((NAME,), events, clock, tools=(tool,), is_root=True), root_segment)
