"""Does one JSON Schema accept what another allows, reject some of it, or is it undecided? And can two hold at once?"""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.wire.schemas.inclusion import InclusionOutcome, InclusionVerdict, exclusions, includes
from interlock.wire.schemas.shapes import Side
from interlock.wire.schemas.validators import compile_schema

ACCEPTS, UNDECIDED, REJECTS = InclusionVerdict.ACCEPTS, InclusionVerdict.UNDECIDED, InclusionVerdict.REJECTS
STRING, INTEGER, NUMBER, NULL = ({"type": name} for name in ("string", "integer", "number", "null"))
NULLABLE = {"anyOf": [STRING, NULL]}


def compare(narrow: Any, wide: Any) -> InclusionOutcome:
    return includes(Side(wide), wide, Side(narrow), narrow)


def array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


def record(*required: str, closed: bool | None = None, **properties: Any) -> dict[str, Any]:
    made = {"type": "object", "properties": properties, "required": list(required)}
    return made if closed is None else {**made, "additionalProperties": not closed}


@pytest.mark.req("AIP-tools-5")
@pytest.mark.parametrize(
    ("narrow", "wide", "verdict"),
    [
        (INTEGER, NUMBER, ACCEPTS),
        (NUMBER, INTEGER, REJECTS),
        ({"type": "number", "multipleOf": 1}, INTEGER, ACCEPTS),
        (STRING, {"type": ["string", "null"]}, ACCEPTS),
        (STRING, NULLABLE, ACCEPTS),
        ({"type": ["string", "null"]}, STRING, REJECTS),
        (NULLABLE, STRING, REJECTS),
        (NULLABLE, {"type": ["null", "string"]}, ACCEPTS),
        ({"type": ["string", "null"]}, NULLABLE, ACCEPTS),
        (STRING, INTEGER, REJECTS),
        ({}, STRING, REJECTS),
        (STRING, {}, ACCEPTS),
        (STRING, True, ACCEPTS),
        (STRING, False, REJECTS),
        (False, STRING, ACCEPTS),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, REJECTS),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, ACCEPTS),
        ({"enum": ["a", 1], "type": "string"}, STRING, ACCEPTS),
        ({"enum": ["a", 1]}, STRING, REJECTS),
        ({"const": "a"}, {"const": "a"}, ACCEPTS),
        ({"const": 1}, {"const": True}, REJECTS),
        ({"const": 1.0}, INTEGER, ACCEPTS),
        (STRING, {"enum": ["a"]}, REJECTS),
        ({"type": "boolean"}, {"enum": [True, False]}, ACCEPTS),
        ({"type": "boolean"}, {"enum": [True]}, REJECTS),
        (array(INTEGER), array(NUMBER), ACCEPTS),
        (array(NUMBER), array(INTEGER), REJECTS),
        (array({}), array(STRING), REJECTS),
        (array(STRING), {"type": "array"}, ACCEPTS),
        (record("a", a=STRING), record("a", a=STRING, b=STRING), ACCEPTS),
        (record(a=STRING), record("a", a=STRING), REJECTS),
        (record("a", a=INTEGER), record("a", a=STRING), REJECTS),
        (record("a", "b", a=STRING, b=STRING), record("a", a=STRING, closed=True), REJECTS),
        (record("a", "b", a=STRING, b=STRING), record("a", a=STRING, closed=False), ACCEPTS),
        (record("a", "b", a=STRING, b=STRING), record("a", a=STRING), UNDECIDED),
        (record(a=STRING, closed=False), record(a=STRING, closed=True), REJECTS),
        (record("a", a=STRING, b=False), record("a", a=STRING, closed=True), ACCEPTS),
        ({"type": "object"}, record(a=STRING, closed=True), UNDECIDED),
        ({"type": "object"}, {"type": "object"}, ACCEPTS),
        (
            {"type": "object", "additionalProperties": INTEGER},
            {"type": "object", "additionalProperties": NUMBER},
            ACCEPTS,
        ),
        (
            {"type": "object", "additionalProperties": NUMBER},
            {"type": "object", "additionalProperties": INTEGER},
            REJECTS,
        ),
        (record(a=record(b=array(INTEGER))), record(a=record(b=array(STRING))), REJECTS),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, INTEGER, ACCEPTS),
        (INTEGER, {"allOf": [NUMBER, INTEGER]}, ACCEPTS),
    ],
    ids=lambda value: str(value)[:60],
)
def test_types_and_listed_values_are_compared(narrow: Any, wide: Any, verdict: InclusionVerdict) -> None:
    assert compare(narrow, wide).verdict is verdict


