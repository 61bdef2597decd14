import random

import pytest

from interlock.process.lines import LineSplitter, LineTooLong, one_line

LIMIT = 8

STREAMS = [
    (b"", [], 0),
    (b"\n", [b""], 0),
    (b"a\n", [b"a"], 0),
    (b"a\r\n", [b"a"], 0),
    (b"a\nb\r\n\nc\n", [b"a", b"b", b"", b"c"], 0),
    (b"a\nrest", [b"a"], 4),
    (b"a\n\r", [b"a"], 1),
    (b"a\rb\n", [b"a\rb"], 0),
    (b"a\r\r\n", [b"a\r"], 0),
    (b"12345678\n", [b"12345678"], 0),
    (b"12345678\r\n", [b"12345678"], 0),
    (b"12345678\r", [], 9),
    (b"\xff\x00\n", [b"\xff\x00"], 0),
]

TOO_LONG = [
    (b"123456789", []),
    (b"123456789\n", []),
    (b"12345678\rx", []),
    (b"12345678\r\r\n", []),
    (b"a\nb\n123456789", [b"a", b"b"]),
    (b"a\n123456789\nb\n", [b"a"]),
    (b"1\n2\n3\n4\n5\n" + b"x" * 1000, [b"1", b"2", b"3", b"4", b"5"]),
]


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("stream", "lines", "pending"), STREAMS)
def test_lines_come_out_the_same_however_the_stream_is_cut(
    stream: bytes, lines: list[bytes], pending: int, size: int
) -> None:
    splitter = LineSplitter(LIMIT)
    assert [line for piece in pieces(stream, size) for line in splitter.feed(piece)] == lines
    assert splitter.pending == pending


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("stream", "before"), TOO_LONG)
def test_a_line_over_the_limit_is_one_error_and_the_lines_before_it_are_not_lost(
    stream: bytes, before: list[bytes], size: int
) -> None:
    splitter = LineSplitter(LIMIT)
    got: list[bytes] = []
    with pytest.raises(LineTooLong, match="limit of 8 bytes") as caught:
        for piece in pieces(stream, size):
            got += splitter.feed(piece)
    assert got + caught.value.complete == before


def test_after_the_error_every_feed_is_refused_and_nothing_is_kept() -> None:
    splitter = LineSplitter(LIMIT)
    with pytest.raises(LineTooLong, match="a line is longer than the limit of"):
        splitter.feed(b"x" * 100)
    assert splitter.pending == 0
    with pytest.raises(LineTooLong) as caught:
        splitter.feed(b"fine\n")
    assert caught.value.complete == []


def test_random_cuts_of_a_random_stream_give_what_one_piece_gives() -> None:
    rng = random.Random(1)
    for _ in range(300):
        stream = bytes(rng.choice(b"ab\r\n\xff") for _ in range(rng.randrange(200)))
        whole = LineSplitter(1000)
        expected = whole.feed(stream)
        splitter = LineSplitter(1000)
        got: list[bytes] = []
        at = 0
        while at < len(stream):
            step = rng.randrange(1, 12)
            got += splitter.feed(stream[at : at + step])
            at += step
        assert got == expected
        assert splitter.pending == whole.pending


def test_a_long_line_in_pieces_is_joined_once() -> None:
    piece = b"x" * 65536
    splitter = LineSplitter(64 * 1024 * 1024)
    for _ in range(512):
        assert splitter.feed(piece) == []
    (line,) = splitter.feed(b"\n")
    assert line == piece * 512


def test_a_limit_below_one_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        LineSplitter(0)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (b'{"a":1}', b'{"a":1}\n'),
        (b'{\r\n  "a": "\\n"\n}', b'{    "a": "\\n" }\n'),
        (b"", b"\n"),
    ],
)
def test_a_pretty_printed_message_becomes_one_line_with_the_same_meaning(message: bytes, line: bytes) -> None:
    assert one_line(message) == line
    assert LineSplitter(100).feed(one_line(message)) == [line[:-1]]
