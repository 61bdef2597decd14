"""Programs that are run to their end for what they print, such as an installer or a version check. POSIX only.

The result says how the program ended and what it printed, both bounded; credentials in addresses are masked. Nothing
of the program is left when the call returns, is cancelled, or runs out of time. A deadline is the caller's
`asyncio.timeout`.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.process.child import Child, ChildStartFailed
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.stderr import StderrRing
from interlock.wire.jsonrpc.oversized import Oversized

if TYPE_CHECKING:
    from interlock.process.sandbox.sandbox import Sandbox

OUTPUT_LINES: Final = 20  # kept for an error
OUTPUT_LINE_BYTES: Final = 500
LINE_BYTES_MAX: Final = 1024 * 1024  # a program that prints a longer line is ended
STDOUT_BYTES_MAX: Final = 256 * 1024  # of standard output, for its reader; the rest is dropped

_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a program: how it ended, and what it printed."""

    returncode: int | None  # negative: the number of the signal that killed it
    reason: str  # completes "the program ..."
    stdout: bytes
    output: tuple[str, ...]  # the last lines of both outputs, without credentials in addresses

    @property
    def gist(self) -> str:
        """Return up to two lines of the output that describe the error, each after "; ".

        Installers print the reason first and advice after it.
        """
        errors = [line for line in self.output if "error" in line.lower()] or list(self.output[-1:])
        return "".join(f"; {line}" for line in errors[:2])


async def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    *,
    reaper: OrphanReaper | None,
    output: StderrRing | None = None,
    cell: "Sandbox | None" = None,
) -> Ran:
    """Run a program until it exits. Raise ChildStartFailed if it cannot be started.

    `output` collects the output of several commands. `cell` is the sandbox in which `argv` runs.
    """
    output = output or StderrRing(OUTPUT_LINES, OUTPUT_LINE_BYTES, now=lambda: 0.0)
    collector = _OutputCollector(output)
    child = Child(
        argv,
        env,
        cwd,
        max_message_bytes=LINE_BYTES_MAX,
        sink=collector,
        stderr=output,
        reaper=reaper,
        handed=() if cell is None else cell.handed,
        terminate=None if cell is None else cell.terminate,
    )
    try:
        await child.start()
        if cell is not None:
            await cell.open(child)
        reason = await collector.reason
        if child.unfinished:
            collector.on_line(child.unfinished)
    finally:
        await child.stop(grace_s=0)
    return Ran(returncode=child.returncode, reason=reason, stdout=bytes(collector.stdout), output=output_of(output))


def output_of(output: StderrRing) -> tuple[str, ...]:
    return tuple(_CREDENTIALS.sub("//***@", line.text) for line in output.tail())


class _OutputCollector:
    """The ChildSink of a program that runs until it exits. It collects the output, and has a future for the exit."""

    def __init__(self, output: StderrRing) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.stdout = bytearray()
        self._output = output

    def on_line(self, data: bytes) -> None:
        self._output.feed(data + b"\n")
        if len(self.stdout) < STDOUT_BYTES_MAX:
            self.stdout += data[: STDOUT_BYTES_MAX - len(self.stdout)] + b"\n"

    def on_oversized(self, oversized: Oversized) -> None:
        self._output.feed(b"(a line longer than %d bytes)\n" % oversized.limit)

    def on_gone(self, reason: str) -> None:
        if not self.reason.done():
            self.reason.set_result(reason)

    def on_stalled(self) -> None:
        """Do nothing, because no input is sent."""


__all__ = ["OUTPUT_LINES", "OUTPUT_LINE_BYTES", "ChildStartFailed", "Ran", "output_of", "run"]
