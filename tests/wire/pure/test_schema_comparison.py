"""Is a comparison of schemas to be believed, and does it end? Shown with a validator and with hostile schemas."""

import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.scale import examples

from interlock.drivers.protocol.binding.results import Unknown, path_type
from interlock.drivers.protocol.result_path import ResultPath, read_path
from interlock.wire.schemas import inclusion
from interlock.wire.schemas.budget import Effort
from interlock.wire.schemas.inclusion import InclusionOutcome, InclusionVerdict, exclusions, includes
from interlock.wire.schemas.shapes import Side

ACCEPTS, UNDECIDED, REJECTS = InclusionVerdict.ACCEPTS, InclusionVerdict.UNDECIDED, InclusionVerdict.REJECTS
STRING = {"type": "string"}
SECONDS_MAX = 2.0  # of one comparison on a loaded machine; without a bound each of these takes minutes to years


def compare(narrow: Any, wide: Any) -> InclusionOutcome:
    return includes(Side(wide), wide, Side(narrow), narrow, tighter=REJECTS)


@pytest.mark.req("REG-8.1-4")
@pytest.mark.parametrize(
    ("narrow", "wide", "verdict"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": 5}, REJECTS),
        ({"type": "string", "maxLength": 5}, {"type": "string"}, ACCEPTS),
        ({"type": "string", "pattern": "^a$"}, {"type": "string", "maxLength": 5}, UNDECIDED),
        ({"type": "string"}, {"type": "string", "pattern": "^a"}, UNDECIDED),
        ({"type": "number", "minimum": 0}, {"type": "number", "exclusiveMinimum": 0}, REJECTS),
        ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "minimum": 0}, ACCEPTS),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}, ACCEPTS),
        ({"type": "integer", "minimum": 0.5}, {"type": "integer", "minimum": 1}, ACCEPTS),
        ({"type": "integer", "maximum": 1.5}, {"type": "integer", "exclusiveMaximum": 2}, ACCEPTS),
        ({"type": "number", "minimum": 0.5}, {"type": "number", "minimum": 1}, REJECTS),
        ({"type": "number", "minimum": 3, "maximum": 2}, {"type": "number", "minimum": 5}, UNDECIDED),
        ({"type": "number", "multipleOf": 5}, {"type": "number", "minimum": 1}, UNDECIDED),
        ({"type": "array", "items": STRING}, {"type": "array", "maxItems": 3}, REJECTS),
        ({"type": "array", "minItems": 2}, {"type": "array", "minItems": 1}, ACCEPTS),
        ({"type": "object"}, {"type": "object", "minProperties": 1}, REJECTS),
        ({"allOf": [{"minimum": 1}, {"minimum": 3}], "type": "number"}, {"type": "number", "minimum": 2}, ACCEPTS),
    ],
    ids=lambda value: str(value)[:60],
)
def test_lengths_and_bounds_are_compared(narrow: Any, wide: Any, verdict: InclusionVerdict) -> None:
    assert compare(narrow, wide).verdict is verdict


@pytest.mark.req("REG-8.1-4")
def test_a_tighter_bound_is_reported_with_its_place_and_reason() -> None:
    narrow = {"type": "object", "properties": {"q": STRING}, "required": []}
    wide = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 5}}}
    (difference,) = compare(narrow, wide).differences
    assert (difference.path, difference.narrow, difference.wide) == ("/q", "no maxLength", "maxLength 5")


SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 1.0, 0.5, -1, "a", "b", "", "abc"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)),
    max_leaves=6,
)
BOUNDS = st.sampled_from([0, 1, 2, 0.5, 1.5])
LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": st.sampled_from(["null", "boolean", "integer", "number", "string"])}),
    st.fixed_dictionaries({"enum": st.lists(SCALARS, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": SCALARS}),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 3),
            "pattern": st.sampled_from(["^a", "b$"]),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={
            "minimum": BOUNDS,
            "maximum": BOUNDS,
            "exclusiveMinimum": BOUNDS,
            "exclusiveMaximum": BOUNDS,
            "multipleOf": st.sampled_from([1, 0.5]),
        },
    ),
    st.sampled_from([{"$ref": "#/$defs/d"}, {"$ref": "#/$defs/e"}]),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)},
            optional={
                "required": st.lists(st.sampled_from("xyz"), unique=True, max_size=2),
                "additionalProperties": st.one_of(st.booleans(), inner),
                "minProperties": st.integers(0, 2),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(0, 2), "uniqueItems": st.booleans()},
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)
SCHEMAS = st.builds(
    lambda root, first, second: (
        {**root, "$defs": {"d": first, "e": second}} if isinstance(root, dict) else {"allOf": [root]}
    ),
    NESTED,
    NESTED,
    LEAVES,
)


