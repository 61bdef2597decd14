"""AIP-19: SECRETS.md, closed. Keys that would hold a value are refused before this schema is asked.

An exposure of an unknown kind is let pass and ignored, as the specification asks; the three known ones are closed.
"""

from typing import Any, Final

from interlock.drivers.protocol.files.schemas.universal import STRINGS, closed_object

_TEXT = {"type": "string", "minLength": 1}
_ENVIRONMENT_NAME = {"type": "string", "pattern": "^[A-Z_][A-Z0-9_]*$"}
_GRANTS = {
    "type": "array",
    "items": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {"cap": {"type": "string", "pattern": "^cap://"}},
        "additionalProperties": _TEXT,  # a kind not known here grants nothing
    },
}


def _exposure(kind: str, shape: dict[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": shape}


_EXPOSURE = {
    "type": "object",
    "required": ["kind"],
    "properties": {"kind": {"type": "string"}},
    "allOf": [
        _exposure("env", closed_object(["name", "field"], kind=True, name=_ENVIRONMENT_NAME, field=_TEXT)),
        _exposure(
            "file",
            closed_object(
                ["path"],
                kind=True,
                path=_TEXT,
                field=_TEXT,
                mode={"type": "integer", "minimum": 0, "maximum": 0o777},
            ),
        ),
        _exposure(
            "egress-substitute",
            closed_object(
                ["placeholderName", "allowedByDefault"],
                kind=True,
                placeholderName=_ENVIRONMENT_NAME,
                allowedByDefault={"type": "boolean"},
                intendedProviders=STRINGS,
            ),
        ),
    ],
}
_ENTRY = closed_object(
    ["slug", "name", "description"],
    slug={
        "type": "string",
        "maxLength": 80,  # AIP-19.file-1; the pattern wants two characters
        # AIP-19.file-1
        "pattern": "^([a-z][a-z0-9-]*[a-z0-9]/)?[a-z][a-z0-9-]*[a-z0-9]$",
    },
    name={"type": "string", "minLength": 1, "maxLength": 80},
    description={"type": "string", "minLength": 1, "maxLength": 2000},
    kind={"enum": ["opaque", "oauth", "keypair", "json"]},
    backend={"type": "string", "pattern": "^[a-z][a-z0-9-]*://"},
    access=closed_object([], reveal=_GRANTS, bind=_GRANTS, rotate=_GRANTS),
    audit=closed_object(
        [],
        retention={"type": "string", "pattern": "^(P[0-9]+[YMWD]|[0-9]+(y|m|w|d|h))$"},
        pii={"type": "boolean"},
        classification={"type": "array", "items": _TEXT},
    ),
    tags={"type": "array", "items": {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"}},
    metadata={
        "type": "object",
        "properties": {
            "bindings": {
                "type": "object",
                "properties": {
                    "env": {
                        "type": ["string", "array"],
                        "pattern": "^[A-Z][A-Z0-9_]*$",
                        "items": {"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"},
                    }
                },
            }
        },
    },
    exposures={"type": "array", "items": _EXPOSURE},
)

# AIP-19.file-1
SCHEMA: Final[dict[str, Any]] = closed_object(["secrets"], secrets={"type": "array", "minItems": 1, "items": _ENTRY})
