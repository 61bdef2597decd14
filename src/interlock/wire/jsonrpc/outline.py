"""The outline of a large message: the message without what is in its longest string.

Large messages are mostly one long string: a file, an image, a page. What else stands in one that was read before
is read a second time in its outline, which costs nothing, and what the outline holds is found in the message again.
"""

from typing import Final

from msgspec import Raw

OUTLINED_BYTES_MIN: Final = 64 * 1024
OUTLINE_BYTES_MAX: Final = 64 * 1024
HOLE: Final = "<\x7fhole\x7f>"
_HOLE: Final = HOLE.encode()
_BACKSLASH: Final = ord("\\")


class Outline:
    __slots__ = ("_data", "_end", "_start", "text")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data, self._start, self._end = data, start, end
        self.text = data[:start] + _HOLE + data[end:]

    def whole(self, raw: Raw) -> Raw:
        """A value of the outline as it stands in the message: a view of it, where the hole is in this value."""
        at = bytes(raw).find(_HOLE)
        if at < 0:
            return raw
        after = len(raw) - at - len(_HOLE)
        return Raw(memoryview(self._data)[self._start - at : self._end + after])


def maybe_outline(data: bytes) -> Outline | None:
    """Of `data`, which is JSON; None where it has no string that is nearly all of it.

    What is cut out reaches from one quote to the next, the latter not escaped. If that is not the inside of a string,
    the hole stands between values, and no reader takes the outline for JSON.
    """
    size = len(data)
    if size < OUTLINED_BYTES_MIN + OUTLINE_BYTES_MAX:
        return None
    middle = size // 2
    start, end = data.rfind(b'"', 0, middle) + 1, data.find(b'"', middle)
    if not 0 < start < end or size - (end - start) > OUTLINE_BYTES_MAX or data[end - 1] == _BACKSLASH:
        return None
    outline = Outline(data, start, end)
    return outline if outline.text.count(_HOLE) == 1 else None
