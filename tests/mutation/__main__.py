"""python -m tests.mutation: does every tied test notice when what its ledger entry says is broken?

For a sample of ledger entries, lines that say that they carry the entry out (`citations`) are changed, one at a time,
in a copy of the tree, and the tied tests of that entry alone are run. A mutant that they do not notice survived. The
same seed and sources give the same sample. See CONTRIBUTING.md for how to read the result.
"""

import argparse
import functools
import json
import queue
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutation.citations import Citation, citations
from tests.mutation.mutants import Mutant, compiles, mutants
from tests.mutation.tree import ROOT, Tree

sys.path.insert(0, str(ROOT / "tools"))
from conformance import ties

BASELINE_S = 90.0  # an entry whose tied tests take longer is left out, and the report says so
BASELINES_MAX = 2  # a test that failed unchanged is run again: it may have been the load
SLOWER = 3  # times the baseline: what takes longer hangs
QUICK_FIRST = ("/pure/", "/in_process/", "tests/")
SURVIVED, KILLED, TIMEOUT = "SURVIVED", "killed", "timeout"  # a mutant that never ends is noticed


class Tried(NamedTuple):
    mutant: Mutant
    outcome: str


class Measured(NamedTuple):
    """One entry of the sample. `left_out`: why nothing is known about it."""

    entry: str
    tests: int
    tried: list[Tried]
    left_out: str | None = None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description="Mutate what tied tests guard; count survivors.")
    parser.add_argument("--entries", type=int, default=25, help="how many entries are sampled (default: 25)")
    parser.add_argument("--mutants", type=int, default=3, help="how many mutants of each at most (default: 3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID", help="these entries, or all that begin so")
    parser.add_argument("--minutes", type=float, default=15.0, help="begin nothing after so many (default: 15)")
    parser.add_argument(
        "--jobs", type=int, default=2, help="copies of the tree that are worked in at once (default: 2)"
    )
    parser.add_argument("--keep", type=float, default=5.0, metavar="PERCENT", help="fail above this rate (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--list", action="store_true", help="print the mutants that would be tried, and try none")
    asked = parser.parse_args(arguments)
    tied, guarded = tied_tests(), guarded_mutants()
    wanted = tuple(asked.only) or ("",)
    names = sorted(name for name in tied if guarded.get(name) and any(is_asked(name, one) for one in wanted))
    random.Random(asked.seed).shuffle(names)
    chosen = {name: sample(guarded[name], asked.mutants, f"{asked.seed} {name}") for name in names[: asked.entries]}
    if asked.list:
        print("\n".join(_row(name, mutant) for name in chosen for mutant in chosen[name]))
        return 0
    _say(f"{len(chosen)} of {len(names)} entries with cited lines ({len(tied)} are tied), seed {asked.seed}")
    measured = list(_measure(chosen, tied, asked.jobs, 60 * asked.minutes))
    rate = survival(measured)
    if asked.json:
        print(_as_json(measured, asked.seed, rate))
    else:
        print(_as_table(measured, rate))
    return int(rate is None or rate > asked.keep)


def is_asked(name: str, asked: str) -> bool:
    """Whether an entry is the one asked for, or of the clause, specification or part of it asked for."""
    return name == asked or name.startswith(asked if asked.endswith(("-", ".")) or not asked else (asked + "-"))


def tied_tests() -> dict[str, list[str]]:
    """The tests of each entry, quick ones first: the first that fails ends the run."""
    tied = defaultdict(list)
    for tie in ties(ROOT):
        if not tie.expected_to_fail and not tie.test.startswith("tests/conformance/"):  # which need other programs
            tied[tie.id].append(tie.test)

    def rank(test: str) -> int:
        return next(number for number, folder in enumerate(QUICK_FIRST) if folder in test)

    return {name: sorted(tests, key=rank) for name, tests in tied.items()}


@functools.cache
def all_citations() -> dict[str, list[Citation]]:
    """By file."""
    files = sorted((ROOT / "src").rglob("*.py"))
    return {str(path.relative_to(ROOT)): citations(path.read_bytes()) for path in files}


@functools.cache
def guarded_mutants() -> dict[str, list[list[Mutant]]]:
    """The mutants of the lines that cite each entry, by line."""
    found: dict[str, dict[tuple[str, int], list[Mutant]]] = defaultdict(dict)
    for file, cited in all_citations().items():
        possible = mutants((ROOT / file).read_bytes(), file) if cited else []
        for one in cited:
            for mutant in possible:
                if one.first <= mutant.line <= one.last:
                    found[one.entry].setdefault((file, mutant.line), []).append(mutant)
    return {entry: list(by_line.values()) for entry, by_line in found.items()}


