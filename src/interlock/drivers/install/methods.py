"""The methods of an install block, one by one: each brings something to run from, or says why not.

In: one entry of install[] (or the one that server.kind implies) and the driver. Out: `MethodResult`, with what a
server of any kind needs, or MethodFailed. Everything lands below the driver's own folder of packages.
"""

import asyncio
import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.config.plan import SandboxPlan
from interlock.drivers.install.commands import Caged
from interlock.drivers.install.containers import ContainerRefused, Engine, Image, find_engine
from interlock.drivers.install.outcome import INSTALL_FAILED, Locked, Note
from interlock.drivers.install.programs import NoProgram, inside
from interlock.drivers.protocol.model import Docker, Driver, Install, Npm, Pypi
from interlock.net.download import DownloadFailed, download, take_program
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.installer import INSTALL_LIMIT_S, Installer, Pins
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


class MethodFailed(Exception):
    def __init__(self, reason: str, output: tuple[str, ...] = (), code: str = INSTALL_FAILED) -> None:
        super().__init__(reason)
        self.output = output
        self.code = code


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


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    lock: Locked
    pins: Pins | None = None  # packages: what to run,
    beside: tuple[str, ...] = ()  # what has to hold of others, for a runner that asks again, and
    folder: Path | None = None  # where it is; None with npx, which keeps it itself
    programs: tuple[Path, ...] = ()  # files and folders that hold programs
    image: Image | None = None
    notes: tuple[Note, ...] = ()


class Methods:
    def __init__(
        self,
        driver: Driver,
        *,
        root: Path,
        folder: Path,
        workspace: Path,
        asked: str,
        unverified: bool,
        environment: Mapping[str, str],
        progress: Callable[[str], None],
        reaper: OrphanReaper | None,
        caged: Caged | None = None,
    ) -> None:
        self.packages = Installer(root, environment, progress, reaper, source_builds=unverified)
        self.environment = environment
        self._driver = driver
        self._root = root.absolute()
        self._folder = folder
        self._workspace = workspace
        self._asked = asked
        self._unverified = unverified
        self._progress = progress
        self._reaper = reaper
        self._caged = caged

    def implied_methods(self) -> tuple[Install, ...]:
        """AIP-30.install-1: what server.kind says where install is not written."""
        server = self._driver.server
        match server:
            case Npm():
                return (Install(method="npm", options={"package": server.package}),)  # AIP-30.install-1
            case Pypi():
                return (Install(method="pip", options={"package": server.package}),)  # AIP-30.install-1
            case Docker():
                return (Install(method="docker", options={"image": server.image}),)  # AIP-30.install-1
        return ()

    def engine(self) -> Engine:
        return find_engine(self.environment, self._reaper)

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

    async def again(self, lock: Locked, options: Mapping[str, Any]) -> MethodResult:
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
                    engine = self.engine()
                    image = await engine.find(lock.pins) or await engine.pull(lock.pins, self._progress)
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
        text = str(options["package"])
        server = self._driver.server
        if (isinstance(server, Npm) and method == "npm") or (isinstance(server, Pypi) and method == "pip"):
            text = _with_pin(text, server)
        beside = tuple(str(each) for each in options.get("with", ())) if method == "pip" else ()
        pins = await self.packages.find("npm" if method == "npm" else "pypi", text, beside)
        lock = Locked(
            asked=self._asked,
            method="npm" if method == "npm" else "pip",
            package=pins.name,
            version=pins.version,
            integrity=pins.integrity,
            pins=pins.text,
        )
        return MethodResult(lock=lock, pins=pins, beside=beside)

    async def _image(self, reference: str) -> MethodResult:
        image = await self.engine().pull(reference, self._progress)
        lock = Locked(
            asked=self._asked,
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
        if sha256 is None and not self._unverified:  # AIP-30.install-2
            raise self._declined_failure("a download")
        name = Path(str(options["extract_bin"])).name
        if not name or name in {".", ".."}:
            raise MethodFailed("extract_bin names no program; write its path inside the archive")
        url = str(options["url"])
        if sha256 is not None and (program := self._root / "download" / sha256 / name).is_file():
            return MethodResult(lock=self._file_lock("download", sha256), programs=(program,))
        self._progress(f"downloading {name}")
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
        if sha256 is None and not self._unverified:  # AIP-30.install-2
            raise self._declined_failure("a shell installer")
        fetched = self._root / "curl" / f".{hashlib.sha256(str(options['url']).encode()).hexdigest()[:16]}"
        if sha256 is None or not (self._root / "curl" / sha256 / COMPLETE).is_file():
            self._progress("downloading the installer")
            sha256 = await download(str(options["url"]), sha256, fetched)
            home = self._root / "curl" / sha256
            try:
                await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
                home.mkdir(parents=True)
                self._progress("running the installer")
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
        if self._caged is None:
            env = {"PATH": self.environment.get("PATH", os.defpath), "HOME": str(home), "TMPDIR": str(home)}
            return await run(words, env, home, reaper=self._reaper)
        host, network = urlsplit(url).hostname, self._driver.network
        hosts = (*((host,) if host else ()), *(network.egress if network is not None else ()))
        plan = SandboxPlan(home=home, read=(script,), egress=tuple(dict.fromkeys(hosts)), any_program=True)
        return await self._caged(plan)(words)

    def _file_lock(self, method: str, sha256: str) -> Locked:
        return Locked(
            asked=self._asked, method="download" if method == "download" else "curl", integrity=f"sha256:{sha256}"
        )

    def _use_vendored(self, path: str) -> MethodResult:
        found = inside(path, folder=self._folder, workspace=self._workspace)
        if not found.exists():
            raise MethodFailed(f"{path} is not in the driver's folder; put it there or correct install")
        return MethodResult(lock=Locked(asked=self._asked, method="vendored"), programs=(found,), folder=found)


def _maybe_hash(options: Mapping[str, Any]) -> str | None:
    """64 hexadecimal digits: the reader has seen to that."""
    written = options.get("verify_sha256")
    return None if written is None else str(written)


def _with_pin(text: str, server: Npm | Pypi) -> str:
    """The package of server.package gets the pin of the server; two different pins are refused."""
    mark = "@" if isinstance(server, Npm) else "=="
    scope = text[:1] if text.startswith("@") else ""
    name, _, pin = text.removeprefix("@").partition(mark)
    name = scope + name
    own = server.package if isinstance(server, Npm) else server.package.partition("[")[0]
    if name.partition("[")[0].lower() != own.lower() or server.version is None:
        return text
    if pin and pin != server.version:
        raise MethodFailed("install and server name two versions of the package; keep the pin in one of them")
    return f"{server.package}{mark}{server.version}"
