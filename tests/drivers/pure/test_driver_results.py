"""Is the contract's value taken out of a server's result, in the way settled at registration and in no other?"""

import ast
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drivers.driver_bindings import (
    ECHO,
    LIST_DIRECTORY,
    READ_GRAPH,
    READ_QUERY,
    STRING,
    bound,
    entry,
    giving,
    input_schema,
    matched,
    promising,
    text_result,
)
from tests.drivers.driver_texts import as_driver, driver

from interlock.drivers.protocol import result_path as patterns
from interlock.drivers.protocol.binding.match import Bound
from interlock.drivers.protocol.binding.results import NotPlain, read_literal
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.wire.jsonrpc.codec import decode_value

PATH = input_schema("path", path=STRING)
LISTED = r"^\[(?P<type>DIR|FILE)\] (?P<name>.*)$"
IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}


def failed(found: Bound, result: dict[str, Any]) -> DriverRefusal:
    value = found.value(result)
    assert isinstance(value, DriverRefusal), value
    assert value.code == "output_parse_failed"
    assert value.retryable is False
    return value


def reading(extract: str | None = None, outputs: Any = None, tool: Any = None, **ours: Any) -> Bound:
    return bound(entry(extract, **ours), promising({} if outputs is None else outputs), tool or giving())


@pytest.mark.req("AIP-extract-4")
def test_the_structured_content_is_what_a_path_works_on() -> None:
    now = giving(input_schema("timezone", "datetime", timezone=STRING, datetime=STRING), input_schema())
    result = text_result('{"timezone": "Z"}', structuredContent={"timezone": "Europe/Berlin", "datetime": "2026"})
    assert reading("$.timezone", STRING, now).value(result) == "Europe/Berlin"
    graph = {"entities": [{"name": "a", "entityType": "b", "observations": []}], "relations": []}
    read = reading("$.entities", {"type": "array"}, READ_GRAPH)
    assert read.value(text_result("another text", structuredContent=graph)) == graph["entities"]


@pytest.mark.req("AIP-extract-4", "AIP-extract-5")
def test_texts_are_under_content_joined_by_line_feeds() -> None:
    echo = bound(entry("$.content"), promising(STRING, input_schema("message", message=STRING)), ECHO)
    assert echo.value(text_result("Echo: hi")) == "Echo: hi"
    assert echo.value(text_result("a", "b")) == "a\nb"
    assert reading("$.content").value({"content": []}) == ""
    assert reading().value(text_result("x")) == {"content": "x"}


@pytest.mark.req("AIP-extract-4")
def test_blocks_that_are_not_all_text_stay_under_content_as_they_are() -> None:
    result = {"content": [{"type": "text", "text": "Here:"}, IMAGE, {"type": "text", "text": "There."}]}
    assert reading("$.content[1].data", STRING).value(result) == IMAGE["data"]
    assert reading("$.content[?(@.type=='image')].mimeType").value(result) == ["image/png"]
    assert reading().value(result) == {"content": result["content"]}


@pytest.mark.req("AIP-extract-4")
@pytest.mark.parametrize("structured", [False, [], None, 0, "", {}], ids=str)
def test_any_structured_content_counts_as_present(structured: Any) -> None:
    value = reading().value(text_result("x", structuredContent=structured))
    assert value == structured and type(value) is type(structured)


def test_big_integers_in_a_result_stay_what_they_are() -> None:
    result = decode_value(b'{"structuredContent":{"n":123456789012345678901234567890}}')
    assert reading("$.n", {"type": "integer"}).value(result) == 123456789012345678901234567890
    parsed = reading("$.n", {"type": "integer"}, result_parse={"as": "json"})
    assert parsed.value(text_result('{"n":18446744073709551617}')) == 18446744073709551617


@pytest.mark.req("AIP-extract-5")
def test_text_that_satisfies_the_contract_is_not_read_as_json() -> None:
    whole = reading(outputs=input_schema("content", content=STRING))
    assert whole.mode == "text"
    assert whole.value(text_result('{"content":"x"}')) == {"content": '{"content":"x"}'}
    assert reading("$.content[0].data", STRING).value({"content": [IMAGE]}) == IMAGE["data"]  # no text to read


@pytest.mark.req("AIP-extract-5")
def test_text_that_cannot_satisfy_the_contract_is_read_as_json() -> None:
    rows = reading("$.rows", {"type": "array"})
    assert rows.mode == "json"
    assert rows.value(text_result('{"rows":[1,2]}')) == [1, 2]
    for text in ("not JSON", "", '{"rows":[1', "{'rows': []}", "NaN", "\ud800"):
        assert "JSON" in failed(rows, text_result(text)).message


