"""The MCP tools of an AQL surface: name, description, schema, annotations (C.tool-1 to -4).

They name no operation of the catalogue, so that their bytes are the same while servers come and go (X-7).
"""

from typing import Any, Final

import msgspec

from interlock.aql.protocol.families import INTROSPECT, Endpoints, EndpointTool
from interlock.aql.protocol.model import Category, Permissions

_PURPOSE: Final = {
    Category.CREATE: ("Adds things", "Removes and overwrites nothing."),
    Category.READ: ("Reads: gets, lists, searches", "Changes nothing."),
    Category.UPDATE: ("Changes what exists", "Overwrites the given fields; they go into params.input."),
    Category.DELETE: ("Removes things", "Use caution: removal cannot be undone."),
    Category.EXECUTE: ("Runs actions", "May have effects outside; is not repeated by itself."),
}
_SINGLE: Final = Permissions(False, True)


def endpoint_tools(endpoints: Endpoints, *, has_batch: bool = True, rule: str = "") -> bytes:
    """The JSON array of tools/list. `rule`: what agents keep to, told by the tools that take reports (8.6.5)."""
    return msgspec.json.encode(
        [_definition(tool, endpoints, has_batch=has_batch, rule=rule) for tool in endpoints.tools]
    )


def _definition(tool: EndpointTool, endpoints: Endpoints, *, has_batch: bool, rule: str) -> dict[str, Any]:
    takes_reports = tool.family in (None, endpoints.profile.by_category[Category.CREATE])
    more = f"\n{rule}" if rule and takes_reports else ""
    permissions = _SINGLE if tool.family is None else endpoints.profile.permissions(tool.family)
    return {
        "name": tool.name,
        "description": _description(tool, endpoints, has_batch=has_batch) + more,
        "inputSchema": input_schema(has_batch=has_batch),
        "annotations": {"readOnlyHint": permissions.read_only, "destructiveHint": permissions.destructive},
    }


def input_schema(*, has_batch: bool) -> dict[str, Any]:
    operation = {"type": "string", "description": "The operation's name."}
    params = {"type": "object", "additionalProperties": True, "description": "Its parameters."}
    if not has_batch:
        return {"type": "object", "properties": {"operation": operation, "params": params}, "required": ["operation"]}
    many = {
        "type": "array",
        "items": {"type": "object"},
        "description": "Instead of operation: several {operation, params}, run in order.",
    }
    return {"type": "object", "properties": {"operation": operation, "params": params, "operations": many}}


def discovery(endpoints: Endpoints) -> tuple[str, str]:
    """The tool that takes `introspect`, and a request to copy; it holds a search (X-15)."""
    profile = endpoints.profile
    family = profile.by_operation.get(INTROSPECT) or profile.by_category[Category.READ]
    request = '{"operation":"introspect","params":{"query":"operations","search":"list files"}}'
    return endpoints.tool_of_family(family), request


def primary_categories(endpoints: Endpoints, tool: EndpointTool) -> list[str]:
    """The line that a family has whose name is not that of its category (C.tool-2)."""
    profile = endpoints.profile
    if tool.family is None or profile.name == "crude":
        return []
    categories = [category.value for category in profile.categories(tool.family)]
    return [f"Primary semantic categories: {', '.join(categories)}."] if categories else []


def _description(tool: EndpointTool, endpoints: Endpoints, *, has_batch: bool) -> str:
    where, request = discovery(endpoints)
    profile = endpoints.profile
    lines: list[str] = []
    if tool.family is None:
        lines.append("Calls any operation of the connected servers.")
        lines.append("Supported operations: all that introspect lists.")
        lines.append("Depending on the operation it reads, adds, changes, removes or runs.")
    else:
        categories = profile.categories(tool.family)
        said = [_PURPOSE[category] for category in categories]
        purpose = "; ".join(one.lower() if number else one for number, (one, _) in enumerate(said))
        lines.append(f"{purpose or 'Shows what there is'}, on the connected servers.")
        lines.append(f'Supported operations: those that introspect lists with endpoint "{tool.family}".')
        lines += primary_categories(endpoints, tool)
        lines.append(" ".join(dict.fromkeys(effect for _, effect in said)) or "Changes nothing.")
    to = "" if tool.name == where else f" (send to {where})"
    lines.append(f"Find operations{to}: {request}")
    lines.append(f"Details and an example of one{to}: {request.replace(_SEARCHED, _NAMED)}")
    return "\n".join(lines)


_SEARCHED: Final = '"search":"list files"'
_NAMED: Final = '"name":"NAME"'
