"""The catalog items of a local link: routes and places built from its declared tools and resources."""

from collections.abc import Mapping

from msgspec import Raw

from interlock.ax.protocol.capability import hints
from interlock.ax.protocol.hop_metadata import CAPABILITY, HOPS, published_annotation
from interlock.ax.protocol.names import alias
from interlock.catalog.routes import LinkItems, Place, Route
from interlock.links.handshake import modern_head
from interlock.links.local_link import LocalLink, LocalResource, LocalTool
from interlock.mcp.items import Item
from interlock.mcp.methods import TOOLS_CALL
from interlock.wire.jsonrpc.codec import encode_value


def local_items(link: LocalLink, root_segment: str | None) -> LinkItems:
    """Return what a local link adds to the namespace under `root_segment`."""
    root = () if root_segment is None else (root_segment,)
    routes = (_tool_route(link, root, tool) for tool in link.tools.values())
    return LinkItems(
        link=link,
        tools=tuple(sorted(routes, key=lambda route: route.qualified)),
        resources=tuple(_place(link, resource) for resource in link.resources.values()),
        digests=dict.fromkeys(("tools", "prompts", "resources", "templates"), b""),
    )


def _tool_route(link: LocalLink, root: tuple[str, ...], tool: LocalTool) -> Route:
    below = () if link.is_root else link.path
    segments = (*root, *below)
    qualified = ".".join((*segments, tool.name))
    definition = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    if tool.output_schema is not None:
        definition["outputSchema"] = tool.output_schema
    capability = tool.capability
    return Route(
        link=link,
        qualified=qualified,
        alias=alias(qualified),
        local=tool.name,
        original=tool.name,
        wire_name=Raw(encode_value(tool.name)),
        head=modern_head(TOOLS_CALL) + b"mcp-name: %b\r\n" % tool.name.encode(),
        item=_encode_members(definition),
        segments=segments,
        below=below,
        capability=capability,
        meta={CAPABILITY: published_annotation(None, capability), HOPS: 1},
        hints=hints(capability, None),
        hops=1,
        timeout_s=tool.timeout_s,
        scope=tool.scope,
    )


def _place(link: LocalLink, resource: LocalResource) -> Place:
    definition = {
        "uri": resource.uri,
        "name": resource.name,
        "description": resource.description,
        "mimeType": resource.mime_type,
    }
    return Place(link=link, uri=resource.uri, bare=resource.uri, shown=resource.uri, item=_encode_members(definition))


def _encode_members(definition: Mapping[str, object]) -> Item:
    return {member: Raw(encode_value(value)) for member, value in definition.items()}
