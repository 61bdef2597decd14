"""Whatever the bytes: a message that a plain reading by the standard library finds too, or the codec's one error."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire.json_texts import VALUES, damaged_text, json_text

from interlock.wire.jsonrpc.codec import (
    ID_BYTES_MAX,
    CodecError,
    Message,
    Notification,
    Request,
    Response,
    decode_array,
    decode_object,
    decode_untrusted,
    encode_value,
)
from interlock.wire.refusal import INVALID_REQUEST, PARSE_ERROR

SEEDS = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":[1.0,1e400,"\\u00e9"]}}}',
    b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "t", "progress": 0.5}}',
    b'{"id":"abc","jsonrpc":"2.0","result":{"content":[{"type":"text","text":"\\ud83d\\ude00 \xc3\xa9"}],"x":true}}',
    b'{"jsonrpc":"2.0","id":-7,"error":{"code":-32603,"message":"m","data":{"a":18446744073709551616}}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}',
    b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"}]',
    b'{"jsonrpc":"2.0","id":2,"result":{"text":"cut \\ud83d"}}',
]


class Number(str):
    """A number as it was written."""


def plain_reading(data: bytes) -> Any:
    def constant(text: str) -> Any:
        raise ValueError(text)

    # A byte order mark before the text is ignored (RFC 8259, 8.1).
    return json.loads(data.decode("utf-8-sig"), parse_int=Number, parse_float=Number, parse_constant=constant)


def expected(data: bytes) -> str | tuple[Any, ...]:
    """The code of the refusal, or the kind of message and its members, as read by the standard library."""
    try:
        value = plain_reading(data)
    except (ValueError, RecursionError):
        return PARSE_ERROR
    if not isinstance(value, dict) or type(value.get("jsonrpc")) is not str or value["jsonrpc"] != "2.0":
        return INVALID_REQUEST
    absent = object()
    message_id, method = value.get("id", absent), value.get("method", "")
    if type(method) is not str or any("\ud800" <= one <= "\udfff" for one in method):
        return INVALID_REQUEST
    if not method and "error" in value and (message_id is absent or message_id is None):
        message_id = None
    elif message_id is not absent and not (
        type(message_id) is str or (type(message_id) is Number and re.fullmatch("-?[0-9]+", message_id))
    ):
        return INVALID_REQUEST
    if method:
        kind = ("notification", method) if message_id is absent else ("request", message_id, method)
        return *kind, value.get("params", "absent")
    if message_id is absent or ("result" in value) == ("error" in value):
        return INVALID_REQUEST
    return ("result" if "result" in value else "error"), message_id, value.get("result", value.get("error"))


def found(data: bytes) -> str | tuple[Any, ...]:
    try:
        message: Message = decode_untrusted(data)
    except CodecError as error:
        assert error.message_id == b"null" or isinstance(plain_reading(error.message_id), str)
        return error.refusal.code
    match message:
        case Request(id=message_id, method=method, params=params):
            return "request", plain_reading(message_id), method, plain_reading(bytes(params)) if params else "absent"
        case Notification(method=method, params=params):
            return "notification", method, plain_reading(bytes(params)) if params else "absent"
        case Response(id=message_id, result=result, error=error):
            assert bool(result) != bool(error)
            payload = bytes(result) or bytes(error)
            return ("result" if result else "error"), plain_reading(message_id), plain_reading(payload)


def agree(data: bytes) -> None:
    ours, theirs = found(data), expected(data)
    if ours != theirs:
        # Half a pair next to a backslash is the one thing the standard library reads and we refuse.
        assert ours == PARSE_ERROR, (data, ours, theirs)
        assert re.search(rb"\\u[dD][89a-fA-F]", data), (data, theirs)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_messages_are_read_as_the_standard_library_reads_them(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(2500):
        agree(damaged_text(chance.choice(SEEDS), chance))


@given(st.binary(max_size=64))
@example(b"\xef\xbb\xbf{}")
@example(b"\xef\xbb\xbf\xef\xbb\xbf{}")
@example(b"[" * 100_000)
def test_arbitrary_bytes_raise_only_the_error_of_the_codec(data: bytes) -> None:
    agree(data)


IDS = st.one_of(VALUES, st.integers(), st.text(max_size=4), st.just("7" * ID_BYTES_MAX))
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", 2.0, "1.0"]),
        "id": IDS.filter(lambda one: len(json.dumps(one)) <= ID_BYTES_MAX),
        "method": st.sampled_from(["tools/call", "x", "", None, 1, "\ud800"]),
        "params": VALUES,
        "result": VALUES,
        "error": VALUES,
        "x": VALUES,
    },
)


@given(json_text(MEMBERS))
def test_envelopes_of_every_shape_are_read_as_the_standard_library_reads_them(data: bytes) -> None:
    agree(data)


@given(json_text())
def test_every_payload_passes_byte_for_byte(payload: bytes) -> None:
    answer = decode_untrusted(b'{"jsonrpc":"2.0","id":1,"result":\n%b }' % payload)
    assert isinstance(answer, Response)
    assert bytes(answer.result) == payload.strip()


@given(st.lists(st.tuples(st.text("abé\0", max_size=3), json_text()), max_size=4))
def test_an_object_and_an_array_keep_the_bytes_of_their_members(members: list[tuple[str, bytes]]) -> None:
    text = b"{%b}" % b" , ".join(json.dumps(key).encode() + b" : " + value for key, value in members)
    opened = decode_object(text)
    assert opened is not None
    assert {key: bytes(value) for key, value in opened.items()} == dict(members)
    again = decode_object(encode_value(opened))
    assert again is not None
    assert [(key, bytes(value)) for key, value in again.items()] == list(dict(members).items())
    listed = decode_array(b"[ %b ]" % b"\n,".join(value for _, value in members))
    assert [bytes(one) for one in listed or []] == [value for _, value in members]


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8 was settled when the whole message came in."""
    return data.decode(errors="ignore").encode() == data


@pytest.mark.parametrize("seed", range(4))
def test_damaged_objects_and_arrays_are_read_or_none(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(2500):
        text = damaged_text(chance.choice(SEEDS), chance)
        for opened in (decode_object(text), decode_array(text)):
            if opened is not None and is_text(text):
                assert plain_reading(encode_value(opened)) == plain_reading(text)
