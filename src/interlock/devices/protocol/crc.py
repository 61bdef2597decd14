"""The CRC of a device frame: CRC-8 and CRC-16-CCITT (AX-B.1-4)."""

import binascii
from collections.abc import Callable

CRC16_START = 0xFFFF

Crc = Callable[[bytes], bytes]


def _crc8_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value << 1) ^ (0x107 if value & 0x80 else 0)
    return value


_CRC8 = bytes(_crc8_of_byte(value) for value in range(256))


def crc8(data: bytes) -> int:
    """Compute the CRC-8 with polynomial 0x07, starting at 0."""
    value = 0
    for byte in data:
        value = _CRC8[value ^ byte]
    return value


def crc16(data: bytes) -> int:
    """Compute the CRC-16 with polynomial 0x1021, starting at 0xFFFF."""
    return binascii.crc_hqx(data, CRC16_START)


def crc8_bytes(data: bytes) -> bytes:
    return bytes((crc8(data),))


def crc16_bytes(data: bytes) -> bytes:
    return crc16(data).to_bytes(2, "big")
