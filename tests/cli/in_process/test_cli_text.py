"""Are the small pieces of the console's text right at their edges?"""

from datetime import UTC, datetime

import msgspec
import pytest
from rich.text import Text
from tests.operator.fake_node import FakeOperations, link

from interlock.catalog.cli.tools import ShownResult, result_blocks
from interlock.cli.terminal.drawing import in_columns
from interlock.cli.terminal.text import (
    count,
    duration,
    first_sentence,
    latency,
    mcp_url,
    one_line,
    safe_text,
    since,
)
from interlock.links.api import LogLine
from interlock.links.cli import unseen
from interlock.node.cli.tree import tree_lines

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本 🎉", "plain ü 日本 🎉"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
        ("\r\n", "\\x0d\n"),
    ],
)
def test_controls_become_visible_and_text_stays(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_a_line_is_one_line() -> None:
    assert one_line(" a\n\tb\u2028c \x1b") == r"a b c \x1b"
    assert first_sentence("\n\n  First.\nSecond.") == "First."
    assert first_sentence("") == ""


@pytest.mark.parametrize(
    ("description", "shown"),
    [
        ("Make edits. Each edit replaces lines.", "Make edits."),
        ("Read it (whole). Then stop.", "Read it (whole)."),
        ("The time, e.g. Berlin's. Nothing else.", "The time, e.g. Berlin's."),
        ("Version 2.0 of v. Neumann", "Version 2.0 of v. Neumann"),
        ("Really? Yes.", "Really?"),
        ("no end", "no end"),
        ("Ends. with a small letter", "Ends. with a small letter"),
        ("." * 5000, "." * 5000),
    ],
)
def test_a_table_has_the_first_sentence(description: str, shown: str) -> None:
    assert first_sentence(description) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h"), (3725, "1 h 2 min")),
        *((86400, "1 d"), (90000, "1 d 1 h"), (1e9, "11574 d 1 h")),
    ],
)
def test_durations_have_two_figures_at_most(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_quantities_read_well() -> None:
    assert (count(1, "tool"), count(0, "tool")) == ("1 tool", "0 tools")
    assert [latency(ms) for ms in (0.04, 9.94, 10, 9999, 60_000)] == ["0.0 ms", "9.9 ms", "10 ms", "9999 ms", "60 s"]
    assert since("2026-11-15T11:58:00Z", NOW) == "2 min"
    assert since("nonsense", NOW) is None
    assert since(None, NOW) is None


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://h:1", "http://h:1/mcp"),
        ("http://h:1/", "http://h:1/mcp"),
        ("https://h/mcp", "https://h/mcp"),
        ("https://h/team/mcp/only/git?names=qualified", "https://h/team/mcp/only/git?names=qualified"),
    ],
)
def test_a_url_without_a_path_means_the_endpoint(url: str, endpoint: str) -> None:
    assert mcp_url(url) == endpoint


def test_columns_shrink_in_the_order_given_and_empty_columns_vanish() -> None:
    rows = [[Text("abcdefgh"), Text(""), Text("12345678")], [Text("xyz"), Text(""), Text("9")]]
    wide = [line.plain for line in in_columns(rows, width=40)]
    assert wide == ["abcdefgh  12345678", "xyz       9"]
    narrow = [line.plain for line in in_columns(rows, width=12, shrink={2: 4, 0: 4})]
    assert narrow == ["abcde…  123…", "xyz     9"]
    assert [line.plain for line in in_columns(rows, width=40, right=frozenset((2,)))][1] == "xyz              9"
    assert in_columns([], width=10) == []


def test_wide_characters_keep_the_columns_straight() -> None:
    rows = [[Text("日本語"), Text("a")], [Text("x"), Text("b")]]
    assert [line.plain for line in in_columns(rows, width=40)] == ["日本語  a", "x       b"]


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 81, 100, 200])
def test_the_tree_never_exceeds_its_width_where_anything_can_give_way(width: int) -> None:
    operations = FakeOperations()
    operations.link_list.append(link("x" * 63, "degraded", reason="z" * 300, tools=10_000, latency_ms=59_999.0))
    status = operations.node.status()
    for ascii_only in (False, True):
        lines = tree_lines(status, width=width, now=NOW, ascii_only=ascii_only)
        rows = lines[1:-1]  # the first and the last are short and of a fixed length
        least = 66  # state, tools, transport, era and latency keep their size
        assert all(line.cell_len <= max(width, least) for line in rows)


def test_a_terminal_without_drawings_gets_plain_signs() -> None:
    status = FakeOperations().node.status()
    assert all(line.plain.isascii() for line in tree_lines(status, width=200, now=NOW, ascii_only=True))


def line(number: int) -> LogLine:
    return LogLine(at=f"2026-11-15T10:00:{number:02d}Z", text=f"line {number}")


def test_only_lines_that_came_since_are_unseen() -> None:
    window = tuple(line(number) for number in range(10))
    assert unseen((), window) == window
    assert unseen(window, window) == ()
    assert unseen(window[:4], window) == window[4:]
    assert unseen(window[:8], window[5:]) == window[8:]
    assert unseen(window[:3], window[6:]) == window[6:]
    same = tuple(LogLine(at="t", text="again") for _ in range(3))
    assert unseen(same, (*same, LogLine(at="u", text="again"))) == (LogLine(at="u", text="again"),)


@pytest.mark.parametrize(
    ("result", "blocks"),
    [
        ({"content": []}, ["(empty result)"]),
        ({}, ["(empty result)"]),
        ({"content": [{"type": "text", "text": '{"b":1,"a":2}'}]}, ['{\n  "b": 1,\n  "a": 2\n}']),
        ({"content": [{"type": "text", "text": "{not json"}]}, ["{not json"]),
        (
            {"content": [{"type": "text", "text": '{"n": 1}'}], "structuredContent": {"n": 1}},
            ['{\n  "n": 1\n}'],
        ),
        ({"content": [{"type": "text", "text": "one"}], "structuredContent": {"result": "one"}}, ["one"]),
        ({"content": [{"type": "text", "text": "one"}], "structuredContent": {"n": 1}}, ["one", '{\n  "n": 1\n}']),
        ({"content": [{"type": "resource_link", "uri": "file:///a"}]}, ["(link to file:///a)"]),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "inside"}}]},
            ["(resource a:b)\ninside"],
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "blob": "aGk="}}]},
            ["(resource a:b, 2 bytes; --json has it)"],
        ),
        ({"content": [{"type": "hologram"}]}, ["(hologram content; --json has it)"]),
        (
            {"content": [7, {"type": "text"}]},
            ["(content of no known form; --json has it)", "(text content; --json has it)"],
        ),
    ],
)
def test_any_result_becomes_text(result: dict[str, object], blocks: list[str]) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(result), type=ShownResult)
    assert result_blocks(decoded) == blocks
