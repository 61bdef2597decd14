"""Is a binding that fits its server's tool bound, and one that does not refused with every difference?"""

import socket
from typing import Any

import pytest
from tests.drivers.driver_bindings import (
    DRAFT_07,
    DRAFT_2020_12,
    LIST_DIRECTORY,
    READ_FILE,
    READ_GRAPH,
    STRING,
    WRITE_FILE,
    bound,
    entry,
    files,
    giving,
    input_schema,
    matched,
    promising,
    refused,
)
from tests.drivers.driver_texts import contract

from interlock.drivers.protocol.binding.match import Bound, HookEntry, digest_of, match
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.wire.schemas.validators import compile_schema

PATH = input_schema("path", path=STRING)
READS_A_FILE = contract(outputs={"type": "object"})


def unverified(found: Bound) -> list[str]:
    assert all(each.severity == "warning" and each.hint for each in found.warnings)
    return [each.message for each in found.warnings if each.code == "contract_unverified"]


def test_the_file_servers_read_file_is_bound_without_a_doubt() -> None:
    reading = bound(entry(), READS_A_FILE, READ_FILE)
    assert (reading.warnings, reading.mode, reading.tool_name) == ((), "structured", "tool")


@pytest.mark.req("AIP-tools-2", "AIP-tools-7", "AIP-tools-8")
@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (
            giving(inputs=input_schema(name=STRING)),
            "input, /path: the contract has the input 'path', the server has no argument",
        ),
        (
            giving(inputs=input_schema("path", path={"type": "integer"})),
            "input, /path: the contract has string, the server has",
        ),
        (
            giving(inputs=input_schema("path", "key", path=STRING, key=STRING)),
            "input, /key: the contract has no input for it",
        ),
        (
            giving({"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}),
            "output, /text: the contract has required, the server has never there",
        ),
        (giving(annotations={"readOnlyHint": False}), "effect: the contract has mutates nothing"),
    ],
    ids=["lacks an input", "another type", "one more required", "the output", "the effect"],
)
def test_a_tool_of_the_right_name_that_does_not_fit_is_refused(tool: dict[str, Any], told: str) -> None:
    if tool["inputSchema"] == input_schema():
        tool = {**tool, "inputSchema": PATH}
    promise = promising(input_schema("text", text=STRING), PATH)
    (problem,) = refused(entry(), promise, tool)
    assert problem.message.startswith("binding 0 (fs-read to 'tool'), ")
    assert told in problem.message
    assert problem.field == "/implements/0"


@pytest.mark.req("AIP-tools-2")
def test_every_difference_is_listed() -> None:
    promise = promising({"type": "array"}, input_schema("a", "b", a=STRING, b=STRING))
    tool = giving(STRING, input_schema("a", "c", a={"type": "integer"}, c=STRING), annotations={"readOnlyHint": False})
    problems = refused(entry(), promise, tool)
    assert [each.message.split(": ")[0].partition("), ")[2] for each in problems] == [
        "input, /c",
        "input, /a",
        "input, /b",
        "effect",
        "output",
    ]
    told = ["argument_mapping", "argument_mapping", "argument_mapping", "mutates", "result_parse"]
    assert [word in each.hint for word, each in zip(told, problems, strict=True)] == [True] * 5


@pytest.mark.req("AIP-tools-4")
@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        (input_schema(), PATH),
        (input_schema(path=STRING), PATH),
        (input_schema("path", "key", path=STRING, key=STRING), PATH),
        (PATH, {"type": "object"}),
        (PATH, {**input_schema(), "additionalProperties": False}),
    ],
    ids=["fed by nothing", "fed by an optional input", "no argument", "no properties at all", "closed"],
)
def test_inputs_and_arguments_that_do_not_meet_are_refused(inputs: Any, arguments: Any) -> None:
    refused(entry(), promising({}, inputs), giving(inputs=arguments))


