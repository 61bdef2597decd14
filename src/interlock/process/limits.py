"""Limits on what servers take from the machine: starts at one time, open files, and the usage of a sandbox.

The kernel's own limits (setrlimit(2)) count one process at a time. Its limit on memory is an error that a program may
survive, or counts address space, which some runtimes reserve by the gigabyte. So the actual usage of all processes in
a sandbox is read together, every second, and several times a second if a driver declares a limit. Reading takes at
most one part in SHARE of a processor, for all sandboxes together: the longer it takes, the less often it is done.

A limit that is exceeded ends the server, with a reason that names the limit and the key that sets it.
"""

import asyncio
import contextlib
import os
import re
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.plan import LimitsPlan, SandboxPlan

INSTALLS_MAX: Final = 4  # each is a download and a build
STARTS_MAX: Final = 8
START_S: Final = 5.0  # a server that is not up by then waits for something, and takes no more of the machine


class StartLimits:
    """Limits on how many servers of a node are installed or started at the same time.

    Without them, two hundred interpreters that start at once would leave no processor time for calls.
    """

    def __init__(self) -> None:
        self.installs = asyncio.Semaphore(INSTALLS_MAX)
        self._starts = asyncio.Semaphore(STARTS_MAX)

    @property
    def is_full(self) -> bool:
        """Return whether another server must wait before it starts."""
        return self._starts.locked()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Wait until another server may start. The start counts against the limit until the block of this context
        manager ends, but for at most START_S seconds.
        """
        await self._starts.acquire()
        left = [self._starts.release]

        def end() -> None:
            if left:
                left.pop()()

        timer = asyncio.get_running_loop().call_later(START_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()


WANTED: Final = 65_536  # two connections of each session, one of each call under way or parked, with all at their most
UNLIMITED: Final = 1_000_000  # where the system names no limit


def raise_descriptor_limit() -> None:
    """Raise this process's limit on open files as far as the system allows, up to WANTED.

    A node has one descriptor open per connection. Systems often start a program with a limit of 1024, for programs that
    use `select`, and let it raise its limit up to a second one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            pass  # macOS has a third limit, which it does not report


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


LOOK_S: Final = 0.2  # at limits that are declared
LOOK_DEFAULT_S: Final = 1.0  # at those that every sandbox has
LOOK_AT_DISK_S: Final = 2.0
SHARE: Final = 20  # looks at all sandboxes together take at most one part in so many of a processor
FILES_MAX: Final = 200_000  # in a home; more is over every limit
PROCESSES_MAX: Final = 4096  # looked at; a server that forks more than this is found by what it uses

_PROC: Final = Path("/proc")
_TICK_MS: Final = 1000 / os.sysconf("SC_CLK_TCK")
_MEMORY = re.compile(rb"^Rss(?:Anon|Shmem):\s*(\d+) kB", re.MULTILINE)
_SHARED_OUT = re.compile(rb"^Pss_(?:Anon|Shmem):\s*(\d+) kB", re.MULTILINE)  # what several share counts once


class Usage(msgspec.Struct, frozen=True):
    """The resources that the processes of one sandbox use."""

    memory_mb: float
    cpu_ms: float
    processes: int  # and threads


def descendants(pid: int) -> Iterator[int]:
    """Yield the process ids of the descendants of a process, nearest first. At most PROCESSES_MAX are looked at."""
    waiting = [pid]
    for _ in range(PROCESSES_MAX):
        if not waiting:
            return
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            for thread in (_PROC / str(waiting.pop(0)) / "task").iterdir():
                with contextlib.suppress(OSError):  # this thread has ended, and the others count
                    children = [int(child) for child in (thread / "children").read_bytes().split()]
                    waiting += children
                    yield from children


