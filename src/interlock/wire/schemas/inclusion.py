"""Comparison of two JSON Schemas: inclusion and exclusion (AIP-tools-5, -6, -8; REG-8.1-4).

`Comparison.compare` answers whether every value that one schema (the narrow side) allows is allowed by another (the
wide side). Three verdicts are possible: accepted, rejected, undecided.

- Types, enum and const, properties, required and additionalProperties, items, and alternatives are compared.
- Lengths and bounds are accepted if they are equal or narrower. If they are wider, the caller says whether that
  rejects: a server that wants at least one character is not refused for a contract that does not say so.
- Patterns and formats are accepted if they are equal. Everything else is undecided.
- A missing additionalProperties is read as closed on the narrow side. On the wide side the caller says what a property
  is that is neither named nor excluded.

`exclusions` answers whether a value can satisfy both schemas at all. It returns the places at which they exclude each
other; an empty result means that it is possible, not that it is certain. Elements of arrays and members of objects that
exclude each other count, although an empty array or an object without the member would pass: a binding that only ever
works for nothing is a mistake.

Schemas come from servers, so every comparison has a budget of steps (`budget.Effort`). What is charged grows with the
schemas, so a hostile pair ends as soon as a large one. Many pairs of one peer may share one effort.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from interlock.wire.jsontext.canonical import pointer_step
from interlock.wire.schemas.budget import Effort, EffortSpent
from interlock.wire.schemas.shapes import DEPTH_MAX, SAYS_NOTHING, Shape, Side, alternatives, types_of, types_shown

# Schemas that say so little that they are compared at once: a type, or an object of named properties.

NAMES_MAX: Final = 16  # of required properties, each of which is looked for

_TYPE: Final = SAYS_NOTHING | {"type"}
_OBJECT: Final = _TYPE | {"properties", "required", "additionalProperties"}
_OF_MANY_VALUES: Final = ("string", "integer", "number")  # the values of the others can be listed, or nested


def is_plain_type(schema: Any) -> bool:
    return type(schema) is dict and schema.get("type") in _OF_MANY_VALUES and schema.keys() <= _TYPE


def is_plain_object(schema: Any) -> bool:
    """Return whether a schema describes an object only by named properties, so that it can be compared in a quicker
    way.
    """
    if type(schema) is not dict or schema.get("type") != "object" or not schema.keys() <= _OBJECT:
        return False
    properties, required = schema.get("properties"), schema.get("required", [])
    if type(properties) is not dict or not properties or schema.get("additionalProperties", False) is not False:
        return False
    return type(required) is list and len(required) <= NAMES_MAX and all(type(name) is str for name in required)


# The range that lengths and bounds of a JSON Schema leave: of numbers, of lengths, of counts.
#
# Whole numbers are counted in whole steps: an integer above 0.5 is one from 1 on.

LOWER: Final = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
UPPER: Final = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")
_KINDS: Final = {
    **dict.fromkeys(("minLength", "maxLength"), ("length", "minLength", "maxLength")),
    **dict.fromkeys(("minItems", "maxItems"), ("items", "minItems", "maxItems")),
    **dict.fromkeys(("minProperties", "maxProperties"), ("properties", "minProperties", "maxProperties")),
}
_NUMBER: Final = ("number", "minimum", "maximum")


class ValueRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of numbers, lengths or counts that a schema allows. An open end does not belong to the range."""

    kind: str
    low: float = -math.inf
    is_low_open: bool = False
    high: float = math.inf
    is_high_open: bool = False

    @property
    def is_empty(self) -> bool:
        return self.low > self.high or (self.low == self.high and (self.is_low_open or self.is_high_open))

    def is_within(self, other: "ValueRange", lower: bool) -> bool:
        """Return whether this range does not go beyond another one at its lower end or, if `lower` is False, at its
        upper end.
        """
        if lower:
            return self.low > other.low or (self.low == other.low and (self.is_low_open or not other.is_low_open))
        return self.high < other.high or (self.high == other.high and (self.is_high_open or not other.is_high_open))


