"""What a program needs to run: its file, the interpreter in its first line, the installation around it, its package.

In: a command as it will be started. Out: paths to read. Only looked at, never run. What lies in the system's own
folders is the view's matter.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from interlock.config.plan import ServerPlan, Spawn
from interlock.process.child import maybe_script

# Roots of declared paths: how far a symbolic link on the way to one may lead.
#
# A path that is declared for a sandbox means what stands there. A program that writes around it could put a link there,
# and what is mounted would be another place. So a link may lead elsewhere inside the root, and never out of it.


class LinkRoots(msgspec.Struct, frozen=True):
    """`folders`: the workspace, the home and other places that belong together. The nearest around a path is its root;
    where there is none, the folder that holds the path."""

    folders: tuple[Path, ...]

    def plain_path(self, path: Path) -> Path:
        """Return the real path under the assumption that there is no link below the root."""
        root, below = self._split(path)
        return Path(os.path.realpath(root), below)

    def leaves(self, path: Path) -> bool:
        """Return whether a link leads out of the root."""
        root, _ = self._split(path)
        return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))

    def _split(self, path: Path) -> tuple[Path, Path]:
        path = Path(os.path.normpath(path))
        around = [each for each in self.folders if path.is_relative_to(each)]
        root = max(around, key=lambda each: len(each.parts), default=path.parent)
        return root, path.relative_to(root)


# Why a sandbox is not made.
#
# SandboxFailed - sandbox_unavailable: this machine has none; the operator repairs it, or does without (drivers.sandbox)
#               - sandbox_invalid: what is declared cannot be granted; its author corrects it


class SandboxFailed(Exception):
    """The server is not started; the message says what to do."""

    def __init__(self, code: Literal["sandbox_unavailable", "sandbox_invalid"], message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


SYSTEM: Final = (Path("/usr"), Path("/bin"), Path("/sbin"), Path("/lib"), Path("/lib64"), Path("/nix/store"))
LIBRARIES: Final = Path("/usr/lib")
SHIMS: Final = "shims"  # ~/.pyenv/shims/python3 looks for the version to run in the folder above
MODULES: Final = "node_modules"
PACKAGE_MARKS: Final = ("package.json", "pyproject.toml", "setup.py")
# Places that no sandbox shows unless somebody writes them out: the root, the user's home, /etc and the node's data.

ROOT: Final = Path("/")
ETC: Final = Path("/etc")


class ProtectedPaths(msgspec.Struct, frozen=True, kw_only=True):
    home: Path  # of the user the node runs as
    state: Path  # the data folder
    roots: LinkRoots
    private: tuple[Path, ...] = ()  # with it, the operator's keys and settings
    rules: tuple[Path, ...] = ()  # what says what the node runs: no sandbox writes there, whatever is around it

    def may_imply(self, path: Path) -> bool:
        """Return whether an argument alone may grant a path (AIP-security-5)."""
        if path.is_relative_to(self.state) or path.is_relative_to(ETC):
            return False
        return not any(each.is_relative_to(path) for each in (self.home, self.state, ETC))

    def may_be(self, path: Path, real: Path) -> bool:
        """Return whether a declared path may mean the real path: it has no link on the way, or one that may lead
        there.
        """
        return real == self.roots.plain_path(path) or self._may_lead_to(path, real)

    def _may_lead_to(self, path: Path, real: Path) -> bool:
        """Return whether a declared link may mean this real path.

        It may not lead out of its root, to a protected place, or to a hidden part of the home that the path does not
        name.
        """
        hidden = self._maybe_hidden(real)
        if hidden is not None and not self.roots.plain_path(path).is_relative_to(hidden):
            return False
        is_protected = any(real.is_relative_to(each) for each in (*self.private, *self.rules))
        shows_private = any(each.is_relative_to(real) for each in self.private)
        return not (is_protected or shows_private or self.roots.leaves(path)) and self.may_imply(real)

    def _maybe_hidden(self, path: Path) -> Path | None:
        """Return the hidden folder or file of the home that contains the path, such as ~/.ssh or ~/.aws, or None."""
        below = path.relative_to(self.home).parts if path.is_relative_to(self.home) else ()
        return self.home / below[0] if below and below[0].startswith(".") else None

    def may_imply_folder(self, path: Path) -> bool:
        """Return whether a program in a folder may grant the whole folder. ~/.local and ~/.config contain far more."""
        hidden_in_home = path.parent == self.home and path.name.startswith(".")
        return self.may_imply(path) and not hidden_in_home and len(path.parts) > 2


_MODULE = re.compile(r"\W")
LINKS_MAX: Final = 40  # as the kernel (path_resolution(7))
FIRST_LINE_BYTES: Final = 256


class ProgramFiles(msgspec.Struct, frozen=True):
    folders: tuple[Path, ...]
    files: tuple[Path, ...]


def program_files(program: Path, search: str, protected: ProtectedPaths) -> ProgramFiles:
    """Return the files that one program needs. `search` is the PATH on which it is found."""
    file_search = _FileSearch(search, protected)
    file_search.program(program)
    return ProgramFiles(tuple(file_search.folders), tuple(file_search.files))


def package_of(
    arguments: Sequence[str], cwd: Path, workspace: Path, packages: Sequence[Path], protected: ProtectedPaths
) -> ProgramFiles:
    """Return the script or module that an interpreter is told to run, with the files beside it."""
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
    """Return the top folder of the module that `-m NAME` runs, or the path of a single file without its suffix."""
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
                interpreter = shutil.which(named, path=self._search)
                if interpreter is not None:
                    self.program(Path(interpreter))


# Programs of servers: the files that decide what a server does when it is started next.
#
# A sandboxed server that could write the program of another one would be in no sandbox for long.


class ServerProgram(msgspec.Struct, frozen=True):
    segment: str
    path: Path


def server_programs(servers: Iterable[ServerPlan]) -> Iterator[ServerProgram]:
    for server in servers:
        if isinstance(server.reach, Spawn):
            for path in _programs(server.reach):
                yield ServerProgram(server.segment, path)


def _programs(reach: Spawn) -> Iterator[Path]:
    """Yield the paths of the program and its script, both as named and with symbolic links resolved."""
    if reach.package is not None or not reach.command:
        return  # it lies in the data folder, which no sandbox shows
    search = reach.env.get("PATH", os.environ.get("PATH", os.defpath))
    program = reach.command[0] if os.sep in reach.command[0] else shutil.which(reach.command[0], path=search)
    cwd = reach.cwd or (reach.sandbox.home if reach.sandbox is not None else Path())
    named = (None if program is None else cwd / program, maybe_script(reach.command, cwd), _maybe_module(reach, cwd))
    for path in named:
        if path is not None and path.exists():
            yield Path(os.path.realpath(path.parent)) / path.name
            yield Path(os.path.realpath(path))


def _maybe_module(reach: Spawn, cwd: Path) -> Path | None:
    """Return the path of NAME for `python -m NAME` in the working directory, or None for other commands."""
    words = reach.command
    if "-m" not in words[1:-1]:
        return None
    top = module_path(words[words.index("-m") + 1], cwd)
    return top if top.is_dir() else top.with_name(f"{top.name}.py")
