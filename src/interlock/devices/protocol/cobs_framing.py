"""COBS frames (AX-8.1-2): the message and its checksum, if the link has one, without zeros; a zero ends the frame."""

from collections import Counter
from typing import Literal

from cobs import cobs

from interlock.devices.protocol.crc import Crc, crc8_bytes, crc16_bytes

_CRC: dict[str, tuple[int, Crc]] = {"crc8": (1, crc8_bytes), "crc16": (2, crc16_bytes)}
_BLOCK = 254  # bytes that one code byte of COBS stands before


class CobsFraming:
    def __init__(self, *, max_message: int, crc: Literal["none", "crc8", "crc16"] = "none") -> None:
        self.discarded: Counter[str] = Counter()
        self.max_message = max_message
        self._crc_bytes, self._crc = _CRC.get(crc, (0, _nothing))
        largest = max_message + self._crc_bytes
        self._frame_max = largest + largest // _BLOCK + 1
        self._begun = bytearray()
        self._is_too_large = False  # what was begun; the rest of it is dropped as well

    def encode(self, message: bytes) -> bytes:
        if len(message) > self.max_message:
            raise ValueError(f"a message of {len(message)} bytes: {self.max_message} at most")
        return bytes(cobs.encode(message + self._crc(message))) + b"\0"

    def feed_untrusted(self, data: bytes, now: float) -> list[bytes]:
        *ends, begun = data.split(b"\0")
        messages = []
        for end in ends:
            self._append(end)
            message, fault = self._ended()
            self.reset()
            if fault:
                self.discarded[fault] += 1
            else:
                messages.append(message)
        self._append(begun)
        return messages

    def reset(self) -> None:
        self._begun.clear()
        self._is_too_large = False

    def _append(self, part: bytes) -> None:
        if self._is_too_large:
            return
        if len(self._begun) + len(part) > self._frame_max:
            self._is_too_large = True
            self._begun.clear()
        else:
            self._begun += part

    def _ended(self) -> tuple[bytes, str]:
        """The message, and why it is none."""
        if self._is_too_large:
            return b"", "too_large"
        if not self._begun:
            return b"", "empty"
        try:
            checked = bytes(cobs.decode(bytes(self._begun)))
        except cobs.DecodeError:
            return b"", "cobs"
        message = checked[: max(0, len(checked) - self._crc_bytes)]
        if self._crc(message) != checked[len(message) :]:
            return b"", "checksum"
        if not message:
            return b"", "empty"
        return message, "too_large" if len(message) > self.max_message else ""


def _nothing(message: bytes) -> bytes:
    return b""
