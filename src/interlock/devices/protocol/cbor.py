"""CBOR as devices may write it (AX-8.2-8): one item of definite length, with the types of JSON and bytes.

The values are int, float, bool, None, str, bytes, list and dict. Time and memory are bounded by the number of bytes: a
length that they cannot hold is refused before anything is allocated.
"""

import math
import struct
from typing import Any, Final

from interlock.devices.protocol.messages import DeviceFault

DEPTH_MAX: Final = 4  # containers in containers, the message itself among them
INTEGER_MAX: Final = 2**64 - 1
INTEGER_MIN: Final = -(2**64)

_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_SIMPLE: dict[int, bool | None] = {20: False, 21: True, 22: None}


def encoded(value: Any) -> bytes:
    """Return the deterministic encoding (RFC 8949, 4.2): shortest forms, sorted keys."""
    import cbor2  # an extra, which devices of Profile A do without

    return cbor2.dumps(value, canonical=True)


def read_untrusted(data: bytes) -> Any:
    """Return the one CBOR item that `data` holds. Raises DeviceFault (malformed)."""
    reader = _Reader(data)
    value = reader.item(0)
    if reader.at != len(data):
        raise DeviceFault("malformed", f"{len(data) - reader.at} bytes after the CBOR item")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def item(self, depth: int) -> Any:
        initial = self._taken(1)[0]
        major, info = initial >> 5, initial & 0x1F
        if major == 7:
            return self._simple_or_float(info)
        if major == 6:
            raise DeviceFault("malformed", "a CBOR tag")
        number = self._number(info)
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major == 2:
            return self._taken(number)
        if major == 3:
            return self._text(number)
        if depth == DEPTH_MAX:
            raise DeviceFault("malformed", f"CBOR nested deeper than {DEPTH_MAX}")
        if number * (1 if major == 4 else 2) > len(self.data) - self.at:  # an item is one byte at least
            raise DeviceFault("malformed", "a CBOR length beyond the message")
        return self._array(number, depth + 1) if major == 4 else self._map(number, depth + 1)

    def _array(self, count: int, depth: int) -> list[Any]:
        return [self.item(depth) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[int | str, Any]:
        members: dict[int | str, Any] = {}
        for _ in range(count):
            key = self.item(depth)
            if isinstance(key, bool) or not isinstance(key, int | str):
                raise DeviceFault("malformed", "a CBOR key that is neither an integer nor text")
            if key in members:
                raise DeviceFault("malformed", "a CBOR key twice")
            members[key] = self.item(depth)
        return members

    def _text(self, length: int) -> str:
        try:
            return self._taken(length).decode()
        except UnicodeDecodeError:
            raise DeviceFault("malformed", "CBOR text that is not UTF-8") from None

    def _simple_or_float(self, info: int) -> bool | float | None:
        if info in _SIMPLE:
            return _SIMPLE[info]
        form = _FLOATS.get(info)
        if form is None:
            raise DeviceFault("malformed", "a CBOR simple value other than false, true and null")
        value: float = struct.unpack(form, self._taken(struct.calcsize(form)))[0]
        if not math.isfinite(value):
            raise DeviceFault("malformed", "a number that is not finite")
        return value

    def _number(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise DeviceFault("malformed", "a CBOR item of indefinite length")
        return int.from_bytes(self._taken(1 << (info - 24)), "big")

    def _taken(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise DeviceFault("malformed", "CBOR that ends too early")
        taken = self.data[self.at : end]
        self.at = end
        return taken
