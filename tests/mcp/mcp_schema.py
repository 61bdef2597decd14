"""The official JSON Schemas of MCP as judges, read with a validator the product does not use."""

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[2] / "spec" / "mcp" / "schema"
LEGACY, MODERN = "2025-11-25", "2026-07-28"


def complaints(version: str, definition: str, text: bytes) -> list[str]:
    """What the schema of a revision has against a JSON text."""
    return [f"{error.json_path}: {error.message}" for error in _judge(version, definition).iter_errors(_read(text))]


def _read(text: bytes) -> Any:
    return json.loads(text)


@functools.cache
def _judge(version: str, definition: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{version}.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator({"$defs": schema["$defs"], "$ref": f"#/$defs/{definition}"})
