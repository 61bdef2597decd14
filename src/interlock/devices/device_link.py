"""The link to a device: an admitted call becomes one device message, and its answer one result (MCP-AX 8.2).

Theory of operation. A `DeviceLink` stands beside the links to MCP servers in the namespace, so calls of devices pass
the same catalog, guard and audit. The device gets the number of a tool and its arguments, nothing else. No MCP message
is written or read on the way: the session encodes the arguments for the wire of the device, and this link turns the
outcome into a result of MCP.

- Success: the content of the answer, as text and as `structuredContent`.
- The device failed, or its answer is not what its tool declares: a result with `isError`, and a word for the failure in
  `_meta["x-mcpax-device"]`.
- No answer: an error of the link, whose `outcome` says whether the device may have acted.

A result is handed over in a later turn of the event loop than the call, because the session may know the outcome while
the call is still being sent.

`DeviceKeeper` keeps the link. Other keepers launch or dial a server and try again after a loss; here the session does
that all the time, so the keeper only waits for its reports. `find_frames` shows operators the recorded messages.
"""

import asyncio
import logging
from collections.abc import Set
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.capability import TIMEOUT_S, LatencyClass
from interlock.ax.protocol.hop_metadata import Offer
from interlock.config.plan import DevicePlan
from interlock.core.calls.call import AccessList, Call, Outcome, Pending
from interlock.core.calls.check import BUSY, Admitted
from interlock.core.clock import Clock, rfc3339
from interlock.core.feed import Feed
from interlock.core.link_state import LinkState
from interlock.devices.protocol.description_check import is_checked
from interlock.devices.protocol.device_tools import transport_class
from interlock.devices.protocol.message_text import MessageTexts
from interlock.devices.requests import AnswerLost, Busy, CallOutcome, DeviceFailure, DeviceRequest, Succeeded
from interlock.devices.session import DeviceSession
from interlock.devices.transports.transport import SharedConnections
from interlock.gate.protocol.reserved_claims import without_claims
from interlock.links.api import Frame, Frames
from interlock.links.connector import ConnectFailed, ConnectorParts
from interlock.links.keeper import Keeper, StockCatalog
from interlock.links.link import Link, LinkEvents, ServerFacts
from interlock.links.listing import Items, ListFailed, read_definitions
from interlock.links.server_messages import LostRefusal, lost_refusal
from interlock.mcp.methods import LEGACY_VERSIONS, TOOLS_CALL, TOOLS_LIST, Era
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_value, encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, METHOD_NOT_FOUND, Refusal

DEVICE: Final = "x-mcpax-device"
STANDARD_S: Final = TIMEOUT_S[LatencyClass.STANDARD] or 0.0  # of a tool without a latency class


class DeviceCall(Call):
    """A call to a device. Metadata in its result is trusted, because this node writes it; only the content comes from
    the device.
    """

    def _without_claims(self, result: bytes) -> bytes:
        return without_claims(result, is_aggregator=True)


