"""The operation `introspect` (7): its declaration, its parameters as a query, and its four payloads (C.intro-*).

The specification allows no additional members in any payload: a list item has four, details have those of
OperationDetails. An unknown name is answered null, and failures have a code and a message only. The first part of this
module makes an example for every operation that has none (C.intro-13): a valid request, built from its declaration
alone.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from interlock.aql.protocol.errors import AqlFailure, Code, failure
from interlock.aql.protocol.families import INTROSPECT, AqlEndpoints
from interlock.aql.protocol.model import (
    AqlOperation,
    AqlParameter,
    Category,
    Danger,
    Example,
    Returns,
    TypeDeclaration,
    object_type,
    parameter,
)
from interlock.aql.protocol.requests import OperationRequest, raw_type
from interlock.aql.protocol.tool_operations import integer_in, number_in, text_in
from interlock.wire.jsonrpc.codec import decode_value, find_string
from interlock.wire.schemas.budget import EXAMPLE_STEPS_MAX, Effort, EffortSpent
from interlock.wire.schemas.validators import compile_schema

DEPTH_MAX: Final = 5  # of nested objects in an example
ITEMS_MAX: Final = 3  # of an array in an example, whatever its schema wants at least
TEXT_CHARS_MAX: Final = 1000  # of a text in an example
PATTERN_STEPS: Final = 20  # charged for trying texts against one pattern
PATTERN_CHARS_MAX: Final = 200  # longer patterns of a server are not compiled for an example
_FORMATS: Final[Mapping[str, str]] = {
    "date": "2026-02-04",
    "date-time": "2026-02-04T10:30:00Z",
    "time": "10:30:00Z",
    "email": "ada@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}
# Sample texts for parameters without a format, by a word in their name.
_WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("url", "https://example.com/"),
    ("uri", "https://example.com/"),
    ("path", "/example"),
    ("file", "/example"),
    ("email", "ada@example.com"),
    ("date", "2026-02-04"),
    ("query", "example"),
)


def example_of(operation: AqlOperation) -> Example:
    """Return the first declared example of an operation, or a request with its required parameters."""
    if operation.examples:
        return operation.examples[0]
    types = {declared.name: declared for declared in operation.types}
    defs = operation.arguments_schema or {}
    wanted = [parameter for parameter in operation.parameters if parameter.required]
    effort = Effort(EXAMPLE_STEPS_MAX)
    params: dict[str, Any] = {}
    for each in wanted:
        try:
            params[each.name] = _value(each, types, defs, 0, effort)
        except EffortSpent:
            params[each.name] = {}
    request: dict[str, Any] = {"operation": operation.name}
    if params:
        request["params"] = params
    return Example(request)


def _value(
    parameter: AqlParameter,
    types: Mapping[str, TypeDeclaration],
    root: Mapping[str, Any],
    depth: int,
    effort: Effort,
) -> Any:
    """Return an example value for a parameter, from its type, its enum, its schema or its default, in this order.

    Raise EffortSpent if the example would have too many values.
    """
    effort.spend(1)
    declared = types.get(parameter.type.split(" | ")[0])
    if declared is not None and declared.kind == "object" and depth < DEPTH_MAX:
        fields = [field for field in declared.fields if field.required]
        if not fields and parameter.name == "input":
            fields = list(declared.fields[:1])
        return {field.name: _value(field, types, root, depth + 1, effort) for field in fields}
    if declared is not None and declared.kind == "union" and depth < DEPTH_MAX:
        member = AqlParameter(name=parameter.name, type=declared.members[0])
        return _value(member, types, root, depth + 1, effort)
    if declared is not None and declared.kind == "enum" and declared.values:
        return declared.values[0]
    if parameter.enum:
        return parameter.enum[0]
    properties = root.get("properties") if depth == 0 else None
    original = properties.get(parameter.sent_as) if isinstance(properties, Mapping) else None
    if isinstance(original, Mapping):
        for key in ("default", "const"):
            if key in original and original[key] is not None:
                return original[key]
        examples = original.get("examples")
        if isinstance(examples, list) and examples:
            return examples[0]
    if parameter.default is not None and isinstance(parameter.default, str | int | float | bool):
        return parameter.default
    schema = original if isinstance(original, Mapping) else {}
    return _by_type(parameter, parameter.type.split(" | ")[0], schema, effort)


def _by_type(parameter: AqlParameter, kind: str, schema: Mapping[str, Any], effort: Effort, depth: int = 0) -> Any:
    """Return an example value of the JSON type `kind` that is within the limits of a parameter."""
    match kind:
        case "integer" | "number":
            # Return a number within the bounds, and a multiple of what the schema demands.
            is_integer = kind == "integer"
            low, above, step = parameter.minimum, number_in(schema, "exclusiveMinimum"), number_in(schema, "multipleOf")
            if low is None and above is not None:
                low = above + 1
            value: float = 1 if low is None else low
            if parameter.maximum is not None and value > parameter.maximum:
                value = parameter.maximum
            with suppress(OverflowError):  # of a step or a bound that is hardly a number
                value = -(-value // step) * step if step else value
                return int(value) if is_integer or value == int(value) else value
            return 1
        case "boolean":
            return True
        case "array":
            count = min(integer_in(schema, "minItems") or 0, ITEMS_MAX)
            return [_of_schema(parameter.items or {}, effort, depth + 1) for _ in range(count)]
        case "object":
            return _of_schema(schema, effort, depth + 1) if schema.get("required") else {}
        case "null":
            return None
    text = _FORMATS.get(parameter.format or "")
    if text is None:
        text = next((sample for word, sample in _WORDS if word in parameter.name), "example")
    if parameter.pattern is not None:
        effort.spend(PATTERN_STEPS)
        text = _of_pattern(parameter.pattern, text)
    if parameter.min_length is not None and len(text) < parameter.min_length:
        text = text.ljust(min(parameter.min_length, TEXT_CHARS_MAX), "x")
    return text if parameter.max_length is None else text[: parameter.max_length]


# Ordinary texts that are tried in order for a parameter with a pattern.
_CANDIDATES: Final = (
    *("example", "a", "A", "1", "abc", "ABC", "123", "example-1", "example_1", "2026-02-04", "10:30", "1.0.0"),
    *("#abcdef", "https://example.com/", "ada@example.com", "owner/repo", "a/b", "en", "EUR", "en-US", "+4912345678"),
    *("0x1", "v1.0.0", "00000000-0000-4000-8000-000000000000", "a" * 40, "0" * 64, "/example", "x=1", "urn:example:1"),
    *("1h", "10s"),
)


def _of_pattern(pattern: str, text: str) -> str:
    """Return a common example text that matches the pattern, or `text` if none matches."""
    # Python's own expressions may go back and forth for ever over a pattern that a server chose.
    compiled = compile_schema({"pattern": pattern}) if len(pattern) <= PATTERN_CHARS_MAX else None
    if compiled is None:
        return text
    return next((candidate for candidate in (text, *_CANDIDATES) if compiled.accepts(candidate)), text)


def _of_schema(schema: Mapping[str, Any], effort: Effort, depth: int) -> Any:
    """Return an example value for a plain JSON Schema. It supports the schemas that tools use in practice, not all
    schemas. Raise EffortSpent if the example would have too many values.
    """
    effort.spend(1)
    if not isinstance(schema, Mapping):
        return {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    properties = schema.get("properties")
    if kind == "object" or isinstance(properties, Mapping):
        inner = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required") if depth < DEPTH_MAX else None
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        return {name: _of_schema(inner.get(name, {}), effort, depth + 1) for name in names}
    plain = AqlParameter(
        name="value",
        type=kind if isinstance(kind, str) else "string",
        minimum=number_in(schema, "minimum"),
        format=text_in(schema, "format"),
        pattern=text_in(schema, "pattern"),
        min_length=integer_in(schema, "minLength"),
    )
    return _by_type(plain, plain.type, schema, effort, depth) if depth < DEPTH_MAX else {}


# The types of the protocol itself, which every adapter lists (9.1, C.intro-10).


PROTOCOL_TYPES: Final = (
    TypeDeclaration(name="SemanticCategory", kind="enum", values=tuple(category.value for category in Category)),
    object_type(
        "OperationInput",
        parameter("operation", "string", "The operation to call.", required=True),
        parameter("params", "object"),
        description="What an endpoint is sent.",
    ),
    TypeDeclaration(name="OperationResult", kind="union", members=("OperationSuccess", "OperationFailure")),
    object_type(
        "OperationSuccess",
        parameter("success", "boolean", "true", required=True),
        parameter("data", "any", required=True),
        parameter("warnings", "array"),
        parameter("_meta", "object"),
    ),
    object_type(
        "OperationFailure",
        parameter("success", "boolean", "false", required=True),
        parameter("error", "object", "code, message and details.", required=True),
        parameter("confirmation", "object", "The token of CONFIRMATION_REQUIRED."),
    ),
    object_type(
        "EndpointPermissions",
        parameter("readOnly", "boolean", required=True),
        parameter("destructive", "boolean", required=True),
    ),
)
DANGER_TYPE: Final = TypeDeclaration(name="DangerLevel", kind="enum", values=tuple(level.word for level in Danger))
FIELDS_TYPE: Final = object_type(
    "FieldSelection",
    parameter("presets", "string", "A named selection.", enum=("minimal", "standard", "full")),
    parameter("fields", "array", "Paths such as id or owner.login.", items={"type": "string"}),
    parameter("computed_fields", "array", "Paths under _computed.", items={"type": "string"}),
    description="What the parameter fields takes: a preset, or paths.",
)
CONTENT_TYPE: Final = object_type(
    "ContentReference",  # AQL-4.7.4-2
    parameter("type", "string", "image, audio, resource or resource_link.", required=True),
    parameter("mime_type", "string"),
    parameter("content_index", "integer", "Its place in content; content[0] is this answer.", required=True),
    description="Content that is no JSON: it stands in the MCP result's content at content_index, as base64.",
)


def protocol_types(
    *, has_danger: bool, has_fields: bool, more: Iterable[TypeDeclaration] = ()
) -> list[TypeDeclaration]:
    """Return the declarations of the types that MCP-AQL itself defines.

    `more` adds the types of optional features that are enabled, such as the safety loop.
    """
    types = [*PROTOCOL_TYPES, CONTENT_TYPE]
    if has_danger:
        types.append(DANGER_TYPE)
    if has_fields:
        types.append(FIELDS_TYPE)
    return [*types, *more]


QUERIES: Final = ("operations", "types")
PAGE: Final = 50  # operations in one answer, if a page was requested without a number
PAGE_MAX: Final = 500
WHOLE_MAX: Final = 100  # larger catalogues are answered in pages
FIRST_PAGE_BYTES: Final = 7000  # of such an answer, so that all of it stays below 8 KB

DECLARATION: Final = AqlOperation(
    name=INTROSPECT,
    category=Category.READ,
    description="Lists operations and types, or shows one with its parameters and an example.",
    parameters=(
        parameter("query", "string", "What to list or show.", required=True, enum=QUERIES),
        parameter("name", "string", "One operation or type: its details; null if unknown."),
        parameter("search", "string", "Words; the operations that fit best come first."),
        parameter("prefix", "string", "Operations whose name begins so."),
        parameter("first", "integer", "At most so many.", minimum=1, maximum=PAGE_MAX),
        parameter("after", "string", "Where the page before ended (_protocol.page_info.next)."),
    ),
    returns=Returns("object", "object", "operations, operation, types or type."),
    examples=(
        Example({"operation": INTROSPECT, "params": {"query": "operations", "search": "read file"}}, "Search"),
        Example({"operation": INTROSPECT, "params": {"query": "operations", "name": INTROSPECT}}, "Details of one"),
    ),
)


class IntrospectQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed parameters of `introspect`."""

    query: str
    name: str | None = None
    search: str | None = None
    prefix: str = ""
    first: int | None = None
    after: str | None = None

    @property
    def is_paged(self) -> bool:
        return self.search is not None or bool(self.prefix) or self.first is not None or self.after is not None


