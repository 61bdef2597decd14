import random

import pytest

from interlock.process.stderr import LineSplitter, one_line
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized

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

NOBODYS = Oversized(LIMIT, MessageKind.UNKNOWN)
TOO_LONG = [
    (b"123456789", [], [NOBODYS]),
    (b"123456789\n", [], [NOBODYS]),
    (b"12345678\rx\n", [], [NOBODYS]),
    (b"12345678\r\r\n", [], [NOBODYS]),
    (b"a\nb\n123456789", [b"a", b"b"], [NOBODYS]),
    (b"a\n123456789\nb\n", [b"a", b"b"], [NOBODYS]),
    (b"1\n2\n" + b"x" * 1000 + b"\r\n3\n" + b"y" * 9 + b"\n\n4", [b"1", b"2", b"3", b""], [NOBODYS] * 2),
    (b'{"id":5,"result":"\n1\n', [b"1"], [Oversized(LIMIT, MessageKind.RESPONSE, b"5")]),
    (b'{"result":{"id":7},"id":5}\n', [], [Oversized(LIMIT, MessageKind.RESPONSE, b"5")]),
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
@pytest.mark.parametrize(("stream", "lines", "oversized"), TOO_LONG)
def test_a_line_over_the_limit_is_left_out_and_the_others_are_not_lost(
    stream: bytes, lines: list[bytes], oversized: list[Oversized], size: int
) -> None:
    splitter = LineSplitter(LIMIT)
    got: list[bytes] = []
    told: list[Oversized] = []
    for piece in pieces(stream, size):
        got += splitter.feed(piece)
        if splitter.skipped:
            told += splitter.take_oversized()
    assert (got, told) == (lines, oversized)


def test_a_line_without_end_is_counted_and_not_kept() -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b'{"id":5,"result":"') == []
    assert splitter.take_oversized() == [Oversized(LIMIT, MessageKind.RESPONSE, b"5")]
    for _ in range(100):
        assert splitter.feed(b"x" * 1000) == []
        assert splitter.take_oversized() == []
    assert (splitter.pending, splitter.skipped) == (0, 100_018)
    assert splitter.feed(b'"}\nnext\n') == [b"next"]
    assert (splitter.take_oversized(), splitter.skipped) == ([], 0)


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
