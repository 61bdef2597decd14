"""Does a connection that brings a large answer leave others their turn?"""

import asyncio
from typing import Any, ClassVar, cast

from interlock.net.http.connection import Handle, HttpConnection
from interlock.net.http.messages import LARGE_READ_BYTES


class Transport:
    def __init__(self) -> None:
        self.said: list[str] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None:
        self.said.append("pause")

    def resume_reading(self) -> None:
        self.said.append("resume")

    def get_write_buffer_size(self) -> int:
        return 0


class Owner:
    known_heads: ClassVar[dict[bytes, Any]] = {}
    varying = ()
    has_plenty = False

    def ready(self, connection: HttpConnection) -> None: ...

    def gone(self, connection: HttpConnection) -> None: ...


async def test_reading_stops_for_a_turn_after_each_large_piece_but_the_last() -> None:
    transport, answers = Transport(), []
    connection = HttpConnection(cast(Any, Owner()), 1_000_000, 30)
    connection.connection_made(cast(Any, transport))

    class Sink:
        def on_answer(self, status: int, headers: object, body: bytes) -> None:
            answers.append((status, len(body)))

    connection.send(Handle(cast(Any, Sink())), b"GET / HTTP/1.1\r\n\r\n")
    piece = b"x" * LARGE_READ_BYTES
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (3 * len(piece)) + piece)
    assert transport.said == ["pause"]
    await asyncio.sleep(0)
    assert transport.said == ["pause", "resume"]
    connection.data_received(piece[:100])
    assert transport.said == ["pause", "resume"]
    connection.pause()
    connection.data_received(piece)  # read before the pause
    await asyncio.sleep(0)
    assert transport.said == ["pause", "resume", "pause"]
    connection.resume()
    connection.data_received(piece[100:])
    assert answers == [(200, 3 * len(piece))] and transport.said[-1] == "resume"
