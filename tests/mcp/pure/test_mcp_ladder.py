"""Does a 2026-07-28 request meet the rungs in their order, and the right code at each?"""

import itertools
import json
import tracemalloc
from typing import Any, cast

import pytest
from mcp.shared import inbound as sdk
from tests.mcp.mcp_schema import MODERN, complaints

from interlock.mcp.modern_requests import (
    ROUTING_HEADERS,
    ValidatedRequest,
    plain_routing,
    unsupported_version,
    validate_plain_request,
    validate_request,
)
from interlock.wire.jsonrpc.codec import (
    ID_BYTES_MAX,
    PARAMS_REST_BYTES_MAX,
    Request,
    decode_untrusted,
    encode_refusal,
    encode_value,
)
from interlock.wire.refusal import FORMS, HEADER_MISMATCH, INVALID_PARAMS, UNSUPPORTED_VERSION, Refusal, find_code

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META = {VERSION: MODERN, CAPABILITIES: {}}
HEADERS = {b"mcp-protocol-version": MODERN.encode(), b"mcp-method": b"tools/call", b"mcp-name": b"echo"}


def request(params: bytes, method: str = "tools/call") -> Request:
    text = b'{"jsonrpc":"2.0","id":1,"method":%b%b}' % (encode_value(method), b',"params":' + params if params else b"")
    message = decode_untrusted(text)
    assert isinstance(message, Request)
    return message


def named(name: bytes, meta: dict[str, Any] | None = None) -> bytes:
    return b'{"name":%b,"_meta":%b}' % (name, encode_value(META if meta is None else meta))


def code(climbed: ValidatedRequest | Refusal) -> str | None:
    return climbed.code if isinstance(climbed, Refusal) else None


def test_a_good_request_passes_with_its_values_raw() -> None:
    climbed = validate_request(request(named(b'"echo"', META | {"com.acme/n": 1.0})), HEADERS)
    assert isinstance(climbed, ValidatedRequest)
    assert bytes(climbed.params["name"]) == b'"echo"'
    assert list(climbed.meta) == [VERSION, CAPABILITIES, "com.acme/n"]
    assert bytes(climbed.meta["com.acme/n"]) == b"1.0"


NO_ENVELOPE = {
    "no params": b"",
    "null params": b"null",
    "params as a list": b"[]",
    "no _meta": b'{"name":"echo"}',
    "null _meta": b'{"name":"echo","_meta":null}',
    "_meta as a list": b'{"_meta":[]}',
    "no version": named(b'"echo"', {CAPABILITIES: {}}),
    "no capabilities": named(b'"echo"', {VERSION: MODERN}),
    "null capabilities": named(b'"echo"', {VERSION: MODERN, CAPABILITIES: None}),
    "capabilities as a list": named(b'"echo"', {VERSION: MODERN, CAPABILITIES: []}),
    "the version as a number": named(b'"echo"', {VERSION: 20260728, CAPABILITIES: {}}),
    "a null version": named(b'"echo"', {VERSION: None, CAPABILITIES: {}}),
}


@pytest.mark.parametrize("headers", [None, HEADERS, {}], ids=["stdio", "http", "no headers"])
@pytest.mark.parametrize("params", NO_ENVELOPE.values(), ids=NO_ENVELOPE)
def test_without_version_and_capabilities_nothing_else_is_looked_at(
    params: bytes, headers: dict[bytes, bytes] | None
) -> None:
    assert code(validate_request(request(params), headers)) == INVALID_PARAMS


def test_the_refusal_names_every_missing_key() -> None:
    refusal = validate_request(request(b'{"_meta":{}}'), None)
    assert isinstance(refusal, Refusal)
    assert refusal.details == {"missing": [VERSION, CAPABILITIES]}


@pytest.mark.parametrize("missing", sorted(HEADERS))
def test_each_routing_header_is_required_on_http_and_none_on_stdio(missing: bytes) -> None:
    rest = {name: value for name, value in HEADERS.items() if name != missing}
    assert code(validate_request(request(named(b'"echo"')), rest)) == HEADER_MISMATCH
    assert code(validate_request(request(named(b'"echo"')), None)) is None


@pytest.mark.parametrize("doubled", sorted(ROUTING_HEADERS))
def test_a_doubled_routing_header_is_refused_by_name(doubled: bytes) -> None:
    refusal = validate_request(request(named(b'"echo"')), HEADERS, doubled)
    assert isinstance(refusal, Refusal)
    assert refusal.code == HEADER_MISMATCH
    assert doubled.decode() in refusal.message


NAMES = {
    "plain": (b'"echo"', b"echo"),
    "escaped in the body": (rb'"\u0065cho"', b"echo"),
    "an escaped solidus": (rb'"a\/b"', b"a/b"),
    "an escaped quote": (rb'"a\"b"', b'a"b'),
    "wrapped though plain": (b'"echo"', b"=?base64?ZWNobw==?="),
    "not ASCII": ('"größe"'.encode(), b"=?base64?Z3LDtsOfZQ==?="),
    "not ASCII, escaped": (rb'"gr\u00f6\u00dfe"', b"=?base64?Z3LDtsOfZQ==?="),
    "edge spaces": (b'" a "', b"=?base64?IGEg?="),
    "a control character": (rb'"a\u0000b"', b"=?base64?YQBi?="),
    "looks wrapped": (b'"=?base64?x?="', b"=?base64?PT9iYXNlNjQ/eD89?="),
    "begins as if wrapped": (b'"=?x"', b"=?x"),
    "empty": (b'""', b""),
}


