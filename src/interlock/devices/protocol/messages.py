"""The messages between a device and its gateway, as values.

A codec turns these values into the bytes of one message and back:

    FrameCodec       Profile A
    CborCodec        Profile B
    FramedCborCodec  Profile B in the frames of Profile A
    JsonCodec        devices on MQTT
    ModbusCodec      Modbus

Framing and transports carry messages as bytes and do not look into them; the session sees only values. Everything that
MCP-AX adds to arguments, and `_meta`, is removed before a message is encoded (AX-8.2-5).
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from interlock.devices.protocol.description import DeviceDescription, ToolDescription


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of a device to a call or a heartbeat. `payload` is only decoded as far as possible without the
    description of the tool.
    """

    request_id: int
    tool_id: int | None = None  # where the message names it
    payload: Any = None
    status: int = 0  # other than 0: it failed
    name: str | None = None  # of that status, where the protocol itself has one
    is_heartbeat: bool | None = None  # None: the message does not tell it from the answer to a call


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the device itself announces it: its id, the CBOR types of its arguments and result, and its name if it
    has one.
    """

    id: int
    arg_types: tuple[int, ...]
    ret_type: int
    name: str | None = None


class AnnouncementFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of an announcement, in which a self-describing device lists tools (AX-B.2-5)."""

    tools: tuple[Announced, ...]
    more: bool = False  # further frames of the same announcement follow
    part: int = 0


class EventMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a device sends without a request, under the id of an event."""

    event_id: int
    payload: Any = None


Received = DeviceAnswer | AnnouncementFrame | EventMessage


FaultCode = Literal["malformed", "too_large", "unexpected", "response_invalid", "argument_invalid"]


class DeviceFault(Exception):
    """Error for an invalid message from a device, or for a message that cannot be sent to the device. `code` is the
    kind of fault, and `path` names the argument or member.
    """

    def __init__(self, code: FaultCode, detail: str, path: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail, self.path = code, detail, path


def check_names(arguments: Iterable[str], names: Container[str]) -> None:
    """Raise DeviceFault if an argument has a name that is not among the argument names of the tool."""
    for name in arguments:
        if name not in names:
            raise DeviceFault("argument_invalid", f"there is no argument {name[:64]!r}", name[:64])


def check_size(kind: Literal["call", "message"], message: bytes, limit: int) -> None:
    """Raise DeviceFault if a message has more bytes than the link can carry."""
    if len(message) > limit:
        raise DeviceFault("too_large", f"a {kind} of {len(message)} bytes; the link takes {limit}")


class AnnouncementFault(DeviceFault):
    """Error for an announcement that is refused as a whole, with all its tools."""


class Codec(Protocol):
    """Interface of codecs. A codec converts the messages of one device to bytes and back. Request ids run from 1 to
    `id_max`.
    """

    id_max: int

    def encode_call(self, request_id: int, tool: ToolDescription, arguments: Mapping[str, Any]) -> bytes:
        """Encode a call. Raise DeviceFault (argument_invalid, too_large) if the call must not be sent."""

    def encode_heartbeat(self, request_id: int) -> bytes: ...

    def encode_registration_request(self) -> bytes | None:
        """Return the message that asks a device to list its tools, or None if devices of this profile do not
        list them.
        """
        return None

    def decode_untrusted(self, message: bytes) -> Received:
        """Decode a message from the device. Raise DeviceFault (malformed, too_large, unexpected) if the message must be
        dropped.
        """

    def result(self, tool: ToolDescription, payload: Any) -> dict[str, Any]:
        """Return the content of a device's answer as a JSON object. Raise DeviceFault (response_invalid) if the answer
        does not fit the tool.
        """

    def notice(self, event_id: int, payload: Any) -> dict[str, Any] | None:
        """Return the content of an event as a JSON object, or None if the event is not described."""
        return None


def codec_of(description: DeviceDescription) -> Codec:
    """Return the codec for the messages of a device, which depends on the profile and the transport
    in its description.
    """
    if description.profile == "json":
        from interlock.devices.protocol.json_codec import JsonCodec

        return JsonCodec(description)
    if description.profile == "modbus":
        from interlock.devices.protocol.modbus_codec import ModbusCodec

        return ModbusCodec(description)
    from interlock.devices.protocol.frame_codec import FrameCodec, FramedCborCodec
    from interlock.devices.protocol.framing import framing_name

    if description.profile == "a":
        return FrameCodec(description)
    if description.link.transport == "uart_cbor" and framing_name(description.link, "b") == "frame":
        return FramedCborCodec(description)
    from interlock.devices.protocol.cbor_codec import CborCodec

    return CborCodec(description)


PREFIX = "x-mcpax-"
META = "_meta"


def without_metadata(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call without `_meta` and without the members that MCP-AX adds (AX-8.2-5)."""
    return {
        name: _stripped(value)
        for name, value in arguments.items()
        if name != META and not name.lower().startswith(PREFIX)  # AX-8.2-5
    }


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stripped(member) for name, member in value.items() if not name.lower().startswith(PREFIX)}
    if isinstance(value, list):
        return [_stripped(member) for member in value]
    return value
