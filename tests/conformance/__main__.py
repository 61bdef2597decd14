"""python -m tests.conformance [CELL ...] [--write] [--list]: run the official suite, print what differs."""

import argparse
import sys

from tests.conformance import page, suite


def main() -> int:
    names = [cell.name for cell in suite.CELLS]
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("cell", nargs="*", metavar="CELL", help=", ".join(names))
    parser.add_argument("--write", action="store_true", help="write docs/conformance-suite.md from what was kept")
    options = parser.parse_args()
    unknown = set(options.cell) - set(names)
    if unknown:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    red = 0
    for cell in suite.CELLS:
        if cell.name in (options.cell or names):
            with suite.target(cell) as url:
                results = suite.run(cell, url)
            suite.keep(cell, results)
            complaints = suite.judge(cell, results)
            passed = sum(scenario.passed for scenario in results.values())
            print(f"{cell.name}: {passed} checks passed, {len(complaints)} complaints")
            for complaint in complaints:
                print(f"  {complaint}")
            red += bool(complaints)
    if options.write:
        page.write()
        print("wrote docs/conformance-suite.md")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
