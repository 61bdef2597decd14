"""Process groups: how a child and everything it forks are signalled, and how they die with the node. POSIX only."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence

_PR_SET_PDEATHSIG = 1
_CLOSE_RANGE_CLOEXEC = 4
_LAST_FD = ctypes.c_uint(2**32 - 1)
# Loaded here because nothing may be loaded between fork and exec.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def group_exists(pgid: int) -> bool:
    try:
        os.killpg(checked_group(pgid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(pgid: int, number: signal.Signals) -> None:
    try:
        os.killpg(checked_group(pgid), number)
    except (ProcessLookupError, PermissionError):
        pass


def checked_group(pgid: int) -> int:
    # killpg(0) is our own group and killpg(1) is everybody's.
    if pgid <= 1 or pgid == os.getpgrp():
        raise ValueError(f"{pgid} is not the process group of a child")
    return pgid


def between_fork_and_exec(handed: Sequence[int] = ()) -> Callable[[], None] | None:
    """The child's first steps: die when the thread that spawned it ends (prctl(2)), and keep no file but its pipes and
    what it is handed."""
    if _LIBC is None:
        return None
    prctl, kill, node = _LIBC.prctl, int(signal.SIGKILL), os.getpid()
    close_range = getattr(_LIBC, "close_range", None)  # close_range(2): not in every libc

    def first_steps() -> None:
        prctl(_PR_SET_PDEATHSIG, kill)
        if os.getppid() != node:  # killed before the kernel was asked
            os._exit(1)
        # uvloop leaves a second copy of each pipe open, so a child that closes its output would not be noticed.
        if close_range is not None:
            close_range(3, _LAST_FD, _CLOSE_RANGE_CLOEXEC)
        for descriptor in handed:
            os.set_inheritable(descriptor, True)

    return first_steps


def reap_adopted(pgid: int) -> None:
    """Orphans are ours to bury when the node is the first process of a container. The leader is buried by then."""
    try:
        while os.waitpid(-pgid, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
