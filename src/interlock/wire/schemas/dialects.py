"""A JSON Schema of an older draft, said in 2020-12: what it accepted and rejected stays the same (AIP-author-4).

The dialect is what $schema names; without it a schema is 2020-12 already and passes as it is. Nothing is fetched. What
the older draft ignored (assertions beside a $ref, keywords it had not) is left out, for 2020-12 would not ignore it.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

DEPTH_MAX: Final = 100  # deeper ones stay as they are, and no frontmatter holds them

_OLDER: Final = ("draft-04", "draft-05", "draft-06", "draft-07", "draft/2019-09")
_ONE: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_MANY: Final = ("allOf", "anyOf", "oneOf")
_NAMED: Final = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_BESIDE_REF: Final = (  # what says nothing about a value, and what references lead to
    "$comment",
    "$defs",
    "$ref",
    "default",
    "definitions",
    "description",
    "examples",
    "title",
)
_SINCE_2019: Final = (
    "$anchor",
    "$recursiveAnchor",
    "$recursiveRef",
    "dependentRequired",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SINCE_2020: Final = ("$dynamicAnchor", "$dynamicRef", "prefixItems")


def to_2020_12(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrite a schema of an older draft for 2020-12, without its $schema."""
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
    def __init__(self, root: Mapping[str, Any], dialect: str) -> None:
        self._root = root
        self._is_2019 = dialect == "draft/2019-09"
        self._is_04 = dialect in {"draft-04", "draft-05"}
        self._ignored = _SINCE_2020 if self._is_2019 else (*_SINCE_2019, *_SINCE_2020)

    def schema(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
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
            return self._dependencies(value, depth)
        if key in _NAMED and isinstance(value, Mapping):
            return {self._definition_key(schema, key): {name: self.schema(each, depth) for name, each in value.items()}}
        if key in _MANY and isinstance(value, list):
            return {key: [self.schema(each, depth) for each in value]}
        if key in _ONE or key == "items":
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
        """Return where definitions move: to $defs if it is free. 2020-12 also finds them under their old name."""
        return "$defs" if key == "definitions" and "$defs" not in schema else key

    def _dependencies(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = {name: each for name, each in value.items() if isinstance(each, list)}
        schemas = {name: self.schema(each, depth) for name, each in value.items() if not isinstance(each, list)}
        rewritten: dict[str, Any] = {"dependentRequired": required} if required else {}
        return rewritten | ({"dependentSchemas": schemas} if schemas else {})

    def _moved_pointer(self, reference: str) -> str:
        """Rewrite a pointer into this document to where its target moved. A step may be a keyword, or a name that
        only looks like one.
        """
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
            elif key in _NAMED:
                written[place] = self._definition_key(at, key)
            elif key not in _ONE and key not in _MANY and key != "items":
                break
            if key in _ONE or (key == "items" and not isinstance(value, list)):
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
