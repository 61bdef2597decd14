"""The frame of Profile A (AX-B.1-2): SOF, LEN, the message, CRC; no byte is stuffed.

A receiver finds the next frame by LEN, CRC and silence: what fails is dropped by one byte, so that a good frame behind
(or within) a bad one is found. Feeding no bytes after `gap_s` of silence gives up a frame that was begun. Where most
bytes begin a bad frame the whole of it is dropped, so that work grows with the bytes that came alone.
"""

from collections import Counter
from typing import Literal

from interlock.devices.protocol.crc import crc8_bytes, crc16_bytes

MESSAGE_MIN = 3  # TYPE, TOOL_ID, SEQ
ONE_BYTE_MAX = 0x7F  # of a LEN in the form "auto"
LEN_MAX = 0x7FFF  # 15 bits
CHECKED_PER_BYTE = 8  # in vain, for each byte that came; noise takes less than one
FRAMES_CHECKED_MAX = 16  # of the greatest length, in vain and at once


class SofFraming:
    def __init__(
        self,
        *,
        max_message: int,
        gap_s: float,
        sof: int = 0x7E,
        len_form: Literal["auto", 1, 2] = "auto",
        crc: Literal["auto", "crc8", "crc16"] = "auto",
    ) -> None:
        self.discarded: Counter[str] = Counter()
        self.max_message = min(max_message, 0xFF if len_form == 1 else LEN_MAX)
        self.gap_s = gap_s
        self._sof = sof
        self._len_form = len_form
        self._crc = crc
        self._begun = bytearray()
        self._read_at = 0.0
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
        self._begun.clear()
        self._is_noise = False

    def _scan(self, messages: list[bytes], *, is_over: bool) -> None:
        data = bytes(self._begun)
        at = 0
        counted_to = 0  # the end of the last bad frame: what is found within it counts no more
        while at < len(data):
            found = data.find(self._sof, at)
            if found != at and (found < 0 or found > counted_to) and not self._is_noise:
                self.discarded["noise"] += 1
                self._is_noise = True
            if found < 0:
                at = len(data)
                break
            at = found
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
        """The message of the frame at `at`, or why it is none, and where the frame ends."""
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
