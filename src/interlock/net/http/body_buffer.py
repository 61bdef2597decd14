"""The body of a message while it arrives: pieces that are joined once, at the end.

Small pieces are gathered, so that a peer that sends a byte at a time costs no more memory than what it sent.
"""

from typing import Final

_SMALL_BYTES: Final = 4096


class BodyBuffer:
    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self.size = 0  # of all that was added since it was made, taken or not

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, data: bytes) -> None:
        self.size += len(data)
        pieces = self._pieces
        if len(data) > _SMALL_BYTES or not pieces:
            pieces.append(data)
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))

    def take(self) -> bytes:
        """What has not been taken yet."""
        pieces, self._pieces = self._pieces, []
        if len(pieces) == 1 and isinstance(pieces[0], bytes):
            return pieces[0]
        return b"".join(pieces)
