"""Processes under measurement: started on their core, CPU time and memory read from /proc, ended with all of theirs."""

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
START_SECONDS = 60.0


class NotStarted(Exception):
    """A process did not come up; the message says what it last wrote."""


def cores() -> tuple[set[int], set[int]]:
    """The core of the load generator and the server, and that of the contestant; the same one where there is one."""
    allowed = sorted(os.sched_getaffinity(0))
    return {allowed[0]}, {allowed[-1]}


def raise_descriptors() -> None:
    """As many connections as the system grants, for a process that holds thousands."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str], on: set[int], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on these cores, in a session of its own; at the end everything it started is ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, on),
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Commanded:
    """A process of the load generator that answers each line with a line."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def tell(self, command: str) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise NotStarted(self._log.read_text().strip()[-400:])
        return line


@contextlib.contextmanager
def commanded(module: str, job: bytes, log: Path, environment: dict[str, str]) -> Iterator[Commanded]:
    """Run a module of ours beside the load generator until its input ends; `job` is the first line it reads."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            python("-m", module),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **environment},
            preexec_fn=lambda: os.sched_setaffinity(0, cores()[0]),
        )
    with process:
        assert process.stdin is not None
        try:
            process.stdin.write(job + b"\n")
            yield Commanded(process, log)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def first_line(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    line = b""
    deadline = time.monotonic() + START_SECONDS
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(process.stdout.fileno(), 1) if ready else b""
        if not data:
            raise NotStarted(last_words(log))
        line += data
    return line.decode().strip()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise NotStarted(last_words(log))


def wait_for_ok(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until this URL answers 200."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise NotStarted(last_words(log))


def last_words(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split("\n")[-6:]).strip()[-500:] or "it said nothing"


def family(pid: int) -> list[int]:
    """A process and all its descendants, but no server of ours: what a contestant spawns is not its cost."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found.extend(child for child in children.get(member, ()) if not is_server(child))
    return found


def is_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"bench.fast_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def cpu_seconds(pid: int) -> float:
    """User and system time of the family so far: from the scheduler in nanoseconds where it tells, else in ticks."""
    total = 0.0
    for member in family(pid):
        with contextlib.suppress(OSError):
            try:
                tasks = list(Path(f"/proc/{member}/task").iterdir())
                total += sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
            except FileNotFoundError:
                fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def resident_mb(pid: int) -> float:
    """Resident memory of the family, in MB of 2**20 bytes."""
    pages = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
