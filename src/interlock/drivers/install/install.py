"""Installs what a driver's server and install blocks name, apart from starting it, and says how to run it.

In: a driver, the folder it was read from, where packages are kept and, if it was installed before, its lock. Out:
`Installed`, or `InstallFailed` with every method tried. With a lock that still fits, exactly what it names is run,
installed again from it if it is gone; without one the methods are tried in order (AIP-30.install-1). Nothing here is
on the path of a call.
"""

import asyncio
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from interlock.drivers.install.commands import Caged
from interlock.drivers.install.containers import ContainerRefused, container_command, free_port
from interlock.drivers.install.methods import MethodFailed, MethodResult, Methods
from interlock.drivers.install.outcome import INSTALL_FAILED, Attempt, Installed, InstallFailed, Locked, Note
from interlock.drivers.install.programs import NoProgram, find_program
from interlock.drivers.protocol.model import Binary, Docker, Driver, Install, Npm, Pypi, Remote
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.programs import (
    node_program,
    node_tool,
    npm_folder,
    npm_manifest,
    npm_program,
    pypi_command,
)
from interlock.process.packages.python_runners import PythonRunners
from interlock.process.packages.references import PackageUnavailable, normalised_name


class InstallSettings(Protocol):
    """The settings of the operator; `config.plan.DriversPlan` has it."""

    @property
    def allow_unverified_install(self) -> bool: ...

    @property
    def npx(self) -> bool: ...

    @property
    def sandbox(self) -> Mapping[str, str]: ...


async def install(
    driver: Driver,
    *,
    packages: Path,
    folder: Path,
    lock: Locked | None,
    progress: Callable[[str], None],
    reaper: OrphanReaper | None,
    settings: InstallSettings,
    workspace: Path | None = None,
    environment: Mapping[str, str] | None = None,
    node: str = "default",
    caged: Caged | None = None,
) -> Installed | InstallFailed:
    """`folder` holds the DRIVER.md; paths of the file may lead anywhere below `workspace` (default: `folder`).

    `caged` runs the author's own installer in a sandbox; None where the operator lets this driver out of it.
    """
    if isinstance(driver.server, Remote):
        notes = (Note(code="install_ignored", message="a remote server is not installed"),) if driver.install else ()
        return Installed(command=(), version=None, lock=Locked(asked="", method="present"), notes=notes)
    installing = _Installation(
        driver,
        packages=packages,
        folder=folder,
        workspace=workspace or folder,
        progress=progress,
        reaper=reaper,
        settings=settings,
        environment=os.environ if environment is None else environment,
        node=node,
        caged=caged,
    )
    # AIP-30.install-3
    if lock is not None and lock.asked == request_digest(driver) and lock.method not in {"present", "vendored"}:
        return await installing.from_lock(lock)
    return await installing.anew()


def request_digest(driver: Driver) -> str:
    """A digest of everything in the file that decides what is installed."""
    server = msgspec.to_builtins(driver.server)
    deciding = {key: server.get(key) for key in ("kind", "package", "version", "image", "path", "runner")}
    methods = [[entry.method, dict(entry.options)] for entry in driver.install]
    return hashlib.sha256(msgspec.json.encode([deciding, methods], order="sorted")).hexdigest()


def packages_of(packages: Path, driver: Driver) -> Path:
    """The folder where everything of this driver, and of no other, is installed."""
    return packages / "drivers" / driver.key


async def remove_packages(packages: Path, driver: Driver) -> None:
    await asyncio.to_thread(shutil.rmtree, packages_of(packages, driver), ignore_errors=True)


def difference(before: Locked, after: Locked) -> tuple[str, ...]:
    """The difference that an update would make, in words; empty: the same bytes."""
    said = []
    if before.version != after.version:  # AIP-30.install-3
        said.append(f"version {before.version or 'unknown'} -> {after.version or 'unknown'}")
    if before.integrity != after.integrity:
        said.append(f"integrity {before.integrity or 'none'} -> {after.integrity or 'none'}")
    if not said and before.pins != after.pins:
        said.append("packages below it have changed")
    if before.method != after.method:
        said.append(f"installed with {after.method} instead of {before.method}")
    return tuple(said)


