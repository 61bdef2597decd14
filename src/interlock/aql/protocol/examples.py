"""A valid request for every operation, made from its declaration alone (C.intro-13)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from interlock.aql.protocol.model import Example, Operation, Parameter, TypeDeclaration

DEPTH_MAX: Final = 5
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
_WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("url", "https://example.com/"),
    ("uri", "https://example.com/"),
    ("path", "/example"),
    ("file", "/example"),
    ("email", "ada@example.com"),
    ("date", "2026-02-04"),
    ("query", "example"),
)


def example_of(operation: Operation) -> Example:
    """Its required parameters, and one more where it has none."""
    if operation.examples:
        return operation.examples[0]
    types = {declared.name: declared for declared in operation.types}
    defs = operation.arguments_schema or {}
    wanted = [one for one in operation.parameters if one.required]
    params = {one.name: _value(one, types, defs, 0) for one in wanted}
    request: dict[str, Any] = {"operation": operation.name}
    if params:
        request["params"] = params
    return Example(request)


def _value(parameter: Parameter, types: Mapping[str, TypeDeclaration], root: Mapping[str, Any], depth: int) -> Any:
    declared = types.get(parameter.type.split(" | ")[0])
    if declared is not None and declared.kind == "object" and depth < DEPTH_MAX:
        fields = [field for field in declared.fields if field.required]
        if not fields and parameter.name == "input":
            fields = list(declared.fields[:1])
        return {field.name: _value(field, types, root, depth + 1) for field in fields}
    if declared is not None and declared.kind == "union" and depth < DEPTH_MAX:
        member = Parameter(name=parameter.name, type=declared.members[0])
        return _value(member, types, root, depth + 1)
    if declared is not None and declared.kind == "enum" and declared.values:
        return declared.values[0]
    if parameter.enum:
        return parameter.enum[0]
    original = (root.get("properties") or {}).get(parameter.sent_as) if depth == 0 else None
    if isinstance(original, Mapping):
        for key in ("default", "const"):
            if key in original and original[key] is not None:
                return original[key]
        given = original.get("examples")
        if isinstance(given, list) and given:
            return given[0]
    if parameter.default is not None and isinstance(parameter.default, str | int | float | bool):
        return parameter.default
    return _by_type(parameter, parameter.type.split(" | ")[0], original if isinstance(original, Mapping) else {})


def _by_type(parameter: Parameter, kind: str, schema: Mapping[str, Any]) -> Any:
    match kind:
        case "integer" | "number":
            return _number(parameter, schema, is_integer=kind == "integer")
        case "boolean":
            return True
        case "array":
            items = parameter.items or {}
            count = schema.get("minItems", 0)
            return [_of_schema(items) for _ in range(count if isinstance(count, int) else 0)]
        case "object":
            return _of_schema(schema) if schema.get("required") else {}
        case "null":
            return None
    return _text(parameter)


def _number(parameter: Parameter, schema: Mapping[str, Any], *, is_integer: bool) -> Any:
    low = parameter.minimum
    above = schema.get("exclusiveMinimum")
    if low is None and isinstance(above, int | float) and not isinstance(above, bool):
        low = above + 1
    step = schema.get("multipleOf")
    value: float = 1 if low is None else low
    if parameter.maximum is not None and value > parameter.maximum:
        value = parameter.maximum
    if isinstance(step, int | float) and step:
        value = -(-value // step) * step
    return int(value) if is_integer or value == int(value) else value


def _text(parameter: Parameter) -> str:
    text = _FORMATS.get(parameter.format or "")
    if text is None:
        text = next((said for word, said in _WORDS if word in parameter.name), "example")
    if parameter.pattern is not None:
        text = _of_pattern(parameter.pattern, text)
    if parameter.min_length is not None and len(text) < parameter.min_length:
        text = text.ljust(parameter.min_length, "x")
    return text if parameter.max_length is None else text[: parameter.max_length]


_CANDIDATES: Final = (
    *(
        "example",
        "a",
        "A",
        "1",
        "abc",
        "ABC",
        "123",
        "example-1",
        "example_1",
        "2026-02-04",
        "10:30",
        "1.0.0",
        "#abcdef",
    ),
    *(
        "https://example.com/",
        "ada@example.com",
        "owner/repo",
        "a/b",
        "en",
        "EUR",
        "en-US",
        "+4912345678",
        "0x1",
        "v1.0.0",
    ),
    *("00000000-0000-4000-8000-000000000000", "a" * 40, "0" * 64, "/example", "x=1", "urn:example:1", "1h", "10s"),
)


def _of_pattern(pattern: str, text: str) -> str:
    """One of a few ordinary texts that the pattern takes; the text itself where none does."""
    if len(pattern) > 200:
        return text
    try:
        compiled = re.compile(pattern)
    except re.error:
        return text
    return next((one for one in (text, *_CANDIDATES) if compiled.search(one)), text)


def _of_schema(schema: Mapping[str, Any], depth: int = 0) -> Any:
    """A value of a plain JSON Schema; good for what tools really declare, not for every schema."""
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
        return {name: _of_schema(inner.get(name, {}), depth + 1) for name in required or ()}
    low = schema.get("minimum")
    plain = Parameter(
        name="value",
        type=kind if isinstance(kind, str) else "string",
        minimum=low if isinstance(low, int | float) else None,
        format=schema.get("format") if isinstance(schema.get("format"), str) else None,
        pattern=schema.get("pattern") if isinstance(schema.get("pattern"), str) else None,
        min_length=schema.get("minLength") if isinstance(schema.get("minLength"), int) else None,
    )
    return _by_type(plain, plain.type, schema)
