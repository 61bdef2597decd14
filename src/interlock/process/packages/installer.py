"""Installation of packages from npm and PyPI: all versions and hashes first, then exactly those. POSIX only.

An installation starts from the name of a package, or from the `Pins` of an earlier one. It ends with a folder in the
package store (`package_store`), and for a configured server with the command that runs it. npm's pins are a
package-lock.json, PyPI's a list of requirements with hashes; neither installer accepts other bytes for them.

A data folder holds a record of the pins of each configured server, so that a broken installation is repeated as it was,
and of the package in the store that it uses. A file lock keeps two nodes from installing at once. A package that an
earlier version installed in the data folder itself is run as it is. The installer runs with the environment of the
node, which may hold the settings of the registry.

Nothing of a package runs while it is installed: no npm scripts, and no builds of source distributions unless the
operator allows them (`drivers.allow_unverified_install`).
"""

import asyncio
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.plan import Package
from interlock.process.child import (
    OUTPUT_LINE_BYTES,
    OUTPUT_LINES,
    RESERVED_PREFIX,
    ChildStartFailed,
    Ran,
    output_of,
    run,
)
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.package_store import (
    MANIFEST,
    UNREADABLE,
    USE,
    PackageFolders,
    PackageStore,
    Use,
    find_use,
    remove_tree,
    write_whole,
)
from interlock.process.packages.programs import (
    PackageUnavailable,
    Reference,
    Registry,
    SourceBuildRefused,
    node_tool,
    node_version,
    normalised_name,
    npm_folder,
    npm_program,
    pypi_command,
    read_reference,
)
from interlock.process.stderr import StderrRing, terminal_safe

