"""Does the outline of a large message say what the message says?"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.mcp.results import find_result_facts
from interlock.wire.jsonrpc.codec import (
    OUTLINE_BYTES_MAX,
    Request,
    Response,
    decode_object,
    decode_params_untrusted,
    decode_untrusted,
    find_outline,
)

LONG = "x" * (4 * OUTLINE_BYTES_MAX)
small = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(['"', "\\", '\\"', "\n", "[{", "}]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), small, max_size=4), st.text(max_size=3), small, st.text(max_size=3))
def test_every_value_is_found_again(members: dict[str, Any], before: str, after: Any, key: str) -> None:
    message = {**members, "big" + key: [before + LONG + before, after], "z": after}
    data = json.dumps(message).encode()
    outline = find_outline(data)
    if outline is None:  # an escaped quote stands at its end
        assert before[-1:] in ('"', "\\") or not before.isascii() or any(ord(one) < 32 for one in before)
        return
    assert len(outline.text) < 2 * OUTLINE_BYTES_MAX
    read = decode_object(outline.text)
    assert read is not None and list(read) == list(message)
    whole = decode_object(data)
    assert whole is not None
    assert {name: bytes(outline.whole(raw)) for name, raw in read.items()} == {
        name: bytes(raw) for name, raw in whole.items()
    }


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"b","c":[%b1],"d":"e"}' % (b"1," * 3 * OUTLINE_BYTES_MAX),
        b'{"a":"b"%b,"d":"e"}' % (b" " * 3 * OUTLINE_BYTES_MAX),
        b'{"a":"b", %b:"e"}' % (b" " * 3 * OUTLINE_BYTES_MAX + b'"c"'),
    ],
)
def test_text_cut_out_between_strings_is_no_json(data: bytes) -> None:
    outline = find_outline(data)
    assert outline is None or decode_object(outline.text) is None


def test_params_that_are_large_without_a_long_string_are_read_whole() -> None:
    params = {"name": "echo", "arguments": {"n": list(range(200_000))}, "_meta": {"k": 1}}
    request = decode_untrusted(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}).encode())
    assert isinstance(request, Request) and find_outline(request.text) is not None
    read = decode_params_untrusted(request.params, request.text)
    assert read is not None and json.loads(bytes(read["arguments"])) == params["arguments"]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"a":"%b"}' % (b"x" * OUTLINE_BYTES_MAX), b"1" * 9 * OUTLINE_BYTES_MAX])
def test_small_texts_and_texts_without_long_strings_have_no_outline(data: bytes) -> None:
    assert find_outline(data) is None


def test_a_string_that_looks_like_the_hole_is_left_alone() -> None:
    data = json.dumps({"a": LONG}).encode()
    outline = find_outline(data)
    assert outline is not None
    again = json.dumps({"a": LONG, "b": "?"}).encode().replace(b'"?"', outline.text[5:-1])
    assert find_outline(again) is None


def test_params_and_facts_read_from_the_outline_are_those_of_the_message() -> None:
    params = {"name": "echo", "arguments": {"t": LONG * 2, "n": 1}, "_meta": {"k": [1]}}
    request = decode_untrusted(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}).encode())
    assert isinstance(request, Request)
    one, other = decode_params_untrusted(request.params, request.text), decode_params_untrusted(request.params)
    assert one is not None and other is not None
    assert {name: bytes(raw) for name, raw in one.items()} == {name: bytes(raw) for name, raw in other.items()}
    for result in (
        {"content": [{"type": "text", "text": LONG}], "isError": True},
        {"resultType": "complete", "content": [{"type": "text", "text": LONG, "_meta": {}}]},
        {"content": [{"type": "text", "text": LONG}], "structuredContent": {"a": "b"}},
    ):
        for separators in ((",", ":"), (", ", ": ")):
            written = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}, separators=separators).encode()
            response = decode_untrusted(written)
            assert isinstance(response, Response)
            assert find_result_facts(response.result, written) == find_result_facts(Raw(bytes(response.result)))


def test_a_long_name_of_a_member_of_params_is_read_whole() -> None:
    name = "k" * 215_000
    params = {name: 1, "name": "echo", "arguments": {"n": [7] * 16_000}}
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}).encode()
    request = decode_untrusted(text)
    assert isinstance(request, Request) and find_outline(text) is not None
    read = decode_params_untrusted(request.params, text)
    assert read is not None and list(read) == [name, "name", "arguments"]
