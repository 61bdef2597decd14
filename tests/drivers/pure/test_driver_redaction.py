"""Are values of secrets found in whatever form JSON gives them, and nothing else?"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.protocol.files.inventory import CHARS_MIN, Redactor

VALUE = 'p/w"d\\ü\nsecond line of it'


@pytest.mark.req("AIP-19.plain-1")
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_value_in_json_is_replaced_however_it_is_escaped(is_ascii: bool) -> None:
    redactor = Redactor({"db/password": VALUE})
    data = json.dumps({"text": f"it is {VALUE}."}, ensure_ascii=is_ascii)
    for written in (data, data.replace("/", "\\/")):
        said = json.loads(redactor.redacted(written.encode()))
        assert said == {"text": "it is [secret:db/password]."}


@pytest.mark.req("AIP-19.plain-1")
def test_each_line_of_a_value_is_replaced_and_short_lines_are_left() -> None:
    redactor = Redactor({"key": "-----BEGIN\n abcdefgh\nx\n"})
    assert redactor.redacted(b"abcdefgh x") == b"[secret:key] x"
    assert not Redactor({"pin": "1234567"})
    assert not Redactor({"pin": "1234567 "})
    assert Redactor({"pin": "12345678"}).redacted(b"12345678") == b"[secret:pin]"


def test_one_value_within_another_does_not_hide_it() -> None:
    redactor = Redactor({"short": "abcdefgh", "long": "xx-abcdefgh-xx"})
    assert redactor.redacted(b"a xx-abcdefgh-xx b abcdefgh") == b"a [secret:long] b [secret:short]"


def test_a_cut_text_keeps_no_beginning_of_a_value() -> None:
    redactor = Redactor({"s": "abcdefghijklmnop"})
    assert redactor.cut(b"it is abcdefghijk") == b"it is [secret:s]"
    assert redactor.cut(b"it is abcdefg") == b"it is abcdefg"


@given(st.text(min_size=CHARS_MIN, max_size=40).filter(lambda text: len(text.strip()) >= CHARS_MIN), st.text())
def test_no_text_with_the_value_keeps_it(value: str, around: str) -> None:
    data = json.dumps([around + value + around])
    said = Redactor({"s": value}).redacted(data.encode())
    if "[secret:s]" not in value:
        assert json.dumps(value)[1:-1].encode() not in said
