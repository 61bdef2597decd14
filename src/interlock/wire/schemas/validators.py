"""JSON Schemas compiled for validation (2020-12 where `$schema` names no other dialect), with nothing ever fetched.

A fault names a pointer and the rule that was broken, never the value, which may be a secret. A reference to another
document is removed, so that it allows everything, and `Compiled.is_whole` says so (AIP-tools-11).

Schemas come from servers, so `find_excess` first counts whether one is small enough to be walked and applied, linear in
its size. A validator follows a reference each time it meets it: a schema of thirty lines in which every definition
refers twice to the next takes a billion steps for one value, and one with fifty thousand references takes a minute to
compile. All values, references and patterns (each of which is compiled) are counted, and the schemas that one value is
compared with at one place when every reference is followed. The limits are in `budget`.

`read_schema` is how a schema that is still text is read for a walk. One beyond the budget is read as `object`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.codec import CodecError, decode_value
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.budget import (
    BACKTRACKS_MAX,
    BYTES_MAX,
    DEPTH_MAX,
    PATTERN_BYTES_MIN,
    PATTERN_CHARS_MAX,
    PATTERNS_BYTES_MAX,
    PATTERNS_MAX,
    REFERENCE_CHARS_MAX,
    REFERENCES_MAX,
    VALUES_MAX,
    WEIGHT_MAX,
)

AS_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}  # what a schema beyond the budget is read as

_HERE_ONE: Final = ("not", "if", "then", "else")
_HERE_MANY: Final = ("allOf", "anyOf", "oneOf")
_HERE_NAMED: Final = ("dependentSchemas", "dependencies")
_HERE: Final = frozenset([*_HERE_ONE, *_HERE_MANY, *_HERE_NAMED])


def find_excess(schema: Any) -> str | None:
    """Return why a JSON Schema is too large to be walked, as the end of a sentence, or None if it may be walked."""
    schemas = []
    patterns: set[str] = set()
    values = references = 0
    waiting = [(schema, 0)]
    while waiting:
        value, depth = waiting.pop()
        values += 1
        is_mapping = type(value) is dict or isinstance(value, Mapping)
        is_container = is_mapping or type(value) is list
        if values > VALUES_MAX or (is_container and len(value) > VALUES_MAX):
            return f"it has more than {VALUES_MAX} values"
        if depth > DEPTH_MAX:
            return f"it is nested deeper than {DEPTH_MAX} levels"
        if is_mapping:
            schemas.append(value)
            if "pattern" in value or "patternProperties" in value:
                patterns.update(_patterns(value))
            reference = value.get("$ref")
            references += reference is not None
            if references > REFERENCES_MAX:
                return f"it has more than {REFERENCES_MAX} references"
            if isinstance(reference, str) and len(reference) > REFERENCE_CHARS_MAX:
                return f"a reference has more than {REFERENCE_CHARS_MAX} characters"
            waiting.extend((each, depth + 1) for each in value.values())
        elif is_container:
            waiting.extend((each, depth + 1) for each in value)
    if len(patterns) > PATTERNS_MAX or any(len(each) > PATTERN_CHARS_MAX for each in patterns):
        return f"it has more than {PATTERNS_MAX} patterns, or one of more than {PATTERN_CHARS_MAX} characters"
    weights: dict[int, int] = {}
    # The schemas around others come first. Innermost first, `_weight` recurses over references alone.
    if any(_weight(schema, each, weights, 0) > WEIGHT_MAX for each in reversed(schemas)):
        return f"its references lead to more than {WEIGHT_MAX} schemas for one value"
    return None


def is_bounded(schema: Any) -> bool:
    """Return whether a JSON Schema is small enough to be walked and to be applied to values."""
    return find_excess(schema) is None


def find_excess_of_text(text: Raw | bytes) -> str | None:
    """Return why a JSON Schema that is still text is too large to be walked, or None if it may be walked.

    Nearly all are so small that counting signs shows it.
    """
    text = bytes(text)
    if len(text) > BYTES_MAX:
        return f"it has more than {BYTES_MAX} bytes"
    openings = text.count(b"{") + text.count(b"[")
    if openings < DEPTH_MAX and openings + text.count(b",") < VALUES_MAX and not _is_referring(text):
        return None
    try:
        return find_excess(decode_value(text))
    except CodecError:
        return "it cannot be read"


def _is_referring(text: bytes) -> bool:
    """Return whether a schema may have references or patterns. Any escape in it may be part of such a keyword."""
    return b"$ref" in text or b"attern" in text or b"\\u" in text


def read_schema(text: Raw | bytes | None) -> Any:
    """Return a decoded JSON Schema, or None if there is none. A schema that is too large or unreadable is replaced by
    the schema of any object.
    """
    if text is None:
        return None
    try:
        return decode_value(text) if find_excess_of_text(text) is None else AS_OBJECT
    except CodecError:
        return AS_OBJECT


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    if isinstance(schema.get("patternProperties"), Mapping):
        yield from schema["patternProperties"]


def reference_target(root: Any, reference: str) -> tuple[Any] | None:
    """Return the schema to which a `$ref` inside the schema `root` leads, wrapped in a tuple. Return None if it leads
    to another document or to nothing.
    """
    if reference == "#":
        return (root,)
    if not reference.startswith("#/"):
        return None
    target = root
    for step in unquote(reference[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if (type(target) is dict or isinstance(target, Mapping)) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and len(name) < 6 and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return (target,)


def _weight(root: Any, schema: Any, weights: dict[int, int], depth: int) -> int:
    """Return how many schemas a validator may apply to one value when it follows every reference. A schema that leads
    back to itself is counted once, and a chain of more than DEPTH_MAX schemas as too many.
    """
    if type(schema) is not dict and not isinstance(schema, Mapping):
        return 1
    if depth > DEPTH_MAX:
        return WEIGHT_MAX + 1
    if id(schema) not in weights:
        weights[id(schema)] = 1
        inner = 1
        for each in _here(root, schema):
            inner += _weight(root, each, weights, depth + 1)
            if inner > WEIGHT_MAX:
                break
        weights[id(schema)] = inner
    return weights[id(schema)]


def _here(root: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    reference = schema.get("$ref")
    target = reference_target(root, reference) if isinstance(reference, str) else None
    if target is not None:
        yield target[0]
    if _HERE.isdisjoint(schema):
        return
    for key in _HERE_ONE:
        if key in schema:
            yield schema[key]
    for key in _HERE_MANY:
        if isinstance(schema.get(key), list):
            yield from schema[key]
    for key in _HERE_NAMED:
        if isinstance(schema.get(key), Mapping):
            yield from schema[key].values()


NAMES_MAX: Final = 10  # in one message

# Keywords whose value is one schema, a list of schemas, or schemas by name.
OF_ONE: Final = frozenset(
    [
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "items", "propertyNames"),
        *("not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
    ]
)
OF_MANY: Final = frozenset(["allOf", "anyOf", "oneOf", "prefixItems", "items"])
OF_NAMED: Final = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)


class SchemaFault(msgspec.Struct, frozen=True, kw_only=True):
    """The first violation of a JSON Schema that was found in a value: its place and the violated rule."""

    pointer: str  # of the first place that fails; empty: the whole value
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer or 'the value'}: {self.reason}"


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON Schema that is compiled for validation."""

    validator: Any
    is_whole: bool = True  # False: it refers to other places, and there everything is allowed

    def accepts(self, value: Any) -> bool:
        try:
            return bool(self.validator.is_valid(value))
        except ValueError:  # deeper than the validator goes, or a text that is no Unicode
            return False

    def find_fault(self, value: Any) -> SchemaFault | None:
        """Return the first violation of the schema, or None if the value is valid."""
        import jsonschema_rs

        try:
            if self.validator.is_valid(value):
                return None
            self.validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            pointer = "".join(f"/{pointer_step(str(step))}" for step in error.instance_path)
            return _fault(pointer, error.kind)
        except ValueError:
            return SchemaFault(pointer="", reason="it is nested too deeply, or holds text that is no Unicode")
        return None