INSTALL_LIMIT_S: Final = 300.0
LOCK_POLL_S: Final = 0.1
PINS_BYTES_MAX: Final = 4 * 1024 * 1024  # a package with so many others below it is no server
MARKER: Final = MANIFEST  # in an installation of an earlier version, which is in the data folder
RECORD: Final = "interlock-pins.json"
_DIGEST_CHARS: Final = 12
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_-]*(?:(?:[<>]=?|[=!~]=)[A-Za-z0-9][A-Za-z0-9.!+*_,<>=~-]*)?", re.ASCII
)
_NO_WHEEL = re.compile(r"No matching distribution found for (?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>\S*)")


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """The exact versions and hashes of a package and of all its dependencies."""

    registry: Registry
    name: str
    version: str
    integrity: str | None  # of the package itself: npm's sha512-…, or sha256:… of the archive
    text: str  # everything, in the form its installer reads

    @property
    def label(self) -> str:
        return f"{self.name.replace('/', '+')}@{self.version}"

    @property
    def folder(self) -> str:
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST_CHARS]
        return f"{self.registry}/{self.label}-{digest}"


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the marker file that earlier versions of Interlock wrote beside an installation in the data
    folder.
    """

    version: str
    python: str = ""  # a virtual environment belongs to one version of Python


class Installer:
    """An installer of npm and PyPI packages into one package store. All its commands run with the same environment
    variables.

    `find` asks the registry for versions and hashes, `put` installs exactly those, and `keep` does both for a
    configured server. `root` is a folder below the data folder, for records of what is used. Only one installer works
    on a package at a time, even if several nodes share the store.
    """

    def __init__(
        self,
        root: Path,
        store: Path,
        environment: Mapping[str, str],
        progress: Callable[[str], None],
        reaper: OrphanReaper | None,
        *,
        source_builds: bool = False,
        limit_s: float = INSTALL_LIMIT_S,
    ) -> None:
        self.root = root.resolve()  # npm writes a lock that is useless elsewhere for a folder behind a symlink
        self._store = PackageStore(store)
        self.env = {
            name: value
            for name, value in environment.items()
            # The last two would put the node's own modules before those of the new environment.
            if not name.startswith(RESERVED_PREFIX) and name not in ("PYTHONPATH", "PYTHONHOME")
        }
        self.progress, self.reaper, self.source_builds, self._limit_s = progress, reaper, source_builds, limit_s

    async def find(self, registry: Registry, text: str, beside: Sequence[str] = ()) -> Pins:
        """Return the versions that the registry offers now for a package. `text` is a name with an optional version.

        `beside` contains PyPI requirements that must also be met, such as mcp<2. Raise PackageUnavailable on failure.
        """
        for requirement in beside:
            if registry != "pypi" or not _REQUIREMENT.fullmatch(requirement):
                raise PackageUnavailable(
                    f"{requirement[:80]!r} cannot be installed beside {text}; write one like mcp<2"
                )
        reference = read_reference(registry, text)
        commands = self._commands(text)
        async with self._hold(self.root / registry / f".asking-{reference.folder}.lock", commands):
            return await self._find(reference, text, beside, commands)

    async def put(self, pins: Pins) -> Path:
        """Return the folder in which exactly `pins` are installed. Install them first if necessary.

        Raise PackageUnavailable on failure.
        """
        record = self.root / pins.folder
        if _is_complete(record, pins.registry, pins.name):
            return record
        return await self._provide(record, pins, self._commands(f"{pins.name} {pins.version}"))

    def has(self, registry: Registry, text: str) -> bool:
        """Return whether the package is already installed. Raise PackageUnavailable for a malformed reference."""
        reference = read_reference(registry, text)
        record = self.root / registry / reference.folder
        use = find_use(record / USE)
        return _is_complete(record, registry, reference.name) or (
            use is not None and (self._store.folder / use.entry / MANIFEST).is_file()
        )

    async def keep(self, registry: Registry, text: str) -> Path:
        """Return the folder with the package of a server in the configuration, and install the package first if
        necessary.

        The exact versions are recorded at the first installation and used until the record is removed. Raise
        PackageUnavailable on failure.
        """
        reference = read_reference(registry, text)
        record = self.root / registry / reference.folder
        if _is_complete(record, registry, reference.name):
            return record
        commands = self._commands(text)
        async with self._hold(record.with_name(f"{record.name}.lock"), commands):
            try:
                pins = msgspec.json.decode((record / RECORD).read_bytes(), type=Pins)
            except (OSError, *UNREADABLE):  # the first installation
                pins = await self._find(reference, text, (), commands)
                await self._write_pins(record, pins)
                return await self._provide(record, pins, commands)
            try:
                if registry == "pypi" and _python_of(record) not in {None, python_version()}:
                    # The wheels of another Python are other files: the same version is found again.
                    wanted = f"{text.partition('==')[0]}=={pins.version}"
                    pins = await self._find(reference, wanted, (), commands)
                    await self._write_pins(record, pins)
                return await self._provide(record, pins, commands)
            except PackageUnavailable as error:
                advice = f"; remove {record} to take what the registry offers now"
                raise type(error)(f"{error}{advice}", error.output) from error

    def _commands(self, what: str) -> "_Commands":
        return _Commands(what, self.env, self.reaper, self.source_builds)

    async def _find(self, reference: Reference, text: str, beside: Sequence[str], commands: "_Commands") -> Pins:
        self.progress(f"asking {'npm' if reference.registry == 'npm' else 'PyPI'} for {text}")
        folder = self.root / reference.registry / f".asking-{reference.folder}"
        await _empty(folder)
        try:
            if reference.registry == "npm":
                return await _find_npm(folder, text, reference.name, commands)
            return await _find_pypi(folder, (text, *beside), reference.name, commands)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _write_pins(self, record: Path, pins: Pins) -> None:
        await _empty(record)
        write_whole(record / RECORD, pins)

    async def _provide(self, record: Path, pins: Pins, commands: "_Commands") -> Path:
        """Return the folder of the store in which exactly `pins` are installed. Install them first if necessary.

        `record` is the folder in the data folder that remembers the use of the package.
        """
        store, file = self._store, record / USE
        entry = store.entry(pins.registry, pins.label, (pins.text, *await self._platform(pins.registry, commands)))
        use = find_use(file)
        seen = use.seen if use is not None and use.entry == f"{entry.parent.name}/{entry.name}" else None
        # Nothing removes a package that is in use, so it is checked without the lock.
        is_used = seen is not None and store.has_user(entry, file)
        if is_used and await asyncio.to_thread(store.find_seen, entry, seen) == seen:
            return entry
        async with self._hold(store.lock(entry), commands):
            await asyncio.to_thread(store.prepare)
            store.use(entry, file)
            is_new = not (entry / MANIFEST).exists()
            seen = await asyncio.to_thread(store.find_seen, entry, seen)
            if seen is not None:
                self.progress(f"{pins.name} {pins.version} is installed already")
            else:
                if not is_new:
                    self.progress(f"{pins.name} {pins.version} was changed since it was installed")
                await self._install(entry, pins, commands)
                seen = await asyncio.to_thread(store.find_seen, entry, None)
                if seen is None:
                    raise PackageUnavailable(f"{pins.name} was changed while it was installed; try again")
            record.mkdir(parents=True, exist_ok=True)
            write_whole(file, Use(entry=f"{entry.parent.name}/{entry.name}", seen=seen, python=python_version()))
        return entry

    async def _install(self, entry: Path, pins: Pins, commands: "_Commands") -> None:
        incoming = await asyncio.to_thread(self._store.make_incoming, entry)
        try:
            self.progress(f"installing {pins.name} {pins.version}")
            await (_put_npm if pins.registry == "npm" else _put_pypi)(incoming, pins, commands)
            await asyncio.to_thread(self._store.adopt, incoming, entry)
            self.progress(f"installed {pins.name} {pins.version}")
        finally:
            await asyncio.to_thread(remove_tree, incoming)

    async def _platform(self, registry: Registry, commands: "_Commands") -> tuple[str, ...]:
        """Return the properties of this machine that decide which files of a package are installed, such as the
        processor and the version of the interpreter.
        """
        machine = (sysconfig.get_platform(), str(sysconfig.get_config_var("SOABI")))
        if registry == "pypi":
            return (*machine, python_version(), os.path.realpath(sys.base_prefix))
        return (*machine, await node_version(self.env, commands.what, self.reaper))

    @asynccontextmanager
    async def _hold(self, lock: Path, commands: "_Commands") -> AsyncIterator[None]:
        """Lock a package against other installers, for at most the time limit."""
        waiting = f"waiting for another node that installs {commands.what}"
        try:
            async with (
                asyncio.timeout(self._limit_s),
                _hold_lock(lock, lambda: self.progress(waiting)),
            ):
                yield
        except TimeoutError as error:
            raise PackageUnavailable(
                f"installing {commands.what} took longer than {self._limit_s:g} s and was ended; "
                "check the network, try again",
                commands.output(),
            ) from error
        except OSError as error:
            raise PackageUnavailable(
                f"{error.filename or lock.parent} cannot be used: {error.strerror}; make room or correct its rights",
                commands.output(),
            ) from error


class _Commands:
    """The commands of npm or pip for one package. A failure becomes PackageUnavailable with the command's output."""

    def __init__(self, what: str, env: dict[str, str], reaper: OrphanReaper | None, source_builds: bool) -> None:
        self.what, self.source_builds, self.env, self._reaper = what, source_builds, env, reaper
        self._output = StderrRing(OUTPUT_LINES, OUTPUT_LINE_BYTES, now=lambda: 0.0)

    def output(self) -> tuple[str, ...]:
        return output_of(self._output)

    async def run(self, folder: Path, *argv: str, called: str = "the installer") -> Ran:
        try:
            ran = await run(argv, self.env, folder, reaper=self._reaper, output=self._output)
        except ChildStartFailed as error:
            raise PackageUnavailable(f"{self.what} cannot be installed: {error}") from error
        if ran.returncode != 0:
            raise PackageUnavailable(f"{self.what} cannot be installed: {called} {ran.reason}{ran.gist}", ran.output)
        return ran


