"""Servers that run as programs of this machine: kinds binary, npm and pypi.

Every installation method returns a `MethodResult`: a folder, a program, or `Pins`, which name one version of a package
and the hashes of its files. `complete` turns it into `Installed`: the command, and the files that the sandbox must let
the server read.

- binary, and every kind without a class in this package, runs the program that server.path names (AIP-server-1).
- npm installs the pinned package below the driver's own folder and runs its script with node, or uses npx.
- pypi installs the pinned package in a virtual environment, or uses uvx or pipx.

The script of an installed package is started with its interpreter, and never through its `#!` line.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import msgspec

from interlock.drivers.install.installation import Installation, Installed, Locked, MethodFailed, MethodResult
from interlock.drivers.kinds.kind import ServerKind
from interlock.drivers.protocol.kinds import LocalServer, NpmServer, PypiServer
from interlock.drivers.protocol.model import Install
from interlock.process.packages import programs
from interlock.process.packages.installer import PythonRunners


class ProgramKind(ServerKind[LocalServer]):
    """Kind of servers that are plain programs. It is also used for every kind that has no class in this package."""

    async def complete(self, server: LocalServer, installation: Installation, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None:
            return _installed_program(server, installation, brought)
        folder = await installation.installer.put(pins)
        scripts = folder / "node_modules" / ".bin" if pins.registry == "npm" else folder / "bin"
        installed = _installed_program(server, installation, msgspec.structs.replace(brought, programs=(scripts,)))
        program = Path(installed.command[0])
        if program.parent != scripts:
            raise MethodFailed(f"{pins.name} brings no program {server.program}")
        # Run the script with its interpreter: its first line cannot hold a long path and finds no private one.
        if pins.registry == "npm":
            interpreter = programs.node_tool("node", installation.environment, pins.name)
        else:
            interpreter = str(folder / "bin/python")
        return msgspec.structs.replace(
            installed,
            command=(interpreter, str(program.resolve()), *server.program_args),
            version=pins.version,
            reads=(folder, Path(interpreter).resolve(), Path(sys.base_prefix).resolve()),
        )

    def find_present(self, server: LocalServer, installation: Installation) -> Installed | None:
        """Find the program if a person has already installed it, for example by following a method's instructions."""
        lock = Locked(asked=installation.digest, method="present")
        return _installed_program(server, installation, MethodResult(lock=lock))

    def resolve_program(self, server: LocalServer, words: tuple[str, ...], installed: Installed) -> tuple[str, ...]:
        # The program need not be on the PATH.
        if words and words[0] in {server.program, Path(server.program).name}:
            return (*installed.command[: len(installed.command) - len(server.program_args)], *words[1:])
        return words


def _installed_program(server: LocalServer, installation: Installation, brought: MethodResult) -> Installed:
    """Return the installed server for a program that is started directly. Raise MethodFailed if the program is not
    found.
    """
    folder = installation.folder
    program = find_program(server.program, installation, brought)
    real = program.resolve()
    # A program of the driver or of the node may read the files beside it, any other program only itself.
    around = folder if real.is_relative_to(folder.resolve()) else real.parent
    is_ours = real.is_relative_to(installation.root.resolve()) or around == folder
    return brought.installed((str(program), *server.program_args), reads=(around,) if is_ours else (real,))


def find_program(path: str, installation: Installation, brought: MethodResult) -> Path:
    """Return the file of a program. `path` is absolute, relative to the driver's folder, or a bare name (AIP-server-1).

    A bare name is searched for among the folders and programs of an installation method, or on the PATH if the server
    is already present. Raise MethodFailed if the program is not found or not allowed.
    """
    if os.sep in path:
        program = Path(path) if path.startswith(os.sep) else resolve_inside(path, installation)
        if not program.is_file():
            raise MethodFailed(f"{path} does not exist; install the server or correct server.path")
        if not os.access(program, os.X_OK):
            raise MethodFailed(f"{path} is not executable; run chmod +x on it, or correct server.path")
        return program
    for place in brought.programs:
        candidate = place / path if place.is_dir() else place
        if candidate.name == path and candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    # A method that should bring the program does not succeed because of one that was there before.
    on_path = shutil.which(path, path=installation.search_path if brought.lock.method == "present" else "")
    if on_path is None:
        raise MethodFailed(f"no program {path!r} is on the PATH; install the server or write the whole path")
    return Path(on_path).absolute()


