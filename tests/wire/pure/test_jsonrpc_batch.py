"""Batches are taken apart as they were written, within a bound, and what is none raises the one error of the codec."""

import time

import pytest

from interlock.wire.jsonrpc.codec import PARTS_MAX, CodecError, is_batch, split_batch_untrusted
from interlock.wire.refusal import INVALID_REQUEST, PARSE_ERROR


@pytest.mark.parametrize("data", [b"[]", b" \r\n\t[1]", b"[", b"[\xff"])
def test_data_that_begins_with_a_bracket_is_a_batch(data: bytes) -> None:
    assert is_batch(data)


@pytest.mark.parametrize("data", [b"", b"{}", b' {"a":[]}', b"\xef\xbb\xbf[]", b"null"])
def test_other_things_are_none(data: bytes) -> None:
    assert not is_batch(data)


def test_parts_are_the_bytes_that_came() -> None:
    assert split_batch_untrusted(b' [ {"n":1.0, "a":1e400} , "\\ud83d\\ude00",[ [ ] ],null] ') == [
        b'{"n":1.0, "a":1e400}',
        b'"\\ud83d\\ude00"',
        b"[ [ ] ]",
        b"null",
    ]


def test_the_limit_is_accepted_and_one_more_is_refused() -> None:
    assert len(split_batch_untrusted(b"[" + b",".join([b"{}"] * PARTS_MAX) + b"]")) == PARTS_MAX
    with pytest.raises(CodecError, match="at most 10000 messages"):
        split_batch_untrusted(b"[" + b",".join([b"{}"] * (PARTS_MAX + 1)) + b"]")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"[]", INVALID_REQUEST),
        (b"[ \n ]", INVALID_REQUEST),
        (b"[1,]", PARSE_ERROR),
        (b"[1", PARSE_ERROR),
        (b"[1] 2", PARSE_ERROR),
        (b'["\xff"]', PARSE_ERROR),
        (b"[" * 100_000, PARSE_ERROR),
        (b"[" * 100_000 + b"]" * 100_000, PARSE_ERROR),
    ],
)
def test_malformed_batches_are_refused_with_a_named_error(data: bytes, code: str) -> None:
    with pytest.raises(CodecError) as raised:
        split_batch_untrusted(data)
    assert raised.value.refusal.code == code
    assert raised.value.message_id == b"null"


def test_sixteen_million_bytes_of_nothing_are_refused_without_being_read() -> None:
    data = b"[" + b"{}," * 5_000_000 + b"{}]"
    began = time.process_time()
    with pytest.raises(CodecError):
        split_batch_untrusted(data)
    assert time.process_time() - began < 0.2
