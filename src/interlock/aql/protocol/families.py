"""Endpoint families (3.3): which MCP tool takes which operation, in each mode and profile.

A profile gives every category one family; single operations may be given to another. `Endpoints` is a profile in a
mode with a prefix: the tools that are listed, and the one that an operation belongs to.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Literal, get_args

import msgspec

from interlock.aql.protocol.model import PERMISSIONS, Category, Operation, Permissions, is_name

Mode = Literal["semantic", "single", "all"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
SINGLE: Final = "mcp_aql"
PREFIX: Final = re.compile(r"(?=.{1,19}$)[a-z0-9_]*_")  # under 20 characters, ending in _ (C.mode-4)
INTROSPECT: Final = "introspect"


class Profile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    name: str
    families: tuple[str, ...]  # in the order of the tools
    by_category: Mapping[Category, str]
    by_operation: Mapping[str, str] = {}  # beside the categories; `introspect` at least

    def family_of(self, operation: Operation) -> str:
        if operation.family in self.families:  # AQL-6.2-2
            return operation.family
        return self.by_operation.get(operation.name) or self.by_category[operation.category]

    def categories(self, family: str) -> tuple[Category, ...]:
        """What the family is for, by the profile alone."""
        return tuple(category for category in Category if self.by_category[category] == family)

    def permissions(self, family: str) -> Permissions:
        """Those of its riskiest category: constant while servers come and go (X-7)."""
        every = [PERMISSIONS[category] for category in self.categories(family)] or [PERMISSIONS[Category.READ]]
        return Permissions(all(one.read_only for one in every), any(one.destructive for one in every))


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

# Of the safety loop alone, whose operations create, read and execute.
LOOP_PROFILE: Final = Profile(
    name="crude",
    families=("create", "read", "execute"),
    by_category={_C: "create", _R: "read", _U: "", _D: "", _E: "execute"},
    by_operation={INTROSPECT: "read"},
)


def custom_profile(name: str, families: Mapping[str, Sequence[str]]) -> Profile | str:
    """Of an operator's map: family -> categories (upper case) and operations; or why it cannot be one."""
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
    name: str  # as MCP lists it
    family: str | None  # None: it takes every operation


class Endpoints(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What one AQL surface lists."""

    mode: Mode = "semantic"
    profile: Profile = PROFILES["crude"]
    prefix: str = ""

    @cached_property
    def tools(self) -> tuple[EndpointTool, ...]:
        found: list[EndpointTool] = []
        if self.mode != "single":
            found += [EndpointTool(f"{self.prefix}{SINGLE}_{family}", family) for family in self.profile.families]
        if self.mode != "semantic":
            found.append(EndpointTool(f"{self.prefix}{SINGLE}", None))
        return tuple(found)

    @cached_property
    def by_name(self) -> Mapping[str, EndpointTool]:
        return {tool.name: tool for tool in self.tools}

    def tool_of(self, operation: Operation) -> str:
        """The MCP tool that takes it; the semantic one where there are both (C.mode-3)."""
        return self.tool_of_family(self.profile.family_of(operation))

    def tool_of_family(self, family: str) -> str:
        return f"{self.prefix}{SINGLE}" if self.mode == "single" else f"{self.prefix}{SINGLE}_{family}"
