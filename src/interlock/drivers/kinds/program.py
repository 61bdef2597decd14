"""Servers that are a program: one that is there already, or one that a method of the install block brings."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from interlock.drivers.install.installation import (
    INSTALL_FAILED,
    PATH_ESCAPE,
    Installation,
    Installed,
    Locked,
    MethodFailed,
    MethodResult,
)
from interlock.drivers.kinds.kind import ServerKind
from interlock.drivers.protocol.kinds import LocalServer
from interlock.process.packages.programs import node_tool


class NoProgram(Exception):
    """The program of a server cannot be used; `code` and the message say why."""

    def __init__(self, message: str, code: str = INSTALL_FAILED) -> None:
        super().__init__(message)
        self.code = code


class ProgramKind(ServerKind[LocalServer]):
    """The kind binary, and every kind that has no class of its own: the server runs `LocalServer.program`."""

    async def complete(self, server: LocalServer, installation: Installation, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None:
            return _installed_program(server, installation, brought)
        folder = await installation.packages.put(pins)
        scripts = folder / "node_modules" / ".bin" if pins.registry == "npm" else folder / "bin"
        installed = _installed_program(server, installation, msgspec.structs.replace(brought, programs=(scripts,)))
        program = Path(installed.command[0])
        if program.parent != scripts:
            raise MethodFailed(f"{pins.name} brings no program {server.program}")
        # Run the script with its interpreter: its first line cannot hold a long path and finds no private one.
        if pins.registry == "npm":
            interpreter = node_tool("node", installation.environment, pins.name)
        else:
            interpreter = str(folder / "bin/python")
        return msgspec.structs.replace(
            installed,
            command=(interpreter, str(program.resolve()), *server.program_args),
            version=pins.version,
            reads=(folder, Path(interpreter).resolve(), Path(sys.base_prefix).resolve()),
        )

    def find_present(self, server: LocalServer, installation: Installation) -> Installed | None:
        """Find the program that a person installed, perhaps by following the instruction of a method."""
        lock = Locked(asked=installation.digest, method="present")
        return _installed_program(server, installation, MethodResult(lock=lock))

    def resolve_program(self, server: LocalServer, words: tuple[str, ...], installed: Installed) -> tuple[str, ...]:
        # The program need not be on the PATH.
        if words and words[0] in {server.program, Path(server.program).name}:
            return (*installed.command[: len(installed.command) - len(server.program_args)], *words[1:])
        return words


def _installed_program(server: LocalServer, installation: Installation, brought: MethodResult) -> Installed:
    folder = installation.folder
    try:
        program = find_program(
            server.program,
            folder=folder,
            workspace=installation.workspace,
            brought=brought.programs,
            # A method that should bring the program does not succeed because of one that was there before.
            search=installation.search_path if brought.lock.method == "present" else "",
        )
    except NoProgram as error:
        raise MethodFailed(str(error), code=error.code) from error
    real = program.resolve()
    around = folder if real.is_relative_to(folder.resolve()) else real.parent
    is_ours = real.is_relative_to(installation.root.resolve()) or around == folder
    return Installed(
        command=(str(program), *server.program_args),
        version=None,
        lock=brought.lock,
        reads=(around,) if is_ours else (real,),
        notes=brought.notes,
    )


def find_program(path: str, *, folder: Path, workspace: Path, brought: Sequence[Path], search: str) -> Path:
    """Return the file that server.path names: absolute, relative to `folder`, or a bare name (AIP-server-1).

    A bare name is looked for in `brought`, what a method of installation made, and then on the PATH in `search`.
    Raises NoProgram.
    """
    if os.sep in path:
        program = Path(path) if path.startswith(os.sep) else resolve_inside(path, folder=folder, workspace=workspace)
        if not program.is_file():
            raise NoProgram(f"{path} does not exist; install the server or correct server.path")
        if not os.access(program, os.X_OK):
            raise NoProgram(f"{path} is not executable; run chmod +x on it, or correct server.path")
        return program
    for place in brought:
        candidate = place / path if place.is_dir() else place
        if candidate.name == path and candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which(path, path=search)
    if on_path is None:
        raise NoProgram(f"no program {path!r} is on the PATH; install the server or write the whole path")
    return Path(on_path).absolute()


def resolve_inside(path: str, *, folder: Path, workspace: Path) -> Path:
    """Return a path of the driver file, which must not lead out of the workspace, not even through a symlink.

    Raises NoProgram.
    """
    target = folder / path
    if not target.resolve().is_relative_to(workspace.resolve()):
        raise NoProgram(
            f"{path} leads out of the workspace; keep the file inside, or write an absolute path", PATH_ESCAPE
        )
    return Path(os.path.normpath(target))
