"""Does a cursor name the key it was made from, and nothing else pass for one?"""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.mcp.items import CURSOR_BYTES_MAX, decode_cursor_untrusted, encode_cursor


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_key_comes_back(key: str) -> None:
    cursor = encode_cursor(key)
    assert decode_cursor_untrusted(cursor) == key
    assert cursor.isascii()
    assert not set(cursor) & set("+/= \n")


def test_a_key_as_long_as_a_list_item_comes_back() -> None:
    key = "mcpax://segment/data:" + "é" * (512 * 1024)
    assert decode_cursor_untrusted(encode_cursor(key)) == key


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


FOREIGN = {
    "nothing": "",
    "a number": "20",
    "another's": "eyJwYWdlIjoyfQ",
    "another mark": b64(b"il2:a"),
    "no mark": b64(b"a"),
    "padding": b64(b"il1:a") + "=",
    "padding it needs not": b64(b"il1:ab") + "====",
    "spare bits": b64(b"il1:a")[:-1] + "R",
    "the other alphabet": base64.b64encode(b"il1:\xc3\xbf\xc3\xbe>>>").decode().rstrip("="),
    "blanks": " " + b64(b"il1:a"),
    "a line break": b64(b"il1:a") + "\n",
    "a NUL": b64(b"il1:a") + "\0",
    "not ASCII": b64(b"il1:a") + "é",
    "half a pair": "\ud800",
    "no text": b64(b"il1:\xff"),
    "too long": b64(b"il1:" + b"a" * CURSOR_BYTES_MAX),
}


@pytest.mark.parametrize("cursor", FOREIGN.values(), ids=FOREIGN)
def test_foreign_cursors_are_rejected(cursor: str) -> None:
    assert decode_cursor_untrusted(cursor) is None


def test_the_other_alphabet_is_tried_on_a_key_that_uses_it() -> None:
    assert set(FOREIGN["the other alphabet"]) & set("+/")
