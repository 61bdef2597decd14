"""A simulated device: the other end of a link, built from the same description.

It takes the messages of a gateway and returns the answers of the device. It remembers the values it was set to: a
response field with the name of an earlier argument has that value, in the scale of the field. Other numbers rise with
each reading, within their limits. Profile A answers in the layouts of its description; Profile B announces the
described tools and speaks CBOR. Tests and `interlock device simulate` use it; it shares the codecs with the gateway, so
it cannot find errors in them. The firmware and its emulated chips do that.
"""

import base64
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from interlock.devices.protocol import cbor_codec, frame_codec, layouts
from interlock.devices.protocol.cbor_codec import encoded, read_untrusted
from interlock.devices.protocol.description import DeviceDescription, Event, Field
from interlock.devices.protocol.device_tools import FIELD_TYPES
from interlock.devices.protocol.framing import framing_name
from interlock.devices.protocol.layouts import decode_payload, encode_payload, sent_value
from interlock.devices.protocol.messages import DeviceFault

BAD_REQUEST: Final = 1  # the status of a call that the device cannot read
ENTRIES_PER_FRAME: Final = 8  # of an announcement
_BYTES: Final = 4  # of a field of bytes that says no size


class SimulatedDevice:
    """A device that is simulated from its description. Messages are passed in and out as bytes, without a
    connection.
    """

    def __init__(self, description: DeviceDescription) -> None:
        """Create a simulated device. Raise ValueError if devices of its profile cannot be simulated."""
        if description.profile not in ("a", "b"):
            raise ValueError(f"a device of profile '{description.profile}' cannot be simulated")
        self._description = description
        self._tools = {tool.id: tool for tool in description.tools}
        self._is_framed = framing_name(description.link, description.profile) == "frame"
        self._set_values: dict[str, Any] = {}
        self._readings = 0
        self.calls = 0

    def boot(self) -> list[bytes]:
        """Return the messages that the device sends when it is switched on."""
        announced = self._announcement() if self._description.profile == "b" else ()
        return [self._framed(frame_codec.REGISTRATION, each) if self._is_framed else each for each in announced]

    def answer(self, message: bytes) -> list[bytes]:
        """Return the answers of the device to a message. An unreadable message gets an error or no answer."""
        try:
            if self._description.profile == "a":
                return list(self._answer_frame(message))
            if self._is_framed:
                kind, _, _, payload = frame_codec.split_untrusted(message, len(message))
                return [self._framed(kind, answer) for answer in self._answer_cbor(payload)]
            return list(self._answer_cbor(message))
        except DeviceFault:
            return []

    def event(self, event: Event) -> bytes:
        """Return the message of an event. Raise DeviceFault if it cannot be encoded."""
        values = self._values(event.response)
        head = bytes((frame_codec.RESPONSE, event.id, frame_codec.UNASKED))
        if self._description.profile == "a":
            return head + encode_payload("struct", event.order, event.response, values)
        message = encoded({cbor_codec.METHOD: event.id, cbor_codec.PARAMS: _positional(event.response, values)})
        return head + message if self._is_framed else message

    # Profile A

    def _answer_frame(self, message: bytes) -> Iterator[bytes]:
        kind, tool_id, seq, payload = frame_codec.split_untrusted(message, len(message))
        if kind == frame_codec.HEARTBEAT:
            yield message
        if kind != frame_codec.CALL:
            return
        head = bytes((frame_codec.RESPONSE, tool_id, seq))
        status, response = BAD_REQUEST, b""
        if (tool := self._tools.get(tool_id)) is not None:
            with contextlib.suppress(DeviceFault):
                self._take(decode_payload(tool.payload, tool.order, tool.request, payload))
                response = encode_payload(tool.payload, tool.order, tool.response, self._values(tool.response))
                status = 0
        is_first = self._description.link.status == "first"
        yield head + (bytes((status,)) + response if is_first else response + bytes((status,)))

    # Profile B

    def _answer_cbor(self, message: bytes) -> Iterator[bytes]:
        members = read_untrusted(message)
        if not isinstance(members, dict):
            return
        method, request_id = members.get(cbor_codec.METHOD), members.get(cbor_codec.ID)
        if method == cbor_codec.REGISTRATION:
            yield from self._announcement()
        elif not isinstance(request_id, int):
            return  # it asks for no answer
        elif method == cbor_codec.HEARTBEAT:
            yield encoded({cbor_codec.ID: request_id, cbor_codec.RESULT: {}})
        elif isinstance(method, int):
            tool, params = self._tools.get(method), members.get(cbor_codec.PARAMS)
            try:
                if tool is None or not isinstance(params, dict):
                    raise DeviceFault("argument_invalid", "no such tool, or no arguments")
                self._take(cbor_codec.named_arguments(tool, params))
                result = _positional(tool.response, self._values(tool.response))
                yield encoded({cbor_codec.ID: request_id, cbor_codec.RESULT: result})
            except DeviceFault:
                yield encoded({cbor_codec.ID: request_id, cbor_codec.ERROR: BAD_REQUEST})

    def _announcement(self) -> Iterator[bytes]:
        entries = []
        for tool in self._description.tools:
            types = [FIELD_TYPES[field.type][0] for field in tool.request]
            entries.append({0: tool.id, 1: types, 2: cbor_codec.MAP, 3: tool.name})
        parts = [entries[at : at + ENTRIES_PER_FRAME] for at in range(0, len(entries), ENTRIES_PER_FRAME)] or [[]]
        for number, part in enumerate(parts):
            members: dict[int, Any] = {cbor_codec.METHOD: cbor_codec.REGISTRATION, cbor_codec.PARAMS: part}
            if len(parts) > 1:
                members |= {cbor_codec.PART: number, cbor_codec.MORE: number < len(parts) - 1}
            yield encoded(members)

    def _framed(self, kind: int, message: bytes) -> bytes:
        members = read_untrusted(message)
        if cbor_codec.METHOD in members:
            return bytes((frame_codec.REGISTRATION, 0, frame_codec.UNASKED)) + message
        is_beat = kind == frame_codec.HEARTBEAT
        return bytes((kind if is_beat else frame_codec.RESPONSE, 0, members[cbor_codec.ID])) + message

    # Values

    def _take(self, arguments: dict[str, Any]) -> None:
        self.calls += 1
        self._set_values |= arguments

    def _values(self, fields: Sequence[Field]) -> dict[str, Any]:
        self._readings += 1
        return {field.name: self._value(field) for field in fields}

    def _value(self, field: Field) -> Any:
        """Return the value of a field: the one that was last written under its name, adjusted to the field's limits, or
        else a simulated reading.
        """
        if field.name in self._set_values:
            try:
                value = _nearest(field, self._set_values[field.name])
                encode_payload("struct", "little", (field,), {field.name: value})
            except DeviceFault:
                pass  # it means something else
            else:
                return value
        return _nearest(field, self._reading(field))

    def _reading(self, field: Field) -> Any:
        if layouts.is_number(field):
            least, greatest = layouts.limits(field)
            low = 0.0 if least is None or least < 0 <= (greatest or 0) else least
            value = low + self._readings * field.scale
            high = value if greatest is None else greatest
            value = low if value > high else value
            return round(value) if layouts.is_whole(field) else value
        match field.type:
            case "bool":
                return self._readings % 2 == 1
            case "enum":
                names = list(field.values)
                return names[self._readings % len(names)]
            case "bytes":
                return base64.b64encode(bytes(_BYTES if field.size is None else field.size)).decode()
            case _:
                return "ready"[: field.size]


def _nearest(field: Field, value: Any) -> Any:
    """Round a number to the nearest value that an integer field can hold. Return any other value unchanged. Raise
    DeviceFault if the number is outside the field's limits.
    """
    if field.type not in layouts.INTEGERS or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return layouts.shown_number(field, round((value - field.offset) / field.scale))


def _positional(fields: Sequence[Field], values: dict[str, Any]) -> dict[int, Any]:
    """Return the values of fields by position, as a device sends them. Raise DeviceFault if a value does not fit its
    field.
    """
    return {position: sent_value(field, values[field.name]) for position, field in enumerate(fields)}
