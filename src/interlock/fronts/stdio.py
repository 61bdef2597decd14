"""Clients that send and receive one message per line: on the node's stdin and stdout, or through a bridge from another
process.

The first request of a connection decides its era, and its surface is chosen then. If the surface depends on the lists
of servers, the request waits for these lists, and later messages are kept in order. A client of this kind is `local`:
stdin belongs to the process that started the node, and the socket of the bridge to the same user.

`serve --stdio` beside a running node is a bridge: it copies bytes between a desktop client and the node's socket. The
socket is in the data folder, and only its owner can open it. A client of the socket first sends a line that may name a
server and a surface; after that, the protocol is the same as on stdio.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakSet

from msgspec import Raw

from interlock.config.plan import NameForm
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, Principal, principal_for
from interlock.core.current_plan import CurrentPlan
from interlock.fronts.legacy import LegacyFront, begin_batch_untrusted
from interlock.fronts.modern import ListenStream, ModernFront
from interlock.fronts.sessions import LOST, WENT_AWAY, ClientSession
from interlock.fronts.surfaces import FrontPair, SurfaceChooser
from interlock.mcp.methods import CANCELLED, META_VERSION
from interlock.mcp.modern_requests import validate_request
from interlock.process.child import FileInput, open_input, open_output
from interlock.process.stderr import TOGETHER_BYTES_MAX, LineSplitter, one_line, write_line
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Notification, Request, decode_object, decode_untrusted, encode_refusal
from interlock.wire.jsonrpc.oversized import MessageKind, message_too_large
from interlock.wire.refusal import INVALID_REQUEST, Refusal

log = logging.getLogger("interlock.stdio")

UNREAD_MAX: Final = 4  # times limits.message_bytes that a client may leave unread


@dataclass(eq=False)
class LineFront(asyncio.Protocol):
    """The entry point for one client that sends and receives one message per line. Answers to the client are written by
    this object.

    `choose` returns the surface of the client. `maybe_wait` returns a coroutine that waits until this can be decided,
    or None if it can be decided now.
    """

    choose: Callable[[], tuple[FrontPair, str]]
    maybe_wait: Callable[[], Coroutine[Any, Any, None] | None]
    principal: Principal
    _: KW_ONLY
    only: str | None
    names: NameForm
    max_bytes: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    _session: ClientSession | None = None
    _caller: Caller | None = None  # modern
    _running: dict[bytes, Call | ListenStream] = field(default_factory=dict)
    _early: list[bytes] | None = None  # what comes while it is not told yet which surface the client gets
    _early_bytes: int = 0
    _deciding: asyncio.Task[None] | None = None
    _writer: asyncio.WriteTransport | None = None
    _is_lost: bool = False  # what was written could not be delivered

    def __post_init__(self) -> None:
        self._unread_max = UNREAD_MAX * self.max_bytes
        self._lines = LineSplitter(self.max_bytes)
        self._take()

    def _take(self) -> None:
        pair, self._surface = self.choose()
        self._legacy: LegacyFront = pair.legacy
        self._modern: ModernFront = pair.modern

    def connect(self, writer: asyncio.WriteTransport) -> None:
        self._writer = writer

    def act_as(self, principal: Principal) -> None:
        """Give this client the rights of `principal`, because the access rules changed."""
        self.principal = principal
        if self._caller is not None:
            self._caller = self._modern.caller(principal, "stdio", self.only, self.names)

    def end(self) -> None:
        """End the client's session and all its calls and streams, because the client disconnected."""
        self.done.set()
        if self._deciding is not None:
            self._deciding.cancel()
        reason = LOST if self._is_lost else WENT_AWAY
        if self._session is not None:
            self._legacy.sessions.close(self._session, reason)
        running, self._running = self._running, {}
        for request in running.values():
            self._stop_one(request)
        caller, self._caller = self._caller, None
        if caller is not None:
            self._legacy.sessions.on_end(caller, None, reason)
        if self._writer is not None:
            self._writer.close()

    # Sink

    def emit(self, message: bytes) -> None:
        if (writer := self._writer) is None or writer.is_closing():
            self._is_lost = True
            return
        size = len(message)
        if size > TOGETHER_BYTES_MAX:
            write_line(writer, message)
        else:
            writer.write(one_line(message) if b"\n" in message or b"\r" in message else message + b"\n")
        if writer.get_write_buffer_size() - size > self._unread_max:
            log.warning("a client on stdio does not read what it is sent; ending its connection")
            writer.abort()
            self._is_lost = True
            self.done.set()

    def answer(self, message: bytes, status: int = 200) -> None:
        self.emit(message)

    def drop(self) -> None:
        pass

    # What comes in

    def eof_received(self) -> bool:
        self.done.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection, and whether it failed instead of being closed by the client."""
        self._is_lost = self._is_lost or exc is not None
        self.done.set()

    def data_received(self, data: bytes) -> None:
        self.feed(data)

    def feed(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line.strip():
                self._receive(line)
        if self._lines.skipped:
            for oversized in self._lines.take_oversized():
                refusal = message_too_large(oversized.limit)
                if oversized.kind is MessageKind.RESPONSE and self._session is not None:
                    # Otherwise the server that asked would wait.
                    self._legacy.handle(
                        self._session, codec.Response(oversized.id, codec.ABSENT, Raw(codec.error_body(refusal))), self
                    )
                else:
                    self.emit(encode_refusal(oversized.id or b"null", refusal))

    def _receive(self, line: bytes) -> None:
        try:
            message = decode_untrusted(line)
        except codec.CodecError as error:
            self._receive_batch(line, error)
            return
        if self._session is not None:
            self._legacy.handle(self._session, message, self)
        elif self._caller is not None:
            self._receive_modern(self._caller, message)
        elif self._early is not None:
            self._keep(line)
        elif isinstance(message, Request):
            if (waits := self.maybe_wait()) is None:
                self._take()
                self._first(message)
            else:
                self._early = []
                self._keep(line)
                self._deciding = asyncio.get_running_loop().create_task(waits)
                self._deciding.add_done_callback(self._decide)

    def _keep(self, line: bytes) -> None:
        early = self._early = self._early or []
        early.append(line)
        self._early_bytes += len(line)
        if self._early_bytes > self._unread_max:
            log.warning("a client on stdio sends much before it is greeted; ending its connection")
            self._is_lost = True
            self.done.set()

    def _decide(self, waited: asyncio.Task[None]) -> None:
        if waited.cancelled():
            return
        self.maybe_wait = lambda: None
        early, self._early = self._early or [], None
        for line in early:
            self._receive(line)

    async def decided(self) -> None:
        """Wait until it is decided which surface the client gets. The messages that arrived before are then being
        handled.
        """
        if self._deciding is not None:
            await asyncio.wait([self._deciding])

    def _receive_batch(self, line: bytes, unreadable: codec.CodecError) -> None:
        if self._early is not None:
            self._keep(line)
            return
        session = self._session
        is_modern = self._caller is not None
        front = self._modern if is_modern else self._legacy
        if (answer := front.stock.find_unreadable_answer(line, is_modern=is_modern)) is not None:
            self.emit(answer)
            return
        try:
            if session is None:
                raise unreadable
            begin_batch_untrusted(self._legacy, session, line, unreadable, self)
        except codec.CodecError as error:
            self.emit(encode_refusal(error.message_id, error.refusal))

    def _first(self, request: Request) -> None:
        """Handle the first request. Its `_meta` determines the era of the connection (2026-07-28)."""
        params = decode_object(request.params) if request.params else None
        meta = decode_object(params["_meta"]) if params is not None and "_meta" in params else None
        if meta is not None and META_VERSION in meta:
            self._caller = self._modern.caller(self.principal, "stdio", self.only, self.names)
            self._receive_modern(self._caller, request)
            return
        # A probe in neither form is refused, so that the client falls back to the handshake.
        target = (self.only, self.names)
        self._session = self._legacy.begin(request, self.principal, "stdio", target, self._surface, self)

    def _receive_modern(self, caller: Caller, message: codec.Message) -> None:
        if isinstance(message, Notification):
            if message.method == CANCELLED:
                params = decode_object(message.params) or {}
                if (running := self._running.pop(bytes(params.get("requestId", b"")), None)) is not None:
                    self._stop_one(running, codec.find_string(params.get("reason")))
            else:
                self._modern.pass_on(caller, message)
            return
        if not isinstance(message, Request):
            return
        if self._running:
            self._running = {
                key: request
                for key, request in self._running.items()
                if not (isinstance(request, Call) and request.done)
            }
        if message.id in self._running:
            self.emit(encode_refusal(message.id, Refusal(INVALID_REQUEST, "this id is in use by a request under way")))
            return
        if isinstance(climbed := validate_request(message, None), Refusal):
            self.emit(encode_refusal(message.id, climbed))
            return
        running = self._modern.handle(caller, climbed, self, None, self.names)
        if running is not None and not (isinstance(running, Call) and running.done):
            self._running[message.id] = running

    def _stop_one(self, running: Call | ListenStream, reason: str | None = None) -> None:
        if isinstance(running, ListenStream):
            self._modern.stop_listening(running)
        else:
            running.cancel(reason or "cancelled by the client")


async def stdio_front(front: LineFront) -> asyncio.ReadTransport | FileInput:
    """Serve a client on the node's own stdin and stdout."""
    # Our own copies of the descriptors: closing a transport must not close what the interpreter holds.
    front.connect(await open_output(os.dup(1)))
    return await open_input(front, os.dup(0))


