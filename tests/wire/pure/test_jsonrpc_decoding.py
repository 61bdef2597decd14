"""Which bytes are one message, and what is said of those that are not?"""

import json
import sys
import time

import pytest

from interlock.wire.jsonrpc.codec import (
    ABSENT,
    DEPTH_MAX,
    HALVES_MAX,
    ID_BYTES_MAX,
    CodecError,
    Message,
    Notification,
    Request,
    Response,
    decode_array,
    decode_object,
    decode_params_untrusted,
    decode_untrusted,
    is_deep,
)
from interlock.wire.refusal import INVALID_REQUEST, PARSE_ERROR

LONGEST_ID = b"7" * ID_BYTES_MAX


def envelope(members: bytes) -> bytes:
    return b'{"jsonrpc":"2.0",' + members + b"}"


def parts(message: Message) -> tuple[object, ...]:
    """Raw values compare by identity; here by their bytes."""
    match message:
        case Request(id=message_id, method=method, params=params):
            return "request", message_id, method, bytes(params)
        case Notification(method=method, params=params):
            return "notification", method, bytes(params)
        case Response(id=message_id, result=result, error=error):
            return "response", message_id, bytes(result), bytes(error)


MESSAGES = {
    "a request": (b'"id":1,"method":"ping"', ("request", b"1", "ping", b"")),
    "members in any order": (b'"params":{},"method":"a","id":"x"', ("request", b'"x"', "a", b"{}")),
    "an escaped method name": (rb'"id":1,"method":"\u0070ing"', ("request", b"1", "ping", b"")),
    "an escaped member name": (rb'"\u0069d":1,"method":"a"', ("request", b"1", "a", b"")),
    "an id as it was written": (rb'"id":"\u0061","method":"a"', ("request", rb'"\u0061"', "a", b"")),
    "an empty string as id": (b'"id":"","method":"a"', ("request", b'""', "a", b"")),
    "a negative id": (b'"id":-7,"method":"a"', ("request", b"-7", "a", b"")),
    "an id of 80 bits": (b'"id":1208925819614629174706176,"method":"a"',
                         ("request", b"1208925819614629174706176", "a", b"")),
    "a whole number with a point": (b'"id":-1.0,"method":"a"', ("request", b"-1.0", "a", b"")),
    "a whole number as a power": (b'"id":1E3,"method":"a"', ("request", b"1E3", "a", b"")),
    "zero": (b'"id":0,"method":"a"', ("request", b"0", "a", b"")),
    "the longest id": (b'"id":%b,"method":"a"' % LONGEST_ID, ("request", LONGEST_ID, "a", b"")),
    "a repeated member, the last one counts": (b'"id":1,"method":"a","id":2', ("request", b"2", "a", b"")),
    "unknown members": (b'"id":1,"x":[1],"method":"a","":{}', ("request", b"1", "a", b"")),
    "params that are no object": (b'"id":1,"method":"a","params":[1 ,2]', ("request", b"1", "a", b"[1 ,2]")),
    "a notification": (b'"method":"n","params":{"a": 1}', ("notification", "n", b'{"a": 1}')),
    "a result": (b'"id":1,"result":{"a":1}', ("response", b"1", b'{"a":1}', b"")),
    "a result of null": (b'"id":1,"result":null', ("response", b"1", b"null", b"")),
    "an error": (b'"id":"x","error":{"code":1}', ("response", b'"x"', b"", b'{"code":1}')),
    "an error about an unreadable id": (b'"id":null,"error":{}', ("response", b"null", b"", b"{}")),
    "an error without an id": (b'"error":{}', ("response", b"null", b"", b"{}")),
}  # fmt: skip


