"""Installation of what a driver's server and install blocks name, and the check of its version. No call waits for it.

The input is a driver, the folder from which it was read, the folder for packages and, if the server was installed
before, its record (`Locked`). The result is `Installed`, or `InstallFailed` with every method that was tried.

If there is a record that still matches the driver, exactly the recorded files are run, and installed again if they are
missing. Otherwise the methods of the driver are tried in order (AIP-30.install-1). A method takes one entry of
install[] (or the one that server.kind implies) and returns a `MethodResult`, or raises MethodFailed. All files are
written below the driver's own folder of packages.

The version check tests whether the installed version is in the range that the driver supports (AIP-30.version-1, -2).
If its command runs the package of an npm or PyPI server itself, the version of the package is used and nothing is
started: most of these servers have no --version, and would read it as a directory or begin to serve. The pattern comes
from the driver, and a search with `re` cannot be interrupted. A separate process therefore searches, and is killed at
the time limit.
"""

import asyncio
import hashlib
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from interlock.config.plan import SandboxPlan
from interlock.drivers.install.installation import (
    INSTALL_FAILED,
    VERSION_MISMATCH,
    Attempt,
    CommandFailed,
    CommandRunner,
    Installation,
    Installed,
    InstallFailed,
    Locked,
    Method,
    MethodFailed,
    MethodResult,
    Note,
    plain_runner,
    run_command,
    words_of,
)
from interlock.drivers.kinds import kind_of, resolve_inside
from interlock.drivers.protocol.files.versions import parse_version, satisfies, semantic
from interlock.drivers.protocol.model import Driver, Install, VersionCheck
from interlock.net.download import DownloadFailed, download, take_program
from interlock.process.child import ChildStartFailed, Ran, run
from interlock.process.packages.installer import INSTALL_LIMIT_S, Pins
from interlock.process.packages.programs import PackageUnavailable
from interlock.process.sandbox.host_paths import SandboxFailed
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
_REGISTRIES: Final[Mapping[str, Literal["npm", "pypi"]]] = {"npm": "npm", "pip": "pypi"}
_EXPECTED: Final = (PackageUnavailable, SandboxFailed, DownloadFailed, ChildStartFailed)


@contextmanager
def _expected_failures(root: Path) -> Iterator[None]:
    """Convert the errors that can be expected inside the context to MethodFailed. `root` is the folder in which the
    server is installed.
    """
    try:
        yield
    except _EXPECTED as error:
        code = getattr(error, "code", INSTALL_FAILED)
        raise MethodFailed(str(error), getattr(error, "output", ()), code) from error
    except OSError as error:
        raise MethodFailed(f"{root} cannot be used: {error.strerror}; correct its rights") from error


def _required(options: Mapping[str, Any], key: str) -> str:
    if key not in options:
        raise MethodFailed(f"{key} is missing in its entry of install")
    return str(options[key])


async def attempt(installation: Installation, entry: Install) -> MethodResult:
    """Try one method of installing a server, such as npm. Raise MethodFailed if it does not succeed."""
    method, options = entry.method, entry.options
    with _expected_failures(installation.root):
        match method:
            case "npm" | "pip":
                return await _package(installation, method, options)
            case "docker":
                return await _image(installation, _required(options, "image"))
            case "download" if (url := _required(options, "url")).startswith(DOCKER_SCHEME):
                # AIP-30.install-2
                note = Note(code="docker_url", message="a docker:// address is pulled as an image; write docker")
                result = await _image(installation, url.removeprefix(DOCKER_SCHEME))
                return msgspec.structs.replace(result, notes=(note,))
            case "download":
                return await _download(installation, options, options.get("verify_sha256"))
            case "curl":
                return await _script(installation, options, options.get("verify_sha256"))
            case "vendored":
                path = _required(options, "path")
                program = resolve_inside(path, installation)
                if not program.exists():
                    raise MethodFailed(f"{path} is not in the driver's folder; put it there or correct install")
                return MethodResult(lock=_lock(installation, "vendored"), programs=(program,), folder=program)
    if method in SYSTEM:
        package = shlex.quote(terminal_safe(str(options.get("package", ""))))
        command = f"{SYSTEM[method]} {package}"
        raise MethodFailed(f"a gateway does not use the package manager of the system; do it yourself: {command}")
    raise MethodFailed("this method is not known here, and it was skipped")


