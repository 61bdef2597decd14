"""python -m tests.mutation: does every tied test notice when what its ledger entry says is broken?

For a sample of ledger entries, lines that their tied tests execute are changed, one at a time, in a copy of the tree,
and the tied tests of that entry alone are run. A mutant that they do not notice survived. The lines are those in which
a term of the entry stands (an error, a key, a limit), and the conditions that decide about them, without what much of
the sample executes. The same seed and sources give the same sample. See CONTRIBUTING.md for how to read the result.
"""

import argparse
import queue
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import yaml
from tests.mutation.mutants import Mutant, compiles, mutants, terms
from tests.mutation.tree import ROOT, Tree

sys.path.insert(0, str(ROOT / "spec"))
from conformance import ties

BASELINE_S = 120.0  # an entry whose tied tests take longer is left out
FOLLOWED_S = 300.0  # the same tests with every line followed
FUNCTIONS_MAX = 5  # of an entry: those closest to what it says
NEAR = 0.5  # a function that is less close than this share of the closest is left out
POOL = 3  # mutants are drawn from so many times more lines: those closest to what the entry says
COMMON_SHARE = 0.25  # a line that more of the sample executes belongs to no entry
COMMON_FROM = 5  # entries
LINES_MAX = 30  # a term in more lines than this, or in more entries than the next, stands for none of them
ENTRIES_MAX = 10


class Tried(NamedTuple):
    entry: str
    mutant: Mutant
    outcome: str  # killed, timeout (which is killed as well) or SURVIVED


class Case(NamedTuple):
    """One entry of the sample: its tests, how long they take, and the lines they execute."""

    entry: str
    text: str
    tests: list[str]
    seconds: float
    lines: set[tuple[str, int]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description="Mutate what tied tests guard; count survivors.")
    parser.add_argument("--entries", type=int, default=15, help="how many entries are sampled")
    parser.add_argument("--mutants", type=int, default=3, help="how many mutants of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID", help="these entries, or all that begin so")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that are worked in at once")
    parser.add_argument("--keep", type=float, default=5.0, metavar="PERCENT", help="fail above this rate")
    asked = parser.parse_args(arguments)
    entries, tied = _entries(), _tied_tests()
    program = Program(entries)
    names = sorted(name for name in tied if not asked.only or name.startswith(tuple(asked.only)))
    names = [name for name in names if terms(entries[name]) & program.own]
    random.Random(asked.seed).shuffle(names)
    with tempfile.TemporaryDirectory(prefix="interlock-mutation-") as folder:
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(asked.jobs):
            (Path(folder) / str(number)).mkdir()
            trees.put(Tree(Path(folder) / str(number)))
        with ThreadPoolExecutor(asked.jobs) as pool:
            cases = _cases(pool, trees, names, asked.entries, entries, tied)
            chosen = program.chosen(cases, asked.mutants, asked.seed)
            tried = list(pool.map(lambda one: _try(trees, *one), chosen))
    return _report(cases, tried, asked.keep)


def _entries() -> dict[str, str]:
    found = {}
    for path in sorted((ROOT / "spec").glob("*.yaml")):
        for item in yaml.safe_load(path.read_text(encoding="utf-8"))["requirements"]:
            found[item["id"]] = f"{item['says']} {item.get('shown_by', '')}"
    return found


def _tied_tests() -> dict[str, list[str]]:
    tied = defaultdict(list)
    for tie in ties(ROOT):
        if not tie.expected_to_fail and not tie.test.startswith("tests/conformance/"):  # which need other programs
            tied[tie.id].append(tie.test)
    return tied


