"""The JSON Schema (2020-12) of interlock.toml, made from the table of keys, for editors."""

from collections.abc import Mapping
from typing import Any, Final

from interlock.config.keys import SECTIONS, TOP
from interlock.config.sections import Key, Section
from interlock.config.server_entries import REACHES, TRANSPORTS
from interlock.config.value_types import Segment

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    return {
        "$schema": DIALECT,
        "title": "interlock.toml",
        "type": "object",
        "properties": {key.name: _key(key) for key in TOP.values()}
        | {section.name: _section(section) for section in SECTIONS.values()},
        "additionalProperties": False,
    }


def _section(section: Section) -> dict[str, Any]:
    table = _table(section.keys)
    if section.one_of:
        table["oneOf"] = [{"required": [name]} for name in section.one_of]
    match section.shape:
        case "table":
            made = table
        case "list":
            made = {"type": "array", "items": table}
        case "segments":
            one_way = {"oneOf": [_reach(reach) for reach in REACHES]}
            made = {"type": "object", "propertyNames": Segment().schema(), "additionalProperties": table | one_way}
    return {"description": section.help} | made


def _table(keys: Mapping[str, Key]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "object",
        "properties": {key.name: _key(key) for key in keys.values()},
        "additionalProperties": False,
    }
    required = [key.name for key in keys.values() if key.required]
    return made | ({"required": required} if required else {})


def _key(key: Key) -> dict[str, Any]:
    made = {"description": key.help} | key.kind.schema()
    if key.default is not None:
        made["default"] = key.default
    return made | {"examples": [key.example]}


def _reach(reach: str) -> dict[str, Any]:
    beside = REACHES[reach]
    apart = [name for name in SECTIONS["servers"].keys if name != reach and name not in beside]
    return {
        "required": [reach],
        "properties": {"transport": {"enum": list(TRANSPORTS[reach])}} | dict.fromkeys(apart, False),
    }
