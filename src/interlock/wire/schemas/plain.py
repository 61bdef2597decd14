"""Schemas that say so little that they are compared at once: a type, or an object of named properties."""

from typing import Any, Final

NAMES_MAX: Final = 16  # of required properties, each of which is looked for

_DESCRIBES: Final = frozenset(["title", "description", "default", "examples", "deprecated", "$comment"])
_TYPE: Final = _DESCRIBES | {"type"}
_OBJECT: Final = _TYPE | {"properties", "required", "additionalProperties"}
_OF_MANY_VALUES: Final = ("string", "integer", "number")  # the values of the others can be listed, or nested


def is_plain_type(schema: Any) -> bool:
    return type(schema) is dict and schema.get("type") in _OF_MANY_VALUES and schema.keys() <= _TYPE


def is_plain_object(schema: Any) -> bool:
    """Of what it names and nothing else, as the narrow side is read."""
    if type(schema) is not dict or schema.get("type") != "object" or not schema.keys() <= _OBJECT:
        return False
    properties, required = schema.get("properties"), schema.get("required", [])
    if type(properties) is not dict or not properties or schema.get("additionalProperties", False) is not False:
        return False
    return type(required) is list and len(required) <= NAMES_MAX and all(type(name) is str for name in required)
