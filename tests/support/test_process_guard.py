"""Is a test that starts a process found out when its folder says that it starts none?"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STARTS = {
    "run": "subprocess.run([sys.executable, '-c', ''])",
    "a caught failure": "try: subprocess.run(['true'])\n    except BaseException: pass",
    "asyncio": "asyncio.run(asyncio.create_subprocess_exec('true'))",
    "a copy": "os.fork() or os._exit(0)",
    "a shell": "os.system('true')",
}


def outcome(folder: Path, kind: str, statement: str) -> str:
    (folder / "tests" / "support").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "support" / "process_guard.py", folder / "tests" / "support")
    (folder / "conftest.py").write_text(
        "from tests.support.process_guard import ProcessGuard\n"
        "def pytest_configure(config): config.pluginmanager.register(ProcessGuard())\n"
    )
    (folder / "tests" / kind).mkdir()
    (folder / "tests" / kind / "test_it.py").write_text(
        f"import asyncio, os, subprocess, sys\ndef test_it():\n    {statement}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "tests"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("statement", STARTS.values(), ids=STARTS)
def test_a_process_started_in_process_is_refused(tmp_path: Path, statement: str) -> None:
    assert "move it to the folder `processes`" in outcome(tmp_path, "in_process", statement)


def test_tests_with_processes_start_them(tmp_path: Path) -> None:
    assert "1 passed" in outcome(tmp_path, "processes", STARTS["run"])
