"""The reference servers, installed from npm and PyPI as a driver file names them, once into .cache; then listed.

What is recorded of them is kept beside them, so that later runs need no registry, as a node's restarts do not.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import toolbox
from tests.conformance.driver_places import installed, running
from tests.drivers.driver_texts import as_driver, driver

from interlock.drivers.install.install import check_version
from interlock.drivers.install.installation import Installed, plain_runner
from interlock.drivers.protocol.model import Driver

SCOPE = "@modelcontextprotocol"
NO_REGISTRY = {
    "npm_config_registry": "http://127.0.0.1:9",
    "PIP_INDEX_URL": "http://127.0.0.1:9",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
}


def declared(identifier: str, server: dict[str, Any], **more: Any) -> Driver:
    reading = as_driver(driver(id=identifier, server=server, **more))
    assert reading.value is not None, reading.problems
    return reading.value


def npm(name: str, *args: str, **more: Any) -> Driver:
    server = {"kind": "npm", "package": f"{SCOPE}/server-{name}@2026.8.31", "args": list(args)}
    return declared(f"{name}-mcp", server, **more)


def pypi(name: str, version: str, *args: str) -> Driver:
    server = {"kind": "pypi", "package": f"mcp-server-{name}=={version}", "args": list(args)}
    if name != "sqlite":
        return declared(f"{name}-mcp", server)
    # It says mcp>=1.6 and works with the first line only.
    install = [{"method": "pip", "package": f"mcp-server-{name}", "with": ["mcp<2"]}]
    return declared(f"{name}-mcp", server, install=install)


def arguments_of(wanted: Driver) -> tuple[str, ...]:
    args: tuple[str, ...] = wanted.server.args  # type: ignore[union-attr]
    return args


def in_the_group(pid: int | None) -> list[str]:
    """The names of all programs of the server's process group."""
    listed = subprocess.run(["ps", "-e", "-o", "pgid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 1) for line in listed.splitlines()]
    return [name.strip() for group, name in rows if group == str(pid)]


@pytest.mark.timeout(300)
@pytest.mark.req("AIP-server-4")
@pytest.mark.parametrize(("name", "tools"), [("filesystem", 14), ("memory", 9), ("everything", 13)])
async def test_an_npm_reference_server_starts_from_a_driver_without_npm_and_without_the_registry(
    name: str, tools: int, tmp_path: Path
) -> None:
    wanted = npm(name, *([str(tmp_path)] if name == "filesystem" else []))
    first = await installed(wanted)
    assert first.version == "2026.8.31"
    assert (first.lock.integrity or "").startswith("sha512-")
    again = await installed(wanted, NO_REGISTRY)
    assert again.command == first.command
    async with running(again, arguments_of(wanted)) as talk:
        assert len((await talk.ask("tools/list", {}))["tools"]) == tools
        names = in_the_group(talk.child.pid)
    assert names
    assert not [each for each in names if "npm" in each or "npx" in each or each.endswith("sh")]


PYTHON_SERVERS = [
    ("git", "2026.10.19", 12, "git_status", lambda folder: {"repo_path": str(folder)}, "On branch"),
    ("time", "2026.10.19", 2, "get_current_time", lambda _: {"timezone": "Europe/Berlin"}, "Europe/Berlin"),
    ("sqlite", "2025.4.25", 6, "list_tables", lambda _: {}, "[]"),
]


@pytest.mark.timeout(300)
@pytest.mark.req("AIP-server-10")
@pytest.mark.parametrize(("name", "version", "tools", "tool", "arguments", "words"), PYTHON_SERVERS)
async def test_a_python_reference_server_starts_from_a_driver_and_answers_a_call(
    name: str, version: str, tools: int, tool: str, arguments: Any, words: str, tmp_path: Path
) -> None:
    toolbox.run(["git", "init", "--quiet", str(tmp_path)], cwd=tmp_path)
    args = {"sqlite": ["--db-path", str(tmp_path / "t.db")]}.get(name, [])
    wanted = pypi(name, version, *args)
    first = await installed(wanted)
    assert first.version == version
    assert (first.lock.integrity or "").startswith("sha256:")
    again = await installed(wanted, NO_REGISTRY)
    assert again.command == first.command
    async with running(again, arguments_of(wanted)) as talk:
        assert len((await talk.ask("tools/list", {}))["tools"]) == tools
        result = await talk.ask("tools/call", {"name": tool, "arguments": arguments(tmp_path)})
    assert not result.get("isError")
    assert words in result["content"][0]["text"]


@pytest.mark.timeout(300)
@pytest.mark.req("AIP-30.version-2")
async def test_the_specifications_own_check_passes_for_its_own_example(tmp_path: Path) -> None:
    check = {"cmd": f"npx {SCOPE}/server-filesystem --version", "parse": r"v(\S+)", "range": ">=0.5"}
    wanted = npm("filesystem", str(tmp_path), version_check=check)
    verdict = await check_version(wanted, await installed(wanted), plain_runner(None))
    assert isinstance(verdict, Installed)
    assert verdict.version == "2026.8.31"
    assert [note.code for note in verdict.notes] == ["version_from_package"]


@pytest.mark.timeout(300)
@pytest.mark.req("AIP-server-11")
@pytest.mark.parametrize(("runner", "package"), [("uvx", "uv==0.13.7"), ("pipx", "pipx==1.18.4")])
async def test_a_runner_that_is_asked_for_keeps_the_package_and_runs_it_without_the_registry(
    runner: str, package: str
) -> None:
    home = toolbox.environment(f"runner-{runner}", package).parent
    server = {"kind": "pypi", "package": "mcp-server-time==2026.10.19", "runner": runner}
    wanted = declared(f"time-{runner}-mcp", server)
    path = {"PATH": f"{home}:{os.environ['PATH']}"}
    await installed(wanted, path)
    again = await installed(wanted, path | NO_REGISTRY | {"UV_INDEX_URL": "http://127.0.0.1:9"})
    if runner == "uvx":
        words = ("--offline", "--from", "mcp-server-time==2026.10.19", "mcp-server-time")
        assert again.command == (str(home / "uvx"), *words)
    else:
        assert [Path(word).name for word in again.command] == ["python", "mcp-server-time"]
    async with running(again, arguments_of(wanted)) as talk:
        assert len((await talk.ask("tools/list", {}))["tools"]) == 2
