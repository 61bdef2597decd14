"""The sessions of legacy clients, from `initialize` to their end.

A session knows the capabilities of its client, the calls and questions that are under way, and the stream on which the
client can be reached. Requests of servers to the client pass through the session under ids of the node, so that ids of
several servers cannot collide. A session ends when its client deletes it or disconnects, when it was idle for too long,
or when its credential is no longer valid. `Sessions` limits their number: the session that was silent for the longest
time ends first.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.notifications import AxNotice, as_log
from interlock.core.calls.call import passes_level
from interlock.core.calls.caller import Caller, ClientChannel, Sink
from interlock.core.clock import Clock
from interlock.fronts.exchange import Exchange
from interlock.fronts.stream_log import StreamLog, StreamLogs
from interlock.mcp.methods import (
    LOG_MESSAGE,
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
)
from interlock.wire.jsonrpc.codec import (
    Notification,
    encode_notification,
    encode_value,
)

CHANGED: Final = {"tools": TOOLS_CHANGED, "prompts": PROMPTS_CHANGED, "resources": RESOURCES_CHANGED}
WENT_AWAY: Final = "the client went away"
LOST: Final = "the connection was lost"
GRACEFUL: Final = frozenset(("closed by the client", WENT_AWAY))  # DELETE, and the end of stdin
SESSIONS_MAX: Final = 10_000
UNCONNECTED_MAX: Final = 64  # calls of one session under way, when one more loses its connection


class ClientSession(ClientChannel):
    """The session of a legacy client, which lasts from `initialize` to its end. It is a member of the audience."""

    def __init__(self, session_id: str, caller: Caller, version: str, now: float, logs: StreamLogs) -> None:
        super().__init__(caller)
        self.logs = logs
        self.id = session_id
        self.version = version
        self.last_seen = now
        self.ended = False
        self.knows_tree = False  # it declared our extension
        self.front: Any = None  # the LegacyFront that serves it
        self.surface = ""  # which surface it got, and why
        self.unchanging: frozenset[str] = frozenset()  # kinds of lists that are the same as long as it lasts
        self._missed: set[str] = set()  # kinds of lists that changed while no stream was open
        caller.calls = {}

    def attach(self, stream: Sink) -> None:
        super().attach(stream)
        missed, self._missed = self._missed, set()
        for kind in sorted(missed):
            self.on_lists_changed(kind)

    # Notifications

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

    def on_notice(self, notice: AxNotice) -> None:
        """Send a notice unchanged to a client that knows the tree, and as a log message to any other client (MCP-AX 12,
        13.1).

        Other clients are notified of losses in the tree even if they did not request logs. A log level that they set
        still applies.
        """
        plain = None if self.knows_tree else as_log(notice)
        if plain is None:
            self.tell(encode_notification(notice.method.encode(), bytes(notice.params)))
        elif self.caller.log_level is None or passes_level(plain.params, self.caller.log_level):
            self.tell(encode_notification(plain.method.encode(), bytes(plain.params)))

    # Calls whose connection was lost

    def open_log(self, stream: Exchange) -> StreamLog:
        return self.logs.open(self.id, stream)

    def may_go_on(self) -> bool:
        """Return whether a call continues after its connection was lost."""
        return len(self.caller.calls or ()) <= UNCONNECTED_MAX

    def end(self, reason: str) -> None:
        """Cancel the calls of the session and answer its open questions. Calling this method again has no effect."""
        if self.ended:
            return
        self.ended = True
        for call in list((self.caller.calls or {}).values()):
            call.cancel(reason)
        self.close()


# Called when a session ends, with its caller, the session and the reason. The session is None for a client without a
# handshake, on a pipe.
OnSessionEnd = Callable[[Caller, ClientSession | None, str], None]


class Sessions:
    """The sessions of a node, by id.

    Ids cannot be guessed, and only the principal that opened a session can use it.
    """

    def __init__(self, clock: Clock, idle_s: float, on_end: OnSessionEnd) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._on_end = on_end
        self.by_id: dict[str, ClientSession] = {}
        self._logs = StreamLogs()

    def open(self, caller: Caller, version: str) -> ClientSession | None:
        """Open a session. Return None if the node has reached its limit of sessions and none of them can be ended."""
        if len(self.by_id) >= SESSIONS_MAX and not self.expire() and not self._evict():
            return None
        session = ClientSession(secrets.token_urlsafe(24), caller, version, self._clock.now(), self._logs)
        self.by_id[session.id] = session
        return session

    def find(self, session_id: str, principal: str) -> ClientSession | None:
        session = self.by_id.get(session_id)
        if session is None or session.caller.principal.name != principal:
            return None
        session.last_seen = self._clock.now()
        return session

    def close(self, session: ClientSession, reason: str) -> None:
        if self.by_id.pop(session.id, None) is not None:
            session.end(reason)
            self._logs.forget(session.id)
            self._on_end(session.caller, session, reason)

    def end_pipe(self, caller: Caller, reason: str) -> None:
        """Report the end of a client without a handshake, because its pipe has closed."""
        self._on_end(caller, None, reason)

    def _evict(self) -> bool:
        """End the session that was idle for the longest time, to make room for a new one. Return whether a session was
        ended.
        """
        silent = [session for session in self.by_id.values() if not session.streams and not session.caller.calls]
        if not silent:
            return False
        self.close(min(silent, key=lambda session: session.last_seen), "evicted")
        return True

    def expire(self) -> int:
        """End the sessions that were idle for too long: they have no stream and no call, and received no message.

        Return the number of sessions that were ended.
        """
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
