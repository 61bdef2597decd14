"""Installs packages from npm and PyPI so that the same bytes can be had again: first all versions and hashes are found
out, then exactly those are installed. POSIX only.

In: the name of a package, or the `Pins` of an earlier installation. Out: `Pins` and the folder that holds them. Every
set of pins has a folder of its own, so that a newer one stands beside the one in use. npm's pins are a
package-lock.json, PyPI's a list of requirements with hashes; neither installer accepts other bytes for them.
Nothing of a package runs while it is installed: no npm scripts, no building of source distributions.
"""

import asyncio
import hashlib
import importlib.util
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from interlock.packages.latest import (
    INSTALL_LIMIT_S,
    MARKER,
    PackageUnavailable,
    installer_environment,
    locked,
    node_tool,
    normalised,
    npm_folder,
    python_version,
    read_reference,
)
from interlock.process.run import OUTPUT_LINE_BYTES, OUTPUT_LINES, ChildStartFailed, Ran, output_of, run
from interlock.process.stderr import StderrRing
from interlock.process.warden import Warden

PINS_BYTES_MAX: Final = 4 * 1024 * 1024  # a package with so many others below it is no server
_DIGEST_CHARS: Final = 12
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_-]*(?:(?:[<>]=?|[=!~]=)[A-Za-z0-9][A-Za-z0-9.!+*_,<>=~-]*)?", re.ASCII
)

Registry = Literal["npm", "pypi"]


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    registry: Registry
    name: str
    version: str
    integrity: str | None  # of the package itself: npm's sha512-…, or sha256:… of the wheel
    text: str  # everything, in the form its installer reads

    @property
    def folder(self) -> str:
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST_CHARS]
        return f"{self.registry}/{self.name.replace('/', '+')}@{self.version}-{digest}"


class _Package(msgspec.Struct, frozen=True, kw_only=True):
    registry: Registry
    name: str


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    python: str = ""  # a virtual environment belongs to one version of Python


class PackageFolder:
    """Packages below one folder, with one environment for the installers."""

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        progress: Callable[[str], None],
        warden: Warden | None,
        limit_s: float = INSTALL_LIMIT_S,
    ) -> None:
        self.root = root.resolve()  # npm writes a lock that is useless elsewhere for a folder behind a symlink
        self.env = installer_environment(environment)
        self._progress = progress
        self._warden = warden
        self._limit_s = limit_s

    async def find(self, registry: Registry, text: str, beside: Sequence[str] = ()) -> Pins:
        """What the registry offers now for a name with or without a version. Raises PackageUnavailable.

        `beside`: requirements of PyPI that have to hold as well, like mcp<2.
        """
        for requirement in beside:
            if registry != "pypi" or not _REQUIREMENT.fullmatch(requirement):
                raise PackageUnavailable(f"{requirement[:80]!r} cannot be had beside {text}; write one like mcp<2")
        reference = read_reference(_Package(registry=registry, name=text))
        errand = _Errand(text, self.env, self._warden)
        self._progress(f"asking {'npm' if registry == 'npm' else 'PyPI'} for {text}")
        asking = self.root / registry / f".asking-{reference.folder}"
        async with self._held(asking, errand):
            await _emptied(asking)
            try:
                if registry == "npm":
                    return await _find_npm(asking, text, reference.name, errand)
                return await _find_pypi(asking, (text, *beside), reference.name, errand)
            finally:
                shutil.rmtree(asking, ignore_errors=True)

    async def put(self, pins: Pins) -> Path:
        """The folder that holds `pins`, installed unless it is there. Raises PackageUnavailable."""
        folder = self.root / pins.folder
        if _is_complete(folder, pins):
            return folder
        errand = _Errand(f"{pins.name} {pins.version}", self.env, self._warden)
        async with self._held(folder, errand):
            if not _is_complete(folder, pins):
                await _emptied(folder)
                self._progress(f"installing {pins.name} {pins.version}")
                await (_put_npm if pins.registry == "npm" else _put_pypi)(folder, pins, errand)
                half = folder / f"{MARKER}.half"
                half.write_bytes(msgspec.json.encode(_Marker(version=pins.version, python=python_version())))
                half.replace(folder / MARKER)
                self._progress(f"installed {pins.name} {pins.version}")
        return folder

    @asynccontextmanager
    async def _held(self, folder: Path, errand: "_Errand") -> AsyncIterator[None]:
        """One folder for one installer at a time, within the limit."""
        waiting = f"waiting for another node that installs {errand.what}"
        try:
            async with (
                asyncio.timeout(self._limit_s),
                locked(folder.with_name(f"{folder.name}.lock"), lambda: self._progress(waiting)),
            ):
                yield
        except TimeoutError as error:
            raise PackageUnavailable(
                f"installing {errand.what} took longer than {self._limit_s:g} s and was ended; "
                "check the network, try again",
                errand.output(),
            ) from error
        except OSError as error:
            raise PackageUnavailable(
                f"{folder} cannot be used: {error.strerror}; make room or correct its rights", errand.output()
            ) from error


class _Errand:
    """Runs installers for one package and turns their failure into words."""

    def __init__(self, what: str, env: dict[str, str], warden: Warden | None) -> None:
        self.what = what
        self.env = env
        self._warden = warden
        self._said = StderrRing(OUTPUT_LINES, OUTPUT_LINE_BYTES, now=lambda: 0.0)

    def output(self) -> tuple[str, ...]:
        return output_of(self._said)

    async def run(self, folder: Path, *argv: str) -> Ran:
        try:
            ran = await run(argv, self.env, folder, warden=self._warden, said=self._said)
        except ChildStartFailed as error:
            raise PackageUnavailable(f"{self.what} cannot be installed: {error}") from error
        if ran.returncode != 0:
            raise PackageUnavailable(
                f"{self.what} cannot be installed: the installer {ran.reason}{ran.gist}", ran.output
            )
        return ran


