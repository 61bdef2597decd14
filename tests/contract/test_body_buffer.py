"""Is a body the same however it comes, and never much larger in memory than what was sent?"""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from interlock.net.http.body_buffer import BodyBuffer


@given(st.lists(st.sampled_from([b"", b"a", b"bc" * 2000, b"d" * 5000])), st.integers(0, 10))
def test_what_is_taken_is_what_was_added(pieces: list[bytes], taken_at: int) -> None:
    buffer = BodyBuffer()
    for piece in pieces[:taken_at]:
        buffer.add(piece)
    first = buffer.take()
    for piece in pieces[taken_at:]:
        buffer.add(piece)
    assert first + buffer.take() == b"".join(pieces)
    assert buffer.size == sum(map(len, pieces))
    assert not buffer


def test_single_bytes_take_the_room_of_bytes() -> None:
    buffer = BodyBuffer()
    tracemalloc.start()
    try:
        for _ in range(1_000_000):
            buffer.add(b"x")
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
