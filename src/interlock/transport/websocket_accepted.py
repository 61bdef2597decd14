"""The accepting end of a WebSocket, as a MessagePipe over what an ASGI server gives.

In: an ASGI WebSocket that was already accepted (a Starlette WebSocket is one), and a sink. `run` is the body of the
route: it returns when the connection is over. Frames, sizes and pings are the server's matter; with uvicorn those are
ws="websockets-sansio", ws_max_size, ws_ping_interval=20, ws_ping_timeout=10 (AX-6.3-3), ws_per_message_deflate=False.
"""

import asyncio
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final, Protocol

from interlock.transport.messages import (
    CUT,
    GOING_AWAY,
    NORMAL,
    STALL_AFTER_S,
    TOO_BIG,
    UNACCEPTABLE,
    MessageSink,
    fitting,
)

CLOSE_S: Final = 2.0  # for the peer's part of closing


class AsgiSocket(Protocol):
    async def receive(self) -> MutableMapping[str, Any]: ...

    async def send(self, message: MutableMapping[str, Any]) -> None: ...


class AcceptedPipe:
    """A MessagePipe. Give it to whoever sends, then `run` it."""

    def __init__(self, socket: AsgiSocket, sink: MessageSink, *, max_bytes: int) -> None:
        self._socket = socket
        self._sink = sink
        self._max_bytes = max_bytes
        self._queue: deque[bytes] = deque()
        self._queued = 0  # bytes
        self._moved = 0  # messages handed to the server so far
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._verdict: tuple[int, str] | None = None  # how we end it
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> bool:
        if self._over or self._verdict is not None or self._queued > self._max_bytes:
            return False
        self._queue.append(message)
        self._queued += len(message)
        self._wake.set()
        if self._queued > self._max_bytes and self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(STALL_AFTER_S, self._watch, self._moved)
        return True

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        if self._over or self._verdict is not None:
            return
        self._verdict = (code, reason)
        self._wake.set()
        self._may_read.set()
        self._ending = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def abort(self) -> None:
        """The server closes the connection when `run` has returned."""
        self._over = True
        if self._task is not None:
            self._task.cancel()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    async def run(self) -> None:
        """Once. What the sink raises ends the connection and is raised here."""
        if self._over:
            self._sink.on_closed(*(self._verdict or (CUT, "was cut off by us")))
            return
        ended: tuple[int, str] = (CUT, "cut the connection")
        self._task = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        try:
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.result()
        except _Ended as end:
            ended = end.code, end.reason
        except asyncio.CancelledError:  # the server shuts down
            self._task.cancel()
            ended = GOING_AWAY, "was cut off by our shutdown"
            raise
        finally:
            self._over = True
            for handle in (self._stall, self._ending):
                if handle is not None:
                    handle.cancel()
            writing.cancel()
            self._sink.on_closed(*(self._verdict or ended))

    async def _read(self) -> None:
        while True:
            await self._may_read.wait()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code", CUT)
                raise _Ended(code, message.get("reason") or _SAID.get(code, "cut the connection"))
            if self._verdict is not None:
                continue  # we are closing: nobody expects more
            text = message.get("text")
            if text is None:
                self.close(UNACCEPTABLE, "sent a binary frame")
                continue
            data = text.encode()
            if len(data) > self._max_bytes:
                self.close(TOO_BIG, f"sent a message larger than {self._max_bytes} bytes")
                continue
            self._sink.on_message(data)

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    message = self._queue.popleft()
                    await self._socket.send({"type": "websocket.send", "text": message.decode()})
                    self._queued -= len(message)
                    self._moved += 1
                if self._verdict is not None:
                    code, reason = self._verdict
                    await self._socket.send({"type": "websocket.close", "code": code, "reason": fitting(reason)})
                    return
        except Exception:  # what a server raises for a connection that is gone has no common base
            self._ending = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)  # reading says why, or nobody

    def _watch(self, moved_before: int) -> None:
        self._stall = None
        if self._over or self._queued <= self._max_bytes:
            return
        if self._moved == moved_before:
            self._verdict = self._verdict or (CUT, "stopped reading")
            self.abort()
        else:
            self._stall = asyncio.get_running_loop().call_later(STALL_AFTER_S, self._watch, self._moved)


class _Ended(Exception):
    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason


_SAID: Final = {TOO_BIG: "sent a message that is too large", 1005: "closed the connection", NORMAL: ""}
