"""Runs the commands a driver file names: version_check.cmd and health_check.cmd. Never through a shell.

In: one line of words, and where the driver's programs run: inside its sandbox, or outside where it has none. Out: how
it ended and what it printed. A command that takes too long is ended with everything it started.
"""

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path

from interlock.config.plan import SandboxPlan
from interlock.core.clock import Clock
from interlock.process.launch import child_environment
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.run import ChildStartFailed, Ran, run
from interlock.process.sandbox.errors import SandboxFailed
from interlock.process.sandbox.sandbox import Command, Sandboxes
from interlock.process.stderr import StderrRing

CommandRunner = Callable[[tuple[str, ...]], Awaitable[Ran]]  # raises ChildStartFailed, SandboxFailed
Caged = Callable[[SandboxPlan], CommandRunner]  # in a sandbox of the caller's choice


class CommandFailed(Exception):
    """A command could not be run, or not to its end; the message completes "the command ..."."""


def plain_runner(reaper: OrphanReaper | None, cwd: Path | None = None) -> CommandRunner:
    """A runner without sandbox, with the environment that every child of the node gets."""

    async def running(words: tuple[str, ...]) -> Ran:
        return await run(words, child_environment({}, os.environ), cwd, reaper=reaper)

    return running


def sandboxed_runner(
    sandboxes: Sandboxes | None, segment: str, plan: SandboxPlan, *, clock: Clock, reaper: OrphanReaper | None
) -> CommandRunner:
    """A runner in the sandbox of the server."""

    async def running(words: tuple[str, ...]) -> Ran:
        if sandboxes is None:
            raise SandboxFailed("sandbox_unavailable", "no sandboxes are made here")
        said = StderrRing(now=clock.wall)
        sandbox = await sandboxes.make(segment, plan, Command(argv=words, env={}, cwd=plan.home), said)
        try:
            return await run(sandbox.argv, sandbox.env, sandbox.cwd, reaper=reaper, said=said, cell=sandbox)
        finally:
            sandbox.close()

    return running


def words_of(command: str) -> tuple[str, ...]:
    """The words of a command line. Raises CommandFailed for a quotation without an end."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise CommandFailed("has a quotation without an end") from error


async def run_command(words: tuple[str, ...], timeout_ms: int, running: CommandRunner) -> Ran:
    """Raises CommandFailed."""
    if not words:
        raise CommandFailed("is empty")
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await running(words)
    except TimeoutError as error:
        raise CommandFailed(f"was ended after {timeout_ms} ms") from error
    except (ChildStartFailed, SandboxFailed) as error:
        raise CommandFailed(f"cannot be started: {error}") from error
