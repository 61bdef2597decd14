"""The methods of an install block, one by one: each brings something to run from, or says why not.

In: one entry of install[] (or the one that server.kind implies) and the driver. Out: `MethodResult`, with what a
server of any kind needs, or MethodFailed. Everything lands below the driver's own folder of packages.
"""

import asyncio
import hashlib
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.config.plan import SandboxPlan
from interlock.drivers.install.containers import ContainerRefused
from interlock.drivers.install.installation import (
    INSTALL_FAILED,
    Installation,
    Locked,
    MethodFailed,
    MethodResult,
    Note,
)
from interlock.drivers.kinds import kind_of
from interlock.drivers.kinds.program import NoProgram, resolve_inside
from interlock.drivers.protocol.model import Install
from interlock.net.download import DownloadFailed, download, take_program
from interlock.process.packages.installer import INSTALL_LIMIT_S, Pins
from interlock.process.packages.references import PackageUnavailable
from interlock.process.run import ChildStartFailed, Ran, run
from interlock.process.sandbox.errors import SandboxFailed
from interlock.process.stderr import terminal_safe

DOCKER_SCHEME: Final = "docker://"
SYSTEM: Final = {  # AIP-30.install-1: shown as instructions, and counted as failed
    "brew": "brew install",
    "apt": "sudo apt install",
    "dnf": "sudo dnf install",
    "pacman": "sudo pacman -S",
    "choco": "choco install",
    "scoop": "scoop install",
    "cargo": "cargo install",
    "go": "go install",
}
COMPLETE: Final = "interlock-complete"


_EXPECTED: Final = (
    PackageUnavailable,
    ContainerRefused,
    NoProgram,
    SandboxFailed,
    DownloadFailed,
    ChildStartFailed,
)


def _method_failed(error: Exception) -> MethodFailed:
    return MethodFailed(str(error), getattr(error, "output", ()), getattr(error, "code", INSTALL_FAILED))


