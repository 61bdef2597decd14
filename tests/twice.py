"""Runs pytest, then once more, alone, what failed beside other tests: a fault fails again, a flaky test passes.

    python tests/twice.py [--flaky=fail] ARGUMENTS OF PYTEST...

What passes alone is named at the end of the run and counted in .cache/flaky.json. It does not fail the run unless
`--flaky=fail` says so (`make check-flaky`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
COUNTED = ROOT / ".cache" / "flaky.json"
TESTS_FAILED = 1
MANY = 50  # so many failures are no matter of chance
AGAIN = ("--lf", "--last-failed", "--ff", "--failed-first")
PARALLEL = ("-n", "--numprocesses", "--maxprocesses", "--dist", "--no-loadscope-reorder")


def main(arguments: list[str]) -> int:
    strict = "--flaky=fail" in arguments
    arguments = [argument for argument in arguments if argument != "--flaky=fail"]
    if not any(argument in AGAIN for argument in arguments):
        LAST_FAILED.unlink(missing_ok=True)  # what failed in an earlier run is no matter of this one
    code = _pytest(arguments)
    failed = _last_failed()
    if code != TESTS_FAILED or not failed or len(failed) > MANY:
        return code
    print(f"\nONCE MORE, ALONE: the {len(failed)} that failed beside other tests", flush=True)
    again = _pytest([*_without_workers(arguments), "--last-failed", "--last-failed-no-failures", "none"])
    flaky = sorted(failed - _last_failed()) if again in (0, TESTS_FAILED) else []
    _tell(flaky)
    return again or (TESTS_FAILED if flaky and strict else 0)


def _pytest(arguments: list[str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=os.environ, check=False
    ).returncode


def _without_workers(arguments: list[str]) -> list[str]:
    """Each of these options is written as one word, `--dist=loadfile`."""
    return [argument for argument in arguments if argument.partition("=")[0] not in PARALLEL]


def _last_failed() -> set[str]:
    return set(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else set()


def _tell(flaky: list[str]) -> None:
    if not flaky:
        return
    counted = json.loads(COUNTED.read_text(encoding="utf-8")) if COUNTED.exists() else {}
    counted |= {test: counted.get(test, 0) + 1 for test in flaky}
    COUNTED.parent.mkdir(exist_ok=True)
    COUNTED.write_text(json.dumps(counted, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"\n{'=' * 20} {len(flaky)} FLAKY: failed beside other tests and passed alone {'=' * 20}")
    for test in flaky:
        print(f"FLAKY {test} (seen {counted[test]} times)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