class DeviceLink(Link):
    """A link to one device. It passes calls to the session of the device, and keeps them until they are answered."""

    gone = "device_absent"

    def __init__(
        self, plan: DevicePlan, events: LinkEvents, clock: Clock, session: DeviceSession, members: AccessList | None
    ) -> None:
        link, offer = plan.description.link, Offer(kind="leaf", transport=transport_class(plan.description))
        super().__init__(plan.segment, events, clock, kind="device", transport=link.transport, offer=offer)
        self.device = session
        self._calls: dict[Call, DeviceRequest | None] = {}  # under way; None: the request ended, the call not yet
        self.members = members
        # Time for all attempts of a call.
        self.timeout_s = max(STANDARD_S, (1 + link.retries) * link.timeout_ms / 1000)
        self.retry_after_ms = link.heartbeat_ms
        self.fault = plan.fault
        self.is_checked = link.allow_unchecked or is_checked(plan.description)

    @property
    def is_connected(self) -> bool:
        return self.device.is_present

    def greeted(self, facts: ServerFacts) -> None:
        super().greeted(facts)
        self.call_type = DeviceCall

    def arrive(self) -> None:
        """Set the version, name and capabilities that clients see, from the description. Called when the device has
        become present.
        """
        capabilities = {"tools": Raw(b'{"listChanged":true}')}
        if self.device.description.events:
            capabilities["logging"] = Raw(b"{}")
        version, name = LEGACY_VERSIONS[-1], self.segment
        self.greeted(ServerFacts(era=Era.LEGACY, version=version, name=name, capabilities=capabilities, greeted=False))

    @property
    def active_principals(self) -> Set[str]:
        return {call.caller.principal.name for call in self._calls}

    def send(self, admitted: Admitted[Call]) -> None:
        """Pass the call to the session, which encodes it for the device."""
        call = admitted.command
        call.ticket = admitted
        call.link = self
        self.calls += 1
        self._calls[call] = None
        tool = self.device.tools.get(find_string(call.params.get("name")) or "")
        try:
            arguments = decode_value(call.params["arguments"]) if "arguments" in call.params else {}
        except CodecError:
            arguments = None
        if call.method != TOOLS_CALL:
            self._finish_later(call, Refusal(METHOD_NOT_FOUND, "a device has only tools"))
        elif tool is None:
            self._finish_later(call, Refusal(INVALID_PARAMS, "no such tool"))
        elif not isinstance(arguments, dict):
            self._finish_later(call, Refusal(INVALID_PARAMS, "arguments must be an object"))
        else:
            self._calls[call] = self.device.call(tool, arguments, partial(self._finish_later, call))

    def cancel(self, pending: Pending, reason: str) -> None:
        request = self._calls.pop(pending, None) if isinstance(pending, Call) else None
        if request is not None:
            self.device.requests.abandon(request)

    def fail_all(self, reason: str) -> None:
        """End all calls as lost, because the device is gone. Calls that were not sent, and wait for the device to
        return, stay.
        """
        calls, requests = self._calls, self.device.requests
        self._calls = {call: each for call, each in calls.items() if each is not None and requests.is_unsent(each)}
        for call in [call for call in calls if call not in self._calls]:
            call.on_failed(self._build_refusal(reason, "unknown"), Outcome.LOST)

    def _finish_later(self, call: Call, outcome: CallOutcome | Refusal) -> None:
        """End a call in a later turn of the event loop, because its outcome may be known while the call is still being
        sent.
        """
        asyncio.get_running_loop().call_soon(self._finish, call, outcome)

    def _finish(self, call: Call, outcome: CallOutcome | Refusal) -> None:
        if call not in self._calls:
            return
        del self._calls[call]
        match outcome:
            case Refusal():
                call.on_response(Response(b"0", codec.ABSENT, Raw(codec.error_body(outcome))), self.era)
            case Succeeded() | DeviceFailure():
                call.on_response(Response(b"0", Raw(encode_value(_build_result(outcome))), codec.ABSENT), self.era)
            case AnswerLost(detail=detail, was_sent=was_sent):
                call.on_failed(self._build_refusal(detail, "unknown" if was_sent else "not_sent"), Outcome.LOST)
            case Busy():
                call.on_failed(BUSY, Outcome.REFUSED)

    def _build_refusal(self, detail: str, outcome: str) -> LostRefusal:
        wall, retry_after_ms = self._clock.wall(), self.retry_after_ms
        return lost_refusal(detail, outcome, wall=wall, retry_after_ms=retry_after_ms, reason=self.gone)


def _build_result(outcome: Succeeded | DeviceFailure) -> dict[str, Any]:
    """Return the MCP result of a call: the content of the device's answer, or an error result that names the
    failure.
    """
    if isinstance(outcome, Succeeded):
        try:
            content = encode_value(outcome.content)
            return {"content": [{"type": "text", "text": content.decode()}], "structuredContent": Raw(content)}
        except (OverflowError, ValueError):  # an integer beyond 64 bits, or no Unicode text
            outcome = DeviceFailure("response_invalid", "no JSON")
    details: dict[str, Any] = {"fault": outcome.fault}
    match outcome.fault:
        case "status":
            named = f" ({outcome.name})" if outcome.name else ""
            text = f"The device answered with status {outcome.status}{named}."
            details["status"] = outcome.status
            if outcome.name:
                details["name"] = outcome.name
        case "response_invalid":
            text = "The device's answer is not what its tool declares, and is not shown."
        case _:
            text = f"{outcome.path or 'the arguments'}: {outcome.detail}. Nothing was sent to the device."
    if outcome.path:
        details["path"] = outcome.path
    return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": {DEVICE: details}}


log = logging.getLogger("interlock.devices")

