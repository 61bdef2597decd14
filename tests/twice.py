"""Run pytest, then run what failed once more, alone: a fault fails again, a flaky test passes.

    python tests/twice.py [--flaky=fail] ARGUMENTS OF PYTEST...

A test that passes alone is named at the end of the run and counted in .cache/flaky.json. It fails the run only with
`--flaky=fail` (`make check-flaky`).
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
FLAKY_MAX = 50  # more failures than that have a common cause
AGAIN = ("--lf", "--last-failed", "--ff", "--failed-first")
PARALLEL = ("-n", "--numprocesses", "--maxprocesses", "--dist", "--no-loadscope-reorder")


def main(arguments: list[str]) -> int:
    strict = "--flaky=fail" in arguments
    arguments = [argument for argument in arguments if argument != "--flaky=fail"]
    if not any(argument in AGAIN for argument in arguments):
        LAST_FAILED.unlink(missing_ok=True)  # failures of an earlier run do not count
    code = _pytest(arguments)
    failed = _last_failed()
    if code != TESTS_FAILED or not failed or len(failed) > FLAKY_MAX:
        return code
    print(f"\nRUNNING AGAIN, ALONE: {len(failed)} tests that failed beside others", flush=True)
    again = _pytest([*_without_workers(arguments), "--last-failed", "--last-failed-no-failures", "none"])
    flaky = sorted(failed - _last_failed()) if again in (0, TESTS_FAILED) else []
    _report(flaky)
    return again or (TESTS_FAILED if flaky and strict else 0)


def _pytest(arguments: list[str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=os.environ, check=False
    ).returncode


def _without_workers(arguments: list[str]) -> list[str]:
    """Return the arguments without options about workers, each of which is one word such as `--dist=loadfile`."""
    return [argument for argument in arguments if argument.partition("=")[0] not in PARALLEL]


def _last_failed() -> set[str]:
    return set(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else set()


def _report(flaky: list[str]) -> None:
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
