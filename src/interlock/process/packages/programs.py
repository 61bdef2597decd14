"""Programs of installed packages: how people name packages, and which script is run with which interpreter.

A reference such as "mcp-server-time==2026.10.19" or "@scope/server@1.2.3" is read strictly: both installers would take
some other texts for files, addresses or options. Of an installed package the program named like the package is run, or
the only one. A program is started through its interpreter, because a path with a space, or a long one, does not work
in the first line of a script.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from interlock.process.child import ChildStartFailed, run
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.stderr import terminal_safe

if TYPE_CHECKING:
    from importlib.metadata import Distribution

REFERENCE_CHARS_MAX: Final = 214  # npm's limit for a name; a folder's name has to hold it too

Registry = Literal["npm", "pypi"]

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


class PackageUnavailable(Exception):
    """An error raised if a program is not available. The message says why and what to do.

    `output` is the end of the installer's output.
    """

    def __init__(self, message: str, output: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.output = output


class SourceBuildRefused(PackageUnavailable):
    """An error raised for a package that would have to be built from source.

    Building it would run its code, which the operator has not allowed.
    """


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to a package as a person writes it, with the name of the package's folder."""

    registry: Registry
    text: str  # what the installer is told
    name: str
    folder: str


def read_reference(registry: Registry, text: str) -> Reference:
    """Parse a package name with an optional version, such as "mcp-server-time==2026.10.19" or "@scope/server@1.2.3".

    Raise PackageUnavailable if it is malformed.
    """
    pattern = {"pypi": _PYPI, "npm": _NPM}.get(registry)
    if pattern is None:
        raise PackageUnavailable(f"no registry {registry!r}; use npm or pypi")
    match = pattern.fullmatch(text) if len(text) <= REFERENCE_CHARS_MAX else None
    if match is None or _ARCHIVE.search(text) is not None:
        form = "NAME or NAME==VERSION" if registry == "pypi" else "NAME, @SCOPE/NAME or either with @VERSION"
        raise PackageUnavailable(f"{text[:80]!r} is not the name of a package; write {form}")
    parts = match.groupdict()
    name = normalised_name(parts["name"]) if registry == "pypi" else parts["name"]
    # "+" and a second "@" are in no name, so two packages never share a folder.
    folder = name.replace("/", "+")
    if parts.get("extras"):
        folder += "+" + "+".join(sorted(normalised_name(extra) for extra in parts["extras"].split(",")))
    if parts["version"]:
        folder += "@" + parts["version"]
    return Reference(registry=registry, text=text, name=name, folder=folder)


def normalised_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()  # PEP 503


NODE_ANSWER_S: Final = 10.0


def pypi_command(folder: Path, name: str, entry: str | None) -> tuple[str, ...]:
    """Return the command that runs the package installed in the virtual environment `folder`.

    `entry` is a script or "-m module". None selects the program that is named like the package, or the only one.
    """
    python = str(folder / "bin" / "python")
    if entry is not None and entry.startswith("-m "):
        return (python, "-m", entry.removeprefix("-m "))
    points = distribution(folder, name).entry_points.select(group="console_scripts")
    scripts = {point.name: folder / "bin" / point.name for point in points}
    # Through the interpreter: a path with a space, or a long one, cannot stand in the first line of a script.
    return (python, str(_choose_program(scripts, name, entry, folder)))


def npm_program(folder: Path, name: str, entry: str | None) -> Path:
    """Return the script that node must run for the package installed below `folder`."""
    declared = npm_manifest(folder, name).get("bin", {})
    short = name.rpartition("/")[2]
    named = {short: declared} if isinstance(declared, str) else declared if isinstance(declared, dict) else {}
    package = npm_folder(folder, name).resolve()
    scripts = {}
    for script_name, script in named.items():
        path = (package / str(script)).resolve()
        if path.is_relative_to(package):
            scripts[script_name] = path
    return _choose_program(scripts, name, entry, folder)


def _choose_program(scripts: Mapping[str, Path], name: str, entry: str | None, folder: Path) -> Path:
    """Return the program `entry`. If it is None, return the program named like the package, or the only one."""
    wanted = normalised_name(entry or name.rpartition("/")[2])
    chosen = next((path for script, path in sorted(scripts.items()) if normalised_name(script) == wanted), None)
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


def distribution(folder: Path, name: str) -> "Distribution":
    from importlib.metadata import distributions  # here, because it costs the idle node a megabyte

    folders = [str(path) for path in folder.glob("lib/python*/site-packages")]
    for candidate in distributions(name=name, path=folders):
        return candidate
    raise PackageUnavailable(f"{name} was installed under another name; use that name")


def npm_folder(folder: Path, name: str) -> Path:
    return folder / "node_modules" / name


def npm_manifest(folder: Path, name: str) -> dict[str, object]:
    try:
        return msgspec.json.decode((npm_folder(folder, name) / "package.json").read_bytes(), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise PackageUnavailable(f"{name} has a broken package.json; tell its makers") from error


def node_tool(tool: str, env: Mapping[str, str], package: str) -> str:
    path = shutil.which(tool, path=env.get("PATH", os.defpath))
    if path is None:
        raise PackageUnavailable(
            f"{tool} is not on the PATH, and {package} needs it; "
            "install Node.js 20 or newer (nodejs.org), which brings node and npm"
        )
    return path


async def node_program(env: Mapping[str, str], package: str, reaper: OrphanReaper | None) -> str:
    """Return the path of the Node.js interpreter itself, even if `node` on the PATH is a script that starts it.

    The program on the PATH may be a script of a version manager. Such a script does not work in a sandbox and starts an
    additional process. If the interpreter cannot be found out, the program on the PATH is returned.
    """
    path = node_tool("node", env, package)
    if not _is_script(Path(path)):
        return path
    try:
        async with asyncio.timeout(NODE_ANSWER_S):
            ran = await run((path, "-p", "process.execPath"), env, None, reaper=reaper)
    except (TimeoutError, ChildStartFailed):
        return path
    interpreter = Path(ran.stdout.decode(errors="replace").strip())
    is_usable = ran.returncode == 0 and interpreter.is_absolute() and interpreter.is_file()
    return str(interpreter) if is_usable else path


async def node_version(env: Mapping[str, str], package: str, reaper: OrphanReaper | None) -> str:
    """Return what decides which files npm installs: the system, processor and module version of `node` on the PATH.

    The answer of a program is remembered as long as its file is the same.
    """
    path = node_tool("node", env, package)
    try:
        info = Path(path).stat()
        key = (os.path.realpath(path), info.st_ino, info.st_size, info.st_mtime_ns)
        if _is_script(Path(path)):
            # A version manager runs another Node.js when its own settings change.
            return await _ask_node(path, env, reaper)
        if key not in _NODE_VERSIONS:
            _NODE_VERSIONS[key] = await _ask_node(path, env, reaper)
        return _NODE_VERSIONS[key]
    except (TimeoutError, ChildStartFailed, OSError) as error:
        raise PackageUnavailable(f"{path} does not run, and {package} needs it; install Node.js again") from error


_NODE_VERSIONS: Final[dict[tuple[str, int, int, int], str]] = {}


async def _ask_node(path: str, env: Mapping[str, str], reaper: OrphanReaper | None) -> str:
    question = "[process.platform, process.arch, process.versions.modules].join('-')"
    async with asyncio.timeout(NODE_ANSWER_S):
        ran = await run((path, "-p", question), env, None, reaper=reaper)
    return ran.stdout.decode(errors="replace").strip() if ran.returncode == 0 else "unknown"


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
