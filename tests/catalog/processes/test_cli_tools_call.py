"""Is `tools call` an MCP client of 2026-07-28, with results that people and programs can use?"""

import base64
import json
from collections.abc import Iterator

import pytest
from tests.cli.program import Inline, Interlock
from tests.operator.fake_node import FakeOperations, FakePublicEndpoint, tcp_listener, url_of

from interlock.catalog.cli.tools import argument_value, arguments_of


@pytest.fixture
def door(node: FakeOperations, public_endpoint: FakePublicEndpoint) -> Iterator[FakePublicEndpoint]:
    yield public_endpoint


def test_a_call_carries_the_headers_and_meta_of_its_revision(interlock: Interlock, door: FakePublicEndpoint) -> None:
    done = interlock("tools", "call", "demo.say", "--arg", "text=hi", "--arg", "region=Zürich")
    assert done.code == 0
    (list_headers, list_body), *_, (headers, body) = door.requests
    assert (list_headers["mcp-method"], list_body["method"]) == ("tools/list", "tools/list")
    assert "mcp-name" not in list_headers
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert (headers["mcp-method"], headers["mcp-name"]) == ("tools/call", "demo__say")
    assert headers["mcp-param-region"] == f"=?base64?{base64.b64encode('Zürich'.encode()).decode()}?="
    assert headers["accept"] == "application/json, text/event-stream"
    meta = body["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
    assert body["params"]["name"] == "demo__say"


@pytest.mark.parametrize("name", ["demo.say", "demo__say"])
def test_a_tool_answers_to_its_qualified_name_and_its_alias(
    inline: Inline, door: FakePublicEndpoint, name: str
) -> None:
    assert inline("tools", "call", name).out == "you said {}\n"


def test_a_tool_on_a_later_page_is_found(inline: Inline, door: FakePublicEndpoint) -> None:
    assert inline("tools", "call", "demo.escape").code == 0
    assert [body["params"].get("cursor") for _, body in door.requests] == [None, "more", None]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("text=5", {"text": "5"}),
        ('text={"a":1}', {"text": '{"a":1}'}),
        ("text=", {"text": ""}),
        ("text=a=b", {"text": "a=b"}),
        ("count=5", {"count": 5}),
        ("count=five", {"count": "five"}),
        ("any=true", {"any": True}),
        ("any=[1,2]", {"any": [1, 2]}),
        ("any=NaN", {"any": "NaN"}),
        ("any=123456789012345678901234567890", {"any": 123456789012345678901234567890}),
        ("unknown=null", {"unknown": None}),
    ],
)
def test_an_argument_is_json_unless_the_schema_wants_text(pair: str, expected: dict[str, object]) -> None:
    schema = FakePublicEndpoint().tools[0]["inputSchema"]
    name, _, text = pair.partition("=")
    assert {name: argument_value(schema, name, text)} == expected


@pytest.mark.parametrize(
    "schema",
    [None, [], "x", True, {"properties": []}, {"properties": {"a": 7}}, {"properties": {"a": {"type": 3}}}, {"a": {}}],
)
def test_a_schema_that_is_none_says_nothing_about_an_argument(schema: object) -> None:
    assert argument_value(schema, "a", "5") == 5
    assert argument_value(schema, "a", "five") == "five"
    assert all(argument.kind == "any" for argument in arguments_of(schema))


def test_a_choice_of_texts_is_text() -> None:
    schema = {
        "properties": {"unit": {"enum": ["1", "2"]}, "fixed": {"const": "7"}, "maybe": {"type": ["string", "null"]}}
    }
    assert argument_value(schema, "unit", "1") == "1"
    assert argument_value(schema, "fixed", "7") == "7"
    assert argument_value(schema, "maybe", "null") is None


def test_arguments_are_sent_as_they_were_meant(interlock: Interlock, door: FakePublicEndpoint) -> None:
    interlock("tools", "call", "demo.say", "-a", "text=5", "-a", "count=5", "-a", "any=[1]", "-a", "text=6")
    assert door.requests[-1][1]["params"]["arguments"] == {"text": "6", "count": 5, "any": [1]}


def test_arguments_come_as_one_object_from_the_line_or_from_stdin(
    interlock: Interlock, door: FakePublicEndpoint
) -> None:
    interlock("tools", "call", "demo.say", "--args-json", '{"count": 1, "text": "a"}', "--arg", "count=2")
    assert door.requests[-1][1]["params"]["arguments"] == {"count": 2, "text": "a"}
    interlock("tools", "call", "demo.say", "--args-json", "-", stdin='{"text": "from stdin"}')
    assert door.requests[-1][1]["params"]["arguments"] == {"text": "from stdin"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--arg", "novalue"),
        ("--arg", "=x"),
        ("--args-json", "{"),
        ("--args-json", "[]"),
        ("--args-json", "[" * 100_000),
        ("--timeout", "0"),
    ],
)
def test_arguments_that_are_none_are_wrong_usage(
    inline: Inline, door: FakePublicEndpoint, arguments: tuple[str, ...]
) -> None:
    done = inline("tools", "call", "demo.say", *arguments)
    assert (done.code, done.out) == (2, "")
    assert door.requests == []