def resolve_inside(path: str, installation: Installation) -> Path:
    """Return the absolute path for a path in DRIVER.md.

    Raise MethodFailed if the path leads outside the workspace, directly or through a symbolic link.
    """
    target = installation.folder / path
    if not target.resolve().is_relative_to(installation.workspace.resolve()):
        message = f"{path} leads out of the workspace; keep the file inside, or write an absolute path"
        raise MethodFailed(message, code="path_escape")  # AIP-server-1
    return Path(os.path.normpath(target))


class NpmKind(ServerKind[NpmServer]):
    """The way to install and start servers that are npm packages.

    With the setting `npx`, the program npx fetches the pinned version at every start instead.
    """

    def implied_methods(self, server: NpmServer) -> tuple[Install, ...]:
        return (Install(method="npm", options={"package": server.package}),)  # AIP-30.install-1

    def pin_package(self, server: NpmServer, method: str, package: str) -> str:
        is_own = method == "npm"
        return pin_reference(package, "@", server.package, server.package, server.version) if is_own else package

    async def complete(self, server: NpmServer, installation: Installation, brought: MethodResult) -> Installed:
        folder, pins = brought.folder, brought.pins
        if pins is not None and pins.registry == "npm":
            if installation.settings.npx:
                npx = programs.node_tool("npx", installation.environment, server.package)
                return brought.installed((npx, "--yes", f"{pins.name}@{pins.version}"), pins.version)
            folder = await installation.installer.put(pins)
        if folder is None or not (programs.npm_folder(folder, server.package) / "package.json").is_file():
            raise MethodFailed(f"this does not bring the npm package {server.package}")
        node = await programs.node_program(installation.environment, server.package, installation.reaper)
        command = (node, str(programs.npm_program(folder, server.package, server.entry)))
        version = str(programs.npm_manifest(folder, server.package).get("version", "")) or None
        return brought.installed(command, version, reads=(folder, Path(node).resolve()))

    def package_name(self, server: NpmServer) -> str | None:
        return server.package

    def names_package(self, server: NpmServer, words: tuple[str, ...]) -> bool:
        """Return whether a command such as `npx PACKAGE --version` runs the server's own package (AIP-30.version-2)."""
        return any(word[:1] + word[1:].partition("@")[0] == server.package for word in words)


def pin_reference(reference: str, mark: str, name: str, package: str, version: str | None) -> str:
    """Return the package reference with the version that the server block prescribes, if it refers to the server's own
    package.

    `mark` separates name and version; `name` is the package's name and `package` the name with its extras. Raise
    MethodFailed if `reference` has a different version.
    """
    scope = reference[:1] if reference.startswith("@") else ""
    own_name, _, pin = reference.removeprefix("@").partition(mark)
    if version is None or (scope + own_name).partition("[")[0].lower() != name.lower():
        return reference
    if pin and pin != version:
        raise MethodFailed("install and server name two versions of the package; keep the pin in one of them")
    return f"{package}{mark}{version}"


class PypiKind(ServerKind[PypiServer]):
    """Kind of servers that are Python packages. They run in a virtual environment of the node, or with uvx or pipx."""

    def implied_methods(self, server: PypiServer) -> tuple[Install, ...]:
        return (Install(method="pip", options={"package": server.package}),)  # AIP-30.install-1

    def pin_package(self, server: PypiServer, method: str, package: str) -> str:
        name = server.package.partition("[")[0]
        return package if method != "pip" else pin_reference(package, "==", name, server.package, server.version)

    async def complete(self, server: PypiServer, installation: Installation, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None or pins.registry != "pypi" or pins.name != self.package_name(server):
            raise MethodFailed(f"this does not bring the Python package {server.package}")
        if server.runner in {"uvx", "pipx"}:
            runners = PythonRunners(installation.installer)
            keep = runners.keep_with_uvx if server.runner == "uvx" else runners.keep_with_pipx
            runnable = await keep(pins, server.package, server.entry, brought.beside)
            files = {"reads": runnable.reads, "writes": runnable.writes}
            return brought.installed(runnable.command, pins.version, **files, env=runnable.env)
        folder = await installation.installer.put(pins)
        command = programs.pypi_command(folder, pins.name, server.entry)
        return brought.installed(command, pins.version, reads=(folder, Path(sys.base_prefix).resolve()))

    def package_name(self, server: PypiServer) -> str:
        return programs.normalised_name(server.package.partition("[")[0])

    def names_package(self, server: PypiServer, words: tuple[str, ...]) -> bool:
        """Return whether a command such as `uvx --from PACKAGE NAME` runs the server's own package
        (AIP-30.version-2).
        """
        if words[:1] == (server.entry,):
            return True
        name = self.package_name(server)
        return any(programs.normalised_name(re.split(r"==|\[|@", word)[0]) == name for word in words)
