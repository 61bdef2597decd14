"""python -m tests.soak: chaos, load and long fuzzing, and docs/soak.md about what they found.

The tests of tests/soak, and those of `make test` that are about many of the same, with TESTS_SOAK=1: many more
examples of every property, more calls in every loop. SOAK_SECONDS is how long servers are killed
under load, SOAK_MIXED_SECONDS how long a node is under everything at once.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "soak.md"
FUZZ = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/*/fuzz"))
PURE = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/*/pure"))
PARTS = {
    "Servers killed under load": ["tests/soak"],
    "Long fuzzing": [
        *FUZZ,
        "tests/config/in_process/test_config_hostile.py",
        "tests/config/in_process/test_config_schema.py",
    ],
    "Properties of the protocol": PURE,
    "Real nodes with many of everything": [
        "tests/links/processes/test_bad_servers_chaos.py",
        "tests/ax/processes/test_killed.py",
        "tests/drivers/processes/test_drivers_many.py",
    ],
    "Many calls, nothing kept": [
        "tests/dispatch/processes/test_across_eras_parked_time.py",
        "tests/catalog/in_process/test_changing_namespace.py",
        "tests/node/processes/test_calls_leave_nothing.py",
    ],
}
WORKERS = ["--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal"]


def main(arguments: list[str]) -> int:
    """`--part TITLE` runs one part again and keeps what the page says of the others; the rest is for pytest."""
    only = None
    if arguments[:1] == ["--part"]:
        only, arguments = arguments[1], arguments[2:]
        if only not in PARTS:
            sys.exit(f"there is no part {only!r}: {', '.join(PARTS)}")
    told = _told() if only is not None else {}
    red = 0
    for title, paths in PARTS.items():
        if only in (None, title):
            told[title], code = _run(title, paths, arguments)
            red = red or code
    PAGE.write_text(_page(told), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return red


def _run(title: str, paths: list[str], arguments: list[str]) -> tuple[list[str], int]:
    """The row of a part, then its notes; and how pytest ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        more = [] if "tests/soak" in paths else WORKERS  # what is held to a size is alone
        command = [sys.executable, "-m", "pytest", "-q", "--timeout=1800", f"--junitxml={report}", *more]
        command += ["-o", "junit_family=xunit1"]  # the one that takes the notes of a test
        environment = {**os.environ, "TESTS_SOAK": "1"}
        done = subprocess.run([*command, *paths, *arguments], cwd=ROOT, env=environment, check=False)
        suites = list(xml.parse(report).iter("testsuite")) if report.exists() else []
    tests, failed, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "skipped")
    )
    failed += sum(int(suite.get("errors", 0)) for suite in suites)
    minutes = (time.monotonic() - began) / 60
    notes = [f"- {one.get('value')}" for suite in suites for one in suite.iter("property") if one.get("name") == "soak"]
    at = f"{time.strftime('%Y-%m-%d', time.gmtime())}, {_commit()}"
    return [f"| {title} | {tests} | {failed} | {skipped} | {minutes:.1f} | {at} |", *notes], done.returncode


def _told() -> dict[str, list[str]]:
    """What the page says: the row of each part; the notes are all of the first."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    told = {line.split(" | ")[0][2:]: [line] for line in lines if line.startswith("| ") and line.count("|") == 7}
    told.pop("part", None)
    if (first := next(iter(PARTS))) in told:
        told[first] += [line for line in lines if line.startswith("- ")]
    return told


def _commit() -> str:
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return head.stdout.strip() or "an unknown commit"


def _page(told: dict[str, list[str]]) -> str:
    notes = [line for title in PARTS if title in told for line in told[title][1:]]
    lines = [
        "# Soak",
        "",
        "Written by `make soak`, which runs chaos, load and long fuzzing. Do not edit.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| part | tests | failed | skipped | minutes | at |",
        "|---|---|---|---|---|---|",
        *(told[title][0] for title in PARTS if title in told),
    ]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
