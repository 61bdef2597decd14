"""Legacy clients: one session each, from `initialize` to its end.

A session remembers what its client can do, which calls and questions are under way, and where to reach it. Server
requests pass through it under ids of our own.
"""

import secrets
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.ax.protocol.notifications import Notice, as_log
from interlock.core.calls.call import passes_level
from interlock.core.calls.caller import Asked, Caller, Sink
from interlock.core.clock import Clock
from interlock.fronts.exchange import Exchange
from interlock.fronts.stream_log import StreamLog, StreamLogs
from interlock.mcp.methods import (
    ASKED_OF_CLIENT,
    CANCELLED,
    LOG_MESSAGE,
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    TASKS_CANCEL,
    TASKS_GET,
    TASKS_RESULT,
    TOOLS_CHANGED,
)
from interlock.wire.jsonrpc.codec import (
    Notification,
    Response,
    decode_object,
    encode_notification,
    encode_request,
    encode_value,
)
from interlock.wire.jsonrpc.errors import error_body
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

CHANGED: Final = {"tools": TOOLS_CHANGED, "prompts": PROMPTS_CHANGED, "resources": RESOURCES_CHANGED}
WENT_AWAY: Final = "the client went away"
LOST: Final = "the connection was lost"
GRACEFUL: Final = frozenset(("closed by the client", WENT_AWAY))  # DELETE, and the end of stdin
SESSIONS_MAX: Final = 10_000
UNCONNECTED_MAX: Final = 64  # calls of one session under way, when one more loses its connection
# A client that keeps tasks for servers is asked about them too.
_ASKABLE: Final = {**ASKED_OF_CLIENT, **dict.fromkeys((TASKS_GET, TASKS_RESULT, TASKS_CANCEL), "tasks")}


class Session:
    """Also the Asker of its calls and a Member of the audience."""

    def __init__(self, session_id: str, caller: Caller, version: str, now: float, logs: StreamLogs) -> None:
        self.logs = logs
        self.id = session_id
        self.caller = caller
        self.version = version
        self.last_seen = now
        self.ended = False
        self.knows_tree = False  # it declared our extension
        self.front: Any = None  # the LegacyFront that serves it
        self.surface = ""  # which surface it got, and why
        self.unchanging: frozenset[str] = frozenset()  # kinds of lists that are the same as long as it lasts
        self.streams: list[Sink] = []  # where it can be told things that belong to no call; the newest is used
        self._asks: dict[bytes, tuple[Asked, bytes, Sink | None]] = {}
        self._next_ask = 0
        self._missed: set[str] = set()  # kinds of lists that changed while no stream was open
        caller.asker = self
        caller.calls = {}

    # Telling

    def attach(self, stream: Sink) -> None:
        self.streams.append(stream)
        missed, self._missed = self._missed, set()
        for kind in sorted(missed):
            self.on_lists_changed(kind)

    def detach(self, stream: Sink) -> None:
        if stream in self.streams:
            self.streams.remove(stream)

    @property
    def reachable(self) -> bool:
        return bool(self.streams) and not self.ended

    def tell(self, message: bytes) -> bool:
        if not self.reachable:
            return False
        self.streams[-1].emit(message)
        return True

    def on_lists_changed(self, kind: str) -> None:
        if kind not in self.unchanging and not self.tell(encode_notification(CHANGED[kind].encode(), b"")):
            self._missed.add(kind)

    def on_resource_updated(self, params: bytes) -> None:
        self.tell(encode_notification(RESOURCE_UPDATED.encode(), params))

    def on_log(self, params: Raw) -> None:
        if self.caller.log_level is not None and passes_level(params, self.caller.log_level):
            self.tell(encode_notification(LOG_MESSAGE.encode(), bytes(params)))

    def tell_legacy(self, message: bytes) -> None:
        self.tell(message)

    def on_vendor_notification(self, notification: Notification) -> None:
        self.tell(encode_notification(encode_value(notification.method)[1:-1], bytes(notification.params)))

    def on_notice(self, notice: Notice) -> None:
        """Send a notice unchanged to clients that know the tree, and as a log message to others (MCP-AX 12, 13.1).

        Other clients are notified of what the tree lost even if they did not request logs; a level that they set still
        applies.
        """
        plain = None if self.knows_tree else as_log(notice)
        if plain is None:
            self.tell(encode_notification(notice.method.encode(), bytes(notice.params)))
        elif self.caller.log_level is None or passes_level(plain.params, self.caller.log_level):
            self.tell(encode_notification(plain.method.encode(), bytes(plain.params)))

    # Calls without a connection

    def open_log(self, stream: Exchange) -> StreamLog:
        return self.logs.open(self.id, stream)

    def may_go_on(self) -> bool:
        """Return whether a call continues after its connection was lost."""
        return len(self.caller.calls or ()) <= UNCONNECTED_MAX

    # Asking

    def ask(self, link: Asked, upstream_id: bytes, method: str, params: Raw, sink: Sink | None) -> None:
        needed = _ASKABLE.get(method)
        if needed is None or needed not in self.caller.capabilities:
            self._answer_for(link, upstream_id, f"the client does not support {method}")
            return
        stream = sink if sink is not None else (self.streams[-1] if self.streams else None)
        if stream is None:
            self._answer_for(link, upstream_id, "the client cannot be reached")
            return
        self._next_ask += 1
        our_id = b'"il-%d"' % self._next_ask
        self._asks[our_id] = (link, upstream_id, sink)
        stream.emit(encode_request(our_id, method.encode(), bytes(params)))

    def withdraw(self, link: Asked, upstream_id: bytes, params: Raw) -> None:
        for our_id, (asking_link, theirs, sink) in list(self._asks.items()):
            if asking_link is link and theirs == upstream_id:
                del self._asks[our_id]
                cancellation: dict[str, Raw] = decode_object(params) or {}
                cancellation["requestId"] = Raw(our_id)
                message = encode_notification(CANCELLED.encode(), encode_value(cancellation))
                stream = sink if sink is not None else (self.streams[-1] if self.streams else None)
                if stream is not None:
                    stream.emit(message)

    def take_answer(self, response: Response) -> bool:
        """Pass a client's answer to the server that asked, and return False if no server asked."""
        question = self._asks.pop(response.id, None)
        if question is None:
            return False
        link, upstream_id, _ = question
        if response.error:
            link.respond(upstream_id, b'"error":' + bytes(response.error))
        else:
            link.respond(upstream_id, b'"result":' + bytes(response.result))
        return True

    def _answer_for(self, link: Asked, upstream_id: bytes, why: str) -> None:
        link.respond(upstream_id, b'"error":' + error_body(Refusal(METHOD_NOT_FOUND, why)))

    # Ending

    def end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = True
        for call in list((self.caller.calls or {}).values()):
            call.cancel(reason)
        asks, self._asks = self._asks, {}
        for link, upstream_id, _ in asks.values():
            self._answer_for(link, upstream_id, "the client has gone")
        self.caller.asker = None  # no circles: a session must not wait for the collector


