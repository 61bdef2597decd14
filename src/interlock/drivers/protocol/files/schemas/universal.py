"""AIP-30: the fields every driver has, whatever its kind. Verdicts are those of the published DRIVER.schema.json."""

from typing import Any, Final

STRINGS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
STRING_MAP: Final[dict[str, Any]] = {"type": "object", "additionalProperties": {"type": "string"}}
SEMVER: Final = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z_.-]+)?$"
KINDS: Final = ["cli", "http", "mcp", "sdk", "builtin"]  # AIP-30.front-2
TAGS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9-]{0,63}$"},
    "uniqueItems": True,
}
DRIVER_ID: Final = r"^[a-z0-9][a-z0-9.-]{1,79}$"


def closed_object(required: list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_TEXT = {"type": "string"}
_BOOLEAN = {"type": "boolean"}
_INTEGER = {"type": "integer"}
_AT_LEAST_0 = {"type": "integer", "minimum": 0}
_MILLISECONDS = {"type": "integer", "minimum": 100}
_DURATION = {"type": "string", "pattern": r"^PT?[^\s]+$"}
_PROBE = closed_object(
    ["method", "url"],
    method={"enum": ["GET", "POST", "HEAD"]},
    url=_TEXT,
    expect_status={"type": "integer", "minimum": 100, "maximum": 599},
)
_COST = closed_object(
    [],
    cost_class={"enum": ["trivial", "metered", "expensive"]},
    cost_units_per_call={"type": "number", "minimum": 0},
    currency={"type": "string", "pattern": "^[A-Z]{3}$"},
)
_RETRY = closed_object(
    ["max_attempts"],
    max_attempts={"type": "integer", "minimum": 1, "maximum": 10},
    backoff={"enum": ["fixed", "exponential"]},
    initial_ms=_AT_LEAST_0,
)
_AUTH = closed_object(
    [],
    ref=_TEXT,
    state=closed_object([], paths=STRINGS, env=STRINGS),
    login=closed_object(
        [],
        cmd=_TEXT,
        url=_TEXT,
        interactive=_BOOLEAN,
        requires_callback_url=_BOOLEAN,
        completes_when=closed_object([], cmd=_TEXT, exit_code=_INTEGER, http=_PROBE),
    ),
    refresh=closed_object([], cmd=_TEXT, url=_TEXT, every=_DURATION),
    expiry=closed_object([], detect=_TEXT),
)
_IMPLEMENTS = closed_object(  # AIP-30.implements-1
    ["tool", "version"],
    tool=_TEXT,
    version=_TEXT,
    schema_narrowing=closed_object([], drop_inputs=STRINGS, drop_outputs=STRINGS),
    mapping={
        "type": "object",
        "additionalProperties": {
            "type": ["string", "object"],
            "required": ["from"],
            "properties": {"from": _TEXT, "transform": _TEXT},
            "additionalProperties": False,
        },
    },
    cost_override=_COST,
    timeout_override_ms=_MILLISECONDS,
    retry_override=_RETRY,
    metadata={"type": "object"},
)

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name", "id", "description", "version", "kind", "implements"],  # AIP-30.front-1
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 80},  # AIP-30.front-1
        "id": {"type": "string", "pattern": DRIVER_ID},
        "description": {"type": "string", "minLength": 1, "maxLength": 2000},  # AIP-30.front-1
        "version": {"type": "string", "pattern": SEMVER},
        "kind": {"enum": KINDS},  # AIP-front-1
        "implements": {"type": "array", "minItems": 1, "items": _IMPLEMENTS},  # AIP-30.front-1
        "install": {"type": "array", "items": {"type": "object"}},
        "version_check": closed_object(
            ["cmd", "parse", "range"], cmd=_TEXT, parse=_TEXT, range=_TEXT, timeout_ms=_MILLISECONDS
        ),
        "auth": _AUTH,
        "network": closed_object([], egress=STRINGS, ingress=STRINGS),
        "runner": {"type": ["string", "object"]},
        "region": STRINGS,
        "policy_tags": TAGS,
        "cost_override": _COST,
        "timeout_override_ms": _MILLISECONDS,
        "retry_override": _RETRY,
        "health_check": closed_object(
            ["method"],
            method={"enum": ["ping", "exec", "http", "noop"]},
            cmd=_TEXT,
            http=_PROBE,
            expect_exit=_INTEGER,
            every=_DURATION,
            timeout_ms=_MILLISECONDS,
        ),
        "requires": closed_object(
            [],
            os={"type": "array", "items": {"enum": ["darwin", "linux", "windows"]}},
            arch={"type": "array", "items": {"enum": ["x64", "arm64", "x86", "arm"]}},
            min_disk_mb=_AT_LEAST_0,
            min_memory_mb=_AT_LEAST_0,
        ),
        "examples": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["goal"],
                "properties": {"goal": _TEXT, "note": _TEXT, "cmd": _TEXT},
            },
        },
        "tags": TAGS,
        "metadata": {"type": "object"},
    },
}
