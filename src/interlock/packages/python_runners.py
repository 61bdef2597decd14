"""Python packages in the keeping of uv or pipx, where a driver asks for one of them by name. POSIX only.

In: pins of the package, a folder. Out: the command that runs it without the network. uvx keeps its packages in a cache
of the driver's own, which it also writes to when it starts a program; pipx leaves a virtual environment, which is run
without it.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.packages.latest import (
    INSTALL_LIMIT_S,
    PackageUnavailable,
    installer_environment,
    normalised,
    pypi_command,
)
from interlock.packages.pinned import Pins
from interlock.process.run import ChildStartFailed, run
from interlock.process.warden import Warden

_WHERE: Final = {
    "uvx": "install uv (docs.astral.sh/uv), which brings uvx",
    "pipx": "install pipx (pipx.pypa.io)",
}


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()


async def keep_with_uvx(
    pins: Pins,
    package: str,
    entry: str,
    root: Path,
    environment: Mapping[str, str],
    progress: Callable[[str], None],
    warden: Warden | None,
    beside: Sequence[str] = (),
) -> Runner:
    """`package` with its extras, `beside` what has to hold as well. Raises PackageUnavailable."""
    uvx = tool("uvx", environment)
    cache = root.absolute() / "uv-cache"
    cache.mkdir(parents=True, exist_ok=True)
    env = {"UV_CACHE_DIR": str(cache)}
    source = ("--from", f"{package}=={pins.version}", *(word for each in beside for word in ("--with", each)))
    filled = root.absolute() / f"uv-{Path(pins.folder).name}"
    if not filled.exists():
        progress(f"filling the cache of uvx with {package} {pins.version}")
        # The interpreter of the new environment ends at once: the server itself is not started to fill a cache.
        await _run((uvx, *source, "python", "-c", ""), environment, env, root, pins, warden)
        filled.touch()
    program = ("python", "-m", entry.removeprefix("-m ")) if entry.startswith("-m ") else (entry,)
    return Runner(command=(uvx, "--offline", *source, *program), env=env, reads=(Path(uvx).resolve(),), writes=(cache,))


async def keep_with_pipx(
    pins: Pins,
    package: str,
    entry: str,
    root: Path,
    environment: Mapping[str, str],
    progress: Callable[[str], None],
    warden: Warden | None,
    beside: Sequence[str] = (),
) -> Runner:
    pipx = tool("pipx", environment)
    home = root.absolute() / f"pipx-{pins.version}"
    made = home / "venvs" / normalised(pins.name)
    env = {"PIPX_HOME": str(home), "PIPX_BIN_DIR": str(home / "bin"), "PIPX_MAN_DIR": str(home / "man")}
    if not (home / "complete").exists():
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
        home.mkdir(parents=True)
        progress(f"installing {package} {pins.version} with pipx")
        more = ("--preinstall", *beside) if beside else ()
        await _run((pipx, "install", f"{package}=={pins.version}", *more), environment, env, root, pins, warden)
        (home / "complete").touch()
    command = pypi_command(made, pins.name, entry)
    python = Path(command[0]).resolve()
    return Runner(command=command, reads=(home, python.parent.parent))


def tool(name: str, environment: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    if found is None:
        raise PackageUnavailable(f"{name} is not on the PATH, and server.runner asks for it; {_WHERE[name]}")
    return found


async def _run(
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    added: Mapping[str, str],
    cwd: Path,
    pins: Pins,
    warden: Warden | None,
) -> None:
    try:
        async with asyncio.timeout(INSTALL_LIMIT_S):
            ran = await run(argv, installer_environment(environment) | dict(added), cwd, warden=warden)
    except TimeoutError as error:
        raise PackageUnavailable(f"installing {pins.name} took longer than {INSTALL_LIMIT_S:g} s; try again") from error
    except ChildStartFailed as error:
        raise PackageUnavailable(f"{pins.name} cannot be installed: {error}") from error
    if ran.returncode != 0:
        raise PackageUnavailable(
            f"{pins.name} cannot be installed: {Path(argv[0]).name} {ran.reason}{ran.gist}", ran.output
        )
