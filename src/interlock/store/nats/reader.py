"""A reader of one JetStream stream: every message after a sequence, in order and once, whatever happens meanwhile.

Theory of operation. The reader creates a consumer on the server that begins after the last message it has passed on,
and asks it for messages with long polls. The server numbers what it delivers to a consumer; a number that was left out
shows a lost message. A heartbeat shows that a silent server is still there.

After any doubt (a lost connection, a heartbeat that did not come, a number that was left out, a consumer that is gone)
the reader creates a new consumer. Nothing has to be acknowledged or undone, because the position is known here.
`prepare` runs before each new consumer: the owner checks there that the stream is still the same.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

import msgspec
from nats.aio.msg import Msg

from interlock.store.nats.connection import ANSWER_S, ApiError, Connection
from interlock.store.ports import Damaged, Record, StoreError, StoreRefused, Unavailable

HEARTBEAT_S = 1.0  # how soon a silent server is noticed by those who only listen
POLL_S = 30.0  # how long a request for messages waits if none come
POLL_MESSAGES = 256  # in the answer to one request
POLL_BYTES = 8 * 1024 * 1024  # likewise; bounds what waits for a slow owner
IDLE_KEPT_S = 60.0  # the server forgets a consumer that was not used for so long
RETRY_S = 0.2  # after an error answer, so that a loop of them costs little
STREAM_GONE = 10059

_NS = 1_000_000_000
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Reader:
    """A background reader of the messages of a stream after a position. From `start` until `stop`, it passes each
    message to `take`.
    """

    _connection: Connection
    _stream: str
    _subject: str
    position: int  # the last sequence that was passed on
    _take: Callable[[Msg, int], None]
    # Called before every new consumer, with the position.
    prepare: Callable[[int], Awaitable[object]] = field(kw_only=True)
    # Called when reading has ended: with the reason, or with None after `stop` or the end of the connection.
    on_end: Callable[[StoreRefused | None], None] = field(kw_only=True)
    # Called before more messages are requested.
    wait_for_taker: Callable[[], Awaitable[None]] | None = field(default=None, kw_only=True)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _arrived: deque[Msg] = field(default_factory=deque, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _is_doubtful: bool = field(default=False, init=False)

    def doubt(self) -> None:
        """Read again from the last message that was passed to `take`, because messages may have been lost."""
        self._is_doubtful = True
        self._changed.set()

    def start(self) -> None:
        """Start the task that reads the stream."""
        self._task = asyncio.create_task(self._run(), name="nats reader")
        self._task.add_done_callback(self._on_done)
        self._connection.on_change(self.doubt)

    def stop(self) -> None:
        """Request the end of reading. `on_end` is called with None soon afterwards."""
        self._connection.forget(self.doubt)
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop reading, and wait until the task has ended."""
        self.stop()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        """Call `on_end` with the reason for which reading ended."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            _log.error("reading a stream has ended: %s", failure, exc_info=failure)
        if failure is not None and not isinstance(failure, StoreRefused):
            failure = StoreRefused("The store on NATS can no longer be read; the log of this node says why.")
        self.on_end(failure)

    async def _run(self) -> None:
        """Read until the connection is permanently closed. Raise Damaged if the stream was deleted or replaced."""
        while True:
            try:
                await self._read()
            except Unavailable:
                if self._connection.is_reachable:
                    await asyncio.sleep(RETRY_S)
                await self._connection.until_reachable()
                if not self._connection.is_open:
                    return
            except Damaged:
                raise
            except StoreRefused as refused:  # it may be put right on the server
                _log.warning("reading %s: %s", self._stream, refused)
                await asyncio.sleep(RETRY_S)
            except ApiError as refused:
                if refused.err_code == STREAM_GONE:
                    raise stream_gone(self._stream) from refused
                _log.warning("reading %s: %s", self._stream, refused)
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        """Read with one consumer until messages may have been lost. Raise Unavailable or ApiError if the server
        fails.
        """
        self._is_doubtful = False
        self._arrived.clear()
        await self.prepare(self.position)
        consumer = secrets.token_hex(8)
        await self._connection.api(
            f"CONSUMER.CREATE.{self._stream}.{consumer}",
            stream_name=self._stream,
            config={
                "name": consumer,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": self.position + 1,
                "filter_subject": self._subject,
                "ack_policy": "none",
                "inactive_threshold": int(IDLE_KEPT_S * _NS),
                "mem_storage": True,
                "num_replicas": 1,
            },
        )
        try:
            async with self._connection.subscription(self._on_message) as reply:
                delivered = 0
                while not self._is_doubtful:
                    if self.wait_for_taker is not None:
                        await self.wait_for_taker()
                    delivered = await self._poll(consumer, reply, delivered)
        finally:
            with contextlib.suppress(StoreError):
                await self._connection.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")

    async def _poll(self, consumer: str, reply: str, delivered: int) -> int:
        """Run one long poll and deliver its messages. Return how many messages the consumer has delivered in total."""
        request = {
            "batch": POLL_MESSAGES,
            "max_bytes": max(POLL_BYTES, 2 * self._connection.payload_max),
            "expires": int(POLL_S * _NS),
            "idle_heartbeat": int(HEARTBEAT_S * _NS),
        }
        await self._connection.send(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}", msgspec.json.encode(request), reply=reply
        )
        for _ in range(POLL_MESSAGES):
            while (message := await self._next()) is not None and _status(message) == "100":
                pass
            if message is None:
                return delivered
            if (status := _status(message)) is not None:
                if status not in ("404", "408") and "Exceeds MaxBytes" not in _description(message):
                    self.doubt()
                return delivered
            sequence, number = _numbers(message)
            if number != delivered + 1:
                self.doubt()
                return delivered
            delivered = number
            self._take(message, sequence)
            self.position = sequence
        return delivered

    async def _next(self) -> Msg | None:
        """Return the next message, or None if messages may have been lost. Raise Unavailable if no heartbeat came."""
        while not self._arrived:
            if self._is_doubtful:
                return None
            self._changed.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_S + ANSWER_S):
                    await self._changed.wait()
            except TimeoutError:
                await asyncio.sleep(0.1)  # after a pause of this process it may have arrived and only not been read
                if not self._arrived:
                    self._connection.lose(f"no heartbeat within {HEARTBEAT_S + ANSWER_S} s")
                    raise Unavailable("no heartbeat") from None
        return self._arrived.popleft()

    def _on_message(self, message: Msg) -> None:
        self._arrived.append(message)
        self._changed.set()


def stream_gone(stream: str) -> Damaged:
    """Return the error that reports a deleted or replaced stream."""
    return Damaged(
        f"The stream {stream} was deleted on the NATS server. Restore it from a backup, or restart this node to begin "
        "without it."
    )


def _status(message: Msg) -> str | None:
    """Return the status of a control message such as a heartbeat, or None if the message belongs to the stream."""
    return (message.headers or {}).get("Status") if not message.data else None


def _numbers(message: Msg) -> tuple[int, int]:
    """Return the stream sequence and the consumer sequence of a message from its reply subject:
    $JS.ACK[.domain.account].stream.consumer.tries.SEQUENCE.NUMBER.time.pending
    """
    parts = message.reply.split(".")
    first = 5 if len(parts) == 9 else 7
    return int(parts[first]), int(parts[first + 1])


def _description(message: Msg) -> str:
    return str((message.headers or {}).get("Description", ""))


class StreamIterator:
    """A base class for async iterators over a stream. It waits for new data, for the end, or for a failure."""

    def __init__(self) -> None:
        self.is_closed = False
        self._failure: StoreRefused | None = None
        self._changed = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    def end(self, failure: StoreRefused | None = None) -> None:
        """End the iteration after all queued items were yielded. If `failure` is given, the iterator then raises it."""
        self._failure = failure
        self.is_closed = True
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Wait until new data arrives. Raise the failure of the stream, or StopAsyncIteration after its end."""
        if self._failure is not None:
            raise self._failure
        if self.is_closed:
            raise StopAsyncIteration
        self._changed.clear()
        await self._changed.wait()