@pytest.mark.req("AIP-tools-5")
def test_a_value_that_is_not_accepted_is_named_with_its_place() -> None:
    narrow = record(mode={"enum": ["a", "b"]})
    outcome = compare(narrow, record(mode={"enum": ["a"]}))
    (difference,) = outcome.differences
    assert (difference.path, difference.narrow) == ("/mode", '"b"')


@pytest.mark.req("AIP-tools-5")
def test_every_difference_is_reported() -> None:
    narrow = record(a=STRING, b=array(record(c=INTEGER)), **{"d/e": NULL})
    wide = record(a=INTEGER, b=array(record(c=STRING)), **{"d/e": STRING})
    assert [each.path for each in compare(narrow, wide).differences] == ["/a", "/b/*/c", "/d~1e"]


@pytest.mark.req("AIP-tools-8")
@pytest.mark.parametrize(
    "wide",
    [
        {"type": "string", "pattern": "^a"},
        {"type": "string", "format": "uri"},
        {"type": "string", "minLength": 1},
        {"type": "string", "maxLength": 5},
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 3}]},
        {"type": "string", "not": {"const": "x"}},
        {"if": {"type": "string"}, "then": {"minLength": 1}},
        {"type": "string", "$ref": "https://schemas.example/elsewhere.json"},
        {"type": "string", "$dynamicRef": "#node"},
    ],
    ids=str,
)
def test_an_undecidable_comparison_is_undecided_and_not_a_rejection(wide: Any) -> None:
    assert compare(STRING, wide).verdict is UNDECIDED
    assert compare(INTEGER, {**wide, "type": "string"}).verdict is REJECTS


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^a"}),
        ({"type": "string", "minLength": 3}, {"type": "string", "minLength": 1}),
        ({"type": "integer", "minimum": 1, "maximum": 5}, {"type": "number", "minimum": 0, "maximum": 5.5}),
        ({"oneOf": [STRING, NULL]}, {"oneOf": [STRING, NULL]}),
        (array(STRING, minItems=2, uniqueItems=True), array(STRING, minItems=1, uniqueItems=True)),
        (STRING, {"type": ["string", "array"], "items": INTEGER, "minItems": 3, "minimum": 4}),
    ],
    ids=str,
)
def test_the_same_rule_or_a_narrower_rule_is_accepted(narrow: Any, wide: Any) -> None:
    assert compare(narrow, wide).verdict is ACCEPTS


@pytest.mark.req("AIP-tools-5")
@pytest.mark.parametrize("definitions", ["$defs", "definitions"])
def test_references_inside_a_schema_are_followed(definitions: str) -> None:
    wide = {
        **record(a={"$ref": f"#/{definitions}/x~1y"}),
        definitions: {"x/y": {"$ref": f"#/{definitions}/z"}, "z": STRING},
    }
    assert compare(record(a=STRING), wide).verdict is ACCEPTS
    assert compare(record(a=INTEGER), wide).verdict is REJECTS


def test_beside_a_reference_of_draft_07_nothing_counts() -> None:
    beside = {"definitions": {"x": STRING}, "$ref": "#/definitions/x", "type": "integer"}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **beside}
    assert compare(STRING, old).verdict is ACCEPTS
    assert compare(STRING, beside).verdict is REJECTS


TREE = {"$defs": {"t": record("name", name=STRING, children=array({"$ref": "#/$defs/t"}))}, "$ref": "#/$defs/t"}


