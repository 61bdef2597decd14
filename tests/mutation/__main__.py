"""python -m tests.mutation: does every tied test notice when what its ledger entry says is broken?

For a sample of ledger entries, lines that their tied tests execute are changed, one at a time, in a copy of the tree,
and the tied tests of that entry alone are run. A mutant that they do not notice survived. The lines are those that
share most rare words with the entry, they and their function, without what many entries of the sample execute. The
sample is the same for the same seed and sources. See CONTRIBUTING.md for how the result is read.
"""

import argparse
import math
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
from tests.mutation.mutants import Function, Mutant, compiles, functions, words
from tests.mutation.tree import ROOT, Tree

sys.path.insert(0, str(ROOT / "spec"))
from conformance import ties

BASELINE_S = 120.0  # an entry whose tied tests take longer is left out
FOLLOWED_S = 300.0  # the same tests with every line followed
FUNCTIONS_MAX = 5  # of an entry: those closest to what it says
NEAR = 0.5  # a function that is less close than this share of the closest is left out
POOL = 3  # mutants are drawn from so many times more lines: those closest to what the entry says
COMMON_SHARE = 0.2  # a line that more of the sample executes belongs to no entry
COMMON_FROM = 5  # entries


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
    names = sorted(name for name in tied if not asked.only or name.startswith(tuple(asked.only)))
    random.Random(asked.seed).shuffle(names)
    with tempfile.TemporaryDirectory(prefix="interlock-mutation-") as folder:
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(asked.jobs):
            (Path(folder) / str(number)).mkdir()
            trees.put(Tree(Path(folder) / str(number)))
        with ThreadPoolExecutor(asked.jobs) as pool:
            cases = _cases(pool, trees, names, asked.entries, entries, tied)
            chosen = _chosen(cases, entries, asked.mutants, asked.seed)
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


def _chosen(cases: list[Case], entries: dict[str, str], most: int, seed: int) -> list[tuple[Case, Mutant]]:
    """For each entry, some of the mutants on lines that are closest to what it says."""
    sources = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py"))}
    modules = {file: functions(source, file) for file, source in sources.items()}
    in_functions = _rarity([function.words for module in modules.values() for function in module])
    in_entries = _rarity([words(text) for text in entries.values()])
    executed = Counter(line for case in cases for line in case.lines)
    common = {
        line for line, count in executed.items() if len(cases) >= COMMON_FROM and count > COMMON_SHARE * len(cases)
    }
    chosen = []
    for case in cases:
        lines = case.lines - common
        weights = {word: in_functions.get(word, 0.0) * in_entries[word] for word in words(case.text)}
        near = _closest(modules, lines, weights)
        ranked = sorted(
            (-_shared(mutant.words, weights), mutant)
            for function in near
            for mutant in function.mutants
            if (mutant.file, mutant.line) in lines and compiles(mutant.applied(sources[mutant.file]))
        )
        of_lines: dict[tuple[str, int], list[Mutant]] = {}
        for _, mutant in ranked:
            of_lines.setdefault((mutant.file, mutant.line), []).append(mutant)
        dice = random.Random(f"{seed} {case.entry}")
        pool = list(of_lines.values())[: POOL * most]
        chosen += [(case, dice.choice(mutants)) for mutants in dice.sample(pool, min(most, len(pool)))]
    return chosen


def _rarity(texts: list[frozenset[str]]) -> dict[str, float]:
    uses = Counter(word for text in texts for word in text)
    return {word: math.log(len(texts) / count) for word, count in uses.items()}


def _closest(
    modules: dict[str, list[Function]], lines: set[tuple[str, int]], weights: dict[str, float]
) -> list[Function]:
    """The functions with such lines that share most rare words with an entry."""
    found = sorted(
        (-_shared(function.words, weights), file, function.name, function)
        for file in {file for file, _ in lines}
        for function in modules.get(file, ())
        if any((file, mutant.line) in lines for mutant in function.mutants)
    )
    return [function for share, *_, function in found[:FUNCTIONS_MAX] if share <= NEAR * found[0][0]]


def _shared(text: frozenset[str], weights: dict[str, float]) -> float:
    return sum(weights[word] for word in text & weights.keys()) / math.sqrt(10 + len(text))


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
