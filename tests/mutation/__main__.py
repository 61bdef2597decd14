"""python -m tests.mutation: does every tied test notice when what its ledger entry says is broken?

For a sample of ledger entries, lines that say that they carry the entry out (`citations`) are changed, one at a time,
in a copy of the tree, and the tied tests of that entry alone are run. A mutant that they do not notice survived. The
same seed and sources give the same sample. See CONTRIBUTING.md for how to read the result.

With `--uncited`, the lines are those of a package that no entry cites, and the tests are those of that package.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutation.citations import Citation, citations
from tests.mutation.mutants import Mutant, compiles, mutants
from tests.mutation.tree import ROOT, Tree
from tests.mutation.uncited import packages_with_tests, staged_tests, uncited_mutants

sys.path.insert(0, str(ROOT / "tools"))
from conformance import ties

BASELINE_S = 90.0  # an entry whose tied tests take longer is left out, and the report says so
PACKAGE_BASELINE_S = 600.0  # the same for all tests of a package
MUTANTS_OF_ENTRY, MUTANTS_OF_PACKAGE = 3, 10
BASELINES_MAX = 2  # a test that failed unchanged is run again: it may have been the load
SLOWER = 3  # times the baseline: what takes longer hangs
QUICK_FIRST = ("/pure/", "/in_process/", "tests/")
SURVIVED, KILLED, TIMEOUT = "SURVIVED", "killed", "timeout"  # a mutant that never ends is noticed


class Tried(NamedTuple):
    mutant: Mutant
    outcome: str


class Subject(NamedTuple):
    """An entry with mutants of its cited lines and its tied tests, or a package with its uncited lines and its tests.

    The tests of a later stage run only if the earlier stages did not notice a mutant.
    """

    name: str
    mutants: list[Mutant]
    stages: list[list[str]]
    baseline_s: float


class Measured(NamedTuple):
    """An entry or package of the sample. `left_out`: why nothing is known about it."""

    name: str
    tests: int
    tried: list[Tried]
    left_out: str | None = None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description="Mutate what tied tests guard; count survivors.")
    parser.add_argument("--entries", type=int, default=25, help="how many entries are sampled (default: 25)")
    parser.add_argument(
        "--mutants",
        type=int,
        help=f"how many mutants of each at most (default: {MUTANTS_OF_ENTRY} of an entry, "
        f"{MUTANTS_OF_PACKAGE} of a package)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID", help="these entries, or all that begin so")
    parser.add_argument(
        "--uncited",
        nargs="*",
        metavar="PACKAGE",
        help="change lines of these packages, or of all, that no entry cites, and run the tests of the package",
    )
    parser.add_argument("--quick", action="store_true", help="with --uncited: only the tests that start no process")
    parser.add_argument("--minutes", type=float, default=15.0, help="begin nothing after so many (default: 15)")
    parser.add_argument(
        "--jobs", type=int, default=2, help="copies of the tree that are worked in at once (default: 2)"
    )
    parser.add_argument("--keep", type=float, default=5.0, metavar="PERCENT", help="fail above this rate (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--list", action="store_true", help="print the mutants that would be tried, and try none")
    asked = parser.parse_args(arguments)
    if asked.uncited is None:
        subjects, of_how_many = sampled_entries(
            asked.only, asked.entries, asked.mutants or MUTANTS_OF_ENTRY, asked.seed
        )
    else:
        packages = packages_with_tests()
        if unknown := set(asked.uncited) - set(packages):
            parser.error(f"no package with tests is called {', '.join(sorted(unknown))}")
        most = asked.mutants or MUTANTS_OF_PACKAGE
        subjects = sampled_packages(asked.uncited or packages, most, asked.seed, quick=asked.quick)
        of_how_many = f"{len(packages)} packages with tests"
    if asked.list:
        print("\n".join(_row(subject.name, mutant) for subject in subjects for mutant in subject.mutants))
        return 0
    _say(f"{len(subjects)} of {of_how_many}, seed {asked.seed}")
    measured = list(_measure(subjects, asked.jobs, 60 * asked.minutes))
    rate = survival(measured)
    kind = "entries" if asked.uncited is None else "packages"
    if asked.json:
        print(_as_json(measured, asked.seed, rate, kind))
    else:
        print(_as_table(measured, rate, kind))
    return int(rate is None or rate > asked.keep)


def sampled_entries(only: Sequence[str], entries: int, most: int, seed: int) -> tuple[list[Subject], str]:
    """Return a sample of the ledger entries with cited lines, and of how many."""
    tied, guarded = tied_tests(), guarded_mutants()
    wanted = tuple(only) or ("",)
    names = sorted(name for name in tied if guarded.get(name) and any(is_asked(name, each) for each in wanted))
    random.Random(seed).shuffle(names)
    subjects = [
        Subject(name, sample(guarded[name], most, f"{seed} {name}"), [tied[name]], BASELINE_S)
        for name in names[:entries]
    ]
    return subjects, f"{len(names)} entries with cited lines ({len(tied)} are tied)"


def sampled_packages(packages: Sequence[str], most: int, seed: int, *, quick: bool = False) -> list[Subject]:
    """Return a sample of the mutants of each package, in lines that no entry cites."""
    return [
        Subject(
            package,
            sample(uncited_mutants(package), most, f"{seed} {package}"),
            staged_tests(package, quick=quick),
            PACKAGE_BASELINE_S,
        )
        for package in packages
    ]


def is_asked(name: str, asked: str) -> bool:
    """Whether an entry is the one asked for, or of the clause, specification or part of it asked for."""
    return name == asked or name.startswith(asked if asked.endswith(("-", ".")) or not asked else (asked + "-"))


def tied_tests() -> dict[str, list[str]]:
    """The tests of each entry, quick ones first: the first that fails ends the run."""
    tied = defaultdict(list)
    for tie in ties(ROOT):
        if not tie.expected_to_fail and not tie.test.startswith("tests/conformance/"):  # which need other programs
            tied[tie.id].append(tie.test)

    return {name: sorted(tests, key=_rank) for name, tests in tied.items()}


def _rank(test: str) -> int:
    return next(number for number, folder in enumerate(QUICK_FIRST) if folder in test)


def ordered(tests: Sequence[str], file: str) -> list[str]:
    """Return quick tests first, and among them those that name the changed module: the first failure ends the run."""
    module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
    return sorted(tests, key=lambda test: (_rank(test), module not in _text(test.partition("::")[0])))


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


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


def _measure(subjects: Sequence[Subject], jobs: int, seconds: float) -> Iterator[Measured]:
    began = time.monotonic()
    done: Counter[str] = Counter()
    trees: queue.Queue[Tree] = queue.Queue()

    def say(text: str) -> None:
        minutes, rest = divmod(int(time.monotonic() - began), 60)
        _say(f"{minutes:>2}:{rest:02} {text}")

    def measure(subject: Subject) -> Measured:
        name, tests = subject.name, sum(map(len, subject.stages))
        tree = trees.get()
        try:
            limits = []
            for stage in subject.stages:
                if time.monotonic() - began > seconds:
                    return Measured(name, tests, [], "the time was over")
                seconds_taken, passed = _baseline(tree, stage, subject.baseline_s)
                if not passed:
                    why = f"its tests take more than {subject.baseline_s:g} s"
                    why = why if passed is None else "its tests do not pass"
                    say(f"{name:<18} left out: {why}")
                    return Measured(name, tests, [], why)
                limits.append(SLOWER * seconds_taken + 20)
            tried = []
            for mutant in subject.mutants:
                if time.monotonic() - began > seconds:
                    break
                with tree.mutated(mutant):
                    outcome = _outcome(tree, mutant, subject.stages, limits)
                tried.append(Tried(mutant, outcome))
                say(f"{outcome:<9} {_row(name, mutant)}")
            return Measured(name, tests, tried)
        finally:
            done["subjects"] += 1
            say(f"{done['subjects']} of {len(subjects)}")
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="interlock-mutation-") as folder:
        for number in range(jobs):
            (Path(folder) / str(number)).mkdir()
            trees.put(Tree(Path(folder) / str(number)))
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(measure, subjects)


def _outcome(tree: Tree, mutant: Mutant, stages: Sequence[Sequence[str]], limits: Sequence[float]) -> str:
    for stage, limit in zip(stages, limits, strict=True):
        passed = tree.run(ordered(stage, mutant.file), limit)
        if not passed:
            return TIMEOUT if passed is None else KILLED
    return SURVIVED


def _baseline(tree: Tree, tests: list[str], most_s: float) -> tuple[float, bool | None]:
    """How long the tests take unchanged, and whether they pass."""
    for _ in range(BASELINES_MAX):
        began = time.monotonic()
        if (passed := tree.run(tests, most_s)) is not False:
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


def _as_table(measured: Sequence[Measured], rate: float | None, kind: str = "entries") -> str:
    lines = [f"{'entry' if kind == 'entries' else 'package':<18} {'tests':>5} {'mutants':>7} {'survived':>8}"]
    for one in measured:
        survived = sum(each.outcome == SURVIVED for each in one.tried)
        note = f"  left out: {one.left_out}" if one.left_out else ""
        lines.append(f"{one.name:<18} {one.tests:>5} {len(one.tried):>7} {survived:>8}{note}")
    alive = [(one.name, each.mutant) for one in measured for each in one.tried if each.outcome == SURVIVED]
    if alive:
        lines += ["", "Survivors:", *(_row(*each) for each in alive)]
    outcomes = Counter(each.outcome for one in measured for each in one.tried)
    counts = ", ".join(f"{outcomes[each]} {each}" for each in (KILLED, TIMEOUT, SURVIVED)).lower()
    entries = sum(bool(one.tried) for one in measured)
    share = "nothing was tried" if rate is None else f"{rate:.1f} % survived"
    return "\n".join([*lines, "", f"{outcomes.total()} mutants of {entries} {kind}: {counts}; {share}"])


def _as_json(measured: Sequence[Measured], seed: int, rate: float | None, kind: str = "entries") -> str:
    entries = [
        {
            "id": one.name,
            "tests": one.tests,
            "left_out": one.left_out,
            "mutants": [
                {"file": each.mutant.file, "line": each.mutant.line, "change": each.mutant.change, "is": each.outcome}
                for each in one.tried
            ],
        }
        for one in measured
    ]
    return json.dumps({"seed": seed, "survived_percent": rate, kind: entries}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
