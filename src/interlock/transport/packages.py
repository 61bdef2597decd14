"""Installing a server's program from npm or PyPI into a folder of the node, once.

In: a registry and a package name. Out: the command that runs the package's program. What is installed is marked last, so
a half-made installation is found and made again; a lock keeps two nodes from installing the same thing at once. The
installer sees the node's environment, where registry settings live; the installed server does not.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

INSTALL_S: Final = 300.0
OUTPUT_LINES: Final = 5  # of a failed installer, shown as the reason

_PYPI_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?((==|~=|>=|<=)[A-Za-z0-9.+!-]+)?")
_NPM_NAME: Final = re.compile(r"(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*(@[A-Za-z0-9.^~+-]+)?")
_MARK: Final = "installed.json"


class PackageUnavailable(Exception):
    """The program cannot be had; the message says why and what to do."""


class Package(Protocol):
    @property
    def registry(self) -> str: ...

    @property
    def name(self) -> str: ...


async def ensure(package: Package, root: Path, progress: Callable[[str], None]) -> tuple[str, ...]:
    """The command that runs `package`, installing it first if need be. Raises PackageUnavailable."""
    pattern = _PYPI_NAME if package.registry == "pypi" else _NPM_NAME
    if pattern.fullmatch(package.name) is None:
        raise PackageUnavailable(f"{package.name[:80]!r} is not a package name of {package.registry}")
    folder = root / package.registry / re.sub(r"[^A-Za-z0-9._-]", "+", package.name)
    found = _installed(folder)
    if found is not None:
        return found
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = await asyncio.to_thread(_lock, folder.with_name(folder.name + ".lock"))
    try:
        found = _installed(folder)
        if found is not None:  # another node did it meanwhile
            return found
        progress(f"installing {package.name} from {package.registry}")
        await asyncio.to_thread(shutil.rmtree, folder, True)
        install = _install_pypi if package.registry == "pypi" else _install_npm
        command = await install(package.name, folder)
        (folder / _MARK).write_text(json.dumps(command))
        return command
    finally:
        os.close(lock)


def _installed(folder: Path) -> tuple[str, ...] | None:
    try:
        command = json.loads((folder / _MARK).read_text())
    except (OSError, ValueError):
        return None
    usable = isinstance(command, list) and command and all(isinstance(word, str) for word in command)
    return tuple(command) if usable and Path(command[0]).exists() else None


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


async def _install_pypi(name: str, folder: Path) -> tuple[str, ...]:
    await _run(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    await _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--", name)
    distribution = re.split(r"[\[=~<>]", name)[0]
    scripts = await _run(
        python,
        "-c",
        "import sys, importlib.metadata as m\n"
        "for e in m.distribution(sys.argv[1]).entry_points:\n"
        "    if e.group == 'console_scripts': print(e.name)",
        distribution,
    )
    names = scripts.split()
    wanted = _plain(distribution)
    chosen = next((script for script in names if _plain(script) == wanted), names[0] if len(names) == 1 else None)
    if chosen is None:
        raise PackageUnavailable(f"{name} has no program of its own name; its programs: {', '.join(names) or 'none'}")
    return (str(folder / "bin" / chosen),)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


async def _install_npm(name: str, folder: Path) -> tuple[str, ...]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise PackageUnavailable(f"{name} needs Node.js: install it, or remove this server")
    folder.mkdir(mode=0o700)
    await _run(npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", "--", name)
    bare = name if "@" not in name[1:] else name[: name.rindex("@")]
    home = folder / "node_modules" / bare
    try:
        declared = json.loads((home / "package.json").read_text()).get("bin")
    except (OSError, ValueError):
        raise PackageUnavailable(f"{name} was installed but has no readable package.json") from None
    programs = {bare.rsplit("/", 1)[-1]: declared} if isinstance(declared, str) else declared or {}
    script = programs.get(bare.rsplit("/", 1)[-1]) or next(iter(programs.values()), None)
    if script is None:
        raise PackageUnavailable(f"{name} has no program to run")
    return (node, str(home / script))


async def _run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), INSTALL_S)
    except TimeoutError:
        raise PackageUnavailable(f"{Path(command[0]).name} took longer than {INSTALL_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = (errors or output).decode(errors="replace").strip().splitlines()[-OUTPUT_LINES:]
        raise PackageUnavailable(" / ".join(line.strip()[:200] for line in said) or "the installer failed")
    return output.decode(errors="replace")