def sample(by_line: list[list[Mutant]], most: int, seed: str) -> list[Mutant]:
    """Some mutants, of different lines as long as there are such."""
    dice = random.Random(seed)
    left = [dice.sample(of_line, len(of_line)) for of_line in dice.sample(by_line, len(by_line))]
    found: list[Mutant] = []
    while left and len(found) < most:
        for of_line in left:
            mutant = of_line.pop()
            if len(found) < most and compiles(mutant.applied((ROOT / mutant.file).read_bytes())):
                found.append(mutant)
        left = [of_line for of_line in left if of_line]
    return found


def _measure(
    chosen: Mapping[str, list[Mutant]], tied: Mapping[str, list[str]], jobs: int, seconds: float
) -> Iterator[Measured]:
    began = time.monotonic()
    done: Counter[str] = Counter()
    trees: queue.Queue[Tree] = queue.Queue()

    def say(text: str) -> None:
        minutes, rest = divmod(int(time.monotonic() - began), 60)
        _say(f"{minutes:>2}:{rest:02} {text}")

    def measure(entry: str) -> Measured:
        tests = tied[entry]
        tree = trees.get()
        try:
            if time.monotonic() - began > seconds:
                return Measured(entry, len(tests), [], "the time was over")
            seconds_taken, passed = _baseline(tree, tests)
            if not passed:
                why = f"its tests take more than {BASELINE_S:g} s" if passed is None else "its tests do not pass"
                say(f"{entry:<18} left out: {why}")
                return Measured(entry, len(tests), [], why)
            limit = SLOWER * seconds_taken + 20
            tried = []
            for mutant in chosen[entry]:
                if time.monotonic() - began > seconds:
                    break
                with tree.mutated(mutant):
                    passed = tree.run(tests, limit)
                tried.append(Tried(mutant, {True: SURVIVED, False: KILLED, None: TIMEOUT}[passed]))
                say(f"{tried[-1].outcome:<9} {_row(entry, mutant)}")
            return Measured(entry, len(tests), tried)
        finally:
            done["entries"] += 1
            say(f"{done['entries']} of {len(chosen)} entries")
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="interlock-mutation-") as folder:
        for number in range(jobs):
            (Path(folder) / str(number)).mkdir()
            trees.put(Tree(Path(folder) / str(number)))
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(measure, chosen)


def _baseline(tree: Tree, tests: list[str]) -> tuple[float, bool | None]:
    """How long the tests take unchanged, and whether they pass."""
    for _ in range(BASELINES_MAX):
        began = time.monotonic()
        if (passed := tree.run(tests, BASELINE_S)) is not False:
            break
    return time.monotonic() - began, passed


def survival(measured: Sequence[Measured]) -> float | None:
    """Percent of the mutants tried; None when none was."""
    outcomes = [each.outcome for one in measured for each in one.tried]
    return 100 * outcomes.count(SURVIVED) / len(outcomes) if outcomes else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _row(entry: str, mutant: Mutant) -> str:
    place = f"{mutant.file.removeprefix('src/interlock/')}:{mutant.line}"
    return f"{entry:<18} {place:<54} {mutant.change}"


def _as_table(measured: Sequence[Measured], rate: float | None) -> str:
    lines = [f"{'entry':<18} {'tests':>5} {'mutants':>7} {'survived':>8}"]
    for one in measured:
        survived = sum(each.outcome == SURVIVED for each in one.tried)
        note = f"  left out: {one.left_out}" if one.left_out else ""
        lines.append(f"{one.entry:<18} {one.tests:>5} {len(one.tried):>7} {survived:>8}{note}")
    alive = [(one.entry, each.mutant) for one in measured for each in one.tried if each.outcome == SURVIVED]
    if alive:
        lines += ["", "Survivors:", *(_row(*each) for each in alive)]
    outcomes = Counter(each.outcome for one in measured for each in one.tried)
    counts = ", ".join(f"{outcomes[each]} {each}" for each in (KILLED, TIMEOUT, SURVIVED)).lower()
    entries = sum(bool(one.tried) for one in measured)
    share = "nothing was tried" if rate is None else f"{rate:.1f} % survived"
    return "\n".join([*lines, "", f"{outcomes.total()} mutants of {entries} entries: {counts}; {share}"])


def _as_json(measured: Sequence[Measured], seed: int, rate: float | None) -> str:
    entries = [
        {
            "id": one.entry,
            "tests": one.tests,
            "left_out": one.left_out,
            "mutants": [
                {"file": each.mutant.file, "line": each.mutant.line, "change": each.mutant.change, "is": each.outcome}
                for each in one.tried
            ],
        }
        for one in measured
    ]
    return json.dumps({"seed": seed, "survived_percent": rate, "entries": entries}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