class Methods:
    """The methods of an install block, for one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._root = installation.root

    async def attempt(self, entry: Install) -> MethodResult:
        """Try one method. Raises MethodFailed, and nothing else that is expected."""
        method, options = entry.method, entry.options
        try:
            match method:
                case "npm" | "pip":
                    return await self._package(method, options)
                case "docker":
                    return await self._image(str(options["image"]))
                case "download" if str(options["url"]).startswith(DOCKER_SCHEME):
                    # AIP-30.install-2
                    note = Note(code="docker_url", message="a docker:// address is pulled as an image; write docker")
                    brought = await self._image(str(options["url"]).removeprefix(DOCKER_SCHEME))
                    return msgspec.structs.replace(brought, notes=(note,))
                case "download":
                    return await self._download(options, _maybe_hash(options))
                case "curl":
                    return await self._script(options, _maybe_hash(options))
                case "vendored":
                    return self._use_vendored(str(options["path"]))
        except _EXPECTED as error:
            raise _method_failed(error) from error
        except KeyError as error:
            raise MethodFailed(f"{error.args[0]} is missing in its entry of install") from error
        except OSError as error:
            raise MethodFailed(f"{self._root} cannot be used: {error.strerror}; correct its rights") from error
        if method in SYSTEM:
            package = shlex.quote(terminal_safe(str(options.get("package", ""))))
            raise MethodFailed(
                f"a gateway does not use the package manager of the system; do it yourself: {SYSTEM[method]} {package}"
            )
        raise MethodFailed("this method is not known here, and it was skipped")

    async def repeat(self, lock: Locked, options: Mapping[str, Any]) -> MethodResult:
        """Install what `lock` names, and nothing else. Raises MethodFailed."""
        try:
            match lock.method:
                case "npm" | "pip":
                    pins = Pins(
                        registry="npm" if lock.method == "npm" else "pypi",
                        name=lock.package,
                        version=lock.version or "",
                        integrity=lock.integrity,
                        text=lock.pins,
                    )
                    return MethodResult(
                        lock=lock, pins=pins, beside=tuple(str(each) for each in options.get("with", ()))
                    )
                case "docker":
                    engine = self._installation.engine
                    image = await engine.find(lock.pins) or await engine.pull(lock.pins, self._installation.progress)
                    if image.digest != lock.integrity:  # AIP-server-5
                        raise MethodFailed("the image no longer has the digest that was recorded")
                    return MethodResult(lock=lock, image=image)
                case "download":
                    return await self._download(options, (lock.integrity or "").removeprefix("sha256:"))
                case "curl":
                    return await self._script(options, (lock.integrity or "").removeprefix("sha256:"))
        except _EXPECTED as error:
            raise _method_failed(error) from error
        raise MethodFailed("the record of this installation is not understood; install the driver anew")

    async def _package(self, method: str, options: Mapping[str, Any]) -> MethodResult:
        server = self._installation.driver.server
        text = kind_of(server).pin_package(server, method, str(options["package"]))
        beside = tuple(str(each) for each in options.get("with", ())) if method == "pip" else ()
        pins = await self._installation.packages.find("npm" if method == "npm" else "pypi", text, beside)
        lock = Locked(
            asked=self._installation.digest,
            method="npm" if method == "npm" else "pip",
            package=pins.name,
            version=pins.version,
            integrity=pins.integrity,
            pins=pins.text,
        )
        return MethodResult(lock=lock, pins=pins, beside=beside)

    async def _image(self, reference: str) -> MethodResult:
        image = await self._installation.engine.pull(reference, self._installation.progress)
        lock = Locked(
            asked=self._installation.digest,
            method="docker",
            package=reference.partition("@")[0],
            integrity=image.digest,
            pins=image.reference,
        )
        return MethodResult(lock=lock, image=image)

    def _declined_failure(self, what: str) -> MethodFailed:
        return MethodFailed(
            f"{what} without verify_sha256 is not run; add the hash, "
            "or let the operator set drivers.allow_unverified_install"
        )

    async def _download(self, options: Mapping[str, Any], sha256: str | None) -> MethodResult:
        if sha256 is None and not self._installation.settings.allow_unverified_install:  # AIP-30.install-2
            raise self._declined_failure("a download")
        name = Path(str(options["extract_bin"])).name
        if not name or name in {".", ".."}:
            raise MethodFailed("extract_bin names no program; write its path inside the archive")
        url = str(options["url"])
        if sha256 is not None and (program := self._root / "download" / sha256 / name).is_file():
            return MethodResult(lock=self._file_lock("download", sha256), programs=(program,))
        self._installation.progress(f"downloading {name}")
        fetched = self._root / "download" / f".{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        try:
            found = await download(url, sha256, fetched)
            program = self._root / "download" / found / name
            program.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(take_program, fetched, str(options["extract_bin"]), program)
        finally:
            fetched.unlink(missing_ok=True)
        return MethodResult(lock=self._file_lock("download", found), programs=(program,))

    async def _script(self, options: Mapping[str, Any], sha256: str | None) -> MethodResult:
        """Run a shell installer, with a home of its own and nothing of the node's environment but the PATH. In a
        sandbox it writes there alone, and reaches where it came from and what the driver may reach."""
        if sha256 is None and not self._installation.settings.allow_unverified_install:  # AIP-30.install-2
            raise self._declined_failure("a shell installer")
        fetched = self._root / "curl" / f".{hashlib.sha256(str(options['url']).encode()).hexdigest()[:16]}"
        if sha256 is None or not (self._root / "curl" / sha256 / COMPLETE).is_file():
            self._installation.progress("downloading the installer")
            sha256 = await download(str(options["url"]), sha256, fetched)
            home = self._root / "curl" / sha256
            try:
                await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
                home.mkdir(parents=True)
                self._installation.progress("running the installer")
                async with asyncio.timeout(INSTALL_LIMIT_S):
                    ran = await self._run_script(str(options["url"]), fetched, home)
            except TimeoutError as error:
                raise MethodFailed(f"the installer took longer than {INSTALL_LIMIT_S:g} s and was ended") from error
            finally:
                fetched.unlink(missing_ok=True)
            if ran.returncode != 0:
                raise MethodFailed(f"the installer {ran.reason}{ran.gist}", ran.output)
            (home / COMPLETE).touch()
        home = self._root / "curl" / sha256
        return MethodResult(
            lock=self._file_lock("curl", sha256),
            programs=tuple(home / place for place in ("bin", ".local/bin", "usr/local/bin", ".")),
        )

    async def _run_script(self, url: str, script: Path, home: Path) -> Ran:
        words = ("/bin/sh", str(script))
        if self._installation.caged is None:
            env = {"PATH": self._installation.search_path, "HOME": str(home), "TMPDIR": str(home)}
            return await run(words, env, home, reaper=self._installation.reaper)
        host, network = urlsplit(url).hostname, self._installation.driver.network
        hosts = (*((host,) if host else ()), *(network.egress if network is not None else ()))
        plan = SandboxPlan(home=home, read=(script,), egress=tuple(dict.fromkeys(hosts)), any_program=True)
        return await self._installation.caged(plan)(words)

    def _file_lock(self, method: str, sha256: str) -> Locked:
        return Locked(
            asked=self._installation.digest,
            method="download" if method == "download" else "curl",
            integrity=f"sha256:{sha256}",
        )

    def _use_vendored(self, path: str) -> MethodResult:
        found = resolve_inside(path, folder=self._installation.folder, workspace=self._installation.workspace)
        if not found.exists():
            raise MethodFailed(f"{path} is not in the driver's folder; put it there or correct install")
        return MethodResult(
            lock=Locked(asked=self._installation.digest, method="vendored"), programs=(found,), folder=found
        )


def _maybe_hash(options: Mapping[str, Any]) -> str | None:
    """64 hexadecimal digits: the reader has seen to that."""
    written = options.get("verify_sha256")
    return None if written is None else str(written)
