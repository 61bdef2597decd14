"""Standard input and output that are files or the null device, in the place of an event loop's pipes.

No loop takes them for pipes, and libuv ends the process over it. They are never waited for.
"""

import asyncio
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

READ_BYTES: Final = 64 * 1024


def is_never_waited_for(descriptor: int) -> bool:
    """Whether it is a regular file, or the null device."""
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) or os.path.samestat(found, Path(os.devnull).stat())


class FileOutput:
    """An asyncio.WriteTransport, as far as lines need one: written at once, never full."""

    def __init__(self, descriptor: int) -> None:
        self._file: BinaryIO | None = os.fdopen(descriptor, "wb", 0)

    def write(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def is_closing(self) -> bool:
        return self._file is None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    abort = close


class FileInput:
    """Standard input that is a file: read piece by piece, with time for the rest in between."""

    def __init__(self, protocol: asyncio.Protocol, descriptor: int) -> None:
        self._task = asyncio.get_running_loop().create_task(self._read(protocol, descriptor), name="input")

    async def _read(self, protocol: asyncio.Protocol, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", 0) as file:
            while data := file.read(READ_BYTES):
                protocol.data_received(data)
                await asyncio.sleep(0)
        protocol.eof_received()

    def close(self) -> None:
        self._task.cancel()
