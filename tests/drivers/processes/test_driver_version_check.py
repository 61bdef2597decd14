"""Is a driver used only with the version it was written for, and does no command of its file get out of hand?"""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.drivers.installs import Place, declared, program
from tests.process.package_sources import NpmRegistry, WheelFolder, needs_node, registry, wheel_folder

from interlock.drivers.install.install import (
    check_version,
    install_checked,
)
from interlock.drivers.install.installation import Installed, InstallFailed, Locked, plain_runner
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Driver
from interlock.process.child import Ran

__all__ = ["registry", "wheel_folder"]  # fixtures

FILESYSTEM = "@modelcontextprotocol/server-filesystem"
INSTALLED = Installed(command=("/bin/server",), version=None, lock=Locked(asked="", method="present"))


def binary(cmd: str, parse: str = r"version (\S+)", range: str = ">=2.40 <3", **more: Any) -> Driver:
    check = {"cmd": cmd, "parse": parse, "range": range, **more}
    return declared(server={"kind": "binary", "path": "/bin/server"}, version_check=check)


def version_of(verdict: Installed | str) -> str | None:
    """Return the version of a server that passed its check."""
    assert isinstance(verdict, Installed), verdict
    return verdict.version


def says(folder: Path, text: str) -> str:
    return str(program(folder / "says", f"#!/bin/sh\n{text}\n"))


@pytest.mark.req("AIP-30.version-1")
async def test_the_first_group_of_what_the_command_prints_is_compared(tmp_path: Path) -> None:
    command = says(tmp_path, "echo 'gh version 2.40.1'")
    verdict = await check_version(binary(f"{command} --version", r"gh version (\S+)"), INSTALLED, plain_runner(None))
    assert version_of(verdict) == "2.40.1"
    last_word = says(tmp_path, "printf 'gh version 2.41.0'")  # without a newline at the end
    assert version_of(await check_version(binary(last_word), INSTALLED, plain_runner(None))) == "2.41.0"


@pytest.mark.req("AIP-30.version-1", "AIP-30.version-2")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo 'gh version 3.0.0'", "version 3.0.0 is not in >=2.40 <3"),
        ("echo 'gh version 2.39.9'", "version 2.39.9 is not in"),
        ("echo 'gh version 2.40.1' >&2", "finds nothing"),
        ("echo 'gh version newest'", "is no version like 1.2.3"),
        ("echo 'gh version 2.40'", "is no version like 1.2.3"),
        ("echo 'something else'", "finds nothing"),
        ("echo 'gh version 2.40.1'; exit 3", "exited with code 3"),
        ("exit 0", "finds nothing"),
    ],
)
async def test_anything_but_a_version_in_the_range_on_standard_output_is_a_mismatch(
    tmp_path: Path, text: str, reason: str
) -> None:
    verdict = await check_version(binary(says(tmp_path, text)), INSTALLED, plain_runner(None))
    assert isinstance(verdict, str)
    assert reason in verdict


def runs(pid: str) -> bool:
    try:
        return "State:\tZ" not in (Path("/proc") / pid / "status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.req("AIP-30.version-1")
async def test_a_hanging_command_is_ended_after_its_time_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = says(tmp_path, f"sleep 300 &\necho $$ $! > '{pids}'\nwait")
    started = time.monotonic()
    verdict = await check_version(binary(command, timeout_ms=500), INSTALLED, plain_runner(None))
    assert isinstance(verdict, str)
    assert "was ended after 500 ms" in verdict
    assert time.monotonic() - started < 10
    assert [pid for pid in pids.read_text().split() if runs(pid)] == []


async def test_a_pattern_that_never_ends_is_ended(tmp_path: Path) -> None:
    command = says(tmp_path, f"echo {'a' * 60}")
    verdict = await check_version(binary(command, "((a+)+)$(b)", timeout_ms=700), INSTALLED, plain_runner(None))
    assert isinstance(verdict, str)
    assert "pattern" in verdict


@pytest.mark.parametrize("text", ["head -c 5000000 /dev/zero", "yes 'version 2.40.1' | head -c 3000000"])
async def test_a_flood_on_standard_output_is_bounded(tmp_path: Path, text: str) -> None:
    verdict = await check_version(binary(says(tmp_path, text)), INSTALLED, plain_runner(None))
    if "yes" in text:
        assert version_of(verdict) == "2.40.1"
    else:
        assert isinstance(verdict, str)


async def test_there_is_no_shell_and_no_secret_of_the_node_in_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_TOKEN", "t0ken")
    monkeypatch.setenv("AWS_SECRET", "x")
    seen = tmp_path / "seen"
    command = says(tmp_path, f"env > '{seen}'\necho \"version 2.40.1\"\necho \"$@\" >> '{seen}'")
    assert version_of(await check_version(binary(f"{command} 'two words'"), INSTALLED, plain_runner(None))) == "2.40.1"
    assert "two words" in seen.read_text()
    assert "t0ken" not in seen.read_text()
    assert "AWS_SECRET" not in seen.read_text()


async def test_the_servers_own_program_is_found_where_it_was_installed(tmp_path: Path) -> None:
    own = says(tmp_path, "echo version 2.40.1")
    check = {"cmd": "my-server --version", "parse": r"(\d\S*)", "range": "*"}
    wanted = declared(server={"kind": "binary", "path": "bin/my-server"}, version_check=check)
    installed = msgspec.structs.replace(INSTALLED, command=(own,))
    assert version_of(await check_version(wanted, installed, plain_runner(None))) == "2.40.1"


async def test_the_command_runs_where_the_drivers_programs_run() -> None:
    ran: list[tuple[str, ...]] = []

    async def running(words: tuple[str, ...]) -> Ran:
        ran.append(words)
        return Ran(returncode=0, reason="ended", stdout=b"version 2.50.0", output=())

    assert version_of(await check_version(binary("my-program --version"), INSTALLED, running)) == "2.50.0"
    assert ran == [("my-program", "--version")]


@pytest.mark.req("AIP-30.version-2")
@pytest.mark.parametrize("cmd", ["no-such-program-here --version", "'unfinished"])
async def test_a_command_that_cannot_be_run_is_a_mismatch(cmd: str) -> None:
    assert isinstance(await check_version(binary(cmd), INSTALLED, plain_runner(None)), str)


def package(kind: str, name: str, cmd: str, range: str = ">=0.5", **more: Any) -> Driver:
    check = {"cmd": cmd, "parse": r"v(\S+)", "range": range}
    return declared(server={"kind": kind, "package": name, **more}, version_check=check)


@pytest.mark.req("AIP-30.version-2")
@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (package("npm", FILESYSTEM, f"npx {FILESYSTEM} --version"), True),
        (package("npm", FILESYSTEM, f"npx -y {FILESYSTEM}@latest --version"), True),
        (package("npm", "server-memory", "npx server-memory@1.0.0 -v"), True),
        (package("npm", FILESYSTEM, "node --version"), False),
        (package("npm", FILESYSTEM, "npx @modelcontextprotocol/server-memory --version"), False),
        (package("pypi", "mcp-server-git", "uvx mcp-server-git --version"), True),
        (package("pypi", "mcp_server.git[x]", "uvx --from mcp-server-git==1.0 prog --version"), True),
        (package("pypi", "some-package", "its-script --version", entry="its-script"), True),
        (package("pypi", "mcp-server-git", "git --version"), False),
    ],
)
def test_a_command_that_names_the_package_is_known(wanted: Driver, named: bool) -> None:
    assert wanted.version_check is not None
    words = tuple(wanted.version_check.cmd.split())
    assert kind_of(wanted.server).names_package(wanted.server, words) is named


