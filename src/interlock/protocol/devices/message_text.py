"""Messages of devices as text for people: what was said, by which side, in the names of the description."""

from collections.abc import Mapping
from typing import Any, Final

from interlock.protocol.devices import cbor_codec, frame_codec
from interlock.protocol.devices.cbor import read_untrusted
from interlock.protocol.devices.description import DeviceDescription, Tool
from interlock.protocol.devices.layouts import decode_payload
from interlock.protocol.devices.messages import DeviceFault
from interlock.protocol.devices.wire_formats import framing_name

TEXT_MAX: Final = 200  # characters


def message_text(description: DeviceDescription, tools: Mapping[int, Tool], message: bytes) -> str:
    """One line; what cannot be read is told as its bytes."""
    try:
        text = _text(description, tools, message)
    except DeviceFault as fault:
        text = f"unreadable ({fault.detail}): {message.hex(' ')}"
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def _text(description: DeviceDescription, tools: Mapping[int, Tool], message: bytes) -> str:
    match description.profile:
        case "a":
            return _frame_text(description, tools, message)
        case "b" if framing_name(description.link, "b") == "frame" and description.link.transport == "uart_cbor":
            return _cbor_text(tools, frame_codec.split_untrusted(message, len(message))[3])
        case "b":
            return _cbor_text(tools, message)
        case "json":
            return message.decode(errors="backslashreplace")
        case _:
            return message.hex(" ")


def _name(tools: Mapping[int, Tool], tool_id: int) -> str:
    return tools[tool_id].name if tool_id in tools else f"tool {tool_id}"


def _frame_text(description: DeviceDescription, tools: Mapping[int, Tool], message: bytes) -> str:
    kind, tool_id, seq, payload = frame_codec.split_untrusted(message, len(message))
    name, tool = _name(tools, tool_id), tools.get(tool_id)
    match kind:
        case frame_codec.CALL:
            return f"call {name} #{seq} {_values(tool, payload, is_request=True)}".rstrip()
        case frame_codec.RESPONSE if seq == frame_codec.UNASKED:
            return f"event {tool_id} {payload.hex(' ')}".rstrip()
        case frame_codec.RESPONSE if payload:
            is_first = description.link.status == "first"
            status, rest = (payload[0], payload[1:]) if is_first else (payload[-1], payload[:-1])
            if status == 0:
                return f"answer {name} #{seq} {_values(tool, rest, is_request=False)}".rstrip()
            named = tool.status.get(str(status)) if tool is not None else None
            return f"answer {name} #{seq} status {status}{f' ({named})' if named else ''}"
        case frame_codec.HEARTBEAT:
            return f"heartbeat #{seq}"
        case _:
            return f"TYPE {kind} {name} #{seq} {payload.hex(' ')}".rstrip()


def _values(tool: Tool | None, payload: bytes, *, is_request: bool) -> str:
    if tool is None:
        return payload.hex(" ")
    try:
        fields = tool.request if is_request else tool.response
        return _pairs(decode_payload(tool.payload, tool.order, fields, payload))
    except DeviceFault:
        return f"unreadable: {payload.hex(' ')}"


def _pairs(values: Mapping[Any, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _cbor_text(tools: Mapping[int, Tool], message: bytes) -> str:
    members = read_untrusted(message)
    if not isinstance(members, dict):
        raise DeviceFault("malformed", "no CBOR map")
    method, number = members.get(cbor_codec.METHOD), f"#{members.get(cbor_codec.ID)}"
    given = members.get(cbor_codec.PARAMS)
    if method == cbor_codec.HEARTBEAT:
        return f"heartbeat {number}"
    if method == cbor_codec.REGISTRATION:
        if not isinstance(given, list):
            return "asks for its tools"
        ids = ", ".join(str(entry.get(0)) for entry in given if isinstance(entry, dict))
        more = ", more follow" if members.get(cbor_codec.MORE) else ""
        return f"announces tools {ids}{more}"
    if isinstance(method, int):
        said = _pairs(given) if isinstance(given, dict) else ""
        is_call = cbor_codec.ID in members
        return (f"call {_name(tools, method)} {number} {said}" if is_call else f"event {method} {said}").rstrip()
    if cbor_codec.ERROR in members:
        return f"answer {number} error {members[cbor_codec.ERROR]}"
    result = members.get(cbor_codec.RESULT)
    return f"answer {number} {_pairs(result) if isinstance(result, dict) else result}".rstrip()