@pytest.mark.req("AIP-tools-4")
@pytest.mark.parametrize(
    ("one", "inputs", "arguments"),
    [
        (entry(), PATH, READ_FILE["inputSchema"]),
        (entry(argument_defaults={"path": "/a"}), input_schema(), PATH),
        (entry(context_arguments={"who": "context.user_id"}), input_schema(), input_schema("who", who=STRING)),
        (entry(), input_schema("key", key=STRING), {**input_schema(), "additionalProperties": True}),
        (entry(), input_schema("key", key=STRING), {**input_schema(), "additionalProperties": STRING}),
        (entry(), input_schema(path={**STRING, "default": "/"}), PATH),
        (entry(mapping={"file": "path"}), input_schema("file", file=STRING), PATH),
        (entry(own_schema_narrowing={"drop_inputs": ["key"]}), input_schema(key=STRING), input_schema()),
    ],
    ids=[
        "optional arguments",
        "default",
        "context",
        "open",
        "open for texts",
        "contract's default",
        "mapped",
        "dropped",
    ],
)
def test_inputs_and_arguments_that_meet_are_accepted(one: dict[str, Any], inputs: Any, arguments: Any) -> None:
    found = bound(one, promising({"type": "object"}, inputs), giving({"type": "object"}, arguments))
    assert found.warnings == ()


@pytest.mark.parametrize(
    "one",
    [
        entry(argument_defaults={"path": 5}),
        entry(argument_defaults={"path": "/a", "other": 1}),
        entry(argument_defaults={"path": "/a"}, context_arguments={"who": "context.user_id"}),
    ],
    ids=["a constant of another type", "a constant for no argument", "a context for no argument"],
)
def test_constants_and_context_need_an_argument_that_takes_them(one: dict[str, Any]) -> None:
    refused(one, promising({}), giving(inputs=PATH))


@pytest.mark.req("AIP-tools-5")
def test_a_mapped_pair_is_compared_under_its_two_names() -> None:
    promise = promising({}, input_schema("mode", mode={"enum": ["a", "b"]}))
    (problem,) = refused(
        entry(mapping={"mode": "kind"}), promise, giving(inputs=input_schema("kind", kind={"enum": ["a"]}))
    )
    assert 'input, /kind: the contract has "b", the server has' in problem.message


def test_an_argument_from_the_context_is_not_compared_with_the_input_it_overrides() -> None:
    one = entry(context_arguments={"tenant": "context.tenant_id"})
    promise = promising({}, input_schema(tenant={"type": "integer"}))
    assert isinstance(matched(one, promise, giving(inputs=input_schema("tenant", tenant=STRING))), Bound)


@pytest.mark.req("AIP-tools-6")
def test_the_path_is_walked_through_the_output_schema() -> None:
    entities = {"type": "array", "items": input_schema("name", name=STRING)}
    assert bound(entry("$.entities"), promising(entities), READ_GRAPH).warnings == ()
    assert bound(entry("$.entities[*].name"), promising({"type": "array", "items": STRING}), READ_GRAPH).warnings == ()
    assert bound(entry("$.relations[0].to"), promising(STRING), READ_GRAPH).warnings == ()


@pytest.mark.req("AIP-tools-6")
@pytest.mark.parametrize("path", ["$.nodes", "$.entities[*].kind", "$.entities.name", "$[0]", "$.entities[0][0]"])
def test_a_path_to_what_a_closed_output_schema_does_not_have_is_refused(path: str) -> None:
    (problem,) = refused(entry(path), promising({}), READ_GRAPH)
    assert "the contract has outputs, the server has nothing at" in problem.message


PAIR = {"type": "array", "prefixItems": [STRING, {"type": "integer"}]}
CHOICE = {
    "anyOf": [
        {**input_schema("a", a=STRING), "additionalProperties": False},
        {**input_schema("a", "b", a={"type": "integer"}, b=STRING), "additionalProperties": False},
    ]
}