def read_query(request: OperationRequest, *, strict: bool = True) -> IntrospectQuery | AqlFailure:
    """Read the parameters of `introspect`, or return a failure. Unless `strict`, unknown parameters are ignored."""
    members = request.members
    if "query" not in members:
        message = "Missing required parameter 'query'. Expected: string ('operations' or 'types')"
        return failure(Code.VALIDATION_MISSING_PARAM, message)
    values: dict[str, Any] = {}
    for name, raw in members.items():
        parameter = DECLARATION.by_name.get(name)
        if parameter is None:
            continue
        value = decode_value(raw) if parameter.type == "integer" else find_string(raw)
        if value is None or (parameter.type == "integer" and (isinstance(value, bool) or not isinstance(value, int))):
            message = f"Parameter '{name}' expected '{parameter.type}', got '{raw_type(raw)}'"
            return failure(Code.VALIDATION_INVALID_TYPE, message)
        values[name] = value
    unknown = [name for name in members if name not in DECLARATION.by_name]
    if unknown and strict:
        message = f"Unknown parameter(s) for operation 'introspect': {', '.join(unknown)}. It takes: "
        return failure(Code.VALIDATION_UNKNOWN_PARAM, message + ", ".join(DECLARATION.by_name))
    if values["query"] not in QUERIES:
        message = f"Unknown query '{values['query'][:100]}'. Valid: 'operations', 'types'"
        return failure(Code.INVALID_QUERY_TYPE, message)
    first = values.get("first")
    if first is not None and not 1 <= first <= PAGE_MAX:
        return failure(Code.VALIDATION_INVALID_VALUE, f"Parameter 'first': it must be from 1 to {PAGE_MAX}")
    return IntrospectQuery(**values)


def operation_info(name: str, category: Category, endpoint: str, summary: str) -> dict[str, str]:
    return {"name": name, "semantic_category": category.value, "endpoint": endpoint, "description": summary}


def operation_details(operation: AqlOperation, endpoints: AqlEndpoints) -> dict[str, Any]:
    """Return the OperationDetails of an operation: everything that a client needs to call it."""
    shown: dict[str, Any] = {
        "name": operation.name,
        "semantic_category": operation.category.value,
        "endpoint": endpoints.profile.family_of(operation),
        "mcpTool": endpoints.tool_of(operation),
        "description": operation.description,
        "permissions": msgspec.to_builtins(operation.permissions),
        "parameters": [parameter.info() for parameter in operation.parameters],
        "returns": operation.returns.info(),
        "examples": [msgspec.to_builtins(example) for example in operation.examples or (example_of(operation),)],
    }
    if operation.lifecycle is not None:
        shown["lifecycle"] = msgspec.to_builtins(operation.lifecycle)
    return shown
