"""Endpoint families (3.3), which determine the MCP tool that accepts an operation, in each mode and profile.

A profile gives every category one family; single operations may be given to another. `AqlEndpoints` is a profile in a
mode with a prefix: the tools that are listed, and the tool that an operation belongs to.

The definitions of these tools (C.tool-1 to -4) name no operation of the catalogue, so that their bytes stay the same
while servers connect and disconnect (X-7): a client that caches the list, or asks its user to trust it, keeps it.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, get_args

import msgspec

from interlock.aql.protocol.model import PERMISSIONS, AqlOperation, Category, Permissions, is_name

Mode = Literal["semantic", "single", "all"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
SINGLE: Final = "mcp_aql"
PREFIX: Final = re.compile(r"(?=.{1,19}$)[a-z0-9_]*_")  # under 20 characters, ending in _ (C.mode-4)
INTROSPECT: Final = "introspect"
SEARCH: Final = '"search":"list files"'  # in the request that descriptions show, as an example of a search


class Profile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A named assignment of operations to families. Each family has one endpoint tool."""

    name: str
    families: tuple[str, ...]  # in the order of the tools
    by_category: Mapping[Category, str]
    by_operation: Mapping[str, str] = {}  # beside the categories; `introspect` at least

    def family(self, name: str, category: Category, chosen: str | None) -> str:
        """Return the family of an operation, which determines the endpoint tool that accepts it.

        This is `chosen` if the profile has that family, otherwise the family assigned to the operation's name,
        otherwise the family of its category.
        """
        if chosen is not None and chosen in self.families:  # AQL-6.2-2
            return chosen
        return self.by_operation.get(name) or self.by_category[category]

    def family_of(self, operation: AqlOperation) -> str:
        return self.family(operation.name, operation.category, operation.family)

    def categories(self, family: str) -> tuple[Category, ...]:
        """Return the categories that the profile assigns to a family."""
        return tuple(category for category in Category if self.by_category[category] == family)

    def permissions(self, family: str) -> Permissions:
        """Return the permissions of the riskiest category of a family. They do not depend on the connected servers
        (X-7).
        """
        every = [PERMISSIONS[category] for category in self.categories(family)] or [PERMISSIONS[Category.READ]]
        return Permissions(all(each.read_only for each in every), any(each.destructive for each in every))


def _profile(name: str, introspect: str, **families: tuple[Category, ...]) -> Profile:
    by_category = {category: family for family, categories in families.items() for category in categories}
    order = tuple(families)
    return Profile(name=name, families=order, by_category=by_category, by_operation={INTROSPECT: introspect})


_C, _R, _U, _D, _E = Category
PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        _profile("crude", "read", create=(_C,), read=(_R,), update=(_U,), delete=(_D,), execute=(_E,)),
        _profile(
            "discover_query_manage_operate", "discover", discover=(), query=(_R,), manage=(_C, _U, _D), operate=(_E,)
        ),
        _profile("database", "inspect", inspect=(), query=(_R,), mutate=(_C, _U, _D), administer=(_E,)),
        _profile("hardware", "discover", discover=(), observe=(_R,), control=(_C, _U, _E), maintain=(_D,)),
    )
}

# The profile of the safety loop alone, whose operations create, read and execute.
LOOP_PROFILE: Final = Profile(
    name="crude",
    families=("create", "read", "execute"),
    by_category={_C: "create", _R: "read", _U: "", _D: "", _E: "execute"},
    by_operation={INTROSPECT: "read"},
)


def custom_profile(name: str, families: Mapping[str, Sequence[str]]) -> Profile | str:
    """Build a profile from an operator's map, or return why the map is invalid.

    The map assigns to each family its categories (upper case) and single operations.
    """
    by_category: dict[Category, str] = {}
    by_operation: dict[str, str] = {}
    for family, members in families.items():
        if not is_name(family):
            return f"family {family!r} must match ^[a-z][a-z0-9_]*$"
        for member in members:
            if member in Category.__members__:
                if by_category.setdefault(Category[member], family) != family:  # AQL-6.2-2
                    return f"category {member} stands in two families, '{by_category[Category[member]]}' and '{family}'"
            elif not is_name(member):
                return f"family '{family}': {member!r} is neither a category nor the name of an operation"
            elif by_operation.setdefault(member, family) != family:
                return f"operation '{member}' stands in two families, '{by_operation[member]}' and '{family}'"
    left = [category.value for category in Category if category not in by_category]
    if left:
        return f"no family takes {', '.join(left)}"
    by_operation.setdefault(INTROSPECT, by_category[Category.READ])
    return Profile(name=name, families=tuple(families), by_category=by_category, by_operation=by_operation)


class EndpointTool(msgspec.Struct, frozen=True):
    """An MCP tool that accepts the operations of one or more families."""

    name: str  # as MCP lists it
    family: str | None  # None: it takes every operation


