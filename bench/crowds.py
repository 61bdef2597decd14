"""Many clients that stay: what one of them takes of the node's memory, and whether anything is left when they are gone.

The crowd gathers and leaves several times. Memory is the resident memory of the node's processes; what is alive is what
the node itself counts, and its open descriptors.
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench import contestants
from bench.contestants import LOGS, Ready
from bench.crowd import Job
from bench.processes import ROOT, NotStarted, cores, first_line, python, resident_mb, running

WARM_UP = 50  # of the same, before memory is first read: what is loaded and cached once is nobody's share
SETTLE_S = 10.0  # how long the node may take to notice that the last client left
QUIET_S = 0.7  # a flush of the audit log


class Live(msgspec.Struct, kw_only=True):
    """What the node counts."""

    sessions: int
    streams: int
    in_flight: int
    parked: int
    descriptors: int

    @property
    def gone(self) -> bool:
        return not (self.sessions or self.streams or self.in_flight or self.parked)

    @property
    def said(self) -> str:
        counts = {"sessions": self.sessions, "streams": self.streams, "calls": self.in_flight, "parked": self.parked}
        alive = [f"{count:,} {what}" for what, count in counts.items() if count] or ["nothing"]
        return ", ".join([*alive, f"{self.descriptors:,} descriptors"])


class Cycle(msgspec.Struct, kw_only=True):
    open_mb: float
    ended_mb: float
    open: Live
    ended: Live

    @property
    def most_mb(self) -> float:
        return max(self.open_mb, self.ended_mb)


class Crowd(msgspec.Struct, kw_only=True):
    """One kind of client, so many of them; `cycles` is empty when it could not be measured."""

    title: str
    count: int
    before_mb: float = 0.0
    before: Live | None = None
    cycles: list[Cycle] = []

    @property
    def each_kb(self) -> float:
        """Of the first cycle, which finds no memory that another left."""
        return (self.cycles[0].open_mb - self.before_mb) * 1024 / self.count

    @property
    def grown_mb(self) -> float:
        """Of the most a cycle took, after the second: until then the allocators find out how much there is to come.

        The most, not what is left at the end: how much of that goes back to the system is chance.
        """
        return self.cycles[-1].most_mb - self.cycles[1].most_mb

    @property
    def gone(self) -> bool:
        return all(cycle.ended.gone for cycle in self.cycles)


def look(node: Ready) -> Live:
    with contextlib.closing(_Operator(node)) as operator:
        operator.request("GET", "/admin/status")
        status = json.loads(operator.getresponse().read())
    return Live(
        sessions=status["clients"]["sessions"],
        streams=status["clients"]["streams"],
        in_flight=status["calls"]["in_flight"],
        parked=status["calls"]["parked"],
        descriptors=sum(1 for _ in Path(f"/proc/{node.pid}/fd").iterdir()),
    )


class _Operator(http.client.HTTPConnection):
    """The node's own socket for its operator."""

    def __init__(self, node: Ready) -> None:
        super().__init__("localhost", timeout=30)
        assert node.data is not None
        self._path = str(node.data / "run" / "admin.sock")

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


class _Crowd:
    """The process that holds the clients."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def tell(self, expected: bytes, line: bytes = b"\n") -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        if expected and self._process.stdout.readline() != expected + b"\n":
            raise NotStarted(self._log.read_text().strip()[-400:])


@contextlib.contextmanager
def crowd(job: Job) -> Iterator[_Crowd]:
    log = LOGS / "crowd.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            python("-m", "bench.crowd"),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            preexec_fn=lambda: os.sched_setaffinity(0, cores()[0]),
        )
    with process:
        try:
            started = _Crowd(process, log)
            started.tell(b"", msgspec.json.encode(job) + b"\n")
            yield started
        finally:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


@contextlib.contextmanager
def asking_server() -> Iterator[int]:
    log = LOGS / "server.log"
    with running(python("-m", "bench.asking_server", "0"), cores()[0], log, {"PYTHONPATH": str(ROOT)}) as process:
        yield int(first_line(process, log).rpartition(":")[2].partition("/")[0])


def gather(node: Ready, job: Job, found: Crowd, cycles: int, say: Any) -> None:
    """Let the crowd come and go."""
    assert node.pid is not None
    with crowd(msgspec.structs.replace(job, count=min(WARM_UP, job.count))) as few:
        few.tell(b"open")
        few.tell(b"ended")
    found.before = settled(node)
    found.before_mb = resident_mb(node.pid)
    say(f"  before: {found.before_mb:.1f} MB, {found.before.descriptors} descriptors")
    with crowd(job) as everybody:
        for number in range(1, cycles + 1):
            everybody.tell(b"open")
            time.sleep(QUIET_S)
            open_mb, alive = resident_mb(node.pid), look(node)
            if job.count not in (alive.streams, alive.parked):
                raise NotStarted(f"of {job.count:,} there were only: {alive.said}")
            everybody.tell(b"ended")
            ended = settled(node)
            one = Cycle(open_mb=open_mb, ended_mb=resident_mb(node.pid), open=alive, ended=ended)
            found.cycles.append(one)
            say(f"  cycle {number}: {open_mb:6.1f} MB with {alive.said}; {one.ended_mb:6.1f} MB with {ended.said}")


def settled(node: Ready) -> Live:
    """What is left when everybody has gone: as soon as it is nothing, or after all the time it may take."""
    deadline = time.monotonic() + SETTLE_S
    while not look(node).gone and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(QUIET_S)
    return look(node)


def measure(quick: bool, say: Any) -> list[Crowd]:
    sessions, calls, cycles = (200, 1000, 3) if quick else (1000, 10_000, 4)
    kinds = {
        "sessions": Crowd(title="legacy sessions with open streams", count=sessions),
        "calls": Crowd(title="parked calls of modern clients at a legacy server", count=calls),
    }
    with asking_server() as server:
        for kind, found in kinds.items():
            say(f"{found.count:,} {found.title}")
            try:
                with contestants.node({"asking": contestants.dialled(server)}, cores()[1]) as node:
                    job = Job(kind=kind, port=node.port, token=node.token or "", count=found.count, name="asking__echo")
                    gather(node, job, found, cycles, say)
            except NotStarted as reason:
                found.cycles.clear()
                say(f"  failed: {reason}")
    return list(kinds.values())
