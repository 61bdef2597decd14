"""A server that is our child and answers over HTTP on this machine: a container with a published port."""

from collections.abc import Callable

from interlock.links.pipes import HttpPipe, PipeOwner, StdioPipe
from interlock.wire.jsonrpc.oversized import Oversized


class MutePipe(StdioPipe):
    """The child: what it prints is for people."""

    def __init__(self, owner: PipeOwner, printed: Callable[[bytes], None]) -> None:
        super().__init__(owner)
        self._printed = printed

    def on_line(self, data: bytes) -> None:
        self._printed(data + b"\n")

    def on_oversized(self, found: Oversized) -> None:
        self._printed(b"(a line longer than %d bytes)\n" % found.limit)


class ServedPipe(HttpPipe):
    """Where it answers; the child ends with it."""

    def __init__(self, program: MutePipe, owner: PipeOwner, url: str, max_bytes: int) -> None:
        super().__init__(owner, url, {}, max_bytes)
        self._program = program

    async def close(self) -> None:
        try:
            await self.hang_up()
        finally:
            await self._program.close()

    async def hang_up(self) -> None:
        """Close the connection alone: the child goes on."""
        await super().close()
