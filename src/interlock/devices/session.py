"""The session with one device: it holds the transport open, watches the device's presence and sends calls.

Theory of operation. A session has one task, which opens the transport, waits until it is lost, and opens it again.
Everything else happens in callbacks of the event loop. A device is in one of two states:

    absent    There is no transport, or no sign of life. The device is polled: with heartbeats, or with {1: "r"} if it
              describes itself.
    present   Its tools are known, and a valid message arrived within the last three intervals.

A device of Profile A can signal its presence on a line (CTS or a GPIO) instead of answering heartbeats (AX-B.3-1). A
device of Profile B becomes present with its announcement, which lists its tools. A device of either profile can be
assumed to be present: it has the tools of its description, and gets nothing but calls.

A request is queued, then in flight until its answer, its last timeout or the end of the transport (`requests`). While a
call is in flight, the device is not polled, because it may be at work. If a device stays silent, its transport is
opened again, so that nothing of abandoned calls remains on the line.

Nothing that arrives is trusted. A message that cannot be decoded, answers no request, or names another tool is counted
and dropped, and the request goes on waiting. Announcements and events are limited in number, because they would
otherwise let a device occupy the node.

The owner of a session is the keeper of the device's link. It is told of four things: the device has become present or
absent, its tools have changed, an event has arrived.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from interlock.ax.protocol.registration.registrations import LossReason
from interlock.core.clock import Clock
from interlock.credentials.secret_references import SecretResolver, Unobtainable
from interlock.devices import requests
from interlock.devices.protocol import messages
from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.device_tools import AnnouncedTooOften, Announcements, DeviceTool, device_tool
from interlock.devices.protocol.messages import DeviceAnswer, DeviceFault, without_metadata
from interlock.devices.requests import AnswerLost, DeviceFailure, DeviceRequest, Succeeded
from interlock.devices.transports.transport import Transport, TransportFailed, TransportOwner, make_transport
from interlock.store.ports import StoreError

if TYPE_CHECKING:
    from interlock.devices.device_link import DeviceKeeper
    from interlock.devices.transports.transport import SharedConnections

FRAMES_MAX: Final = 1000  # messages in the record
WATCHED_S: Final = 30.0  # after an operator last asked for messages, the recording ends
BYTES_MAX: Final = 256  # of one message in the record


class SeenMessage(msgspec.Struct, frozen=True):
    """A message between node and device, recorded for an operator who watches the device."""

    number: int
    wall: float
    is_sent: bool
    data: bytes
    verdict: str | None = None  # why a received message was dropped


class Traffic:
    """A record of the messages between the node and a device. Messages are recorded only while an operator watches.

    Each call of `since` keeps the recording on for `WATCHED_S`. Afterwards nothing is stored, because messages contain
    the arguments and results of all clients' calls.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: deque[SeenMessage] = deque(maxlen=FRAMES_MAX)
        self._watched_until = 0.0
        self.last = 0  # the number of the last message

    def since(self, number: int) -> list[SeenMessage]:
        """Return the recorded messages with a higher number, and keep recording for another WATCHED_S seconds."""
        self._watched_until = self._clock.now() + WATCHED_S
        return [message for message in self._messages if message.number > number]

    def add(self, data: bytes, *, is_sent: bool, verdict: str | None = None) -> None:
        """Record a message if an operator watches. Otherwise discard the messages recorded before."""
        if self._clock.now() >= self._watched_until:
            self._messages.clear()
            return
        self.last += 1
        self._messages.append(SeenMessage(self.last, self._clock.wall(), is_sent, data[:BYTES_MAX], verdict))


log = logging.getLogger("interlock.devices")

INTERVALS_MAX: Final = 3  # without a sign of life (MCP-AX 6.3)
ASK_S: Final = 5.0  # between two requests for a registration (AX-8.3-3)
REOPEN_S: Final = 1.0  # between two attempts to open a transport
SETTLE_S: Final = 1.0  # an announcement so soon after one that was asked for is the same one again
EVENTS_PER_S: Final = 20  # that are passed on; the others are counted


