"""The bundled JSON Schemas (2020-12) and what they find in a frontmatter, said in our words.

The validator's own messages repeat the value that failed, which may be a secret; ours are made of the schema alone.
Nothing is ever fetched: a reference to another place is an error.
"""

import functools
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.frontmatter import Frontmatter
from interlock.drivers.protocol.problems import Problem
from interlock.wire.jsontext.pointer import pointer_step, quoted
from interlock.wire.schemas.bounds import is_bounded

INVALID: Final = "schema_invalid"
PROBLEMS_MAX: Final = 50  # of one schema in one file; more than a person fixes at once

_A_OR_AN: Final = {"integer": "an integer", "object": "a mapping of keys to values", "array": "a list", "null": "null"}
_TYPES: Final = "string, integer, number, boolean, object, array, null"
_NOT_FETCHED: Final = "fix it; nothing is fetched from elsewhere"


def check(front: Frontmatter, schema: str, *, published: bool = False) -> tuple[Problem, ...]:
    """Return what a schema (AIP-30, AIP-32, AIP-14, AIP-19) refuses, once per field, in the order of the lines.

    `published` selects AIP-32 without our extensions, as other hosts read it.
    """
    problems: dict[str, Problem] = {}
    for error in _validator(schema, published).iter_errors(front.data):
        base = "".join(f"/{pointer_step(str(step))}" for step in error.instance_path)
        for pointer, message, hint in _findings(base, error.kind):
            problems.setdefault(pointer, front.places.problem(pointer, INVALID, message, hint, schema=schema))
        if len(problems) >= PROBLEMS_MAX:
            break
    return tuple(sorted([*problems.values()][:PROBLEMS_MAX], key=lambda each: each.line or 0))


class SchemaFault(msgspec.Struct, frozen=True, kw_only=True):
    pointer: str  # in the schema; empty: all of it
    message: str
    hint: str


def fault_in_json_schema(schema: Any) -> SchemaFault | None:
    """Return why this is not a self-contained JSON Schema of 2020-12, or None if it is."""
    import jsonschema_rs

    if not is_bounded(schema):
        return SchemaFault(pointer="", message="it is too large, or refers to itself too often", hint="make it smaller")
    try:
        jsonschema_rs.Draft202012Validator(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        if error.kind.name == "$ref":
            return SchemaFault(pointer="", message="a $ref leads nowhere, or out of the file", hint=_NOT_FETCHED)
        pointer = "".join(f"/{pointer_step(str(step))}" for step in error.instance_path)
        return SchemaFault(pointer=pointer, **_schema_fault_said(error))
    except (ValueError, jsonschema_rs.ReferencingError):
        return SchemaFault(pointer="", message="it does not compile", hint=_NOT_FETCHED)
    return None


def _schema_fault_said(error: Any) -> dict[str, str]:
    if error.instance_path and error.instance_path[-1] == "type" and error.kind.name == "anyOf":
        return {"message": "it names a type that 2020-12 does not know", "hint": f"write one of {_TYPES}"}
    _, _, hint = _findings("", error.kind)[0]
    return {"message": "it is not as JSON Schema 2020-12 has it", "hint": hint}


@functools.cache
def _validator(name: str, published: bool) -> Any:
    import jsonschema_rs

    from interlock.drivers.protocol.files.schemas import contract, inventory, mcp, universal

    tables = {"AIP-30": universal.SCHEMA, "AIP-14": contract.SCHEMA, "AIP-19": inventory.SCHEMA}
    schema = (mcp.PUBLISHED if published else mcp.SCHEMA) if name == "AIP-32" else tables[name]
    return jsonschema_rs.Draft202012Validator(schema, offline=True)


def _findings(base: str, kind: Any) -> list[tuple[str, str, str]]:
    """Pointer, what is wrong, what to do."""
    value = kind.value
    match kind.name:
        case "required":
            return [(f"{base}/{pointer_step(value)}", f"{value} is missing", f"add {value}")]
        case "additionalProperties":
            return [
                (
                    f"{base}/{pointer_step(key)}",
                    f"the key {quoted(key)} is not known here",
                    "remove it, or correct its spelling",
                )
                for key in value
            ]
        case "type":
            wanted = " or ".join(_A_OR_AN.get(each, f"a {each}") for each in kind.types)
            return [(base, f"this is not {wanted}", f"write {wanted}")]
        case "enum":
            return [(base, "this is not one of the values known here", f"write one of {_join_names(kind.options)}")]
        case "const":
            return [(base, "this is not the value expected here", f"write {kind.expected_value}")]
        case "pattern":
            return [(base, "this is not written as it must be", f"it has to match {kind.pattern}")]
        case "minimum":
            return [(base, "this number is too small", f"write at least {kind.limit}")]
        case "maximum":
            return [(base, "this number is too large", f"write at most {kind.limit}")]
        case "minLength" | "minItems" | "minProperties":
            return [(base, "this is empty or too short", f"write at least {kind.limit}")]
        case "maxLength" | "maxItems" | "maxProperties":
            return [(base, "this is too long", f"keep it to {kind.limit}")]
        case "uniqueItems":
            return [(base, "an entry is written twice", "keep one of the two")]
    return [(base, "this is not as the schema has it", "compare it with the documentation of this field")]


def _join_names(options: Any) -> str:
    return ", ".join(str(each) for each in options)
