"""Removal of a field by null in an UPDATE (4.5.2), for resources that are Structs.

A removed field is absent afterwards. A Struct fills in the default of a field that is left out, so the declaration of
the field says whether it can be removed:

    body: str | UnsetType = UNSET   It can be absent. Null removes it.
    author: str | None = None       It exists without a value (4.7.6). Null takes its value, and answers show null.
    body: str = ""                  It always has a value. Null is refused, as for a required field.
"""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec


def members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union. For any other type, return it as the only member."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)


def can_be_null(hint: Any) -> bool:
    """Return whether a field exists without a value after null removed it, rather than being absent."""
    return type(None) in members(hint) and msgspec.UnsetType not in members(hint)


def can_be_removed(hint: Any) -> bool:
    """Return whether null removes a field: it can be absent, or exist without a value."""
    return type(None) in members(hint) or msgspec.UnsetType in members(hint)


def keep_nulls(kind: Any, changes: Mapping[str, Any], changed: dict[str, Any]) -> None:
    """Set the fields of `changed` to null that `changes` remove and that exist without a value according to `kind`."""
    for name, hint in _fields(kind):
        if name not in changes:
            continue
        if changes[name] is None:
            if can_be_null(hint):
                changed[name] = None
            continue
        nested = next((member for member in members(hint) if _is_struct(member)), None)
        if nested is not None and isinstance(changes[name], Mapping) and isinstance(changed.get(name), dict):
            keep_nulls(nested, changes[name], changed[name])


def find_kept(changes: Mapping[str, Any], resource: Any, path: str) -> str | None:
    """Return the path of a field that `changes` remove and that has a value in `resource` nevertheless, because its
    default was filled in. Return None if there is no such field.
    """
    if isinstance(resource, msgspec.Struct):
        encoded = zip(resource.__struct_encode_fields__, resource.__struct_fields__, strict=True)
        held = {name: getattr(resource, field) for name, field in encoded}
    else:
        held = dict(resource) if isinstance(resource, Mapping) else {}
    for name, change in changes.items():
        value, place = held.get(name), f"{path}.{name}"
        if change is None and value is not None and value is not msgspec.UNSET:
            return place
        if isinstance(change, Mapping) and (below := find_kept(change, value, place)) is not None:
            return below
    return None


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name in JSON and the annotation of each field of a Struct. Other types have none."""
    if _is_struct(kind):
        hints = get_type_hints(kind, include_extras=True)
        for name, field in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True):
            yield name, hints[field]
