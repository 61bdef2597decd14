"""Messages of a device on MQTT (AX-8.1-6): plain JSON-RPC with the device's own tool names.

A call is `tools/call`. Its result is the structured content itself, or MCP's result with `structuredContent`. A
heartbeat is `ping`. An event is a notification whose method is the event's name, and its params are checked against the
description. Messages, nesting and ids are limited: anybody who may publish on the broker can write to the topic.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from interlock.devices.protocol import messages
from interlock.devices.protocol.description import DeviceDescription, ToolDescription
from interlock.devices.protocol.device_tools import object_schema
from interlock.devices.protocol.messages import Codec, DeviceAnswer, DeviceFault, EventMessage, without_metadata
from interlock.wire.schemas.validators import compile_schema

ONLINE: Final = b"online"
OFFLINE: Final = b"offline"  # also the device's last will

LINK_MAX: Final = 128
_FORBIDDEN: Final = frozenset("+#/\0")


class Topics(NamedTuple):
    """The three MQTT topics of one device."""

    down: str  # gateway to device
    up: str
    status: str  # retained: online or offline


def topics_of(link: str) -> Topics:
    """Return the MQTT topics of a device (AX-8.1-6). Raise ValueError if its name is not a single topic level."""
    if not 0 < len(link) <= LINK_MAX or _FORBIDDEN & set(link) or not link.isprintable():
        raise ValueError(f"{link[:LINK_MAX]!r} cannot be one level of an MQTT topic")
    return Topics(f"mcpax/{link}/down", f"mcpax/{link}/up", f"mcpax/{link}/status")


def is_online(payload: bytes) -> bool | None:
    """Return whether a status message says that the device is online, or None if it says neither online nor offline."""
    return {ONLINE: True, OFFLINE: False}.get(payload.strip().lower()) if len(payload) <= len(OFFLINE) + 2 else None


MESSAGE_BYTES_MAX: Final = 65536
DEPTH_MAX: Final = 16
ID_MAX: Final = 2**31 - 1
STATUS_MAX: Final = 2**31


class JsonCodec(Codec):
    """The codec of devices on MQTT, which is JSON-RPC."""

    id_max = ID_MAX

    def __init__(self, description: DeviceDescription) -> None:
        self._allows_values = description.link.allow_values
        events = description.events
        self._events = {event.name: event.id for event in events}
        self._schemas = {each.id: compile_schema(object_schema(each.response)) for each in events if each.response}

    def encode_call(self, request_id: int, tool: ToolDescription, arguments: Mapping[str, Any]) -> bytes:
        params = {"name": tool.name, "arguments": without_metadata(arguments)}
        return _encoded({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})

    def encode_heartbeat(self, request_id: int) -> bytes:
        return _encoded({"jsonrpc": "2.0", "id": request_id, "method": "ping"})

    def decode_untrusted(self, message: bytes) -> messages.Received:
        if len(message) > MESSAGE_BYTES_MAX:
            raise DeviceFault("too_large", f"a message of {len(message)} bytes; {MESSAGE_BYTES_MAX} at most")
        try:
            members = msgspec.json.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise DeviceFault("malformed", "no JSON") from None
        if not isinstance(members, dict) or members.get("jsonrpc") != "2.0":
            raise DeviceFault("malformed", "no JSON-RPC")
        _check_depth(members, 0)
        if "method" not in members:
            request_id = members.get("id")
            if isinstance(request_id, bool) or not isinstance(request_id, int) or not 1 <= request_id <= ID_MAX:
                raise DeviceFault("malformed", "an answer without an id")
            if ("result" in members) == ("error" in members):
                raise DeviceFault("malformed", "an answer needs either a result or an error")
            if "result" in members:
                result = members["result"]
                # A result with isError has the status 1.
                status = int(isinstance(result, dict) and result.get("isError") is True)
                return DeviceAnswer(request_id=request_id, payload=result, status=status)
            code = members["error"].get("code") if isinstance(members["error"], dict) else None
            if isinstance(code, bool) or not isinstance(code, int) or code == 0 or abs(code) > STATUS_MAX:
                raise DeviceFault("malformed", "an error without a number")
            return DeviceAnswer(request_id=request_id, status=code)
        method = members["method"]
        if "id" in members:
            raise DeviceFault("unexpected", "a request from a device")
        if not isinstance(method, str) or method not in self._events:
            raise DeviceFault("unexpected", "an event that is not described")
        return EventMessage(event_id=self._events[method], payload=members.get("params", {}))

    def result(self, tool: ToolDescription, payload: Any) -> dict[str, Any]:
        if isinstance(payload, dict):
            content = payload.get("structuredContent", payload)
            if isinstance(content, dict):
                return content
        if not self._allows_values:
            raise DeviceFault("response_invalid", "no object")
        return {"value": payload}

    def notice(self, event_id: int, payload: Any) -> dict[str, Any] | None:
        if event_id not in self._events.values():
            return None
        if not isinstance(payload, dict):
            raise DeviceFault("response_invalid", "no object")
        schema = self._schemas.get(event_id)
        if schema is not None and (wrong := schema.find_fault(payload)) is not None:
            raise DeviceFault("response_invalid", wrong.reason, wrong.pointer)
        return payload


def _encoded(members: dict[str, Any]) -> bytes:
    try:
        message = msgspec.json.encode(members)
    except (UnicodeEncodeError, RecursionError, OverflowError):
        detail = "not Unicode text, nested too deeply, or an integer of more than 64 bits"
        raise DeviceFault("argument_invalid", detail) from None
    if len(message) > MESSAGE_BYTES_MAX:
        raise DeviceFault("too_large", f"a call of {len(message)} bytes; {MESSAGE_BYTES_MAX} at most")
    return message


def _check_depth(value: Any, depth: int) -> None:
    """Raise DeviceFault if a JSON value is nested too deeply."""
    if isinstance(value, dict | list):
        if depth == DEPTH_MAX:
            raise DeviceFault("malformed", f"nested deeper than {DEPTH_MAX}")
        for member in value.values() if isinstance(value, dict) else value:
            _check_depth(member, depth + 1)
