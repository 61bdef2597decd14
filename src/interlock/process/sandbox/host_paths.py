"""Paths of the host as sandboxes treat them: what a program needs to run, and what is protected.

`program_files` and `package_of` find what a command needs: its file, the interpreter in its first line, the
installation around it, the package beside its script. Programs are only looked at, never run. What lies in the
system's own folders is left to the view (`mounts`).

`ProtectedPaths` and `LinkRoots` judge paths: which of them an argument alone may grant, and where a symbolic link on
the way to a declared path may lead. `server_programs` lists the files that no sandbox of another server may write.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from interlock.config.plan import ServerPlan, Spawn
from interlock.process.child import find_script


class LinkRoots(msgspec.Struct, frozen=True):
    """Folders that symbolic links on the way to a declared path must not leave.

    These are the workspace, the home and other folders whose content belongs together. The root of a path is the
    nearest of these folders that contains it, or else the path's parent folder. Without this rule, a program that can
    write near a declared path could put a link there, and a different folder would be mounted.
    """

    folders: tuple[Path, ...]

    def plain_path(self, path: Path) -> Path:
        """Return a path with the symbolic links in its root folder resolved. Links below the root folder stay."""
        root, below = self._split(path)
        return Path(os.path.realpath(root), below)

    def leaves(self, path: Path) -> bool:
        """Return whether a link on the way to the path leads out of its root."""
        root, _ = self._split(path)
        return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))

    def _split(self, path: Path) -> tuple[Path, Path]:
        path = Path(os.path.normpath(path))
        around = [each for each in self.folders if path.is_relative_to(each)]
        root = max(around, key=lambda each: len(each.parts), default=path.parent)
        return root, path.relative_to(root)


class SandboxFailed(Exception):
    """An error raised if a sandbox cannot be made, so that its server is not started. The message says what to do.

    sandbox_unavailable: this machine supports none. The operator repairs that, or sets drivers.sandbox.
    sandbox_invalid: the declared settings cannot be granted. Their author corrects them.
    """

    def __init__(self, code: Literal["sandbox_unavailable", "sandbox_invalid"], message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


SYSTEM: Final = (Path("/usr"), Path("/bin"), Path("/sbin"), Path("/lib"), Path("/lib64"), Path("/nix/store"))
LIBRARIES: Final = Path("/usr/lib")
SHIMS: Final = "shims"  # ~/.pyenv/shims/python3 looks for the version to run in the folder above
MODULES: Final = "node_modules"
PACKAGE_MARKS: Final = ("package.json", "pyproject.toml", "setup.py")
ROOT: Final = Path("/")
ETC: Final = Path("/etc")


class ProtectedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Paths that no sandbox may get by accident: the user's home, /etc, and the node's data, keys and rules.

    Private paths are hidden unless the plan of a sandbox names them. Rules are read-only unless it names them for
    writing.
    """

    home: Path  # of the user the node runs as
    state: Path  # the data folder
    roots: LinkRoots
    private: tuple[Path, ...] = ()  # with it, the operator's keys and settings
    rules: tuple[Path, ...] = ()  # what says what the node runs: no sandbox writes there, whatever is around it

    def may_imply(self, path: Path) -> bool:
        """Return whether a server may get access to a path only because the path occurs in its arguments
        (AIP-security-5).
        """
        if path.is_relative_to(self.state) or path.is_relative_to(ETC):
            return False
        return not any(each.is_relative_to(path) for each in (self.home, self.state, ETC))

    def may_be(self, path: Path, real: Path) -> bool:
        """Return whether a sandbox may use a declared path that leads to `real`: it contains no symbolic links, or only
        permitted ones.

        A link must not lead out of its root, to a protected path, or to a hidden part of the home, such as ~/.ssh or
        ~/.aws, that the declared path does not name.
        """
        plain = self.roots.plain_path(path)
        if real == plain:
            return True
        below = real.relative_to(self.home).parts if real.is_relative_to(self.home) else ()
        if below and below[0].startswith(".") and not plain.is_relative_to(self.home / below[0]):
            return False
        is_protected = any(real.is_relative_to(each) for each in (*self.private, *self.rules))
        shows_private = any(each.is_relative_to(real) for each in self.private)
        return not (is_protected or shows_private or self.roots.leaves(path)) and self.may_imply(real)

    def may_imply_folder(self, path: Path) -> bool:
        """Return whether a sandbox may give its program read access to the whole folder that contains the program.

        Folders such as ~/.local and ~/.config contain far more than one program.
        """
        hidden_in_home = path.parent == self.home and path.name.startswith(".")
        return self.may_imply(path) and not hidden_in_home and len(path.parts) > 2


_MODULE = re.compile(r"\W")
LINKS_MAX: Final = 40  # as the kernel (path_resolution(7))
FIRST_LINE_BYTES: Final = 256


class ProgramFiles(msgspec.Struct, frozen=True):
    """The folders and files that a program needs to run."""

    folders: tuple[Path, ...]
    files: tuple[Path, ...]


def program_files(program: Path, search: str, protected: ProtectedPaths) -> ProgramFiles:
    """Return the files that one program needs. `search` is the PATH on which its interpreter is searched."""
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
    """Return the top folder of the module that `-m NAME` runs.

    For a single-file module, return its path without suffix.
    """
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
    """A search for all files that a program needs, such as interpreters and the installations that contain them."""

    def __init__(self, search: str, protected: ProtectedPaths) -> None:
        self.folders: dict[Path, None] = {}
        self.files: dict[Path, None] = {}
        self._search, self._protected = search, protected

    def program(self, path: Path) -> None:
        """Add a program, every file that its links lead to, and the installation that contains each of them."""
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


class ServerProgram(msgspec.Struct, frozen=True):
    """A file that determines what a server does at its next start."""

    segment: str
    path: Path


def server_programs(servers: Iterable[ServerPlan]) -> Iterator[ServerProgram]:
    """Yield the programs, scripts and modules of servers, both as written and with symbolic links resolved.

    If a sandboxed server could write the program of another server, it could run code outside its sandbox.
    """
    for server in servers:
        reach = server.reach
        if not isinstance(reach, Spawn) or reach.package is not None or not reach.command:
            continue  # a package lies in the package store, which no sandbox can write
        words, search = reach.command, reach.env.get("PATH", os.environ.get("PATH", os.defpath))
        program = words[0] if os.sep in words[0] else shutil.which(words[0], path=search)
        cwd = reach.cwd or (reach.sandbox.home if reach.sandbox is not None else Path())
        module = None
        if "-m" in words[1:-1]:
            top = module_path(words[words.index("-m") + 1], cwd)
            module = top if top.is_dir() else top.with_name(f"{top.name}.py")
        for path in (None if program is None else cwd / program, find_script(words, cwd), module):
            if path is not None and path.exists():
                yield ServerProgram(server.segment, Path(os.path.realpath(path.parent)) / path.name)
                yield ServerProgram(server.segment, Path(os.path.realpath(path)))
