"""OAuth's scope strings and our three scopes, of which a wider one holds the narrower ones."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

OurScope = Literal["read", "write", "admin"]
RANK: Final[tuple[OurScope, ...]] = ("read", "write", "admin")
BASIC: Final[tuple[OurScope, ...]] = ("read", "write")  # what a client asks for at first; more when a tool needs it

DEFAULT_SCOPES: Final[Mapping[str, OurScope]] = {
    "read": "read",
    "write": "write",
    "admin": "admin",
    "interlock:read": "read",
    "interlock:write": "write",
    "interlock:admin": "admin",
}


def granted_scope(scopes: Iterable[str], table: Mapping[str, OurScope]) -> OurScope | None:
    """The widest of ours that the token's scopes stand for; None when they stand for none."""
    ours = [table[scope] for scope in scopes if scope in table]
    return max(ours, key=RANK.index, default=None)


def scope_to_ask(needed: str, table: Mapping[str, OurScope]) -> str | None:
    """The scope string a client should ask for: the first that stands for `needed`, else for the next wider one."""
    for ours in RANK[RANK.index(needed) :]:
        for scope, stands_for in table.items():
            if stands_for == ours:
                return scope
    return None


def basic(table: Mapping[str, OurScope]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(scope for ours in BASIC if (scope := scope_to_ask(ours, table)) is not None))
