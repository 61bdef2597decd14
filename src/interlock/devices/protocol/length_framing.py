"""Messages behind their length (AX-8.1-3, AX-8.1-4): two bytes, big-endian; a length of 0 is nothing.

A length cannot be checked: after one above the limit there is no way to find the next message, so that `is_lost` says
so, and nothing is read until `reset`.
"""

from collections import Counter

PREFIX_BYTES = 2


class LengthFraming:
    def __init__(self, *, max_message: int, gap_s: float | None = None) -> None:
        self.discarded: Counter[str] = Counter()
        self.max_message = max_message
        self.is_lost = False
        self.gap_s = gap_s  # silence within a message that gives it up
        self._begun = bytearray()
        self._read_at = 0.0

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
        self._begun.clear()
        self.is_lost = False
