"""The measurements: contestants take turns, round after round, and figures are compared within a round."""

import contextlib
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.contestants import LOGS, Ready, Start
from bench.environments import NotInstalled
from bench.load import Job, Result
from bench.processes import ROOT, NotStarted, cores, cpu_seconds, first_line, python, resident_mb, running


class Sample(msgspec.Struct, kw_only=True):
    """One contestant in one round."""

    cpu_us: float  # of the contestant, per request
    p50_us: float
    p99_us: float
    per_second: float
    answer_bytes: int
    tools: int = 0
    pages: int = 1


class Figures(msgspec.Struct, kw_only=True):
    """All rounds of one contestant; `ratio` compares its CPU time with the reference's in the same round."""

    name: str
    samples: list[Sample] = []
    absent: str | None = None
    idle_mb: float | None = None
    loaded_mb: float | None = None

    def median(self, field: str) -> float:
        return statistics.median(getattr(sample, field) for sample in self.samples)


class Spread(msgspec.Struct):
    median: float
    low: float
    high: float


def ratio(one: Figures, reference: Figures, field: str = "cpu_us") -> Spread:
    pairs = zip(one.samples, reference.samples, strict=True)
    return spread([getattr(ours, field) / getattr(theirs, field) for ours, theirs in pairs])


def added(one: Figures, reference: Figures, field: str = "p50_us") -> Spread:
    pairs = zip(one.samples, reference.samples, strict=True)
    return spread([getattr(ours, field) - getattr(theirs, field) for ours, theirs in pairs])


def spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


@contextlib.contextmanager
def fast_server(era: str, tools: int = 1, result_bytes: int = 200) -> Iterator[int]:
    """The server behind everybody, on the core of the load generator."""
    log = LOGS / "server.log"
    command = python("-m", "bench.fast_server", "0", "--era", era, "--tools", str(tools))
    command += ["--result-bytes", str(result_bytes)]
    with running(command, cores()[0], log, {"PYTHONPATH": str(ROOT)}) as process:
        yield int(first_line(process, log).rpartition(":")[2].partition("/")[0])


def sample(ready: Ready, job: Job) -> Sample:
    """Load one contestant; its CPU time counts from the end of the warm-up to the last answer."""
    job = msgspec.structs.replace(job, port=ready.port, path=ready.path, token=ready.token)
    if job.method == "tools/call":
        job.name = ready.tool
    log = LOGS / "load.log"
    with running_load(log) as load:
        assert load.stdin is not None and load.stdout is not None
        load.stdin.write(msgspec.json.encode(job) + b"\n")
        load.stdin.flush()
        if load.stdout.readline() != b"ready\n":
            raise NotStarted(log.read_text().strip()[-400:])
        before = sum(map(cpu_seconds, ready.pids))
        load.stdin.write(b"go\n")
        load.stdin.flush()
        line = load.stdout.readline()
        after = sum(map(cpu_seconds, ready.pids))
    if not line:
        raise NotStarted(log.read_text().strip()[-400:])
    result = msgspec.json.decode(line, type=Result)
    return Sample(
        cpu_us=(after - before) / result.count * 1e6,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        per_second=result.count / result.seconds,
        answer_bytes=result.answer_bytes,
        tools=result.tools,
        pages=result.pages,
    )


@contextlib.contextmanager
def running_load(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            python("-m", "bench.load"),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            preexec_fn=lambda: os.sched_setaffinity(0, cores()[0]),
        )
    with process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()


def compete(
    starts: dict[str, Start],
    job: Job,
    rounds: int,
    *,
    tools: int = 1,
    result_bytes: int = 200,
    apart: bool = True,
    say: Any = print,
) -> dict[str, Figures]:
    """Start everybody in front of one server, then let them take turns. Who cannot start is absent, with the reason.

    `apart`: the contestant has a core to itself.
    """
    figures = {name: Figures(name=name) for name in starts}
    ready: dict[str, Ready] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(fast_server(job.era, tools, result_bytes))
        for name, start in starts.items():
            try:
                ready[name] = stack.enter_context(start(server, cores()[apart]))
            except Exception as reason:
                figures[name].absent = str(reason) if isinstance(reason, NotInstalled) else "it did not start here"
                say(f"  {name} does not take part: {reason}")
        for name, contestant in ready.items():
            figures[name].idle_mb = resident_mb(contestant.pid) if contestant.pid else None
        for number in range(1, rounds + 1):
            for name, contestant in list(ready.items()):
                try:
                    taken = sample(contestant, job)
                except NotStarted as reason:
                    figures[name].absent = "it failed under load"
                    say(f"  {name} failed under load: {reason}")
                    del ready[name]
                    continue
                figures[name].samples.append(taken)
                say(f"  round {number}: {name:12} {taken.cpu_us:9.1f} us CPU   p50 {taken.p50_us:9.1f} us")
        for name, contestant in ready.items():
            figures[name].loaded_mb = resident_mb(contestant.pid) if contestant.pid else None
    return figures
