"""The digest of a JSON Schema: the same for schemas that say the same in other words (REG-8.1-3).

What only describes is dropped, lists that are sets are sorted, references inside the schema are replaced by what they
lead to. A reference that leads back to itself stays, with the definitions it needs. `default` stays: it changes what a
call does. Where replacing them would make the schema too large, all references stay.
"""

import contextlib
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.wire.jsontext.canonical import NotCanonical, canonical
from interlock.wire.schemas.bounds import DEPTH_MAX, VALUES_MAX, reference_target
from interlock.wire.schemas.dialects import to_2020_12
from interlock.wire.schemas.inclusion import Effort

_DESCRIBES: Final = frozenset(["title", "description", "$comment", "examples", "deprecated", "$id", "$schema"])
_ONE: Final = frozenset(
    [
        *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    ]
)
_MANY: Final = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_NAMED: Final = frozenset(["dependentSchemas", "patternProperties", "properties"])
_DROPPED: Final = _DESCRIBES | {"$defs", "definitions"}
_SETS: Final = frozenset(["required", "enum", "type"])
_WITHOUT_SCHEMAS: Final = frozenset(
    [
        *("const", "default", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "$ref"),
    ]
)
_TEXT: Final = msgspec.json.Encoder(order="deterministic")
_NUMBERS: Final = re.compile(rb"[0-9](?:[.eE]|[0-9]{15})")  # that RFC 8785 may write otherwise


RESOLVED_MAX: Final = 5_000  # values of a schema whose references are replaced
VALUES_PER_STEP: Final = 4


class _TooLarge(Exception):
    """More values than a schema may have."""


def schema_digest(schema: Any) -> str:
    """Return `sha256:` and the hash of the canonical JSON of the normalised schema."""
    return normalised_digest(normalised(schema))


def normalised_digest(schema: Any) -> str:
    text = _TEXT.encode(schema)
    if not text.isascii() or _NUMBERS.search(text):  # for all others it is the canonical form already
        with contextlib.suppress(NotCanonical):  # a schema has a digest whatever is in it
            text = canonical(schema)
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def normalised(schema: Any, effort: Effort | None = None) -> Any:
    """Rewrite a schema for 2020-12 without anything that does not change its meaning. Raise EffortSpent if the given
    effort is used up.
    """
    if not isinstance(schema, Mapping):
        return schema
    root = to_2020_12(schema)
    for values_max, resolves in ((RESOLVED_MAX, True), (VALUES_MAX, False)):
        work = _Normalising(root, values_max, resolves=resolves)
        try:
            return work.whole()
        except (_TooLarge, RecursionError):
            continue
        finally:
            if effort is not None:
                effort.spend(work.values // VALUES_PER_STEP)
    return root


class _Normalising:
    def __init__(self, root: Mapping[str, Any], values_max: int, *, resolves: bool) -> None:
        self._root = root
        self._resolves = resolves
        self._max = values_max
        self.values = 0  # that were looked at
        self._following: list[str] = []  # references that are being replaced
        self._kept: dict[str, Any] = {}  # definitions that references still lead to, by the reference

    def whole(self) -> Any:
        result = self._schema(self._root, 0)
        waiting = list(self._kept)
        definitions: dict[str, Any] = {}
        while waiting:
            reference = waiting.pop()
            if reference == "#" or reference in definitions:
                continue
            target = reference_target(self._root, reference)
            if target is not None:
                self._following = [reference]
                definitions[reference] = self._schema(target[0], 0)
                waiting.extend(each for each in self._kept if each not in definitions)
        return {**result, "$defs": definitions} if definitions and isinstance(result, dict) else result

    def _schema(self, schema: Any, depth: int) -> Any:
        self.values += 1
        if self.values > self._max or depth > DEPTH_MAX:
            raise _TooLarge
        if type(schema) is not dict and not isinstance(schema, Mapping):
            return schema
        result: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _WITHOUT_SCHEMAS or (key == "type" and type(value) is str):  # most; they stay as they are
                result[key] = value
            elif key not in _DROPPED and not (key == "required" and value == []):
                result[key] = self._keyword(key, value, depth + 1)
        reference = result.get("$ref")
        return result if reference is None else self._replaced(result, reference, depth)

    def _replaced(self, schema: dict[str, Any], reference: Any, depth: int) -> Any:
        target = reference_target(self._root, reference) if isinstance(reference, str) else None
        if target is None:
            return schema
        if not self._resolves or reference in self._following or reference == "#":
            self._kept[reference] = True
            return schema
        self._following.append(reference)
        resolved = self._schema(target[0], depth + 1)
        self._following.pop()
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if not rest:
            return resolved
        return {**rest, "allOf": [*rest.get("allOf", ()), resolved]}

    def _keyword(self, key: str, value: Any, depth: int) -> Any:
        if key in _ONE:
            return self._schema(value, depth)
        if key in _MANY and isinstance(value, list):
            return [self._schema(each, depth) for each in value]
        if key in _NAMED and isinstance(value, Mapping):
            return {name: self._schema(each, depth) for name, each in value.items()}
        if key in _SETS and isinstance(value, list):
            self.values += len(value)
            items = _sorted_set(value)
            return items[0] if key == "type" and len(items) == 1 else items
        return value


def _sorted_set(values: list[Any]) -> list[Any]:
    if all(type(each) is str for each in values):
        return sorted(set(values))
    return [by_text for _, by_text in sorted({_TEXT.encode(each): each for each in values}.items())]