def usage(pid: int) -> Usage:
    """Return the total resource usage of all descendants of a process."""
    kilobytes = ticks = tasks = 0
    for each in descendants(pid):
        try:
            kilobytes += sum(map(int, _MEMORY.findall((_PROC / str(each) / "status").read_bytes())))
            # The second field may hold anything, also brackets. The last four: its own, and of children that ended.
            fields = (_PROC / str(each) / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        ticks += sum(map(int, fields[11:15]))
        tasks += int(fields[17])
    return Usage(kilobytes / 1024, ticks * _TICK_MS, tasks)


def memory_shared_out_mb(pid: int) -> float | None:
    """Return the exact memory use of all descendants of a process, in which shared pages count once. This call is slow.

    Return None if the kernel does not report it or it cannot be read.
    """
    kilobytes = 0
    for each in descendants(pid):
        try:
            rollup = (_PROC / str(each) / "smaps_rollup").read_bytes()
        except OSError as error:
            if isinstance(error, ProcessLookupError) or not (_PROC / str(each)).exists():
                continue  # it has ended meanwhile
            return None
        shares = _SHARED_OUT.findall(rollup)
        if rollup and not shares:
            return None
        kilobytes += sum(map(int, shares))
    return kilobytes / 1024


def disk_mb(folder: Path) -> float:
    """Return the disk usage of a folder without following links.

    The result is infinite if the folder contains more than FILES_MAX files, or if a folder in it cannot be read because
    its server removed permissions or nested folders too deeply.
    """
    blocks = files = 0
    left = [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    files += 1
                    if files > FILES_MAX:
                        return float("inf")
                    with contextlib.suppress(FileNotFoundError):  # it is gone meanwhile
                        blocks += entry.stat(follow_symlinks=False).st_blocks
                        if entry.is_dir(follow_symlinks=False):
                            left.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it is gone meanwhile
        except OSError:
            return float("inf")
    return blocks / 2048


class UsageWatch:
    """A monitor of the resources that one sandbox uses. It ends the server when a limit is exceeded.

    Memory is measured in two steps: first a fast sum, which counts shared pages several times, and only if that exceeds
    the limit the exact value.
    """

    def __init__(
        self, plan: SandboxPlan, usual: LimitsPlan, count: Callable[[], int], pid: int, end: Callable[[str], None]
    ) -> None:
        """Start to monitor one sandbox.

        `usual` contains the limits for values that the plan does not set. `count` returns the number of sandboxes in
        use.
        """
        self._plan, self._count = plan, count
        self._memory_mb = plan.memory_mb or usual.sandbox_memory_mb
        self._usual, self._pid, self._end = usual, pid, end
        self._is_declared = plan.memory_mb is not None or plan.cpu_ms is not None
        self._look_at_disk_at = 0.0
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        """Check the limits until one is exceeded. Checks run in a thread, and less frequently the longer they take."""
        reason, took = None, 0.0
        while reason is None:
            usual_s = LOOK_DEFAULT_S if not self._is_declared else LOOK_S
            await asyncio.sleep(max(usual_s, took * SHARE * self._count()))
            reason, took = await asyncio.to_thread(self._look)
        self._end(reason)

    def _look(self) -> tuple[str | None, float]:
        """Check the limits once. Return the reason why the server must be ended, or None, and the processor time that
        the check used.
        """
        began = time.thread_time()
        return self._find_excess() or self._find_disk_excess(), time.thread_time() - began

    def _find_excess(self) -> str | None:
        used, usual, cpu_ms = usage(self._pid), self._usual, self._plan.cpu_ms
        if used.memory_mb > self._memory_mb:
            # Forked processes share most of what each of them seems to use.
            exact = memory_shared_out_mb(self._pid)
            if exact is None or exact > self._memory_mb:
                return f"used more memory than its limit of {self._memory_mb} MB (memory_mb) and was ended"
        if cpu_ms is not None and used.cpu_ms > cpu_ms:
            return f"used more processor time than its limit of {cpu_ms} ms (cpu_ms) and was ended"
        if used.processes > usual.sandbox_processes:
            many = usual.sandbox_processes
            return f"had more processes and threads than its limit of {many} (limits.sandbox_processes) and was ended"
        return None

    def _find_disk_excess(self) -> str | None:
        now, home, limit_mb = time.monotonic(), self._plan.home, self._usual.sandbox_disk_mb
        if now < self._look_at_disk_at:
            return None
        over = disk_mb(home) > limit_mb
        took = time.monotonic() - now
        self._look_at_disk_at = now + max(LOOK_AT_DISK_S, took * SHARE * self._count())
        if not over:
            return None
        return f"kept more than its limit of {limit_mb} MB (limits.sandbox_disk_mb) in {home} and was ended"
