"""Process groups of children, and the helper that ends them if the node itself is killed. POSIX only.

Theory of operation. A node that gets SIGKILL can end nothing any more, and the kernel's parent-death signal reaches
only direct children. So a small helper process waits at the other end of a pipe. The node writes to the pipe which
groups live (`guard`, `release`). When the pipe closes, for whatever reason, the helper sends SIGTERM to the groups
that are left, after TERM_GRACE_S SIGKILL, and exits. It is in a session of its own, where a signal to the node's group
does not reach it. If the helper dies, another one is started and told everything again. It is started before the first
child: a node that only dials servers needs none.

A process that moved itself into another session is in no group that the node knows, and is not found.
"""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

# Process groups: how a child and everything it forks are signalled, and how they die with the node. POSIX only.

_PR_SET_PDEATHSIG = 1
_CLOSE_RANGE_CLOEXEC = 4
_LAST_FD = 2**32 - 1


def group_exists(pgid: int) -> bool:
    try:
        os.killpg(checked_group(pgid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True


def signal_group(pgid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(checked_group(pgid), number)


def checked_group(pgid: int) -> int:
    """Return `pgid` unchanged if a signal may be sent to this process group. Otherwise raise ValueError.

    Raise ValueError for a group that must never get a signal: the node's own, or a number below 2.
    """
    # killpg(0) is our own group and killpg(1) is everybody's.
    if pgid <= 1 or pgid == os.getpgrp():
        raise ValueError(f"{pgid} is not the process group of a child")
    return pgid


def between_fork_and_exec(handed: Sequence[int] = ()) -> Callable[[], None] | None:
    """Return the function that a child process runs between fork and exec, or None on systems other than Linux.

    It makes the kernel end the child when the thread that spawned it ends (prctl(2)). Where libc has close_range, it
    also marks all files to be closed at exec, except the child's pipes and `handed`.
    """
    if sys.platform != "linux":
        return None
    libc, last_descriptor = _load_libc()
    prctl, kill, node = libc.prctl, int(signal.SIGKILL), os.getpid()
    close_range = getattr(libc, "close_range", None)  # close_range(2): not in every libc

    def first_steps() -> None:
        prctl(_PR_SET_PDEATHSIG, kill)
        if os.getppid() != node:  # killed before the kernel was asked
            os._exit(1)
        # uvloop leaves a second copy of each pipe open, so a child that closes its output would not be noticed.
        if close_range is not None:
            close_range(3, last_descriptor, _CLOSE_RANGE_CLOEXEC)
        for descriptor in handed:
            os.set_inheritable(descriptor, True)

    return first_steps


@functools.cache
def _load_libc() -> "tuple[ctypes.CDLL, ctypes.c_uint]":
    """Load the C library before the first fork, because nothing may be loaded between fork and exec."""
    import ctypes  # here, because a node that starts no programs does not need it

    return ctypes.CDLL(None), ctypes.c_uint(_LAST_FD)


def reap_adopted(pgid: int) -> None:
    """Collect the exit codes of orphans in a group.

    A node that is a container's first process inherits such orphans.
    """
    try:
        while os.waitpid(-pgid, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


TERM_GRACE_S = 0.5  # the node is dead, no answer is awaited: enough to remove a lock file
STOP_WAIT_S = TERM_GRACE_S + 1.0
RESTART_FIRST_S = 0.1
RESTART_MAX_S = 30.0

# Run with -I -S and built-in modules only: the helper is to cost one bare interpreter.
_HELPER = """
import posix, _signal, time
for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    _signal.signal(number, _signal.SIG_IGN)
groups, rest = set(), b""
while data := posix.read(0, 65536):
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
def send(number):
    for group in list(groups):
        try:
            posix.killpg(group, number)
        except PermissionError:
            pass
        except ProcessLookupError:
            groups.discard(group)
send(_signal.SIGTERM)
deadline = time.monotonic() + GRACE
while groups and time.monotonic() < deadline:
    time.sleep(0.02)
    send(0)
send(_signal.SIGKILL)
"""


class OrphanReaper(asyncio.SubprocessProtocol):
    """A helper process that ends the process groups of children if the node is killed.

    Groups may be guarded before `start` and after the helper died, because every new helper gets all of them.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._pipe: int | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Return the process id of the helper while it runs, or None."""
        return None if self._transport is None else self._transport.get_pid()

    async def open(self) -> None:
        """Do nothing, because the helper is started only before the first child (`start`)."""

    async def start(self) -> None:
        """Start the helper unless it is already started. Raise OSError if it cannot be started."""
        async with self._starting:
            if self._keeper is None:
                await self._spawn()
                self._keeper = asyncio.create_task(self._restart_forever())

    async def close(self) -> None:
        """Let the helper end the groups that are still guarded, and wait until it exits."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self._hang_up()
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await self._exited.wait()
        except TimeoutError:
            self._transport.kill()
            await self._exited.wait()
        self._transport.close()
        self._transport = None

    def process_exited(self) -> None:
        """Handle the end of the helper process, which the event loop reports."""
        self._exited.set()

    def guard(self, pgid: int) -> None:
        """Add a process group that the helper ends if the node is killed."""
        self._groups.add(checked_group(pgid))
        self._tell(b"+%d\n" % pgid)

    def release(self, pgid: int) -> None:
        """Remove a process group, because its processes have ended."""
        if pgid in self._groups:
            self._groups.discard(pgid)
            self._tell(b"-%d\n" % pgid)

    async def _spawn(self) -> None:
        self._exited = asyncio.Event()
        theirs, ours = os.pipe()
        try:
            os.set_blocking(ours, False)
            self._transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                sys.executable,
                *("-I", "-S", "-c", _HELPER.replace("GRACE", repr(TERM_GRACE_S))),
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._pipe = ours
        for pgid in self._groups:
            self._tell(b"+%d\n" % pgid)

    async def _restart_forever(self) -> None:
        """Start a new helper whenever one has died. The pauses grow if helpers die soon after their start."""
        loop = asyncio.get_running_loop()
        pause_s = RESTART_FIRST_S
        while True:
            born = loop.time()
            await self._exited.wait()
            self._hang_up()
            if self._transport is not None:
                self._transport.close()
                self._transport = None
            if loop.time() - born > RESTART_MAX_S:
                pause_s = RESTART_FIRST_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_MAX_S)
            try:
                await self._spawn()
            except OSError:
                # No process or file can be opened now; the next attempt comes after the pause.
                self._exited.set()

    def _tell(self, line: bytes) -> None:
        """Send a line to the helper process. If the pipe is full, the helper hangs, so kill it; another helper is then
        started.
        """
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, line)
        except BlockingIOError:
            if self._transport is not None:
                self._transport.kill()
        except BrokenPipeError:
            pass

    def _hang_up(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
