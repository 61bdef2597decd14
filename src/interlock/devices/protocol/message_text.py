"""Messages of devices as text for people: each message as one line, in the names of the description.

The texts are for operators who watch a device. An answer of Profile B names only the id of its request, so the method
of each request is remembered, message by message. An unreadable message is shown as its bytes.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from interlock.devices.protocol import cbor_codec, frame_codec
from interlock.devices.protocol.cbor_codec import read_untrusted
from interlock.devices.protocol.description import DeviceDescription, ToolDescription
from interlock.devices.protocol.framing import framing_name
from interlock.devices.protocol.layouts import decode_payload
from interlock.devices.protocol.messages import DeviceFault

TEXT_MAX: Final = 200  # characters


@dataclass(eq=False)
class MessageTexts:
    """A formatter that shows each message of one device as a line of text. It must be given all messages, in their
    order.
    """

    _description: DeviceDescription
    _tools: Mapping[int, ToolDescription]
    _asked: dict[Any, Any] = field(default_factory=dict)  # the method of each id

    def text(self, message: bytes) -> str:
        """Return a message as one line of text. An unreadable message is shown as its bytes."""
        link = self._description.link
        try:
            match self._description.profile:
                case "a":
                    text = self._frame_text(message)
                case "b" if framing_name(link, "b") == "frame" and link.transport == "uart_cbor":
                    text = self._cbor_text(frame_codec.split_untrusted(message, len(message))[3])
                case "b":
                    text = self._cbor_text(message)
                case "json":
                    text = message.decode(errors="backslashreplace")
                case _:
                    text = message.hex(" ")
        except DeviceFault as fault:
            text = f"unreadable ({fault.detail}): {message.hex(' ')}"
        return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"

    def _cbor_text(self, message: bytes) -> str:
        members = read_untrusted(message)
        if not isinstance(members, dict):
            raise DeviceFault("malformed", "no CBOR map")
        method, request_id = members.get(cbor_codec.METHOD), members.get(cbor_codec.ID)
        if cbor_codec.METHOD not in members:
            return self._answer_text(members, request_id)
        if isinstance(request_id, int):
            self._asked[request_id] = method
        number, params = f"#{request_id}", members.get(cbor_codec.PARAMS)
        if method == cbor_codec.HEARTBEAT:
            return f"heartbeat {number}"
        if method == cbor_codec.REGISTRATION:
            if not isinstance(params, list):
                return "asks for its tools"
            ids = ", ".join(str(entry.get(0)) for entry in params if isinstance(entry, dict))
            more = ", more follow" if members.get(cbor_codec.MORE) else ""
            return f"announces tools {ids}{more}"
        if not isinstance(method, int):
            raise DeviceFault("malformed", "neither an answer, a registration nor a call")
        if cbor_codec.ID not in members:
            return self._event_text(method, params)
        arguments: Mapping[Any, Any] = params if isinstance(params, dict) else {}
        if method in self._tools:
            with contextlib.suppress(DeviceFault):
                arguments = cbor_codec.named_arguments(self._tools[method], arguments)
        return f"call {self._name(method)} {number} {_pairs(arguments)}".rstrip()

    def _answer_text(self, members: dict[Any, Any], request_id: Any) -> str:
        tool_id = self._asked.get(request_id) if isinstance(request_id, int) else None
        tool = self._tools.get(tool_id) if isinstance(tool_id, int) else None
        if tool_id == cbor_codec.HEARTBEAT:
            return f"heartbeat #{request_id} answered"
        named = f"answer {self._name(tool_id)}" if isinstance(tool_id, int) else "answer"
        if cbor_codec.ERROR in members:
            error = members[cbor_codec.ERROR]
            status_name = tool.status.get(str(error)) if tool is not None else None
            return f"{named} #{request_id} error {error}{f' ({status_name})' if status_name else ''}"
        result = members.get(cbor_codec.RESULT)
        if tool is not None and isinstance(result, dict):
            try:
                result = cbor_codec.CborCodec(self._description).result(tool, result)
            except DeviceFault as fault:
                return f"{named} #{request_id} {_pairs(result)} (not as described: {fault.detail})"
        return f"{named} #{request_id} {_pairs(result) if isinstance(result, dict) else result}".rstrip()

    def _name(self, tool_id: int) -> str:
        return self._tools[tool_id].name if tool_id in self._tools else f"tool {tool_id}"

    def _frame_text(self, message: bytes) -> str:
        kind, tool_id, seq, payload = frame_codec.split_untrusted(message, len(message))
        name, tool = self._name(tool_id), self._tools.get(tool_id)
        match kind:
            case frame_codec.CALL:
                return f"call {name} #{seq} {_values(tool, payload, is_request=True)}".rstrip()
            case frame_codec.RESPONSE if seq == frame_codec.UNASKED:
                return self._event_text(tool_id, payload)
            case frame_codec.RESPONSE if payload:
                is_first = self._description.link.status == "first"
                status, rest = (payload[0], payload[1:]) if is_first else (payload[-1], payload[:-1])
                if status == 0:
                    return f"answer {name} #{seq} {_values(tool, rest, is_request=False)}".rstrip()
                named = tool.status.get(str(status)) if tool is not None else None
                return f"answer {name} #{seq} status {status}{f' ({named})' if named else ''}"
            case frame_codec.HEARTBEAT:
                return f"heartbeat #{seq}"
            case _:
                return f"TYPE {kind} {name} #{seq} {payload.hex(' ')}".rstrip()

    def _event_text(self, event_id: int, payload: Any) -> str:
        event = next((event for event in self._description.events if event.id == event_id), None)
        raw = _pairs(payload) if isinstance(payload, dict) else payload.hex(" ") if isinstance(payload, bytes) else ""
        if event is None:
            return f"event {event_id} {raw}".rstrip()
        try:
            if isinstance(payload, bytes):
                content = decode_payload("struct", event.order, event.response, payload)
            else:
                content = cbor_codec.CborCodec(self._description).notice(event_id, payload) or {}
        except DeviceFault as fault:
            return f"event {event.name} {raw} (not as described: {fault.detail})"
        return f"event {event.name} {_pairs(content)}".rstrip()


def _values(tool: ToolDescription | None, payload: bytes, *, is_request: bool) -> str:
    if tool is None:
        return payload.hex(" ")
    try:
        fields = tool.request if is_request else tool.response
        return _pairs(decode_payload(tool.payload, tool.order, fields, payload))
    except DeviceFault:
        return f"unreadable: {payload.hex(' ')}"


def _pairs(values: Mapping[Any, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
