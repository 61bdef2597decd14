"""How long a newcomer waits: `python -m bench.first_run [--quick]`.

A clone of this repository, `make run` in it, and the first call, as the README has it. The first round is not counted:
it fills the caches of pip and npm, because what is measured is not the network. Packages are installed again each time.
"""

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.measure import Spread, spread
from bench.processes import ROOT

ENVIRONMENT, FIRST_CALL, ALL_SERVERS = "clone to environment", "clone to first call", "clone to all three servers"
STEPS = (ENVIRONMENT, FIRST_CALL, ALL_SERVERS)
ROUNDS = 3
PATIENCE_S = 300.0
LOOK_S = 0.1


class FirstRun(msgspec.Struct, kw_only=True):
    seconds: dict[str, list[float]]  # step -> one figure per round

    def spread_of(self, step: str) -> Spread | None:
        return spread(self.seconds[step]) if self.seconds.get(step) else None


def measure(quick: bool, say: Callable[[str], None]) -> FirstRun:
    found: dict[str, list[float]] = {step: [] for step in STEPS}
    for number in range(1 + (1 if quick else ROUNDS)):
        taken = run_once()
        say(f"  round {number}: " + ", ".join(f"{step} {seconds:.1f} s" for step, seconds in taken.items()))
        if number:
            for step, seconds in taken.items():
                found[step].append(seconds)
    return FirstRun(seconds=found)


def run_once() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "interlock"
        own = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
        listen = {"INTERLOCK_NODE__LISTEN": "127.0.0.1:0", "INTERLOCK_NODE__OPERATOR_LISTEN": "127.0.0.1:0"}
        env = {**own, **listen}
        began = time.monotonic()
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        with (Path(folder) / "run.log").open("wb") as log:
            node = subprocess.Popen(["make", "run"], cwd=clone, env=env, stdout=log, stderr=log, start_new_session=True)
            try:
                return dict(_steps(clone, env, node, began))
            finally:
                os.killpg(node.pid, signal.SIGTERM)
                node.wait(30)


def _steps(
    clone: Path, env: dict[str, str], node: "subprocess.Popen[bytes]", began: float
) -> "list[tuple[str, float]]":
    config = ("--config", str(clone / ".run" / "tree" / "interlock.toml"))

    def says(*words: str) -> str:
        command = [str(clone / ".venv" / "bin" / "interlock"), *words, *config]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def wait(step: str, is_there: Callable[[], bool]) -> tuple[str, float]:
        while not is_there():
            if node.poll() is not None or time.monotonic() - began > PATIENCE_S:
                raise RuntimeError(f"{step}: make run ended, or took longer than {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
        return step, time.monotonic() - began

    return [
        wait(ENVIRONMENT, (clone / ".venv" / ".product").exists),
        wait(
            FIRST_CALL,
            lambda: (
                (clone / ".run" / "data" / "run" / "admin.sock").exists()
                and "celsius" in says("tools", "call", "greenhouse.read_climate")
            ),
        ),
        wait(ALL_SERVERS, lambda: says("status").count(" ready ") == 3),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.first_run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    measure(parser.parse_args().quick, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
