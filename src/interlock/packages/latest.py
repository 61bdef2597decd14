"""Installs a server's program from npm or PyPI, once, and says how to run it. POSIX only.

In: a registry, a package and a root folder. Out: the words to put before the server's arguments. Every package, with
its version if one is given, has a folder of its own below the root: `pypi/NAME@VERSION` is a virtual environment,
`npm/NAME@VERSION` a prefix. A marker written last tells a whole installation from a broken one, which is removed and
done again; a lock keeps two nodes from installing at once. The installer runs with the environment of the node, which
may hold the settings of the registry; the installed program does not.
"""

import asyncio
import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from interlock.process.launch import RESERVED_PREFIX
from interlock.process.run import OUTPUT_LINE_BYTES, OUTPUT_LINES, ChildStartFailed, output_of, run
from interlock.process.stderr import StderrRing, terminal_safe
from interlock.process.warden import Warden

INSTALL_LIMIT_S = 300.0
REFERENCE_CHARS_MAX = 214  # npm's limit for a name; a folder's name has to hold it too
LOCK_POLL_S = 0.1
NODE_ANSWER_S = 10.0
MARKER = "interlock-package.json"

_PYPI = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?:\[(?P<extras>[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*)\])?"
    r"(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?"
)
_NPM = re.compile(
    r"(?P<name>(?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*)"
    r"(?:@(?P<version>[A-Za-z0-9^~][A-Za-z0-9._+-]*))?"
)
# Both installers take a name that ends so for a file in the current folder.
_ARCHIVE = re.compile(r"\.(?:tgz|tar|tar\.[a-z0-9]+|tbz|txz|zip|whl|egg)(?:@|$)", re.IGNORECASE)


class Package(Protocol):
    @property
    def registry(self) -> Literal["npm", "pypi"]: ...

    @property
    def name(self) -> str:
        """With an optional version: "mcp-server-time==2026.10.19", "@scope/server@1.2.3"."""


class PackageUnavailable(Exception):
    """The program cannot be had; the message says why and what to do. `output` ends what the installer said."""

    def __init__(self, message: str, output: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.output = output


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    registry: str
    text: str  # what the installer is told
    name: str
    folder: str


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    package: str
    version: str
    python: str = ""  # a virtual environment belongs to one version of Python


async def ensure(
    package: Package,
    root: Path,
    progress: Callable[[str], None],
    *,
    warden: Warden | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float = INSTALL_LIMIT_S,
) -> tuple[str, ...]:
    """Install `package` below `root` unless it is there, and return the command that runs it.

    `progress` hears one short line for each step; what the installer says meanwhile is kept for an error.
    """
    reference = read_reference(package)
    env = installer_environment(os.environ if environment is None else environment)
    folder = root / reference.registry / reference.folder
    installer = _Installer(reference, folder.absolute(), env, progress, warden)
    try:
        async with asyncio.timeout(limit_s):
            if not installer.is_complete():
                async with locked(folder.with_name(folder.name + ".lock"), lambda: progress(installer.waiting)):
                    if not installer.is_complete():
                        await installer.install()
            return installer.command()
    except TimeoutError as error:
        raise PackageUnavailable(
            f"installing {reference.text} took longer than {limit_s:g} s and was ended; check the network, try again",
            installer.output(),
        ) from error
    except OSError as error:
        raise PackageUnavailable(
            f"{folder} cannot be used: {error.strerror}; make room or correct its rights", installer.output()
        ) from error


def read_reference(package: Package) -> Reference:
    text = package.name
    pattern = {"pypi": _PYPI, "npm": _NPM}.get(package.registry)
    if pattern is None:
        raise PackageUnavailable(f"no registry {package.registry!r}; use npm or pypi")
    found = pattern.fullmatch(text) if len(text) <= REFERENCE_CHARS_MAX else None
    if found is None or _ARCHIVE.search(text) is not None:
        form = "NAME or NAME==VERSION" if package.registry == "pypi" else "NAME, @SCOPE/NAME or either with @VERSION"
        raise PackageUnavailable(f"{text[:80]!r} is not the name of a package; write {form}")
    parts = found.groupdict()
    name = normalised(parts["name"]) if package.registry == "pypi" else parts["name"]
    # "+" and a second "@" are in no name, so two packages never share a folder.
    folder = name.replace("/", "+")
    if parts.get("extras"):
        folder += "+" + "+".join(sorted(normalised(extra) for extra in parts["extras"].split(",")))
    if parts["version"]:
        folder += "@" + parts["version"]
    return Reference(registry=package.registry, text=text, name=name, folder=folder)


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()  # PEP 503


def installer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        # The last two would put the node's own modules before those of the new environment.
        if not name.startswith(RESERVED_PREFIX) and name not in ("PYTHONPATH", "PYTHONHOME")
    }