@pytest.mark.parametrize(
    ("path", "offered", "outputs", "fits"),
    [
        ("$.p[1]", input_schema("p", "q", p=PAIR, q=STRING), {"type": "integer"}, True),
        ("$.p[1]", input_schema("p", "q", p=PAIR, q=STRING), STRING, False),
        (
            "$.p[0]",
            {**DRAFT_07, **input_schema("p", "q", p={"type": "array", "items": [STRING]}, q=STRING)},
            STRING,
            True,
        ),
        ("$.a", CHOICE, {"type": ["string", "integer"]}, True),
        ("$.a", CHOICE, {"type": "array"}, False),
        ("$.b", CHOICE, STRING, True),
        ("$.c", CHOICE, STRING, False),
        ("$.x.y", {"type": "object", "additionalProperties": input_schema("y", y=STRING)}, STRING, True),
        ("$.x.y", {"type": "object", "additionalProperties": input_schema("y", y=STRING)}, {"type": "array"}, False),
    ],
)
@pytest.mark.req("AIP-tools-6")
def test_a_path_goes_through_pairs_alternatives_and_maps(path: str, offered: Any, outputs: Any, fits: bool) -> None:
    found = matched(entry(path), promising(outputs), giving(offered))
    assert isinstance(found, Bound) is fits
    if isinstance(found, Bound):
        assert found.warnings == ()


@pytest.mark.parametrize(
    ("path", "offered"),
    [
        ("$.p[2]", input_schema("p", "q", p=PAIR, q=STRING)),
        ("$.p[*]", input_schema("p", "q", p=PAIR, q=STRING)),
        ("$.p[0]", {"type": "object", "properties": {"p": {**PAIR, "allOf": [PAIR]}}}),
        (
            "$.d",
            {"anyOf": [input_schema("a", a=STRING), {**input_schema("d", d=STRING), "additionalProperties": False}]},
        ),
    ],
)
def test_a_path_to_where_a_schema_is_silent_is_unverified(path: str, offered: Any) -> None:
    assert unverified(bound(entry(path), promising({"type": ["array", "string"]}), giving(offered))) != []


def test_a_path_to_what_an_open_output_schema_does_not_name_is_unverified() -> None:
    assert unverified(bound(entry("$.other"), promising({}), giving(input_schema("a", "b", a=STRING, b=STRING)))) != []


@pytest.mark.req("AIP-tools-6", "AIP-tools-17")
def test_a_text_for_an_array_is_refused_with_the_hint_to_parse_it() -> None:
    (problem,) = refused(entry("$.content"), promising({"type": "array"}, PATH), LIST_DIRECTORY)
    assert "the contract has array, the server has string" in problem.message
    assert "add result_parse" in problem.hint and "result_extract" in problem.hint
    (problem,) = refused(entry("$"), promising({"type": "array"}, PATH), LIST_DIRECTORY)
    assert "the contract has array, the server has object" in problem.message
    assert "add result_parse" in problem.hint
    number = giving(input_schema("p", "q", p=PAIR, q=STRING))
    for one, promise, tool in (
        (entry("$.p[1]"), promising(STRING), number),
        (entry("$.content", result_parse={"from": "text"}), promising({"type": "array"}, PATH), LIST_DIRECTORY),
    ):
        (problem,) = refused(one, promise, tool)
        assert "add result_parse" not in problem.hint  # it would not help, or is there


@pytest.mark.req("AIP-tools-6")
def test_a_tool_without_output_schema_is_recorded_as_unverified() -> None:
    (noted,) = bound(entry(), promising({}), giving()).warnings
    assert (noted.code, noted.severity) == ("contract_unverified", "note")  # no warning: nobody here can mend it
    assert "no outputSchema" in noted.message


@pytest.mark.parametrize(
    ("outputs", "given_by"),
    [
        ({"type": ["string", "null"]}, STRING),
        (STRING, {"anyOf": [STRING, {"type": "null"}]}),
        (input_schema(a=STRING), input_schema("a", a=STRING)),
    ],
)
def test_an_output_that_can_fit_is_not_refused(outputs: Any, given_by: Any) -> None:
    assert isinstance(matched(entry(), promising(outputs), giving(given_by)), Bound)


