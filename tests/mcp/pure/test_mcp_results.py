"""Does a result or an error of one era become one of the other, and lose nothing that the other can hold?"""

import json
from typing import Any

import pytest
from msgspec import Raw
from tests.mcp.mcp_schema import LEGACY, MODERN, complaints

from interlock.mcp.methods import (
    COMPLETE,
    PROMPTS_GET,
    RESOURCES_READ,
    TOOLS_CALL,
    TOOLS_LIST,
)
from interlock.mcp.results import error_to_legacy, error_to_modern, result_to_legacy, result_to_modern
from interlock.wire.jsonrpc.codec import encode_refusal, encode_value, error_body
from interlock.wire.refusal import FORMS, INTERNAL_ERROR, METHOD_NOT_FOUND, Refusal

ODD = rb'"x":{ "z":1.0 , "a":1208925819614629174706175,"e":1e400,"s":"\u00e9\/"},"_meta":{"k":null}'
BODIES = {
    TOOLS_CALL: ("CallToolResult", b'"content":[{"type":"text","text":"t"}]'),
    PROMPTS_GET: ("GetPromptResult", b'"messages":[]'),
    RESOURCES_READ: ("ReadResourceResult", b'"contents":[{"uri":"a:b","text":""}]'),
    COMPLETE: ("CompleteResult", b'"completion":{"values":[]}'),
    TOOLS_LIST: ("ListToolsResult", b'"tools":[]'),
}
CACHEABLE = {RESOURCES_READ, TOOLS_LIST}


@pytest.mark.parametrize("method", BODIES)
def test_a_legacy_result_gains_what_a_modern_result_needs(method: str) -> None:
    definition, members = BODIES[method]
    text = result_to_modern(Raw(b"{%b, %b}" % (members, ODD)), method)
    hints = b',"ttlMs":0,"cacheScope":"private"' if method in CACHEABLE else b""
    assert text == b'{"resultType":"complete",%b,%b%b}' % (members, ODD, hints)
    assert complaints(MODERN, definition, text) == []


@pytest.mark.parametrize("method", BODIES)
def test_a_modern_result_loses_what_a_legacy_client_does_not_know(method: str) -> None:
    definition, members = BODIES[method]
    given = b'{"resultType":"complete","ttlMs":1.0e3,%b,"cacheScope":"public",%b}' % (members, ODD)
    text = result_to_legacy(Raw(given))
    assert text == b"{%b,%b}" % (members, ODD)
    assert complaints(LEGACY, definition, text) == []


def test_hints_that_are_there_are_kept() -> None:
    given = b'{"cacheScope":"public","resultType":"complete","contents":[],"ttlMs":5}'
    assert result_to_modern(Raw(given), RESOURCES_READ) == given


def test_a_result_without_a_type_is_complete() -> None:
    assert result_to_legacy(Raw(b'{"content": []}')) == b'{"content":[]}'


@pytest.mark.parametrize("value", [b"null", b"[1, 2.0]", b"1", b'"{"', b"true"])
@pytest.mark.parametrize(
    "before", [b"", b'{"type":"text","text":"other"}', b'{"type":"image","data":"","mimeType":"x"}']
)
def test_structured_content_that_is_no_object_reaches_legacy_clients_as_text(value: bytes, before: bytes) -> None:
    text = result_to_legacy(
        Raw(b'{"resultType":"complete","content":[%b],"structuredContent":%b,"isError":false}' % (before, value))
    )
    assert isinstance(text, bytes) and complaints(LEGACY, "CallToolResult", text) == []
    told = json.loads(text)
    assert told["isError"] is False and "structuredContent" not in told
    assert told["content"][-1] == {"type": "text", "text": value.decode()}
    assert told["content"][:-1] == json.loads(b"[%b]" % before)