@asynccontextmanager
async def locked(path: Path, waiting: Callable[[], None]) -> AsyncIterator[None]:
    """Held by one process at a time and let go by the kernel if that one dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    waiting()
                    told = True
                await asyncio.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


class _Installer:
    """One package in one folder."""

    def __init__(
        self,
        reference: Reference,
        folder: Path,
        env: dict[str, str],
        progress: Callable[[str], None],
        warden: Warden | None,
    ) -> None:
        self._reference = reference
        self._folder = folder
        self._env = env
        self._progress = progress
        self._warden = warden
        self._said = StderrRing(OUTPUT_LINES, OUTPUT_LINE_BYTES, now=lambda: 0.0)

    @property
    def waiting(self) -> str:
        return f"waiting for another node that installs {self._reference.text}"

    def output(self) -> tuple[str, ...]:
        return output_of(self._said)

    def is_complete(self) -> bool:
        try:
            marker = msgspec.json.decode((self._folder / MARKER).read_bytes(), type=_Marker)
        except (FileNotFoundError, msgspec.DecodeError):
            return False
        if self._reference.registry == "npm":
            return (npm_folder(self._folder, self._reference.name) / "package.json").is_file()
        return marker.python == python_version() and (self._folder / "bin" / "python").exists()

    async def install(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if self._reference.registry == "npm":
            version = await self._install_npm()
        else:
            version = await self._install_pypi()
        marker = _Marker(package=self._reference.text, version=version, python=python_version())
        half = self._folder / f"{MARKER}.half"
        half.write_bytes(msgspec.json.encode(marker))
        half.replace(self._folder / MARKER)
        self._progress(f"installed {self._reference.name} {version}")

    def command(self) -> tuple[str, ...]:
        return self._npm_command() if self._reference.registry == "npm" else self._pypi_command()

    async def _install_pypi(self) -> str:
        self._progress(f"making an environment for {self._reference.text}")
        python = str(self._folder / "bin" / "python")
        ours = (sys.executable, "-I", "-m")
        # An environment without a pip of its own is made in a tenth of the time.
        if importlib.util.find_spec("pip") is not None:
            await self._run(*ours, "venv", "--without-pip", str(self._folder))
            pip: tuple[str, ...] = (*ours, "pip", "--python", python)
        else:
            await self._run(*ours, "venv", str(self._folder))
            pip = (python, "-I", "-m", "pip")
        self._progress(f"installing {self._reference.text} from PyPI")
        options = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
        await self._run(*pip, "install", *options, "--", self._reference.text)
        return distribution(self._folder, self._reference.name).version

    async def _install_npm(self) -> str:
        npm = self._tool("npm")
        self._tool("node")
        self._progress(f"installing {self._reference.text} from npm")
        # A project of its own, so that npm looks for none above.
        (self._folder / "package.json").write_bytes(b'{"private":true}')
        # Scripts of a package would run with the environment of the node.
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier", "--no-global")
        await self._run(npm, "install", "--prefix", str(self._folder), *options, "--", self._reference.text)
        return str(npm_manifest(self._folder, self._reference.name).get("version", ""))

    def _pypi_command(self) -> tuple[str, ...]:
        return pypi_command(self._folder, self._reference.name, None)

    def _npm_command(self) -> tuple[str, ...]:
        return (self._tool("node"), str(npm_program(self._folder, self._reference.name, None)))

    def _tool(self, name: str) -> str:
        return node_tool(name, self._env, self._reference.text)

    async def _run(self, *argv: str) -> None:
        try:
            ran = await run(argv, self._env, self._folder, warden=self._warden, said=self._said)
        except ChildStartFailed as error:
            raise PackageUnavailable(f"{self._reference.text} cannot be installed: {error}") from error
        if ran.returncode != 0:
            raise PackageUnavailable(
                f"{self._reference.text} cannot be installed: the installer {ran.reason}{ran.gist}", ran.output
            )


def pypi_command(folder: Path, name: str, entry: str | None) -> tuple[str, ...]:
    """How the package installed in the virtual environment `folder` is run. `entry`: a script, or "-m module"."""
    python = str(folder / "bin" / "python")
    if entry is not None and entry.startswith("-m "):
        return (python, "-m", entry.removeprefix("-m "))
    points = distribution(folder, name).entry_points.select(group="console_scripts")
    scripts = {point.name: folder / "bin" / point.name for point in points}
    # Through the interpreter: a path with a space, or a long one, cannot stand in the first line of a script.
    return (python, str(_chosen(scripts, name, entry, folder)))


def npm_program(folder: Path, name: str, entry: str | None) -> Path:
    """The script to run with node, of the package installed below the prefix `folder`."""
    declared = npm_manifest(folder, name).get("bin", {})
    short = name.rpartition("/")[2]
    named = {short: declared} if isinstance(declared, str) else declared if isinstance(declared, dict) else {}
    package = npm_folder(folder, name).resolve()
    scripts = {}
    for script_name, script in named.items():
        path = (package / str(script)).resolve()
        if path.is_relative_to(package):
            scripts[script_name] = path
    return _chosen(scripts, name, entry, folder)


def _chosen(scripts: Mapping[str, Path], name: str, entry: str | None, folder: Path) -> Path:
    """The program asked for, else the one named as the package, else the only one."""
    wanted = normalised(entry or name.rpartition("/")[2])
    chosen = next((path for script, path in sorted(scripts.items()) if normalised(script) == wanted), None)
    if chosen is None and len(set(scripts.values())) == 1:
        chosen = next(iter(scripts.values()))
    if chosen is not None and chosen.is_file():
        return chosen
    if not scripts or chosen is not None:
        raise PackageUnavailable(f"{name} brings no program to run; name the package that holds the server")
    names = ", ".join(terminal_safe(script) for script in sorted(scripts)[:10])
    raise PackageUnavailable(
        f"{name} brings several programs ({names}) and none has its name; "
        f"name one of them in entry, or declare the server with command, giving its path below {folder}"
    )


def distribution(folder: Path, name: str) -> importlib.metadata.Distribution:
    folders = [str(path) for path in folder.glob("lib/python*/site-packages")]
    for found in importlib.metadata.distributions(name=name, path=folders):
        return found
    raise PackageUnavailable(f"{name} was installed under another name; use that name")


def npm_folder(folder: Path, name: str) -> Path:
    return folder / "node_modules" / name


def npm_manifest(folder: Path, name: str) -> dict[str, object]:
    try:
        return msgspec.json.decode((npm_folder(folder, name) / "package.json").read_bytes(), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise PackageUnavailable(f"{name} has a broken package.json; tell its makers") from error


def node_tool(tool: str, env: Mapping[str, str], package: str) -> str:
    found = shutil.which(tool, path=env.get("PATH", os.defpath))
    if found is None:
        raise PackageUnavailable(
            f"{tool} is not on the PATH, and {package} needs it; "
            "install Node.js 20 or newer (nodejs.org), which brings node and npm"
        )
    return found


async def node_program(env: Mapping[str, str], package: str, warden: Warden | None) -> str:
    """The interpreter itself: what stands on the PATH may be a script of a version manager, which finds nothing in a
    sandbox and costs a process."""
    found = node_tool("node", env, package)
    if not _is_script(Path(found)):
        return found
    try:
        async with asyncio.timeout(NODE_ANSWER_S):
            ran = await run((found, "-p", "process.execPath"), env, None, warden=warden)
    except (TimeoutError, ChildStartFailed):
        return found
    told = ran.stdout.decode(errors="replace").strip()
    return told if ran.returncode == 0 and Path(told).is_absolute() and Path(told).is_file() else found


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
