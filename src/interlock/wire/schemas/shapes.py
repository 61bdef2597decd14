"""The shape of a JSON Schema, for comparing: the schemas that all have to hold for a value, and the types they leave.

A `Side` is one schema of a comparison. `Side.shape` resolves `$ref` and `allOf` into a list of parts that must all
hold, and computes the types that are left. Types are sets, in which a number is an integer or a fraction, so that
"integer" is contained in "number".

References are followed inside the schema alone. A reference that leads elsewhere, nowhere or in a circle is a schema
about which nothing is known; the shape then says so (`is_followed`). Rules that may exclude values in ways that are not
compared, such as `not`, make a shape unclear (`is_clear`): a comparison may then be undecided, but never wrong.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.wire.schemas.budget import ALONE_BYTES_MAX
from interlock.wire.schemas.validators import Compiled, compile_schema, is_bounded, reference_target

DEPTH_MAX: Final = 32  # AIP-tools-5
PARTS_MAX: Final = 256  # of one allOf, with what it refers to
LISTED_PER_STEP: Final = 16  # values or branches that are looked at in one step
PATTERN_COST: Final = 100  # steps of applying a schema with a pattern, which may go back and forth

SAYS_NOTHING: Final = frozenset(["title", "description", "default", "examples", "deprecated", "$comment"])
_PLAIN: Final = frozenset(["type", "enum", "const", *SAYS_NOTHING])

# "fraction" is a number that is no integer, so that types are sets: number is both.
EVERYTHING: Final = frozenset(["null", "boolean", "object", "array", "string", "integer", "fraction"])
_MEANT: Final = {
    **{name: frozenset([name]) for name in EVERYTHING - {"fraction"}},
    "number": frozenset(["integer", "fraction"]),
}
# What may leave out values of a type in ways that are not compared.
_VEILS: Final = frozenset(["not", "if", "oneOf", "$dynamicRef", "$recursiveRef"])
_LISTS: Final = frozenset(["enum", "anyOf", "oneOf"])
_TOGETHER: Final = frozenset(["$ref", "allOf"])  # what makes one schema several
_NARROWS: Final = frozenset(["const", "enum", "multipleOf"])  # types, beside `type`
_OLD: Final = ("draft-03", "draft-04", "draft-06", "draft-07")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for the value at one place of a JSON Schema: all schemas that it must satisfy, including those that
    `$ref` and `allOf` add.
    """

    parts: tuple[Mapping[str, Any], ...] = ()
    types: frozenset[str] = EVERYTHING
    is_clear: bool = True  # False: something in it leaves out values in ways that are not compared
    is_followed: bool = True  # False: a reference in it leads elsewhere, nowhere or in a circle

    @property
    def values(self) -> tuple[Any, ...] | None:
        """Return the values that `const`, `enum` or the types list as the only possible ones. Return None if these
        schemas contain no such list.
        """
        for part in self.parts:
            if "const" in part:
                return (part["const"],)
            if isinstance(part.get("enum"), list):
                return tuple(part["enum"])
        if self.types and self.types <= {"null", "boolean"}:
            listed: tuple[Any, ...] = (None,) if "null" in self.types else ()
            return (*listed, False, True) if "boolean" in self.types else listed
        return None

    @property
    def steps(self) -> int:
        """Return how many steps the listed values and branches of these schemas cost a comparison."""
        if all(map(_LISTS.isdisjoint, self.parts)):
            return 0
        listed = (part.get(key) for part in self.parts for key in _LISTS)
        return sum(len(each) for each in listed if isinstance(each, list)) // LISTED_PER_STEP

    def all_of(self, key: str) -> tuple[Any, ...]:
        return tuple(part[key] for part in self.parts if key in part)

    def names(self) -> dict[str, tuple[Any, ...]]:
        """Return the named properties, each with the schemas that its value must satisfy."""
        schemas: dict[str, tuple[Any, ...]] = {}
        for each in self.all_of("properties"):
            if isinstance(each, Mapping):
                for name, schema in each.items():
                    schemas[name] = (*schemas.get(name, ()), schema)
        return schemas

    def required(self) -> list[str]:
        listed = [name for each in self.all_of("required") if isinstance(each, list) for name in each]
        return list(dict.fromkeys(name for name in listed if isinstance(name, str)))

    def shuts_out(self, name: str) -> bool:
        """Return whether the schemas forbid a property of this name: they do not name it, and allow no unnamed
        properties.
        """
        return any(
            part.get("additionalProperties") is False
            and name not in part.get("properties", {})
            and not part.get("patternProperties")
            for part in self.parts
        )


