"""Where the time of a call goes: `python -m bench.profile_call [--calls N] [--sort tottime|cumtime] [--lines N]`.

Loads a node with calls and profiles its event loop meanwhile, with cProfile (which slows it down: shares, not figures).
With py-spy installed, `--flame FILE.svg` samples without slowing and draws a flame graph instead.
"""

import argparse
import cProfile
import os
import pstats
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import contestants
from bench.load import Job
from bench.measure import fast_server, sample
from bench.processes import cores

PROFILED = "BENCH_PROFILE_INTO"
DUMP_SECONDS = 10.0


def profiled_node() -> None:
    """In the node's process: run Interlock, profile between SIGUSR1 and SIGUSR2, then write the profile."""
    profile = cProfile.Profile(builtins=True)
    into = os.environ[PROFILED]

    def finish(*_: object) -> None:
        profile.disable()
        profile.dump_stats(into + ".part")
        Path(into + ".part").replace(into)

    signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
    signal.signal(signal.SIGUSR2, finish)
    sys.argv[:] = sys.argv[1:]
    runpy.run_module("interlock", run_name="__main__", alter_sys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--era", choices=("modern", "legacy"), default="modern")
    parser.add_argument("--server", choices=("modern", "legacy"), help="the server's era, where it is another")
    parser.add_argument("--sort", default="tottime")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--flame", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    job = Job(port=0, era=options.era, warmup=2000, count=options.calls)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "profile"
        os.environ[PROFILED] = str(into)
        program = ("-m", "interlock") if options.flame else ("-m", "bench.profile_call", "--node")
        with (
            fast_server(options.server or options.era) as server,
            contestants.interlock(server, cores()[1], program) as node,
        ):
            assert node.pid is not None
            if options.flame:
                flame(options.flame, node, job)
                return
            sample(node, Job(port=0, era=options.era, warmup=100, count=2000))
            os.kill(node.pid, signal.SIGUSR1)
            sample(node, job)
            os.kill(node.pid, signal.SIGUSR2)
            deadline = time.monotonic() + DUMP_SECONDS
            while not into.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        total = job.count + job.warmup
        print(f"{total} calls; divide by it for the share of one")
        pstats.Stats(str(into)).strip_dirs().sort_stats(options.sort).print_stats(options.lines)


def flame(into: Path, node: contestants.Ready, job: Job) -> None:
    spy = shutil.which("py-spy")
    if spy is None:
        sys.exit("py-spy is not installed: pip install py-spy, or leave --flame away for cProfile")
    recording = subprocess.Popen([spy, "record", "--pid", str(node.pid), "--output", str(into), "--rate", "500"])
    sample(node, job)
    recording.send_signal(signal.SIGINT)
    recording.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        profiled_node()
    else:
        main()
