"""What the table of keys is made of: a key, and a section that has some."""

from typing import Any, Literal

import msgspec

from interlock.config.value_types import Kind


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    help: str
    example: Any
    default: Any = None  # as it is written in the file; None: there is none
    required: bool = False


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """`table`: [node]; `list`: [[tool]]; `segments`: [servers.SEGMENT]."""

    name: str
    shape: Literal["table", "list", "segments"]
    help: str
    keys: dict[str, Key]
    one_of: tuple[str, ...] = ()  # keys of which an entry has exactly one


def keyed(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}
