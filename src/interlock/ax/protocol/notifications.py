"""Notifications on their way up (MCP-AX 12): limited to a rate per subserver, and marked with their origin.

`NoticeGate` is the limit. Notifications come in with the time; those that may go up come back in the order of arrival.
The gate never reads a notification, so it cannot wait for a causal parent; its caller names the subject of a
notification of which only the latest counts. Above the rate, notifications wait in a bounded buffer; then the oldest is
dropped, counted, and reported by one Overflow notice for the gap. Overflow notices from below are notifications like
any other: if they were exempt, a flood could pretend to consist of them.

`prefix` marks a notification with its origin. Everything it does not have to change keeps its bytes.
"""

import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.messages import OVERFLOW, SUBSERVER_LOST, TOOLS_REFUSED
from interlock.ax.protocol.names import WithheldName, is_qualified, show_uri
from interlock.mcp import methods
from interlock.wire.jsonrpc.codec import Notification, decode_object, encode_value, find_string

ORIGIN: Final = "x-mcpax-origin"  # AX-12-1
PER_S: Final = 100  # AX-12-3
BUFFER_MAX: Final = 1000  # AX-12-4
BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024  # a thousand of the largest messages would be too much
OVERFLOW_S: Final = 1.0  # at most one notice of overflow in this time
COALESCE_S: Final = 1.0  # for so long a newer notification of a subject replaces the one that waits
SEGMENTS_COUNTED_MAX: Final = 10_000
REFUSED_MAX: Final = 100  # tools named in one tools_refused; `total` says how many there are
REFUSED_NAME_MAX: Final = 128

_CHANGED: Final = frozenset((methods.TOOLS_CHANGED, methods.PROMPTS_CHANGED, methods.RESOURCES_CHANGED))
_NS: Final = 1_000_000_000


class Overflow(msgspec.Struct, frozen=True, kw_only=True):
    """Record of dropped notifications: how many of a subserver were dropped, and since when."""

    dropped: int
    since: float  # when the first of them was dropped, on the clock of `now`


Release = list[Notification | Overflow]


class Drops:
    """Counters of the notifications that this node has dropped since it started, in total and per segment."""

    def __init__(self) -> None:
        self.total = 0
        self.by_segment: dict[str, int] = {}

    def count(self, segment: str) -> None:
        self.total += 1  # AX-12-5
        if segment in self.by_segment or len(self.by_segment) < SEGMENTS_COUNTED_MAX:
            self.by_segment[segment] = self.by_segment.get(segment, 0) + 1  # AX-12-5


