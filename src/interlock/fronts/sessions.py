"""The sessions of legacy clients, from `initialize` to their end, and the streams that they may resume.

A session knows the capabilities of its client, the calls and questions that are under way, and the stream on which the
client can be reached. Requests of servers to the client pass through the session under ids of the node, so that ids of
several servers cannot collide. A session ends when its client deletes it or disconnects, when it was idle for too long,
or when its credential is no longer valid. `Sessions` limits their number: the session that was silent for the longest
time ends first.

A `StreamLog` is between the answer of a call and the connection of the client (MCP 2025-11-25, Resumability). It gives
each message an event id, sends it over the connection that the client has at the time, and keeps it. A client that
reconnects gets the events after the one that it names. All logs of a node together keep a limited number of bytes; the
oldest stream is dropped first, and a client that wants to resume it does not get the events that it missed.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.notifications import as_log
from interlock.core.calls.call import passes_level
from interlock.core.calls.caller import Caller, ClientChannel, Sink
from interlock.core.clock import Clock
from interlock.fronts.exchange import Exchange
from interlock.mcp import methods
from interlock.wire.jsonrpc.codec import Notification, encode_notification, encode_value
from interlock.wire.sse import event_pieces

KEPT_BYTES_MAX: Final = 16 * 1024 * 1024  # of all streams of a node
KEPT_S: Final = 60.0  # after the end of a stream
EVENT_BYTES: Final = 200  # of an event besides its message
_NUMBER_DIGITS_MAX: Final = 15


class StreamLogs:
    """The stream logs of a node, oldest first."""

    def __init__(self) -> None:
        self._logs: dict[int, StreamLog] = {}
        self._of_session: dict[str, set[int]] = {}  # by number
        self._bytes = 0
        self._last = 0

    def open(self, session: str, output: Exchange) -> "StreamLog":
        self._last += 1
        log = self._logs[self._last] = StreamLog(self, session, self._last, output)
        self._of_session.setdefault(session, set()).add(self._last)
        return log

    def find_after(self, session: str, event_id: bytes) -> "tuple[StreamLog, int] | None":
        """Return the stream of a session that contains this event, and how many of its events the client has received.

        Return None if the id is malformed, or the stream that it names is not stored or belongs to another session.
        """
        stream, _, index = event_id.partition(b"-")
        if not (stream.isdigit() and index.isdigit()) or max(len(stream), len(index)) > _NUMBER_DIGITS_MAX:
            return None
        log = self._logs.get(int(stream))
        return (log, int(index)) if log is not None and log.session == session and int(index) > 0 else None

    def forget(self, session: str) -> None:
        for number in list(self._of_session.get(session, ())):
            self._forget(self._logs[number])

    def sweep(self, now: float) -> None:
        """Remove the logs of streams that ended some time ago."""
        for log in [entry for entry in self._logs.values() if entry.is_over]:
            if log.over_since is None:
                log.over_since = now
            elif now - log.over_since > KEPT_S:
                self._forget(log)

    def keep(self, log: "StreamLog", size: int) -> bool:
        """Count `size` more bytes for a log. If all logs together are too large, remove the oldest. Return whether this
        log is still stored.
        """
        if log.number not in self._logs:
            return False
        log.size += size
        self._bytes += size
        while self._bytes > KEPT_BYTES_MAX:
            self._forget(self._logs[next(iter(self._logs))])
        return log.number in self._logs

    def _forget(self, log: "StreamLog") -> None:
        del self._logs[log.number]
        of_session = self._of_session[log.session]
        of_session.discard(log.number)
        if not of_session:
            del self._of_session[log.session]
        self._bytes -= log.size
        log.events.clear()


@dataclass(eq=False)
class StreamLog:
    """The stored events of one event stream. A client that lost its connection can resume the stream from them."""

    logs: StreamLogs
    session: str
    number: int
    output: Exchange | None  # where its client hears it now
    events: list[tuple[bytes, ...]] = field(default_factory=list)  # each in pieces
    size: int = 0
    is_over: bool = False
    over_since: float | None = None  # as the sweep sees it
    _sent: int = 0
    _taken_up_by: Exchange | None = None

    def add(self, message: bytes) -> None:
        self._sent += 1
        event = event_pieces(message, event=b"message", id=b"%d-%d" % (self.number, self._sent))
        if self.logs.keep(self, sum(map(len, event)) + EVENT_BYTES):
            self.events.append(event)
        if self.output is not None:
            self.output.send_chunk(*event)

    def finish(self) -> None:
        self.is_over = True
        output, self.output = self.output, None
        if output is not None:
            output.end_stream()

    def leave(self, output: Exchange) -> None:
        """Stop sending to a connection that the client has lost."""
        if self.output is output:
            self.output = None

    def resume(self, output: Exchange, received: int) -> None:
        """Continue the stream on a new connection. The client has received the first `received` events.

        The former connection is closed and its unread data is dropped, even if the stream has ended. Otherwise a client
        could request all the data any number of times.
        """
        former, self.output = self.output or self._taken_up_by, output
        self._taken_up_by = output
        if former is not None:
            former.abandon()
        for event in self.events[received:]:
            output.send_chunk(*event)
        if self.is_over:
            self.finish()
        else:
            output.on_gone = lambda: self.leave(output)


CHANGED: Final = {
    "tools": methods.TOOLS_CHANGED,
    "prompts": methods.PROMPTS_CHANGED,
    "resources": methods.RESOURCES_CHANGED,
}
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
        self.tell(encode_notification(methods.RESOURCE_UPDATED.encode(), params))

    def on_log(self, params: Raw) -> None:
        if self.caller.log_level is not None and passes_level(params, self.caller.log_level):
            self.tell(encode_notification(methods.LOG_MESSAGE.encode(), bytes(params)))

    def tell_legacy(self, message: bytes) -> None:
        self.tell(message)

    def on_vendor_notification(self, notification: Notification) -> None:
        self.tell(encode_notification(encode_value(notification.method)[1:-1], bytes(notification.params)))

    def on_notice(self, notice: Notification) -> None:
        """Send a notice about the MCP-AX tree: unchanged to a client that supports MCP-AX, otherwise as a log message
        (MCP-AX 12, 13.1).

        Other clients are notified of losses in the tree even if they did not request logs. A log level that they set
        still applies.
        """
        plain = None if self.knows_tree else as_log(notice)
        if plain is None:
            self.tell(encode_notification(notice.method.encode(), bytes(notice.params)))
        elif self.caller.log_level is None or passes_level(plain.params, self.caller.log_level):
            self.tell(encode_notification(plain.method.encode(), bytes(plain.params)))

    # Calls whose connection was lost

    def may_continue_unconnected(self) -> bool:
        """Return whether a call may continue after its connection was lost. Only a limited number of calls per session
        may do so.
        """
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


@dataclass(eq=False)
class Sessions:
    """The sessions of a node, by id.

    Ids cannot be guessed, and only the principal that opened a session can use it.
    """

    clock: Clock
    idle_s: float
    on_end: OnSessionEnd
    by_id: dict[str, ClientSession] = field(default_factory=dict)
    _logs: StreamLogs = field(default_factory=StreamLogs)

    def open(self, caller: Caller, version: str) -> ClientSession | None:
        """Open a session. Return None if the node has reached its limit of sessions and none of them can be ended."""
        if len(self.by_id) >= SESSIONS_MAX and not self.expire():
            # End the session that was idle for the longest time.
            silent = [session for session in self.by_id.values() if not session.streams and not session.caller.calls]
            if not silent:
                return None
            self.close(min(silent, key=lambda session: session.last_seen), "evicted")
        session = ClientSession(secrets.token_urlsafe(24), caller, version, self.clock.now(), self._logs)
        self.by_id[session.id] = session
        return session

    def find(self, session_id: str, principal: str) -> ClientSession | None:
        session = self.by_id.get(session_id)
        if session is None or session.caller.principal.name != principal:
            return None
        session.last_seen = self.clock.now()
        return session

    def close(self, session: ClientSession, reason: str) -> None:
        if self.by_id.pop(session.id, None) is not None:
            session.end(reason)
            self._logs.forget(session.id)
            self.on_end(session.caller, session, reason)

    def expire(self) -> int:
        """End the sessions that were idle for too long: they have no stream and no call, and received no message.

        Return the number of sessions that were ended.
        """
        now = self.clock.now()
        self._logs.sweep(now)
        before = now - self.idle_s
        idle = [
            session
            for session in self.by_id.values()
            if session.last_seen < before and not session.streams and not session.caller.calls
        ]
        for session in idle:
            self.close(session, "idle")
        return len(idle)
