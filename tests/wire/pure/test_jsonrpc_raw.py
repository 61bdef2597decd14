"""Does a payload leave as the bytes it came in?"""

import json

import pytest
from msgspec import Raw
from tests.mcp.mcp_schema import LEGACY, MODERN, complaints

from interlock.wire.jsonrpc.codec import (
    CodecError,
    Request,
    Response,
    decode_array,
    decode_object,
    decode_string,
    decode_untrusted,
    decode_value,
    encode_call,
    encode_error,
    encode_notification,
    encode_refusal,
    encode_request,
    encode_result,
    encode_value,
    error_body,
    find_string,
)
from interlock.wire.refusal import BUDGET_EXCEEDED, CALL_TIMEOUT, INTERNAL_ERROR, TOOL_DEGRADED, Refusal

PAYLOADS = {
    "white space inside": b'{ "a" : [ 1 ,\t2 ]\r\n}',
    "key order": b'{"z":1,"a":{"y":1,"b":2}}',
    "repeated keys": b'{"a":1,"a":2}',
    "an empty key": b'{"":{}}',
    "80 bits": b'{"n":1208925819614629174706175,"m":-1208925819614629174706176}',
    "a thousand digits": b'{"n":%b}' % (b"7" * 1000),
    "floats": b'{"a":1.0,"b":-0.0,"c":1E+5,"d":0.10,"e":1e400,"f":1e-400}',
    "escapes": rb'{"a":"\/ / \u0041 \ud83d\ude00 \u0000 \u2028"}',
    "an escaped key": rb'{"\u0061":1,"\u00e9":2}',
    "text": '{"é":"é e\u0301 \u2028 😀 \ufeff"}'.encode(),
    "empty things": b'{"a":{},"b":[],"c":"","d":null}',
    "depth": b'{"a":%b}' % (b"[" * 500 + b"]" * 500),
    "like an envelope": b'{"jsonrpc":"2.0","id":1,"method":"x","result":{},"error":{}}',
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_params_and_results_pass_byte_for_byte(payload: bytes) -> None:
    request = decode_untrusted(encode_request(b"7", b"tools/call", payload))
    response = decode_untrusted(encode_result(b"7", payload))
    error = decode_untrusted(encode_error(b"7", payload))
    assert isinstance(request, Request)
    assert isinstance(response, Response)
    assert isinstance(error, Response)
    assert bytes(request.params) == bytes(response.result) == bytes(error.error) == payload


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_value_inside_a_rewritten_object_keeps_its_bytes(payload: bytes) -> None:
    members = decode_object(b'{ "z" : %b , "a":1 }' % payload)
    assert members is not None
    assert encode_value({**members, "name": "x"}) == b'{"z":%b,"a":1,"name":"x"}' % payload


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_call_has_its_params_byte_for_byte(payload: bytes) -> None:
    params = {"name": "echo", "arguments": Raw(payload)}
    assert encode_call(7, "tools/call", params) == encode_request(b"7", b"tools/call", encode_value(params))


def test_an_object_keeps_its_order_and_the_last_of_repeated_keys() -> None:
    members = decode_object(rb'{"b":1,"a":2,"\u0062":3}')
    assert members is not None
    assert [(key, bytes(value)) for key, value in members.items()] == [("b", b"3"), ("a", b"2")]


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"1", b'"a"', b"null", b'{"a"', b'{"a":1}x', b"{1:2}", b"\xff", b"[" * 99_999]
)
def test_a_value_that_is_not_an_object_is_none(raw: bytes) -> None:
    assert decode_object(raw) is None
    assert decode_object(Raw(raw)) is None


@pytest.mark.parametrize("raw", [b"", b"{}", b"1", b'"a"', b"null", b"[1", b"[1]x", b"\xff", b"[" * 99_999])
def test_a_value_that_is_not_an_array_is_none(raw: bytes) -> None:
    assert decode_array(raw) is None


@pytest.mark.parametrize("raw", [b"", b"1", b"null", b"{}", b'"a', rb'"\ud800"', b'"\xff"', b"[" * 99_999])
def test_a_value_that_is_not_a_string_is_none_or_a_codec_error(raw: bytes) -> None:
    assert find_string(raw) is None
    with pytest.raises(CodecError, match="a string was expected"):
        decode_string(raw)


def test_no_string_is_no_string() -> None:
    assert find_string(None) is None
    assert find_string(Raw(rb'"\u0061\n"')) == decode_string(rb'"\u0061\n"') == "a\n"


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b"1e400", b"9" * 5000, rb'"\ud800"', b'"\xff"', b"[" * 99_999])
def test_a_value_that_cannot_be_read_is_an_error_of_the_codec(raw: bytes) -> None:
    with pytest.raises(CodecError, match="a JSON value was expected"):
        decode_value(raw)


def test_big_integers_stay_integers_when_a_value_is_read() -> None:
    assert decode_value(b"[1208925819614629174706175,-18446744073709551616]") == [2**80 - 1, -(2**64)]


@pytest.mark.parametrize("version", [LEGACY, MODERN])
def test_our_messages_are_valid_in_both_eras(version: str) -> None:
    written = [
        ("JSONRPCRequest", encode_request(b'"x"', b"tools/list", b"")),
        ("JSONRPCRequest", encode_request(b"1", b"tools/list", b'{"a": 1}')),
        ("JSONRPCNotification", encode_notification(b"notifications/progress", b"")),
        ("JSONRPCNotification", encode_notification(b"notifications/progress", b"{}")),
        ("JSONRPCResultResponse", encode_result(b"1", b'{"resultType":"complete"}')),
        ("JSONRPCErrorResponse", encode_refusal(b"1", Refusal(INTERNAL_ERROR, 'he said "no"\n', {"ref": "é"}))),
    ]
    assert [found for definition, text in written for found in complaints(version, definition, text)] == []


def test_a_refusal_without_details_has_no_data_member() -> None:
    text = encode_refusal(b"null", Refusal(INTERNAL_ERROR, "a"))
    assert text == b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"a"}}'


def test_two_of_our_codes_have_other_numbers_on_legacy_edges() -> None:
    data = {"reason": "link_busy"}
    degraded = Refusal(TOOL_DEGRADED, "m", {**data, "mcpax_code": -32002})
    assert json.loads(error_body(degraded, draft=True)) == {"code": -32002, "message": "m", "data": data}
    assert error_body(Refusal(BUDGET_EXCEEDED, "m"), draft=True) == b'{"code":-32003,"message":"m"}'
    late = Refusal(CALL_TIMEOUT, "m", data)
    assert error_body(late, draft=True) == error_body(late)
