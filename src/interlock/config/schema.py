"""The keys and sections that interlock.toml may have, and its JSON Schema (2020-12) for editors.

`full_plan` is the Plan with a field for each section that a capability declares itself (`ConfigurationSection`); all
code that reads or shows a configuration goes through it, so that a new capability needs no change here. Which keys of
a server go together is written once, in `goes_with` of the keys, and both the reader and the schema follow from it.
"""

from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast, get_args

import msgspec

from interlock.config.keys import Key, Section, keys_of, sections_of
from interlock.config.plan import Plan
from interlock.config.plan_servers import REACHES, DialTransport
from interlock.config.value_types import Segment
from interlock.core.capability import load_reference
from interlock.node.capabilities import CAPABILITIES

_Keys = TypeVar("_Keys", bound=msgspec.Struct)
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@cache
def full_plan() -> type[Plan]:
    """Return the class Plan with additional fields for the sections that capabilities declare."""
    declared = [each.section for each in CAPABILITIES if each.section is not None]
    fields = [
        (section.name, Annotated[keys, Section(section.help)], keys())
        for section in declared
        for keys in (load_reference(section.keys),)
    ]
    if not fields:
        return Plan
    full = msgspec.defstruct("Plan", fields, bases=(Plan,), module=__name__, frozen=True, kw_only=True)
    return cast(type[Plan], full)


# Each key of the top level has a default that depends on where the file is.
TOP: Final = {name: msgspec.structs.replace(key, required=False) for name, key in keys_of(Plan).items()}
_SERVERS: Final = sections_of(Plan)["servers"]
# How a server is reached -> the keys that may be combined with it.
SERVER_KEYS: Final = {
    reach: tuple(key.name for key in _SERVERS.keys.values() if reach in key.goes_with) for reach in REACHES
}
# How a server is reached -> the values of `transport`.
TRANSPORTS: Final = {reach: get_args(DialTransport) if reach == "url" else ("auto", "stdio") for reach in REACHES}


@cache
def sections() -> dict[str, Section]:
    """Return the sections of interlock.toml by their name in the file."""
    return sections_of(full_plan())


def section_values(plan: Plan, name: str, keys: type[_Keys]) -> _Keys:
    """Return the values of a section that a capability declares, as an object of the type `keys`.

    `keys` is the struct type that declares the section's keys.
    """
    values = getattr(plan, name)
    if not isinstance(values, keys):
        raise TypeError(f"[{name}] is not read into {keys.__name__}")
    return values


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema that `interlock check --schema` prints."""
    return {
        "$schema": DIALECT,
        "title": "interlock.toml",
        "type": "object",
        "properties": {key.name: _key_schema(key) for key in TOP.values()}
        | {section.name: _section_schema(section) for section in sections().values()},
        "additionalProperties": False,
    }


def _section_schema(section: Section) -> dict[str, Any]:
    table: dict[str, Any] = {
        "type": "object",
        "properties": {key.name: _key_schema(key) for key in section.keys.values()},
        "additionalProperties": False,
    }
    if required := [key.name for key in section.keys.values() if key.required]:
        table["required"] = required
    if section.one_of:
        table["oneOf"] = [{"required": [name]} for name in section.one_of]
    match section.shape:
        case "table":
            schema = table
        case "list":
            schema = {"type": "array", "items": table}
        case "segments":
            reaches = {"oneOf": [_reach_schema(reach) for reach in REACHES]}
            schema = {"type": "object", "propertyNames": Segment().schema(), "additionalProperties": table | reaches}
    return {"description": section.help} | schema


def _key_schema(key: Key) -> dict[str, Any]:
    schema = {"description": key.help} | key.kind.schema()
    if key.default is not None:
        schema["default"] = key.default
    return schema | {"examples": [key.example]}


def _reach_schema(reach: str) -> dict[str, Any]:
    excluded = [name for name in _SERVERS.keys if name != reach and name not in SERVER_KEYS[reach]]
    return {
        "required": [reach],
        "properties": {"transport": {"enum": list(TRANSPORTS[reach])}} | dict.fromkeys(excluded, False),
    }