def compile_schema(schema: Any) -> Compiled | None:
    """Compile a JSON Schema for validation. Return None if it is not valid or too large to be applied.

    Schemas that refer to another document are replaced by schemas that allow everything; `is_whole` is then False.
    """
    if not isinstance(schema, Mapping | bool) or not is_bounded(schema):
        return None
    validator = _validator(schema)
    if validator is not None:
        return Compiled(validator=validator)
    rest = rewritten(schema, _without_elsewhere)
    validator = _validator(rest) if rest != schema else None
    return None if validator is None else Compiled(validator=validator, is_whole=False)


def _validator(schema: Any) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            schema,
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(
                backtrack_limit=BACKTRACKS_MAX,
                size_limit=max(PATTERN_BYTES_MIN, PATTERNS_BYTES_MAX // max(1, _count_patterns(schema))),
            ),
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return None


def _count_patterns(schema: Any) -> int:
    return msgspec.json.encode(schema).count(b'"pattern')


def _is_elsewhere(reference: Any) -> bool:
    return isinstance(reference, str) and not reference.startswith("#")


def _without_elsewhere(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema. If it refers to another document, return an empty schema instead, which accepts
    every value.
    """
    return {} if _is_elsewhere(schema.get("$ref")) or _is_elsewhere(schema.get("$dynamicRef")) else schema


def without_format(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema without the keyword `format`, so that formats are not checked."""
    return {key: value for key, value in schema.items() if key != "format"} if "format" in schema else schema


def rewritten(schema: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Return a copy of a JSON Schema in which `change` was applied to the schema and to all schemas inside it."""
    if not isinstance(schema, Mapping):
        return schema
    result = {}
    for key, value in change(schema).items():
        if key in OF_MANY and isinstance(value, list):
            value = [rewritten(each, change) for each in value]
        elif key in OF_NAMED and isinstance(value, Mapping):
            value = {name: rewritten(each, change) for name, each in value.items()}
        elif key in OF_ONE:
            value = rewritten(value, change)
        result[key] = value
    return result


def _fault(pointer: str, kind: Any) -> SchemaFault:
    match kind.name:
        case "required":
            return SchemaFault(pointer=f"{pointer}/{pointer_step(str(kind.value))}", reason="it is missing")
        case "additionalProperties" | "unevaluatedProperties":
            names = ", ".join(quoted(str(each)) for each in sorted(kind.value)[:NAMES_MAX])
            return SchemaFault(pointer=pointer, reason=f"nothing is known of {names}")
        case "type":
            return SchemaFault(pointer=pointer, reason=f"it is not of type {' or '.join(kind.types)}")
        case "enum":
            return SchemaFault(pointer=pointer, reason="it is none of the values allowed")
        case "maximum" | "minimum":
            than = "more" if kind.name == "maximum" else "less"
            return SchemaFault(pointer=pointer, reason=f"it is {than} than {_limit(kind)}")
        case "exclusiveMaximum" | "exclusiveMinimum":
            than = "less" if kind.name == "exclusiveMaximum" else "more"
            return SchemaFault(pointer=pointer, reason=f"it is not {than} than {_limit(kind)}")
        case "maxLength" | "minLength":
            than = "longer" if kind.name == "maxLength" else "shorter"
            return SchemaFault(pointer=pointer, reason=f"it is {than} than {kind.limit} characters")
    return SchemaFault(pointer=pointer, reason=f"it is not as {kind.name} has it")


def _limit(kind: Any) -> int | float:
    limit: int | float = kind.limit
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit
