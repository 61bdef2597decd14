"""Does a mark tell callers apart without telling who they are?"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.ax.protocol.hop_metadata import CALLER, caller_mark, requester

KEY, OTHER = b"k" * 32, b"q" * 32


def test_a_mark_is_of_one_caller_and_one_node_and_always_the_same() -> None:
    marks = [
        caller_mark(who, key) for who in ("client:ada", "client:bob", "parent:ws://x/ax#m") for key in (KEY, OTHER)
    ]
    assert len(set(map(bytes, marks))) == 6
    assert bytes(caller_mark("client:ada", KEY)) == bytes(marks[0])
    assert "ada" not in bytes(marks[0]).decode()


def test_a_parent_that_says_nothing_counts_as_one_caller() -> None:
    assert requester("parent:ws://x/ax", {}) == "parent:ws://x/ax"


@given(st.text(max_size=80))
def test_a_mark_that_was_made_is_shown_as_it_is(who: str) -> None:
    mark = caller_mark(who, KEY)
    assert requester("p", {CALLER: mark}) == f"p#{json.loads(bytes(mark))}"


@pytest.mark.parametrize(
    "raw", [b"7", b"null", b'""', b'{"a":1}', b'"a b"', b'"a#b"', b'"%b"' % (b"a" * 5000), b'"\\n"']
)
def test_other_distinctions_between_callers_are_kept_in_a_form_that_can_be_shown(raw: bytes) -> None:
    said = requester("p", {CALLER: Raw(raw)})
    assert said.removeprefix("p#").replace("-", "").replace("_", "").isalnum()
    assert len(said) <= 46
    assert said != requester("p", {CALLER: Raw(raw + b" ")})
