"""Python packages kept by uv or pipx, where a driver asks for one of them by name. POSIX only.

In: pins of the package, a folder. Out: the command that runs it without the network. uvx keeps its packages in a cache
of the driver's own, which it also writes to when it starts a program; pipx leaves a virtual environment, which is run
without it.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.process.packages.installer import INSTALL_LIMIT_S, Installer, Pins
from interlock.process.packages.programs import PackageUnavailable, normalised_name, pypi_command
from interlock.process.run import ChildStartFailed, run

_WHERE: Final = {
    "uvx": "install uv (docs.astral.sh/uv), which brings uvx",
    "pipx": "install pipx (pipx.pypa.io)",
}


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()


class PythonRunners:
    """uvx and pipx, in the folder and under the rules of one installer. Both methods raise PackageUnavailable.

    `package` is the name with its extras, `beside` what has to hold as well.
    """

    def __init__(self, installer: Installer) -> None:
        self._installer = installer
        self._root = installer.root

    async def keep_with_uvx(self, pins: Pins, package: str, entry: str, beside: Sequence[str] = ()) -> Runner:
        uvx = self._tool("uvx")
        cache = self._root / "uv-cache"
        cache.mkdir(parents=True, exist_ok=True)
        env = {"UV_CACHE_DIR": str(cache)}
        source = ("--from", f"{package}=={pins.version}", *(word for each in beside for word in ("--with", each)))
        filled = self._root / f"uv-{Path(pins.folder).name}"
        if not filled.exists():
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
        env = self._installer.env | dict(added)
        try:
            async with asyncio.timeout(INSTALL_LIMIT_S):
                ran = await run(argv, env, self._root, reaper=self._installer.reaper)
        except TimeoutError as error:
            raise PackageUnavailable(
                f"installing {pins.name} took longer than {INSTALL_LIMIT_S:g} s; try again"
            ) from error
        except ChildStartFailed as error:
            raise PackageUnavailable(f"{pins.name} cannot be installed: {error}") from error
        if ran.returncode != 0:
            raise PackageUnavailable(
                f"{pins.name} cannot be installed: {Path(argv[0]).name} {ran.reason}{ran.gist}", ran.output
            )
