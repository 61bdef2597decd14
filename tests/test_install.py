"""Does the first set-up say what it does while it does it, on a terminal and elsewhere?"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAYING = "print('Collecting one'); print('Collecting two>=2'); print('Installing collected packages: one, two'); "
STEP = """
import sys, install
install.TICK_S, install.STILL_S = 0.05, 0.2
with install.Step("[1/1] a step") as step:
    step.run(sys.executable, "-c", sys.argv[1])
print("behind it")
"""


def run(said: str, **options: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", STEP, said]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options)  # type: ignore[call-overload]


def test_without_a_terminal_each_step_is_a_line_and_a_long_step_reports_progress() -> None:
    process = run(f"{SAYING}import time; time.sleep(0.5)", stdout=subprocess.PIPE)
    printed = process.communicate(timeout=20)[0].decode()
    assert "\r" not in printed
    assert "\033" not in printed
    first, *still, last, behind = printed.splitlines()
    assert first == "[1/1] a step ..."
    assert re.fullmatch(r"  \[1/1\] a step: installing 2 packages, \d+ s", still[-1])
    assert re.fullmatch(r"\[1/1\] a step: done in \d+\.\d s", last)
    assert behind == "behind it"


def test_on_a_terminal_one_line_is_written_over() -> None:
    ours, theirs = pty.openpty()
    process = run("print('Collecting one', flush=True); import time; time.sleep(0.4)", stdout=theirs)
    os.close(theirs)
    printed = b""
    while process.poll() is None or b"behind it" not in printed:
        try:
            printed += os.read(ours, 4096)
        except OSError:
            break
    os.close(ours)
    assert process.wait(20) == 0
    assert b"\r\x1b[K[1/1] a step: 1 packages found, now one, 0 s" in printed
    assert printed.count(b"\n") == 2


def test_a_step_that_fails_shows_why_and_ends_the_program() -> None:
    process = run(
        "print('no matching distribution'); raise SystemExit(7)", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    printed, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"[1/1] a step: failed\nno matching distribution" in printed
    assert b"ended with code 7" in errors
    assert b"behind it" not in printed


@pytest.mark.parametrize("words", [[], ["folder", "--group", "nonesuch"]])
def test_a_wrong_use_is_refused(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "install.py", *words], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode != 0
