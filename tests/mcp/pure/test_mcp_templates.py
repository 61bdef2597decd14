"""Does a template find exactly the URIs that can come from it, at a cost that does not explode?"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from interlock.mcp.items import EXPRESSIONS_MAX, TEMPLATE_CHARS_MAX, URI_CHARS_MAX, matches

CAN = [
    ("file:///{path}", "file:///a.txt"),
    ("file:///{path}", "file:///"),
    ("file:///{+path}", "file:///a/b?c#d"),
    ("db://{table}/rows/{id}", "db://users/rows/7"),
    ("db://{table}/rows/{id}", "db://a%2Fb/rows/é"),
    ("{scheme}://x", "a://x"),
    ("a{.ext}", "a.tar.gz"),
    ("a{.ext}", "a"),
    ("a{/path*}", "a/b/c"),
    ("a{/path*}", "a"),
    ("a{;x,y}", "a;x=1;y=2"),
    ("a{?q,r}", "a?q=1&r=/2"),
    ("a{?q}", "a"),
    ("a?x=1{&q}", "a?x=1&q=2"),
    ("a{#f}", "a#b/c?d"),
    ("a{x}a{x}a", "aaaaa"),
    ("{a}{b}{c}", ""),
    ("a{x}b", "a\nb"),
    ("no expression", "no expression"),
    ("a{b", "a{b"),
    ("a.b{x}", "a.bc"),
]
CANNOT = [
    ("file:///{path}", "file:///a/b"),
    ("file:///{path}", "file:///a?b"),
    ("file:///{path}", "xfile:///a"),
    ("file:///{path}", "FILE:///a"),
    ("db://{table}/rows/{id}", "db://a/b/rows/7"),
    ("db://{table}/rows/{id}", "db://a/rows"),
    ("a{.ext}", "atxt"),
    ("a{/path*}", "ab"),
    ("a{/path*}", "a/b?c"),
    ("a{?q}", "a?q#f"),
    ("a{x}a", "a"),
    ("ab{x}ba", "aba"),
    ("a{x}b", "a/b"),
    ("a.b{x}", "aXbc"),
    ("{x}", "a\n/"),
    ("no expression", "no expression "),
    ("", "a"),
]


@pytest.mark.parametrize(("template", "uri"), CAN)
def test_a_uri_that_can_come_from_a_template_is_found(template: str, uri: str) -> None:
    assert matches(template, uri)


@pytest.mark.parametrize(("template", "uri"), CANNOT)
def test_a_uri_that_cannot_come_from_a_template_is_not(template: str, uri: str) -> None:
    assert not matches(template, uri)


def test_templates_and_uris_have_the_named_limits() -> None:
    assert matches("{x}" * EXPRESSIONS_MAX, "a")
    assert not matches("{x}" * (EXPRESSIONS_MAX + 1), "a")
    assert matches("{x}", "a" * URI_CHARS_MAX)
    assert not matches("{x}", "a" * (URI_CHARS_MAX + 1))
    longest = "a" * (TEMPLATE_CHARS_MAX - 3)
    assert matches(longest + "{x}", longest)
    assert not matches("a" + longest + "{x}", "a" + longest)


def steps(work: Callable[[], Any]) -> int:
    """How many instructions of Python the work takes: what it costs, on any machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(outer)
    return count


EXPLOSIVE = {
    "wildcards side by side": ("{a}" * EXPRESSIONS_MAX + "!", "a"),
    "wildcards over anything": ("{+a}" * EXPRESSIONS_MAX + "!", "a/"),
    "a letter between wildcards": ("{+a}a" * EXPRESSIONS_MAX + "!", "a"),
    "optional parts": ("{.a}{/b}{;c}{?d}{&e}{#f}" * 3 + "!", "./;?&"),
    "nearly a match": ("x{a}b{c}b{d}b{e}b{f}!", "b"),
    "a long literal that repeats": ("{+a}" + "ab" * 400 + "{+b}!", "ab"),
}


@pytest.mark.parametrize(("template", "unit"), EXPLOSIVE.values(), ids=EXPLOSIVE)
def test_the_cost_grows_no_faster_than_the_uri(template: str, unit: str) -> None:
    costs = []
    for length in (500, 1000, 2000):
        uri = "x" + unit * (length // len(unit))
        assert not matches(template, uri + "?")
        costs.append(steps(lambda uri=uri: matches(template, uri + "!")))
    assert costs[1] <= 2.1 * costs[0]
    assert costs[2] <= 2.1 * costs[1]
    assert costs[2] < 60 * (2000 + len(template)) * EXPRESSIONS_MAX
