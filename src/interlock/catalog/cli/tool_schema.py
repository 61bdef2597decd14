"""What a tool's input schema says about its arguments, as far as a command line needs it. Pure.

A schema is anything a server chose to write: whatever does not look like one is treated as saying nothing.
"""

import json
from typing import Any

import msgspec


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    required: bool
    description: str


def arguments_of(schema: Any) -> list[Argument]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return []
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    return [
        Argument(name=name, kind=_kind(inner), required=name in needed, description=_description(inner))
        for name, inner in properties.items()
    ]


def argument_value(schema: Any, name: str, text: str) -> Any:
    """What `--arg name=text` means: text where the schema allows only text, else JSON where it is JSON, else text."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    inner = properties.get(name) if isinstance(properties, dict) else None
    if _types(inner) == {"string"}:
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        return {stated}
    if isinstance(stated, list):
        return {str(one) for one in stated}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return {"string"}
    if isinstance(schema.get("const"), str):
        return {"string"}
    return set()


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return "|".join(str(choice) for choice in choices[:6]) + ("|…" if len(choices) > 6 else "")
    return " or ".join(sorted(_types(schema))) or "any"


def _description(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    parts = [str(schema["description"])] if isinstance(schema.get("description"), str) else []
    if "default" in schema:
        parts.append(f"[default: {json.dumps(schema['default'])}]")
    return " ".join(parts)
