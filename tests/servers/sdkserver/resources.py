"""Resources and templates of the conformance fixture."""

import json
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp import types

from .tools import PNG

RESOURCE_NOT_FOUND = -32002  # the code before 2026-07-28
TEXTS = {
    "test://static-text": "This is the content of the static text resource.",
    "test://watched-resource": "This is a resource that changes.",
}


async def list_resources(ctx: Any, params: Any) -> Any:
    mimes = {**dict.fromkeys(TEXTS, "text/plain"), "test://static-binary": "image/png"}
    return {
        "resources": [
            {"uri": uri, "name": uri.removeprefix("test://"), "description": f"The resource {uri}.", "mimeType": mime}
            for uri, mime in mimes.items()
        ]
    }


async def list_templates(ctx: Any, params: Any) -> Any:
    about = {"name": "template", "description": "Data by id.", "mimeType": "application/json"}
    return {"resourceTemplates": [{"uriTemplate": "test://template/{id}/data", **about}]}


async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> Any:
    uri = str(params.uri)
    if uri in TEXTS:
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": TEXTS[uri]}]}
    if uri == "test://static-binary":
        return {"contents": [{"uri": uri, "mimeType": "image/png", "blob": PNG}]}
    number = uri.removeprefix("test://template/").removesuffix("/data")
    if uri == f"test://template/{number}/data" and number and "/" not in number:
        data = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}]}
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    raise MCPError(types.INVALID_PARAMS if modern else RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})


async def subscribe(ctx: Any, params: types.SubscribeRequestParams) -> Any:
    return {}


async def unsubscribe(ctx: Any, params: types.UnsubscribeRequestParams) -> Any:
    return {}
