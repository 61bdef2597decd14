"""What a program needs to run: its file, the interpreter in its first line, the installation around it, its package.

In: a command as it will be started. Out: paths to read. Only looked at, never run. What lies in the system's own
folders is the view's matter.
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.process.sandbox.protected_paths import ProtectedPaths

SYSTEM: Final = (Path("/usr"), Path("/bin"), Path("/sbin"), Path("/lib"), Path("/lib64"), Path("/nix/store"))
LIBRARIES: Final = Path("/usr/lib")
SHIMS: Final = "shims"  # ~/.pyenv/shims/python3 looks for the version to run in the folder above
MODULES: Final = "node_modules"
PACKAGE_MARKS: Final = ("package.json", "pyproject.toml", "setup.py")
_MODULE = re.compile(r"\W")
LINKS_MAX: Final = 40  # as the kernel (path_resolution(7))
FIRST_LINE_BYTES: Final = 256


class ProgramFiles(msgspec.Struct, frozen=True):
    folders: tuple[Path, ...]
    files: tuple[Path, ...]


def program_files(program: Path, search: str, protected: ProtectedPaths) -> ProgramFiles:
    """Of one program; `search` is the PATH it is found on."""
    found = _FileSearch(search, protected)
    found.program(program)
    return ProgramFiles(tuple(found.folders), tuple(found.files))


def package_of(
    arguments: Sequence[str], cwd: Path, workspace: Path, packages: Sequence[Path], protected: ProtectedPaths
) -> ProgramFiles:
    """The script or module that an interpreter is told to run, and what stands beside it."""
    for index, argument in enumerate(arguments):
        if argument == "-m" and index + 1 < len(arguments):
            top = module_path(arguments[index + 1], cwd)
            module = top.with_name(top.name + ".py")
            return ProgramFiles((top,) if top.is_dir() else (), (module,) if module.is_file() else ())
        if argument in ("-c", "-e", "--eval", "--"):
            break
        script = Path(os.path.normpath(cwd / argument))
        if not argument.startswith("-") and script.is_file():
            return _package(script, workspace, packages, protected)
    return ProgramFiles((), ())


def module_path(name: str, cwd: Path) -> Path:
    """The top folder of the module that `-m NAME` means; of a single file, without its suffix."""
    return cwd / _MODULE.split(name)[0]


def _package(script: Path, workspace: Path, packages: Sequence[Path], protected: ProtectedPaths) -> ProgramFiles:
    for each in packages:
        if script.is_relative_to(each):
            return ProgramFiles((each.joinpath(*script.relative_to(each).parts[:2]),), ())
    if MODULES in script.parts:  # packages that it needs lie beside its own
        around = Path(*script.parts[: script.parts.index(MODULES)])
        if protected.may_imply_folder(around / MODULES):
            return ProgramFiles((around / MODULES,), ())
    for folder in script.parents:
        # A workspace is more than one server's package, whatever it is beside that.
        if not protected.may_imply_folder(folder) or workspace.is_relative_to(folder):
            break
        if any((folder / mark).is_file() for mark in PACKAGE_MARKS):
            return ProgramFiles((folder,), ())
    folder = script.parent
    beside = protected.may_imply_folder(folder) and not workspace.is_relative_to(folder)
    return ProgramFiles((folder,), ()) if beside else ProgramFiles((), (script,))


class _FileSearch:
    def __init__(self, search: str, protected: ProtectedPaths) -> None:
        self.folders: dict[Path, None] = {}
        self.files: dict[Path, None] = {}
        self._search = search
        self._protected = protected

    def program(self, path: Path) -> None:
        """Itself, whatever its links lead to, and the installation around each."""
        for _ in range(LINKS_MAX):
            if path in self.files:
                return
            self.files[path] = None
            path = Path(os.path.realpath(path.parent)) / path.name
            self.files[path] = None
            self._installation(path)
            if not path.is_symlink():
                break
            path = Path(os.path.normpath(path.parent / path.readlink()))
        self._interpreter(path)

    def _installation(self, path: Path) -> None:
        prefix = path.parent.parent if path.parent.name in ("bin", "sbin") else path.parent
        if path.is_relative_to(LIBRARIES) and path.parent != LIBRARIES:
            self.folders[LIBRARIES / path.relative_to(LIBRARIES).parts[0]] = None  # /usr/lib/jvm
        if any(path.is_relative_to(each) for each in SYSTEM):
            return
        if path.parent.name == SHIMS and self._protected.may_imply(path.parent.parent):
            self._folder(path.parent.parent)
        elif self._protected.may_imply_folder(prefix):
            self._folder(prefix)
        elif prefix != path.parent:
            for name in ("lib", "lib64", "libexec"):
                if (prefix / name).is_dir():
                    self.folders[prefix / name] = None

    def _folder(self, prefix: Path) -> None:
        if prefix in self.folders:
            return
        self.folders[prefix] = None
        try:
            settings = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        for line in settings.splitlines():  # a virtual environment belongs to a Python elsewhere
            name, _, value = line.partition("=")
            home = Path(value.strip())
            if name.strip() == "home" and home.is_absolute():
                self._installation(Path(os.path.realpath(home)) / "python")

    def _interpreter(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                first = file.read(FIRST_LINE_BYTES)
        except OSError:
            return
        if not first.startswith(b"#!"):
            return
        words = os.fsdecode(first[2:].partition(b"\n")[0]).split()
        if words and Path(words[0]).is_absolute():
            self.program(Path(words[0]))
            named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
            if Path(words[0]).name == "env" and named is not None:
                found = shutil.which(named, path=self._search)
                if found is not None:
                    self.program(Path(found))