@pytest.mark.parametrize(
    ("extract", "outputs", "tool", "ours", "mode"),
    [
        (None, {}, giving({"type": "object"}), {}, "structured"),
        (None, {}, giving(), {}, "text"),
        (None, STRING, giving(), {}, "json"),
        ("$.content", STRING, giving(), {}, "text"),
        ("$.content[1].data", STRING, giving(), {}, "text"),
        ("$.anything", STRING, giving(), {}, "text"),
        ("$.data.name", STRING, giving(), {}, "json"),
        (None, {"type": "array"}, giving(), {}, "json"),
        (None, input_schema("rows", rows={"type": "array"}), giving(), {}, "json"),
        (
            None,
            input_schema("text", text=input_schema("content", content=STRING)),
            giving(),
            {"result_wrap": "text"},
            "text",
        ),
        (None, {"type": "array"}, giving({"type": "object"}), {"result_parse": {"as": "lines"}}, "lines"),
        (None, {}, giving({"type": "object"}), {"result_parse": {"as": "python_literal"}}, "python_literal"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.req("AIP-extract-5", "AIP-extract-4")
def test_how_text_is_read_is_settled_by_the_files_and_the_list(
    extract: str | None, outputs: Any, tool: Any, ours: dict[str, Any], mode: str
) -> None:
    assert reading(extract, outputs, tool, **ours).mode == mode


@pytest.mark.req("AIP-extract-4", "AIP-extract-7")
@pytest.mark.parametrize(
    ("extract", "codes"),
    [
        ("$.content", ["contract_unverified"]),
        ("$", ["contract_unverified"]),
        ("$.anything", ["contract_unverified", "extract_text_fallback"]),
    ],
)
def test_only_a_name_that_no_text_has_falls_back_with_a_warning(extract: str, codes: list[str]) -> None:
    assert [each.code for each in reading(extract).warnings] == codes


@pytest.mark.parametrize(
    ("source", "offered", "mode"),
    [("auto", {"type": "object"}, "structured"), ("text", {"type": "object"}, "text"), ("auto", None, "text")],
)
def test_a_part_that_is_named_and_not_read_has_the_mode_of_that_part(source: str, offered: Any, mode: str) -> None:
    assert reading(None, {}, giving(offered), result_parse={"from": source}).mode == mode


@pytest.mark.req("AIP-extract-5")
def test_structured_content_that_is_missing_is_replaced_by_the_text_read_as_json() -> None:
    numbers = reading("$.n", {"type": "integer"}, giving(input_schema("n", "m", n={"type": "integer"}, m=STRING)))
    assert numbers.value(text_result('{"n":5,"m":""}')) == 5
    failed(numbers, text_result("five"))


@pytest.mark.req("AIP-extract-6")
def test_a_path_that_leads_nowhere_is_an_error_and_never_null() -> None:
    error = failed(reading("$.rows", {"type": "array"}), text_result('{"items":[]}'))
    assert "$.rows" in error.message and ".rows leads nowhere" in error.message and "'items'" in error.message
    assert error.cause == {"step": ".rows"}
    for path in ("$.a[3]", "$.b.c", "$.a[*].x"):
        failed(reading(path, {}, result_parse={"as": "json"}), text_result('{"a":[1],"b":"text"}'))


@pytest.mark.req("AIP-extract-6")
def test_a_null_that_is_there_is_returned() -> None:
    assert reading("$.a", {}, result_parse={"as": "json"}).value(text_result('{"a":null}')) is None


@pytest.mark.req("AIP-extract-8")
def test_python_literals_become_rows() -> None:
    one = entry("$.rows", result_parse={"as": "python_literal", "into": "rows"})
    query = bound(one, promising({"type": "array"}, input_schema("query", query=STRING)), READ_QUERY)
    assert query.value(text_result("[{'a': 1}]")) == [{"a": 1}]
    assert query.value(text_result("[]")) == []
    for text in ("[{'a': b}]", "__import__('os')", "[{'a': 1}", "[b'x']", "{1: 2}", "[1 for x in y]", "Error: no"):
        assert "Python literal" in failed(query, text_result(text)).message


@pytest.mark.req("AIP-extract-8")
def test_marked_lines_become_records() -> None:
    outputs = {"type": "array", "items": input_schema("type", "name", type={"enum": ["DIR", "FILE"]}, name=STRING)}
    one = entry("$.entries", result_parse={"as": "records", "pattern": LISTED, "into": "entries"})
    listing = bound(one, promising(outputs, PATH), LIST_DIRECTORY)
    text = "[DIR] .git\n[FILE] a b.txt\r\n[FILE] é\u2028x\n"
    assert listing.mode == "records"
    assert listing.value(text_result(text, structuredContent={"content": text})) == [
        {"type": "DIR", "name": ".git"},
        {"type": "FILE", "name": "a b.txt"},
        {"type": "FILE", "name": "é\u2028x"},
    ]
    assert listing.value(text_result("")) == []
    error = failed(listing, text_result("[DIR] a\n[LINK] secret-name"))
    assert error.cause == {"line": 2}
    assert "secret-name" not in error.message


@pytest.mark.req("AIP-extract-8")
def test_lines_json_and_text_are_read_as_such() -> None:
    assert reading(result_parse={"as": "lines"}).value(text_result("a\n\nb\n")) == ["a", "", "b"]
    assert reading(outputs={"type": "array", "items": STRING}, result_parse={"as": "lines"}).warnings == ()
    assert reading(result_parse={"as": "json"}).value(text_result('[{"a":1}]')) == [{"a": 1}]
    assert reading(result_parse={"as": "text"}).value(text_result("x")) == "x"
    assert reading("$.it", result_parse={"as": "text", "into": "it"}).value(text_result("x", "y")) == "x\ny"
    failed(reading(result_parse={"as": "json"}), text_result("{"))


@pytest.mark.req("AIP-extract-8")
def test_a_value_is_wrapped_where_the_binding_says_so() -> None:
    wrapped = reading("$.content", input_schema("text", text=STRING), result_wrap="text")
    assert wrapped.value(text_result("x")) == {"text": "x"}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("auto", {"content": "s"}),
        ("structured", {"content": "s"}),
        ("text", "t"),
        ("content", [{"type": "text", "text": "t"}]),
        ("result", {"content": [{"type": "text", "text": "t"}], "structuredContent": {"content": "s"}}),
    ],
)
def test_the_part_of_the_result_that_is_read_can_be_named(source: str, value: Any) -> None:
    result = text_result("t", structuredContent={"content": "s"})
    assert reading(result_parse={"from": source}).value(result) == value


def test_a_text_inside_structured_content_can_be_read() -> None:
    lines = reading(result_parse={"from": "structured", "as": "lines"})
    assert lines.value(text_result("t", structuredContent={"content": "a\nb"})) == ["a", "b"]
    failed(lines, text_result("t", structuredContent={"content": "a", "more": 1}))
    failed(lines, text_result("t"))
    failed(reading(result_parse={"as": "lines"}), {"content": [IMAGE]})


@pytest.mark.parametrize(
    ("parse", "why"),
    [
        ({"as": "records"}, "there is none"),
        ({"as": "lines", "pattern": "(?P<a>.)"}, "records alone"),
        ({"pattern": "(?P<a>.)"}, "records alone"),
        ({"as": "records", "pattern": "(?P<a>"}, "no pattern of RE2"),
        ({"as": "records", "pattern": r"(?P<a>.)(?=b)"}, "lookaround"),
        ({"as": "records", "pattern": r"(?P<a>.)(?P=a)"}, "no pattern of RE2"),
        ({"as": "records", "pattern": "(.)"}, "names no part"),
        ({"as": "records", "pattern": "(?P<a>(x{900}){900})"}, "no pattern of RE2"),
        ({"as": "records", "pattern": "(?P<a>" + "x" * 2000 + ")"}, "characters"),
    ],
    ids=str,
)
def test_a_pattern_that_does_not_work_is_refused_with_the_file(
    parse: dict[str, str], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = as_driver(driver(implements=[entry(result_parse=parse)]))
    assert found.value is None
    (problem,) = found.problems
    assert (problem.code, problem.field) == ("pattern_invalid", "/implements/0/metadata/interlock/result_parse")
    assert why in problem.message
    assert capfd.readouterr().err == ""


def test_without_re2_a_pattern_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    said = patterns.read_pattern("(?P<a>.)")
    assert isinstance(said, str) and "interlock[records]" in said


@pytest.mark.req("AIP-extract-8")
def test_no_line_makes_a_pattern_take_long() -> None:
    """In an engine that goes back, this takes longer than the universe is old."""
    pattern = "(?P<a>(x+x+)+)(?P<b>(.*)*)(?P<c>.*.*.*=.*)y"
    slow = reading(result_parse={"as": "records", "pattern": pattern})
    started = time.process_time()
    failed(slow, text_result("x" * 100_000))
    assert time.process_time() - started < 2


@pytest.mark.req("AIP-tools-14")
def test_a_value_that_fails_the_contract_is_not_returned() -> None:
    outputs = input_schema("rows", rows={"type": "array", "items": input_schema("id", id={"type": "integer"})})
    found = reading(outputs=outputs, tool=giving({}))
    wrong = {"rows": [{"id": 1}, {"id": "secret-value"}]}
    error = failed(found, {"content": [], "structuredContent": wrong})
    assert error.cause == {"pointer": "/rows/1/id"}
    assert "/rows/1/id" in error.message and "secret-value" not in error.message
    assert failed(found, {"structuredContent": {"rows": [{}]}}).cause == {"pointer": "/rows/0/id"}
    assert found.value({"structuredContent": {"rows": [{"id": 1}]}}) == {"rows": [{"id": 1}]}


@pytest.mark.req("AIP-tools-14")
def test_dropped_outputs_are_removed_before_the_check() -> None:
    outputs = {**input_schema("a", a=STRING, b={"type": "integer"}), "additionalProperties": False}
    result = {"structuredContent": {"a": "x", "b": "no integer"}}
    failed(bound(entry(), promising(outputs), giving({})), result)
    narrowed = entry(own_schema_narrowing={"drop_outputs": ["b"]})
    assert bound(narrowed, promising(outputs), giving({})).value(result) == {"a": "x"}
    assert result == {"structuredContent": {"a": "x", "b": "no integer"}}


def test_nothing_is_dropped_from_a_value_that_is_no_object() -> None:
    narrowed = entry(own_schema_narrowing={"drop_outputs": ["b"]})
    outputs = {"type": ["object", "array"], "properties": {"b": STRING}}
    assert bound(narrowed, promising(outputs), giving({})).value({"structuredContent": ["b"]}) == ["b"]


def test_an_output_that_the_contract_promises_is_not_dropped() -> None:
    narrowed = entry(own_schema_narrowing={"drop_outputs": ["a"]})
    found = matched(narrowed, promising(input_schema("a", a=STRING)), giving({}))
    assert not isinstance(found, Bound)
    assert [each.code for each in found] == ["narrowing_invalid"]


def test_output_of_driver_py_is_checked_like_any_other() -> None:
    found = bound(entry(), promising(input_schema("a", a=STRING), PATH), giving({}, PATH))
    assert found.satisfying({"a": "x"}) == {"a": "x"}
    assert isinstance(found.satisfying({"a": 1}), DriverRefusal)
    assert found.check_arguments({"path": "/a"}) == {"path": "/a"}
    refused = found.check_arguments({"path": 1})
    assert isinstance(refused, DriverRefusal) and refused.code == "contract_mismatch"


@pytest.mark.req("AIP-tools-13")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "text", "text": "Access denied - path outside"}], "Access denied - path outside"),
        ([{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}], "a\nb"),
        ([], "unknown"),
        ([IMAGE], "unknown"),
        (None, "unknown"),
    ],
)
def test_an_error_of_the_server_is_passed_on_and_nothing_is_extracted(content: Any, message: str) -> None:
    found = reading("$.rows", {"type": "array"})
    error = found.value({"content": content, "isError": True, "structuredContent": {"rows": []}})
    assert isinstance(error, DriverRefusal)
    assert (error.code, error.message) == ("upstream_error", message)


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"content": None},
        {"content": "text"},
        {"content": [1, None, "x"]},
        {"content": [{"type": "text", "text": 5}]},
    ],
    ids=str,
)
def test_a_result_of_any_shape_gives_a_value_or_an_error(result: dict[str, Any]) -> None:
    for found in (reading(), reading("$.a.b", {}), reading(result_parse={"as": "json"})):
        found.value(result)
    assert isinstance(reading("$.a.b", {"type": "array"}).value(result), DriverRefusal)