def with_another_port(installed: Installed) -> Installed:
    """The same container, served on another free port of the loopback: every process needs its own."""
    if installed.url is None:
        return installed
    before = installed.url.partition("//")[2].partition("/")[0]
    after = f"127.0.0.1:{free_port()}"
    command = tuple(
        f"{after}{word.removeprefix(before)}" if word.startswith(f"{before}:") else word for word in installed.command
    )
    return msgspec.structs.replace(installed, command=command, url=installed.url.replace(before, after, 1))


class _Installation:
    def __init__(
        self,
        driver: Driver,
        *,
        packages: Path,
        folder: Path,
        workspace: Path,
        progress: Callable[[str], None],
        reaper: OrphanReaper | None,
        settings: InstallSettings,
        environment: Mapping[str, str],
        node: str,
        caged: Caged | None,
    ) -> None:
        self._driver = driver
        self._packages = packages
        self._root = packages_of(packages, driver)
        self._folder = folder
        self._workspace = workspace
        self._progress = progress
        self._reaper = reaper
        self._settings = settings
        self._environment = environment
        self._node = node
        self._methods = Methods(
            driver,
            root=self._root,
            folder=folder,
            workspace=workspace,
            asked=request_digest(driver),
            unverified=settings.allow_unverified_install,
            environment=environment,
            progress=progress,
            reaper=reaper,
            caged=caged,
        )

    async def from_lock(self, lock: Locked) -> Installed | InstallFailed:
        entries = self._driver.install or self._methods.implied_methods()
        # Of two downloads the one whose hash was recorded; one without a hash has to have brought it.
        fitting = [entry.options for entry in entries if entry.method == lock.method]
        recorded = (lock.integrity or "").removeprefix("sha256:")
        fitting.sort(key=lambda options: options.get("verify_sha256") not in {recorded, None})
        options = fitting[0] if fitting else {}
        try:
            installed = await self._finish(await self._methods.again(lock, options))
        except MethodFailed as error:
            reason = f"what was recorded cannot be run: {error}; run `interlock drivers update {self._driver.segment}`"
            return InstallFailed(
                code=error.code, attempts=(Attempt(method=lock.method, reason=reason, output=error.output),)
            )
        return msgspec.structs.replace(installed, attempts=(Attempt(method=lock.method),))

    async def anew(self) -> Installed | InstallFailed:
        attempts: list[Attempt] = []
        code = INSTALL_FAILED
        for entry in self._driver.install or self._methods.implied_methods():
            done = await self._attempt(entry)
            if isinstance(done, Installed):
                return msgspec.structs.replace(done, attempts=(*attempts, Attempt(method=entry.method)))
            self._progress(f"{entry.method}: {done}")
            attempts.append(Attempt(method=entry.method, reason=str(done), output=done.output))  # AIP-30.install-1
            code = done.code
        if isinstance(self._driver.server, Binary):
            # Installed by the person, perhaps by an instruction above; or never meant to be by us.
            try:
                found = self._program(self._driver.server, MethodResult(lock=self._present()))
                return msgspec.structs.replace(found, attempts=(*attempts, Attempt(method="present")))
            except MethodFailed as error:
                attempts.append(Attempt(method="present", reason=str(error)))
                code = error.code
        return InstallFailed(code=code, attempts=tuple(attempts))  # AIP-30.install-1

    def _present(self) -> Locked:
        return Locked(asked=request_digest(self._driver), method="present")

    async def _attempt(self, entry: Install) -> Installed | MethodFailed:
        try:
            return await self._finish(await self._methods.attempt(entry))
        except MethodFailed as failed:
            return failed

    async def _finish(self, brought: MethodResult) -> Installed:
        """Make the command of this kind of server from what a method brought. Raises MethodFailed."""
        server = self._driver.server
        try:
            match server:
                case Npm():
                    return await self._npm(server, brought)
                case Pypi():
                    return await self._pypi(server, brought)
                case Docker():
                    return self._docker(server, brought)
                case Binary():
                    return await self._binary(server, brought)
                case Remote():
                    raise MethodFailed("a remote server is not installed")
        except (PackageUnavailable, ContainerRefused) as error:
            raise MethodFailed(str(error), error.output, getattr(error, "code", INSTALL_FAILED)) from error
        except OSError as error:
            raise MethodFailed(f"{self._root} cannot be used: {error.strerror}; correct its rights") from error

    async def _npm(self, server: Npm, brought: MethodResult) -> Installed:
        folder, pins = brought.folder, brought.pins
        if pins is not None and pins.registry == "npm":
            if self._settings.npx:
                npx = node_tool("npx", self._environment, server.package)
                command = (npx, "--yes", f"{pins.name}@{pins.version}")
                return Installed(command=command, version=pins.version, lock=brought.lock, notes=brought.notes)
            folder = await self._methods.packages.put(pins)
        if folder is None or not (npm_folder(folder, server.package) / "package.json").is_file():
            raise MethodFailed(f"this does not bring the npm package {server.package}")
        node = await node_program(self._environment, server.package, self._reaper)
        program = npm_program(folder, server.package, server.entry)
        return Installed(
            command=(node, str(program)),
            version=str(npm_manifest(folder, server.package).get("version", "")) or None,
            lock=brought.lock,
            reads=(folder, Path(node).resolve()),
            notes=brought.notes,
        )

    async def _pypi(self, server: Pypi, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None or pins.registry != "pypi" or pins.name != normalised_name(server.package.partition("[")[0]):
            raise MethodFailed(f"this does not bring the Python package {server.package}")
        if server.runner in {"uvx", "pipx"}:
            runners = PythonRunners(self._methods.packages)
            keep = runners.keep_with_uvx if server.runner == "uvx" else runners.keep_with_pipx
            kept = await keep(pins, server.package, server.entry, brought.beside)
            return Installed(
                command=kept.command,
                version=pins.version,
                lock=brought.lock,
                reads=kept.reads,
                writes=kept.writes,
                env=kept.env,
                notes=brought.notes,
            )
        folder = await self._methods.packages.put(pins)
        return Installed(
            command=pypi_command(folder, pins.name, server.entry),
            version=pins.version,
            lock=brought.lock,
            reads=(folder, Path(sys.base_prefix).resolve()),
            notes=brought.notes,
        )

    def _docker(self, server: Docker, brought: MethodResult) -> Installed:
        if brought.image is None:
            raise MethodFailed(f"this does not bring the image {server.image}")
        engine = self._methods.engine()
        port = free_port() if self._driver.transport == "http" else None
        command = container_command(
            engine.program,
            self._driver,
            brought.image.reference,
            node=self._node,
            data=self._packages.parent,
            host_port=port,
            is_open=self._driver.id in self._settings.sandbox,
        )
        return Installed(
            command=command,
            version=None,
            lock=brought.lock,
            env=engine.env,
            url=None if port is None else f"http://127.0.0.1:{port}{server.path}",
            notes=brought.notes,
        )

    async def _binary(self, server: Binary, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None:
            return self._program(server, brought)
        folder = await self._methods.packages.put(pins)
        scripts = folder / "node_modules" / ".bin" if pins.registry == "npm" else folder / "bin"
        found = self._program(server, msgspec.structs.replace(brought, programs=(scripts,)))
        program = Path(found.command[0])
        if program.parent == scripts:
            # Through its interpreter: the first line of a script holds no long path, and finds no private one.
            interpreter = (
                node_tool("node", self._environment, pins.name)
                if pins.registry == "npm"
                else str(folder / "bin/python")
            )
            return msgspec.structs.replace(
                found,
                command=(interpreter, str(program.resolve())),
                version=pins.version,
                reads=(folder, Path(interpreter).resolve(), Path(sys.base_prefix).resolve()),
            )
        raise MethodFailed(f"{pins.name} brings no program {server.path}")

    def _program(self, server: Binary, brought: MethodResult) -> Installed:
        try:
            program = find_program(
                server.path,
                folder=self._folder,
                workspace=self._workspace,
                brought=brought.programs,
                # A method that was to bring the program does not succeed by one that was there before.
                search=self._environment.get("PATH", os.defpath) if brought.lock.method == "present" else "",
            )
        except NoProgram as error:
            raise MethodFailed(str(error), code=error.code) from error
        near = self._folder if program.resolve().is_relative_to(self._folder.resolve()) else program.resolve().parent
        ours = program.resolve().is_relative_to(self._root.resolve()) or near == self._folder
        return Installed(
            command=(str(program),),
            version=None,
            lock=brought.lock,
            reads=(near,) if ours else (program.resolve(),),
            notes=brought.notes,
        )