@pytest.mark.parametrize(("value", "said"), [(b"[1]", "[ 1 ]"), (b'"a"', '"a"'), (b'"a b"', "a b"), (b"1.0", "1.0")])
def test_a_text_that_says_the_same_already_is_not_repeated(value: bytes, said: str) -> None:
    content = encode_value([{"type": "text", "text": said}])
    text = result_to_legacy(Raw(b'{"resultType":"complete","content":%b,"structuredContent":%b}' % (content, value)))
    assert text == b'{"content":%b}' % content


def test_structured_content_that_is_an_object_keeps_its_bytes() -> None:
    given = b'{"content":[],"structuredContent":{ "a" : 1.0 }}'
    assert result_to_legacy(Raw(given)) == given


UNKNOWN_KINDS = [b'"Task"', b'""', b"null", b"1", rb'"\ud800"', b"[]"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(b'"input_required"', "input_required_across_eras"), *((kind, "result_type_unknown") for kind in UNKNOWN_KINDS)],
)
def test_a_result_a_legacy_client_cannot_have_is_a_named_refusal(kind: bytes, reason: str) -> None:
    refusal = result_to_legacy(Raw(b'{"resultType":%b,"content":[]}' % kind))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.details) == (INTERNAL_ERROR, {"reason": reason})
    assert complaints(LEGACY, "JSONRPCErrorResponse", encode_refusal(b"1", refusal)) == []


@pytest.mark.parametrize("result", [b"", b"null", b"[]", b'"x"', b"1"])
def test_a_result_that_is_no_object_is_the_servers_fault(result: bytes) -> None:
    for refusal in (result_to_modern(Raw(result), TOOLS_CALL), result_to_legacy(Raw(result))):
        assert isinstance(refusal, Refusal)
        assert refusal.code == INTERNAL_ERROR


