"""Are arguments mirrored into `Mcp-Param-*` as 2026-07-28 says, and checked as strictly as the SDK checks them?"""

import itertools
from typing import Any

import pytest
from mcp.shared import inbound as sdk

from interlock.mcp.modern_requests import Mirrored, mirror_headers, mirror_mismatch, mirror_text, mirrored_arguments


def schema(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def marked(kind: Any, header: Any = "X") -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": header}


def mirrored(**properties: dict[str, Any]) -> tuple[Mirrored, ...]:
    found = mirrored_arguments(schema(**properties))
    assert isinstance(found, tuple)
    return found


VALID = {
    "no schema": None,
    "no mark": schema(a={"type": "string"}),
    "the three types": schema(a=marked("string", "A"), b=marked("integer", "B"), c=marked("boolean", "C")),
    "nested properties": schema(a=schema(b=marked("string", "Deep"))),
    "every token character": schema(a=marked("string", "!#$%&'*+-.^_`|~09AZaz")),
    "a mark in data": schema(a={"type": "string", "default": {"x-mcp-header": 1}, "enum": [{"x-mcp-header": 2}]}),
    "a property called so": schema(**{"x-mcp-header": {"type": "number"}}),
    "a reference is not followed": schema(a={"$ref": "#/$defs/b"}),
    "subschemas without marks": schema(a={"items": {"type": "number"}, "anyOf": [True], "$defs": {"x": {}}}),
}
INVALID = {
    "on the root": marked("object"),
    "an empty name": schema(a=marked("string", "")),
    "a blank in the name": schema(a=marked("string", "a b")),
    "a line break in the name": schema(a=marked("string", "a\r\nb")),
    "a line break at its end": schema(a=marked("string", "a\n")),
    "a colon in the name": schema(a=marked("string", "a:b")),
    "a name that is not ASCII": schema(a=marked("string", "é")),
    "a name that is a number": schema(a=marked("string", 7)),
    "a name that is null": schema(a=marked("string", None)),
    "a number": schema(a=marked("number")),
    "an object": schema(a=marked("object")),
    "several types": schema(a=marked(["string", "null"])),
    "no type": schema(a={"x-mcp-header": "X"}),
    "the same name in another case": schema(a=marked("string", "Region"), b=marked("string", "REGION")),
    "the same name further down": schema(a=marked("string"), b=schema(c=marked("string", "x"))),
}
UNREACHABLE = """
    items contains unevaluatedItems additionalProperties unevaluatedProperties propertyNames
    not if then else contentSchema
"""
MAPS = "$defs definitions dependentSchemas patternProperties"
INVALID |= {f"under {key}": schema(a={key: marked("string")}) for key in UNREACHABLE.split()}
INVALID |= {f"in {key}": schema(a={key: [{}, marked("string")]}) for key in ("allOf", "anyOf", "oneOf", "prefixItems")}
INVALID |= {f"in {key}": {key: {"z": marked("string")}} for key in MAPS.split()}
INVALID["properties behind another keyword"] = schema(a={"items": schema(b=marked("string"))})


@pytest.mark.parametrize("given", VALID.values(), ids=VALID)
def test_a_valid_schema_mirrors_what_the_sdk_mirrors(given: Any) -> None:
    found = mirrored_arguments(given)
    assert sdk.find_invalid_x_mcp_header(given) is None
    assert isinstance(found, tuple)
    assert {one.path: one.header.decode() for one in found} == {
        path: "mcp-param-" + token.lower() for path, token in sdk.x_mcp_header_map(given).items()
    }


@pytest.mark.parametrize("given", INVALID.values(), ids=INVALID)
def test_an_invalid_mark_is_a_reason_in_words(given: Any) -> None:
    reason = mirrored_arguments(given)
    assert sdk.find_invalid_x_mcp_header(given) is not None
    assert isinstance(reason, str)
    assert "x-mcp-header" in reason


def test_a_reason_does_not_grow_with_the_schema() -> None:
    assert len(mirrored_arguments(schema(**{"a" * 100_000: marked("number")}))) < 200
    assert len(mirrored_arguments(schema(a=marked("string", "x" * 9999), b=marked("string", "x" * 9999)))) < 200


def test_a_schema_of_any_depth_is_walked_without_recursion() -> None:
    deep: dict[str, Any] = marked("string")
    for _ in range(5000):
        deep = {"not": deep}
    assert isinstance(mirrored_arguments(schema(a=deep)), str)


VALUES = {
    "text": ("us-west1", "us-west1"),
    "a whole number": (42, "42"),
    "a negative number": (-7, "-7"),
    "80 bits": (2**80, "1208925819614629174706176"),
    "yes": (True, "true"),
    "no": (False, "false"),
    "a whole number with a point": (42.0, "42"),
    "a fraction": (1.5, "1.5"),
    "null": (None, None),
    "a list": ([1], None),
    "an object": ({}, None),
    "more digits than can be written": (10**5000, None),
}


@pytest.mark.parametrize(("value", "text"), VALUES.values(), ids=VALUES)
def test_an_argument_has_the_text_the_specification_gives_it(value: Any, text: str | None) -> None:
    assert mirror_text({"a": value}, ("a",)) == text


@pytest.mark.parametrize("arguments", [{}, {"a": 1}, {"a": {}}, {"a": [{"b": 1}]}, None, []])
def test_an_argument_that_is_not_at_its_path_has_no_text(arguments: Any) -> None:
    assert mirror_text(arguments, ("a", "b")) is None


def test_the_header_lines_carry_each_argument_that_is_there() -> None:
    marks = mirrored(a=marked("string", "City"), b=marked("integer", "N"), c=marked("boolean", "Gone"))
    lines = mirror_headers(marks, {"a": "Zürich\r\nx: y", "b": 7, "c": None})
    assert sorted(lines.split(b"\r\n")) == [b"", b"mcp-param-city: =?base64?WsO8cmljaA0KeDogeQ==?=", b"mcp-param-n: 7"]


def test_every_header_is_judged_as_the_sdk_judges_it() -> None:
    big = 2**53
    values: list[Any] = [None, "", "42", "true", " a ", "٤٢", 42, -42, 0, big, big + 1, 2**80, True, False, [], {}]
    values += [42.0, -0.0, 1e22, 10**5000]
    sent = [
        None,
        "",
        "42",
        "42.0",
        "42.00",
        "42.5",
        "42.",
        "+42",
        "042",
        "4_2",
        "4.2e1",
        " 42",
        "-42",
        "0",
        "-0",
        "true",
    ]
    sent += ["True", "1", "1.0", str(big), str(big + 1), f"{big}.0", str(2**80), "1" + "0" * 5000, "nan", "inf", "None"]
    sent += ["=?base64?NDI=?=", "=?base64?IGEg?=", "=?base64?2aTZog==?=", "=?base64?NDJ=?=", "[]", "{}"]
    kinds = {str: "string", bool: "boolean", int: "integer", float: "integer"}
    verdicts = set()
    for value, header in itertools.product(values, sent):
        given = schema(a=marked(kinds.get(type(value), "string")))
        marks = mirrored_arguments(given)
        assert isinstance(marks, tuple)
        theirs = {} if header is None else {"mcp-param-x": header}
        refused = mirror_mismatch(marks, {"a": value}, {k.encode(): v.encode() for k, v in theirs.items()})
        expected = sdk.validate_mcp_param_headers(given, {"a": value}, theirs)
        assert (refused is None) == (expected is None), (value, header, refused, expected)
        verdicts.add(refused is None)
    assert verdicts == {True, False}


@pytest.mark.parametrize("value", ["a", "é", 7, -(2**80), True, 42.0, 1e22, 1.5])
def test_our_headers_pass_our_check_and_that_of_the_sdk(value: Any) -> None:
    given = schema(a=marked("boolean" if value is True else "string" if isinstance(value, str) else "integer"))
    marks = mirrored_arguments(given)
    assert isinstance(marks, tuple)
    name, _, text = mirror_headers(marks, {"a": value}).removesuffix(b"\r\n").partition(b": ")
    assert mirror_mismatch(marks, {"a": value}, {name: text}) is None
    assert sdk.validate_mcp_param_headers(given, {"a": value}, {name.decode(): text.decode()}) is None


def test_a_mismatch_names_the_header_and_never_the_value() -> None:
    marks = mirrored(a=marked("string", "Region"))
    said = [
        mirror_mismatch(marks, {"a": "hunter2"}, headers)
        for headers in ({}, {b"mcp-param-region": b"other"}, {b"mcp-param-region": b"=?base64?!?="})
    ]
    assert all(reason is not None and "mcp-param-region" in reason and "hunter2" not in reason for reason in said)
    assert "absent" in (mirror_mismatch(marks, {}, {b"mcp-param-region": b"x"}) or "")
