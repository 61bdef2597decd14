"""The requests to one device: calls and heartbeats that wait, are in flight, are sent again, and end.

Theory of operation. A request waits in the queue, is sent, and ends exactly once, with one of four outcomes:

    Succeeded      the device answered, and the answer is what its tool declares
    DeviceFailure  the device reported a failure, its answer is unusable, or the arguments cannot be encoded
    AnswerLost     no answer came; `was_sent` says whether the device may have acted
    Busy           the queue was full

One request is in flight at a time unless the description allows more, heartbeats included, so that a stub with one
buffer is never overrun. A request without an answer is sent again only if that has the same effect as sending it once,
and only on a transport that may lose messages (AX-B.4-6).

A heartbeat never costs a call (AX-8.N-9). None is sent while a call waits or is in flight. A call that arrives while a
heartbeat is in flight waits for one timeout at most, and is sent even if the heartbeat was not answered. The exception
is a device that left a call unanswered: it may be stuck in that call. It gets no further call before it has shown a
sign of life, so a heartbeat goes out first, if the device answers heartbeats.

The session of the device decides whether the device is present and what its answers mean. It calls `answer` for each
answer, `note_life` for each valid message and `end_all` when the device is gone. If the device fell silent, the session
calls `hold_unsent` instead: calls that were not sent wait for a short time, and `send_held` sends them if the device
returns.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import TIMEOUT_S, LatencyClass
from interlock.devices.protocol.description import LinkDescription
from interlock.devices.protocol.device_tools import DeviceTool
from interlock.devices.protocol.messages import Codec, DeviceFault

if TYPE_CHECKING:
    from interlock.devices.session import DeviceSession


class Succeeded(msgspec.Struct, frozen=True):
    """The outcome of a call that the device executed."""

    content: dict[str, Any]


class DeviceFailure(msgspec.Struct, frozen=True):
    """The outcome of a call that failed: the device reported a failure, its answer is unusable, or the arguments are
    invalid or cannot be sent. `fault` is the failure code in `_meta["x-mcpax-device"]`.
    """

    fault: Literal["status", "response_invalid", "argument_invalid", "too_large"]
    detail: str
    status: int | None = None
    name: str | None = None  # of the status
    path: str = ""  # of the argument or member at fault


class AnswerLost(msgspec.Struct, frozen=True):
    """The outcome of a call that the device did not answer. If the call was sent, the device may have acted."""

    detail: str
    was_sent: bool


class Busy(msgspec.Struct, frozen=True):
    """The outcome of a call that was not queued, because too many calls are waiting."""


CallOutcome = Succeeded | DeviceFailure | AnswerLost | Busy


@dataclass(slots=True, eq=False)
class DeviceCounters:
    """Counters of a device's session, which operators can read."""

    sent: int = 0  # messages
    received: int = 0
    retries: int = 0
    unplugged: int = 0  # how often a present device has become absent
    discarded: Counter[str] = field(default_factory=Counter)  # messages by the reason why they were dropped
    seen: float = -inf  # when the last valid message came, by the node's monotonic clock
    seen_wall: float | None = None  # the same time of day


RESET: Final = "it was reset"
QUEUE_MAX: Final = 16  # calls that wait for one device (AX-B.1-8)
BATCH_S: Final = 3600.0  # for one attempt of a tool whose caller manages the time

OnDone = Callable[[CallOutcome], None]