NEEDS_TASKS = {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
ACROSS = {"reason": "task_across_eras", "client_era": "legacy", "server_era": "modern"}


def test_a_tool_that_runs_only_as_a_task_says_so_to_a_legacy_client() -> None:
    made = result_to_legacy(Raw(b'{"resultType":"task","taskId":"t"}'))
    assert isinstance(made, Refusal)
    refused = json.dumps({"code": -32021, "message": "m", "data": NEEDS_TASKS}).encode()
    text = error_to_legacy(Raw(refused), TOOLS_CALL)
    assert text == error_body(made)
    assert (made.code, made.details) == (METHOD_NOT_FOUND, ACROSS)
    assert "2026-07-28" in made.message
    assert "2025-11-25" in made.message


@pytest.mark.parametrize(
    "error",
    [
        {"code": -32021, "message": "io.modelcontextprotocol/tasks"},
        {"code": -32021, "message": "m", "data": {"requiredCapabilities": {"sampling": {}}, "x": list(NEEDS_TASKS)}},
        {"code": -32602, "message": "m", "data": NEEDS_TASKS},
    ],
)
def test_an_error_that_only_speaks_of_tasks_is_what_it_is(error: dict[str, Any]) -> None:
    assert json.loads(error_to_legacy(Raw(json.dumps(error).encode()), TOOLS_CALL))["message"] == error["message"]


TO_MODERN = {-32002: -32602, -32042: -32603, -32601: -32601, -32000: -32000, 7: 7, -32602: -32602}
TO_LEGACY = {-32020: -32600, -32021: -32600, -32022: -32600, -32601: -32601, 32002: 32002, -32602: -32602}


@pytest.mark.parametrize(("code", "expected"), TO_MODERN.items())
def test_codes_retired_in_2026_are_not_sent_to_modern_clients(code: int, expected: int) -> None:
    text = error_to_modern(Raw(b'{"code":%d,"message":"m","data":{ "z":1.0},"x":1}' % code))
    assert json.loads(text) == {"code": expected, "message": "m", "data": {"z": 1.0}, "x": 1}
    assert b'{ "z":1.0}' in text


@pytest.mark.parametrize(("code", "expected"), TO_LEGACY.items())
def test_codes_new_in_2026_are_not_sent_to_legacy_clients(code: int, expected: int) -> None:
    text = error_to_legacy(Raw(b'{"message":"m","code":%d}' % code), TOOLS_CALL)
    assert text == b'{"message":"m","code":%d}' % expected


def test_a_missing_resource_has_its_own_code_in_the_legacy_era() -> None:
    error = Raw(b'{"code":-32602,"message":"m"}')
    assert json.loads(error_to_legacy(error, RESOURCES_READ))["code"] == -32002
    assert json.loads(error_to_legacy(error, PROMPTS_GET))["code"] == -32602


@pytest.mark.parametrize(
    "error",
    [b"{}", b'{"code":[]}', b'{"code":{}}', b'{"code":null}', b'{"code":"-32002"}', b'{"code":1e400}', b'{"code":9}'],
)
def test_an_error_with_an_odd_code_passes_as_it_is(error: bytes) -> None:
    assert error_to_modern(Raw(error)) == error_to_legacy(Raw(error), RESOURCES_READ) == error


@pytest.mark.parametrize("error", [b"null", b"[]", b'"boom"', b"-32002"])
def test_an_error_that_is_no_object_becomes_an_error_object(error: bytes) -> None:
    for text in (error_to_modern(Raw(error)), error_to_legacy(Raw(error), TOOLS_CALL)):
        assert complaints(MODERN, "Error", text) == []
        assert json.loads(text)["code"] == FORMS[INTERNAL_ERROR].number


# The short way: a first member written or taken away, and nothing read

PLAIN = rb'"content":[{"type":"text","text":"t, \"resultType\": x"}],"x": { "z" : 1.0 }, "isError" : false '


@pytest.mark.parametrize("blank", [b"", b" ", b"\r\n\t"])
def test_a_plain_legacy_result_keeps_every_byte(blank: bytes) -> None:
    plain = PLAIN.replace(b'resultType\\"', b'other\\"')
    expected = b'{"resultType":"complete",%b%b}' % (blank, plain)
    assert result_to_modern(Raw(b"{%b%b}" % (blank, plain)), TOOLS_CALL) == expected


def test_a_plain_modern_result_keeps_every_byte() -> None:
    assert result_to_legacy(Raw(b'{"resultType":"complete",%b}' % PLAIN)) == b"{%b}" % PLAIN


@pytest.mark.parametrize("empty", [b"{}", b"{ }", b"{\n}"])
def test_an_empty_legacy_result_becomes_a_complete_result(empty: bytes) -> None:
    assert result_to_modern(Raw(empty), TOOLS_CALL) == b'{"resultType":"complete"}'


@pytest.mark.parametrize("hidden", [rb"result\u0054ype", rb"\u0072esultType"])
def test_a_name_hidden_by_an_escape_is_found(hidden: bytes) -> None:
    kind = b'"%b":"complete"' % hidden
    assert result_to_modern(Raw(b'{"content":[],%b}' % kind), TOOLS_CALL) == b'{"content":[],"resultType":"complete"}'
    twice = b'{"resultType":"complete","content":[],"%b":"input_required"}' % hidden
    assert isinstance(result_to_legacy(Raw(twice)), Refusal)


def test_a_second_type_counts_as_the_last_member_of_a_name_does() -> None:
    twice = b'{"resultType":"complete","content":[],"resultType":"input_required"}'
    assert isinstance(result_to_legacy(Raw(twice)), Refusal)


@pytest.mark.parametrize("member", [rb'"ttl\u004ds":1', rb'"cache\u0053cope":"public"'])
def test_a_modern_member_hidden_by_an_escape_is_left_out(member: bytes) -> None:
    assert result_to_legacy(Raw(b'{"resultType":"complete","content":[],%b}' % member)) == b'{"content":[]}'


def test_structured_content_hidden_by_an_escape_becomes_text_all_the_same() -> None:
    told = result_to_legacy(Raw(rb'{"resultType":"complete","content":[],"structured\u0043ontent":1}'))
    assert told == b'{"content":[{"type":"text","text":"1"}]}'