async def ensure(
    package: Package,
    folders: PackageFolders,
    progress: Callable[[str], None],
    *,
    reaper: OrphanReaper | None = None,
    environment: Mapping[str, str] | None = None,
    source_builds: bool = False,
    limit_s: float = INSTALL_LIMIT_S,
    installs: asyncio.Semaphore | None = None,
) -> tuple[str, ...]:
    """Return the command that runs the package of a configured server. Install it first if necessary.

    `progress` is called with one short line for each step. Output of the installer appears only in errors. `installs`
    limits how many packages are installed at the same time. Raise PackageUnavailable if the installation fails.
    """
    env = os.environ if environment is None else environment
    installer = Installer(
        folders.own, folders.store, env, progress, reaper, source_builds=source_builds, limit_s=limit_s
    )
    if installs is None or installer.has(package.registry, package.name):
        folder = await installer.keep(package.registry, package.name)
    else:
        if installs.locked():
            progress("it waits until others are installed")
        async with installs:
            folder = await installer.keep(package.registry, package.name)
    name = read_reference(package.registry, package.name).name
    if package.registry == "npm":
        return (node_tool("node", installer.env, package.name), str(npm_program(folder, name, None)))
    return pypi_command(folder, name, None)


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@asynccontextmanager
async def _hold_lock(path: Path, waiting: Callable[[], None]) -> AsyncIterator[None]:
    """Hold a file lock while the context is active. The kernel releases the lock if this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        has_reported = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_reported:
                    waiting()
                    has_reported = True
                await asyncio.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


async def _empty(folder: Path) -> None:
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _is_complete(folder: Path, registry: Registry, name: str) -> bool:
    """Return whether an earlier version of Interlock has left a complete installation of this package in the folder."""
    python = _python_of(folder)
    if python is None or not (folder / MARKER).is_file():
        return False
    if registry == "npm":
        return (npm_folder(folder, name) / "package.json").is_file()
    return python == python_version() and (folder / "bin" / "python").exists()


def _python_of(folder: Path) -> str | None:
    """Return the Python with which an installation was made, or None if there is no complete one."""
    use = find_use(folder / USE)
    if use is not None:
        return use.python
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=_Marker).python
    except (OSError, *UNREADABLE):
        return None


_NPM_OPTIONS: Final = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier", "--no-global")
# pip builds the source of a package that another package names by address, whatever it was told about wheels. It starts
# other programs for that, and for repositories. This runs pip so that it can start only `keyring`, which may have the
# password of an index. (A failure to start any other program is an OSError, which pip reports or ignores.)
_NO_BUILDS: Final = "it would be built from source or taken from a repository, which would run its code"
_PIP_WITHOUT_BUILDS: Final = f"""
import os, runpy, sys