async def _emptied(folder: Path) -> None:
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _is_complete(folder: Path, pins: Pins) -> bool:
    try:
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=_Marker)
    except (OSError, msgspec.DecodeError):
        return False
    if pins.registry == "npm":
        return (npm_folder(folder, pins.name) / "package.json").is_file()
    return marker.python == python_version() and (folder / "bin" / "python").exists()


_NPM_OPTIONS: Final = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier", "--no-global")
_PIP_OPTIONS: Final = (
    *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
    *("--only-binary", ":all:"),  # building one runs its code, with the environment of the node
)


class _NpmEntry(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    integrity: str | None = None
    dependencies: dict[str, str] = {}


class _NpmLock(msgspec.Struct, frozen=True, kw_only=True):
    packages: dict[str, _NpmEntry]


async def _find_npm(folder: Path, text: str, name: str, errand: _Errand) -> Pins:
    npm = node_tool("npm", errand.env, text)
    node_tool("node", errand.env, text)
    # A project of its own, so that npm looks for none above.
    (folder / "package.json").write_bytes(b'{"private":true}')
    await errand.run(folder, npm, "install", "--package-lock-only", "--prefix", str(folder), *_NPM_OPTIONS, "--", text)
    lock = _bounded(folder / "package-lock.json", text)
    try:
        entry = msgspec.json.decode(lock, type=_NpmLock).packages[f"node_modules/{name}"]
    except (msgspec.DecodeError, KeyError) as error:
        raise PackageUnavailable(f"npm found no version of {text}; check the name") from error
    return Pins(registry="npm", name=name, version=entry.version, integrity=entry.integrity, text=lock.decode())


async def _put_npm(folder: Path, pins: Pins, errand: _Errand) -> None:
    npm = node_tool("npm", errand.env, pins.name)
    try:
        wanted = msgspec.json.decode(pins.text, type=_NpmLock).packages[""].dependencies
    except (msgspec.DecodeError, KeyError) as error:
        raise PackageUnavailable(f"the lock of {pins.name} is broken; install the driver anew") from error
    (folder / "package.json").write_bytes(msgspec.json.encode({"private": True, "dependencies": wanted}))
    (folder / "package-lock.json").write_text(pins.text)
    await errand.run(folder, npm, "ci", "--prefix", str(folder), *_NPM_OPTIONS)


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


async def _find_pypi(folder: Path, requirements: Sequence[str], name: str, errand: _Errand) -> Pins:
    text = requirements[0]
    pip = await _pip(folder / "env", errand, for_asking=True)
    report = folder / "report.json"
    asking = ("install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report))
    await errand.run(folder, *pip, *asking, *_PIP_OPTIONS, "--", *requirements)
    try:
        found = msgspec.json.decode(_bounded(report, text), type=_PipReport).install
    except msgspec.DecodeError as error:
        raise PackageUnavailable(f"pip said nothing of use about {text}; update pip to 23 or newer") from error
    lines, version, integrity = [], "", None
    for each in found:
        digest = each.download_info.archive_info.hashes.get("sha256")
        if digest is None:
            raise PackageUnavailable(
                f"{text} needs {each.metadata.name}, which comes without a hash; pin another version"
            )
        lines.append(f"{each.metadata.name}=={each.metadata.version} --hash=sha256:{digest}\n")
        if normalised(each.metadata.name) == name:
            version, integrity = each.metadata.version, f"sha256:{digest}"
    if integrity is None:
        raise PackageUnavailable(f"PyPI found no version of {text}; check the name")
    return Pins(registry="pypi", name=name, version=version, integrity=integrity, text="".join(sorted(lines)))


async def _put_pypi(folder: Path, pins: Pins, errand: _Errand) -> None:
    pip = await _pip(folder, errand)
    requirements = folder / "requirements.txt"
    requirements.write_text(pins.text)
    options = ("--no-deps", "--require-hashes", "-r", str(requirements))
    await errand.run(folder, *pip, "install", *_PIP_OPTIONS, *options)


async def _pip(environment: Path, errand: _Errand, *, for_asking: bool = False) -> tuple[str, ...]:
    """The pip that fills `environment`, which is made; ours, where there is one, asks without any."""
    ours = (sys.executable, "-I", "-m")
    python = str(environment / "bin" / "python")
    environment.mkdir(exist_ok=True)
    if importlib.util.find_spec("pip") is None:
        await errand.run(environment, *ours, "venv", str(environment))
        return (python, "-I", "-m", "pip")
    if for_asking:
        return (*ours, "pip")
    # An environment without a pip of its own is made in a tenth of the time.
    await errand.run(environment, *ours, "venv", "--without-pip", str(environment))
    return (*ours, "pip", "--python", python)


def _bounded(path: Path, text: str) -> bytes:
    try:
        if path.stat().st_size <= PINS_BYTES_MAX:
            return path.read_bytes()
    except FileNotFoundError as error:
        raise PackageUnavailable(f"the installer wrote nothing about {text}; update npm or pip") from error
    raise PackageUnavailable(f"{text} needs more packages than can be recorded; name the package of a server")