def closed(schema: Any) -> Any:
    """Return a schema as the narrow side is read: a property that is not named does not occur.

    What is below `not` stays open, also by reference: a closed schema there would make the whole wider, not narrower.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$defs" in schema:
        unchanged = {f"open-{name}": open_references(each) for name, each in schema["$defs"].items()}
        without = closed({key: value for key, value in schema.items() if key != "$defs"})
        return {**without, "$defs": {**closed(schema["$defs"]), **unchanged}}
    result = {
        key: value if key in {"enum", "const"} else open_references(value) if key == "not" else closed(value)
        for key, value in schema.items()
    }
    if result.get("type") == "object" and "additionalProperties" not in result:
        result["additionalProperties"] = False
    return result


def open_references(schema: Any) -> Any:
    """Return a schema whose references lead to the definitions as they were written."""
    if isinstance(schema, list):
        return [open_references(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.replace("/$defs/", "/$defs/open-") if key == "$ref" else open_references(value)
        for key, value in schema.items()
    }


def validator(schema: Any) -> Any:
    return jsonschema_rs.validator_for(schema, offline=True)


NEGATED = {"not": {"type": "object", "properties": {"z": False}}}


@pytest.mark.req("REG-8.1-4")
@settings(max_examples=examples(120))
@given(SCHEMAS, SCHEMAS, st.lists(VALUES, max_size=25))
@example(NEGATED, NEGATED, [{"x": None}])
@example({"not": {"$ref": "#/$defs/d"}, "$defs": {"d": NEGATED["not"]}}, NEGATED, [{"x": None}])
def test_the_wider_schema_accepts_whatever_the_narrower_accepts(narrow: Any, wide: Any, values: list[Any]) -> None:
    if compare(narrow, wide).verdict is ACCEPTS:
        ours, theirs = validator(closed(narrow)), validator(wide)
        for value in values:
            assert not ours.is_valid(value) or theirs.is_valid(value)


@pytest.mark.req("REG-8.1-4")
@settings(max_examples=examples(50))
@given(SCHEMAS, st.sampled_from(["description", "title", "$comment"]))
def test_words_about_a_schema_change_no_answer(schema: Any, word: str) -> None:
    assert compare({**schema, word: "x"}, schema).verdict is not REJECTS


PLAIN_LEAVES = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number", "string", "boolean", "unknown"])},
    optional={"description": st.just("x"), "default": st.sampled_from([True, 1]), "enum": st.just([1, True])},
)
PLAIN = st.recursive(
    PLAIN_LEAVES,
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)},
        optional={
            "required": st.lists(st.sampled_from("xyz"), unique=True, max_size=2),
            "additionalProperties": st.booleans(),
        },
    ),
    max_leaves=6,
)


@pytest.mark.req("REG-8.1-4")
@settings(max_examples=examples(150))
@given(PLAIN, PLAIN)
def test_plain_schemas_are_compared_as_all_others_are(narrow: Any, wide: Any) -> None:
    found = compare(narrow, wide)
    with pytest.MonkeyPatch.context() as patched:
        for name in ("is_plain_type", "is_plain_object"):
            patched.setattr(inclusion, name, lambda _: False)
        assert compare(narrow, wide) == found


def doubled(count: int, branches: int = 2) -> dict[str, Any]:
    definitions = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * branches} for n in range(count)}
    return {"$defs": {**definitions, f"d{count}": STRING}, "$ref": "#/$defs/d0"}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = STRING
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema, "b": {"$ref": "#"}}}
    return schema


HOSTILE = {
    "a reference to itself, three times": {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 3}},
        "$ref": "#/$defs/a",
    },
    "definitions that double": doubled(40),
    "a circle of two": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "a depth of five thousand": deep(5000),
    "a huge enum": {"enum": [f"value {n}" for n in range(200_000)]},
    "a large enum": {"enum": [f"value {n}" for n in range(15_000)]},
    "another large enum": {"enum": [f"VALUE {n}" for n in range(15_000)]},
    "an enum for a pattern": {"enum": ["a" * n + "!" for n in range(2000)]},
    "a pattern that goes back and forth": {"type": "string", "pattern": "^(a+)+(a+)+$"},
    "many parts": {"allOf": [{"type": "object", "properties": {f"p{n}": STRING}} for n in range(5000)]},
    "many alternatives": {"anyOf": [{"type": "object", "properties": {f"q{n}": STRING}} for n in range(5000)]},
    "alternatives in alternatives": {
        "anyOf": [{"type": "object", "properties": {"a": {"anyOf": [STRING, {"$ref": "#"}] * 50}}}] * 50
    },
}


@pytest.mark.parametrize("apart", [0, 1, 5, 7])
def test_hostile_schemas_are_compared_within_a_bound(apart: int) -> None:
    schemas = list(HOSTILE.values())
    for narrow, wide in zip(schemas, schemas[apart:] + schemas[:apart], strict=True):
        started = time.perf_counter()
        compare(copied(narrow), wide)
        exclusions(Side(narrow), narrow, Side(wide), wide)
        assert time.perf_counter() - started < SECONDS_MAX


def copied(schema: Any) -> Any:
    return {"title": "not the same words", **schema}


def test_a_path_through_a_hostile_schema_ends() -> None:
    path = read_path("$.a.b.c")
    assert isinstance(path, ResultPath)
    schema = HOSTILE["a reference to itself, three times"]
    assert isinstance(path_type(Side(schema), schema, path), Unknown)


def test_pairs_share_the_effort_they_are_given() -> None:
    effort = Effort(10)
    outcomes = [
        includes(Side(wide), wide, Side(STRING), STRING, effort=effort).verdict
        for wide in [{"type": "string", "maxLength": n} for n in range(20)]
    ]
    assert outcomes[-1] is UNDECIDED and effort.left < 0
