"""The frame of a device message, and the CRC of frames: COBS, a length prefix, or the frame of Profile A.

A framing finds messages in a stream of bytes that may lose, change or invent some. Bytes that are no message are
dropped and counted by reason; they never raise an error. Memory is bounded by the largest message.

    CobsFraming     a zero ends a frame; a bad frame costs nothing but itself (AX-8.1-2)
    LengthFraming   two bytes of length; after a bad length the connection is useless (AX-8.1-3, AX-8.1-4)
    SofFraming      SOF, LEN, message, CRC without byte stuffing, so that any byte may look like the start (AX-B.1-2)

Checksums are CRC-8 with polynomial 0x07 or CRC-16-CCITT (AX-B.1-4).
"""

import binascii
from abc import ABC, abstractmethod
from collections import Counter
from typing import Final, Literal

from interlock.devices.protocol.description import Checksum, LinkDescription, Profile

LenForm = Literal["auto", 1, 2]  # bytes of LEN; auto: one byte, or two for long messages
CRC16_START = 0xFFFF


def _crc8_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value << 1) ^ (0x107 if value & 0x80 else 0)
    return value


_CRC8 = bytes(map(_crc8_of_byte, range(256)))


def crc8(data: bytes) -> int:
    """Return the CRC-8 of the data, with polynomial 0x07 and initial value 0."""
    value = 0
    for byte in data:
        value = _CRC8[value ^ byte]
    return value


def crc16(data: bytes) -> int:
    """Return the CRC-16 of the data, with polynomial 0x1021 and initial value 0xFFFF."""
    return binascii.crc_hqx(data, CRC16_START)


def crc8_bytes(data: bytes) -> bytes:
    return bytes((crc8(data),))


def crc16_bytes(data: bytes) -> bytes:
    return crc16(data).to_bytes(2, "big")


class Framing(ABC):
    """Base class of framings, which find messages in a stream of bytes. Other bytes are dropped and counted. An
    incomplete message is given up after `gap_s` seconds of silence, or never if `gap_s` is None.
    """

    def __init__(self, max_message: int, gap_s: float | None = None) -> None:
        self.discarded: Counter[str] = Counter()
        self.max_message = max_message
        self.gap_s = gap_s
        self._begun = bytearray()
        self._read_at = 0.0

    @abstractmethod
    def encode(self, message: bytes) -> bytes:
        """Return a message as it is sent, in its frame. Raise ValueError if the message is longer than
        `max_message`.
        """

    @abstractmethod
    def feed_untrusted(self, data: bytes, now: float) -> list[bytes]:
        """Return the messages that these bytes complete, and keep an incomplete one of at most `max_message` bytes.
        `now` is the time in seconds at which the bytes were read.
        """

    def reset(self) -> None:
        """Discard the beginning of an incomplete message, because the connection is new."""
        self._begun.clear()


_BLOCK = 254  # bytes that one code byte of COBS stands before


class CobsFraming(Framing):
    """COBS frames (AX-8.1-2). A frame is the message, and its checksum if the link has one, encoded without zero bytes.
    A zero byte ends the frame.
    """

    def __init__(self, *, max_message: int, crc: Checksum = "none") -> None:
        from cobs import cobs  # an extra, which the other framings do without

        super().__init__(max_message)
        self._cobs = cobs
        self._crc = {"crc8": crc8_bytes, "crc16": crc16_bytes}.get(crc, lambda message: b"")
        self._crc_bytes = len(self._crc(b""))
        largest = max_message + self._crc_bytes
        self._frame_max = largest + largest // _BLOCK + 1
        self._is_too_large = False  # what was begun; the rest of it is dropped as well

    def encode(self, message: bytes) -> bytes:
        if len(message) > self.max_message:
            raise ValueError(f"a message of {len(message)} bytes: {self.max_message} at most")
        return bytes(self._cobs.encode(message + self._crc(message))) + b"\0"

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
        super().reset()
        self._is_too_large = False

    def _append(self, part: bytes) -> None:
        self._is_too_large = self._is_too_large or len(self._begun) + len(part) > self._frame_max
        if self._is_too_large:
            self._begun.clear()
        else:
            self._begun += part

    def _ended(self) -> tuple[bytes, str]:
        """Decode the complete frame in the buffer. Return its message and an empty text, or the reason why the frame is
        invalid.
        """
        if self._is_too_large:
            return b"", "too_large"
        if not self._begun:
            return b"", "empty"
        try:
            checked = bytes(self._cobs.decode(bytes(self._begun)))
        except self._cobs.DecodeError:
            return b"", "cobs"
        message = checked[: max(0, len(checked) - self._crc_bytes)]
        if self._crc(message) != checked[len(message) :]:
            return b"", "checksum"
        if not message:
            return b"", "empty"
        return message, "too_large" if len(message) > self.max_message else ""


