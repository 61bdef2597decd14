"""Is a body the same however it comes, and never much larger in memory than what was sent?"""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from tests.support.scale import quick_or

from interlock.net.http.messages import BodyBuffer


@given(
    st.lists(st.sampled_from([b"", b"a", b"bc" * 2000, b"d" * 5000, b"e" * 300_000])),
    st.integers(0, 10),
    st.sampled_from([0, 10, 300_000, 2_000_000]),
)
def test_taken_bytes_are_the_added_bytes(pieces: list[bytes], taken_at: int, expected: int) -> None:
    buffer = BodyBuffer(expected)
    for piece in pieces[:taken_at]:
        buffer.add(piece)
    first = buffer.take()
    for piece in pieces[taken_at:]:
        buffer.add(piece)
    assert first + buffer.take() == b"".join(pieces)
    assert buffer.size == sum(map(len, pieces))
    assert not buffer


def test_a_large_body_of_known_length_is_in_memory_once() -> None:
    piece = b"x" * 250_000
    buffer = BodyBuffer(60 * len(piece))
    tracemalloc.start()
    try:
        for _ in range(60):
            buffer.add(piece)
        assert len(buffer.take()) == 60 * len(piece)
        assert tracemalloc.get_traced_memory()[1] < 1.4 * 60 * len(piece)
    finally:
        tracemalloc.stop()


def test_a_length_that_is_only_named_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        buffer = BodyBuffer(16_000_000)
        buffer.add(b"x" * 1000)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_single_bytes_take_the_room_of_bytes() -> None:
    buffer = BodyBuffer()
    tracemalloc.start()
    try:
        for _ in range(quick_or(300_000, 1_000_000)):
            buffer.add(b"x")
        assert tracemalloc.get_traced_memory()[0] < quick_or(600_000, 2_000_000)
    finally:
        tracemalloc.stop()