@pytest.mark.parametrize(("members", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_is_read_with_its_payload_as_bytes(members: bytes, expected: tuple[object, ...]) -> None:
    assert parts(decode_untrusted(envelope(members))) == expected


@pytest.mark.parametrize(("members", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_white_space_around_a_message_changes_nothing(members: bytes, expected: tuple[object, ...]) -> None:
    assert parts(decode_untrusted(b" \t\r\n" + envelope(members) + b"\n ")) == expected


def test_absent_params_are_the_absent_value() -> None:
    request = decode_untrusted(envelope(b'"id":1,"method":"a"'))
    assert isinstance(request, Request)
    assert not request.params
    assert bytes(request.params) == bytes(ABSENT)


NOT_JSON = {
    "nothing": b"",
    "blanks": b" \n",
    "a NUL": b"\0",
    "a NUL after the message": envelope(b'"id":1,"method":"a"') + b"\0",
    "a NUL in a string": envelope(b'"id":1,"method":"a\0b"'),
    "a bare newline in a string": envelope(b'"id":1,"method":"a","params":{"x":"\n"}'),
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf" + envelope(b'"id":1,"method":"a"'),
    "a byte order mark alone": b"\xef\xbb\xbf",
    "half an object": envelope(b'"id":1,"method":"a"')[:-1],
    "half a batch": b'[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc"',
    "half a string": b'"abc',
    "half a word": b"nul",
    "two messages": envelope(b'"method":"a"') * 2,
    "a trailing comma": envelope(b'"id":1,"method":"a",'),
    "NaN": envelope(b'"id":1,"method":"a","params":{"x":NaN}'),
    "a leading zero": envelope(b'"id":01,"method":"a"'),
    "a fraction without digits": envelope(b'"id":1,"method":"a","params":[1.]'),
    "an unknown escape": envelope(rb'"id":1,"method":"a","params":["\q"]'),
    "a single quote": b"{'jsonrpc':'2.0'}",
    "a comment": envelope(b'"id":1,/**/"method":"a"'),
    "an invalid byte in a string": envelope(b'"id":1,"method":"a","params":["\xff"]'),
    "an invalid byte in an unknown member": envelope(b'"id":1,"method":"a","x":"\xc3\x28"'),
    "a surrogate as UTF-8": envelope(b'"id":1,"method":"a","params":["\xed\xa0\x80"]'),
    "an overlong NUL": envelope(b'"id":1,"method":"a","params":["\xc0\x80"]'),
    "a cut character": envelope(b'"id":1,"method":"a","params":["\xe2\x82"]'),
    "depth without end": b"[" * 200_000,
    "depth in params": envelope(b'"id":1,"method":"a","params":' + b"[" * 200_000 + b"]" * 200_000),
    "depth in an unknown member": envelope(b'"id":1,"method":"a","x":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
}


@pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON)
def test_invalid_json_is_a_parse_error_with_an_unknown_id(data: bytes) -> None:
    with pytest.raises(CodecError) as caught:
        decode_untrusted(data)
    assert (caught.value.refusal.code, caught.value.message_id) == (PARSE_ERROR, b"null")


def test_a_byte_order_mark_before_a_message_is_ignored() -> None:
    """RFC 8259 section 8.1."""
    plain = envelope(b'"id":1,"method":"a","params":{"x":"\xef\xbb\xbf"}')
    assert decode_untrusted(b"\xef\xbb\xbf" + plain) == decode_untrusted(plain)


NOT_A_MESSAGE = {
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"a"}]', b"null", "one message at a time"),
    "an empty batch": (b"[]", b"null", "one message at a time"),
    "a number": (b"1", b"null", "JSON object"),
    "null": (b"null", b"null", "JSON object"),
    "a string": (b'"a"', b"null", "JSON object"),
    "an empty object": (b"{}", b"null", "jsonrpc"),
    "another version": (b'{"jsonrpc":"1.0","id":1,"method":"a"}', b"1", "jsonrpc"),
    "the version as a number": (b'{"jsonrpc":2.0,"id":"x","method":"a"}', b'"x"', "jsonrpc"),
    "no version, odd id": (b'{"id":{},"method":"a"}', b"null", "jsonrpc"),
    "a null id": (envelope(b'"id":null,"method":"a"'), b"null", '"id"'),
    "a null id hidden behind an error": (envelope(b'"id":null,"method":"a","error":{}'), b"null", '"id"'),
    "a null id with a result": (envelope(b'"id":null,"result":{}'), b"null", '"id"'),
    "a fraction as id": (envelope(b'"id":1.5,"method":"a"'), b"null", '"id"'),
    "a small power as id": (envelope(b'"id":1e-3,"method":"a"'), b"null", '"id"'),
    "an id without bounds": (envelope(b'"id":1e400,"method":"a"'), b"null", '"id"'),
    "a truth value as id": (envelope(b'"id":true,"method":"a"'), b"null", '"id"'),
    "a list as id": (envelope(b'"id":[1],"method":"a"'), b"null", '"id"'),
    "an id too long": (envelope(b'"id":%b7,"method":"a"' % LONGEST_ID), b"null", str(ID_BYTES_MAX)),
    "a long string as id": (envelope(b'"id":"%b","method":"a"' % LONGEST_ID), b"null", str(ID_BYTES_MAX)),
    "a number as method": (envelope(b'"id":1,"method":5'), b"1", '"method"'),
    "null as method": (envelope(b'"id":1,"method":null'), b"1", '"method"'),
    "half a pair in a method": (envelope(rb'"id":1,"method":"a\ud800"'), b"1", '"method"'),
    "an empty method": (envelope(b'"id":1,"method":""'), b"1", "has a method"),
    "an id alone": (envelope(b'"id":1'), b"1", "has a method"),
    "a result without an id": (envelope(b'"result":{}'), b"null", "has a method"),
    "a result and an error": (envelope(b'"id":1,"result":{},"error":{}'), b"1", "either a result or an error"),
    "a result and a null error": (envelope(b'"id":1,"result":{},"error":null'), b"1", "either a result or an error"),
}


@pytest.mark.parametrize(("data", "message_id", "says"), NOT_A_MESSAGE.values(), ids=NOT_A_MESSAGE)
def test_json_that_is_no_message_is_refused_under_the_id_it_gave(data: bytes, message_id: bytes, says: str) -> None:
    with pytest.raises(CodecError) as caught:
        decode_untrusted(data)
    assert (caught.value.refusal.code, caught.value.message_id) == (INVALID_REQUEST, message_id)
    assert says in caught.value.refusal.message


HALVES = [
    rb'"\ud83d"',
    rb'"\uD83D x"',
    rb'"a\ude00"',
    rb'["\udBfF\ud83d\ude00","\u00e9 \ue8ff \\ud83d"]',
    rb'{"\ud800":{}}',
]


@pytest.mark.parametrize("payload", HALVES)
def test_half_a_surrogate_pair_passes_as_it_was_written(payload: bytes) -> None:
    answer = decode_untrusted(envelope(b'"id":1,"result":%b' % payload))
    assert parts(answer) == ("response", b"1", payload, b"")


@pytest.mark.parametrize("payload", HALVES)
def test_half_a_pair_in_a_value_does_not_hide_its_neighbours(payload: bytes) -> None:
    members = decode_object(b'{"b": 1.0,"a":%b}' % payload)
    assert members is not None
    assert [(key, bytes(value)) for key, value in members.items()] == [("b", b"1.0"), ("a", payload)]
    assert [bytes(one) for one in decode_array(b"[1.0, %b]" % payload) or []] == [b"1.0", payload]


def test_a_key_with_half_a_pair_makes_the_object_unreadable_rather_than_another() -> None:
    assert decode_object(rb'{"\ud83d":1}') is None
    assert list(decode_object(rb'{"\\ud83d":"\ud83d"}') or {}) == [r"\ud83d"]


def test_too_many_halves_are_refused_rather_than_hidden() -> None:
    assert decode_array(b'["%b"]' % (rb"\ud83d" * HALVES_MAX)) is not None
    assert decode_array(b'["%b"]' % (rb"\ud83d" * (HALVES_MAX + 1))) is None


DEPTHS = (900, 990, 1000, 1010, 5000, DEPTH_MAX - 100)


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("half", [b"", b"\\ud800"])
def test_deeply_nested_params_are_read_and_unchanged(depth: int, kind: tuple[bytes, bytes], half: bytes) -> None:
    params = b'{"x":"%b","arguments":{"deep":%b}}' % (half, nested(depth, *kind))
    message = decode_untrusted(envelope(b'"id":1,"method":"a","params":%b' % params))
    assert parts(message) == ("request", b"1", "a", params)
    assert isinstance(message, Request)
    members = decode_params_untrusted(message.params)
    assert members is not None
    assert bytes(members["arguments"]) == b'{"deep":%b}' % nested(depth, *kind)
    listed = decode_array(b"[%b,1]" % nested(depth, *kind))
    assert listed is not None and bytes(listed[0]) == nested(depth, *kind)


def test_large_and_deeply_nested_params_are_read() -> None:
    params = b'{"name":"x","arguments":{"deep":%b,"text":"%b"}}' % (nested(5000), b"x" * 1_000_000)
    members = decode_params_untrusted(params)
    assert members is not None and members.keys() == {"name", "arguments"}


@pytest.mark.parametrize("depth", [12_000, 1_000_000])
def test_beyond_the_bound_it_is_refused_by_name_and_soon(depth: int) -> None:
    began = time.process_time()
    for data in (nested(depth), envelope(b'"id":1,"method":"a","params":' + nested(depth)), b"[" * depth):
        with pytest.raises(CodecError, match=f"at most {DEPTH_MAX} levels"):
            decode_untrusted(data)
    assert time.process_time() - began < 0.5
    assert sys.getrecursionlimit() < DEPTH_MAX


def test_no_part_of_what_was_read_is_too_deep_later() -> None:
    """Whatever is on the stack when the part is read: claims are looked for in it."""
    depth = DEPTH_MAX
    while True:
        try:
            message = decode_untrusted(envelope(b'"id":1,"result":{"a":%b}' % nested(depth)))
            break
        except CodecError:
            depth -= 1
    assert isinstance(message, Response)

    def look(frames: int) -> object:
        return look(frames - 1) if frames else decode_object(message.result)

    assert look(500) is not None


def test_a_too_deep_value_is_distinguished_from_other_values() -> None:
    assert is_deep(nested(5000))
    assert not is_deep(nested(100))
    assert not is_deep(b"no JSON")


@pytest.mark.parametrize("shift", range(5))
@pytest.mark.parametrize("text", ["é", "€", "😀", "aé€😀"])
def test_large_text_is_checked_piece_by_piece(text: str, shift: int) -> None:
    whole = "x" * shift + text * 200_000
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": whole}, ensure_ascii=False).encode()
    read = decode_untrusted(body)
    assert isinstance(read, Response) and len(read.result) == len(whole.encode()) + 2
    for place in (len(body) // 2, 262_144 + 30, len(body) - 3):
        with pytest.raises(CodecError, match="UTF-8"):
            decode_untrusted(body[:place] + b"\xff" + body[place + 1 :])