def test_dropped_outputs_are_left_out_of_the_comparison() -> None:
    promise = promising(input_schema("a", a=STRING, secret={"type": "integer"}))
    tool = giving(input_schema("a", "secret", a=STRING, secret=STRING))
    refused(entry(), promise, tool)
    narrowed = entry(own_schema_narrowing={"drop_outputs": ["secret"]})
    found = bound(narrowed, promise, tool)
    assert found.value({"structuredContent": {"a": "x", "secret": "y"}}) == {"a": "x"}


def test_a_wrapped_output_is_compared_as_it_will_be() -> None:
    one = entry("$.content", result_wrap="text")
    assert bound(one, promising(input_schema("text", text=STRING), PATH), READ_FILE).warnings == ()
    refused(one, promising(input_schema("text", text={"type": "array"}), PATH), READ_FILE)


@pytest.mark.req("AIP-tools-7")
def test_a_tool_that_says_it_mutates_is_not_bound_to_a_contract_that_only_reads() -> None:
    inputs = input_schema("path", "content", path=STRING, content=STRING)
    (problem,) = refused(entry(), promising({"type": "object"}, inputs), WRITE_FILE)
    assert ", effect: " in problem.message
    declared = promising({"type": "object"}, inputs, mutates=["fs:/workspace"], approval="always")
    assert bound(entry(), declared, WRITE_FILE).warnings == ()


@pytest.mark.req("AIP-tools-7")
@pytest.mark.parametrize(
    "annotations",
    [None, {}, {"title": "x"}, {"readOnlyHint": True}, {"readOnlyHint": None}, {"destructiveHint": False}, "no object"],
    ids=str,
)
def test_undeclared_limits_restrict_nothing(annotations: Any) -> None:
    tool = giving(annotations=annotations) if annotations is not None else giving()
    assert isinstance(matched(entry(), promising({}), tool), Bound)


def test_a_tool_that_says_it_destroys_is_not_bound_to_a_contract_that_only_reads() -> None:
    refused(entry(), promising({}), giving(annotations={"destructiveHint": True}))


@pytest.mark.req("AIP-tools-7")
def test_a_tool_that_says_it_only_reads_relaxes_nothing() -> None:
    careful = promising({}, mutates=["fs:/workspace"], approval="always", risk_level=3)
    found = bound(entry(), careful, giving(annotations={"readOnlyHint": True}))
    assert (found.contract.mutates, found.contract.approval, found.contract.risk_level) == (
        ("fs:/workspace",),
        "always",
        3,
    )


@pytest.mark.req("AIP-tools-8", "AIP-tools-2", "AIP-tools-5")
@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"type": "string", "pattern": "^/"}, "zq"),
        ({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}]}, "zq"),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "zq"),
        ({**STRING, "format": "uri"}, "::no::"),
    ],
    ids=["pattern", "oneOf", "if", "format"],
)
def test_an_undecidable_comparison_is_a_warning_and_is_checked_at_the_call(schema: Any, wrong: str) -> None:
    arguments = {**DRAFT_07, **input_schema("path", path=schema)}
    found = bound(entry(), promising({}, PATH), giving({}, arguments))
    assert len(unverified(found)) >= 1
    failed = found.arguments({"path": wrong}, {})
    assert isinstance(failed, DriverRefusal)
    assert (failed.code, failed.cause) == ("contract_mismatch", {"pointer": "/path"})
    assert wrong not in failed.message


@pytest.mark.parametrize(
    "keyword", [{"anyOf": [input_schema("a"), input_schema("b")]}, {"minProperties": 1}, {"not": input_schema("a")}]
)
def test_rules_about_the_arguments_as_a_whole_are_warned_of(keyword: dict[str, Any]) -> None:
    arguments = {**input_schema(a=STRING, b=STRING), **keyword}
    assert unverified(bound(entry(), promising({}, input_schema(a=STRING, b=STRING)), giving({}, arguments))) != []