def nested(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = record(a=inner)
    return inner


@pytest.mark.req("AIP-tools-5")
@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (TREE, TREE),
        ({"$ref": "#"}, STRING | {"minLength": 0, "$ref": "#"}),
        (STRING, {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        (nested(33, STRING), nested(33, INTEGER)),
    ],
    ids=["a tree", "itself", "a circle", "depth"],
)
def test_circles_and_depth_end_as_unknown(narrow: Any, wide: Any) -> None:
    assert compare(narrow, wide).verdict is UNDECIDED


@pytest.mark.req("AIP-tools-5")
def test_a_depth_of_32_is_still_compared() -> None:
    assert compare(nested(32, STRING), nested(32, INTEGER)).verdict is REJECTS


def test_alternatives_inside_alternatives_end() -> None:
    wide: Any = STRING
    for _ in range(30):
        wide = record(a={"anyOf": [wide, wide]}, b={"anyOf": [wide, wide]})
    narrow: Any = STRING
    for _ in range(30):
        narrow = record(a={"anyOf": [narrow, {**narrow, "title": "b"}]}, b=narrow)
    assert compare(narrow, wide).verdict is not ACCEPTS


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        (STRING, {"type": "array"}, [""]),
        ({"type": ["string", "null"]}, STRING, []),
        (record("a", a=STRING), record("b", b=STRING), []),
        (record("a", a=STRING, closed=True), record("b", b=STRING), ["/b"]),
        (record("a", a=STRING), record(b=STRING, closed=True), ["/a"]),
        (record("a", a=STRING), record("a", a=INTEGER), ["/a"]),
        (array(STRING), array({"type": "object"}), ["/*"]),
        ({"anyOf": [STRING, array(STRING)]}, array(INTEGER), [""]),
        ({"anyOf": [STRING, array(STRING)]}, array(STRING), []),
        ({"enum": ["a", "b"]}, {"enum": ["c"]}, [""]),
        ({"enum": ["a", "b"]}, {"enum": ["b"]}, []),
        (INTEGER, NUMBER, []),
        ({}, STRING, []),
    ],
    ids=lambda value: str(value)[:50],
)
def test_schemas_that_cannot_hold_at_once_are_distinguished(ours: Any, theirs: Any, apart: list[str]) -> None:
    assert [each.path for each in exclusions(Side(ours), ours, Side(theirs), theirs)] == apart


SCALARS = st.sampled_from([None, True, False, 0, 1, 1.5, "a", "b", ""])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("xy"), inner, max_size=2)),
    max_leaves=5,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
            "required": st.lists(st.sampled_from("xy"), unique=True, max_size=2),
            "additionalProperties": st.one_of(st.booleans(), inner),
        }
    )


SCHEMAS = st.recursive(
    st.one_of(
        st.booleans(),
        st.fixed_dictionaries({"type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True))}),
        st.fixed_dictionaries({"enum": st.lists(SCALARS, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"type": st.just("string"), "minLength": st.integers(0, 2)}),
        st.fixed_dictionaries({"type": st.just("number"), "maximum": st.integers(0, 2)}),
        st.fixed_dictionaries({"multipleOf": st.sampled_from([1, 0.5])}),
    ),
    lambda inner: st.one_of(
        _objects(inner),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers(0, 1)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=5,
)


@given(SCHEMAS, SCHEMAS, st.lists(VALUES, max_size=20))
def test_after_an_inclusion_no_value_of_the_narrower_schema_is_refused_by_the_wider(
    narrow: Any, wide: Any, values: list[Any]
) -> None:
    if compare(narrow, wide).verdict is ACCEPTS:
        ours, theirs = jsonschema.Draft202012Validator(narrow), jsonschema.Draft202012Validator(wide)
        for value in values:
            assert not ours.is_valid(value) or theirs.is_valid(value)


@given(SCHEMAS)
def test_every_schema_allows_at_least_what_it_allows(schema: Any) -> None:
    assert compare(schema, schema).verdict is ACCEPTS


def _is_full(value: Any) -> bool:
    """No empty array and no object without both members: what the comparison leaves out of account."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_full, value))
    return not isinstance(value, dict) or (len(value) == 2 and all(map(_is_full, value.values())))


@given(SCHEMAS, SCHEMAS, st.lists(VALUES, max_size=20))
def test_distinguished_schemas_have_no_value_in_common(ours: Any, theirs: Any, values: list[Any]) -> None:
    if exclusions(Side(ours), ours, Side(theirs), theirs):
        one, other = jsonschema.Draft202012Validator(ours), jsonschema.Draft202012Validator(theirs)
        for value in filter(_is_full, values):
            assert not (one.is_valid(value) and other.is_valid(value))


def doubled(count: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{number}": {"anyOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(count)
    }
    return {"$defs": {**definitions, f"d{count}": STRING}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "schema",
    [
        doubled(30),
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2500)}},
        {"enum": list(range(30_000))},
        nested(150, STRING),
        "true",
        None,
        [],
        {"type": 5},
        {"$ref": "#/$defs/nothing"},
        {"$schema": "https://schemas.example/mine", "type": "object"},
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_is_none_or_costs_too_much_is_not_compiled(schema: Any) -> None:
    assert compile_schema(schema) is None


def test_schemas_as_large_as_people_write_them_are_compiled() -> None:
    large = record(**{f"field_{number}": {"anyOf": [STRING, NULL, {"$ref": "#/$defs/t"}]} for number in range(200)})
    made = compile_schema({**large, **{"$defs": TREE["$defs"]}})
    assert made is not None and made.is_whole
    assert made.accepts({"field_1": {"name": "x", "children": [{"name": "y"}]}})