@pytest.mark.req("AIP-30.version-2")
@pytest.mark.parametrize(
    ("version", "range", "fits"),
    [
        ("2026.8.31", ">=0.5", True),
        ("0.4.0", ">=0.5", False),
        ("6.1", ">=6 <7", True),
        ("2.0rc1", ">=1", False),
        ("1.30.0.post1", ">=1.30", True),
        ("2025.04.25", ">=2025", True),
        ("nonsense", "*", False),
    ],
)
async def test_the_version_of_the_package_decides_without_starting_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, range: str, fits: bool
) -> None:
    proof = tmp_path / "it-ran"
    program(tmp_path / "npx", f"#!/bin/sh\necho > '{proof}'\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = package("npm", FILESYSTEM, f"npx {FILESYSTEM} --version", range)
    verdict = await check_version(wanted, msgspec.structs.replace(INSTALLED, version=version), plain_runner(None))
    if fits:
        assert isinstance(verdict, Installed)
        assert [note.code for note in verdict.notes] == ["version_from_package"]
    else:
        assert isinstance(verdict, str)
    assert not proof.exists()
    program(tmp_path / "npx", f"#!/bin/sh\necho 'v1.2.3'\necho > '{proof}'\n")  # whose output is the version
    elsewhere = package("npm", FILESYSTEM, "npx server-memory --version")
    known = msgspec.structs.replace(INSTALLED, version=version)
    for one, installed in ((elsewhere, known), (package("npm", FILESYSTEM, f"npx {FILESYSTEM} --version"), INSTALLED)):
        assert version_of(await check_version(one, installed, plain_runner(None))) == "1.2.3"
        proof.unlink()


@needs_node
@pytest.mark.req("AIP-30.version-1", "AIP-30.version-2")
async def test_a_mismatch_installs_once_more_without_the_lock_and_then_ends(
    registry: NpmRegistry, tmp_path: Path
) -> None:
    place = Place(tmp_path, registry.env)
    registry.put("tool", "1.0.0", bin="main.js")
    old = (await place.done(declared(server={"kind": "npm", "package": "tool"}))).lock
    registry.put("tool", "2.0.0", bin="main.js")
    for range, asked in ((">=2", [False, True]), (">=3", [False, True]), (">=1", [False])):
        check = {"cmd": "npx tool --version", "parse": r"(\S+)", "range": range}
        wanted = declared(server={"kind": "npm", "package": "tool"}, version_check=check)
        calls: list[bool] = []

        async def installer(anew: bool, wanted: Driver = wanted, calls: list[bool] = calls) -> Any:
            calls.append(anew)
            return await place.install(wanted, None if anew else old)

        outcome = await install_checked(wanted, installer, lambda _: plain_runner(None))
        assert calls == asked
        if range == ">=3":
            assert isinstance(outcome, InstallFailed)
            assert outcome.code == "version_mismatch"
            assert [attempt.method for attempt in outcome.attempts] == ["npm", "version_check"] * 2
            assert "version 2.0.0 is not in >=3" in outcome.reason
        else:
            assert isinstance(outcome, Installed)
            assert outcome.version == ("2.0.0" if range == ">=2" else "1.0.0")
            assert [note.code for note in outcome.notes] == ["version_from_package"]


async def test_without_a_check_nothing_is_asked(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", "0.1.0", ("tool",))
    place = Place(tmp_path, wheel_folder.env)
    wanted = declared(server={"kind": "pypi", "package": "tool"})

    async def installer(anew: bool) -> Any:
        return await place.install(wanted)

    outcome = await install_checked(wanted, installer, lambda _: plain_runner(None))
    assert isinstance(outcome, Installed)
    assert outcome.version == "0.1.0"