def _cases(
    pool: ThreadPoolExecutor,
    trees: "queue.Queue[Tree]",
    names: list[str],
    most: int,
    entries: dict[str, str],
    tied: dict[str, list[str]],
) -> list[Case]:
    """The first entries whose tests pass in the copy."""

    def case(name: str) -> Case | None:
        tree = trees.get()
        try:
            began = time.monotonic()
            if not tree.run(tied[name], BASELINE_S):
                print(f"{name}: left out, its tests do not pass in {BASELINE_S:g} s unchanged", flush=True)
                return None
            seconds = time.monotonic() - began
            return Case(name, entries[name], tied[name], seconds, tree.executed(tied[name], FOLLOWED_S))
        finally:
            trees.put(tree)

    found: list[Case] = []
    left = list(names)
    while left and len(found) < most:
        batch, left = left[: most - len(found)], left[most - len(found) :]
        found += [one for one in pool.map(case, batch) if one is not None]
    return found


class Program:
    """The sources with all their mutants. `own`: the terms that stand for few lines and few entries."""

    def __init__(self, entries: dict[str, str]) -> None:
        self._sources = {
            str(path.relative_to(ROOT)): path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py"))
        }
        self._mutants = {file: mutants(source, file) for file, source in self._sources.items()}
        lines = Counter(
            term
            for of_file in self._mutants.values()
            for _, about in {(each.line, each.terms) for each in of_file}
            for term in about
        )
        spoken = Counter(term for text in entries.values() for term in terms(text))
        self.own = {term for term, count in lines.items() if count <= LINES_MAX and 0 < spoken[term] <= ENTRIES_MAX}

    def chosen(self, cases: list[Case], most: int, seed: int) -> list[tuple[Case, Mutant]]:
        """For each entry, some mutants of the lines that its terms stand in or that decide about such lines."""
        executed = Counter(line for case in cases for line in case.lines)
        many = COMMON_SHARE * len(cases) if len(cases) >= COMMON_FROM else len(cases)
        common = {line for line, count in executed.items() if count > many}
        found = []
        for case in cases:
            dice = random.Random(f"{seed} {case.entry}")
            guarded = self._guarded(terms(case.text) & self.own, case.lines - common)
            found += [(case, dice.choice(of_line)) for of_line in dice.sample(guarded, min(most, len(guarded)))]
        return found

    def _guarded(self, said: set[str], lines: set[tuple[str, int]]) -> list[list[Mutant]]:
        """The mutants that are about these terms, by line."""
        found: dict[tuple[str, int], list[Mutant]] = {}
        for file in sorted({file for file, _ in lines} & self._mutants.keys()):
            for each in self._mutants[file]:
                is_about = (file, each.line) in lines and each.terms & said
                if is_about and compiles(each.applied(self._sources[file])):
                    found.setdefault((file, each.line), []).append(each)
        return list(found.values())


def _try(trees: "queue.Queue[Tree]", case: Case, mutant: Mutant) -> Tried:
    tree = trees.get()
    try:
        with tree.mutated(mutant):
            passed = tree.run(case.tests, 3 * case.seconds + 20)
    finally:
        trees.put(tree)
    tried = Tried(case.entry, mutant, {True: "SURVIVED", False: "killed", None: "timeout"}[passed])
    print(_row(tried), flush=True)
    return tried


def _row(tried: Tried) -> str:
    mutant = tried.mutant
    place = f"{mutant.file.removeprefix('src/interlock/')}:{mutant.line}"
    return f"{tried.entry:<14} {tried.outcome:<9} {place:<48} {mutant.change}"


def _report(cases: list[Case], tried: list[Tried], keep: float) -> int:
    outcomes = Counter(one.outcome for one in tried)
    print(f"\n{'entry':<14} {'tests':>5} {'mutants':>7} {'survived':>8}")
    for case in cases:
        of_case = [one for one in tried if one.entry == case.entry]
        survived = sum(one.outcome == "SURVIVED" for one in of_case)
        print(f"{case.entry:<14} {len(case.tests):>5} {len(of_case):>7} {survived:>8}")
    rate = 100 * outcomes["SURVIVED"] / max(1, len(tried))
    counts = f"{outcomes['killed']} killed, {outcomes['timeout']} timed out, {outcomes['SURVIVED']} survived"
    print(f"\n{len(tried)} mutants of {len(cases)} entries: {counts} ({rate:.1f} %)")
    return int(rate > keep or not tried)


if __name__ == "__main__":
    sys.exit(main())
