"""The link to a device: MCP messages answered here, calls carried to its session (MCP-AX 8.2).

The device hears the number of a tool and its arguments, nothing else. What it answers becomes a result of MCP: the
content, or `isError` with the word for what went wrong in `_meta["x-mcpax-device"]`. What could not be answered at all
is the link's own error, which says whether the device may have acted.
"""

import asyncio
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.capability import TIMEOUT_S, LatencyClass
from interlock.ax.protocol.hop_metadata import Offer
from interlock.config.plan import DevicePlan
from interlock.core.calls.call import Call, Members, Pending
from interlock.core.clock import Clock
from interlock.devices.device_tools import transport_class
from interlock.devices.outcomes import Busy, CallOutcome, Failed, Lost, Succeeded
from interlock.devices.protocol.description_check import is_checked
from interlock.devices.requests import Request
from interlock.devices.session import DeviceSession
from interlock.gate.protocol.reserved_claims import without_claims
from interlock.links.connected_link import ConnectedLink
from interlock.links.link import ServerFacts
from interlock.links.link_events import LinkEvents
from interlock.links.pipes import Trouble, Undelivered
from interlock.mcp import methods
from interlock.mcp.eras import LEGACY_VERSIONS, Era
from interlock.wire.jsonrpc.codec import (
    decode_object,
    decode_untrusted,
    decode_value,
    encode_error,
    encode_result,
    encode_value,
    maybe_string,
)
from interlock.wire.jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, CodecError, Fault, error_body
from interlock.wire.jsonrpc.messages import Request as McpRequest

DEVICE: Final = "x-mcpax-device"
STANDARD_S: Final = TIMEOUT_S[LatencyClass.STANDARD] or 0.0  # of a tool without a latency class


class DeviceCall(Call):
    """A call whose result's metadata is this node's own; its content is the device's."""

    def _without_claims(self, result: bytes) -> bytes:
        return without_claims(result, is_aggregator=True)


class DeviceLink(ConnectedLink):
    gone = "device_absent"

    def __init__(
        self, plan: DevicePlan, events: LinkEvents, clock: Clock, session: DeviceSession, members: Members | None
    ) -> None:
        super().__init__(
            plan.segment,
            events,
            clock,
            kind="device",
            transport=plan.description.link.transport,
            vendor_meta=False,
            offer=Offer(kind="leaf", transport=transport_class(plan.description)),
        )
        self.device = session
        self.members = members
        link = plan.description.link
        self.timeout_s = max(STANDARD_S, (1 + link.retries) * link.timeout_ms / 1000)  # all of its attempts
        self.retry_after_ms = plan.description.link.heartbeat_ms
        self.fault = plan.fault
        self.is_checked = plan.description.link.allow_unchecked or is_checked(plan.description)

    def greeted(self, facts: ServerFacts) -> None:
        super().greeted(facts)
        self.call_type = DeviceCall

    def arrive(self) -> None:
        """The device is there."""
        self.pipe = DevicePipe(self, self.device)
        capabilities = {"tools": Raw(b'{"listChanged":true}')}
        if self.device.description.events:
            capabilities["logging"] = Raw(b"{}")
        version = LEGACY_VERSIONS[-1]
        self.greeted(
            ServerFacts(era=Era.LEGACY, version=version, name=self.segment, capabilities=capabilities, greeted=False)
        )


class DevicePipe:
    def __init__(self, owner: ConnectedLink, session: DeviceSession) -> None:
        self._owner = owner
        self._session = session

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        """The handle of a call is its request."""
        try:
            request = decode_untrusted(message)
        except CodecError:
            return None
        if not isinstance(request, McpRequest):
            return None  # a device hears no notifications
        match request.method:
            case methods.TOOLS_CALL if origin is not None:
                return self._call(request, origin)
            case methods.TOOLS_LIST:
                items = b",".join(tool.item for tool in self._session.tools.values())
                self._answer(request, origin, b'{"tools":[%b]}' % items)
            case methods.PING | methods.SET_LEVEL:  # its events have one level
                self._answer(request, origin, b"{}")
            case _:
                self._refuse(request, origin, Fault(METHOD_NOT_FOUND, "a device has tools alone"))
        return None

    def _call(self, request: McpRequest, origin: Pending) -> Request | None:
        params = decode_object(request.params) or {}
        tool = self._session.tools.get(maybe_string(params.get("name")) or "")
        try:
            arguments = decode_value(params["arguments"]) if "arguments" in params else {}
        except CodecError:
            arguments = None
        if tool is None or not isinstance(arguments, dict):
            what = "no such tool" if tool is None else "arguments must be an object"
            self._refuse(request, origin, Fault(INVALID_PARAMS, what))
            return None

        def finish(outcome: CallOutcome) -> None:
            self._finish(request, origin, outcome)

        return self._session.call(tool, arguments, finish)

    def _finish(self, request: McpRequest, origin: Pending, outcome: CallOutcome) -> None:
        match outcome:
            case Succeeded(content=content):
                try:
                    text = encode_value(content)
                except (OverflowError, ValueError):  # an integer beyond 64 bits, or no Unicode text
                    self._finish(request, origin, Failed("response_invalid", "no JSON"))
                    return
                result: dict[str, Any] = {
                    "content": [{"type": "text", "text": text.decode()}],
                    "structuredContent": Raw(text),
                }
                self._answer(request, origin, encode_value(result))
            case Failed():
                self._answer(request, origin, encode_value(_failure(outcome)))
            case Lost(detail=detail, was_sent=was_sent):
                trouble = Trouble.LOST if was_sent else Trouble.UNREACHABLE
                self._later(self._owner.on_undelivered, origin, Undelivered(trouble, detail))
            case Busy():
                self._later(self._owner.on_undelivered, origin, Undelivered(Trouble.BUSY, "too many calls wait"))

    def _answer(self, request: McpRequest, origin: Pending | None, result: bytes) -> None:
        self._later(self._owner.on_message, encode_result(request.id, result), origin)

    def _refuse(self, request: McpRequest, origin: Pending | None, fault: Fault) -> None:
        self._later(self._owner.on_message, encode_error(request.id, error_body(fault)), origin)

    def _later(self, tell: Any, *said: Any) -> None:
        """Never while it is being sent: what waits is not set up until then."""
        asyncio.get_running_loop().call_soon(tell, *said)

    def abort(self, handle: object) -> bool:
        if not isinstance(handle, Request):
            return False
        self._session.abandon(handle)
        return True

    def throttle(self, seconds: float) -> None:
        """The transport paces what it reads."""

    async def close(self) -> None:
        """The session lives on, to find the device when it returns."""


def _failure(failed: Failed) -> dict[str, Any]:
    said: dict[str, Any] = {"fault": failed.fault}
    match failed.fault:
        case "status":
            named = f" ({failed.name})" if failed.name else ""
            text = f"The device answered with status {failed.status}{named}."
            said["status"] = failed.status
            if failed.name:
                said["name"] = failed.name
        case "response_invalid":
            text = "The device's answer is not what its tool declares, and is not shown."
        case _:
            place = failed.path or "the arguments"
            text = f"{place}: {failed.detail}. Nothing was sent to the device."
    if failed.path:
        said["path"] = failed.path
    return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": {DEVICE: said}}
