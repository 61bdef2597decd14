"""Process groups: how a child and everything it forks are signalled, and how they die with the node. POSIX only."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
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


def die_with_the_node() -> Callable[[], None] | None:
    """Run between fork and exec: the kernel kills the child when the thread that spawned it ends (prctl(2))."""
    if _LIBC is None:
        return None
    prctl, kill, node = _LIBC.prctl, int(signal.SIGKILL), os.getpid()

    def ask_the_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, kill)
        if os.getppid() != node:  # killed before the kernel was asked
            os._exit(1)

    return ask_the_kernel


def reap_adopted(pgid: int) -> None:
    """Orphans are ours to bury when the node is the first process of a container. The leader is buried by then."""
    try:
        while os.waitpid(-pgid, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
