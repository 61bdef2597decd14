"""Limits of what a sandboxed server uses, all its processes together, and its end when that is too much.

Limits of the kernel's (setrlimit(2)) count one process at a time, and a memory limit of theirs is an error that a
program may survive, or address space that some runtimes reserve by the gigabyte. So what is really used is looked at a
few times a second, and only where a limit is declared.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.plan import SandboxPlan

LOOK_S: Final = 0.2
PROCESSES_MAX: Final = 4096  # looked at; a server that forks more than this is found by what it uses

_PROC: Final = Path("/proc")
_TICK_MS: Final = 1000 / os.sysconf("SC_CLK_TCK")
_MEMORY = re.compile(rb"^Rss(?:Anon|Shmem):\s*(\d+) kB", re.MULTILINE)


class Usage(msgspec.Struct, frozen=True):
    memory_mb: float
    cpu_ms: float


def descendants(pid: int) -> Iterator[int]:
    """The processes that the process started, and they in turn; the nearest first."""
    waiting = [pid]
    for _ in range(PROCESSES_MAX):
        if not waiting:
            return
        for child in _children(waiting.pop(0)):
            yield child
            waiting.append(child)


def usage(pid: int) -> Usage:
    """The usage of all processes below this one."""
    kilobytes = ticks = 0
    for each in descendants(pid):
        try:
            kilobytes += sum(map(int, _MEMORY.findall((_PROC / str(each) / "status").read_bytes())))
            # The second field may hold anything, also brackets. The last four: its own, and of children that ended.
            fields = (_PROC / str(each) / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        ticks += sum(map(int, fields[11:15]))
    return Usage(kilobytes / 1024, ticks * _TICK_MS)


class Limits:
    """Checks the usage until it is stopped or has ended the server."""

    def __init__(self, plan: SandboxPlan, pid: int, end: Callable[[str], None]) -> None:
        self._plan = plan
        self._pid = pid
        self._end = end
        self._task = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        self._task.cancel()

    async def _look(self) -> None:
        """A server may have thousands of processes: they are counted aside, and then not as often."""
        reason = None
        while reason is None:
            await asyncio.sleep(LOOK_S)
            began = time.monotonic()
            reason = self._maybe_over(await asyncio.to_thread(usage, self._pid))
            await asyncio.sleep(time.monotonic() - began)
        self._end(reason)

    def _maybe_over(self, used: Usage) -> str | None:
        memory_mb, cpu_ms = self._plan.memory_mb, self._plan.cpu_ms
        if memory_mb is not None and used.memory_mb > memory_mb:
            return f"used more memory than its limit of {memory_mb} MB (memory_mb) and was ended"
        if cpu_ms is not None and used.cpu_ms > cpu_ms:
            return f"used more processor time than its limit of {cpu_ms} ms (cpu_ms) and was ended"
        return None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_bytes().split())
    except OSError:
        pass  # it, or one of its threads, has ended meanwhile
    return found