class SessionEnd(Protocol):
    """Callback for the end of a session; `session` is None for a client without handshake, on a pipe."""

    def __call__(self, caller: Caller, session: Session | None, reason: str, *, is_graceful: bool) -> None: ...


class Sessions:
    """All sessions of a node, by id. Ids are unguessable; a session belongs to the principal that opened it."""

    def __init__(self, clock: Clock, idle_s: float, on_end: SessionEnd) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._on_end = on_end
        self.by_id: dict[str, Session] = {}
        self._logs = StreamLogs()

    def open(self, caller: Caller, version: str) -> Session | None:
        """Open a session, or return None if the node has reached its limit."""
        if len(self.by_id) >= SESSIONS_MAX and not self.expire() and not self._evict():
            return None
        session = Session(secrets.token_urlsafe(24), caller, version, self._clock.now(), self._logs)
        self.by_id[session.id] = session
        return session

    def find(self, session_id: str, principal: str) -> Session | None:
        session = self.by_id.get(session_id)
        if session is None or session.caller.principal.name != principal:
            return None
        session.last_seen = self._clock.now()
        return session

    def close(self, session: Session, reason: str) -> None:
        if self.by_id.pop(session.id, None) is not None:
            session.end(reason)
            self._logs.forget(session.id)
            self._on_end(session.caller, session, reason, is_graceful=reason in GRACEFUL)

    def end_pipe(self, caller: Caller, reason: str) -> None:
        """End the session of a client without handshake, whose pipe has closed."""
        self._on_end(caller, None, reason, is_graceful=reason in GRACEFUL)

    def _evict(self) -> bool:
        """End the session that was silent longest, so that unused sessions keep no client out, and return whether
        one ended.
        """
        silent = [session for session in self.by_id.values() if not session.streams and not session.caller.calls]
        if not silent:
            return False
        self.close(min(silent, key=lambda session: session.last_seen), "evicted")
        return True

    def expire(self) -> int:
        """End what was idle too long: no stream, no call, nothing heard. Returns how many."""
        now = self._clock.now()
        self._logs.sweep(now)
        before = now - self._idle_s
        idle = [
            session
            for session in self.by_id.values()
            if session.last_seen < before and not session.streams and not session.caller.calls
        ]
        for session in idle:
            self.close(session, "idle")
        return len(idle)