PRESENT_S: Final = 3.0  # for the first sign of life, before the device is reported absent
LOOK_AGAIN_S: Final = 30.0  # the session wakes the keeper sooner; this only ends the grace of its tools


class DeviceKeeper(Keeper):
    """The keeper of a device's link. The link is usable while the device is present, and degraded otherwise."""

    link: DeviceLink
    reads = (TOOLS_LIST,)
    is_reread = False

    def __init__(
        self,
        plan: DevicePlan,
        connector_parts: ConnectorParts,
        connections: SharedConnections,
        stock: StockCatalog,
        events: LinkEvents,
        members: AccessList | None = None,
    ) -> None:
        self.standings = Feed[Link]()  # the link, whenever its state has changed
        self.losses = Feed[DeviceLink]()  # the link, when a device that was present has become absent
        clock, revealer = connector_parts.clock, connector_parts.revealer.of_link(plan.segment)
        self.session = DeviceSession(plan.segment, plan.description, clock, self, connections, revealer)
        super().__init__(lambda keeper: DeviceLink(plan, keeper, clock, self.session, members), clock, stock, events)

    @property
    def may_return_soon(self) -> bool:
        return False

    def start(self) -> None:
        if self.link.fault is None:
            self.session.open()
        super().start()

    async def stop(self) -> None:
        await super().stop()
        await self.session.close()

    async def restart(self) -> None:
        """Close the transport of the device and open it again."""
        if self.link.fault is None:
            self.session.reopen()

    async def _open_connection(self, start: AsyncExitStack) -> None:
        """Wait until the device is present. Raise ConnectFailed if it is not. The session has opened the transport
        already.
        """
        if self.link.fault is not None:
            raise ConnectFailed(self.link.fault)
        if not await self.session.present_within(PRESENT_S):
            raise ConnectFailed(self.session.reason or "it does not answer")
        self.link.arrive()

    async def _close_connection(self, reason: str) -> None:
        self.link.fail_all(reason)

    async def _read(self, method: str) -> tuple[Items | None, ListFailed | None]:
        """Return the tools that the session knows already, without asking the device."""
        previous = self.listing.tools if self.listing is not None else None
        return read_definitions(method, (tool.item for tool in self.session.tools.values()), previous), None

    def _backoff_s(self) -> float:
        return LOOK_AGAIN_S

    def _set_lost_state(self, reason: str, wait_s: float, *, unauthorised: bool) -> None:
        """Set the state of the link after the device was lost. Report the loss only once, although the session keeps
        looking for the device.
        """
        state = LinkState.FAILED if self.listing is None else LinkState.DEGRADED
        is_news = self.link.standing.state is not state
        if is_news:
            log.warning("device %s: %s", self.link.segment, reason)
        self.link.set_state(state, reason)
        if is_news and state is LinkState.DEGRADED:
            self.losses.publish(self.link)

    def on_standing(self, link: Link) -> None:
        super().on_standing(link)
        self.standings.publish(self.link)

    # What the session reports

    def on_present(self) -> None:
        self._wake.set()

    def on_absent(self, reason: str) -> None:
        if self._usable.is_set():
            self.lose(reason)

    def on_tools(self) -> None:
        if self._usable.is_set():
            self.announce("tools")

    def on_event(self, name: str, content: dict[str, Any]) -> None:
        message = {"level": "info", "logger": self.link.segment, "data": {**content, "event": name}}
        self._events.on_log(self.link, Raw(encode_value(message)))


EARLIER: Final = 32  # messages among which the request of an answer is looked for


def find_frames(link: Link, after: int) -> Frames | None:
    """Return the recorded messages of a device whose numbers are above `after`, or None if the link does not lead to a
    device.
    """
    if not isinstance(link, DeviceLink):
        return None
    session = link.device
    texts = MessageTexts(session.description, {tool.tool.id: tool.tool for tool in session.tools.values()})
    frames = []
    for seen in session.traffic.since(after - EARLIER):
        at, text, shown = rfc3339(seen.wall), texts.text(seen.data), seen.data.hex(" ")
        frame = Frame(number=seen.number, at=at, is_sent=seen.is_sent, hex=shown, text=text, discarded=seen.verdict)
        frames += [frame] if seen.number > after else []
    return Frames(segment=link.segment, last=session.traffic.last, frames=tuple(frames))