def test_a_value_nested_too_deeply_is_an_error_and_not_a_crash() -> None:
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    recursive = {"$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}, "$ref": "#/$defs/l"}
    value = reading(outputs=recursive, tool=giving({})).value({"structuredContent": deep})
    assert isinstance(value, DriverRefusal) or value == deep


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3), st.tuples(inner, inner)
    ),
    max_leaves=10,
)


def _listed(value: Any) -> Any:
    """Tuples are arrays in JSON."""
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    return {key: _listed(each) for key, each in value.items()} if isinstance(value, dict) else value


@given(PLAIN)
def test_any_plain_data_written_by_python_is_read_back(value: Any) -> None:
    assert read_literal(repr(value)) == _listed(value)


@given(st.text(alphabet="[](){}'\"\\,: 01.eE+-xnuUNoneTrueFals\n", max_size=20))
def test_python_reads_every_accepted_literal_the_same(text: str) -> None:
    try:
        value = read_literal(text)
    except NotPlain:
        return
    assert value == _listed(ast.literal_eval(text.strip()))


def test_a_literal_nested_without_end_is_refused() -> None:
    for text in ("[" * 100_000, "(" * 5000 + ")" * 5000, "{'a':" * 5000, "1" * 100_000, "[1," * 90_000):
        with pytest.raises(NotPlain):
            read_literal(text)
