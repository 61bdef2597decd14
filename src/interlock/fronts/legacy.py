"""Clients of the legacy era (before 2026): sessions, batches, and HTTP+SSE.

A legacy client begins with `initialize` and has a session (`sessions.ClientSession`). `LegacyFront` serves the messages
of a session, whatever carries them: a request becomes a call of the dispatcher, a notification changes the session, and
a response answers a question that a server asked this client. Answers go to the `Sink` of the request.

A batch (2025-03-26) is an array of messages in one body. Its messages are handled one after another, and its requests
are answered together. A few calls of one batch run at the same time, and others get their turn in between. The answers
are sent as one array after the last one, or earlier if they have become large. On a stream that is open already,
because a server sent something meanwhile, each answer is sent at once.

HTTP+SSE (2024-11-05) is one stream for everything to the client, and POSTs for everything from it. `SseStream` is the
sink of all answers of its client.
"""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.messages import CONFIRM
from interlock.config.plan import NameForm
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ClientRequest, Principal, Sink, view_key
from interlock.dispatch.dispatch import ClientNotifications, resource_not_found
from interlock.dispatch.task_methods import ABOUT, AskedTasks, TaskMethods
from interlock.fronts.audience import Audience
from interlock.fronts.exchange import Exchange, UrlTarget
from interlock.fronts.lists import SERVER_INFO, ClientDispatch, ClientLists, capabilities, routed_methods
from interlock.fronts.sessions import ClientSession, Sessions
from interlock.links.link import Link
from interlock.mcp import methods
from interlock.mcp.meta import capabilities_to_modern
from interlock.mcp.methods import COMPLETE, INITIALIZE, LISTS, PROMPTS_GET, RESOURCES_READ, TOOLS_CALL, Era
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import CodecError, Notification, Request, decode_object, encode_refusal, find_string
from interlock.wire.refusal import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, UNAVAILABLE, Refusal

EMPTY_RESULT: Final = b"{}"