@pytest.mark.parametrize(("name", "header"), NAMES.values(), ids=NAMES)
def test_the_name_header_equals_the_name_in_any_spelling_of_either(name: bytes, header: bytes) -> None:
    assert code(validate_request(request(named(name)), HEADERS | {b"mcp-name": header})) is None


OTHER_NAMES = {
    "another": (b'"echo"', b"other"),
    "another case": (b'"echo"', b"Echo"),
    "a prefix": (b'"echo"', b"ech"),
    "spelled as in the body": (rb'"\u0065cho"', rb"\u0065cho"),
    "looks wrapped": (b'"=?base64?ZWNobw==?="', b"=?base64?ZWNobw==?="),
    "bad base64": (b'"echo"', b"=?base64?ZWNobw?="),
    "base64 with spare bits": (b'"a"', b"=?base64?YR==?="),
    "base64 of no text": ('"é"'.encode(), b"=?base64?6Q==?="),
    "raw UTF-8": ('"é"'.encode(), "é".encode()),
    "the marker in capitals": (b'"echo"', b"=?BASE64?ZWNobw==?="),
    "a list that reads like it": (b"[1]", b"1"),
    "a number that reads like it": (b"123", b"2"),
    "a number and a bad header": (b"5", b"=?base64?!?="),
    "an object": (b"{}", b""),
}


@pytest.mark.parametrize(("name", "header"), OTHER_NAMES.values(), ids=OTHER_NAMES)
def test_a_name_header_that_is_not_the_name_is_refused(name: bytes, header: bytes) -> None:
    assert code(validate_request(request(named(name)), HEADERS | {b"mcp-name": header})) == HEADER_MISMATCH


@pytest.mark.parametrize("params", [named(b"null"), b'{"_meta":%b}' % encode_value(META)], ids=["null", "absent"])
def test_without_a_name_there_is_nothing_for_the_header_to_repeat(params: bytes) -> None:
    assert code(validate_request(request(params), HEADERS)) is None


def test_a_resource_is_named_by_its_uri() -> None:
    read = request(b'{"uri":"file:///a","name":"echo","_meta":%b}' % encode_value(META), "resources/read")
    headers = HEADERS | {b"mcp-method": b"resources/read"}
    assert code(validate_request(read, headers | {b"mcp-name": b"file:///a"})) is None
    assert code(validate_request(read, headers)) == HEADER_MISMATCH


def test_a_method_without_a_name_needs_no_name_header() -> None:
    listing = request(b'{"_meta":%b}' % encode_value(META), "tools/list")
    assert code(validate_request(listing, HEADERS | {b"mcp-method": b"tools/list"})) is None


def test_a_client_that_contradicts_itself_is_refused_before_its_version_is_judged() -> None:
    ahead = request(named(b'"echo"', META | {VERSION: "2099-01-01"}))
    assert code(validate_request(ahead, HEADERS)) == HEADER_MISMATCH
    refusal = validate_request(ahead, HEADERS | {b"mcp-protocol-version": b"2099-01-01"})
    assert isinstance(refusal, Refusal)
    assert refusal == unsupported_version("2099-01-01")
    assert (refusal.code, refusal.details) == (UNSUPPORTED_VERSION, {"supported": [MODERN], "requested": "2099-01-01"})


@pytest.mark.parametrize(
    ("refusal", "definition"),
    [
        (unsupported_version("x" * 1000), "UnsupportedProtocolVersionError"),
        (validate_request(request(named(b'"echo"')), {}), "HeaderMismatchError"),
        (validate_request(request(b"{}"), None), "JSONRPCErrorResponse"),
    ],
)
def test_a_refusal_is_the_error_of_the_specification(refusal: Refusal, definition: str) -> None:
    assert complaints(MODERN, definition, encode_refusal(b"1", refusal)) == []


def test_the_http_statuses_are_those_of_the_sdk() -> None:
    ours = {forms.number: forms.mcp_status for forms in FORMS.values() if forms.mcp_status != 200}
    assert dict(sdk.ERROR_CODE_HTTP_STATUS) == ours


