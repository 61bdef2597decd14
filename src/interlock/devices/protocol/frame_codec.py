"""Messages of Profile A (AX-B.1-5, AX-B.1-8): TYPE, TOOL_ID, SEQ, PAYLOAD.

The description gives the layouts of payloads. A response has a status byte, at its end or at its beginning; 0 means
success. SEQ repeats that of the call, and is 0 in an event, which no call asked for.

`FramedCborCodec` is for a device of Profile B that uses the same frame: its PAYLOAD is the CBOR message, and TYPE,
TOOL_ID and SEQ repeat members of that message. If they differ, the message is dropped.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.devices.protocol import messages
from interlock.devices.protocol.cbor_codec import CborCodec
from interlock.devices.protocol.description import DeviceDescription, ToolDescription
from interlock.devices.protocol.layouts import decode_payload, encode_payload
from interlock.devices.protocol.messages import Codec, DeviceAnswer, DeviceFault, EventMessage, without_metadata

CALL: Final = 0x01
RESPONSE: Final = 0x02
REGISTRATION: Final = 0x03
HEARTBEAT: Final = 0x04

HEAD_BYTES: Final = 3
STATUS_BYTES: Final = 1  # of a response
SEQ_MAX: Final = 255
ONE_BYTE_LEN_MAX: Final = 255  # bytes of a message where len = 1
UNASKED: Final = 0  # the SEQ of events


class FrameCodec(Codec):
    """The codec of Profile A: a message is a type, a tool id, a sequence number and a payload. The sequence number is
    the request id.
    """

    id_max = SEQ_MAX

    def __init__(self, description: DeviceDescription) -> None:
        self._max_bytes = message_max(description)
        self._is_status_first = description.link.status == "first"
        self._events = {event.id: event for event in description.events}

    def encode_call(self, request_id: int, tool: ToolDescription, arguments: Mapping[str, Any]) -> bytes:
        payload = encode_payload(tool.payload, tool.order, tool.request, without_metadata(arguments))
        message = bytes((CALL, tool.id, request_id)) + payload
        messages.check_size("call", message, self._max_bytes)
        return message

    def encode_heartbeat(self, request_id: int) -> bytes:
        return bytes((HEARTBEAT, 0, request_id))

    def decode_untrusted(self, message: bytes) -> messages.Received:
        kind, tool_id, seq, payload = split_untrusted(message, self._max_bytes)
        if kind == HEARTBEAT:
            # AX-8.N-7: the draft leaves open what else an answer to a heartbeat contains, such as a status byte.
            if seq == UNASKED:
                raise DeviceFault("malformed", "a heartbeat without a SEQ")
            return DeviceAnswer(request_id=seq, is_heartbeat=True)
        if kind != RESPONSE:
            raise DeviceFault("unexpected", f"TYPE {kind} from a device of Profile A")
        if seq == UNASKED:
            if tool_id not in self._events:
                raise DeviceFault("unexpected", f"an event {tool_id} that is not described")
            return EventMessage(event_id=tool_id, payload=payload)
        if not payload:
            raise DeviceFault("malformed", "a response without its status byte")
        # AX-B.1-8
        status, payload = (payload[0], payload[1:]) if self._is_status_first else (payload[-1], payload[:-1])
        return DeviceAnswer(request_id=seq, tool_id=tool_id, payload=payload, status=status, is_heartbeat=False)

    def result(self, tool: ToolDescription, payload: Any) -> dict[str, Any]:
        return decode_payload(tool.payload, tool.order, tool.response, payload)

    def notice(self, event_id: int, payload: Any) -> dict[str, Any] | None:
        event = self._events.get(event_id)
        return None if event is None else decode_payload("struct", event.order, event.response, payload)


class FramedCborCodec(CborCodec):
    """The codec of Profile B for links with the frames of Profile A: the payload of each frame is a CBOR message."""

    def __init__(self, description: DeviceDescription) -> None:
        super().__init__(description, max_bytes=message_max(description) - HEAD_BYTES)

    def encode_call(self, request_id: int, tool: ToolDescription, arguments: Mapping[str, Any]) -> bytes:
        return bytes((CALL, tool.id, request_id)) + super().encode_call(request_id, tool, arguments)

    def encode_heartbeat(self, request_id: int) -> bytes:
        return bytes((HEARTBEAT, 0, request_id)) + super().encode_heartbeat(request_id)

    def encode_registration_request(self) -> bytes:
        return bytes((REGISTRATION, 0, UNASKED)) + super().encode_registration_request()

    def decode_untrusted(self, message: bytes) -> messages.Received:
        kind, tool_id, seq, payload = split_untrusted(message, self._max_bytes + HEAD_BYTES)
        if kind not in (RESPONSE, REGISTRATION, HEARTBEAT):
            raise DeviceFault("unexpected", f"TYPE {kind} from a device")
        received = super().decode_untrusted(payload)
        match received:
            case messages.AnnouncementFrame():
                agrees = kind == REGISTRATION
            case EventMessage(event_id=event_id):
                agrees = kind == RESPONSE and seq == UNASKED and tool_id == event_id
            case DeviceAnswer(request_id=request_id):
                agrees = kind != REGISTRATION and seq == request_id
        if not agrees:
            raise DeviceFault("malformed", "TYPE, TOOL_ID or SEQ differ from the CBOR message")
        if isinstance(received, DeviceAnswer) and kind == HEARTBEAT:
            return msgspec.structs.replace(received, is_heartbeat=True)
        return received


def message_max(description: DeviceDescription) -> int:
    """Return the size of the largest message that the link can carry, in bytes."""
    link = description.link
    return min(link.max_frame, ONE_BYTE_LEN_MAX) if link.len == 1 else link.max_frame


def split_untrusted(message: bytes, max_bytes: int) -> tuple[int, int, int, bytes]:
    """Split a message into TYPE, TOOL_ID, SEQ and PAYLOAD. Raise DeviceFault if it is malformed or too_large."""
    messages.check_size("message", message, max_bytes)
    if len(message) < HEAD_BYTES:
        raise DeviceFault("malformed", "a message without TYPE, TOOL_ID and SEQ")
    return message[0], message[1], message[2], message[HEAD_BYTES:]