@dataclass(eq=False)
class LegacyFront:
    """The entry point for legacy clients. It handles the messages of their sessions."""

    dispatch: ClientDispatch
    stock: ClientLists
    sessions: Sessions
    audience: Audience
    tasks: TaskMethods
    asked_tasks: AskedTasks
    notifications: ClientNotifications | None = None
    _background: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self._routed = routed_methods(self.dispatch)

    def initialize(
        self, request: Request, principal: Principal, via: str, only: str | None, names: NameForm
    ) -> ClientSession | Refusal:
        """Open a session, or refuse it. The session's `initialize` request is answered by `welcome`."""
        params = decode_object(request.params) if request.params else None
        version = find_string(params.get("protocolVersion")) if params is not None else None
        if params is None or version is None:
            return Refusal(INVALID_PARAMS, "initialize needs params.protocolVersion")
        if (offered := decode_object(params.get("capabilities", Raw(b"{}")))) is None:
            return Refusal(INVALID_PARAMS, "params.capabilities must be an object")
        experimental = decode_object(offered["experimental"]) if "experimental" in offered else None
        declares = experimental is not None and methods.EXTENSION in experimental
        key = view_key(principal, only=only, names=names, declares_extension=declares, via=via)
        caller = Caller(principal, Era.LEGACY, via, key)
        caller.capabilities = offered
        caller.modern_capabilities = capabilities_to_modern(offered)
        caller.client = params.get("clientInfo")
        if (session := self.sessions.open(caller, methods.negotiate_legacy(version))) is None:
            return Refusal(UNAVAILABLE, "unavailable", {"reason": "too_many_sessions"})
        session.knows_tree = declares
        session.front, session.unchanging = self, self.stock.unchanging
        caller.version = session.version
        return session

    def welcome(self, session: ClientSession, request: Request, sink: Sink) -> None:
        """Answer the client's `initialize` request, after a short wait in which servers can connect."""

        def answer() -> None:
            view = self.dispatch.view(session.caller.key)
            result: dict[str, Any] = {
                "protocolVersion": session.version,
                "capabilities": capabilities(
                    view,
                    modern=False,
                    tasks=session.version == methods.LATEST_LEGACY,
                    upward=session.caller.hop is not None,
                ),
                "serverInfo": SERVER_INFO,
                "instructions": self.stock.introduction(view, session.caller.key.only),
            }
            sink.answer(codec.encode_result(request.id, codec.encode_value(result)))
            if not session.ended:
                self.audience.join(session)

        self.stock.when_fresh(INITIALIZE, answer)

    def begin(
        self,
        request: Request,
        principal: Principal,
        via: str,
        target: tuple[str | None, NameForm],
        surface: str,
        sink: Sink,
    ) -> ClientSession | None:
        """Open the session of a client that uses one connection for all messages. `request` is the first message; it
        must be `initialize`.

        Answer the request through the sink, which is then the stream of the session. `target` is the only server that
        the client sees, or None, and the form of the names. Return None if the request was refused.
        """
        opened: ClientSession | Refusal = Refusal(INVALID_REQUEST, "send initialize first")
        if request.method == INITIALIZE:
            opened = self.initialize(request, principal, via, *target)
        if isinstance(opened, Refusal):
            sink.answer(encode_refusal(request.id, opened))
            return None
        opened.surface = surface
        opened.attach(sink)
        self.welcome(opened, request, sink)
        return opened

    def handle(self, session: ClientSession, message: codec.Message, sink: Sink) -> Call | None:
        """Handle a message of an open session. Return the call that it started, or None.

        Requests are answered through the sink.
        """
        if isinstance(message, Request):
            params = codec.decode_params_untrusted(message.params, message.text) if message.params else {}
            if params is None:
                fault = Refusal(INVALID_PARAMS, "params must be an object, small but for its arguments")
                sink.answer(encode_refusal(message.id, fault))
                return None
            return self.request(session, message.id, message.method, params, sink)
        if isinstance(message, codec.Response):
            session.take_answer(message)
        elif message.method == methods.CANCELLED:
            members = decode_object(message.params) or {}
            if (call := (session.caller.calls or {}).get(bytes(members.get("requestId", b"")))) is not None:
                call.cancel(find_string(members.get("reason")) or "cancelled by the client")
        elif message.method == methods.ROOTS_CHANGED:
            self.audience.roots_changed(session.caller)
        elif message.method == methods.TASK_STATUS:
            self.asked_tasks.on_status(session.caller, message.params)
        elif self.notifications is not None:
            self.notifications.pass_on(session.caller, message)
        return None

    def request(
        self, session: ClientSession, message_id: bytes, method: str, params: dict[str, Any], sink: Sink
    ) -> Call | None:
        """Answer a client's request through the sink, now or later. Return the call that it started, or None."""
        caller = session.caller
        if caller.calls is not None and message_id in caller.calls:
            fault = Refusal(INVALID_REQUEST, "this id is in use by a request under way")
            sink.answer(encode_refusal(message_id, fault), 400)
            return None
        if method in _ROUTED:
            meta = decode_object(params["_meta"]) if "_meta" in params else {}
            if meta is None:
                sink.answer(encode_refusal(message_id, Refusal(INVALID_PARAMS, "params._meta must be an object")))
                return None
            request = ClientRequest(caller, message_id, method, params, meta, sink)
            if method == TOOLS_CALL:
                return self.tasks.call_tool(request) if "task" in params else self.dispatch.call_tool(request)
            return self._routed.get(method, self.tasks.ask)(request)
        if method in LISTS:

            def answer() -> None:
                self._answer(message_id, sink, self.stock.list(method, caller.key, params, Era.LEGACY))

            self.stock.when_fresh(method, answer)
        elif method in (methods.SUBSCRIBE, methods.UNSUBSCRIBE):
            uri = find_string(params.get("uri"))
            target = self.dispatch.view(caller.key).find_resource(uri) if uri is not None else []
            if uri is None:
                self._answer(message_id, sink, Refusal(INVALID_PARAMS, "params.uri must be a string"))
            elif isinstance(target, list):
                self._answer(message_id, sink, resource_not_found(uri, target, Era.LEGACY))
            elif method == methods.SUBSCRIBE:
                self._background.begin(self._subscribe(session, message_id, target, uri, sink))
            else:
                self.audience.unwatch(session, *target)
                self._answer(message_id, sink, EMPTY_RESULT)
        elif method == methods.SET_LEVEL:
            self._set_level(session, message_id, params, sink)
        elif method == methods.TASKS_LIST:
            self.tasks.list_tasks(caller, params, lambda outcome: self._answer(message_id, sink, outcome))
        elif method == methods.PING:
            self._answer(message_id, sink, EMPTY_RESULT)
        elif method == INITIALIZE:
            self._answer(message_id, sink, Refusal(INVALID_REQUEST, "this session is already initialized"))
        else:
            self._answer(message_id, sink, Refusal(METHOD_NOT_FOUND, "Method not found", {"method": method[:100]}))
        return None

    def _answer(self, message_id: bytes, sink: Sink, outcome: bytes | Refusal) -> None:
        if isinstance(outcome, Refusal):
            sink.answer(encode_refusal(message_id, outcome, draft=True))
        else:
            sink.answer(codec.encode_result(message_id, outcome))

    def _set_level(self, session: ClientSession, message_id: bytes, params: dict[str, Raw], sink: Sink) -> None:
        """Set the log level of a client.

        The answer is sent after the servers have accepted the level, so that the client's next call is logged at it.
        """
        level = find_string(params.get("level"))
        if level not in methods.LOG_RANK:
            fault = Refusal(INVALID_PARAMS, f"params.level must be one of {', '.join(methods.LOG_RANK)}")
            self._answer(message_id, sink, fault)
            return
        session.caller.log_level = level
        if not (heard := self.audience.log_levels_changed()):
            self._answer(message_id, sink, EMPTY_RESULT)
            return

        async def answer_later() -> None:
            await asyncio.wait(heard)
            self._answer(message_id, sink, EMPTY_RESULT)

        self._background.begin(answer_later())

    async def _subscribe(
        self, session: ClientSession, message_id: bytes, target: tuple[Link, str], requested_uri: str, sink: Sink
    ) -> None:
        refusal = await self.audience.watch(session, target[0], target[1], requested_uri)
        if isinstance(refusal, codec.Response):
            sink.answer(codec.encode_error(message_id, refusal.error))
        else:
            self._answer(message_id, sink, EMPTY_RESULT if refusal is None else refusal)


