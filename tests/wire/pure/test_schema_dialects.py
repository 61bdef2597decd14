"""Does a schema of an older draft, said in 2020-12, accept and reject the same?"""

from typing import Any

import jsonschema_rs
import pytest

from interlock.wire.schemas.digest import to_2020_12
from interlock.wire.schemas.validators import compile_schema

DRAFT_07 = "http://json-schema.org/draft-07/schema#"
DRAFT_04 = "http://json-schema.org/draft-04/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
VALIDATORS: dict[str, Any] = {
    DRAFT_07: jsonschema_rs.Draft7Validator,
    DRAFT_04: jsonschema_rs.Draft4Validator,
    DRAFT_2019: jsonschema_rs.Draft201909Validator,
}
TEXT = {"type": "string"}
NUMBER = {"type": "number"}
SAMPLES: list[Any] = [
    None,
    True,
    0,
    5,
    6,
    "a",
    "ab",
    [],
    ["a"],
    ["a", 1],
    ["a", 1, "b"],
    ["a", 1, 2],
    [1],
    [1, "a"],
    {},
    {"a": 1},
    {"a": "x"},
    {"b": 2},
    {"a": 1, "b": 2},
    {"a": 1, "b": "x"},
    {"a": "x", "b": {"a": "y"}},
    {"a": "x", "b": {"a": 1}},
    {"a": ["x", 1]},
    {"a": [1, "x"]},
    {"definitions": "x"},
    {"definitions": 1},
    {"items": ["x"], "definitions": 3},
    {"c": ["x", 1], "d": "x"},
    {"c": ["x", 1], "d": 1},
    {"c": [], "e": {"e": {"v": 1}}},
    {"c": [], "e": {"e": {"v": "x"}}},
]


@pytest.mark.req("AIP-author-4")
@pytest.mark.parametrize(
    ("dialect", "schema"),
    [
        (DRAFT_07, {"definitions": {"t": TEXT}, "properties": {"a": {"$ref": "#/definitions/t"}}}),
        (DRAFT_07, {"$ref": "#/definitions/t", "definitions": {"t": {"required": ["a"]}}, "required": ["b"]}),
        (DRAFT_07, {"properties": {"a": {"$ref": "#/properties/definitions"}, "definitions": TEXT}}),
        (
            DRAFT_07,
            {"properties": {"definitions": {"properties": {"x": TEXT}}, "a": {"$ref": "#/properties/definitions"}}},
        ),
        (DRAFT_07, {"items": [TEXT, NUMBER]}),
        (DRAFT_07, {"items": [TEXT, NUMBER], "additionalItems": False}),
        (DRAFT_07, {"items": [TEXT, NUMBER], "additionalItems": TEXT}),
        (DRAFT_07, {"items": TEXT, "additionalItems": False}),
        (DRAFT_07, {"additionalItems": False}),
        (DRAFT_07, {"type": "array", "items": {"type": ["string", "number"]}}),
        (DRAFT_07, {"dependencies": {"a": ["b"], "b": {"properties": {"b": NUMBER}}}}),
        (DRAFT_07, {"dependencies": {"a": True, "b": False}}),
        (
            DRAFT_07,
            {
                "properties": {
                    "c": {"items": [TEXT, NUMBER]},
                    "d": {"$ref": "#/properties/c/items/1"},
                    "b": {"$ref": "#/dependencies/a"},
                },
                "dependencies": {"a": {"not": {"required": ["b"], "properties": {"b": TEXT}}}},
            },
        ),
        (DRAFT_07, {"items": [TEXT], "additionalItems": NUMBER, "properties": {"a": {"$ref": "#/additionalItems"}}}),
        (DRAFT_07, {"properties": {"e": {"$ref": "#/definitions/e%7E1x"}}, "definitions": {"e/x": {}, "e~1x": TEXT}}),
        (
            DRAFT_07,
            {
                "properties": {"e": {"$ref": "#/definitions/tree"}},
                "definitions": {"tree": {"properties": {"e": {"$ref": "#/definitions/tree"}, "v": NUMBER}}},
            },
        ),
        (
            DRAFT_07,
            {
                "definitions": {"t": TEXT},
                "$defs": {"n": NUMBER},
                "properties": {"a": {"$ref": "#/definitions/t"}, "b": {"$ref": "#/$defs/n"}},
            },
        ),
        (
            DRAFT_07,
            {
                "prefixItems": [NUMBER],
                "unevaluatedProperties": False,
                "dependentRequired": {"a": ["z"]},
                "minContains": 9,
            },
        ),
        (
            DRAFT_07,
            {
                "if": {"required": ["a"]},
                "then": {"definitions": {"n": NUMBER}, "properties": {"a": {"$ref": "#/then/definitions/n"}}},
                "else": {"required": ["b"]},
            },
        ),
        (
            DRAFT_07,
            {"anyOf": [{"items": [TEXT]}, {"type": "object"}], "allOf": [{"$ref": "#/anyOf/0"}], "type": "array"},
        ),
        (DRAFT_07, {"const": 5}),
        (DRAFT_07, {"definitions": {"t": {"$id": "#text", **TEXT}}, "properties": {"a": {"$ref": "#text"}}}),
        (
            DRAFT_07,
            {"patternProperties": {"^a": {"items": [TEXT]}}, "propertyNames": {"maxLength": 11}, "contains": {}},
        ),
        (DRAFT_07, {"not": {"items": [TEXT], "minItems": 1}}),
        (DRAFT_04, {"minimum": 5, "exclusiveMinimum": True}),
        (DRAFT_04, {"maximum": 5, "exclusiveMaximum": False}),
        (DRAFT_04, {"definitions": {"t": TEXT}, "properties": {"a": {"$ref": "#/definitions/t"}}}),
        (DRAFT_2019, {"$ref": "#/$defs/t", "$defs": {"t": {"required": ["a"]}}, "required": ["b"]}),
        (DRAFT_2019, {"items": [TEXT], "additionalItems": False, "dependentRequired": {"a": ["b"]}}),
        (DRAFT_2019, {"properties": {"e": {"$recursiveRef": "#"}, "v": NUMBER}}),
    ],
)
def test_the_same_samples_are_accepted(dialect: str, schema: dict[str, Any]) -> None:
    before = VALIDATORS[dialect](schema)
    written = to_2020_12({"$schema": dialect, **schema})
    after = jsonschema_rs.Draft202012Validator(written, offline=True)
    assert [before.is_valid(each) for each in SAMPLES] == [after.is_valid(each) for each in SAMPLES]
    assert "$schema" not in written