FOLLOWED_MAX = 1000  # records that wait for one follower; no more are requested then


class NatsFollowing(StreamIterator):
    """An async iterator over the records of one stream, including records that are appended later.

    At most FOLLOWED_MAX records are queued. While the queue is full, no records are requested from the server.
    """

    def __init__(
        self, connection: Connection, stream: str, subject: str, after: int, prepare: Callable[[int], Awaitable[object]]
    ) -> None:
        super().__init__()
        self._waiting: deque[Record] = deque()
        self._taken = asyncio.Event()
        self._reader = Reader(
            connection,
            stream,
            subject,
            max(after, 0),
            self._take,
            prepare=prepare,
            on_end=self.end,
            wait_for_taker=self._wait_for_taker,
        )
        self._reader.start()

    async def __anext__(self) -> Record:
        while not self._waiting:
            await self.wait_for_change()
        self._taken.set()
        return self._waiting.popleft()

    def close(self) -> None:
        self._reader.stop()
        self.end()

    async def _wait_for_taker(self) -> None:
        while len(self._waiting) >= FOLLOWED_MAX:
            self._taken.clear()
            await self._taken.wait()

    def _take(self, message: Msg, sequence: int) -> None:
        self._waiting.append(Record(sequence, message.data))
        self._changed.set()
