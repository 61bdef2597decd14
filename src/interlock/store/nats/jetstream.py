"""Requests to JetStream that the parts of the store have in common: publish, read messages, create and follow a stream.

A stream that this process has used and that is gone, or was replaced by another one, is `Damaged`: it is not created
again, because other replicas rely on what it contained. `confirm` checks that by the time at which the stream was
created, and by its last sequence.

"No responders" is ambiguous: the stream may not exist, or its servers may be electing a leader. `await_request` asks
for the stream to tell the two apart.

Reads go to any server that has the stream, which may lag behind its leader. So `all_of` first asks the leader for the
last message, and repeats its reads until it has come that far.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import msgspec
from nats.aio.msg import Msg

from interlock.store.nats.connection import ANSWER_S, ApiError, Connection, Headers, decode
from interlock.store.ports import Damaged, Record, StoreError, StoreRefused, Unavailable

# Names of streams and subjects on a NATS server: any text becomes a token that NATS takes.
#
# Letters, digits and the hyphen are kept, any other byte becomes an underscore and two hexadecimal digits. A text that
# would be too long is replaced by its digest; the text itself is then stored elsewhere, such as in a header.

TOKEN_MAX = 180  # characters: four tokens stay below the 4096 of a protocol line, a stream's name below 255 of a file's

_PLAIN = re.compile(rb"[^A-Za-z0-9-]")
_QUOTED = re.compile(rb"_([0-9A-F]{2})")


def token(text: str) -> str:
    """Encode a text as one token of a NATS subject. If the text is too long, return a digest of it."""
    quoted = _PLAIN.sub(lambda match: b"_%02X" % ord(match[0]), text.encode()).decode() or "__"
    return quoted if len(quoted) <= TOKEN_MAX else "_s" + hashlib.sha256(text.encode()).hexdigest()


def is_digest(quoted: str) -> bool:
    """Return whether a token of a subject is a digest, because the text was too long to be encoded."""
    return quoted.startswith("_s")


def text_of(quoted: str) -> str:
    """Return the text that a token of a NATS subject encodes. The token must not be a digest."""
    if quoted == "__":
        return ""
    return _QUOTED.sub(lambda match: bytes.fromhex(match[1].decode()), quoted.encode()).decode()


class StreamNames:
    """The names of the JetStream streams and subjects that the replicas of one node share."""

    def __init__(self, node: str) -> None:
        node = token(node)
        self.kv_stream = f"INTERLOCK-{node}-KV"
        self.entries = f"interlock.{node}.kv"
        self.parts = f"interlock.{node}.part"
        self.names_stream = f"INTERLOCK-{node}-NAMES"
        self.names = f"interlock.{node}.names"
        self._streams = f"INTERLOCK-{node}-S"
        self._records = f"interlock.{node}.stream"

    def entry(self, bucket: str, key: str) -> str:
        return f"{self.entries}.{token(bucket)}.{token(key)}"

    def stream(self, name: str) -> str:
        # Node names hold hyphens: without the length, "a" with stream "b-S-c" and "a-S-b" with "c" would be one.
        return f"{self._streams}{len(token(name))}-{token(name)}"

    def records(self, name: str) -> str:
        return f"{self._records}.{token(name)}"


T = TypeVar("T")

BATCH_MAX = 1000  # messages of one atomic batch: the server's limit
PAGE_MESSAGES = 500  # asked for at once when many are read
PAGE_BYTES = 16 * 1024 * 1024
HEADERS_MAX = 8 * 1024  # bytes: what our headers need beside a value, with room
NO_MESSAGE = 10037
WRONG_SEQUENCE = (10071, 10164)  # of the subject; of a batch
CONFIGURED_OTHERWISE = 10058
STALE_RETRY_S = 0.1
AWAY = (408, 503)  # JetStream's codes for "not now"
STALE_TRIES = 20  # a server that follows its leader catches up in milliseconds


class Stored(msgspec.Struct, frozen=True):
    """A message of a stream, with its subject, sequence number, headers and data."""

    subject: str
    sequence: int
    headers: dict[str, str]
    data: bytes


class _Found(msgspec.Struct):
    """A message of a stream, as an answer of the JetStream API contains it."""

    subject: str
    seq: int
    hdrs: bytes = b""
    data: bytes = b""


class WrongSequence(Exception):
    """Exception for a conditional write that the server rejected, because another message was stored first."""


class JetStream:
    """A client for JetStream streams: it creates them, publishes messages and reads them. `_created` has the streams
    that this process has used.
    """

    def __init__(self, connection: Connection, replicas: int) -> None:
        self.connection, self._replicas = connection, replicas
        self._created: dict[str, str] = {}
        self._making: dict[str, asyncio.Lock] = {}

    def knows(self, stream: str) -> bool:
        return stream in self._created

    async def ensure(self, stream: str, subjects: Sequence[str], **config: Any) -> None:
        """Create the stream on the server, or update its configuration if it exists. Do nothing after the first
        call.
        """
        if stream in self._created:
            return
        async with self._making.setdefault(stream, asyncio.Lock()):
            if stream in self._created:
                return
            wanted = {
                "name": stream,
                "subjects": list(subjects),
                "storage": "file",
                "num_replicas": self._replicas,
                "allow_direct": True,
                "allow_atomic": True,
                "discard": "new",  # a full stream refuses messages, and keeps those that it acknowledged
                **config,
            }
            try:
                stream_info = await self.connection.api(f"STREAM.CREATE.{stream}", **wanted)
            except ApiError as refused:
                if refused.err_code != CONFIGURED_OTHERWISE:
                    raise self._refusal(stream, refused) from refused
                try:
                    stream_info = await self.connection.api(f"STREAM.UPDATE.{stream}", **wanted)
                except ApiError as again:
                    raise self._refusal(stream, again) from again
            self._created[stream] = str(stream_info.get("created"))

    async def confirm(self, stream: str, read: int = 0) -> int:
        """Return the last sequence of the stream. Raise Damaged if the stream was replaced or restored from an older
        state. Such a stream ends before `read`, the highest sequence that this process has read.
        """
        try:
            info = await self.connection.api(f"STREAM.INFO.{stream}")
        except ApiError as refused:
            if refused.err_code == STREAM_GONE:
                raise stream_gone(stream) from refused
            raise Unavailable(f"the NATS server says: {refused}") from refused
        if str(info.get("created")) != self._created[stream]:
            raise stream_gone(stream)
        last = int(info["state"]["last_seq"])
        if last < read:
            raise Damaged(
                f"The stream {stream} ends at record {last}, and {read} was read from it: an older state was restored. "
                "Restart this node."
            )
        return last

    async def publish(
        self, stream: str, subject: str, data: bytes, headers: Headers, *, size: int | None = None
    ) -> int:
        """Publish a message, and return its sequence number after the server has stored it."""
        return self.acknowledged(stream, await self.connection.request(subject, data, headers, size=size))

    async def publish_batch(self, stream: str, messages: Sequence[tuple[str, bytes, Headers]]) -> int:
        """Publish all messages in order, all or none, and return the sequence of the last one."""
        if len(messages) == 1:
            return await self.publish(stream, *messages[0])
        batch = secrets.token_hex(16)
        *first, last = [
            (subject, data, {**headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)})
            for number, (subject, data, headers) in enumerate(messages, 1)
        ]
        for subject, data, headers in first:
            await self.connection.send(subject, data, headers)
        subject, data, headers = last
        size = sum(len(data) for _, data, _ in messages)
        return await self.publish(stream, subject, data, {**headers, "Nats-Batch-Commit": "1"}, size=size)

    def acknowledged(self, stream: str, answer: Msg) -> int:
        """Return the sequence number that a server's acknowledgement of a message contains, or 0 if the server dropped
        the message as a duplicate.
        """
        if (answer.headers or {}).get("Status") == "503":
            raise NoStream(stream)
        try:
            acknowledged = decode(answer.data)
        except ApiError as refused:
            if refused.err_code in WRONG_SEQUENCE:
                raise WrongSequence(str(refused)) from refused
            raise self._refusal(stream, refused) from refused
        return 0 if acknowledged.get("duplicate") else int(acknowledged["seq"])

    async def await_request(self, stream: str, request: Awaitable[T]) -> T:
        """Return the result of a request to a stream. If no server answers for the stream, raise Damaged if it was
        deleted, or Unavailable if it has no leader now.
        """
        try:
            return await request
        except NoStream:
            await self.confirm(stream)
            raise Unavailable("the NATS servers have no leader for the stream now") from None

    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the newest message of a subject on the leader of the stream, or None if there is none. `subject` may
        contain wildcards.
        """
        return await self._get(stream, last_by_subj=subject)

    async def at(self, stream: str, sequence: int) -> Stored | None:
        return await self._get(stream, seq=sequence)

    async def all_of(self, stream: str, subject: str, after: int = 0, limit: int | None = None) -> list[Stored]:
        """Return all messages of a subject that were stored before this call. `subject` may contain wildcards."""
        last = await self.last(stream, subject)
        messages: list[Stored] = []
        if last is None:
            return messages
        for _ in range(STALE_TRIES):
            while limit is None or len(messages) < limit:
                wanted = PAGE_MESSAGES if limit is None else min(PAGE_MESSAGES, limit - len(messages))
                page, pending = await self._page(stream, subject, after + 1, wanted)
                messages += page
                if page:
                    after = page[-1].sequence
                if not pending:
                    break
            else:
                return messages
            if after >= last.sequence:
                return messages
            # A server that follows its leader may lag; or what was the last has been replaced meanwhile.
            if (newer := await self.at(stream, last.sequence)) is None or newer.subject != last.subject:
                last = await self.last(stream, subject)
                if last is None or after >= last.sequence:
                    return messages
            await asyncio.sleep(STALE_RETRY_S)
        raise Unavailable("the NATS servers do not agree on what is stored yet")

    async def purge(self, stream: str, **parameters: Any) -> None:
        """Remove the messages that match `parameters`, such as all messages before a sequence number."""
        try:
            await self.connection.api(f"STREAM.PURGE.{stream}", **parameters)
        except ApiError as refused:
            raise self._refusal(stream, refused) from refused

    async def _page(self, stream: str, subject: str, sequence: int, wanted: int) -> tuple[list[Stored], bool]:
        """Return up to `wanted` messages from `sequence` on, and whether more messages follow."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        page: list[Stored] = []

        def arrived(message: Msg) -> None:
            headers = dict(message.headers or {})
            status = headers.get("Status")
            if done.done():
                return
            if status is None:
                subject, sequence = headers.pop("Nats-Subject", ""), int(headers.pop("Nats-Sequence", "0"))
                page.append(Stored(subject, sequence, headers, message.data))
            elif status == "503":
                done.set_exception(NoStream(stream))
            else:
                done.set_result(status == "204" and int(headers.get("Nats-Num-Pending", "0")) > 0)

        query = {"seq": sequence, "next_by_subj": subject, "batch": wanted, "max_bytes": PAGE_BYTES}
        with self.connection.inbox(arrived) as reply:
            await self.connection.send(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(query), reply=reply)
            await self.connection.wait(done, PAGE_BYTES)
            return page, done.result()

    async def _get(self, stream: str, **query: Any) -> Stored | None:
        """Return one message of a stream, or None if there is none."""
        try:
            answer = await self.connection.api(f"STREAM.MSG.GET.{stream}", **query)
        except ApiError as refused:
            if refused.err_code == NO_MESSAGE:
                return None
            if refused.err_code == STREAM_GONE:
                raise NoStream(stream) from refused
            raise Unavailable(f"the NATS server says: {refused}") from refused
        message = msgspec.convert(answer["message"], _Found)
        lines = message.hdrs.decode("utf-8", "replace").split("\r\n")[1:]
        headers = {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
        return Stored(message.subject, message.seq, headers, message.data)

    def _refusal(self, stream: str, refused: ApiError) -> Exception:
        """Return the error for an error response of the server: Unavailable if the problem is temporary, otherwise
        StoreRefused.
        """
        if refused.code in AWAY:
            return Unavailable(f"the NATS server says: {refused}")
        return StoreRefused(f"The NATS server does not take what is to be stored in {stream}: {refused}.")


class NoStream(Exception):
    """Exception for a stream for which no server answers. Either it does not exist, or its servers are electing a
    leader.
    """


# A reader of one JetStream stream: every message after a sequence, in order and once, whatever happens meanwhile.
#
# Theory of operation. The reader creates a consumer on the server that begins after the last message it has passed on,
# and asks it for messages with long polls. The server numbers what it delivers to a consumer; a number that was left
# out shows a lost message. A heartbeat shows that a silent server is still there.
#
# After any doubt (a lost connection, a heartbeat that did not come, a number that was left out, a consumer that is
# gone) the reader creates a new consumer. Nothing has to be acknowledged or undone, because the position is known here.
# `prepare` runs before each new consumer: the owner checks there that the stream is still the same.

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
    """A background reader of the messages of a stream. From `start` until `stop`, it passes every message after its
    position to a function.
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
        """Read again from the last message that was passed on, because messages may have been lost."""
        self._is_doubtful = True
        self._changed.set()

    def start(self) -> None:
        """Start the task that reads the stream."""
        self._task = asyncio.create_task(self._run(), name="nats reader")
        self._task.add_done_callback(self._on_done)
        self._connection.on_change(self.doubt)

    def stop(self) -> None:
        """Ask the reader to end. It ends soon afterwards and calls `on_end`."""
        self._connection.forget(self.doubt)
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop reading, and wait until the reader has ended."""
        self.stop()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        """Report the end of reading to `on_end`, with the error that ended it, if there was one."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            _log.error("reading a stream has ended: %s", failure, exc_info=failure)
        if failure is not None and not isinstance(failure, StoreRefused):
            failure = StoreRefused("The store on NATS can no longer be read; the log of this node says why.")
        self.on_end(failure)

    async def _run(self) -> None:
        """Read until the connection is permanently closed, starting again after each interruption. Raise Damaged if the
        stream was deleted or replaced.
        """
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
        """Create a consumer on the server and read from it until messages may have been lost. Raise Unavailable or
        ApiError if the server fails.
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
        """Ask the server once for messages, and pass on those that come. Return how many messages the consumer has
        delivered since it was created.
        """
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
                description = (message.headers or {}).get("Description", "")
                if status not in ("404", "408") and "Exceeds MaxBytes" not in description:
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
        """Return the next message, or None if messages may have been lost. Raise Unavailable if the server sends
        neither a message nor a heartbeat.
        """
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
    """Return the error for a stream that was deleted or replaced on the server."""
    return Damaged(
        f"The stream {stream} was deleted on the NATS server. Restore it from a backup, or restart this node to begin "
        "without it."
    )


def _status(message: Msg) -> str | None:
    """Return the status of a control message, such as a heartbeat. Return None for a message of the stream."""
    return (message.headers or {}).get("Status") if not message.data else None


def _numbers(message: Msg) -> tuple[int, int]:
    """Return two numbers of a message: its sequence in the stream, and its number among those delivered to the
    consumer. They are parts of the reply subject:
    $JS.ACK[.domain.account].stream.consumer.tries.SEQUENCE.NUMBER.time.pending
    """
    parts = message.reply.split(".")
    first = 5 if len(parts) == 9 else 7
    return int(parts[first]), int(parts[first + 1])


class StreamIterator:
    """A base class for async iterators over what a stream receives. An iterator ends when it is closed or the reader
    fails.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._failure: StoreRefused | None = None
        self._changed = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    def end(self, failure: StoreRefused | None = None) -> None:
        """End the iteration after the items that are still queued. If `failure` is given, the iterator then
        raises it.
        """
        self._failure = failure
        self.is_closed = True
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Wait until an item is queued or the iterator is ended. If it has ended before, raise its failure or
        StopAsyncIteration.
        """
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