PREFIX_BYTES = 2


class LengthFraming(Framing):
    """Messages with a length prefix (AX-8.1-3, AX-8.1-4): two bytes, big-endian. A length of 0 is ignored.

    The length has no checksum. After a length above the limit, the beginning of the next message is unknown: `is_lost`
    becomes true, and no bytes are read until `reset`.
    """

    is_lost = False

    def encode(self, message: bytes) -> bytes:
        if not 0 < len(message) <= self.max_message:
            raise ValueError(f"a message of {len(message)} bytes: 1 to {self.max_message} are possible")
        return len(message).to_bytes(PREFIX_BYTES, "big") + message

    def feed_untrusted(self, data: bytes, now: float) -> list[bytes]:
        if self.is_lost:
            return []
        if self._begun and self.gap_s is not None and now - self._read_at > self.gap_s:
            self.discarded["truncated"] += 1
            self._begun.clear()
        self._read_at = now
        whole = bytes(self._begun) + data
        messages: list[bytes] = []
        at = 0
        while len(whole) - at >= PREFIX_BYTES:
            begin = at + PREFIX_BYTES
            length = int.from_bytes(whole[at:begin], "big")
            if length > self.max_message:
                self.discarded["too_large"] += 1
                self.is_lost = True
                self._begun.clear()
                return messages
            if len(whole) < begin + length:
                break
            if length:
                messages.append(whole[begin : begin + length])
            at = begin + length
        self._begun = bytearray(whole[at:])
        return messages

    def reset(self) -> None:
        super().reset()
        self.is_lost = False


MESSAGE_MIN = 3  # TYPE, TOOL_ID, SEQ
ONE_BYTE_MAX = 0x7F  # of a LEN in the form "auto"
LEN_MAX = 0x7FFF  # 15 bits
CHECKED_PER_BYTE = 8  # in vain, for each byte that came; noise takes less than one
FRAMES_CHECKED_MAX = 16  # of the greatest length, in vain and at once