_ROUTED: Final = frozenset((TOOLS_CALL, RESOURCES_READ, PROMPTS_GET, COMPLETE, CONFIRM)) | ABOUT[Era.LEGACY]


# Batches

# Requests of one batch that run at the same time.
AT_ONCE: Final = 32
# Messages of one batch that are handled before others get a turn.
SLICE: Final = 50
GATHERED_BYTES_MAX: Final = 4 * 1024 * 1024

_NO_BATCH: Final = Refusal(INVALID_REQUEST, "a batch holds messages, and no other batch")
_NO_INITIALIZE: Final = Refusal(INVALID_REQUEST, "initialize is sent alone, not in a batch")


def begin_batch_untrusted(
    front: LegacyFront, session: ClientSession, data: bytes, unreadable: CodecError, out: Sink
) -> "ClientBatch":
    """Start serving `data` as a batch and return the batch.

    Raise `unreadable` if the data is not a batch or the session's revision has no batches, and CodecError if the batch
    cannot be split into messages.
    """
    if session.version != methods.BATCH_VERSION or not codec.is_batch(data):
        raise unreadable
    batch = ClientBatch(front, session, deque(codec.split_batch_untrusted(data)), out)
    batch.start()
    return batch


def serve_batch(front: LegacyFront, session: ClientSession, exchange: Exchange, unreadable: CodecError) -> None:
    """Serve the body of an HTTP request as a JSON-RPC batch. `unreadable` is the error of the attempt to read the body
    as one message.
    """
    exchange.session = session
    try:
        batch = begin_batch_untrusted(front, session, exchange.body, unreadable, exchange)
    except CodecError as error:
        exchange.answer(encode_refusal(error.message_id, error.refusal), 400)
        return
    if not exchange.ended:
        exchange.running = batch


