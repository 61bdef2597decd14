"""AIP-14: TOOL.md, closed. `inputs` and `outputs` are objects here; that they are JSON Schemas is checked apart."""

from typing import Any, Final

from interlock.drivers.protocol.files.schemas.universal import DRIVER_ID, KINDS, SEMVER, STRINGS, closed_object

_TEXT = {"type": "string"}
_SOME_KINDS = {"type": "array", "items": {"enum": KINDS}, "uniqueItems": True}

EXTENSIONS: Final[dict[str, Any]] = closed_object([], name=_TEXT, context_schema={"type": "object"})

SCHEMA: Final[dict[str, Any]] = closed_object(
    ["name", "id", "description", "version", "inputs", "outputs"],  # AIP-14.front-1
    name={"type": "string", "minLength": 1, "maxLength": 80},
    id={"type": "string", "minLength": 2, "maxLength": 80, "pattern": r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"},
    description={"type": "string", "minLength": 1, "maxLength": 2000},
    version={"type": "string", "pattern": SEMVER},
    inputs={"type": "object"},
    outputs={"type": "object"},
    idempotent={"type": "boolean"},
    mutates={"type": "array", "items": {"type": "string", "pattern": r"^[a-z]+:[^\s]+$"}},
    requires=closed_object([], network=STRINGS, secrets=STRINGS, tools=STRINGS),
    approval={"type": "string", "pattern": r"^(?:auto|always|on-mutate|policy:[A-Za-z0-9_./-]+)$"},
    risk_level={"type": "integer", "minimum": 0, "maximum": 3},
    cost_class={"enum": ["trivial", "metered", "expensive"]},
    timeout_ms={"type": "integer", "minimum": 1},
    retry=closed_object(
        ["max_attempts", "backoff"],
        max_attempts={"type": "integer", "minimum": 1, "maximum": 20},
        backoff={"enum": ["fixed", "exponential"]},
        initial_ms={"type": "integer", "minimum": 0},
    ),
    default_implementation={"type": ["string", "null"], "pattern": DRIVER_ID},
    driver_constraints=closed_object([], forbid=_SOME_KINDS, require_kind=_SOME_KINDS),
    tags={"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*$"}, "uniqueItems": True},
    examples={
        "type": "array",
        "items": closed_object(["name", "input"], name=_TEXT, input=True, output=True, note=_TEXT),
    },
    metadata={"type": "object", "properties": {"interlock": EXTENSIONS}},
)