async def repeat(installation: Installation, lock: Locked, options: Mapping[str, Any]) -> MethodResult:
    """Install exactly what `lock` recorded earlier. Files are downloaded if they are missing.

    `options` are those of the driver's entry for the same method. Raise MethodFailed for every expected failure.
    """
    digest = (lock.integrity or "").removeprefix("sha256:")
    with _expected_failures(installation.root):
        match lock.method:
            case "npm" | "pip":
                pins = Pins(
                    registry=_REGISTRIES[lock.method],
                    name=lock.package,
                    version=lock.version or "",
                    integrity=lock.integrity,
                    text=lock.pins,
                )
                return MethodResult(lock=lock, pins=pins, beside=tuple(map(str, options.get("with", ()))))
            case "docker":
                engine = installation.engine
                image = await engine.find(lock.pins) or await engine.pull(lock.pins, installation.progress)
                if image.digest != lock.integrity:  # AIP-server-5
                    raise MethodFailed("the image no longer has the digest that was recorded")
                return MethodResult(lock=lock, image=image)
            case "download":
                return await _download(installation, options, digest)
            case "curl":
                return await _script(installation, options, digest)
    raise MethodFailed("the record of this installation is not understood; install the driver again")


async def _package(
    installation: Installation, method: Literal["npm", "pip"], options: Mapping[str, Any]
) -> MethodResult:
    """Look up the version and the files of a package in its registry. The files are downloaded later."""
    server = installation.driver.server
    text = kind_of(server).pin_package(server, method, _required(options, "package"))
    beside = tuple(map(str, options.get("with", ()))) if method == "pip" else ()
    pins = await installation.installer.find(_REGISTRIES[method], text, beside)
    lock = _lock(
        installation, method, package=pins.name, version=pins.version, integrity=pins.integrity, pins=pins.text
    )
    return MethodResult(lock=lock, pins=pins, beside=beside)


async def _image(installation: Installation, reference: str) -> MethodResult:
    """Pull a container image and record its digest."""
    image = await installation.engine.pull(reference, installation.progress)
    package = reference.partition("@")[0]
    lock = _lock(installation, "docker", package=package, integrity=image.digest, pins=image.reference)
    return MethodResult(lock=lock, image=image)


async def _download(installation: Installation, options: Mapping[str, Any], wanted: str | None) -> MethodResult:
    """Download an archive or a program, verify its hash and extract the program.

    A download without a hash is refused unless the operator allows unverified installation (AIP-30.install-2).
    """
    _refuse_unverified(installation, "a download", wanted)
    inside = _required(options, "extract_bin")
    name = Path(inside).name
    if not name or name in {".", ".."}:
        raise MethodFailed("extract_bin names no program; write its path inside the archive")
    sha256, folder = wanted, installation.root / "download"
    if sha256 is None or not (folder / sha256 / name).is_file():
        installation.progress(f"downloading {name}")
        async with _fetched(installation, folder, _required(options, "url"), wanted) as (fetched, sha256):
            (folder / sha256).mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(take_program, fetched, inside, folder / sha256 / name)
    lock = _lock(installation, "download", integrity=f"sha256:{sha256}")
    return MethodResult(lock=lock, programs=(folder / sha256 / name,))


async def _script(installation: Installation, options: Mapping[str, Any], wanted: str | None) -> MethodResult:
    """Run a shell installer in a separate home folder, unless this installer has already completed.

    Of the node's environment it receives only the PATH, and in a sandbox also LANG and TZ. In a sandbox it
    can write only to this home folder, and connect only to the host of the script and to the hosts that the driver
    declares.
    """
    _refuse_unverified(installation, "a shell installer", wanted)
    url, sha256, folder = _required(options, "url"), wanted, installation.root / "curl"
    if sha256 is None or not (folder / sha256 / COMPLETE).is_file():
        installation.progress("downloading the installer")
        async with _fetched(installation, folder, url, wanted) as (fetched, sha256):
            home = folder / sha256
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
            home.mkdir(parents=True)
            installation.progress("running the installer")
            try:
                async with asyncio.timeout(INSTALL_LIMIT_S):
                    ran = await _run_script(installation, url, fetched, home)
            except TimeoutError as error:
                raise MethodFailed(f"the installer took longer than {INSTALL_LIMIT_S:g} s and was ended") from error
        if ran.returncode != 0:
            raise MethodFailed(f"the installer {ran.reason}{ran.gist}", ran.output)
        (home / COMPLETE).touch()
    programs = tuple(folder / sha256 / place for place in ("bin", ".local/bin", "usr/local/bin", "."))
    return MethodResult(lock=_lock(installation, "curl", integrity=f"sha256:{sha256}"), programs=programs)


