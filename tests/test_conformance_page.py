"""Does docs/conformance.md say what ledger and tests say, and does a test run refuse what the ledger does not have?"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LEDGER = """
spec: Testing
source: nowhere
prefix: T
requirements:
  - id: T-1.1-1
    level: MUST
    says: >-
      The first `a|b` <thing> holds. More about it.
    shown_by: x
  - id: T-1.1-2
    level: SHAPE
    says: The second thing holds.
    shown_by: x
  - id: T-2-1
    level: MAY
    says: The third thing holds.
    shown_by: x
"""


class Project:
    """A small tree with a ledger of three entries and the project's own script and conftest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in (
            "tools/conformance.py",
            "tests/conftest.py",
            "tests/preloaded.py",
            "tests/support/prompt_server.py",
            "tests/support/process_guard.py",
            "tests/support/scale.py",
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        (root / "spec").mkdir()
        (root / "spec/ledger.yaml").write_text(LEDGER)
        (root / "pytest.ini").write_text("[pytest]\nmarkers = req(*ids): x\ntestpaths = tests\n")
        self.page = root / "docs/conformance.md"
        self.record = root / ".cache/requirements.json"

    def test_file(self, text: str, name: str = "test_it.py") -> None:
        (self.root / "tests" / name).write_text("import pytest\n" + text)

    def conformance(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("tools/conformance.py", *arguments)

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", *arguments)

    def row(self, identifier: str) -> list[str]:
        line = next(line for line in self.page.read_text().splitlines() if line.startswith(f"| {identifier} |"))
        return [cell.strip() for cell in line.strip("|").split(" | ")]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.root, capture_output=True, text=True, timeout=50, check=False
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


SHOWN = '@pytest.mark.req("T-1.1-1", "T-2-1")\ndef test_shows():\n    pass\n'


def test_the_committed_page_is_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, "tools/conformance.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_the_page_names_the_tests_that_show_an_entry_and_counts_the_rest(project: Project) -> None:
    project.test_file(SHOWN)
    assert project.conformance().returncode == 0
    assert project.row("T-1.1-1") == [
        "T-1.1-1",
        "MUST",
        "The first `a\\|b` &lt;thing> holds",
        "shown",
        "`tests/test_it.py::test_shows`",
    ]
    assert project.row("T-1.1-2")[3] == "not yet"
    assert project.row("Testing") == ["Testing", "3", "2", "0", "1", "1 of 2"]


def test_the_page_is_the_same_each_time_and_check_sees_a_new_marker(project: Project) -> None:
    project.test_file(SHOWN)
    project.conformance()
    first = project.page.read_text()
    project.conformance()
    assert project.page.read_text() == first
    assert project.conformance("--check").returncode == 0
    project.test_file('@pytest.mark.req("T-1.1-2")\ndef test_more():\n    pass\n', "test_more.py")
    stale = project.conformance("--check")
    assert stale.returncode == 1
    assert "run: python tools/conformance.py" in stale.stderr
    assert project.page.read_text() == first


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.req("T-2-1")\nclass TestIt:\n    def test_shows(self):\n        pass\n',
        'pytestmark = [pytest.mark.req("T-2-1")]\ndef test_shows():\n    pass\n',
        '@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.req("T-2-1"))])\n'
        "def test_shows(n):\n    pass\n",
        '@pytest.mark.req("T-2-1")\nasync def test_shows():\n    pass\n',
    ],
)
def test_a_marker_is_found_wherever_pytest_accepts_a_marker(project: Project, source: str) -> None:
    project.test_file(source)
    assert project.conformance().returncode == 0
    assert project.row("T-2-1")[3] == "shown"


@pytest.mark.parametrize("mark", ["skip", "xfail(reason='x')"])
def test_an_entry_whose_only_test_is_expected_to_fail_is_failing(project: Project, mark: str) -> None:
    project.test_file(f"@pytest.mark.{mark}\n{SHOWN}")
    project.conformance()
    assert project.row("T-1.1-1")[3] == "failing"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('@pytest.mark.req("T-9-9")\ndef test_shows():\n    pass\n', "names T-9-9, which the ledger does not have"),
        ('ID = "T-2-1"\n@pytest.mark.req(ID)\ndef test_shows():\n    pass\n', "write the ids"),
        ('@pytest.mark.req("T-2-1")\ndef shows():\n    pass\n', "is no test"),
    ],
)
def test_a_wrong_marker_is_an_error_that_says_where(project: Project, source: str, complaint: str) -> None:
    project.test_file(source)
    refused = project.conformance()
    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert "tests/test_it.py" in refused.stderr
    assert not project.page.exists()


def test_an_id_used_twice_in_the_ledger_is_an_error(project: Project) -> None:
    (project.root / "spec/other.yaml").write_text(LEDGER)
    assert "T-1.1-1 is there twice" in project.conformance().stderr


def test_a_run_with_an_unknown_id_stops_at_collection(project: Project) -> None:
    project.test_file('@pytest.mark.req("T-9-9")\ndef test_shows():\n    pass\n')
    refused = project.pytest()
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "T-9-9" in refused.stderr
    assert "passed" not in refused.stdout


def test_a_full_run_records_the_worst_outcome_of_each_test_and_a_partial_run_nothing(project: Project) -> None:
    project.test_file(
        '@pytest.mark.req("T-2-1")\n@pytest.mark.parametrize("n", [0, 1, 2])\n'
        "def test_cases(n):\n    if n == 2:\n        pytest.skip('not here')\n\n" + SHOWN
    )
    project.pytest("-k", "shows")
    project.pytest("tests/test_it.py")
    assert not project.record.exists()
    finished = project.pytest()
    assert finished.returncode == 0
    assert json.loads(project.record.read_text()) == {
        "tests/test_it.py::test_cases": {"ids": ["T-2-1"], "outcome": "skipped"},
        "tests/test_it.py::test_shows": {"ids": ["T-1.1-1", "T-2-1"], "outcome": "passed"},
    }
    assert "NOT shown by this run" in finished.stdout
    assert "tests/test_it.py::test_cases: T-2-1" in finished.stdout


def test_the_page_is_not_written_over_a_failed_test(project: Project) -> None:
    project.test_file(SHOWN.replace("pass", "assert False"))
    assert project.pytest().returncode == pytest.ExitCode.TESTS_FAILED
    refused = project.conformance()
    assert refused.returncode == 1
    assert "failed in the last full run: tests/test_it.py::test_shows" in refused.stderr
    assert not project.page.exists()


def test_a_marked_test_that_pytest_never_collects_fails_a_full_run(project: Project) -> None:
    project.test_file(SHOWN)
    project.test_file('@pytest.mark.req("T-1.1-2")\ndef test_alone():\n    pass\n', "forgotten.py")
    finished = project.pytest()
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED
    assert "T-1.1-2: its test is in the source but was not collected" in finished.stdout