@dataclass(slots=True, eq=False)
class DeviceRequest:
    """A request to the device: a call, or a heartbeat if `tool` is None."""

    tool: DeviceTool | None
    arguments: Mapping[str, Any]
    tries: int  # attempts in all
    on_done: OnDone | None  # None: no call waits for the outcome
    attempts: int = 0  # attempts that are left
    id: int = 0
    message: bytes = b""
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.attempts = self.tries

    def end(self, outcome: CallOutcome) -> None:
        """Stop the timer and pass the outcome to `on_done`. Further calls have no effect."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done(outcome)


@dataclass(eq=False)
class RequestQueue:
    """The requests to one device: those that wait to be sent, and those that were sent and are not answered yet."""

    _link: LinkDescription
    _codec: Codec
    _counters: DeviceCounters
    _sender: "DeviceSession"
    _has_heartbeats: bool

    def __post_init__(self) -> None:
        self._timeout_s = self._link.timeout_ms / 1000
        self._queue: deque[DeviceRequest] = deque()
        self.in_flight: dict[int, DeviceRequest] = {}
        # Ids start at random: a late answer to a process that ran before must not answer a request of this one.
        self._last_id = secrets.randbelow(self._codec.id_max)
        self._is_unanswered = False  # whether a call has had no answer since the last sign of life
        self.is_heartbeat_open = False  # whether a heartbeat was sent, and nothing valid has arrived since
        self._held: list[DeviceRequest] = []  # calls to a silent device, which were not sent
        self._held_until: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def has_calls_in_flight(self) -> bool:
        return any(request.tool is not None for request in self.in_flight.values())

    @property
    def is_at_work(self) -> bool:
        """Return whether the device may be busy with a call. A device that let a call time out, and has been silent
        since, does not count as busy.
        """
        return self.has_calls_in_flight and not self._is_unanswered

    def is_unsent(self, request: DeviceRequest) -> bool:
        """Return whether a call was not sent, and waits for a silent device to return."""
        return request in self._held

    def call(self, tool: DeviceTool, arguments: Mapping[str, Any], on_done: OnDone) -> DeviceRequest | None:
        """Queue a call. If too many calls are waiting, report Busy and return None; otherwise return its request."""
        if len(self._queue) >= QUEUE_MAX:
            on_done(Busy())
            return None
        # Whether sending the call twice has the same effect as sending it once.
        is_repeatable = tool.tool.mutable is False or tool.tool.idempotent
        repeats = self._link.retries if is_repeatable and not self._sender.is_reliable else 0  # AX-B.4-6
        request = DeviceRequest(tool, arguments, 1 + repeats, on_done)
        self._enqueue(request)
        return request

    def ask_for_life(self, repeats: int) -> None:
        """Send a heartbeat to find out whether the device is alive. Do nothing if another request is waiting or
        unanswered, because its answer will show the same.
        """
        if not self.in_flight and not self._queue:
            self._enqueue(DeviceRequest(None, {}, 1 + repeats, None))

    def note_life(self) -> None:
        """Note that the device is alive, so that calls may be sent after an unanswered one."""
        self._is_unanswered = self.is_heartbeat_open = False

    def answer(self, request: DeviceRequest, outcome: CallOutcome) -> None:
        """End a request that the device has answered. If a repetition of the request still waits to be sent, withdraw
        the repetition.
        """
        del self.in_flight[request.id]
        request.end(outcome)
        if request.attempts < request.tries - 1:
            # An answer to an earlier attempt has come before the last attempt left this machine.
            self._withdraw(request)

    def abandon(self, request: DeviceRequest) -> None:
        """Stop waiting for a request that its client has cancelled. If the request was already sent, the device counts
        as busy until it answers or the request times out.
        """
        request.on_done = None
        request.attempts = 0
        if request in self._queue:
            self._queue.remove(request)
        elif request in self._held:
            self._held.remove(request)
        else:
            self._withdraw(request)

    def end_all(self, reason: str) -> None:
        """End all requests as lost. Requests that were not sent yet are reported as not sent."""
        self._end_in_flight(reason)
        waiting = [*self._held, *self._queue]
        self._queue.clear()
        self._held.clear()
        self._stop_holding()
        for request in waiting:
            request.end(AnswerLost(reason, was_sent=False))

    def end_sent(self, reason: str, tools: Mapping[str, DeviceTool]) -> None:
        """End the requests in flight as lost, because the device has started again. Calls that were not sent keep their
        place if their tools are among `tools` unchanged, and end as not sent otherwise.
        """
        self._end_in_flight(reason)
        waiting = list(self._queue)
        self._queue.clear()
        self._requeue(waiting, reason, tools)

    def end_heartbeats(self) -> None:
        """End the heartbeats in flight, because the device has shown in another way that it is alive."""
        for request in [request for request in self.in_flight.values() if request.tool is None]:
            self.answer(request, Succeeded({}))

    def hold_unsent(self, reason: str, seconds: float) -> None:
        """End the requests in flight as lost, because the device has fallen silent. Calls that were not sent wait for
        the return of the device, and end as not sent after `seconds` seconds.
        """
        self._end_in_flight(reason)
        unsent = [request for request in self._queue if request.tool is not None]
        self._queue.clear()
        if unsent:
            self._held += unsent
            self._stop_holding()
            self._held_until = asyncio.get_running_loop().call_later(seconds, self.end_all, reason)

    def send_held(self, tools: Mapping[str, DeviceTool]) -> None:
        """Send the calls that waited for the return of the device, if their tools are among `tools` unchanged."""
        self._stop_holding()
        held, self._held = self._held, []
        self._requeue(held, RESET, tools)
        self.send_next()

    def _end_in_flight(self, reason: str) -> None:
        sent, self.in_flight = list(self.in_flight.values()), {}
        for request in sent:
            self._withdraw(request)
            request.end(AnswerLost(reason, was_sent=True))

    def _requeue(self, waiting: Iterable[DeviceRequest], reason: str, tools: Mapping[str, DeviceTool]) -> None:
        for request in waiting:
            if request.tool is not None:
                entry = tools.get(request.tool.tool.name)
                # The number of another tool, or other effects than those that were admitted: the call is not sent.
                if entry is None or entry.tool != request.tool.tool:
                    request.end(AnswerLost(reason, was_sent=False))
                    continue
            self._queue.append(request)

    def _stop_holding(self) -> None:
        if self._held_until is not None:
            self._held_until.cancel()
            self._held_until = None

    def send_next(self) -> None:
        """Send waiting requests until as many are unanswered as the link allows."""
        while self._queue and len(self.in_flight) < self._link.in_flight and self._sender.is_open:
            # After an unanswered call, a heartbeat finds out whether the device still answers. The call waits for it.
            if self._is_unanswered and self._has_heartbeats and self._queue[0].tool is not None:
                if all(request.tool is not None for request in self.in_flight.values()):
                    self._send_first(DeviceRequest(None, {}, 1, None))
                return
            self._send_first(self._queue.popleft())

    def _enqueue(self, request: DeviceRequest) -> None:
        self._queue.append(request)
        self.send_next()

    def _withdraw(self, request: DeviceRequest) -> None:
        if request.message:
            self._sender.withdraw(request.message)

    def _send_first(self, request: DeviceRequest) -> None:
        while True:
            self._last_id = self._last_id % self._codec.id_max + 1
            if self._last_id not in self.in_flight:
                break
        request.id = self._last_id
        try:
            if request.tool is None:
                request.message = self._codec.encode_heartbeat(request.id)
            else:
                request.message = self._codec.encode_call(request.id, request.tool.tool, request.arguments)
        except DeviceFault as fault:
            is_large = fault.code == "too_large"
            request.end(DeviceFailure("too_large" if is_large else "argument_invalid", fault.detail, path=fault.path))
            return
        self.in_flight[request.id] = request
        try:
            self._send_attempt(request)
        except ValueError as error:  # the message is longer than the framing allows
            self.in_flight.pop(request.id, None)
            request.end(DeviceFailure("too_large", str(error)))

    def _send_attempt(self, request: DeviceRequest) -> None:
        request.attempts -= 1
        request.timer = asyncio.get_running_loop().call_later(self.attempt_s(request), self._on_timeout, request)
        self.is_heartbeat_open = self.is_heartbeat_open or request.tool is None
        self._sender.send(request.message)

    def attempt_s(self, request: DeviceRequest) -> float:
        """Return the time limit of one attempt in seconds (AX-B.4-6). The latency class of a tool limits all attempts
        together, and each attempt gets an equal share of this time. A share is at least the timeout of the link, unless
        that timeout would use up the whole time.
        """
        if (tool := request.tool) is None or tool.tool.latency_class is None:
            return self._timeout_s
        try:
            whole_s = TIMEOUT_S[LatencyClass(tool.tool.latency_class)]
        except ValueError:
            return self._timeout_s
        if whole_s is None:  # batch: the caller manages the time
            return BATCH_S
        share_s = whole_s / request.tries
        # An attempt with the timeout of the link would leave no time for another one.
        return share_s if self._timeout_s >= whole_s else max(self._timeout_s, share_s)

    def _on_timeout(self, request: DeviceRequest) -> None:
        request.timer = None
        if self.in_flight.get(request.id) is not request:
            return
        is_heartbeat = request.tool is None
        is_in_the_way = is_heartbeat and bool(self._queue)  # AX-8.N-9: not repeated while a call waits
        if request.attempts > 0 and not is_in_the_way:
            self._counters.retries += 1
            self._send_attempt(request)
            return
        del self.in_flight[request.id]
        self._withdraw(request)
        self._is_unanswered = self._is_unanswered or not is_heartbeat
        request.end(AnswerLost("it did not answer in time", was_sent=True))
        self.send_next()
