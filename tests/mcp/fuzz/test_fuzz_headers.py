"""Headers and requests of 2026-07-28 against the official SDK, on inputs nobody thought of."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound as sdk
from tests.wire.json_texts import VALUES, json_text

from interlock.mcp.modern_requests import (
    decode_header_untrusted,
    encode_header,
    mirror_mismatch,
    mirrored_arguments,
    validate_request,
)
from interlock.wire.jsonrpc.codec import Request, decode_untrusted
from interlock.wire.refusal import INVALID_PARAMS, Refusal, find_code

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["a", "=?base64?YQ==?=", " "])
HEADER_TEXTS = NAMES.map(lambda name: encode_header(name).decode()) | st.text("aYQ=?/ base64\t~", max_size=20)
VERSIONS = st.sampled_from(["2026-07-28", "2026-07-28", "2025-11-25", "", 7, None])
METHODS = st.sampled_from(["tools/call", "prompts/get", "resources/read", "tools/list", "x/y"])


@given(st.binary(max_size=32) | HEADER_TEXTS.map(str.encode))
def test_a_header_value_is_none_or_the_text_the_sdk_reads(value: bytes) -> None:
    text = decode_header_untrusted(value)
    if text is not None:
        assert text == sdk.decode_header_value(value.decode("ascii"))
        assert decode_header_untrusted(encode_header(text)) == text
    elif value.isascii() and value.decode().isprintable():
        assert sdk.decode_header_value(value.decode()) is None


METAS = st.fixed_dictionaries(
    {}, optional={VERSION: VERSIONS, CAPABILITIES: st.just({}) | VALUES, "com.acme/x": VALUES}
)
PARAMS = VALUES | st.fixed_dictionaries(
    {}, optional={"_meta": METAS | VALUES, "name": NAMES | VALUES, "uri": NAMES | VALUES, "arguments": VALUES}
)


@given(
    json_text(PARAMS),
    METHODS,
    st.none() | st.dictionaries(st.sampled_from(["mcp-protocol-version", "mcp-method", "mcp-name"]), HEADER_TEXTS),
    st.booleans(),
)
def test_a_request_is_validated_exactly_as_by_the_sdk(
    params: bytes, method: str, headers: dict[str, str] | None, agreeing: bool
) -> None:
    body = json.loads(params)
    if headers is not None and agreeing:
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    request = decode_untrusted(b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params))
    assert isinstance(request, Request)
    ours = validate_request(request, None if headers is None else {k.encode(): v.encode() for k, v in headers.items()})
    theirs = sdk.classify_inbound_request({"method": method, "params": body}, headers=headers)
    code = ours.code if isinstance(ours, Refusal) else None
    if _has_odd_envelope(body):
        assert code == INVALID_PARAMS
    elif "\\ud" not in json.dumps(body):
        assert code == (find_code(theirs.code) if isinstance(theirs, sdk.InboundLadderRejection) else None)


def _has_odd_envelope(params: Any) -> bool:
    """We say at once what the SDK finds later or not at all: the version is a string, the capabilities an object."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or VERSION not in meta or CAPABILITIES not in meta:
        return True
    return not isinstance(meta[VERSION], str) or not isinstance(meta[CAPABILITIES], dict)


KEYWORDS = st.sampled_from(["items", "not", "anyOf", "$defs", "properties", "default", "if", "x"])
MARKS = st.sampled_from(["A", "a", "B", "", "a b", "é", 7])
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    VALUES | st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", ["string"]])}),
    lambda inner: st.one_of(
        st.dictionaries(KEYWORDS, inner | st.lists(inner, max_size=2), max_size=3),
        st.dictionaries(st.text("ab"), inner, max_size=3).map(lambda names: {"type": "object", "properties": names}),
        MARKS.map(lambda mark: {"type": "string", "x-mcp-header": mark}),
    ),
    max_leaves=8,
)


@given(SCHEMAS)
def test_a_schema_is_valid_or_not_as_the_sdk_says(schema: Any) -> None:
    found = mirrored_arguments(schema)
    assert isinstance(found, str) == (sdk.find_invalid_x_mcp_header(schema) is not None)
    if isinstance(found, tuple):
        assert {one.path for one in found} == set(sdk.x_mcp_header_map(schema))


TYPED = st.one_of(
    st.tuples(st.just("string"), NAMES),
    st.tuples(st.just("integer"), st.integers() | st.integers(min_value=-(2**90), max_value=2**90)),
    st.tuples(st.just("integer"), st.integers(-(2**60), 2**60).map(float)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("string"), st.none() | st.lists(st.none()) | st.just({})),
)
DIGITS = st.text("0123456789.-+_e ", max_size=6)


@given(TYPED, st.none() | HEADER_TEXTS | DIGITS, st.booleans(), st.sampled_from(["", ".0", ".00", ".5", "0"]))
def test_a_mirrored_argument_is_judged_as_the_sdk_judges_it(
    typed: tuple[str, Any], sent: str | None, agreeing: bool, suffix: str
) -> None:
    kind, value = typed
    if agreeing and isinstance(value, str | int | float):
        whole = int(value) if isinstance(value, float) else value
        sent = encode_header(str(whole).lower() if isinstance(value, bool) else str(whole)).decode() + suffix
    schema = {"properties": {"a": {"type": kind, "x-mcp-header": "X"}}}
    headers = {} if sent is None else {"mcp-param-x": sent}
    marks = mirrored_arguments(schema)
    assert isinstance(marks, tuple)
    ours = mirror_mismatch(marks, {"a": value}, {k.encode(): v.encode() for k, v in headers.items()})
    theirs = sdk.validate_mcp_param_headers(schema, {"a": value}, headers)
    assert (ours is None) == (theirs is None) or "\t" in (sent or "")
