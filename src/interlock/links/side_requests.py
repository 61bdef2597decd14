"""Messages to a dialled server that ask nothing of it: answers to its questions, cancellations, notices.

They have connections and a queue of their own, because they must get through while every call waits for them; and
they come in bursts, as when a thousand parked calls expire at once. What does not fit is refused to the sender, and
what the server does not take in time fails: nothing is dropped silently, and nothing blocks the rest for ever.
"""

import asyncio
import ssl
from typing import Final

from interlock.net.http.client import FailureKind, Handle, Headers, HttpClient, HttpFailure, ResponseSink

CONNECTIONS_MAX: Final = 8
WAITING_MAX: Final = 65_536  # more than a cancellation and an answer for every call that may be parked
BYTES_MAX: Final = 64 * 1024 * 1024  # of messages the server has not answered; a single larger one may go alone
TAKEN_S: Final = 60.0  # from `send` to the server's answer; a full queue needs a good part of it
SWEEP_S: Final = 5.0


class SideRequests:
    def __init__(
        self, place: str, max_bytes: int, address: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._client = HttpClient(
            place,
            max_body_bytes=max_bytes,
            max_connections=CONNECTIONS_MAX,
            max_waiting=WAITING_MAX,
            address=address,
            tls=tls,
        )
        self._under_way: dict[_Letter, None] = {}  # the oldest first
        self._bytes = 0
        self._sweeper: asyncio.TimerHandle | None = None

    def send(self, start: bytes, message: bytes, sink: ResponseSink) -> bool:
        """Send a message without waiting for its answer. Return False without sending it if too many messages wait.

        `start` as for `HttpClient.send`.
        """
        size = len(message)
        count = len(self._under_way)
        if count >= WAITING_MAX or (count and self._bytes + size > BYTES_MAX):
            return False
        loop = asyncio.get_running_loop()
        letter = _Letter(self, size, sink, loop.time() + TAKEN_S)
        self._under_way[letter] = None
        self._bytes += size
        letter.handle = self._client.send(start, b"", message, letter)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        return True

    def over(self, letter: "_Letter") -> None:
        if self._under_way.pop(letter, self) is not self:
            self._bytes -= letter.size

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._client.close()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for letter in list(self._under_way):
            if letter.deadline > loop.time():
                break
            letter.give_up()
        self._sweeper = loop.call_later(SWEEP_S, self._sweep) if self._under_way else None


class _Letter:
    """One message under way: the sink of its request, which passes on to that of the sender."""

    __slots__ = ("_side", "_sink", "deadline", "handle", "size")

    def __init__(self, side: SideRequests, size: int, sink: ResponseSink, deadline: float) -> None:
        self._side = side
        self._sink = sink
        self.size = size
        self.deadline = deadline
        self.handle: Handle | None = None

    def give_up(self) -> None:
        if self.handle is not None:
            self.handle.abort()
        self.on_fail(HttpFailure(kind=FailureKind.LOST_BEFORE_ANSWER, detail=f"it was not taken within {TAKEN_S:g} s"))

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._side.over(self)
        self._sink.on_answer(status, headers, body)

    def on_stream(self, status: int, headers: Headers) -> None:
        self._sink.on_stream(status, headers)

    def on_chunk(self, data: bytes) -> None:
        self._sink.on_chunk(data)

    def on_stream_end(self) -> None:
        self._side.over(self)
        self._sink.on_stream_end()

    def on_fail(self, failure: HttpFailure) -> None:
        self._side.over(self)
        self._sink.on_fail(failure)