def test_every_combination_is_judged_as_the_sdk_judges_it() -> None:
    names = [b'"echo"', rb'"\u0065cho"', '"é"'.encode(), b'" a"', b"null", b"7", b'""']
    versions: list[Any] = [MODERN, "2025-11-25", "2099-01-01"]
    sent_versions = [None, MODERN.encode(), b"2099-01-01", b""]
    sent_names = [None, b"echo", b"=?base64?ZWNobw==?=", b"=?base64?w6k=?=", b"=?base64?IGE=?=", b"=?base64?!?=", b""]
    methods = ["tools/call", "tools/list", "prompts/get", "custom/x"]
    seen = set()
    for name, version, method, sent_version, sent_method, sent_name in itertools.product(
        names, versions, methods, sent_versions, [None, b"tools/call", b"custom/x"], sent_names
    ):
        ours = request(named(name, META | {VERSION: version}), method)
        sent = {b"mcp-protocol-version": sent_version, b"mcp-method": sent_method, b"mcp-name": sent_name}
        headers = {key: value for key, value in sent.items() if value is not None}
        body = {"method": method, "params": json.loads(bytes(ours.params))}
        theirs = sdk.classify_inbound_request(body, headers={k.decode(): v.decode() for k, v in headers.items()})
        expected = find_code(theirs.code) if isinstance(theirs, sdk.InboundLadderRejection) else None
        assert code(validate_request(ours, headers)) == expected, (name, version, method, headers)
        seen.add(expected)
    assert seen == {None, HEADER_MISMATCH, UNSUPPORTED_VERSION}


PLAIN = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}'


def in_one_pass(body: bytes, headers: dict[bytes, bytes]) -> ValidatedRequest | None:
    routing = plain_routing(headers, None)
    return None if routing is None else validate_plain_request(body, routing)


def test_an_ordinary_request_is_validated_in_one_pass_with_the_same_result() -> None:
    body = PLAIN % named(b'"echo"', META | {"com.acme/n": 1.0})
    climbed = in_one_pass(body, HEADERS)
    assert climbed is not None
    message = decode_untrusted(body)
    assert isinstance(message, Request)
    assert climbed == validate_request(message, HEADERS) == validate_plain_request(body, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        PLAIN.replace(b'"2.0"', b'"1.0"') % named(b'"echo"'),
        PLAIN.replace(b'"id":1', b'"id":null') % named(b'"echo"'),
        PLAIN.replace(b'"id":1', b'"id":1.5') % named(b'"echo"'),
        PLAIN.replace(b'"id":1,', b"") % named(b'"echo"'),
        PLAIN.replace(b'"id":1', b'"id":"%b"' % (b"x" * (ID_BYTES_MAX + 1))) % named(b'"echo"'),
        PLAIN.replace(b"tools/call", b"") % named(b'"echo"'),
        PLAIN.replace(b"tools/call", b"tools/list") % named(b'"echo"'),
        PLAIN % b"[]",
        PLAIN % b"{}",
        PLAIN % named(b'"other"'),
        PLAIN % named(b'"echo"', {}),
        PLAIN % named(b'"echo"', {VERSION: MODERN}),
        PLAIN % named(b'"echo"', {VERSION: "2099-01-01", CAPABILITIES: {}}),
        PLAIN % named(b'"echo"', {VERSION: MODERN, CAPABILITIES: []}),
        PLAIN % (b'{"name":"echo","x":"%b","_meta":%b}' % (b"x" * PARAMS_REST_BYTES_MAX, encode_value(META))),
        PLAIN % (b'{"name":"echo","x":"\xff","_meta":%b}' % encode_value(META)),
    ],
)
def test_an_unusual_message_is_left_to_the_complete_validation(body: bytes) -> None:
    assert in_one_pass(body, HEADERS) is None
    climbed = validate_plain_request(body, None)  # without headers there is nothing to compare with
    assert climbed is None or climbed == validate_request(cast(Request, decode_untrusted(body)), None)
    assert (climbed is None) is not any(one in body for one in (b'"tools/list"', b'"other"'))


def test_a_request_with_large_arguments_is_ordinary() -> None:
    large = b'{"text":"%b"}' % (b"x" * 2 * PARAMS_REST_BYTES_MAX)
    body = PLAIN % (b'{"z":1,"arguments":%b,"name":"echo","_meta":%b}' % (large, encode_value(META)))
    climbed = in_one_pass(body, HEADERS)
    assert climbed is not None and climbed == validate_plain_request(body, None)
    assert list(climbed.params) == ["z", "arguments", "name", "_meta"]
    assert bytes(climbed.params["arguments"]) == large


def test_no_object_is_made_of_a_million_members() -> None:
    members = b",".join(b'"%d":0' % number for number in range(1_000_000))
    body = PLAIN % (b'{"name":"echo",%b,"_meta":%b}' % (members, encode_value(META)))
    tracemalloc.start()
    try:
        assert in_one_pass(body, HEADERS) is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [b"ech\xc3\xb6", b"=?base64?ZWNobw==?=", b'ec"ho', b"ec\\ho"])
def test_headers_that_need_reading_are_left_to_the_rungs(name: bytes) -> None:
    assert plain_routing(HEADERS | {b"mcp-name": name}, None) is None
    assert plain_routing(HEADERS, b"mcp-name") is None


def test_a_version_of_tomorrow_is_left_to_the_rungs_also_where_header_and_body_agree() -> None:
    ahead = {VERSION: "2099-01-01", CAPABILITIES: {}}
    assert in_one_pass(PLAIN % named(b'"echo"', ahead), HEADERS | {b"mcp-protocol-version": b"2099-01-01"}) is None