class Side:
    """A side of a comparison of two schemas: one complete schema, whose inner references are followed."""

    def __init__(self, root: Any, *, is_small: bool = False, has_booleans: bool = True) -> None:
        """Create a side of a comparison.

        `is_small` says that the schema has no references and needs no size check (`is_bounded`). `has_booleans` is
        False if neither true nor false occurs in the schema.
        """
        self.root = root
        dialect = root.get("$schema") if isinstance(root, Mapping) else None
        # Up to draft-07 what stands beside a $ref is not read.
        self._ref_alone = isinstance(dialect, str) and any(each in dialect for each in _OLD)
        self._compiled: dict[int, tuple[Any, Compiled | None]] = {}
        self._bytes_left = ALONE_BYTES_MAX  # of the parts that are still compiled to be applied alone
        # By its id, with the branch itself, so that the id is its own. One that leads back to itself can be anything.
        self._known_types: dict[int, tuple[Any, frozenset[str]]] = {}
        self._has_patterns: bool | None = None
        self.is_small = is_small
        self.has_booleans = has_booleans
        self.is_bounded = is_small or is_bounded(root)

    def shape(self, *schemas: Any) -> Shape:
        """Return the shape of the values that satisfy all these schemas, in which references and `allOf`
        are resolved.
        """
        if len(schemas) == 1 and type(schemas[0]) is dict and _TOGETHER.isdisjoint(schemas[0]):
            return Shape(parts=schemas, types=self._types(schemas, 0), is_clear=not _is_veiled(schemas))
        parts: list[Mapping[str, Any]] = []
        never, clear = False, True
        waiting: list[tuple[Any, frozenset[str]]] = [(schema, frozenset()) for schema in reversed(schemas)]
        while waiting:
            schema, seen = waiting.pop()
            if not isinstance(schema, Mapping):
                never = never or schema is False
                continue
            if len(parts) + len(waiting) > PARTS_MAX:
                clear = False
                break
            reference = schema.get("$ref")
            if isinstance(reference, str):
                target = reference_target(self.root, reference)
                if target is None or reference in seen or len(seen) > DEPTH_MAX:
                    clear = False
                else:
                    waiting.append((target[0], seen | {reference}))
                if self._ref_alone:
                    continue
            together = schema.get("allOf")
            if isinstance(together, list):
                waiting.extend((each, seen) for each in reversed(together[: PARTS_MAX + 1]))
            parts.append(schema)
        types = frozenset[str]() if never else self._types(parts, 0)
        return Shape(parts=tuple(parts), types=types, is_clear=clear and not _is_veiled(parts), is_followed=clear)

    def accepts(self, value: Any, *schemas: Any) -> bool | None:
        """Return whether a value satisfies all of these schemas, which are parts of this side. Return None if one of
        them cannot be applied by itself.
        """
        unsure = False
        for schema in schemas:
            if isinstance(schema, Mapping) and schema.keys() <= _PLAIN:
                if not _is_plainly(value, schema):
                    return False
                continue
            compiled = self._alone(schema)
            if compiled is None:
                return None
            if not compiled.accepts(value):
                return False
            unsure = unsure or not compiled.is_whole
        return None if unsure else True

    def cost(self, *schemas: Any) -> int:
        """Return how many steps one call of `accepts` with these schemas costs a comparison."""
        if all(isinstance(schema, Mapping) and schema.keys() <= _PLAIN for schema in schemas):
            listed = (schema.get("enum") for schema in schemas)
            return 1 + sum(len(each) for each in listed if isinstance(each, list)) // LISTED_PER_STEP
        if self._has_patterns is None:
            self._has_patterns = b'"pattern' in msgspec.json.encode(self.root)
        return PATTERN_COST if self._has_patterns else 1

    def _alone(self, schema: Any) -> Compiled | None:
        entry = self._compiled.get(id(schema))
        if entry is None:
            around = self.root if isinstance(self.root, Mapping) else {}
            shared = {key: around[key] for key in ("$schema", "$defs", "definitions") if key in around}
            alone = {**shared, "allOf": [schema]}
            self._bytes_left -= len(msgspec.json.encode(alone))
            compiled = compile_schema(alone) if self._bytes_left >= 0 else None
            # The schema is kept beside its validator: its id is its own as long as it lives.
            entry = self._compiled[id(schema)] = (schema, compiled)
        return entry[1]

    def _types(self, parts: Iterable[Mapping[str, Any]], depth: int) -> frozenset[str]:
        left = EVERYTHING
        for part in parts:
            left &= _declared_types(part)
            if _LISTS.isdisjoint(part):
                continue
            for key in ("anyOf", "oneOf"):
                branches = part.get(key)
                if isinstance(branches, list) and depth < DEPTH_MAX:
                    left &= frozenset().union(*(self._branch_types(branch, depth + 1) for branch in branches))
        return left

    def _branch_types(self, branch: Any, depth: int) -> frozenset[str]:
        if branch is False:
            return frozenset()
        if not isinstance(branch, Mapping):
            return EVERYTHING
        entry = self._known_types.get(id(branch))
        if entry is None:
            self._known_types[id(branch)] = (branch, EVERYTHING)
            entry = self._known_types[id(branch)] = (branch, self._mapping_types(branch, depth))
        return entry[1]

    def _mapping_types(self, branch: Mapping[str, Any], depth: int) -> frozenset[str]:
        reference = branch.get("$ref")
        if isinstance(reference, str):
            target = reference_target(self.root, reference)
            types = EVERYTHING if target is None or depth > DEPTH_MAX else self._branch_types(target[0], depth + 1)
            return types if self._ref_alone else types & self._types([branch], depth)
        left = self._types([branch], depth)
        together = branch.get("allOf")
        if isinstance(together, list) and depth < DEPTH_MAX:
            for each in together[:PARTS_MAX]:
                left &= self._branch_types(each, depth + 1)
        return left


