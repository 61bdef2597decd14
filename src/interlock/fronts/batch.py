"""A client's batch (2025-03-26): its messages handled one after another, its requests answered together.

Calls of one batch run beside each other, a few at a time, and others get their turn in between. The answers leave as
one array when the last has come, or before where they have become large; on a stream that is open anyway, because a
server had something to say meanwhile, each leaves when it comes.
"""

import asyncio
from collections import deque
from typing import Final

from interlock.core.calls.call import Call
from interlock.core.calls.caller import Sink
from interlock.fronts.exchange import Exchange
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.sessions import ClientSession
from interlock.mcp.methods import BATCH_VERSION, INITIALIZE
from interlock.wire.jsonrpc.codec import (
    CodecError,
    Request,
    decode_untrusted,
    encode_refusal,
    is_batch,
    split_batch_untrusted,
)
from interlock.wire.refusal import INVALID_REQUEST, Refusal

AT_ONCE: Final = 32  # requests of one batch under way
SLICE: Final = 50  # messages handled before others get a turn
GATHERED_BYTES_MAX: Final = 4 * 1024 * 1024

_NO_BATCH: Final = Refusal(INVALID_REQUEST, "a batch holds messages, and no other batch")
_NO_INITIALIZE: Final = Refusal(INVALID_REQUEST, "initialize is sent alone, not in a batch")


def begin_batch_untrusted(
    front: LegacyFront, session: ClientSession, data: bytes, unreadable: CodecError, out: Sink
) -> "ClientBatch":
    """Start serving `data` as a batch and return the batch.

    Raises `unreadable` if the data is no batch or the session's revision has no batches, and CodecError if the batch
    cannot be split.
    """
    if session.version != BATCH_VERSION or not is_batch(data):
        raise unreadable
    batch = ClientBatch(front, session, split_batch_untrusted(data), out)
    batch.start()
    return batch


def serve_batch(front: LegacyFront, session: ClientSession, exchange: Exchange, unreadable: CodecError) -> None:
    """Serve the body of an HTTP request, which is not a single message, as a batch."""
    exchange.session = session
    try:
        batch = begin_batch_untrusted(front, session, exchange.body, unreadable, exchange)
    except CodecError as error:
        exchange.answer(encode_refusal(error.message_id, error.refusal), 400)
        return
    if not exchange.ended:
        exchange.running = batch


class ClientBatch:
    """A batch under way; `cancel` ends its calls that have not ended."""

    def __init__(self, front: LegacyFront, session: ClientSession, parts: list[bytes], out: Sink) -> None:
        self._front = front
        self._session = session
        self._left = deque(parts)
        self._out = out
        self._has_requests = False
        self._calls: dict[_BatchSink, Call] = {}
        self._under_way = 0
        self._gathered: list[bytes] = []
        self._bytes = 0
        self._is_over = False
        self._is_scheduled = False

    def start(self) -> None:
        self._is_scheduled = False
        for _ in range(SLICE):
            if self._session.ended:
                self._left.clear()
            if not self._left or self._under_way >= AT_ONCE:
                break
            self._handle(self._left.popleft())
        if self._left and self._under_way < AT_ONCE:
            self._go_on()
        self._end_if_done()

    def cancel(self, reason: str) -> None:
        """Cancel all calls of the batch because the client disconnected."""
        self._left.clear()
        for call in list(self._calls.values()):
            call.cancel(reason)

    def _go_on(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.start)

    def _handle(self, part: bytes) -> None:
        try:
            message = decode_untrusted(part)
        except CodecError as error:
            self._take(encode_refusal(error.message_id, _NO_BATCH if is_batch(part) else error.refusal))
            return
        if not isinstance(message, Request):
            self._front.handle(self._session, message, _NOWHERE)
            return
        if message.method == INITIALIZE:
            self._take(encode_refusal(message.id, _NO_INITIALIZE))
            return
        self._has_requests = True
        self._under_way += 1
        answer = _BatchSink(self)
        call = self._front.handle(self._session, message, answer)
        if call is not None and not call.done:
            self._calls[answer] = call

    # What the answers say

    def on_message(self, message: bytes) -> None:
        """Pass on a message that belongs to a request under way but is not its answer."""
        if not self._is_over:
            self._out.emit(message)
            self._flush()

    def on_answered(self, answer: "_BatchSink", message: bytes) -> None:
        """Collect an answer and continue the batch; `message` is empty if there is no answer."""
        self._under_way -= 1
        self._calls.pop(answer, None)
        if message:
            self._take(message)
        if self._left:
            self._go_on()
        else:
            self._end_if_done()

    def _take(self, message: bytes) -> None:
        self._gathered.append(message)
        self._bytes += len(message)
        if self._is_streaming or self._bytes > GATHERED_BYTES_MAX:
            self._flush()

    @property
    def _is_streaming(self) -> bool:
        return isinstance(self._out, Exchange) and self._out.streaming

    def _flush(self) -> None:
        if self._gathered and (self._left or self._under_way):  # the last are the answer
            self._out.emit(self._together())

    def _together(self) -> bytes:
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        return gathered[0] if self._is_streaming and len(gathered) == 1 else b"[%b]" % b",".join(gathered)

    def _end_if_done(self) -> None:
        if self._left or self._under_way or self._is_over:
            return
        self._is_over = True
        if self._gathered:
            self._out.answer(self._together())
        elif self._has_requests:
            self._out.drop()
        elif isinstance(self._out, Exchange):
            self._out.reply(202)


class _BatchSink:
    """The sink of one request in a batch."""

    __slots__ = ("_batch",)

    def __init__(self, batch: ClientBatch) -> None:
        self._batch: ClientBatch | None = batch

    def emit(self, message: bytes) -> None:
        if self._batch is not None:
            self._batch.on_message(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.on_answered(self, message)

    def drop(self) -> None:
        self.answer(b"")


class _Nowhere:
    """The sink of notifications and responses, which are not answered."""

    def emit(self, message: bytes) -> None: ...

    def answer(self, message: bytes, status: int = 200) -> None: ...

    def drop(self) -> None: ...


_NOWHERE: Final = _Nowhere()