async def _run_script(installation: Installation, url: str, script: Path, home: Path) -> Ran:
    """Run an installer script in a sandbox. Run it without a sandbox only if the operator has allowed this for the
    driver.
    """
    words = ("/bin/sh", str(script))
    if installation.caged is None:
        env = {"PATH": installation.search_path, "HOME": str(home), "TMPDIR": str(home)}
        return await run(words, env, home, reaper=installation.reaper)
    host, network = urlsplit(url).hostname, installation.driver.network
    hosts = (*((host,) if host else ()), *(network.egress if network is not None else ()))
    plan = SandboxPlan(home=home, read=(script,), egress=tuple(dict.fromkeys(hosts)), any_program=True)
    return await installation.caged(plan)(words)


def _refuse_unverified(installation: Installation, what: str, sha256: str | None) -> None:
    if sha256 is None and not installation.settings.allow_unverified_install:  # AIP-30.install-2
        remedy = "add the hash, or let the operator set drivers.allow_unverified_install"
        raise MethodFailed(f"{what} without verify_sha256 is not run; {remedy}")


@asynccontextmanager
async def _fetched(
    installation: Installation, folder: Path, url: str, sha256: str | None
) -> AsyncIterator[tuple[Path, str]]:
    """Download a file, and delete it when the context exits. Yield its path and its SHA-256."""
    fetched = folder / f".{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    try:
        yield fetched, await download(url, sha256, fetched)
    finally:
        fetched.unlink(missing_ok=True)


def _lock(installation: Installation, method: Method, **fields: str | None) -> Locked:
    return msgspec.structs.replace(Locked(asked=installation.digest, method=method), **fields)


SEARCHED_BYTES_MAX: Final = 16 * 1024  # a version is near the start of what is printed
_SEARCH: Final = (
    "import re, sys\n"
    "found = re.search(sys.argv[1], sys.argv[2])\n"
    "sys.stdout.write((found[1] or '')[:300] if found else '')\n"
)


async def check_version(driver: Driver, installed: Installed, running: CommandRunner) -> Installed | str:
    """Run the version check of a driver. Return the server with the version found, or a text that says why the version
    does not fit.

    The version does not fit if it is outside the range or cannot be determined. Without a version_check, return the
    server unchanged. `running` runs the command of the check.
    """
    check = driver.version_check
    if check is None:
        return installed
    notes = installed.notes
    try:
        words = words_of(check.cmd)
        kind = kind_of(driver.server)
        if kind.names_package(driver.server, words) and installed.version is not None:  # AIP-30.version-2
            version = semantic(installed.version)
            message = f"the version is that of the installed package, {installed.version}; the command was not run"
            notes = (*notes, Note(code="version_from_package", message=message))
        else:
            ran = await run_command(kind.resolve_program(driver.server, words, installed), check.timeout_ms, running)
            if ran.returncode != 0:  # AIP-30.version-2
                return f"the command {ran.reason}; correct version_check.cmd"
            version = await _version_text(check, ran.stdout)
    except CommandFailed as error:
        return f"the command {error}; correct version_check.cmd"
    if not version:
        return "version_check.parse finds nothing in what the command prints; correct it"
    if parse_version(version) is None:  # AIP-30.version-1
        return "what version_check.parse finds is no version like 1.2.3; correct the pattern"
    if not satisfies(version, check.range):  # AIP-30.version-1
        return f"version {version} is not in {check.range}; install another, or correct range"
    return msgspec.structs.replace(installed, version=version, notes=notes)


