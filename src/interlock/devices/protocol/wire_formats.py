"""The codec and the framing of a description. Their libraries are imported when they are needed."""

from typing import Final

from interlock.devices.protocol.description import DeviceDescription, LinkDescription, Profile
from interlock.devices.protocol.framing import Framing
from interlock.devices.protocol.messages import Codec

GAP_CHARACTERS: Final = 20  # AX-B.1-2
GAP_S_MIN: Final = 0.005
SOCKET_GAP_S: Final = 0.1  # networks keep no times between bytes
CHARACTER_BITS: Final = 10  # start, eight of data, stop


def framing_name(link: LinkDescription, profile: Profile) -> str:
    return link.framing or ("frame" if profile == "a" else "cobs")


def codec_of(description: DeviceDescription) -> Codec:
    if description.profile == "json":
        from interlock.devices.protocol.json_codec import JsonCodec

        return JsonCodec(description)
    if description.profile == "modbus":
        from interlock.devices.protocol.modbus_codec import ModbusCodec

        return ModbusCodec(description)
    from interlock.devices.protocol.frame_codec import FrameCodec, FramedCborCodec

    if description.profile == "a":
        return FrameCodec(description)
    if description.link.transport == "uart_cbor" and framing_name(description.link, "b") == "frame":
        return FramedCborCodec(description)
    from interlock.devices.protocol.cbor_codec import CborCodec

    return CborCodec(description)


def framing_of(link: LinkDescription, profile: Profile) -> Framing:
    """Return the framing of a link. Raises ValueError for a transport without framing, and for a frame without a
    checksum.
    """
    if link.transport in ("ble_cbor", "spi_cbor"):
        from interlock.devices.protocol.framing import LengthFraming

        return LengthFraming(max_message=link.max_frame, gap_s=link.timeout_ms / 1000)
    if link.transport != "uart_cbor":
        raise ValueError(f"{link.transport} has no framing of ours")
    if framing_name(link, profile) == "cobs":
        from interlock.devices.protocol.framing import CobsFraming

        return CobsFraming(max_message=link.max_frame, crc="none" if link.crc == "auto" else link.crc)
    if link.crc == "none":
        raise ValueError("a frame of Profile A has a checksum: crc8 or crc16")
    from interlock.devices.protocol.framing import SofFraming

    return SofFraming(max_message=link.max_frame, gap_s=gap_s(link), sof=link.sof, len_form=link.len, crc=link.crc)


def gap_s(link: LinkDescription) -> float:
    if link.gap_ms is not None:
        return link.gap_ms / 1000
    if (link.port or "").startswith("socket://"):
        return SOCKET_GAP_S
    return max(GAP_S_MIN, GAP_CHARACTERS * CHARACTER_BITS / link.baud)
