"""Do header values of 2026-07-28 carry any text, and only what an encoder writes?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound as sdk

from interlock.mcp.modern_requests import decode_header_untrusted, encode_header

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("=?base64 \tAZ/+", max_size=24)

# The table of the specification, "Value Encoding".
SPECIFIED = {
    "us-west1": b"us-west1",
    "Hello, 世界": b"=?base64?SGVsbG8sIOS4lueVjA==?=",
    " padded ": b"=?base64?IHBhZGRlZCA=?=",
    "line1\nline2": b"=?base64?bGluZTEKbGluZTI=?=",
    "=?base64?literal?=": b"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
}
OURS = {
    "": b"",
    "a b": b"a b",
    "\t": b"=?base64?CQ==?=",
    "a\tb": b"=?base64?YQli?=",
    "a\r\nx-evil: 1": b"=?base64?YQ0KeC1ldmlsOiAx?=",
    "\x7f": b"=?base64?fw==?=",
    "=?base64?=": b"=?base64?PT9iYXNlNjQ/PQ==?=",
    "=?base64?a": b"=?base64?a",
    "=?BASE64?YQ==?=": b"=?BASE64?YQ==?=",
}


@pytest.mark.parametrize(("text", "header"), (SPECIFIED | OURS).items())
def test_a_text_is_written_plain_or_wrapped(text: str, header: bytes) -> None:
    assert encode_header(text) == header
    assert decode_header_untrusted(header) == text


@given(TEXTS)
def test_every_text_survives_the_header_and_the_sdk_reads_it_too(text: str) -> None:
    header = encode_header(text)
    assert decode_header_untrusted(header) == text
    assert sdk.decode_header_value(header.decode("ascii")) == text
    assert decode_header_untrusted(sdk.encode_header_value(text).encode("ascii")) == text


@given(TEXTS)
def test_a_written_header_is_one_line_of_visible_ascii_without_edge_blanks(text: str) -> None:
    header = encode_header(text)
    assert all(0x20 <= byte <= 0x7E for byte in header)
    assert header == header.strip()


DAMAGED = {
    "not ASCII": "é".encode(),
    "Latin-1": b"\xe9",
    "a NUL": b"a\0b",
    "a line break": b"a\r\nb",
    "DEL": b"a\x7f",
    "no padding": b"=?base64?YQ?=",
    "too much padding": b"=?base64?YQ===?=",
    "spare bits": b"=?base64?YR==?=",
    "the URL alphabet": b"=?base64?_-_-?=",
    "a blank inside": b"=?base64?Y Q==?=",
    "a line break inside": b"=?base64?YQ==\n?=",
    "bytes that are no text": b"=?base64?/w==?=",
    "half a pair as UTF-8": b"=?base64?7aCA?=",
    "not base64": b"=?base64?!!!!?=",
}


@pytest.mark.parametrize("header", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_header_has_no_value(header: bytes) -> None:
    assert decode_header_untrusted(header) is None


@pytest.mark.parametrize("header", [b"=?base64?=", b"=?base64", b"?=", b" =?base64?YQ==?=", b"=?base64?YQ==?= "])
def test_text_that_is_not_wrapped_exactly_is_literal(header: bytes) -> None:
    assert decode_header_untrusted(header) == header.decode()