async def _version_text(check: VersionCheck, stdout: bytes) -> str:
    text = stdout[:SEARCHED_BYTES_MAX].decode(errors="replace").replace("\0", "")
    words = (sys.executable, "-I", "-S", "-X", "utf8", "-c", _SEARCH, check.parse, text)
    try:
        ran = await run_command(words, check.timeout_ms, plain_runner(None))
    except CommandFailed as error:
        raise CommandFailed(f"is searched with a pattern that {error}") from error
    return ran.stdout.decode(errors="replace").strip()


async def install_checked(
    driver: Driver,
    installer: Callable[[bool], Awaitable[Installed | InstallFailed]],
    running_of: Callable[[Installed], CommandRunner],
) -> Installed | InstallFailed:
    """Install the server and check its version (AIP-30.version-1).

    If the version does not match, install once more without the lock. `installer(without_lock)` calls `install`.
    `running_of` returns the runner for the command of the version check.
    """
    attempts: list[Attempt] = []
    for without_lock in (False, True):
        installed = await installer(without_lock)
        if isinstance(installed, InstallFailed):
            return msgspec.structs.replace(installed, attempts=(*attempts, *installed.attempts))
        checked = await check_version(driver, installed, running_of(installed))
        attempts += installed.attempts
        if isinstance(checked, Installed):
            return msgspec.structs.replace(checked, attempts=tuple(attempts))
        attempts.append(Attempt(method="version_check", reason=checked))
    return InstallFailed(code=VERSION_MISMATCH, attempts=tuple(attempts))  # AIP-30.version-1


async def install(installation: Installation, lock: Locked | None = None) -> Installed | InstallFailed:
    """Install a driver's server: the release that `lock` recorded if the driver still asks for it, otherwise the newest
    one.

    Try the methods of the driver in order if there is no lock, if the driver's install request has changed since, or if
    the lock records that the server was vendored or already present. If no method works, look for a server that a
    person has installed. No method is tried for a server that the node only connects to.
    """
    driver = installation.driver
    # The kind of server implies a method if the driver has no install block.
    methods = driver.install or kind_of(driver.server).implied_methods(driver.server)  # AIP-30.install-1
    # AIP-30.install-3
    if lock is not None and lock.asked == installation.digest and lock.method not in {"present", "vendored"}:
        # Of two downloads take the one whose hash was recorded; one without a hash must have brought it.
        fitting = [entry.options for entry in methods if entry.method == lock.method]
        recorded = (lock.integrity or "").removeprefix("sha256:")
        fitting.sort(key=lambda options: options.get("verify_sha256") not in {recorded, None})
        try:
            result = await repeat(installation, lock, fitting[0] if fitting else {})
            installed = await _complete(installation, result)
        except MethodFailed as error:
            # This is final: other methods are not tried, because they could install something else.
            reason = f"what was recorded cannot be run: {error}; run `interlock drivers update {driver.segment}`"
            failure = Attempt(method=lock.method, reason=reason, output=error.output)
            return InstallFailed(code=error.code, attempts=(failure,))
        return msgspec.structs.replace(installed, attempts=(Attempt(method=lock.method),))
    attempts: list[Attempt] = []
    code = INSTALL_FAILED
    is_local = driver.server.address is None
    for entry in methods if is_local else ():
        try:
            installed = await _complete(installation, await attempt(installation, entry))
        except MethodFailed as error:
            installation.progress(f"{entry.method}: {error}")
            attempts.append(Attempt(method=entry.method, reason=str(error), output=error.output))  # AIP-30.install-1
            code = error.code
            continue
        return msgspec.structs.replace(installed, attempts=(*attempts, Attempt(method=entry.method)))
    try:
        present = kind_of(driver.server).find_present(driver.server, installation)
    except MethodFailed as error:
        attempts.append(Attempt(method="present", reason=str(error)))
        return InstallFailed(code=error.code, attempts=tuple(attempts))
    if present is not None:
        done = (*attempts, Attempt(method="present")) if is_local else ()
        return msgspec.structs.replace(present, attempts=done)
    return InstallFailed(code=code, attempts=tuple(attempts))  # AIP-30.install-1


async def _complete(installation: Installation, result: MethodResult) -> Installed:
    """Return the installed server with its start command, made from the result of an installation method.

    Raise MethodFailed if the result does not contain the server.
    """
    server = installation.driver.server
    with _expected_failures(installation.root):
        return await kind_of(server).complete(server, installation, result)