@pytest.mark.req("AIP-tools-11", "AIP-tools-8")
@pytest.mark.parametrize("draft", [DRAFT_07, DRAFT_2020_12, {}], ids=["draft-07", "2020-12", "none"])
def test_a_schema_is_read_by_its_own_draft(draft: dict[str, Any]) -> None:
    """The items of a tuple are called differently in the two."""
    pair = {"type": "array", "items": [STRING, {"type": "integer"}]}
    if draft is not DRAFT_07:
        pair = {"type": "array", "prefixItems": [STRING, {"type": "integer"}]}
    found = bound(
        entry(),
        promising({}, input_schema("p", p={"type": "array"})),
        giving({}, {**draft, **input_schema("p", p=pair)}),
    )
    assert found.arguments({"p": ["a", 1]}, {}) == {"p": ["a", 1]}
    assert isinstance(found.arguments({"p": [1, 1]}, {}), DriverRefusal)


@pytest.mark.req("AIP-tools-11")
def test_a_reference_elsewhere_is_not_fetched_and_is_unknown() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        there = f"http://127.0.0.1:{listening.getsockname()[1]}/path.json"
        arguments = input_schema("path", "mode", path={"$ref": there}, mode={"$ref": f"{there}#/$defs/mode"})
        promise = promising({}, input_schema("path", "mode", path=STRING, mode=STRING))
        found = bound(entry(), promise, giving({"$ref": there}, arguments))
        assert found.arguments({"path": "/a", "mode": "x"}, {}) == {"path": "/a", "mode": "x"}
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert any("not fetched" in each for each in unverified(found))
    whole = bound(
        entry(), promising({}, input_schema("p", p=STRING)), giving({"type": "object"}, input_schema("p", p=STRING))
    )
    assert not any("not fetched" in each for each in unverified(whole))


@pytest.mark.req("AIP-tools-11")
@pytest.mark.parametrize("side", ["inputSchema", "outputSchema"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"type": "object", "properties": []},
        {"$ref": "#/$defs/nothing"},
        {"$schema": "https://schemas.example/mine"},
        {"pattern": "("},
        "true",
        5,
        [],
    ],
    ids=str,
)
def test_a_schema_that_does_not_compile_is_refused(side: str, schema: Any) -> None:
    (problem,) = refused(entry(), promising({}), {**giving(), side: schema})
    assert "a schema that does not compile" in problem.message


def test_a_tool_whose_arguments_are_no_object_is_refused() -> None:
    (problem,) = refused(entry(), promising({}), giving(inputs=STRING))
    assert "no object" in problem.message


CIRCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]}


@pytest.mark.parametrize(("inputs", "arguments"), [(CIRCLE, {}), ({}, CIRCLE)], ids=["contract", "server"])
def test_a_reference_in_a_circle_around_the_input_is_warned_of(inputs: Any, arguments: Any) -> None:
    found = bound(entry(), promising({}, {**PATH, **inputs}), giving({}, {**PATH, **arguments}))
    assert any("a reference that is not followed" in each for each in unverified(found))


def test_an_argument_that_only_a_pattern_may_name_is_warned_of() -> None:
    arguments = {**input_schema(), "patternProperties": {"^p": STRING}}
    assert any("/path" in each for each in unverified(bound(entry(), promising({}, PATH), giving({}, arguments))))


def test_arguments_that_are_open_in_one_place_and_closed_in_another_are_closed() -> None:
    halves = [{**input_schema(), "additionalProperties": True}, {**input_schema(), "additionalProperties": False}]
    refused(entry(), promising({}, PATH), giving({}, {"type": "object", "allOf": halves}))


def test_records_are_compared_with_the_parts_their_pattern_names() -> None:
    def promised(*names: str) -> dict[str, Any]:
        return promising({"type": "array", "items": input_schema(*names, **dict.fromkeys(names, STRING))}, PATH)

    records = entry(result_parse={"as": "records", "pattern": "(?P<name>.*)"})
    bound(records, promised("name"), LIST_DIRECTORY)
    (problem,) = refused(records, promised("name", "size"), LIST_DIRECTORY)
    assert "output, /*/size" in problem.message
    assert "result_parse" not in problem.hint


