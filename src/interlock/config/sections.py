"""Sections and keys of the configuration, each declared once.

The plan says a key's name, type and default; the table of keys says what it is for, an example, and how it is read
where its type alone does not say so. `keys_of` joins the two and refuses a key that only one of them has.
"""

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

import msgspec

from interlock.config.value_types import Choice, Flag, ValueType


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    help: str
    example: Any
    kind: ValueType = ValueType()  # left out: as the plan's type says
    default: Any = None  # as it is written in the file; None: there is none
    required: bool = False
    beside: tuple[str, ...] = ()  # of a server: the ways to reach it that the key goes with


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """`table`: [node]; `list`: [[tool]]; `segments`: [servers.SEGMENT]."""

    name: str
    shape: Literal["table", "list", "segments"]
    help: str
    keys: dict[str, Key]
    one_of: tuple[str, ...] = ()  # keys of which an entry has exactly one
    field: str = ""  # of the Plan, where it is not the name


def keys_by_name(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


def keys_of(plan: type[msgspec.Struct], *keys: Key, unwritten: Iterable[str] = ()) -> dict[str, Key]:
    """Each key with the type and default that `plan` gives it. `unwritten`: fields that stand in no file.

    Raises TypeError where the two do not have the same names.
    """
    fields = {field.name: field for field in msgspec.structs.fields(plan)}
    declared = keys_by_name(*keys)
    if declared.keys() != fields.keys() - set(unwritten):
        odd = ", ".join(sorted(declared.keys() ^ (fields.keys() - set(unwritten))))
        raise TypeError(f"{plan.__name__} and its keys differ: {odd}")
    return {name: _complete_key(key, fields[name]) for name, key in declared.items()}


def choices_of(plan: type[msgspec.Struct], name: str) -> Choice:
    """The values that a field of `plan` may have."""
    return Choice(values=tuple(_literal(next(each.type for each in msgspec.structs.fields(plan) if each.name == name))))


def _complete_key(key: Key, field: msgspec.structs.FieldInfo) -> Key:
    kind = key.kind
    if type(kind) is ValueType:
        kind = Flag() if field.type is bool else Choice(values=tuple(_literal(field.type)))
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if default is msgspec.NODEFAULT:
        return msgspec.structs.replace(key, kind=kind, required=True)
    return msgspec.structs.replace(key, kind=kind, default=None if default is None else kind.written(default))


def _literal(type_: Any) -> tuple[str, ...]:
    """The values of Literal[...], with or without None beside it."""
    for each in (type_, *get_args(type_)):
        if get_origin(each) is Literal:
            return get_args(each)
    raise TypeError(f"{type_} says no values")