class SofFraming(Framing):
    """The frame of Profile A (AX-B.1-2): a start byte (SOF), the length, the message and a checksum, without byte
    stuffing.

    The receiver finds the next frame by LEN, CRC and silence. If a frame is invalid, only its first byte is dropped, so
    that a valid frame behind or within it is still found. Feeding no bytes after `gap_s` of silence gives up an
    incomplete frame. If most bytes begin an invalid frame, the complete frame is dropped, so that the work stays
    proportional to the received bytes.
    """

    def __init__(
        self, *, max_message: int, gap_s: float, sof: int = 0x7E, len_form: LenForm = "auto", crc: Checksum = "auto"
    ) -> None:
        super().__init__(min(max_message, 0xFF if len_form == 1 else LEN_MAX))
        self.gap_s: float = gap_s
        self._sof = sof
        self._len_form = len_form
        self._crc = crc
        self._is_noise = False  # so that a run of it counts once
        self._credit_max = FRAMES_CHECKED_MAX * self.max_message
        self._credit = self._credit_max  # bytes that may still be checked in vain

    def encode(self, message: bytes) -> bytes:
        if not MESSAGE_MIN <= len(message) <= self.max_message:
            raise ValueError(f"a message of {len(message)} bytes: {MESSAGE_MIN} to {self.max_message} are possible")
        if self._len_form == 1 or (self._len_form == "auto" and len(message) <= ONE_BYTE_MAX):
            head = bytes((len(message),))
        else:
            head = (len(message) | (0x8000 if self._len_form == "auto" else 0)).to_bytes(2, "big")
        checked = head + message
        return bytes((self._sof,)) + checked + self._checksum(checked, len(head))

    def feed_untrusted(self, data: bytes, now: float) -> list[bytes]:
        messages: list[bytes] = []
        if self._begun and now - self._read_at > self.gap_s:
            self._scan(messages, is_over=True)
        if data:
            self._read_at = now
            self._credit = min(self._credit_max, self._credit + CHECKED_PER_BYTE * len(data))
            self._begun += data
            self._scan(messages, is_over=False)
        return messages

    def reset(self) -> None:
        super().reset()
        self._is_noise = False

    def _scan(self, messages: list[bytes], *, is_over: bool) -> None:
        """Read all complete frames from the buffer. `is_over` means that the line has been silent, so that an
        incomplete frame is given up.
        """
        data = bytes(self._begun)
        at = 0
        counted_to = 0  # the end of the last bad frame: what is found within it no longer counts
        while at < len(data):
            start = data.find(self._sof, at)
            if start != at and (start < 0 or start > counted_to) and not self._is_noise:
                self.discarded["noise"] += 1
                self._is_noise = True
            if start < 0:
                at = len(data)
                break
            at = start
            outcome, end = self._frame_at(data, at)
            if outcome == "truncated" and not is_over:
                break
            if isinstance(outcome, str):
                if at >= counted_to:
                    self.discarded[outcome] += 1
                    counted_to = end
                if outcome == "checksum":
                    self._credit -= end - at
                at = end if outcome == "checksum" and self._credit < 0 else at + 1
            else:
                self._is_noise = False
                messages.append(outcome)
                at = end
        del self._begun[:at]

    def _frame_at(self, data: bytes, at: int) -> tuple[bytes | str, int]:
        """Read the frame that begins at index `at`. Return its message and the index of its end. For an invalid frame,
        return a word for the reason instead of the message.
        """
        left = len(data) - at
        if left < 2:
            return "truncated", len(data)
        head_bytes, length = 1, data[at + 1]
        if self._len_form == 2 or (self._len_form == "auto" and length > ONE_BYTE_MAX):
            if left < 3:
                return "truncated", len(data)
            head_bytes = 2
            length = int.from_bytes(data[at + 1 : at + 3], "big")
            if self._len_form == "auto":
                length &= LEN_MAX
                if length <= ONE_BYTE_MAX:  # one byte would have done
                    return "length", at + 1
        if length < MESSAGE_MIN:
            return "length", at + 1
        if length > self.max_message:
            return "too_large", at + 1
        checked_to = at + 1 + head_bytes + length
        end = checked_to + (2 if self._is_crc16(head_bytes) else 1)
        if len(data) < end:
            return "truncated", len(data)
        checked = data[at + 1 : checked_to]
        if self._checksum(checked, head_bytes) != data[checked_to:end]:
            return "checksum", end
        return checked[head_bytes:], end

    def _is_crc16(self, head_bytes: int) -> bool:
        return self._crc == "crc16" or (self._crc == "auto" and head_bytes == 2)

    def _checksum(self, checked: bytes, head_bytes: int) -> bytes:
        return crc16_bytes(checked) if self._is_crc16(head_bytes) else crc8_bytes(checked)


GAP_CHARACTERS: Final = 20  # AX-B.1-2
GAP_S_MIN: Final = 0.005
SOCKET_GAP_S: Final = 0.1  # networks keep no times between bytes
CHARACTER_BITS: Final = 10  # start, eight of data, stop


def framing_name(link: LinkDescription, profile: Profile) -> str:
    return link.framing or ("frame" if profile == "a" else "cobs")


def framing_of(link: LinkDescription, profile: Profile) -> Framing:
    """Return the framing of a link. Raise ValueError if its transport needs no framing, or if a frame would have no
    checksum.
    """
    if link.transport in ("ble_cbor", "spi_cbor"):
        return LengthFraming(max_message=link.max_frame, gap_s=link.timeout_ms / 1000)
    if link.transport != "uart_cbor":
        raise ValueError(f"{link.transport} has no framing of ours")
    if framing_name(link, profile) == "cobs":
        return CobsFraming(max_message=link.max_frame, crc="none" if link.crc == "auto" else link.crc)
    if link.crc == "none":
        raise ValueError("a frame of Profile A has a checksum: crc8 or crc16")
    return SofFraming(max_message=link.max_frame, gap_s=gap_s(link), sof=link.sof, len_form=link.len, crc=link.crc)


def gap_s(link: LinkDescription) -> float:
    if link.gap_ms is not None:
        return link.gap_ms / 1000
    if (link.port or "").startswith("socket://"):
        return SOCKET_GAP_S
    return max(GAP_S_MIN, GAP_CHARACTERS * CHARACTER_BITS / link.baud)