@pytest.mark.parametrize(
    "dialect", [None, "https://json-schema.org/draft/2020-12/schema", "https://example.com/own", 3]
)
def test_a_schema_of_2020_12_and_of_no_known_draft_passes_as_it_is(dialect: Any) -> None:
    schema = {"definitions": {"t": TEXT}, "prefixItems": [TEXT], "properties": {"a": {"$ref": "#/definitions/t"}}}
    assert to_2020_12({**({} if dialect is None else {"$schema": dialect}), **schema}) == schema


def test_words_that_mean_the_same_are_left_alone() -> None:
    """The shape the npm reference servers list."""
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "Where"}, "head": {"type": "number"}},
        "required": ["path"],
        "additionalProperties": False,
    }
    assert to_2020_12({**schema, "$schema": DRAFT_07}) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/definitions/nowhere/items/3"},
        {"properties": 3, "items": None, "allOf": {}, "definitions": [], "dependencies": "x", "$id": 4},
        {"$ref": 3},
        {"$ref": "#/items/0/x", "items": []},
        {"$ref": "http://example.com/#/definitions/x"},
    ],
)
def test_nonsense_is_carried_over_for_the_reader_to_refuse(schema: dict[str, Any]) -> None:
    assert isinstance(to_2020_12({"$schema": DRAFT_07, **schema}), dict)


def test_a_schema_that_nests_without_end_ends() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"not": schema}
    assert isinstance(to_2020_12({"$schema": DRAFT_07, **schema}), dict)


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"maximum": 100.0}, 400, "it is more than 100"),
        ({"minimum": 0.5}, 0.25, "it is less than 0.5"),
        ({"exclusiveMaximum": 3}, 3, "it is not less than 3"),
        ({"exclusiveMinimum": 3}, 3, "it is not more than 3"),
        ({"maxLength": 2}, "abc", "it is longer than 2 characters"),
        ({"minLength": 2}, "a", "it is shorter than 2 characters"),
    ],
)
def test_a_fault_names_the_limit_and_not_the_value(schema: dict[str, Any], value: Any, reason: str) -> None:
    compiled = compile_schema(schema)
    fault = compiled.find_fault(value) if compiled is not None else None
    assert fault is not None
    assert fault.reason == reason