def alternatives(shape: Shape) -> Iterator[list[tuple[Any, ...]]]:
    """Yield a list of alternatives for each `anyOf` and `oneOf` of a shape. Each alternative is one branch, together
    with the other rules of the shape.
    """
    for chosen in shape.parts:
        for key in ("anyOf", "oneOf"):
            branches = chosen.get(key)
            if isinstance(branches, list):
                rest = tuple(_bare(part, key if part is chosen else "") for part in shape.parts)
                yield [(*rest, branch) for branch in branches]


def _bare(part: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a schema without the keyword `key`. `$ref` and `allOf` are left out too, because the schemas that they add
    are handled separately.
    """
    return {name: value for name, value in part.items() if name not in {key, "$ref", "allOf"}}


def _declared_types(part: Mapping[str, Any]) -> frozenset[str]:
    declared = part.get("type")
    if type(declared) is str and _NARROWS.isdisjoint(part):
        return _MEANT.get(declared, EVERYTHING)
    left = _named_types(declared)
    if "const" in part:
        left &= {kind_of(part["const"])}
    elif isinstance(part.get("enum"), list):
        left &= frozenset(map(kind_of, part["enum"]))
    step = part.get("multipleOf")
    if isinstance(step, int) and not isinstance(step, bool):
        left -= {"fraction"}
    return left


def _named_types(declared: Any) -> frozenset[str]:
    """Return the types that the keyword `type` allows. Its value may be a name or a list of names."""
    names = [declared] if isinstance(declared, str) else declared
    if not isinstance(names, list):
        return EVERYTHING
    return frozenset[str]().union(*(_MEANT.get(name, EVERYTHING) for name in names if isinstance(name, str)))


def types_of(name: str) -> frozenset[str]:
    return _MEANT.get(name, EVERYTHING)


def _is_plainly(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value satisfies a schema that consists only of a type and listed values."""
    kind = kind_of(value)
    if "const" in schema and not _is_equal(value, kind, schema["const"]):
        return False
    listed = schema.get("enum")
    if isinstance(listed, list) and not any(_is_equal(value, kind, each) for each in listed):
        return False
    return kind in _named_types(schema.get("type"))


def _is_equal(value: Any, kind: str, other: Any) -> bool:
    """Compare two values as JSON Schema does: 1 equals 1.0, but does not equal true."""
    if kind != kind_of(other):
        return False
    if kind == "array":
        return len(value) == len(other) and all(map(_is_alike, value, other))
    if kind == "object":
        return bool(value.keys() == other.keys()) and all(_is_alike(value[name], other[name]) for name in value)
    return bool(value == other)


def _is_alike(value: Any, other: Any) -> bool:
    return _is_equal(value, kind_of(value), other)


def kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list() | tuple():
            return "array"
    return "object"


def _is_veiled(parts: Iterable[Mapping[str, Any]]) -> bool:
    return not all(map(_VEILS.isdisjoint, parts))


def types_shown(types: frozenset[str]) -> str:
    """Return a set of types as text for a message, such as `string or null`."""
    if types == EVERYTHING:
        return "any type"
    names = ["number" if name == "fraction" else name for name in sorted(types)]
    if "number" in names and "integer" in names:
        names.remove("integer")
    return " or ".join(sorted(names)) or "nothing"
