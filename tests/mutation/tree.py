"""A copy of the tree in which mutants are tried; the checkout is only read.

The copy has an interpreter of its own whose path begins with the copied sources, so that every process a test starts
runs the mutant, whatever environment the test gives it. The other packages are those of the interpreter that runs this.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.mutation.mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache", ".hypothesis")


class Tree:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=_LEFT_OUT)
        environment = folder / "environment"
        venv.create(environment, symlinks=True)
        self._python = environment / "bin" / "python"
        self._lines = folder / "lines"
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
        ours = Path(sysconfig.get_path("purelib"))
        (packages / "tree.pth").write_text(f"{self.root / 'src'}\n{ours}\nimport mutation_start\n")
        (packages / "mutation_start.py").write_text(
            "import os, sys\n"
            "sys.dont_write_bytecode = True\n"
            f"if os.path.exists({str(self._lines)!r}):\n"
            f"    sys.path.append({str(self.root)!r})\n"
            "    from tests.mutation.lines import install\n"
            "    sys.path.pop()\n"
            f"    install({str(self.root / 'src')!r}, {str(self._lines)!r})\n"
        )
        for script in Path(sys.executable).parent.glob("interlock*"):
            text = script.read_text()
            (self._python.parent / script.name).write_text(f"#!{self._python}\n" + text.partition("\n")[2])
            (self._python.parent / script.name).chmod(0o755)

    def executed(self, tests: list[str], seconds: float) -> set[tuple[str, int]]:
        """The lines of functions that the tests execute. Being followed is slow: whether they pass says nothing."""
        self._lines.touch()
        try:
            self._pytest(tests, seconds)
            said = self._lines.read_text().splitlines()
        finally:
            self._lines.unlink()
        found = (line.rpartition(":") for line in said)
        return {(str(Path(file).relative_to(self.root)), int(number)) for file, _, number in found}

    def run(self, tests: list[str], seconds: float) -> bool | None:
        """Whether the tests pass; None when they do not end in time."""
        return self._pytest(["-x", *tests], seconds)

    def _pytest(self, arguments: list[str], seconds: float) -> bool | None:
        command = [str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        started = subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            return started.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            path.write_bytes(source)
