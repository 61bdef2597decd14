"""The operation `introspect` (7): its declaration, its parameters as a query, and its four payloads (C.intro-*).

The shapes are closed: a list item has four members, details have those of OperationDetails and no others. An unknown
name is answered null. Failures have a code and a message only.
"""

from typing import Any, Final

import msgspec

from interlock.aql.protocol.errors import Code, Failure, failure
from interlock.aql.protocol.examples import example_of
from interlock.aql.protocol.families import INTROSPECT, Endpoints
from interlock.aql.protocol.model import Category, Example, Operation, Parameter, Returns
from interlock.aql.protocol.requests import Request, raw_type
from interlock.wire.jsonrpc.codec import decode_value, maybe_string

QUERIES: Final = ("operations", "types")
PAGE: Final = 50  # operations in one answer, where a page was asked for without a number
PAGE_MAX: Final = 500
WHOLE_MAX: Final = 100  # larger catalogues are answered in pages
FIRST_PAGE_BYTES: Final = 7000  # of such an answer, so that all of it stays below 8 KB

DECLARATION: Final = Operation(
    name=INTROSPECT,
    category=Category.READ,
    description="Lists operations and types, or shows one with its parameters and an example.",
    parameters=(
        Parameter(name="query", type="string", required=True, enum=QUERIES, description="What to list or show."),
        Parameter(name="name", type="string", description="One operation or type: its details; null if unknown."),
        Parameter(name="search", type="string", description="Words; the operations that fit best come first."),
        Parameter(name="prefix", type="string", description="Operations whose name begins so."),
        Parameter(name="first", type="integer", minimum=1, maximum=PAGE_MAX, description="At most so many."),
        Parameter(name="after", type="string", description="Where the page before ended (_protocol.page_info.next)."),
    ),
    returns=Returns("object", "object", "operations, operation, types or type."),
    examples=(
        Example({"operation": INTROSPECT, "params": {"query": "operations", "search": "read file"}}, "Search"),
        Example({"operation": INTROSPECT, "params": {"query": "operations", "name": INTROSPECT}}, "Details of one"),
    ),
)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    name: str | None = None
    search: str | None = None
    prefix: str = ""
    first: int | None = None
    after: str | None = None

    @property
    def is_paged(self) -> bool:
        return self.search is not None or bool(self.prefix) or self.first is not None or self.after is not None


def read_query(request: Request, *, strict: bool = True) -> Query | Failure:
    members = request.members
    if "query" not in members:
        message = "Missing required parameter 'query'. Expected: string ('operations' or 'types')"
        return failure(Code.VALIDATION_MISSING_PARAM, message)
    found: dict[str, Any] = {}
    for name, raw in members.items():
        parameter = DECLARATION.by_name.get(name)
        if parameter is None:
            continue
        value = decode_value(raw) if parameter.type == "integer" else maybe_string(raw)
        if value is None or (parameter.type == "integer" and (isinstance(value, bool) or not isinstance(value, int))):
            message = f"Parameter '{name}' expected '{parameter.type}', got '{raw_type(raw)}'"
            return failure(Code.VALIDATION_INVALID_TYPE, message)
        found[name] = value
    unknown = [name for name in members if name not in DECLARATION.by_name]
    if unknown and strict:
        message = f"Unknown parameter(s) for operation 'introspect': {', '.join(unknown)}. It takes: "
        return failure(Code.VALIDATION_UNKNOWN_PARAM, message + ", ".join(DECLARATION.by_name))
    if found["query"] not in QUERIES:
        message = f"Unknown query '{found['query'][:100]}'. Valid: 'operations', 'types'"
        return failure(Code.INVALID_QUERY_TYPE, message)
    first = found.get("first")
    if first is not None and not 1 <= first <= PAGE_MAX:
        return failure(Code.VALIDATION_INVALID_VALUE, f"Parameter 'first': it must be from 1 to {PAGE_MAX}")
    return Query(**found)


def operation_info(name: str, category: Category, endpoint: str, summary: str) -> dict[str, str]:
    return {"name": name, "semantic_category": category.value, "endpoint": endpoint, "description": summary}


def operation_details(operation: Operation, endpoints: Endpoints) -> dict[str, Any]:
    permissions = operation.permissions
    shown: dict[str, Any] = {
        "name": operation.name,
        "semantic_category": operation.category.value,
        "endpoint": endpoints.profile.family_of(operation),
        "mcpTool": endpoints.tool_of(operation),
        "description": operation.description,
        "permissions": {"readOnly": permissions.read_only, "destructive": permissions.destructive},
        "parameters": [parameter.info() for parameter in operation.parameters],
        "returns": operation.returns.info(),
        "examples": [_shown(example) for example in operation.examples or (example_of(operation),)],
    }
    if operation.computed_fields:
        shown["computed_fields"] = list(operation.computed_fields)
    if operation.lifecycle is not None:
        shown["lifecycle"] = msgspec.to_builtins(operation.lifecycle)
    return shown


def _shown(example: Example) -> dict[str, Any]:
    said: dict[str, Any] = {"request": example.request}
    if example.description:
        said["description"] = example.description
    return said