def limits_of(parts: Iterable[Mapping[str, Any]], key: str, types: frozenset[str]) -> ValueRange | None:
    """Return the range that several schemas allow together. `key` is the keyword of one of its limits, such as
    `maxLength`. Return None if a limit is not a number.
    """
    kind, least, most = _KINDS.get(key, _NUMBER)
    is_whole = kind != "number" or "fraction" not in types
    lows: list[tuple[float, bool]] = [(-math.inf if kind == "number" else 0, False)]
    highs: list[tuple[float, bool]] = [(math.inf, False)]
    for part in parts:
        for name, bounds in ((least, lows), (most, highs)):
            if name in part:
                bounds.append((part[name], False))
        if kind == "number":
            for name, bounds in (("exclusiveMinimum", lows), ("exclusiveMaximum", highs)):
                if name in part:
                    bounds.append((part[name], True))
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value, _ in (*lows, *highs)):
        return None
    if is_whole:
        lows = [(_least_integer(value, is_open), False) for value, is_open in lows]
        highs = [(-_least_integer(-value, is_open), False) for value, is_open in highs]
    low, is_low_open = max(lows)
    high, is_high_open = min(highs, key=lambda each: (each[0], not each[1]))
    return ValueRange(kind=kind, low=low, is_low_open=is_low_open, high=high, is_high_open=is_high_open)


def _least_integer(value: float, is_open: bool) -> float:
    """Return the smallest integer that is not below a value. With `is_open`, return the smallest integer above the
    value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return value
    whole = math.ceil(value)
    return whole + 1 if is_open and whole == value else whole


NAMES_PER_STEP: Final = 16
VALUES_MAX: Final = 1000  # of one list of values that a validator is asked about
DIFFERENCES_MAX: Final = 20
SHOWN_CHARS_MAX: Final = 80
TOO_MUCH: Final = "too much to compare"

_OF_STRINGS: Final = ("minLength", "maxLength", "pattern", "format")
_OF_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_ARRAYS: Final = (
    *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    *("prefixItems", "additionalItems", "unevaluatedItems"),
)
_OF_OBJECTS: Final = (
    *("minProperties", "maxProperties", "unevaluatedProperties", "patternProperties", "propertyNames"),
    *("dependencies", "dependentRequired", "dependentSchemas"),
)
_SAME: Final = tuple(
    key
    for key in (*_OF_STRINGS, *_OF_NUMBERS, *_OF_ARRAYS, *_OF_OBJECTS, "not", "if", "then", "else", "$dynamicRef")
    if key not in LOWER and key not in UPPER
)
_OF_TYPE: Final = {
    **dict.fromkeys(_OF_STRINGS, frozenset(["string"])),
    **dict.fromkeys(_OF_NUMBERS, frozenset(["integer", "fraction"])),
    **dict.fromkeys(_OF_ARRAYS, frozenset(["array"])),
    **dict.fromkeys(_OF_OBJECTS, frozenset(["object"])),
}
# With one of these, values may be so few that a list of them holds them all.
_LIMITS: Final = ("pattern", "format", "multipleOf", *LOWER, *UPPER)


_COMPARED: Final = frozenset([*LOWER, *UPPER, *_SAME])
# What may leave no value at all near a limit.
_MAKES_FEW: Final[Mapping[str, tuple[str, ...]]] = {
    "length": ("pattern", "format"),
    "number": ("multipleOf",),
    "items": ("uniqueItems", "contains", "prefixItems", "unevaluatedItems"),
    "properties": ("properties", "required", "patternProperties", "propertyNames"),
}


class InclusionVerdict(IntEnum):
    """The result of a comparison of two schemas: accepted, undecided or rejected."""

    ACCEPTS = 0
    UNDECIDED = 1
    REJECTS = 2


# The three verdicts, by their short names.
ACCEPTS, UNDECIDED, REJECTS = InclusionVerdict


class SchemaDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of two schemas at one place. In the path, `*` stands for the items of an array."""

    path: str  # a JSON pointer; empty: the whole value
    narrow: str
    wide: str


class InclusionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a comparison of two schemas, with the differences that led to it."""

    verdict: InclusionVerdict = ACCEPTS
    differences: tuple[SchemaDifference, ...] = ()  # why it is not yes: those of the worst verdict


ACCEPTED: Final = InclusionOutcome()


def combine(outcomes: Iterable[InclusionOutcome]) -> InclusionOutcome:
    """Combine the outcomes of comparisons into one, with the worst verdict among them and the differences that led to
    it.
    """
    worst = ACCEPTS
    differences: list[SchemaDifference] = []
    for each in outcomes:
        if each is ACCEPTED:
            continue
        if each.verdict > worst:
            worst, differences = each.verdict, []
        if each.verdict is worst:
            differences.extend(each.differences)
    if worst is ACCEPTS:
        return ACCEPTED
    return InclusionOutcome(verdict=worst, differences=tuple(dict.fromkeys(differences))[:DIFFERENCES_MAX])


def differs(verdict: InclusionVerdict, path: str, narrow: str, wide: str) -> InclusionOutcome:
    return InclusionOutcome(verdict=verdict, differences=(SchemaDifference(path=path, narrow=narrow, wide=wide),))


def includes(
    wide_side: Side,
    wide: Any,
    narrow_side: Side,
    *narrow: Any,
    path: str = "",
    unnamed: InclusionVerdict = UNDECIDED,
    tighter: InclusionVerdict = UNDECIDED,
    effort: Effort | None = None,
) -> InclusionOutcome:
    """Decide whether the schema `wide` allows every value that satisfies all schemas in `narrow`. The verdict is
    UNDECIDED if the schemas are too large to compare.

    `unnamed` is the verdict on a property that the wide side neither names nor excludes: if values flow to the wide
    side, such a property may be lost; otherwise it does no harm. `tighter` is the verdict if the wide side has the
    tighter length or bound.
    """
    if not (narrow_side.is_bounded and wide_side.is_bounded):
        return differs(UNDECIDED, path, TOO_MUCH, TOO_MUCH)
    comparison = _Comparison(narrow_side, wide_side, unnamed, tighter, effort or Effort())
    try:
        return comparison.compare(narrow, wide, path, 0)
    except (EffortSpent, RecursionError):
        return differs(UNDECIDED, path, TOO_MUCH, TOO_MUCH)


class _Comparison:
    """Comparison that decides whether every value that satisfies one schema (the narrow side) also satisfies another
    one (the wide side).
    """

    def __init__(
        self, narrow: Side, wide: Side, unnamed: InclusionVerdict, tighter: InclusionVerdict, effort: Effort
    ) -> None:
        self._narrow, self._wide, self._unnamed, self._tighter = narrow, wide, unnamed, tighter
        self._effort = effort
        self._may_confuse = narrow.has_booleans or wide.has_booleans  # in Python 1 is True
        self._may_refer = not (narrow.is_small and wide.is_small)
        self._referring: dict[int, tuple[Any, bool]] = {}  # by id, with the value itself, so that the id is its own

    def compare(self, narrow: tuple[Any, ...], wide: Any, path: str, depth: int) -> InclusionOutcome:
        self._effort.spend(1)
        if depth > DEPTH_MAX:
            return differs(UNDECIDED, path, TOO_MUCH, TOO_MUCH)
        for each in narrow:
            if self._is_same(each, wide):
                return ACCEPTED
        if len(narrow) == 1:  # most schemas of tools need no more
            if is_plain_type(narrow[0]) and is_plain_type(wide):
                our_types, their_types = types_of(narrow[0]["type"]), types_of(wide["type"])
                if our_types <= their_types:
                    return ACCEPTED
                return differs(REJECTS, path, types_shown(our_types), types_shown(their_types))
            if is_plain_object(narrow[0]) and is_plain_object(wide):
                self._effort.spend(1)
                mine = {name: (schema,) for name, schema in narrow[0]["properties"].items()}
                always = narrow[0].get("required", ())
                return combine(self._properties(mine, always, wide, REJECTS, path, depth))
        ours, theirs = self._narrow.shape(*narrow), self._wide.shape(wide)
        self._effort.spend(2 * len(ours.parts) * len(theirs.parts) + ours.steps + theirs.steps)
        if not ours.types:
            return ACCEPTED
        if not theirs.types:
            return differs(REJECTS, path, types_shown(ours.types), "nothing")
        if ours.values is not None:
            return self._values(ours.values, narrow, wide, path)
        outside = ours.types - theirs.types
        if outside:
            sure = ours.is_clear or not ours.types & theirs.types
            verdict = REJECTS if sure else UNDECIDED
            return differs(verdict, path, types_shown(ours.types), types_shown(theirs.types))
        split = self._compare_branches(ours, wide, path, depth)
        if split is not None:
            return split
        outcomes = [self._part(ours, narrow, part, path, depth) for part in theirs.parts]
        if not theirs.is_followed:
            outcomes.append(differs(UNDECIDED, path, types_shown(ours.types), "a reference that is not followed"))
        return combine(outcomes)

    def _values(self, values: tuple[Any, ...], narrow: tuple[Any, ...], wide: Any, path: str) -> InclusionOutcome:
        refused, unsure = [], len(values) > VALUES_MAX
        cost = self._narrow.cost(*narrow) + self._wide.cost(wide)
        for value in values[:VALUES_MAX]:
            self._effort.spend(cost)
            is_narrow, accepted = self._narrow.accepts(value, *narrow), self._wide.accepts(value, wide)
            if is_narrow is False or accepted is True:
                continue
            if is_narrow is None or accepted is None:
                unsure = True
            else:
                refused.append(value)
        if refused:
            return differs(REJECTS, path, _join_names(refused), "not accepted there")
        if unsure:
            return differs(UNDECIDED, path, "its values", "a schema not applied alone")
        return ACCEPTED

    def _compare_branches(self, ours: Shape, wide: Any, path: str, depth: int) -> InclusionOutcome | None:
        """Compare each branch of an `anyOf` or `oneOf` on the narrow side with the wide side. Return None if the narrow
        side has no branches.
        """
        for branches in alternatives(ours):
            outcome = combine(self.compare(branch, wide, path, depth + 1) for branch in branches)
            if outcome.verdict is REJECTS and not ours.is_clear:
                return InclusionOutcome(verdict=UNDECIDED, differences=outcome.differences)
            return outcome
        return None

    def _part(
        self, ours: Shape, narrow: tuple[Any, ...], part: Mapping[str, Any], path: str, depth: int
    ) -> InclusionOutcome:
        for each in ours.parts:
            if self._is_same(each, part):
                return ACCEPTED
        outcomes = [self._keywords(ours, part, path)]
        if "const" in part or isinstance(part.get("enum"), list):
            listed = [part["const"]] if "const" in part else part["enum"]
            few = not ours.is_clear or any(ours.all_of(limit) for limit in _LIMITS)
            verdict = UNDECIDED if few else REJECTS
            outcomes.append(differs(verdict, path, types_shown(ours.types), f"only {_join_names(listed)}"))
        for key in ("anyOf", "oneOf"):
            if isinstance(part.get(key), list):
                outcomes.append(self._compare_with_choice(ours, narrow, part[key], key, path, depth))
        if "object" in ours.types:
            missing = REJECTS if ours.is_clear else UNDECIDED
            outcomes.extend(self._properties(ours.names(), frozenset(ours.required()), part, missing, path, depth))
            outcomes.append(self._compare_further_properties(ours, part, path, depth))
        if "array" in ours.types and isinstance(part.get("items"), Mapping | bool) and 0 not in ours.all_of("maxItems"):
            items = tuple(each for each in ours.all_of("items") if isinstance(each, Mapping | bool))
            outcomes.append(self.compare(items, part["items"], f"{path}/*", depth + 1))
        return combine(outcomes)

    def _keywords(self, ours: Shape, part: Mapping[str, Any], path: str) -> InclusionOutcome:
        outcomes = []
        for key in part:
            if key not in _COMPARED or not ours.types & _OF_TYPE.get(key, ours.types):
                continue
            mine = ours.all_of(key)
            verdict = UNDECIDED
            if key in LOWER or key in UPPER:
                holds, verdict = self._limit(ours, part, key)
            else:
                holds = any(self._is_same(each, part[key]) for each in mine)
            if not holds and not _is_nothing(key, part[key]):
                description = f"{key} {_join_names(mine)}" if mine else f"no {key}"
                outcomes.append(differs(verdict, path, description, f"{key} {_join_names([part[key]])}"))
        if isinstance(part.get("items"), list) and "array" in ours.types and part["items"] not in ours.all_of("items"):
            outcomes.append(differs(UNDECIDED, path, "an array", "items one by one"))
        return combine(outcomes)

    def _limit(self, ours: Shape, part: Mapping[str, Any], key: str) -> tuple[bool, InclusionVerdict]:
        """Return whether the narrow side allows only values within a limit of the wide side, such as `maxLength`. Also
        return the verdict for the case that it does not.
        """
        mine, theirs = limits_of(ours.parts, key, ours.types), limits_of((part,), key, ours.types)
        if mine is None or theirs is None:
            return any(self._is_same(each, part[key]) for each in ours.all_of(key)), UNDECIDED
        if mine.is_within(theirs, key in LOWER):
            return True, ACCEPTS
        sure = ours.is_clear and not mine.is_empty and not any(ours.all_of(each) for each in _MAKES_FEW[mine.kind])
        return False, self._tighter if sure else UNDECIDED

    def _compare_with_choice(
        self, ours: Shape, narrow: tuple[Any, ...], branches: list[Any], key: str, path: str, depth: int
    ) -> InclusionOutcome:
        """Compare the narrow side with the branches of an `anyOf` or `oneOf` on the wide side. This is done separately
        for each type that the narrow side allows.
        """
        outcomes_by_type = []
        self._effort.spend(len(branches))
        for types in _group_types(ours.types):
            fitting = [branch for branch in branches if types & self._wide.shape(branch).types]
            restriction = ({"type": "number" if "fraction" in types else next(iter(types))},)
            outcomes = [self.compare((*narrow, *restriction), branch, path, depth + 1) for branch in fitting]
            best = min(outcomes, key=lambda each: each.verdict, default=None)
            if best is None:
                outcomes_by_type.append(differs(REJECTS, path, types_shown(types), "none of the alternatives"))
            elif len(outcomes) == 1:
                outcomes_by_type.append(best)
            elif best.verdict is not ACCEPTS or key == "oneOf":
                outcomes_by_type.append(differs(UNDECIDED, path, types_shown(types), f"{key} of {len(branches)}"))
        return combine(outcomes_by_type)

    def _properties(
        self,
        mine: Mapping[str, tuple[Any, ...]],
        always: Collection[str],
        part: Mapping[str, Any],
        missing: InclusionVerdict,
        path: str,
        depth: int,
    ) -> Iterator[InclusionOutcome]:
        """Compare the properties that an object has by name. `mine` are those of the narrow side, of which `always` are
        required. `missing` is the verdict if the wide side requires a property that the narrow side does not.
        """
        self._effort.spend((len(mine) + len(always)) // NAMES_PER_STEP)
        wanted = part.get("required")
        for name in wanted if isinstance(wanted, list) else ():
            if isinstance(name, str) and name not in always:
                yield differs(missing, f"{path}/{pointer_step(name)}", "not always there", "required")
        properties = part.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        for name, schemas in mine.items():
            if name in properties and len(schemas) == 1 and self._is_same(schemas[0], properties[name]):
                self._effort.spend(1)
                continue
            place = f"{path}/{pointer_step(name)}"
            if name in properties:
                yield self.compare(schemas, properties[name], place, depth + 1)
            else:
                yield self._compare_unlisted(schemas, part, place, depth)

    def _compare_unlisted(
        self, schemas: tuple[Any, ...], part: Mapping[str, Any], place: str, depth: int
    ) -> InclusionOutcome:
        """Compare a property that only the narrow side names with the rules of the wide side for unnamed properties."""
        if part.get("patternProperties"):
            return ACCEPTED  # told once, as a keyword
        rest = part.get("additionalProperties")
        if rest is False:
            never = not self._narrow.shape(*schemas).types
            return ACCEPTED if never else differs(REJECTS, place, "a property", "not accepted")
        if isinstance(rest, Mapping):
            return self.compare(schemas, rest, place, depth + 1)
        if rest is None and "properties" in part and self._unnamed is not ACCEPTS:
            return differs(self._unnamed, place, "a property", "not named")
        return ACCEPTED

    def _compare_further_properties(
        self, ours: Shape, part: Mapping[str, Any], path: str, depth: int
    ) -> InclusionOutcome:
        """Compare the properties that the narrow side allows although it does not name them with the wide side."""
        mine, theirs = ours.all_of("additionalProperties"), part.get("additionalProperties")
        properties = part.get("properties") if isinstance(part.get("properties"), Mapping) else None
        if False in mine or (not mine and ours.all_of("properties")):
            return ACCEPTED
        if theirs in (None, True) and not properties:
            return ACCEPTED
        if mine and theirs is False:
            verdict = REJECTS if ours.is_clear else UNDECIDED
            return differs(verdict, path, "further properties", "no further properties")
        if mine and isinstance(theirs, Mapping) and not properties:
            return self.compare(mine, theirs, f"{path}/*", depth + 1)
        return differs(UNDECIDED, path, "further properties", "properties of its own")

    def _is_same(self, mine: Any, theirs: Any) -> bool:
        """Return whether two schemas are equal. Schemas with references count as different, because a reference may
        have another target on each side.
        """
        if mine != theirs or (self._may_refer and self._refers(mine)):
            return False
        return not self._may_confuse or _text(mine) == _text(theirs)

    def _refers(self, value: Any) -> bool:
        if not isinstance(value, Mapping | list):
            return False
        entry = self._referring.get(id(value))
        if entry is None:
            inner = value.values() if isinstance(value, Mapping) else value
            refers = isinstance(value, Mapping) and ("$ref" in value or "$dynamicRef" in value)
            entry = self._referring[id(value)] = (value, refers or any(self._refers(each) for each in inner))
        return entry[1]


def _group_types(types: frozenset[str]) -> list[frozenset[str]]:
    numbers = types & {"integer", "fraction"}
    return [frozenset([each]) for each in sorted(types - numbers)] + ([numbers] if numbers else [])


def _is_nothing(key: str, value: Any) -> bool:
    """Return whether a keyword with this value restricts nothing, such as `minLength: 0`."""
    if key in {"minLength", "minItems", "minProperties"}:
        return bool(value == 0)
    return (key == "uniqueItems" and value is False) or value == {} or (key.startswith("unevaluated") and value is True)


def _text(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _join_names(values: Iterable[Any]) -> str:
    text = ", ".join(msgspec.json.encode(each).decode() for each in list(values)[:DIFFERENCES_MAX])
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def exclusions(ours: Side, our_schema: Any, theirs: Side, their_schema: Any) -> tuple[SchemaDifference, ...]:
    """Return the places at which two schemas exclude each other, for example a property that is a string in one and an
    integer in the other. Return nothing if the schemas are too large to compare.
    """
    if not (ours.is_bounded and theirs.is_bounded):
        return ()
    try:
        return tuple(_Meeting(ours, theirs).apart((our_schema,), (their_schema,), "", 0))
    except (EffortSpent, RecursionError):
        return ()


class _Meeting:
    """Search for the places at which two schemas exclude each other, so that no value can satisfy both."""

    def __init__(self, ours: Side, theirs: Side) -> None:
        self._ours, self._theirs = ours, theirs
        self._effort = Effort()

    def apart(self, our: tuple[Any, ...], their: tuple[Any, ...], path: str, depth: int) -> list[SchemaDifference]:
        self._effort.spend(1)
        if depth > DEPTH_MAX:
            return []
        ours, theirs = self._ours.shape(*our), self._theirs.shape(*their)
        self._effort.spend(len(ours.parts) + len(theirs.parts) + ours.steps + theirs.steps)
        common = ours.types & theirs.types
        if not common:
            return [SchemaDifference(path=path, narrow=types_shown(ours.types), wide=types_shown(theirs.types))]
        if self._values_apart(ours, self._theirs, their) or self._values_apart(theirs, self._ours, our):
            return [SchemaDifference(path=path, narrow="its values", wide="none of them")]
        for shape, is_ours in ((ours, True), (theirs, False)):
            for branches in alternatives(shape):
                results = [
                    self.apart(branch, their, path, depth + 1) if is_ours else self.apart(our, branch, path, depth + 1)
                    for branch in branches
                ]
                if results and all(results):
                    return results[0]
        if common == {"object"}:
            differences: list[SchemaDifference] = []
            mine, wanted = ours.names(), theirs.names()
            self._effort.spend((len(mine) + len(wanted)) // NAMES_PER_STEP)
            for requiring, other, narrow, wide in (
                (theirs, ours, "never there", "required"),
                (ours, theirs, "always there", "not allowed"),
            ):
                differences += [
                    SchemaDifference(path=f"{path}/{pointer_step(name)}", narrow=narrow, wide=wide)
                    for name in requiring.required()
                    if other.shuts_out(name)
                ]
            for name, schemas in mine.items():
                if name in wanted:
                    differences += self.apart(schemas, wanted[name], f"{path}/{pointer_step(name)}", depth + 1)
            return differences
        if common == {"array"}:
            items = [
                tuple(each for each in side.all_of("items") if not isinstance(each, list)) for side in (ours, theirs)
            ]
            return self.apart(items[0], items[1], f"{path}/*", depth + 1)
        return []

    def _values_apart(self, shape: Shape, other: Side, their: tuple[Any, ...]) -> bool:
        values = shape.values
        if values is None or len(values) > VALUES_MAX:
            return False
        self._effort.spend(len(values) * other.cost(*their))
        return all(other.accepts(value, *their) is False for value in values)
