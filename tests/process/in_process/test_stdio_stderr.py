import tracemalloc

import pytest

from interlock.process.stderr import StderrRing, terminal_safe


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


def ring(lines: int = 3, line_bytes: int = 8) -> StderrRing:
    return StderrRing(lines, line_bytes, now=Clock())


def texts(kept: StderrRing, count: int | None = None) -> list[str]:
    return [line.text for line in kept.tail(count)]


@pytest.mark.req("AIP-transport-6")
def test_the_last_lines_are_kept_and_the_oldest_leave_first() -> None:
    kept = ring()
    kept.feed(b"1\n2\n3\n4\n")
    kept.feed(b"5\n")
    assert texts(kept) == ["3", "4", "5"]
    assert texts(kept, 2) == ["4", "5"]
    assert texts(kept, 0) == []
    assert texts(kept, 99) == ["3", "4", "5"]


def test_a_line_in_pieces_is_one_line_with_the_time_of_its_first_piece() -> None:
    kept = ring()
    kept.feed(b"a\nb")
    kept.feed(b"c")
    kept.feed(b"d\r\ne\n")
    assert [(line.at, line.text) for line in kept.tail()] == [(1.0, "a"), (1.0, "bcd"), (3.0, "e")]


def test_an_unfinished_line_is_shown_and_ends_with_its_process() -> None:
    kept = ring()
    kept.feed(b"Passw")
    assert texts(kept) == ["Passw"]
    kept.end_line()
    kept.end_line()
    kept.feed(b"next\n")
    assert texts(kept) == ["Passw", "next"]


def test_empty_lines_are_lines() -> None:
    kept = ring()
    kept.feed(b"a\n\nb\n")
    assert texts(kept) == ["a", "", "b"]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_long_line_is_cut_and_says_by_how_much(size: int) -> None:
    kept = ring()
    stream = b"0123456789ab\nok\n"
    for at in range(0, len(stream), size):
        kept.feed(stream[at : at + size])
    assert texts(kept) == ["01234567 … 4 bytes more", "ok"]


def test_a_child_that_never_prints_a_newline_costs_one_line_of_memory() -> None:
    kept = ring(lines=500, line_bytes=4096)
    piece = b"x" * 65536
    kept.feed(piece)
    tracemalloc.start()
    for _ in range(500):
        kept.feed(piece)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 65536
    assert texts(kept) == ["x" * 4096 + f" … {501 * 65536 - 4096} bytes more"]


def test_a_flood_of_lines_leaves_only_as_many_as_the_ring_holds() -> None:
    kept = ring(lines=500)
    for _ in range(10):
        kept.feed(b"y\n" * 30000)
    assert texts(kept) == ["y"] * 500


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    kept = ring()
    kept.feed(b"a\xff\xc3\n")
    assert texts(kept) == ["a��"]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain é 漢 👩‍💻", "plain é 漢 👩‍💻"),
        ("tab\tstays", "tab\tstays"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x00\x08\r\n\x7f\x9b", "\\x00\\x08\\r\\n\\x7f\\x9b"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
    ],
)
def test_control_characters_are_written_out(text: str, safe: str) -> None:
    assert terminal_safe(text) == safe
