"""JSON Schemas in one dialect, and their digest: the same for schemas that mean the same (REG-8.1-3, AIP-author-4).

`to_2020_12` rewrites a schema of an older draft, which `$schema` names, so that it accepts and rejects the same values
under 2020-12. Keywords that the older draft ignored (assertions beside a `$ref`, keywords that it did not have) are
removed, because 2020-12 would not ignore them. Nothing is fetched.

`normalised` rewrites a schema on top of that: descriptions are dropped, lists that are sets are sorted, and references
inside the schema are replaced by their targets. A recursive reference stays, with the definitions that it needs.
`default` stays, because it changes what a call does. If the schema would become too large, all references stay.
`schema_digest` is the SHA-256 of the canonical JSON of the result. Two schemas with different digests may still mean
the same; `inclusion` compares them.
"""

import contextlib
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from interlock.wire.jsontext.canonical import NotCanonical, canonical
from interlock.wire.schemas.budget import DEPTH_MAX, RESOLVED_MAX, VALUES_MAX, Effort
from interlock.wire.schemas.validators import OF_MANY, OF_NAMED, OF_ONE, reference_target

OLDER_DEPTH_MAX: Final = 100  # deeper schemas of an older draft stay as they are, and no frontmatter holds them

_OLDER: Final = ("draft-04", "draft-05", "draft-06", "draft-07", "draft/2019-09")
# The keywords with schemas of older drafts.
_OLDER_ONE: Final = OF_ONE - {"contentSchema", "items"}
_OLDER_MANY: Final = OF_MANY - {"items", "prefixItems"}
_OLDER_NAMED: Final = OF_NAMED - {"dependencies"}
# Keywords that count beside a $ref up to draft-07: those that say nothing about a value, and definitions.
_BESIDE_REF: Final = frozenset(
    ["$comment", "$defs", "$ref", "default", "definitions", "description", "examples", "title"]
)
_SINCE_2020: Final = frozenset(["$dynamicAnchor", "$dynamicRef", "prefixItems"])
_SINCE_2019: Final = frozenset(
    [
        *("$anchor", "$recursiveAnchor", "$recursiveRef", "dependentRequired", "dependentSchemas"),
        *("maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties"),
    ]
)