@dataclass(eq=False)
class DeviceSession(TransportOwner):
    """A session with one device. It keeps the transport open, watches whether the device is present, and sends calls.

    The keeper and operators read `is_present`, `tools`, `reason` and `loss`. `open` and `close` are called once each;
    `reopen` may be called at any time.
    """

    segment: str
    description: DeviceDescription
    _clock: Clock
    _owner: "DeviceKeeper"
    _connections: "SharedConnections"
    _revealer: SecretResolver | None = None

    def __post_init__(self) -> None:
        description = self.description
        self.counters = requests.DeviceCounters()
        self.tools: dict[str, DeviceTool] = {}
        self.loss: LossReason = "connection_lost"  # why the device last became absent
        self.reason: str | None = None  # the same for people; None: it is present, or was never present
        self.is_present = False
        self.missing: tuple[str, ...] = ()  # described tools that the device did not announce
        self.traffic = Traffic(self._clock)
        link = description.link
        self._codec = messages.codec_of(description)
        link_presence = link.presence if link.transport == "uart_cbor" else "poll"
        # AX-8.N-8: a device that is assumed to be present has the tools of its description. Without any, it is asked.
        self._is_assumed = link_presence == "assume" and bool(description.tools)
        self._asks_registration = description.profile == "b" and not self._is_assumed
        self._interval_s = link.heartbeat_ms / 1000
        self._presence = link_presence
        self._announcements = Announcements(self.segment, description)
        self._events = {event.id: event.name for event in description.events}
        self._events_heard: deque[float] = deque(maxlen=EVENTS_PER_S)
        self.requests = requests.RequestQueue(link, self._codec, self.counters, self, self._presence == "poll")
        self._verdict: str | None = None  # why the last message was dropped
        self._asked = -inf  # when the device was last asked for its registration
        self._asks_open = 0  # such questions without an answer
        self._answered_ask = -inf
        self._transport: Transport | None = None
        self._discarded_before: Counter[str] = Counter()  # by transports that are closed
        self._lost: asyncio.Future[str] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._reopen = asyncio.Event()
        self._rest_s = 0.0  # before the transport is opened again
        self._settled = asyncio.Event()  # set once it is known whether the device is present

    # Life cycle

    def open(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"device {self.segment}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._leave("the node is stopping")
        self.requests.end_all("the node is stopping")

    def reopen(self) -> None:
        """Close the transport and open it again at once."""
        self._reopen.set()
        self.on_transport_lost("reopened by the operator")

    async def present_within(self, seconds: float) -> bool:
        """Wait until it is known whether the device is present, at most `seconds` seconds. Return whether it is
        present.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), seconds)
            return self.is_present
        return False

    @property
    def discarded(self) -> dict[str, int]:
        """Return the number of discarded frames and messages, by reason."""
        counts = self.counters.discarded + self._discarded_before
        counts.update(self._transport.discarded if self._transport is not None else {})
        return dict(counts)

    async def _run(self) -> None:
        while True:
            try:
                reason = await self._hold_transport()
            except Exception as error:  # of a library below: the transport is opened again all the same
                reason = f"its transport failed: {str(error) or type(error).__name__}"
                if reason != self.reason:
                    log.exception("device %s: its transport failed", self.segment)
            self._leave(reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(REOPEN_S, self._rest_s)):
                    await self._reopen.wait()
            self._reopen.clear()
            self._rest_s = 0.0

    async def _hold_transport(self) -> str:
        """Open the transport and wait until it is lost. Return the reason of the loss."""
        self._lost = asyncio.get_running_loop().create_future()
        transport: Transport | None = None
        try:
            # Encode once, so that a missing library of the codec is found here, and not in the middle of a call.
            self._codec.encode_registration_request()
            description, link = self.description, self.description.link
            if self._revealer is not None and link.password is not None:
                link = msgspec.structs.replace(link, password=await self._revealer.text(link.password))
                description = msgspec.structs.replace(description, link=link)
            transport = make_transport(self.segment, description, self, self._connections)
            await transport.open()
            self._transport = transport
            # Start looking for the device, after the transport was opened.
            self._asks_open = 0
            self._announcements.reset()
            if self._is_assumed:
                self._arrive()
            self._look()
            return await self._lost
        except ImportError as missing:
            return f"it needs the library {missing.name}: install the extra interlock[devices]"
        except (TransportFailed, Unobtainable, StoreError) as failed:  # the last two: a secret cannot be read
            return str(failed)
        finally:
            self._transport = None
            if self._tick is not None:
                self._tick.cancel()
            if transport is not None:
                self._discarded_before.update(transport.discarded)
                await transport.close()

    # Presence

    def _look(self) -> None:
        """Poll the device and schedule the next poll. Declare the device absent if it has been silent for too long."""
        loop = asyncio.get_running_loop()
        is_polled = self._presence == "poll"
        period_s = self._interval_s if self._asks_registration else self._interval_s / 2  # AX-B.3-1
        if not self.is_present and self._asks_registration:
            period_s = min(period_s, ASK_S)
        self._tick = loop.call_later(period_s, self._look)
        now, silent_s = self._clock.now(), INTERVALS_MAX * self._interval_s
        if self._presence in ("cts", "gpio"):
            if self._looking is None or self._looking.done():
                self._looking = loop.create_task(self._look_at_signal())
        elif self.is_present and is_polled and not self.requests.is_at_work and now - self.counters.seen > silent_s:
            self._reopen.set()
            self._lose_transport(f"no sign of life for {silent_s:g} s", "heartbeat_timeout")
            return
        if not self.is_present and self._asks_registration:
            self._ask_registration()
        elif not self.is_present and self._is_assumed:
            self._arrive()
        elif is_polled:
            self.requests.ask_for_life(self.description.link.retries if self.is_present else 0)

    async def _look_at_signal(self) -> None:
        transport = self._transport
        is_there = False
        try:
            is_there = transport is not None and await transport.is_signalled()
        except OSError as error:
            log.info("device %s: its line cannot be read: %s", self.segment, error)
        if transport is None or transport is not self._transport:
            return
        if is_there:
            self._arrive()
        else:
            self._leave(f"its {self._presence} line says that it is not there")

    def _ask_registration(self) -> None:
        if (message := self._codec.encode_registration_request()) is not None:
            self._asked = self._clock.now()
            self._asks_open += 1
            self.send(message)

    def _arrive(self) -> None:
        """Declare the device present. If the device does not announce its tools, take them from its description."""
        if self.is_present:
            return
        if not self._asks_registration and not self.tools:
            tools = (device_tool(self.segment, self.description, tool) for tool in self.description.tools)
            self.tools = {named_tool.tool.name: named_tool for named_tool in tools}
        self.is_present, self.reason = True, None
        self.requests.note_life()
        self._settled.set()
        self._owner.on_present()
        self.requests.send_held(self.tools)

    def _leave(self, reason: str, loss: LossReason = "connection_lost") -> None:
        """Declare the device absent and end all its requests."""
        was_present, self.is_present = self.is_present, False
        self.reason = reason
        if was_present:
            self.loss = loss
            self.counters.unplugged += 1
        self._settled.set()
        if was_present and loss != "heartbeat_timeout":
            self.requests.end_all(reason)
        else:
            self.requests.hold_unsent(reason, self._interval_s)  # AX-8.N-9
        if was_present:
            self._settled.clear()
        self._owner.on_absent(reason)

    # Calls

    def call(self, tool: DeviceTool, arguments: Mapping[str, Any], on_done: requests.OnDone) -> DeviceRequest | None:
        """Send a call if its arguments are valid. Return its request, or None if the call has failed already and
        `on_done` was called.
        """
        arguments = without_metadata(arguments)
        if (fault := tool.input.find_fault(arguments)) is not None:
            on_done(DeviceFailure("argument_invalid", fault.reason, path=fault.pointer))
            return None
        if not self.is_present:
            on_done(AnswerLost(self.reason or "it is not there", was_sent=False))
            return None
        return self.requests.call(tool, arguments, on_done)

    # The sender for the queue of requests

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def is_reliable(self) -> bool:
        return self._transport is not None and self._transport.is_reliable

    def withdraw(self, message: bytes) -> None:
        if self._transport is not None:
            self._transport.withdraw(message)

    def send(self, message: bytes) -> None:
        if self._transport is not None:
            self.counters.sent += 1
            self.traffic.add(message, is_sent=True)
            self._transport.send(message)

    # Reports of the transport (TransportOwner)

    def on_transport_lost(self, reason: str, rest_s: float = 0.0) -> None:
        self._rest_s = rest_s
        self._lose_transport(reason, "connection_lost")

    def _lose_transport(self, reason: str, loss: LossReason) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)
            self._leave(reason, loss)

    def on_message(self, message: bytes) -> None:
        self.counters.received += 1
        self._verdict = None
        try:
            match self._codec.decode_untrusted(message):
                case DeviceAnswer() as answer:
                    self._on_answer(answer)
                case messages.AnnouncementFrame() as registration:
                    self._on_registration(registration)
                case messages.EventMessage() as event:
                    self._on_notice(event)
                case other:
                    assert_never(other)
        except DeviceFault as fault:
            self._discard(fault.code)
            if isinstance(fault, messages.AnnouncementFault):
                self._note_refused(fault)
        self.traffic.add(message, is_sent=False, verdict=self._verdict)
        self.requests.send_next()

    def _discard(self, reason: str) -> None:
        """Count a received message that is dropped, and note the reason."""
        self._verdict = reason
        self.counters.discarded[reason] += 1

    def _note_life(self) -> None:
        """Remember the time of a valid message, which shows that the device is alive."""
        self.counters.seen, self.counters.seen_wall = self._clock.now(), self._clock.wall()
        self.requests.note_life()

    def _on_answer(self, answer: DeviceAnswer) -> None:
        """Match an answer with its request. An answer that matches no request in flight is discarded."""
        request = self.requests.in_flight.get(answer.request_id)
        if request is None:  # a duplicate, a late answer, or an answer to a request of another gateway
            self._discard("no_request")
            return
        tool = request.tool
        if tool is None:
            # AX-8.N-7: the draft leaves the answer to a heartbeat open, so that its SEQ alone counts.
            self._note_life()
            self.requests.answer(request, Succeeded({}))
            if not self._asks_registration and self._presence == "poll":
                self._arrive()
        elif answer.tool_id is not None and answer.tool_id != tool.tool.id:
            self._discard("wrong_tool")
        elif answer.is_heartbeat:
            self._discard("wrong_type")
        else:
            self._note_life()
            self.requests.answer(request, self._outcome(tool, answer))

    def _outcome(self, tool: DeviceTool, answer: DeviceAnswer) -> requests.CallOutcome:
        """Return the outcome of a call that the device answered: its result, or the failure that the answer reports."""
        if answer.status != 0:
            name = tool.tool.status.get(str(answer.status), answer.name)
            return DeviceFailure("status", "the device refused or failed", status=answer.status, name=name)
        try:
            content = self._codec.result(tool.tool, answer.payload)
            # AX-10.4-3
            if tool.output is not None and (wrong := tool.output.find_fault(content)) is not None:
                return DeviceFailure("response_invalid", wrong.reason, path=wrong.pointer)
            return Succeeded(content)
        except DeviceFault as fault:
            return DeviceFailure("response_invalid", fault.detail, path=fault.path)
        except Exception:  # whatever the answer was, the call has to end
            log.exception("device %s: an answer of %s", self.segment, tool.tool.name)
            return DeviceFailure("response_invalid", "it cannot be read")

    def _on_registration(self, registration: messages.AnnouncementFrame) -> None:
        now = self._clock.now()
        try:
            tools = self._announcements.take(registration, now)
        except AnnouncedTooOften:
            self._discard("too_many_announcements")
            if self.is_present:
                self._leave("it announces other tools too often")
            return
        except DeviceFault as fault:
            self._discard(fault.code)
            self._note_refused(fault)
            if now - self._asked > SETTLE_S:
                self._ask_registration()  # a frame of the announcement was lost
            return
        # AX-8.N-9: an announcement after a heartbeat is the answer to the heartbeat.
        if self.requests.is_heartbeat_open:
            self._asks_open = max(self._asks_open, 1)
        self._note_life()
        if tools is None:  # further frames follow
            return
        former, is_asked = self.tools, self._asks_open > 0
        is_changed = {name: entry.tool for name, entry in tools.items()} != {n: o.tool for n, o in former.items()}
        is_reset = not is_asked and now - self._answered_ask > SETTLE_S and self.requests.has_calls_in_flight
        if is_asked:
            self._asks_open, self._answered_ask = 0, now
        self.missing = self._announcements.missing
        self.tools = tools if is_changed else former
        # The number of a tool may mean another tool now, so no request in flight can be answered (AX-B.3-3).
        if is_changed or is_reset:
            self.requests.end_sent(requests.RESET, tools)
        self.requests.end_heartbeats()
        if not self.is_present:
            self._arrive()
        elif {name: entry.item for name, entry in tools.items()} != {n: o.item for n, o in former.items()}:
            self._owner.on_tools()

    def _note_refused(self, fault: DeviceFault) -> None:
        """Store why an announcement was refused, as the reason why the device is absent. If the device is present, keep
        its previous tools and store nothing.
        """
        if not self.is_present:
            self.reason = f"its announcement was refused: {fault.detail}"

    def _on_notice(self, notice: messages.EventMessage) -> None:
        content = self._codec.notice(notice.event_id, notice.payload)
        name = self._events.get(notice.event_id)
        if content is None or name is None or not self.is_present:
            self._discard("unexpected")
            return
        self._note_life()
        now = self._clock.now()
        if len(self._events_heard) == EVENTS_PER_S and now - self._events_heard[0] < 1.0:
            self._discard("too_many_events")
        else:
            self._events_heard.append(now)
            self._owner.on_event(name, content)