def test_a_tool_that_says_nothing_about_its_input_takes_none() -> None:
    assert isinstance(matched(entry(), promising({}), {"name": "tool"}), Bound)
    refused(entry(), promising({}, input_schema("a", a=STRING)), {"name": "tool"})


def test_a_binding_that_is_wrong_in_itself_is_refused_before_the_tool_is_looked_at() -> None:
    found = matched(entry(mapping={"nothing": "x"}), promising({}), giving(inputs={"type": 5}))
    assert not isinstance(found, Bound)
    assert [each.code for each in found] == ["mapping_invalid"]


def test_another_definition_has_another_digest_and_the_order_of_members_does_not_count() -> None:
    reading = bound(entry(), READS_A_FILE, READ_FILE)
    turned = dict(reversed(READ_FILE.items()))
    assert reading.tool_digest == digest_of(turned)
    assert reading.tool_digest != digest_of({**READ_FILE, "description": "another"})


@pytest.mark.req("AIP-extract-7", "AIP-extract-5")
@pytest.mark.parametrize(
    ("path", "tool", "text"),
    [("$.contents", READ_FILE, "hello\n"), ("$.entries", LIST_DIRECTORY, "[DIR] .git\n[FILE] a.txt")],
    ids=["read_file", "list_directory"],
)
def test_the_specifications_paths_mean_the_text_with_a_warning(path: str, tool: dict[str, Any], text: str) -> None:
    promise = promising(STRING, PATH)
    found = bound(entry(path), promise, tool)
    assert [(each.code, each.severity) for each in found.warnings] == [("extract_text_fallback", "warning")]
    assert not bound(entry(path), promise, tool, entry=HookEntry(parses=True)).warnings  # its hook reads the result
    result = {"content": [{"type": "text", "text": text}], "structuredContent": {"content": text}}
    assert found.value(result) == text
    assert found.value({"content": [{"type": "text", "text": text}]}) == text
    looks_like = '{"contents":"x","entries":"x"}'
    assert found.value({"content": [{"type": "text", "text": looks_like}]}) == looks_like
    (missing,) = refused(entry(path, text_fallback=False), promise, tool)
    assert "the contract has outputs, the server has nothing of this name" in missing.message
    (problem,) = refused(entry(path), promising({"type": "array"}, PATH), tool)
    assert "result_parse" in problem.hint


def test_a_text_falls_back_only_in_results_that_are_text_shaped() -> None:
    found = bound(entry("$.contents"), promising(STRING, PATH), READ_FILE)
    text = {"type": "text", "text": "a"}
    for result in (
        {"content": [text], "structuredContent": {"content": "another"}},
        {"content": [text], "structuredContent": {"content": "a", "more": 1}},
        {"content": [text, text], "structuredContent": {"content": "a"}},
        {"content": [], "structuredContent": {"content": "a"}},
    ):
        failed = found.value(result)
        assert isinstance(failed, DriverRefusal) and failed.code == "output_parse_failed"


def test_problems_say_the_line_of_the_binding() -> None:
    driver, one, promised = files(entry(), promising({}))
    found = match(driver, one, promised, giving(inputs=input_schema("x", x=STRING)))
    assert isinstance(found, tuple)
    assert {each.line for each in found} == {driver.places.line("/implements/0")}


@pytest.mark.req("AIP-tools-11")
@pytest.mark.parametrize(
    "properties",
    [
        {f"p{number}": {"pattern": f"^(\\w{{1,{100 + number}}}){{1,3}}N$"} for number in range(51)},
        {"p": {"pattern": "a" * 1001}},
        {"p": {"patternProperties": {f"^x{number}": {} for number in range(51)}}},
    ],
    ids=["many", "long", "many names"],
)
def test_a_schema_with_more_patterns_than_can_be_compiled_in_time_counts_as_none(properties: dict[str, Any]) -> None:
    assert compile_schema({"type": "object", "properties": properties}) is None
    kept = {"p": {"pattern": "^a{1,64}$"}, "q": {"patternProperties": {"^x": {"type": "string"}}}}
    assert compile_schema({"type": "object", "properties": kept}) is not None
