"""python -m tests.conformance [TRIAL ...] [--write]: run the official suite, print what differs from the expected."""

import argparse
import sys

from tests import preloaded
from tests.conformance import page, verdict
from tests.conformance.trials import TRIALS


def main() -> int:
    names = [trial.name for trial in TRIALS]
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("trial", nargs="*", metavar="TRIAL", help=", ".join(names))
    parser.add_argument("--write", action="store_true", help="write docs/conformance-suite.md from what was kept")
    options = parser.parse_args()
    unknown = set(options.trial) - set(names)
    if unknown:
        parser.error(f"no such trial: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    preloaded.install()
    red = 0
    for trial in TRIALS:
        if trial.name in (options.trial or ([] if options.write else names)):
            results = trial.run()
            verdict.keep(trial, results)
            complaints = verdict.judge(trial, results)
            passed = sum(scenario.passed for scenario in results.values())
            print(f"{trial.name}: {passed} checks passed, {len(complaints)} complaints")
            for complaint in complaints:
                print(f"  {complaint}")
            red += bool(complaints)
    if options.write:
        page.write()
        print("wrote docs/conformance-suite.md")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