class AqlEndpoints(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The endpoint tools of an AQL surface: the MCP tools that take operations."""

    mode: Mode = "semantic"
    profile: Profile = PROFILES["crude"]
    prefix: str = ""

    @cached_property
    def tools(self) -> tuple[EndpointTool, ...]:
        tools: list[EndpointTool] = []
        if self.mode != "single":
            tools += [EndpointTool(f"{self.prefix}{SINGLE}_{family}", family) for family in self.profile.families]
        if self.mode != "semantic":
            tools.append(EndpointTool(f"{self.prefix}{SINGLE}", None))
        return tuple(tools)

    @cached_property
    def by_name(self) -> Mapping[str, EndpointTool]:
        return {tool.name: tool for tool in self.tools}

    def tool_of(self, operation: AqlOperation) -> str:
        """Return the name of the MCP tool that accepts an operation. If two tools do, return the one of its family
        (C.mode-3).
        """
        return self.tool_of_family(self.profile.family_of(operation))

    def tool_of_family(self, family: str) -> str:
        return f"{self.prefix}{SINGLE}" if self.mode == "single" else f"{self.prefix}{SINGLE}_{family}"


# What a family does, by its categories: the beginning of its tool's description, and a sentence about its effects.
_PURPOSE: Final = {
    Category.CREATE: ("Adds things", "Removes and overwrites nothing."),
    Category.READ: ("Reads: gets, lists, searches", "Changes nothing."),
    Category.UPDATE: ("Changes what exists", "Overwrites the given fields; they go into params.input."),
    Category.DELETE: ("Removes things", "Use caution: removal cannot be undone."),
    Category.EXECUTE: ("Runs actions", "May have effects outside; is not repeated by itself."),
}
_SINGLE: Final = Permissions(False, True)


def endpoint_tools(endpoints: AqlEndpoints, *, has_batch: bool = True, rule: str = "") -> bytes:
    """Encode the JSON array of tools/list. `rule` is added to the tools that accept reports of agents (8.6.5)."""
    definitions = []
    for tool in endpoints.tools:
        takes_reports = tool.family in (None, endpoints.profile.by_category[Category.CREATE])
        permissions = _SINGLE if tool.family is None else endpoints.profile.permissions(tool.family)
        definition = {
            "name": tool.name,
            "description": _description(tool, endpoints) + (f"\n{rule}" if rule and takes_reports else ""),
            "inputSchema": input_schema(has_batch=has_batch),
            "annotations": {"readOnlyHint": permissions.read_only, "destructiveHint": permissions.destructive},
        }
        definitions.append(definition)
    return msgspec.json.encode(definitions)


def input_schema(*, has_batch: bool) -> dict[str, Any]:
    """Return the input schema of an endpoint tool. If batches are allowed, no member is required, because a batch has
    no `operation`.
    """
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


def discovery(endpoints: AqlEndpoints) -> tuple[str, str]:
    """Return the name of the endpoint tool that accepts `introspect`, and an example of such a request (X-15)."""
    profile = endpoints.profile
    family = profile.by_operation.get(INTROSPECT) or profile.by_category[Category.READ]
    request = f'{{"operation":"introspect","params":{{"query":"operations",{SEARCH}}}}}'
    return endpoints.tool_of_family(family), request


def primary_categories(endpoints: AqlEndpoints, tool: EndpointTool) -> list[str]:
    """Return a line that names the categories of an endpoint's family. Return no line if the endpoint has no family, or
    if families and categories are the same (C.tool-2).
    """
    profile = endpoints.profile
    if tool.family is None or profile.name == "crude":
        return []
    categories = [category.value for category in profile.categories(tool.family)]
    return [f"Primary semantic categories: {', '.join(categories)}."] if categories else []


def _description(tool: EndpointTool, endpoints: AqlEndpoints) -> str:
    """Return the description of an endpoint tool: its purpose, its operations, their effects, and two example
    requests.
    """
    where, request = discovery(endpoints)
    profile = endpoints.profile
    lines: list[str] = []
    if tool.family is None:
        lines.append("Calls any operation of the connected servers.")
        lines.append("Supported operations: all that introspect lists.")
        lines.append("Depending on the operation it reads, adds, changes, removes or runs.")
    else:
        categories = profile.categories(tool.family)
        purposes = [_PURPOSE[category] for category in categories]
        purpose = "; ".join(text.lower() if number else text for number, (text, _) in enumerate(purposes))
        lines.append(f"{purpose or 'Shows what there is'}, on the connected servers.")
        lines.append(f'Supported operations: those that introspect lists with endpoint "{tool.family}".')
        lines += primary_categories(endpoints, tool)
        lines.append(" ".join(dict.fromkeys(effect for _, effect in purposes)) or "Changes nothing.")
    to = "" if tool.name == where else f" (send to {where})"
    lines.append(f"Find operations{to}: {request}")
    details = request.replace(SEARCH, '"name":"NAME"')
    lines.append(f"Details and an example of one{to}: {details}")
    return "\n".join(lines)
