"""A reader of CBOR (RFC 8949) for bytes from devices and authenticators.

It reads one item and returns the bytes behind it. It accepts what MCP-AX and WebAuthn use: integers, bytes, text,
arrays, maps, true, false, null and finite floating-point numbers. Tags, other simple values and indefinite lengths are
refused, as are duplicate keys, keys of other types than integer and text, and nesting beyond `NESTING_MAX`. A length is
compared with the bytes that are left before anything is allocated for it. Every fault is a `CborError`.
"""

import math
import struct
from typing import Any, Final

NESTING_MAX: Final = 4  # containers in containers, the outermost included (CTAP 2.1, 8; AX-8.2-8)

_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_SIMPLE: Final[dict[int, bool | None]] = {20: False, 21: True, 22: None}


class CborError(ValueError):
    """Error for bytes that are not CBOR, or that use a feature of CBOR which this reader does not accept."""


def read_item_untrusted(data: bytes, *, has_floats: bool = True) -> tuple[Any, bytes]:
    """Return the first CBOR item and the bytes after it. Raise CborError if the item is malformed or not accepted.

    `has_floats` says whether floating-point numbers are accepted.
    """
    reader = _Reader(data, has_floats=has_floats)
    value = reader.item(0)
    return value, data[reader.at :]


class _Reader:
    """Reader of one CBOR item. `at` is its position in the bytes."""

    def __init__(self, data: bytes, *, has_floats: bool) -> None:
        self.data = data
        self.at = 0
        self._has_floats = has_floats

    def item(self, depth: int) -> Any:
        initial = self._take(1)[0]
        major, info = initial >> 5, initial & 0x1F
        if major == 7:
            if info in _SIMPLE:
                return _SIMPLE[info]
            form = _FLOATS.get(info) if self._has_floats else None
            if form is None:
                raise CborError("a CBOR simple value other than false, true and null")
            value: float = struct.unpack(form, self._take(struct.calcsize(form)))[0]
            if not math.isfinite(value):
                raise CborError("a number that is not finite")
            return value
        if major == 6:
            raise CborError("a CBOR tag")
        number = self._number(info)
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major == 2:
            return self._take(number)
        if major == 3:
            try:
                return self._take(number).decode()
            except UnicodeDecodeError:
                raise CborError("CBOR text that is not UTF-8") from None
        if depth == NESTING_MAX:
            raise CborError(f"CBOR nested deeper than {NESTING_MAX}")
        if number * (1 if major == 4 else 2) > len(self.data) - self.at:  # an item is one byte at least
            raise CborError("a CBOR length beyond the message")
        if major == 4:
            return [self.item(depth + 1) for _ in range(number)]
        members: dict[int | str, Any] = {}
        for _ in range(number):
            key = self.item(depth + 1)
            if isinstance(key, bool) or not isinstance(key, int | str):
                raise CborError("a CBOR key that is neither an integer nor text")
            if key in members:
                raise CborError("a CBOR key twice")
            members[key] = self.item(depth + 1)
        return members

    def _number(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise CborError("a CBOR item of indefinite length")
        return int.from_bytes(self._take(1 << (info - 24)), "big")

    def _take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise CborError("CBOR that ends too early")
        taken = self.data[self.at : end]
        self.at = end
        return taken
