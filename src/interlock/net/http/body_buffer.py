"""The body of a message while it arrives: pieces that are joined once, at the end.

Small pieces are gathered, so that a peer that sends a byte at a time costs no more memory than what it sent. A large
body of a known length is written where it stays: joining fifteen megabytes at its end would keep everybody waiting.
"""

import functools
import io
import os
from typing import Final

LARGE_READ_BYTES: Final = 32 * 1024  # a read of so much is probably not the last of its message
_SMALL_BYTES: Final = 4096
_LARGE_BYTES: Final = 256 * 1024  # what a loop reads at once
_GROWTH: Final = 4  # how many times what has come is made room for: who only names a length takes no memory
_M_TRIM_THRESHOLD: Final = -1  # of glibc's mallopt
_M_MMAP_THRESHOLD: Final = -3
_REUSED_BYTES: Final = 4 * 1024 * 1024  # longer buffers go back to the system at once
_KEPT_BYTES: Final = 8 * 1024 * 1024
_CHOSEN: Final = frozenset(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"))


class BodyBuffer:
    __slots__ = ("_expected", "_pieces", "_room", "_whole", "size")

    def __init__(self, expected: int = 0) -> None:
        """Create an empty buffer. `expected` is the number of bytes that will come, or 0 if it is unknown."""
        self._expected = expected
        self._pieces: list[bytes | bytearray] = []
        self._whole: io.BytesIO | None = None
        self._room = 0  # in `_whole`
        self.size = 0  # of all that was added since it was made, taken or not

    def __bool__(self) -> bool:
        return bool(self._pieces) or self._whole is not None

    def add(self, data: bytes) -> None:
        self.size += len(data)
        pieces = self._pieces
        if self._expected > _LARGE_BYTES:
            self._write(data)
        elif len(data) > _SMALL_BYTES or not pieces:
            pieces.append(data)
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))

    def _write(self, data: bytes) -> None:
        whole = self._whole
        if whole is None or self.size > self._room:
            keep_freed_memory()
            self._room = max(min(self._expected, _GROWTH * self.size), self.size)
            before, self._whole = whole, io.BytesIO(bytes(self._room))
            whole = self._whole
            if before is not None:
                whole.write(before.getbuffer()[: before.tell()])
        whole.write(data)

    def take(self) -> bytes:
        """Return the bytes that were added since the last call."""
        whole, self._whole = self._whole, None
        if whole is not None:
            self._expected = self._room = 0
            whole.truncate()
            return whole.getvalue()  # not a copy: nothing else holds it
        pieces, self._pieces = self._pieces, []
        if len(pieces) == 1 and isinstance(pieces[0], bytes):
            return pieces[0]
        return b"".join(pieces)


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep what large messages gave back, up to a bound, for the next one.

    To fetch it from the system page by page and to give it back costs as much as all else that is done with a message
    of a megabyte. Only where such messages come: a node without them needs neither this nor what it imports.
    """
    if not _CHOSEN.isdisjoint(os.environ):  # the operator has chosen otherwise
        return
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _REUSED_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
