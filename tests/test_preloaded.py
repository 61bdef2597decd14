"""Is a copy of the preloaded process what the same command would be in an interpreter of its own?"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import preloaded

PROGRAM = [sys.executable, "-m", "interlock"]
SHOWING = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv, "name": __name__, "cwd": os.getcwd(), "env": dict(os.environ), "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(), "input": sys.stdin.read(), "path": sys.path[0],
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "broken_pipe": signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN,
}))
sys.exit(7)
"""
COPYING = """
import subprocess, sys

def test_a_copy_is_made():
    assert subprocess.run([sys.executable, "-m", "interlock", "--version"], check=False).returncode == 0
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux only")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(preloaded, "SCRIPTS", tmp_path)
    path = tmp_path / "showing.py"
    path.write_text(SHOWING)
    return path


def shown(script: Path, **options: Any) -> Any:
    command = [sys.executable, str(script), "one", "zwei é"]
    done = subprocess.run(command, input="in é", capture_output=True, text=True, timeout=30, check=False, **options)
    assert (done.returncode, done.stderr) == (7, "")
    return json.loads(done.stdout)


@linux
def test_a_copy_sees_what_a_new_interpreter_sees(script: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"cwd": tmp_path, "start_new_session": True}
    copied = shown(script, env={**os.environ, "MINE": "é"}, **given)
    plain = shown(script, env={**os.environ, "MINE": "é", preloaded.PLAIN: "1"}, **given)
    assert plain["env"].pop(preloaded.PLAIN) == "1"
    assert copied == plain
    assert (copied["parent"], copied["input"], copied["env"]["MINE"]) == (os.getpid(), "in é", "é")


@linux
def test_a_copy_is_shown_with_the_command_line_of_its_command() -> None:
    with subprocess.Popen([*PROGRAM, "serve", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as node:
        shown = Path(f"/proc/{node.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        node.kill()
    assert node.returncode == -signal.SIGKILL
    assert [os.fsdecode(word) for word in shown] == [*PROGRAM, "serve", "--stdio"]


async def test_a_copy_can_be_awaited() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*PROGRAM, "version", "--nonsense", stdout=pipe, stderr=pipe)
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2 and b"--nonsense" in errors


@pytest.mark.parametrize("plain", [{}, {preloaded.PLAIN: "1"}], ids=["copied", "plain"])
def test_a_setting_is_in_effect_and_a_setting_that_names_nothing_is_an_error(
    script: Path, plain: dict[str, str]
) -> None:
    script.write_text("import textwrap\nprint(textwrap._whitespace)\n")

    def ran(name: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **preloaded.settings({name: "9.9.9"}), **plain}
        command = [sys.executable, str(script)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)

    assert ran("textwrap:_whitespace").stdout == "9.9.9\n"
    failed = ran("textwrap:nonesuch")
    assert failed.returncode == 1 and "nonesuch" in failed.stderr


@linux
def test_an_interpreter_that_would_start_otherwise_is_no_copy(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('from the path')\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*PROGRAM, "status"], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert "from the path" in done.stderr


@linux
def test_a_module_of_the_tests_is_copied_unless_its_memory_is_allocated_otherwise() -> None:
    command = [sys.executable, "-m", "tests.support.shown_modules"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("preloaded\n", "")
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("new\n", "")


@linux
def test_a_run_that_made_copies_ends_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "test_copying.py").write_text(COPYING)
    command = [sys.executable, "-W", "always", "-m", "pytest", "-q", "--rootdir", ".", "-c", "pyproject.toml"]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path / "test_copying.py")]
    done = subprocess.run(command, cwd=preloaded.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
