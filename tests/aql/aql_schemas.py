"""The closed JSON Schemas of MCP-AQL, for tests: those of answers, of requests and of declarations."""

from typing import Any, Final

import jsonschema_rs

from interlock.aql.protocol import answer_schemas
from interlock.aql.protocol.answer_schemas import check_answer

__all__ = ["check_answer", "is_valid"]

INPUT: Final = {  # 4.1: parameters may stand beside `params`, so that nothing else is closed
    "type": "object",
    "properties": {
        "operation": {"type": "string", "pattern": answer_schemas.NAME["pattern"]},
        "params": {"type": "object"},
    },
    "required": ["operation"],
}
_COMPILED: Final = {
    name: jsonschema_rs.Draft202012Validator(schema)
    for name, schema in (
        ("introspection", answer_schemas.INTROSPECTION),
        ("batch", answer_schemas.BATCH),
        ("result", answer_schemas.RESULT),
        ("input", INPUT),
        ("danger", {"enum": ["safe", "reversible", "destructive", "dangerous", "forbidden"]}),
        ("type", answer_schemas.TYPE_DETAILS),
    )
}


def is_valid(name: str, value: Any) -> bool:
    return bool(_COMPILED[name].is_valid(value))