def refuse(event, arguments):
    if event == "subprocess.Popen" and os.path.basename(os.fsdecode(arguments[0])) == "keyring":
        return
    if event in ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"):
        raise PermissionError({_NO_BUILDS!r})

sys.addaudithook(refuse)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_PIP_OPTIONS: Final = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")


# npm would run git for a package in a repository, and then another npm with the settings that the repository contains.
# This file cannot be run, so that npm fails instead.
_NO_GIT: Final = f"--git={os.devnull}"


class _NpmEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: str = ""
    integrity: str | None = None
    dependencies: dict[str, str] = {}
    in_bundle: bool = False


class _NpmLock(msgspec.Struct, frozen=True, kw_only=True):
    packages: dict[str, _NpmEntry]

    def check_hashes(self, text: str) -> None:
        """Raise PackageUnavailable if something is installed that no hash covers, such as a folder or a repository.

        What a package brings in its own archive is covered by the hash of that archive.
        """
        for place, entry in self.packages.items():
            if place and entry.integrity is None and not entry.in_bundle:
                needed = terminal_safe(place.rpartition("node_modules/")[2])
                # AIP-30.install-6: what no hash covers
                raise PackageUnavailable(f"{text} needs {needed}, which comes without a hash; pin another version")


async def _find_npm(folder: Path, text: str, name: str, commands: _Commands) -> Pins:
    npm = node_tool("npm", commands.env, text)
    node_tool("node", commands.env, text)
    # A project of its own, so that npm looks for none above.
    (folder / "package.json").write_bytes(b'{"private":true}')
    options = _npm_options(commands)
    await commands.run(folder, npm, "install", "--package-lock-only", "--prefix", str(folder), *options, "--", text)
    data = _read_bounded(folder / "package-lock.json", text)
    try:
        lock = msgspec.json.decode(data, type=_NpmLock)
        entry = lock.packages[f"node_modules/{name}"]
    except (msgspec.DecodeError, KeyError) as error:
        raise PackageUnavailable(f"npm found no version of {text}; check the name") from error
    if not commands.source_builds:
        lock.check_hashes(text)
    return Pins(registry="npm", name=name, version=entry.version, integrity=entry.integrity, text=data.decode())


