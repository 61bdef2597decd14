"""Streams that a legacy client may resume by the id of the last event that it received (MCP 2025-11-25, Resumability).

A `StreamLog` is between the answer of a call and the connection of the client. It gives each message an event id, sends
it over the connection that the client has at the time, and keeps it. A client that reconnects gets the events after the
one that it names. All logs of a node together keep a limited number of bytes; the oldest stream is dropped first, and a
client that wants to resume it does not get the events that it missed.
"""

from typing import Final

from interlock.fronts.exchange import Exchange
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
        """Count `size` more bytes for a log. Return whether the log is still stored."""
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


class StreamLog:
    """The stored events of one stream, which a client can resume after its connection was lost."""

    __slots__ = (
        "_logs",
        "_sent",
        "_taken_up_by",
        "events",
        "is_over",
        "number",
        "output",
        "over_since",
        "session",
        "size",
    )

    def __init__(self, logs: StreamLogs, session: str, number: int, output: Exchange) -> None:
        self.session = session
        self.number = number
        self.output: Exchange | None = output  # where its client hears it now
        self.events: list[tuple[bytes, ...]] = []  # each in pieces
        self.size = 0
        self.is_over = False
        self.over_since: float | None = None  # as the sweep sees it
        self._logs = logs
        self._sent = 0
        self._taken_up_by: Exchange | None = None

    def add(self, message: bytes) -> None:
        self._sent += 1
        event = event_pieces(message, event=b"message", id=b"%d-%d" % (self.number, self._sent))
        if self._logs.keep(self, sum(map(len, event)) + EVENT_BYTES):
            self.events.append(event)
        if self.output is not None:
            self.output.send_chunk(*event)

    def finish(self) -> None:
        self.is_over = True
        output, self.output = self.output, None
        if output is not None:
            output.end_stream()

    def leave(self, output: Exchange) -> None:
        """Detach a connection that the client has lost."""
        if self.output is output:
            self.output = None

    def take_up(self, output: Exchange, received: int) -> None:
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
