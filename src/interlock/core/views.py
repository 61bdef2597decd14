"""Views of domain objects for the operator API, whose types have the same member names wherever they mean the same."""

from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from interlock.core.clock import rfc3339

View = TypeVar("View", bound=Struct)
_ABSENT: Final = object()


def view_of(view: type[View], *sources: object, **members: Any) -> View:
    """Return a struct of type `view`. Its values are the given `members`, otherwise the attributes of the same names of
    the first source that has them, otherwise the defaults. Raise TypeError if a member is missing or unknown.

    Enums become their values, and times in seconds become RFC 3339 where the view has a text.
    """
    texts = _text_members(view)
    for source in sources:
        for name in view.__struct_fields__:
            if name not in members and (value := getattr(source, name, _ABSENT)) is not _ABSENT:
                members[name] = value
    for name, value in members.items():
        if isinstance(value, Enum):
            members[name] = value.value
        elif name in texts and isinstance(value, (int, float)):
            members[name] = rfc3339(value)
    return view(**members)


@cache
def _text_members(view: type[Struct]) -> frozenset[str]:
    """Return the names of those members of a struct type that are texts."""
    return frozenset(field.name for field in structs.fields(view) if field.type in (str, str | None))
