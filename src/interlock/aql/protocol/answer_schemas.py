"""JSON Schemas of MCP-AQL answers, written from the tables of the specification.

The schemas are closed: a member that the tables do not name is an error. `interlock check aql` and the tests check
every answer against them. The node itself does not load them.
"""

from typing import Any

import jsonschema_rs

NAME = {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"}
TEXT = {"type": "string"}
FILLED = {"type": "string", "minLength": 1}
FLAG = {"type": "boolean"}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object that allows only these members."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def many(items: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an array of these items."""
    return {"type": "array", "items": items}


def success(members: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the JSON Schema of a success answer that has only these members."""
    return closed({"success": {"const": True}, **members}, **optional)


def failure(error: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the JSON Schema of a failure answer with this error."""
    return closed({"success": {"const": False}, "error": error}, **optional)


CODE = {"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"}
ERROR = closed({"code": CODE, "message": FILLED}, details={"type": "object"})
BARE_ERROR = closed({"code": CODE, "message": FILLED})
WARNING = closed(
    {"code": CODE, "message": FILLED}, details={"type": "object"}, severity={"enum": ["low", "medium", "high"]}
)
CONFIRMATION = closed(
    {"token": {"type": "string", "pattern": "^conf_[A-Za-z0-9_-]{1,64}$"}, "expires_at": {"pattern": "Z$"}},
    message=TEXT,
    reasons=many(TEXT),
)
SUCCESS = success(
    {"data": True},
    warnings=many(WARNING) | {"maxItems": 10},
    _meta=closed({}, request_id=TEXT, duration_ms={"type": "integer"}),
)
FAILURE = failure(ERROR, confirmation=CONFIRMATION)

CATEGORY = {"enum": ["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"]}
KIND = {"enum": ["enum", "object", "scalar", "union"]}
PARAMETER = closed(
    {"name": FILLED, "type": FILLED, "required": FLAG},
    description=TEXT,
    default=True,
    enum={"type": "array"},
    minimum={"type": "number"},
    maximum={"type": "number"},
    minLength={"type": "integer"},
    maxLength={"type": "integer"},
    pattern=TEXT,
    format=TEXT,
    items={"type": "object"},
    sensitive=FLAG,
)
INFO = closed({"name": NAME, "semantic_category": CATEGORY, "endpoint": NAME, "description": FILLED})
TYPE_INFO = closed({"name": FILLED, "kind": KIND}, description=TEXT)
LIFECYCLE = closed({"states": many(TEXT)}, supports_cancel=FLAG, supports_retry=FLAG, progress_reporting=FLAG)
DETAILS = closed(
    {
        "name": NAME,
        "semantic_category": CATEGORY,
        "endpoint": NAME,
        "mcpTool": {"type": "string", "pattern": "^([a-z0-9_]+_)?mcp_aql(_[a-z0-9_]+)?$"},
        "description": FILLED,
        "permissions": closed({"readOnly": FLAG, "destructive": FLAG}),
        "parameters": many(PARAMETER),
        "returns": TYPE_INFO,
    },
    examples=many(closed({"request": {"type": "object"}}, description=TEXT)),
    computed_fields={"type": "array"},
    aggregation_support={"type": "object"},
    relationship_capabilities={"type": "object"},
    lifecycle=LIFECYCLE,
)
TYPE_DETAILS = {
    "oneOf": [
        closed({"name": FILLED, "kind": {"const": "enum"}, "values": many(TEXT)}, description=TEXT),
        closed({"name": FILLED, "kind": {"const": "object"}, "fields": many(PARAMETER)}, description=TEXT),
        closed({"name": FILLED, "kind": {"const": "union"}, "members": many(TEXT)}, description=TEXT),
        closed({"name": FILLED, "kind": {"const": "scalar"}}, description=TEXT),
    ]
}
CAPABILITIES = {
    "type": "object",
    "properties": {
        **dict.fromkeys(
            [
                *("batch", "field_selection", "aggregations", "computed_fields", "pagination"),
                *("relationship_queries", "warnings", "confirmation", "dangerous_operations"),
            ],
            FLAG,
        ),
        "execution_safety_loop": {"enum": ["enforcing", "monitoring", "logging", "disabled"]},
    },
    "required": ["execution_safety_loop"],
}
PROTOCOL = {
    "type": "object",
    "properties": {
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+(-[a-zA-Z0-9.-]+)?$"},
        "conformance": {"enum": ["level-1", "level-2"]},
        "mode": {"enum": ["semantic", "single", "all"]},
        "capabilities": CAPABILITIES,
    },
    "required": ["version"],
}
PAYLOAD = {
    "oneOf": [
        closed({"operations": many(INFO)}, _protocol=PROTOCOL),
        closed({"operation": {"anyOf": [DETAILS, {"type": "null"}]}}),
        closed({"types": many(TYPE_INFO)}),
        closed({"type": {"anyOf": [TYPE_DETAILS, {"type": "null"}]}}),
    ]
}
INTROSPECTION = {"oneOf": [success({"data": PAYLOAD}), failure(BARE_ERROR)]}
COUNT = {"type": "integer", "minimum": 0}
ITEM = closed(
    {"index": COUNT, "operation": TEXT, "result": {"oneOf": [success({"data": True}), failure(ERROR)]}},
)
BATCHED = success(
    {
        "data": {"type": "null"},
        "results": many(ITEM),
        "summary": closed({"total": COUNT, "succeeded": COUNT, "failed": COUNT}, halted=COUNT, pending=COUNT),
    },
    halted_at=ITEM,
    pending_operations=many(closed({"index": COUNT, "operation": TEXT}, params={"type": "object"})),
)
BATCH = {"oneOf": [BATCHED, failure(BARE_ERROR)]}
RESULT = {"oneOf": [SUCCESS, FAILURE]}
_compiled = {
    name: jsonschema_rs.Draft202012Validator(schema)
    for name, schema in (("introspection", INTROSPECTION), ("batch", BATCH), ("result", RESULT))
}


def check_answer(envelope: Any, arguments: Any) -> None:
    """Check that an answer matches the schemas of the specification. Raise an error if it does not."""
    name = "result"
    if isinstance(arguments, dict):
        if "operations" in arguments and "results" in envelope:
            name = "batch"
        elif arguments.get("operation") == "introspect":
            code = envelope.get("error", {}).get("code")
            name = "result" if code in ("VALIDATION_ENDPOINT_MISMATCH", "VALIDATION_INVALID_TYPE") else "introspection"
    _compiled[name].validate(envelope)