@dataclass(eq=False)
class ClientBatch:
    """A batch that is being served. `cancel` ends its unfinished calls."""

    front: LegacyFront
    session: ClientSession
    left: deque[bytes]  # the messages that are not handled yet
    out: Sink
    _has_requests: bool = False
    _calls: dict["_BatchSink", Call] = field(default_factory=dict)
    _under_way: int = 0
    _gathered: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _is_over: bool = False
    _is_scheduled: bool = False

    def start(self) -> None:
        self._is_scheduled = False
        for _ in range(SLICE):
            if self.session.ended:
                self.left.clear()
            if not self.left or self._under_way >= AT_ONCE:
                break
            self._handle(self.left.popleft())
        if self.left and self._under_way < AT_ONCE:
            self._go_on()
        self._end_if_done()

    def cancel(self, reason: str) -> None:
        """Cancel all unfinished calls of the batch, because the client disconnected."""
        self.left.clear()
        for call in list(self._calls.values()):
            call.cancel(reason)

    def _go_on(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.start)

    def _handle(self, part: bytes) -> None:
        try:
            message = codec.decode_untrusted(part)
        except CodecError as error:
            self._take(encode_refusal(error.message_id, _NO_BATCH if codec.is_batch(part) else error.refusal))
            return
        if not isinstance(message, Request):
            self.front.handle(self.session, message, _NOWHERE)
            return
        if message.method == INITIALIZE:
            self._take(encode_refusal(message.id, _NO_INITIALIZE))
            return
        self._has_requests = True
        self._under_way += 1
        answer = _BatchSink(self)
        if (call := self.front.handle(self.session, message, answer)) is not None and not call.done:
            self._calls[answer] = call

    # What the answers say

    def on_message(self, message: bytes) -> None:
        """Pass on a message that belongs to an unfinished request but is not its answer."""
        if not self._is_over:
            self.out.emit(message)
            self._flush()

    def on_answered(self, answer: "_BatchSink", message: bytes) -> None:
        """Store an answer and continue with the batch. `message` is empty if there is no answer."""
        self._under_way -= 1
        self._calls.pop(answer, None)
        if message:
            self._take(message)
        if self.left:
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
        return isinstance(self.out, Exchange) and self.out.streaming

    def _flush(self) -> None:
        if self._gathered and (self.left or self._under_way):  # the last are the answer
            self.out.emit(self._together())

    def _together(self) -> bytes:
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        return gathered[0] if self._is_streaming and len(gathered) == 1 else b"[%b]" % b",".join(gathered)

    def _end_if_done(self) -> None:
        if self.left or self._under_way or self._is_over:
            return
        self._is_over = True
        if self._gathered:
            self.out.answer(self._together())
        elif self._has_requests:
            self.out.drop()
        elif isinstance(self.out, Exchange):
            self.out.reply(202)


class _BatchSink:
    """The sink of one request in a batch, which passes the answer to the batch."""

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
    """A sink that discards everything. It is used for notifications and responses of a client, which get no answer."""

    def emit(self, message: bytes) -> None: ...

    def answer(self, message: bytes, status: int = 200) -> None: ...

    def drop(self) -> None: ...


_NOWHERE: Final = _Nowhere()


# HTTP+SSE


@dataclass(eq=False)
class SseStream:
    """The HTTP+SSE stream of one client, which is the sink of all answers to this client."""

    front: LegacyFront
    exchange: Exchange
    endpoint: UrlTarget
    principal: Principal
    streams: dict[str, "SseStream"]  # of the endpoint, by id, until it ends
    surface: str = ""  # which surface the client gets and why, for the log
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: ClientSession | None = None

    # Sink

    def emit(self, message: bytes) -> None:
        self.exchange.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self.exchange.emit(message)

    def drop(self) -> None:
        pass

    def caller_as(self, principal: Principal) -> Caller | None:
        """Give the client of this stream the rights of `principal`, and return the client. Return None if the client
        has no session yet.
        """
        self.principal = principal
        caller = None if self.session is None else self.session.caller
        if caller is not None and caller.principal is not principal:
            caller.act_as(principal)
        return caller

    def receive(self, message: Request | Notification | codec.Response) -> None:
        """Handle a message of the client. The first message must be `initialize`."""
        if self.session is not None:
            self.front.handle(self.session, message, self)
        elif isinstance(message, Request):
            target = (self.endpoint.only, self.endpoint.names)
            self.session = self.front.begin(message, self.principal, "sse", target, self.surface, self)

    def receive_batch(self, data: bytes, unreadable: CodecError) -> None:
        """Serve a batch in the client's session. Raise CodecError if the data is not a valid batch."""
        if self.session is None:
            raise unreadable
        begin_batch_untrusted(self.front, self.session, data, unreadable, self)

    def on_lost(self) -> None:
        """Close the session, because its stream has ended."""
        self.streams.pop(self.id, None)
        if self.session is not None:
            self.session.detach(self)
            self.front.sessions.close(self.session, "the stream ended")
