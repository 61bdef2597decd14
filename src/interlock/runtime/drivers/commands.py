"""Runs the commands a driver file names: version_check.cmd and health_check.cmd. Never through a shell.

In: one line of words, and, where the driver has a sandbox, the function that puts a command into it. Out: how it ended
and what it printed. A command that takes too long is ended with everything it started.
"""

import asyncio
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from interlock.protocol.drivers.messages import Binary, Driver
from interlock.runtime.drivers.installed import Installed
from interlock.transport.errands import ChildStartFailed, Ran, run
from interlock.transport.launch import child_environment
from interlock.transport.warden import Warden

Wrap = Callable[[tuple[str, ...]], tuple[str, ...]]


class CommandFailed(Exception):
    """It could not be run, or not to its end; the message completes "the command ..."."""


def words_of(command: str) -> tuple[str, ...]:
    """Raises CommandFailed for a quotation without an end."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise CommandFailed("has a quotation without an end") from error


def own_program(words: tuple[str, ...], driver: Driver, installed: Installed) -> tuple[str, ...]:
    """The server's own program, where the command names it as server.path does: it may be on no PATH."""
    server = driver.server
    if isinstance(server, Binary) and words and words[0] in {server.path, Path(server.path).name}:
        return (*installed.command, *words[1:])
    return words


async def run_command(
    words: tuple[str, ...],
    timeout_ms: int,
    *,
    wrap: Wrap | None,
    warden: Warden | None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ran:
    """`env` is the whole environment; without one it is what every child of the node gets. Raises CommandFailed."""
    if not words:
        raise CommandFailed("is empty")
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            whole = child_environment({}, os.environ) if env is None else env
            return await run(words if wrap is None else wrap(words), whole, cwd, warden=warden)
    except TimeoutError as error:
        raise CommandFailed(f"was ended after {timeout_ms} ms") from error
    except ChildStartFailed as error:
        raise CommandFailed(f"cannot be started: {error}") from error
