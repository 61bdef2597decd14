"""Is a test that passes only when it is run again alone named, counted and, where that is asked for, a failure?"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FLAKY = """
from pathlib import Path

def test_flaky():
    if not (seen := Path(__file__).with_suffix(".seen")).exists():
        seen.touch()
        raise AssertionError("beside others")

def test_good():
    pass
"""
BROKEN = "def test_broken():\n    assert False\n"


def twice(root: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (root / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "twice.py", root / "tests" / "twice.py")
    (root / "tests" / "test_it.py").write_text(source)
    (root / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "tests/twice.py", *arguments, "tests", "-p", "no:asyncio", "-p", "no:xdist"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--flaky=fail",), 1)])
def test_a_flaky_test_is_named_and_fails_the_run_where_it_is_asked_for(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    done = twice(tmp_path, FLAKY, *arguments)
    assert done.returncode == code, done.stdout
    assert "1 FLAKY: failed beside other tests and passed alone" in done.stdout
    assert "FLAKY tests/test_it.py::test_flaky (seen 1 times)" in done.stdout
    assert json.loads((tmp_path / ".cache" / "flaky.json").read_text()) == {"tests/test_it.py::test_flaky": 1}


def test_a_fault_fails_again_and_is_not_called_flaky(tmp_path: Path) -> None:
    done = twice(tmp_path, FLAKY + BROKEN)
    assert done.returncode == 1
    assert "FLAKY tests/test_it.py::test_flaky" in done.stdout
    assert "FLAKY tests/test_it.py::test_broken" not in done.stdout


def test_failures_of_an_earlier_run_are_not_counted(tmp_path: Path) -> None:
    earlier = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    earlier.parent.mkdir(parents=True)
    earlier.write_text(json.dumps({f"tests/test_gone.py::test_{number}": True for number in range(100)}))
    done = twice(tmp_path, FLAKY)
    assert done.returncode == 0, done.stdout
    assert "1 FLAKY: failed beside other tests and passed alone" in done.stdout


def test_a_good_run_is_run_once(tmp_path: Path) -> None:
    done = twice(tmp_path, "def test_good():\n    pass\n")
    assert done.returncode == 0
    assert done.stdout.count("1 passed") == 1
    assert "ONCE MORE" not in done.stdout
