"""Uncited lines: the mutants of a package that no ledger entry speaks of, and the tests that should notice them.

In: the name of a package. Out: its mutants by line, and the files with its own tests. Nothing is run.
"""

from pathlib import Path

from tests.mutation.citations import citations
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.tree import ROOT

QUICK = ("pure", "in_process", "fuzz")
PROCESSES = ("processes",)


def packages_with_tests(root: Path = ROOT) -> list[str]:
    """Return the packages of the program that have a folder of tests."""
    return sorted(path.name for path in (root / "src/interlock").iterdir() if staged_tests(path.name, root=root))


def uncited_mutants(package: str, root: Path = ROOT) -> list[list[Mutant]]:
    """Return the mutants of the lines that no entry cites, by line."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted((root / "src/interlock" / package).rglob("*.py")):
        source = path.read_bytes()
        cited = citations(source)
        for mutant in mutants(source, str(path.relative_to(root))):
            if not any(citation.first <= mutant.line <= citation.last for citation in cited):
                by_line.setdefault((mutant.file, mutant.line), []).append(mutant)
    return list(by_line.values())


def staged_tests(package: str, *, quick: bool = False, root: Path = ROOT) -> list[list[str]]:
    """Return the files with the tests of a package: those that start no process, then the others unless `quick`."""
    stages = [_test_files(root, package, QUICK), [] if quick else _test_files(root, package, PROCESSES)]
    return [stage for stage in stages if stage]


def _test_files(root: Path, package: str, folders: tuple[str, ...]) -> list[str]:
    files = [path for folder in folders for path in (root / "tests" / package / folder).rglob("test_*.py")]
    return sorted(str(path.relative_to(root)) for path in files)