def to_2020_12(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrite a JSON Schema of an older draft so that it accepts the same values under the draft 2020-12. The result
    has no `$schema`.
    """
    dialect = schema.get("$schema")
    if dialect is None and "$schema" not in schema:
        return dict(schema)
    rest = {key: value for key, value in schema.items() if key != "$schema"}
    older = next((each for each in _OLDER if isinstance(dialect, str) and each in dialect), None)
    if older is None:
        return rest
    written: dict[str, Any] = _Rewriting(rest, older).schema(rest, 0)
    return written


class _Rewriting:
    """Rewriting of one JSON Schema from an older draft to the draft 2020-12."""

    def __init__(self, root: Mapping[str, Any], dialect: str) -> None:
        self._root = root
        self._is_2019 = dialect == "draft/2019-09"
        self._is_04 = dialect in {"draft-04", "draft-05"}
        self._ignored = _SINCE_2020 if self._is_2019 else _SINCE_2019 | _SINCE_2020

    def schema(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > OLDER_DEPTH_MAX:
            return schema
        alone = isinstance(schema.get("$ref"), str) and not self._is_2019
        rewritten: dict[str, Any] = {}
        for key, value in schema.items():
            if key in self._ignored or (alone and key not in _BESIDE_REF):
                continue
            rewritten |= self._keyword(schema, key, value, depth + 1)
        return rewritten

    def _keyword(self, schema: Mapping[str, Any], key: str, value: Any, depth: int) -> dict[str, Any]:
        tuples = isinstance(schema.get("items"), list)
        if key == "items" and tuples:
            return {"prefixItems": [self.schema(each, depth) for each in value]}
        if key == "additionalItems":
            return {"items": self.schema(value, depth)} if tuples else {}
        if key == "dependencies" and isinstance(value, Mapping):
            required = {name: each for name, each in value.items() if isinstance(each, list)}
            schemas = {name: self.schema(each, depth) for name, each in value.items() if not isinstance(each, list)}
            rewritten: dict[str, Any] = {"dependentRequired": required} if required else {}
            return rewritten | ({"dependentSchemas": schemas} if schemas else {})
        if key in _OLDER_NAMED and isinstance(value, Mapping):
            return {self._definition_key(schema, key): {name: self.schema(each, depth) for name, each in value.items()}}
        if key in _OLDER_MANY and isinstance(value, list):
            return {key: [self.schema(each, depth) for each in value]}
        if key in _OLDER_ONE or key == "items":
            return {key: self.schema(value, depth)}
        if key in {"$ref", "$recursiveRef"} and isinstance(value, str):
            return {"$ref": self._moved_pointer(value)}
        if key == "$recursiveAnchor":
            return {}
        identifier = "id" if self._is_04 else "$id"
        if key == identifier and isinstance(value, str):
            return {"$anchor": value[1:]} if value.startswith("#") else {"$id": value}
        if self._is_04 and key in {"exclusiveMinimum", "exclusiveMaximum"} and isinstance(value, bool):
            limit = schema.get(_LIMITS[key])
            return {key: limit} if value and limit is not None else {}
        return {key: value}

    def _definition_key(self, schema: Mapping[str, Any], key: str) -> str:
        """Return the keyword that replaces `key` in the rewritten schema. Only `definitions` is replaced, by `$defs`,
        and only if the schema does not have both.
        """
        return "$defs" if key == "definitions" and "$defs" not in schema else key

    def _moved_pointer(self, reference: str) -> str:
        """Return a reference into the schema, adapted to where its target is after the schema has been rewritten."""
        if not reference.startswith("#/"):
            return reference
        written = reference[2:].split("/")
        steps = [unquote(each).replace("~1", "/").replace("~0", "~") for each in written]
        at: Any = self._root
        place = 0
        while place < len(steps) and isinstance(at, Mapping):
            key, value = steps[place], at.get(steps[place])
            inner = steps[place + 1] if place + 1 < len(steps) else None
            if key == "items" and isinstance(value, list):
                written[place] = "prefixItems"
            elif key == "additionalItems" and isinstance(at.get("items"), list):
                written[place] = "items"
            elif key == "dependencies" and isinstance(value, Mapping) and inner is not None:
                written[place] = "dependentRequired" if isinstance(value.get(inner), list) else "dependentSchemas"
            elif key in _OLDER_NAMED:
                written[place] = self._definition_key(at, key)
            elif key not in _OLDER_ONE and key not in _OLDER_MANY and key != "items":
                break
            if key in _OLDER_ONE or (key == "items" and not isinstance(value, list)):
                at, place = value, place + 1
                continue
            at, place = _inside(value, inner), place + 2
        return "#/" + "/".join(written)


_LIMITS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _inside(value: Any, step: str | None) -> Any:
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, list) and step is not None and step.isdigit() and int(step) < len(value):
        return value[int(step)]
    return None


_ONE: Final = OF_ONE - {"additionalItems"}
_MANY: Final = OF_MANY - {"items"}
_NAMED: Final = frozenset(["dependentSchemas", "patternProperties", "properties"])
_DROPPED: Final = frozenset(
    ["title", "description", "$comment", "examples", "deprecated", "$id", "$schema", "$defs", "definitions"]
)
_SETS: Final = frozenset(["required", "enum", "type"])
_WITHOUT_SCHEMAS: Final = frozenset(
    [
        *("const", "default", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "$ref"),
    ]
)
_TEXT: Final = msgspec.json.Encoder(order="deterministic")
_NUMBERS: Final = re.compile(rb"[0-9](?:[.eE]|[0-9]{15})")  # that RFC 8785 may write otherwise


VALUES_PER_STEP: Final = 4


class _TooLarge(Exception):
    """Error for a schema that has more values than may be visited."""


def schema_digest(schema: Any) -> str:
    """Return a digest that is the same for schemas which differ only in descriptions, order and other things without
    meaning.
    """
    return normalised_digest(normalised(schema))


def normalised_digest(schema: Any) -> str:
    text = _TEXT.encode(schema)
    if not text.isascii() or _NUMBERS.search(text):  # for all others it is the canonical form already
        with contextlib.suppress(NotCanonical):  # a schema has a digest whatever is in it
            text = canonical(schema)
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def normalised(schema: Any, effort: Effort | None = None) -> Any:
    """Return a JSON Schema in the draft 2020-12 without everything that does not change its meaning, such as
    descriptions. Raise EffortSpent if `effort` is used up.
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
    """Normalisation of one JSON Schema. It fails if the schema has too many values."""

    def __init__(self, root: Mapping[str, Any], values_max: int, *, resolves: bool) -> None:
        self._root = root
        self._resolves = resolves
        self._max = values_max
        self.values = 0  # that were looked at
        self._following: list[str] = []  # references that are being replaced
        self._kept: set[str] = set()  # references that stay
        self._waiting: list[str] = []  # those of them whose definitions are still to be written

    def whole(self) -> Any:
        result = self._schema(self._root, 0)
        definitions: dict[str, Any] = {}
        while self._waiting:
            reference = self._waiting.pop()
            target = reference_target(self._root, reference)
            if target is not None:
                self._following = [reference]
                definitions[reference] = self._schema(target[0], 0)
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
            if reference not in self._kept and reference != "#":
                self._waiting.append(reference)
            self._kept.add(reference)
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