async def _put_npm(folder: Path, pins: Pins, commands: _Commands) -> None:
    npm = node_tool("npm", commands.env, pins.name)
    try:
        lock = msgspec.json.decode(pins.text, type=_NpmLock)
        wanted = lock.packages[""].dependencies
    except (msgspec.DecodeError, KeyError) as error:
        raise PackageUnavailable(f"the recorded pins of {pins.name} cannot be read; install it again") from error
    if not commands.source_builds:
        # An earlier version may have recorded them.
        lock.check_hashes(f"{pins.name} {pins.version}")
    (folder / "package.json").write_bytes(msgspec.json.encode({"private": True, "dependencies": wanted}))
    (folder / "package-lock.json").write_text(pins.text)
    await commands.run(folder, npm, "ci", "--prefix", str(folder), *_npm_options(commands))


def _npm_options(commands: _Commands) -> tuple[str, ...]:
    return _NPM_OPTIONS if commands.source_builds else (*_NPM_OPTIONS, _NO_GIT)


class _PipArchive(msgspec.Struct, frozen=True, kw_only=True):
    hashes: dict[str, str] = {}


class _PipDownload(msgspec.Struct, frozen=True, kw_only=True):
    archive_info: _PipArchive = _PipArchive()


class _PipMetadata(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str


class _PipFound(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _PipMetadata
    download_info: _PipDownload


class _PipReport(msgspec.Struct, frozen=True, kw_only=True):
    install: list[_PipFound]


async def _find_pypi(folder: Path, requirements: Sequence[str], name: str, commands: _Commands) -> Pins:
    text = requirements[0]
    pip = await _pip(folder / "env", commands, for_asking=True)
    report = folder / "report.json"
    asking = ("install", "--dry-run", "--ignore-installed", "--report", str(report))
    try:
        await commands.run(folder, *pip, *asking, *_pip_options(commands), "--", *requirements)
    except PackageUnavailable as error:
        await _refuse_source_build(folder, pip, error, commands)
        raise
    try:
        distributions = msgspec.json.decode(_read_bounded(report, text), type=_PipReport).install
    except msgspec.DecodeError as error:
        raise PackageUnavailable(f"pip gave no usable answer about {text}; update pip to 23 or newer") from error
    lines, version, integrity = [], "", None
    for each in distributions:
        digest = each.download_info.archive_info.hashes.get("sha256")
        if digest is None:
            raise PackageUnavailable(
                f"{text} needs {each.metadata.name}, which comes without a hash; pin another version"
            )
        lines.append(f"{each.metadata.name}=={each.metadata.version} --hash=sha256:{digest}\n")
        if normalised_name(each.metadata.name) == name:
            version, integrity = each.metadata.version, f"sha256:{digest}"
    if integrity is None:
        raise PackageUnavailable(f"PyPI found no version of {text}; check the name")
    return Pins(registry="pypi", name=name, version=version, integrity=integrity, text="".join(sorted(lines)))


async def _put_pypi(folder: Path, pins: Pins, commands: _Commands) -> None:
    pip = await _pip(folder, commands)
    requirements = folder / "requirements.txt"
    requirements.write_text(pins.text)
    options = ("--no-deps", "--require-hashes", "-r", str(requirements))
    await commands.run(folder, *pip, "install", *_pip_options(commands), *options)


def _pip_options(commands: _Commands) -> tuple[str, ...]:
    # Building a source distribution runs its code, with the environment of the node.
    # AIP-30.install-6: nothing is built
    return _PIP_OPTIONS if commands.source_builds else (*_PIP_OPTIONS, "--only-binary", ":all:")


async def _refuse_source_build(
    folder: Path, pip: tuple[str, ...], error: PackageUnavailable, commands: _Commands
) -> None:
    """Raise SourceBuildRefused if `error` only occurred because a package has a source distribution and no wheel."""
    if any(_NO_BUILDS in line for line in error.output):
        raise SourceBuildRefused(
            f"{commands.what} cannot be installed: it needs a package that comes from no registry; {_NO_BUILDS}; "
            "name another version, or let the operator set drivers.allow_unverified_install",
            error.output,
        ) from error
    missing = next((match for line in error.output if (match := _NO_WHEEL.search(line))), None)
    if missing is None or commands.source_builds:
        return
    name, version = missing["name"], missing["rest"].removeprefix("==")
    asking = ("index", "versions", "--no-binary", ":all:", "--disable-pip-version-check", name)
    try:
        ran = await commands.run(folder, *pip, *asking)
    except PackageUnavailable:
        return
    if missing["rest"].startswith("==") and version.encode() not in re.split(rb"[\s,()]+", ran.stdout):
        return
    raise SourceBuildRefused(
        f"{commands.what} cannot be installed: no wheel of {name} suits this Python and system, "
        "and building its source would run its code; name a version that has a wheel, "
        "or let the operator set drivers.allow_unverified_install",
        error.output,
    ) from error


async def _pip(environment: Path, commands: _Commands, *, for_asking: bool = False) -> tuple[str, ...]:
    """Create the virtual environment `environment` and return the pip command that installs into it.

    With `for_asking`, prefer the pip of this Python, and let it build nothing. What is installed has a hash, and pip
    takes nothing for it that it would have to build.
    """
    ours = (sys.executable, "-I", "-m")
    python = str(environment / "bin" / "python")
    pip = ("-I", "-c", _PIP_WITHOUT_BUILDS) if for_asking and not commands.source_builds else ("-I", "-m", "pip")
    environment.mkdir(exist_ok=True)
    if importlib.util.find_spec("pip") is None:
        await commands.run(environment, *ours, "venv", str(environment))
        return (python, *pip)
    if for_asking:
        return (sys.executable, *pip)
    # An environment without a pip of its own is made in a tenth of the time.
    await commands.run(environment, *ours, "venv", "--without-pip", str(environment))
    return (*ours, "pip", "--python", python)


def _read_bounded(path: Path, text: str) -> bytes:
    try:
        if path.stat().st_size <= PINS_BYTES_MAX:
            return path.read_bytes()
    except FileNotFoundError as error:
        raise PackageUnavailable(f"the installer wrote nothing about {text}; update npm or pip") from error
    raise PackageUnavailable(f"{text} needs more packages than can be recorded; name the package of a server")


# Python packages kept by uv or pipx, where a driver asks for one of them by name. uvx keeps its packages in a cache of
# this version of the driver's package, which it also writes to when it starts a program; pipx leaves a virtual
# environment, which is run without pipx.

_WHERE: Final = {"uvx": "install uv (docs.astral.sh/uv), which brings uvx", "pipx": "install pipx (pipx.pypa.io)"}


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs an installed package, and the paths that it reads and writes."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()


class PythonRunners:
    """Installers that use uvx or pipx instead of npm or pip. They install into the root folder of an `Installer`.

    Both methods raise PackageUnavailable on failure. `package` is the name with its extras, and `beside` contains
    further requirements.
    """

    def __init__(self, installer: Installer) -> None:
        self._installer = installer
        self._root = installer.root

    async def keep_with_uvx(self, pins: Pins, package: str, entry: str, beside: Sequence[str] = ()) -> Runner:
        uvx = self._tool("uvx")
        # Each version has a new cache: uvx runs without a sandbox while it fills one, and the server of another version
        # could have written into its own.
        cache = self._root / f"uv-cache-{Path(pins.folder).name}"
        env = {"UV_CACHE_DIR": str(cache)}
        source = ("--from", f"{package}=={pins.version}", *(word for each in beside for word in ("--with", each)))
        filled = self._root / f"uv-filled-{Path(pins.folder).name}"
        if not filled.exists():
            await asyncio.to_thread(shutil.rmtree, cache, ignore_errors=True)
            cache.mkdir(parents=True)
            self._installer.progress(f"filling the cache of uvx with {package} {pins.version}")
            builds = () if self._installer.source_builds else ("--no-build",)
            # The interpreter of the new environment ends at once: the server itself is not started to fill a cache.
            await self._run((uvx, *builds, *source, "python", "-c", ""), env, pins)
            filled.touch()
        program = ("python", "-m", entry.removeprefix("-m ")) if entry.startswith("-m ") else (entry,)
        command = (uvx, "--offline", *source, *program)
        return Runner(command=command, env=env, reads=(Path(uvx).resolve(),), writes=(cache,))

    async def keep_with_pipx(self, pins: Pins, package: str, entry: str, beside: Sequence[str] = ()) -> Runner:
        pipx = self._tool("pipx")
        home = self._root / f"pipx-{pins.version}"
        environment = home / "venvs" / normalised_name(pins.name)
        env = {"PIPX_HOME": str(home), "PIPX_BIN_DIR": str(home / "bin"), "PIPX_MAN_DIR": str(home / "man")}
        if not (home / "complete").exists():
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
            home.mkdir(parents=True)
            self._installer.progress(f"installing {package} {pins.version} with pipx")
            builds = () if self._installer.source_builds else ("--pip-args=--only-binary :all:",)
            more = ("--preinstall", *beside) if beside else ()
            await self._run((pipx, "install", *builds, f"{package}=={pins.version}", *more), env, pins)
            (home / "complete").touch()
        command = pypi_command(environment, pins.name, entry)
        python = Path(command[0]).resolve()
        return Runner(command=command, reads=(home, python.parent.parent))

    def _tool(self, name: str) -> str:
        path = shutil.which(name, path=self._installer.env.get("PATH", os.defpath))
        if path is None:
            raise PackageUnavailable(f"{name} is not on the PATH, and server.runner asks for it; {_WHERE[name]}")
        return path

    async def _run(self, argv: tuple[str, ...], added: Mapping[str, str], pins: Pins) -> None:
        installer = self._installer
        commands = _Commands(pins.name, installer.env | dict(added), installer.reaper, installer.source_builds)
        try:
            async with asyncio.timeout(INSTALL_LIMIT_S):
                await commands.run(self._root, *argv, called=Path(argv[0]).name)
        except TimeoutError as error:
            raise PackageUnavailable(
                f"installing {pins.name} took longer than {INSTALL_LIMIT_S:g} s; try again"
            ) from error