class LineFronts:
    """A factory of fronts for clients that send one message per line, on standard input or on the bridge's socket."""

    def __init__(self, current: CurrentPlan, surfaces: SurfaceChooser) -> None:
        self._current = current
        self._surfaces = surfaces
        self._made: WeakSet[LineFront] = WeakSet()

    def replan(self) -> None:
        """Apply changed [[access]] rules to new clients and to connected clients."""
        for front in list(self._made):
            front.act_as(self._principal())

    def _principal(self) -> Principal:
        return principal_for("local", None, self._current.plan.access)

    def make(self, only: str | None, surface: str | None = None) -> LineFront:
        """Create the front for one client. `only` is the only server that it sees, or None; `surface` is the surface
        that it requested, or None.
        """
        plan = self._current.plan
        principal = self._principal()
        front = LineFront(
            partial(self._surfaces.choose, surface, principal, only),
            partial(self._surfaces.maybe_wait, surface, principal, only),
            principal,
            only=only,
            names=plan.mcp.names,
            max_bytes=plan.limits.message_bytes,
        )
        self._made.add(front)
        return front


SOCKET: Final = "stdio.sock"
_GREETING: Final = b"interlock-stdio/1 "
_GREETING_BYTES_MAX: Final = 256


class BridgedClient(asyncio.Protocol):
    """A desktop client that is connected to the node's socket through a bridge."""

    def __init__(self, front: Callable[[str | None, str | None], LineFront], clients: set["BridgedClient"]) -> None:
        self._make = front
        self._clients = clients
        self._front: LineFront | None = None
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # a stream socket; uvloop's is no subclass
        self._clients.add(self)

    def data_received(self, data: bytes) -> None:
        if self._front is None:
            self._head += data
            line, newline, rest = self._head.partition(b"\n")
            if not newline and len(self._head) < _GREETING_BYTES_MAX:
                return
            if not line.startswith(_GREETING):
                self.transport.abort()
                return
            only, _, surface = line.removeprefix(_GREETING).decode("latin-1").strip("\r\n").partition(" ")
            self._front = self._make(only or None, surface.strip() or None)
            self._front.connect(self.transport)
            data = rest
        if data:
            self._front.feed(data)
            if self._front.done.is_set():
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.discard(self)
        if self._front is not None:
            self._front.connection_lost(exc)
            self._front.end()


async def bridge(path: Path, only: str | None, surface: str | None = None) -> bool:
    """Forward messages between a client on stdin and stdout and the node's socket, until one of them closes. Return
    True if the client closed first.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bool] = loop.create_future()

    def end(by_client: bool) -> None:
        if not ended.done():
            ended.set_result(by_client)

    stdout = await open_output(os.dup(1))
    node, _ = await loop.create_unix_connection(lambda: _Pump(stdout, lambda: end(False)), str(path))
    node.write(_GREETING + f"{only or ''} {surface or ''}".rstrip(" ").encode() + b"\n")
    stdin = await open_input(_Pump(node, lambda: end(True)), os.dup(0))
    try:
        return await ended
    finally:
        for transport in (stdin, node, stdout):
            transport.close()


@dataclass(eq=False)
class _Pump(asyncio.Protocol):
    """A protocol that copies what it receives to another transport."""

    target: asyncio.WriteTransport
    on_end: Callable[[], None]

    def data_received(self, data: bytes) -> None:
        if not self.target.is_closing():
            self.target.write(data)

    def eof_received(self) -> bool:
        self.on_end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_end()