def test_structured_content_keeps_its_digits(inline: Inline, door: FakePublicEndpoint) -> None:
    drawn = inline("tools", "call", "demo.structured").out
    assert '"big": 123456789012345678901234567890' in drawn
    assert '"x": 1.10' in drawn
    raw = inline("tools", "call", "demo.structured", "--json").out
    assert '"x": 1.10' in raw
    assert json.loads(raw)["structuredContent"]["big"] == 123456789012345678901234567890


def test_an_image_is_a_note(inline: Inline, door: FakePublicEndpoint) -> None:
    assert inline("tools", "call", "demo.image").out == "(image image/png, 5 bytes; --json has it)\n"
    assert inline("tools", "call", "demo.image", "--json").json["content"][0]["data"] == "aGVsbG8="


def test_an_error_of_the_tool_exits_1_with_its_words(interlock: Interlock, door: FakePublicEndpoint) -> None:
    done = interlock("tools", "call", "demo.fail")
    assert (done.code, done.out, done.err) == (1, "no such thing\n", "the tool reports an error\n")
    as_json = interlock("tools", "call", "demo.fail", "--json")
    assert (as_json.code, as_json.err, as_json.json["isError"]) == (1, "", True)


def test_an_error_of_the_way_names_its_code(inline: Inline, door: FakePublicEndpoint) -> None:
    done = inline("tools", "call", "demo.degraded")
    assert (done.code, done.out) == (1, "")
    assert "tool_degraded (subserver_unreachable), code 32002" in done.err
    assert "interlock explain 32002" in done.err
    assert inline("tools", "call", "demo.degraded", "--json").json["details"]["code"] == 32002
    differs = inline("tools", "call", "demo.mismatch").err
    assert "surface_mismatch: argument /q" in differs and "differs, code 32140" in differs and "\x1b" not in differs


def test_progress_goes_to_stderr(interlock: Interlock, door: FakePublicEndpoint) -> None:
    done = interlock("tools", "call", "demo.progress")
    assert done.out == "arrived\n"
    assert done.err == "progress: 1 of 2: step 1\nprogress: 2 of 2: step 2\n"
    assert interlock("tools", "call", "demo.progress", "--json").json["content"][0]["text"] == "arrived"


def test_results_of_tools_cannot_control_the_terminal(inline: Inline, door: FakePublicEndpoint) -> None:
    assert inline("tools", "call", "demo.escape").out == "\\x1b]0;owned\\x07\n"


def test_a_tool_that_asks_back_is_refused(inline: Inline, door: FakePublicEndpoint) -> None:
    done = inline("tools", "call", "demo.ask")
    assert done.code == 1
    assert "asks its caller for input" in done.err


def test_an_answer_that_breaks_off_is_refused(inline: Inline, door: FakePublicEndpoint) -> None:
    done = inline("tools", "call", "demo.breaks_off")
    assert done.code == 1
    assert "before the result" in done.err


def test_an_unknown_tool_is_refused_with_the_nearest(interlock: Interlock, door: FakePublicEndpoint) -> None:
    done = interlock("tools", "call", "demo.progres")
    assert (done.code, done.out) == (1, "")
    assert "there is no tool demo.progres\n" in done.err
    assert "did you mean demo.progress" in done.err
    assert "__" not in done.err
    assert "did you mean demo__progress" in interlock("tools", "call", "demo__progres").err


def test_whether_a_tool_exists_is_the_nodes_to_say(inline: Inline, door: FakePublicEndpoint) -> None:
    done = inline("tools", "call", "no such/tool", "--arg", "n=5", "--json")
    assert (done.code, done.json["error"]) == (1, "tool_not_found")
    assert done.json["details"]["code"] == -32601
    headers, body = door.requests[-1]
    assert (body["method"], headers["mcp-name"]) == ("tools/call", "no such/tool")
    assert (body["params"]["name"], body["params"]["arguments"]) == ("no such/tool", {"n": 5})


def test_an_endpoint_that_needs_a_token_gets_it_from_flag_or_environment(
    inline: Inline, door: FakePublicEndpoint
) -> None:
    door.token = "ilc_" + "t" * 43
    refused = inline("tools", "call", "demo.say")
    assert refused.code == 1
    assert "interlock access token --for client" in refused.err
    assert inline("tools", "call", "demo.say", "--token", door.token).code == 0
    assert inline("tools", "call", "demo.say", INTERLOCK_TOKEN=door.token).code == 0


def test_an_operators_token_is_not_shown_to_the_public_endpoint(inline: Inline, door: FakePublicEndpoint) -> None:
    assert inline("tools", "call", "demo.say", INTERLOCK_TOKEN="ilo_" + "t" * 43).code == 0
    assert all("authorization" not in headers for headers, _ in door.requests)


def test_with_a_public_url_no_operator_endpoint_is_needed(
    inline: Inline, public_endpoint: FakePublicEndpoint, operations: FakeOperations
) -> None:
    base = operations.url.removesuffix("/mcp")
    assert inline("tools", "call", "demo.say", "--url", base).code == 0
    assert inline("tools", "call", "demo.say", "--url", operations.url).code == 0
    assert inline("tools", "call", "demo.say", "--url", f"{base}/elsewhere").code == 1


def test_an_endpoint_that_never_answers_is_reported_unreachable_in_time(inline: Inline) -> None:
    with tcp_listener() as silent:  # the kernel takes the connection and the request, nobody answers
        done = inline("tools", "call", "x.y", "--url", url_of(silent), "--timeout", "0.2")
    assert (done.code, done.out) == (4, "")
    assert "did not answer in time" in done.err