class NoticeGate:
    """Rate limit for the notifications of one subserver: a token bucket and a buffer of waiting notifications.

    Times are integer nanoseconds inside. Their sums are exact, so no deadline is missed by rounding.
    """

    def __init__(self, segment: str, drops: Drops, *, per_s: int = PER_S, buffer_max: int = BUFFER_MAX) -> None:
        if per_s < 1 or buffer_max < 1:  # AX-12-3
            raise ValueError("a rate and a buffer of notifications are at least 1")
        self._segment = segment
        self._drops = drops
        self._buffer_max = buffer_max
        self._cost_ns = max(1, _NS // per_s)
        self._burst_ns = (per_s - 1) * self._cost_ns
        self._full_at_ns = -_NS * 10**9  # when the bucket is full again; at first, before any clock begins
        # By arrival, with their subjects.
        self._waiting: OrderedDict[int, tuple[Notification, Hashable]] = OrderedDict()
        self._arrivals = 0
        self._news: dict[Hashable, tuple[int, int]] = {}  # subject -> the arrival that waits, and since when one does
        self._waiting_bytes = 0
        self._changed: dict[str, Raw] = {}  # list_changed by method: a flag, not a queue
        self._gap = 0  # notifications dropped and not yet reported
        self._gap_since_ns = 0
        self._told_ns: int | None = None

    def receive(self, method: str, params: Raw, now: float, subject: Hashable = None) -> Release:
        """Take a notification into the buffer. Return the notifications that may be passed on now.

        If a notification with the same `subject` still waits, the new one replaces it.
        """
        if method == methods.CANCELLED:
            return [Notification(method, params)]  # it takes a question back, and is bounded by the questions
        now_ns = _ns(now)
        notice = Notification(method, params.copy())  # a Raw holds on to the whole message it was cut from
        if method in _CHANGED:
            self._changed[method] = notice.params
            return self._release(now_ns)
        self._arrivals += 1
        if subject is not None:
            # The newer notification of a subject replaces the one that waits. One that has waited long is not dropped:
            # the newer one joins the end of the queue, and a steady stream of newer ones would delay the subject for
            # ever.
            before, since_ns = self._news.get(subject, (0, now_ns))
            if before and now_ns - since_ns < _ns(COALESCE_S):
                self._waiting_bytes -= _size(self._waiting.pop(before)[0])
                self.count_lost()
            else:
                since_ns = now_ns
            self._news[subject] = (self._arrivals, since_ns)
        self._waiting[self._arrivals] = (notice, subject)
        self._waiting_bytes += _size(notice)
        released = self._release(now_ns)
        while len(self._waiting) > self._buffer_max or self._waiting_bytes > BUFFER_BYTES_MAX:  # AX-12-4
            self._take_oldest()
            self.count_lost()
            if not self._gap:
                self._gap_since_ns = now_ns
            self._gap += 1  # AX-12-6
        return released

    def next_deadline(self) -> float | None:
        if self._waiting or self._changed:
            return self._ready_ns() / _NS
        return self._may_tell_ns() / _NS if self._gap else None

    def on_deadline(self, now: float) -> Release:
        """Return the notifications that may be passed up at this time."""
        return self._release(_ns(now))

    def _release(self, now_ns: int) -> Release:
        released: Release = []
        while (self._waiting or self._changed) and now_ns >= self._ready_ns():  # AX-12-3
            self._full_at_ns = max(now_ns, self._full_at_ns) + self._cost_ns
            if self._changed:
                # It only says "list again" and this node sends it again itself, so its place among the others is free.
                method = next(iter(self._changed))
                released.append(Notification(method, self._changed.pop(method)))
            else:
                self._tell_gap(now_ns, released)
                released.append(self._take_oldest())
        if not self._waiting:
            self._tell_gap(now_ns, released)
        return released

    def count_lost(self) -> None:
        """Count a notification of this subserver that is not passed on."""
        self._drops.count(self._segment)

    def _take_oldest(self) -> Notification:
        arrival, (notice, subject) = self._waiting.popitem(last=False)  # AX-12-2, AX-12-4: the oldest
        self._waiting_bytes -= _size(notice)
        if subject is not None and self._news[subject][0] == arrival:
            del self._news[subject]
        return notice

    def _tell_gap(self, now_ns: int, released: Release) -> None:
        if self._gap and now_ns >= self._may_tell_ns():  # AX-12-6
            released.append(Overflow(dropped=self._gap, since=self._gap_since_ns / _NS))
            self._gap, self._told_ns = 0, now_ns

    def _ready_ns(self) -> int:
        return self._full_at_ns - self._burst_ns

    def _may_tell_ns(self) -> int:
        return self._gap_since_ns if self._told_ns is None else self._told_ns + _ns(OVERFLOW_S)


# A method is copied into JSON as it is: a character that ends its string could add members beside it.
_METHOD: Final = re.compile(r"[A-Za-z0-9_./$-]{1,128}", re.ASCII)


def prefix(notice: Notification, segment: str, *, aggregator: bool) -> Notification | None:
    """Return a notification in the form in which this node passes it to its parent: `segment` is put in front of each
    name and URI in it. Return None if the notification is malformed.

    An origin that is already set is trusted only if the sender is an aggregator, and only below the sender's segment.
    """
    params = decode_object(notice.params) if notice.params else {}
    if params is None or not _METHOD.fullmatch(notice.method):
        return None
    meta = (decode_object(params["_meta"]) if "_meta" in params else None) or {}
    origin = find_string(meta.get(ORIGIN)) if aggregator else None  # AX-12-1
    changed: dict[str, object] = {**params, "_meta": {**meta, ORIGIN: _below(segment, origin)}}
    if notice.method == methods.LOG_MESSAGE:  # AX-12-1
        logger = find_string(params.get("logger"))
        changed["logger"] = f"{segment}.{logger}" if logger else segment
    elif notice.method == methods.RESOURCE_UPDATED:  # AX-12-1
        if (uri := find_string(params.get("uri"))) is None:
            return None
        changed["uri"] = show_uri(segment, uri, aggregator=aggregator)
    elif notice.method in (SUBSERVER_LOST, OVERFLOW):
        if not aggregator:
            return None  # a leaf has no subservers to speak of
        changed["segment"] = _below(segment, find_string(params.get("segment")))  # AX-13.1-1: prefixed at each hop
    return Notification(notice.method, Raw(encode_value(changed)))


def lost_notice(segment: str, reason: str, since: str, event_id: str) -> Notification:
    """Create the notification `subserver_lost` (13.1).

    `reason` is heartbeat_timeout or connection_lost; `since` is an RFC 3339 time.
    """
    return _own(SUBSERVER_LOST, {"segment": segment, "reason": reason, "since": since}, event_id)  # AX-13.1-1


def overflow(segment: str, dropped: int, since: str, event_id: str) -> Notification:
    return _own(OVERFLOW, {"segment": segment, "dropped": dropped, "since": since}, event_id)  # AX-12-6


def refused_notice(withheld: Sequence[WithheldName]) -> Notification:
    """Create the notification `tools_refused` for a subserver some of whose tools are not listed (4.2)."""
    tools = [
        {"name": item.name[:REFUSED_NAME_MAX], "reason": item.code or "name_refused", "detail": item.reason}
        for item in withheld[:REFUSED_MAX]
    ]
    return Notification(TOOLS_REFUSED, Raw(encode_value({"tools": tools, "total": len(withheld)})))


def as_log(notice: Notification) -> Notification | None:
    """Translate a notification into a log message for a client that supports only plain MCP.

    Return None if the notification has no such translation.
    """
    event = _EVENTS.get(notice.method)
    params = decode_object(notice.params) if event is not None and notice.params else None
    if event is None or params is None:
        return None
    meta = params.pop("_meta", None)
    log: dict[str, object] = {"level": "warning", "logger": "mcpax", "data": {"event": event, **params}}
    if meta is not None:
        log["_meta"] = meta
    return Notification(methods.LOG_MESSAGE, Raw(encode_value(log)))


_EVENTS: Final = {SUBSERVER_LOST: "subserver_lost", OVERFLOW: "notification_overflow"}


def _own(method: str, params: dict[str, object], event_id: str) -> Notification:
    return Notification(method, Raw(encode_value({**params, "_meta": {"x-mcpax-event-id": event_id}})))  # AX-12-8


def _below(segment: str, origin: str | None) -> str:
    """Return the path of the node from which a notification came, as the next node up names it: `segment`, followed by
    the previous origin.

    An origin that is not a qualified name is left out, because its sender made it up.
    """
    path = f"{segment}.{origin}"
    return path if origin is not None and is_qualified(path) else segment  # AX-12-1: below its own


def _size(notice: Notification) -> int:
    return len(notice.method) + len(notice.params)


def _ns(seconds: float) -> int:
    return round(seconds * _NS)
