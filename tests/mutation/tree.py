"""A copy of the tree in which mutants are tried; the checkout is only read.

The copy has an interpreter of its own whose path begins with the copied sources, so that every process a test starts
runs the mutant, whatever environment the test gives it. The other packages are those of the interpreter that runs this.
"""

import compileall
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

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
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
        ours = Path(sysconfig.get_path("purelib"))
        (packages / "tree.pth").write_text(f"{self.root / 'src'}\n{ours}\nimport mutation_start\n")
        # A compiled file is believed when time and size fit, as they may for a mutant and its source; one with a hash
        # of its source is not, so that those of the unchanged files are made once.
        (packages / "mutation_start.py").write_text("import sys\nsys.dont_write_bytecode = True\n")
        compileall.compile_dir(self.root, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        for script in Path(sys.executable).parent.glob("interlock*"):
            text = script.read_text()
            (self._python.parent / script.name).write_text(f"#!{self._python}\n" + text.partition("\n")[2])
            (self._python.parent / script.name).chmod(0o755)
        for program in Path(sys.executable).parent.iterdir():  # what tests start beside Python, such as nats-server
            if not (self._python.parent / program.name).exists():
                (self._python.parent / program.name).symlink_to(program)

    def run(self, tests: list[str], seconds: float) -> bool | None:
        """Whether the tests pass, at least one of them not being skipped; None when they do not end in time."""
        command = [str(self._python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-p", "no:interlock-durations", *tests]  # which puts the slowest files first
        # Sources that are named there would be found before the mutant.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with tempfile.TemporaryFile() as said:
            started = subprocess.Popen(
                command, cwd=self.root, env=env, stdout=said, stderr=subprocess.DEVNULL, start_new_session=True
            )
            try:
                status = started.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
                started.wait()
            said.seek(0)
            return status == 0 and b" passed" in said.read()

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            path.write_bytes(source)
