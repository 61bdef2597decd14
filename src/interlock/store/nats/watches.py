"""Who watches which bucket: one reader of the key-value stream tells all of them.

Of a key that changes faster than its watcher takes the changes, the last change is told. What this process wrote itself
is not told, nor what is older than that: while it writes a key, what comes of that key is held until it is known how
that ended. So what is told is newer than what the writer knows already.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from nats.aio.msg import Msg

from interlock.store.nats.jetstream import JetStream, Stored
from interlock.store.nats.key_value import NatsKeyValue
from interlock.store.nats.reader import Reader, RunningReader
from interlock.store.nats.subjects import Names, token
from interlock.store.ports import Change, StoreRefused, Unavailable


class Watches:
    def __init__(self, jetstream: JetStream, names: Names, kv: NatsKeyValue) -> None:
        self._jetstream = jetstream
        self._names = names
        self._kv = kv
        self._watches: dict[str, list[NatsWatch]] = {}
        self._held: dict[str, Stored] = {}  # by subject: the last message
        self._own: dict[str, int] = {}  # by subject: a sequence that the reader has yet to come to
        kv.own.on_end(self._on_own)
        self._reader: RunningReader | None = None
        self._failure: StoreRefused | None = None

    async def open(self) -> None:
        if self._reader is not None:
            return
        last = await self._jetstream.confirm(self._names.kv_stream)
        reader = Reader(
            self._jetstream.connection,
            self._names.kv_stream,
            f"{self._names.entries}.>",
            last,
            self._take,
            prepare=self._prepare,
        )
        self._failure = None
        self._reader = RunningReader(reader, self._ended)
        self._jetstream.connection.on_change(reader.doubt)

    async def close(self) -> None:
        running, self._reader = self._reader, None
        if running is not None:
            self._jetstream.connection.forget(running.reader.doubt)
            await running.close()

    def watch(self, bucket: str) -> "NatsWatch":
        if self._reader is None:
            raise Unavailable("the store is not open")
        # What this process has written before is not news to it, even where the reader has yet to come there.
        after = max(self._reader.reader.position, self._kv.own.last)
        watch = NatsWatch(self._jetstream, self._kv, bucket, after, self._remove)
        self._watches.setdefault(token(bucket), []).append(watch)
        if self._failure is not None:
            watch.end(self._failure)
        return watch

    async def _prepare(self) -> None:
        read = 0 if self._reader is None else self._reader.reader.position
        await self._jetstream.confirm(self._names.kv_stream, read)

    def _take(self, message: Msg, sequence: int) -> None:
        stored = Stored(message.subject, sequence, dict(message.headers or {}), message.data)
        own = self._own.get(stored.subject, 0)
        self._own = {subject: later for subject, later in self._own.items() if later > sequence}
        if sequence <= own:
            return
        if stored.subject in self._kv.own.under_way:
            self._held[stored.subject] = stored
        else:
            self._tell(stored)

    def _tell(self, message: Stored) -> None:
        for watch in self._watches.get(self._bucket(message.subject), ()):
            watch.take(message)

    def _on_own(self, subject: str, sequence: int) -> None:
        if sequence:
            if self._reader is not None and sequence > self._reader.reader.position:
                self._own[subject] = max(sequence, self._own.get(subject, 0))
            for watch in self._watches.get(self._bucket(subject), ()):
                watch.drop(subject, sequence)
            if subject in self._held and self._held[subject].sequence <= sequence:
                del self._held[subject]
        if subject not in self._kv.own.under_way and (held := self._held.pop(subject, None)) is not None:
            self._tell(held)  # by another; or by a write that failed, as far as its caller knows: this is news

    def _bucket(self, subject: str) -> str:
        return subject.removeprefix(f"{self._names.entries}.").partition(".")[0]

    def _ended(self, failure: StoreRefused | None) -> None:
        self._failure = failure
        if failure is not None:
            self._jetstream.connection.fail(failure)  # what this process has in memory is of another stream
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.end(failure)

    def _remove(self, bucket: str, watch: "NatsWatch") -> None:
        watches = self._watches.get(token(bucket), [])
        if watch in watches:
            watches.remove(watch)


class NatsWatch:
    def __init__(
        self,
        jetstream: JetStream,
        kv: NatsKeyValue,
        bucket: str,
        after: int,
        forget: Callable[[str, "NatsWatch"], None],
    ) -> None:
        self._connection = jetstream.connection
        self._kv = kv
        self._bucket = bucket
        self._after = after
        self._forget = forget
        self._waiting: dict[str, Stored] = {}  # by subject, in order of sequence
        self._changed = asyncio.Event()
        self._is_closed = False
        self._failure: StoreRefused | None = None

    def take(self, message: Stored) -> None:
        waiting = self._waiting.get(message.subject)
        if message.sequence > self._after and (waiting is None or waiting.sequence < message.sequence):
            self._waiting.pop(message.subject, None)
            self._waiting[message.subject] = message
            self._changed.set()

    def drop(self, subject: str, upto: int) -> None:
        """What this process has written over."""
        waiting = self._waiting.get(subject)
        if waiting is not None and waiting.sequence <= upto:
            del self._waiting[subject]

    def end(self, failure: StoreRefused | None) -> None:
        self._failure = failure
        self._is_closed = True
        self._changed.set()

    def close(self) -> None:
        self._forget(self._bucket, self)
        self.end(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while True:
            while not self._waiting:
                if self._failure is not None:
                    raise self._failure
                if self._is_closed:
                    raise StopAsyncIteration
                self._changed.clear()
                await self._changed.wait()
            subject, message = next(iter(self._waiting.items()))
            try:
                change = await self._kv.change_of(message)
            except Unavailable:  # a value in parts, of which the rest is to be fetched
                if self._is_closed:
                    raise StopAsyncIteration from None
                await self._connection.until_reachable()
                continue
            if self._waiting.get(subject) is message:  # otherwise a later message came, or this process wrote over it
                del self._waiting[subject]
                if change is not None:
                    return change
