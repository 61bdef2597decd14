"""As much CBOR (RFC 8949) as an authenticator writes: integers, bytes, text, arrays, maps, true, false and null.

Lengths are always given (CTAP 2.1, 8); tags, floats and what has no end of its own are refused, and so is a key twice.
"""

from typing import Any, Final

NESTING_MAX: Final = 4  # CTAP 2.1, 8
_LENGTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_WORDS: Final = {20: False, 21: True, 22: None}


class BadCbor(ValueError):
    """Not CBOR, or more of it than authenticators write. Raised only by `read_untrusted`."""


def read_untrusted(data: bytes) -> tuple[Any, bytes]:
    """Return the first value and the bytes after it."""
    reading = _Reading(data)
    return reading.value(NESTING_MAX), data[reading.at :]


class _Reading:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self, depth: int) -> Any:
        kind, low = divmod(self._take(1)[0], 32)
        if kind == 7:
            if low not in _WORDS:
                raise BadCbor("a kind of value that authenticators do not write")
            return _WORDS[low]
        number = self._number(low)
        match kind:
            case 0:
                return number
            case 1:
                return -1 - number
            case 2:
                return self._take(number)
            case 3:
                return self._text(number)
            case 4 | 5 if depth == 0:
                raise BadCbor("too deep")
            case 4:
                return [self.value(depth - 1) for _ in self._count(number)]
            case 5:
                return self._map(number, depth - 1)
        raise BadCbor("a kind of value that authenticators do not write")

    def _map(self, size: int, depth: int) -> dict[int | str, Any]:
        members: dict[int | str, Any] = {}
        for _ in self._count(size):
            key = self.value(0)
            if not isinstance(key, int | str) or isinstance(key, bool) or key in members:
                raise BadCbor("a key twice, or one that is neither number nor text")
            members[key] = self.value(depth)
        return members

    def _number(self, low: int) -> int:
        if low < 24:
            return low
        if low not in _LENGTHS:
            raise BadCbor("a length that is not given")
        return int.from_bytes(self._take(_LENGTHS[low]))

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise BadCbor("text that is not UTF-8") from None

    def _count(self, size: int) -> range:
        if size > len(self._data) - self.at:  # each takes a byte at least
            raise BadCbor("cut off")
        return range(size)

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise BadCbor("cut off")
        taken, self.at = self._data[self.at : end], end
        return taken
