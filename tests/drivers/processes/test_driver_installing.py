"""Is what a driver names installed once, recorded, and run again as the same bytes? The registries are ours."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.drivers.driver_texts import as_driver, driver, told
from tests.drivers.installs import Place, declared, output, program
from tests.process.package_sources import NpmRegistry, WheelFolder, needs_node, registry, wheel_folder

from interlock.config.plan import DriversPlan
from interlock.drivers.install.installation import (
    Locked,
    Locks,
    differences,
    remove_packages,
    request_digest,
)
from interlock.process.child import Child
from interlock.process.packages.package_store import remove_tree
from interlock.process.stderr import StderrRing
from interlock.store.ports import Damaged
from interlock.store.sqlite.store import SqliteStore

__all__ = ["registry", "wheel_folder"]  # fixtures


def npm_driver(package: str = "tool", **more: Any) -> Any:
    fields = {key: more.pop(key) for key in ("install", "version_check") if key in more}
    return declared(server={"kind": "npm", "package": package, **more}, **fields)


def pypi_driver(package: str = "tool", **more: Any) -> Any:
    fields = {key: more.pop(key) for key in ("install", "version_check") if key in more}
    return declared(server={"kind": "pypi", "package": package, **more}, **fields)


def binary_driver(path: str, **more: Any) -> Any:
    fields = {key: more.pop(key) for key in ("install", "version_check") if key in more}
    return declared(server={"kind": "binary", "path": path, **more}, **fields)


def declared_errors(install: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return told(as_driver(driver(server={"kind": "pypi", "package": "tool"}, install=install)).errors)


@needs_node
@pytest.mark.req("AIP-30.install-3", "AIP-server-4")
async def test_a_restart_runs_the_recorded_npm_package_even_if_the_registry_has_a_newer_or_none(
    registry: NpmRegistry, tmp_path: Path
) -> None:
    place = Place(tmp_path, registry.env)
    registry.put("dependency", "1.0.0")
    registry.put("@scope/tool", "1.0.0", bin="main.js", dependencies={"dependency": "^1.0.0"})
    wanted = npm_driver("@scope/tool")
    first = await place.done(wanted)
    assert output(first.command, "hi") == "@scope/tool 1.0.0 hi"
    assert Path(first.command[0]).name == "node"
    assert first.version == first.lock.version == "1.0.0"
    offered = registry.packages["@scope/tool"]["versions"]["1.0.0"]["dist"]["integrity"]
    assert first.lock.integrity == offered

    registry.put("dependency", "1.5.0")
    registry.put("@scope/tool", "1.1.0", bin="main.js", dependencies={"dependency": "^1.0.0"})
    again = await place.done(wanted, first.lock)
    assert (again.command, again.lock) == (first.command, first.lock)
    remove_tree(place.store)
    restored = await place.done(wanted, first.lock)
    assert output(restored.command) == "@scope/tool 1.0.0"
    (dependency,) = (place.store / "npm").glob("*/node_modules/dependency/package.json")
    assert json.loads(dependency.read_text())["version"] == "1.0.0"

    newer = await place.done(wanted)
    assert output(newer.command) == "@scope/tool 1.1.0"
    assert output(first.command) == "@scope/tool 1.0.0"  # beside it, until somebody decides
    assert differences(first.lock, newer.lock) == (
        "version 1.0.0 -> 1.1.0",
        f"integrity {first.lock.integrity} -> {newer.lock.integrity}",
    )
    assert differences(first.lock, first.lock) == ()

    registry.packages.clear()
    registry.tarballs.clear()
    assert (await place.done(wanted, first.lock)).command == first.command


@needs_node
@pytest.mark.req("AIP-30.install-1")
async def test_a_data_folder_behind_a_symlink_is_no_different(registry: NpmRegistry, tmp_path: Path) -> None:
    registry.put("tool", "1.0.0", bin="main.js")
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "real")
    place = Place(tmp_path, registry.env)
    done = await place.done(npm_driver())
    assert output(done.command) == "tool 1.0.0"
    await remove_packages(place.packages, npm_driver())
    remove_tree(place.store)
    assert output((await place.done(npm_driver(), done.lock)).command) == "tool 1.0.0"


@pytest.mark.req("AIP-server-10")
async def test_undeclared_needs_of_a_package_are_beside_it(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", "1.0.0", ("tool",))
    for version in ("1.0.0", "1.9.0", "2.0.0"):
        wheel_folder.put("library", version)
    install = [{"method": "pip", "package": "tool", "with": ["library>=1,<2"]}]
    done = await Place(tmp_path, wheel_folder.env).done(pypi_driver(install=install))
    assert [line.partition(" ")[0] for line in done.lock.pins.splitlines()] == ["library==1.9.0", "tool==1.0.0"]
    hostile = declared_errors([{"method": "pip", "package": "tool", "with": ["--index-url=http://evil.example"]}])
    assert hostile == [("schema_invalid", "/install/0/with/0")]


@pytest.mark.req("AIP-30.install-3", "AIP-30.install-1")
async def test_a_restart_runs_the_recorded_python_package_even_if_a_newer_version_is_out(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    place = Place(tmp_path, wheel_folder.env)
    wheel_folder.put("tool", "1.0.0", ("tool",))
    wanted = pypi_driver()
    first = await place.done(wanted)
    assert output(first.command, "hi") == "tool 1.0.0 hi"
    assert first.lock.version == "1.0.0"
    assert first.lock.integrity is not None
    assert first.lock.integrity.startswith("sha256:")
    assert first.lock.pins == f"tool==1.0.0 --hash={first.lock.integrity}\n"

    wheel_folder.put("tool", "2.0.0", ("tool",))
    assert output((await place.done(wanted, first.lock)).command) == "tool 1.0.0"
    await remove_packages(place.packages, wanted)
    remove_tree(place.store)
    assert output((await place.done(wanted, first.lock)).command) == "tool 1.0.0"
    newer = await place.done(wanted)
    assert output(newer.command) == "tool 2.0.0"
    assert differences(first.lock, newer.lock)[0] == "version 1.0.0 -> 2.0.0"
    shutil.rmtree(wheel_folder.folder)
    assert output((await place.done(wanted, first.lock)).command) == "tool 1.0.0"


@needs_node
@pytest.mark.req("AIP-30.install-3")
async def test_other_bytes_for_a_recorded_npm_package_are_refused(registry: NpmRegistry, tmp_path: Path) -> None:
    place = Place(tmp_path, registry.env | {"npm_config_fetch_retries": "0"})
    registry.put("tool", "1.0.0", bin="main.js")
    wanted = npm_driver()
    lock = (await place.done(wanted)).lock
    remove_tree(place.store)
    shutil.rmtree(tmp_path / "npm-cache")
    registry.put("tool", "1.0.0", bin="main.js", description="not what it was")
    registry.tarballs["/tarballs/0.tgz"] = registry.tarballs["/tarballs/1.tgz"]
    failed = await place.failed(wanted, lock)
    assert failed.code == "install_failed"
    assert "interlock drivers update filesystem`" in failed.reason
    assert not list(place.store.glob("npm/*/interlock-package.json"))


@pytest.mark.req("AIP-30.install-3")
async def test_other_bytes_for_a_recorded_wheel_are_refused(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    place = Place(tmp_path, wheel_folder.env)
    wheel_folder.put("tool", "1.0.0", ("tool",))
    wanted = pypi_driver()
    lock = (await place.done(wanted)).lock
    remove_tree(place.store)
    wheel_folder.put("tool", "1.0.0", ("tool", "another"))
    failed = await place.failed(wanted, lock)
    assert "HASH" in " ".join(failed.attempts[0].output).upper()


@pytest.mark.req("AIP-30.install-3")
async def test_a_lock_for_something_else_is_not_used(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    place = Place(tmp_path, wheel_folder.env)
    wheel_folder.put("tool", "1.0.0", ("tool",))
    wheel_folder.put("tool", "2.0.0", ("tool",))
    old = (await place.done(pypi_driver("tool==1.0.0"))).lock
    assert output((await place.done(pypi_driver("tool==2.0.0"), old)).command) == "tool 2.0.0"
    assert request_digest(pypi_driver()) != request_digest(pypi_driver(version="1.0.0"))
    assert request_digest(pypi_driver()) == request_digest(pypi_driver(args=["other"]))


async def test_nothing_of_a_package_runs_while_it_is_installed(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    """A source distribution would have to be built, which runs its code."""
    proof = tmp_path / "it-ran"
    wheel_folder.put_source("tool", f"open({str(proof)!r}, 'w')")
    failed = await Place(tmp_path, wheel_folder.env).failed(pypi_driver())
    assert "No matching distribution" in " ".join(failed.attempts[0].output)
    assert "let the operator set drivers.allow_unverified_install" in failed.reason
    assert not proof.exists()


@needs_node
@pytest.mark.req("AIP-30.install-1")
async def test_scripts_of_an_npm_package_do_not_run_and_global_installs_privately(
    registry: NpmRegistry, tmp_path: Path
) -> None:
    place = Place(tmp_path, registry.env)
    proof = tmp_path / "it-ran"
    registry.put("tool", bin="main.js", scripts={"postinstall": f"touch '{proof}'", "install": f"touch '{proof}'"})
    install = [{"method": "npm", "package": "tool", "global": True}]
    done = await place.done(npm_driver(install=install))
    assert not proof.exists()
    assert Path(done.command[1]).is_relative_to(place.store)


@pytest.mark.req("AIP-30.install-1")
async def test_methods_are_tried_in_order_until_one_succeeds(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    place = Place(tmp_path, wheel_folder.env)
    wheel_folder.put("tool", "1.0.0", ("tool",))
    install = [
        {"method": "brew", "package": "tool; rm -rf ~"},
        {"method": "pip", "package": "absent"},
        {"method": "new-thing", "experimental": True},
        {"method": "pip", "package": "tool"},
        {"method": "npm", "package": "never-asked"},
    ]
    done = await place.done(pypi_driver(install=install))
    assert output(done.command) == "tool 1.0.0"
    assert [(attempt.method, attempt.reason is None) for attempt in done.attempts] == [
        ("brew", False),
        ("pip", False),
        ("new-thing", False),
        ("pip", True),
    ]
    assert done.attempts[0].reason is not None
    assert done.attempts[0].reason.endswith("do it yourself: brew install 'tool; rm -rf ~'")
    assert "skipped" in (done.attempts[2].reason or "")
    assert done.lock.method == "pip"


@pytest.mark.req("AIP-30.install-1")
async def test_when_all_methods_fail_each_reason_is_reported(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    systems = {
        **{method: f"{method} install" for method in ("brew", "choco", "scoop", "cargo", "go")},
        **{"apt": "sudo apt install", "dnf": "sudo dnf install", "pacman": "sudo pacman -S"},
    }
    install = [{"method": method, "package": "thing"} for method in systems] + [{"method": "pip", "package": "absent"}]
    failed = await Place(tmp_path, wheel_folder.env).failed(pypi_driver(install=install))
    assert failed.code == "install_failed"
    assert [attempt.method for attempt in failed.attempts] == [*systems, "pip"]
    for attempt, command in zip(failed.attempts, systems.values(), strict=False):
        assert (attempt.reason or "").endswith(f"do it yourself: {command} thing")
    assert "pip: absent cannot be installed" in failed.reason


async def test_a_method_that_brings_another_package_does_not_succeed(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    place = Place(tmp_path, wheel_folder.env)
    wheel_folder.put("other", "1.0.0", ("tool",))
    failed = await place.failed(pypi_driver(install=[{"method": "pip", "package": "other"}]))
    assert "does not bring the Python package tool" in failed.reason


async def test_two_pins_for_one_package_are_refused(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", "1.0.0", ("tool",))
    install = [{"method": "pip", "package": "tool==2.0.0"}]
    failed = await Place(tmp_path, wheel_folder.env).failed(pypi_driver("tool==1.0.0", install=install))
    assert "two versions" in failed.reason


@pytest.mark.req("AIP-server-10")
@pytest.mark.parametrize(("entry", "ran"), [("second", "tool 1.0.0"), ("-m tool_program", "")])
async def test_entry_names_the_script_or_the_module(
    wheel_folder: WheelFolder, tmp_path: Path, entry: str, ran: str
) -> None:
    wheel_folder.put("tool", "1.0.0", ("first", "second"))
    done = await Place(tmp_path, wheel_folder.env).done(pypi_driver(entry=entry))
    assert output(done.command) == ran
    assert (Path(done.command[-1]).name == "second") or done.command[1:] == ("-m", "tool_program")


@needs_node
async def test_entry_names_one_of_several_npm_programs(registry: NpmRegistry, tmp_path: Path) -> None:
    registry.put("tool", bin={"a": "main.js", "b": "other.js"})
    place = Place(tmp_path, registry.env)
    assert (await place.done(npm_driver(entry="b"))).command[1].endswith("/other.js")
    assert "several programs (a, b)" in (await place.failed(npm_driver())).reason


@needs_node
async def test_the_script_of_a_version_manager_is_not_what_runs(registry: NpmRegistry, tmp_path: Path) -> None:
    registry.put("tool", bin="main.js")
    real = shutil.which("node")
    shim = program(tmp_path / "shims" / "node", f"#!/bin/sh\nexec '{real}' \"$@\"\n")
    place = Place(tmp_path, registry.env | {"PATH": f"{shim.parent}:{os.environ['PATH']}"})
    done = await place.done(npm_driver())
    assert Path(done.command[0]).resolve() == Path(str(real)).resolve()
    assert output(done.command) == "tool 1.0.0"


@needs_node
@pytest.mark.req("AIP-server-4")
async def test_npx_is_used_only_when_the_operator_says_so(registry: NpmRegistry, tmp_path: Path) -> None:
    registry.put("tool", "1.2.3", bin="main.js")
    place = Place(tmp_path, registry.env)
    plain = await place.done(npm_driver())
    assert Path(plain.command[0]).name == "node"
    through = await place.done(npm_driver(), settings=DriversPlan(npx=True))
    assert (Path(through.command[0]).name, *through.command[1:]) == ("npx", "--yes", "tool@1.2.3")
    assert through.lock.integrity == plain.lock.integrity


@pytest.mark.req("AIP-server-11")
async def test_auto_builds_an_environment_without_uvx_and_pipx(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", "1.0.0", ("tool",))
    env = wheel_folder.env | {"PATH": "/usr/bin:/bin"}
    assert shutil.which("uvx", path=env["PATH"]) is shutil.which("pipx", path=env["PATH"]) is None
    done = await Place(tmp_path, env).done(pypi_driver())
    assert [Path(word).name for word in done.command] == ["python", "tool"]
    assert all(Path(word).is_relative_to(tmp_path / "store") for word in done.command)


@pytest.mark.req("AIP-server-11")
@pytest.mark.parametrize("runner", ["uvx", "pipx"])
async def test_a_runner_that_is_not_there_is_named(wheel_folder: WheelFolder, tmp_path: Path, runner: str) -> None:
    wheel_folder.put("tool", "1.0.0", ("tool",))
    failed = await Place(tmp_path, wheel_folder.env | {"PATH": "/usr/bin:/bin"}).failed(pypi_driver(runner=runner))
    assert failed.code == "install_failed"
    assert f"{runner} is not on the PATH" in failed.reason


@pytest.mark.req("AIP-server-11")
async def test_uvx_fills_its_cache_when_installing_and_is_offline_when_run(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("my-tool", "1.0.0", ("my-tool",))
    seen = tmp_path / "seen"
    uvx = program(tmp_path / "bin" / "uvx", f"#!/bin/sh\necho \"$UV_CACHE_DIR|$@\" >> '{seen}'\n")
    place = Place(tmp_path, wheel_folder.env | {"PATH": f"{uvx.parent}:/usr/bin:/bin"})
    done = await place.done(pypi_driver("my-tool[extra]", runner="uvx"))
    assert done.command == (str(uvx), "--offline", "--from", "my-tool[extra]==1.0.0", "my-tool")
    assert done.version == "1.0.0"
    assert done.lock.integrity is not None
    cache = done.env["UV_CACHE_DIR"]
    assert seen.read_text() == f"{cache}|--no-build --from my-tool[extra]==1.0.0 python -c \n"
    assert done.writes == (Path(cache),)


@pytest.mark.req("AIP-server-11", "AIP-30.install-6")
async def test_uvx_fills_no_cache_that_a_server_could_have_written_into(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("my-tool", "1.0.0", ("my-tool",))
    seen = tmp_path / "seen"
    uvx = program(tmp_path / "bin" / "uvx", f"#!/bin/sh\nls \"$UV_CACHE_DIR\" >> '{seen}'\n")
    place = Place(tmp_path, wheel_folder.env | {"PATH": f"{uvx.parent}:/usr/bin:/bin"})
    before = await place.done(pypi_driver("my-tool", runner="uvx"))
    for folder in before.writes:
        (folder / "planted.pth").write_text("import os")
    wheel_folder.put("my-tool", "1.1.0", ("my-tool",))
    after = await place.done(pypi_driver("my-tool==1.1.0", runner="uvx"))
    assert after.version == "1.1.0"
    assert seen.read_text() == ""
    assert not set(before.writes) & set(after.writes)


@pytest.mark.req("AIP-server-1")
@pytest.mark.parametrize("path", ["./bin/server", "bin/server", "../../shared/server"])
async def test_a_relative_path_is_found_from_the_drivers_folder(tmp_path: Path, path: str) -> None:
    place = Place(tmp_path)
    program(place.folder / path, "#!/bin/sh\necho it runs\n")
    done = await place.done(binary_driver(path))
    assert output(done.command) == "it runs"
    assert done.lock.method == "present"


@pytest.mark.req("AIP-server-1")
@pytest.mark.parametrize("path", ["../../../outside", "./link", "sub/../../../../outside"])
async def test_a_path_out_of_the_workspace_is_refused(tmp_path: Path, path: str) -> None:
    place = Place(tmp_path)
    program(tmp_path / "outside", "#!/bin/sh\n")
    (place.folder / "link").symlink_to(tmp_path / "outside")
    failed = await place.failed(binary_driver(path))
    assert failed.code == "path_escape"


@pytest.mark.req("AIP-server-1")
async def test_a_missing_or_not_executable_program_is_a_failed_installation(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.folder / "notes.txt").write_text("no program")
    for path, words in [
        ("./notes.txt", "is not executable"),
        ("./absent", "does not exist"),
        ("/no/such/program", "does not exist"),
        ("no-such-program-here", "is on the PATH"),
        (str(place.folder), "does not exist"),
    ]:
        failed = await place.failed(binary_driver(path))
        assert failed.code == "install_failed"
        assert words in failed.reason


async def test_a_bare_name_is_looked_up_on_the_path(tmp_path: Path) -> None:
    place = Place(tmp_path)
    found = program(tmp_path / "bin" / "my-server", "#!/bin/sh\n")
    place.env["PATH"] = f"{found.parent}:/usr/bin:/bin"
    assert (await place.done(binary_driver("my-server"))).command == (str(found),)
    assert (await place.done(binary_driver(str(found)))).command == (str(found),)


@needs_node
async def test_a_binary_may_come_from_a_package(
    registry: NpmRegistry, wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    registry.put("bundle", bin={"my-server": "main.js"})
    wheel_folder.put("bundle", "3.0.0", ("my-server",))
    place = Place(tmp_path, registry.env | wheel_folder.env)
    by_npm = await place.done(binary_driver("my-server", install=[{"method": "npm", "package": "bundle"}]))
    assert output(by_npm.command, "x") == "bundle 1.0.0 x"
    by_pip = await place.done(binary_driver("my-server", install=[{"method": "pip", "package": "bundle"}]))
    assert output(by_pip.command, "x") == "bundle 3.0.0 x"
    failed = await place.failed(binary_driver("another", install=[{"method": "pip", "package": "bundle"}]))
    assert "no program 'another'" in failed.reason


async def test_a_binary_that_the_person_installed_as_advised_is_used(tmp_path: Path) -> None:
    place = Place(tmp_path)
    found = program(tmp_path / "bin" / "my-server", "#!/bin/sh\n")
    place.env["PATH"] = str(found.parent)
    done = await place.done(binary_driver("my-server", install=[{"method": "brew", "package": "my-server"}]))
    assert done.command == (str(found),)
    assert [attempt.method for attempt in done.attempts] == ["brew", "present"]


async def test_vendored_programs_come_from_the_folder_and_nowhere_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    program(place.folder / "vendor" / "my-server", "#!/bin/sh\necho vendored\n")
    program(tmp_path / "bin" / "my-server", "#!/bin/sh\necho another\n")
    place.env["PATH"] = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    for path in ("vendor", "./vendor/my-server"):
        done = await place.done(binary_driver("my-server", install=[{"method": "vendored", "path": path}]))
        assert output(done.command) == "vendored"
        assert done.reads == (place.folder,)
    failed = await place.failed(binary_driver("gone", install=[{"method": "vendored", "path": "../../../bin"}]))
    assert "leads out of the workspace" in failed.reason


ARGUMENTS = [
    "/folder with space",
    "two words",
    "'quoted' \"twice\"",
    "$(x)",
    "; touch y",
    "`id`",
    "*",
    "-x",
    "",
    "é\n",
    "$HOME",
]


class Sink:
    def __init__(self) -> None:
        self.line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_line(self, data: bytes) -> None:
        if not self.line.done():
            self.line.set_result(data)

    def on_gone(self, reason: str) -> None:
        if not self.line.done():
            self.line.set_exception(AssertionError(reason))

    def on_oversized(self, found: object) -> None:
        pass

    def on_stalled(self) -> None:
        raise AssertionError


@pytest.mark.req("AIP-server-2")
async def test_arguments_reach_the_program_as_written_with_no_shell_between(tmp_path: Path) -> None:
    place = Place(tmp_path)
    recording = (
        "#!/usr/bin/env python3\nimport json, os, stat, sys\n"
        "modes = [os.fstat(fd).st_mode for fd in (0, 1, 2)]\n"
        "piped = [stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes]\n"
        "print(json.dumps([sys.argv[1:], os.getppid(), piped]), flush=True)\nsys.stdin.read()\n"
    )
    program(place.folder / "server.py", recording)
    wanted = binary_driver("./server.py", args=ARGUMENTS)
    installed = await place.done(wanted)
    sink = Sink()
    child = Child(
        (*installed.command, *wanted.server.args),
        dict(os.environ),
        tmp_path,
        max_message_bytes=100_000,
        sink=sink,
        stderr=StderrRing(now=lambda: 0.0),
        reaper=None,
    )
    try:
        await child.start()
        arguments, parent, piped = json.loads(await asyncio.wait_for(sink.line, 20))
    finally:
        await child.stop()
    assert arguments == ARGUMENTS
    assert parent == os.getpid()
    assert piped == [True, True, True]
    assert not (tmp_path / "y").exists()


@pytest.mark.req("AIP-server-7")
async def test_a_remote_server_is_not_installed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    proof = tmp_path / "bin" / "it-ran"
    for tool in ("npm", "node", "pip", "docker", "sh", "curl"):
        program(tmp_path / "bin" / tool, f"#!/bin/sh\necho > '{proof}'\n")
    place.env["PATH"] = str(tmp_path / "bin")
    server = {"kind": "remote", "url": "https://mcp.example.com/v1"}
    wanted = declared(server=server, transport="http", install=[{"method": "npm", "package": "tool"}])
    done = await place.done(wanted)
    assert done.command == ()
    assert [note.code for note in done.notes] == ["install_ignored"]
    assert not place.packages.exists()
    assert not proof.exists()


class StillClock:
    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 1_800_000_000.0


@pytest.mark.req("AIP-30.install-3")
async def test_locks_are_kept_in_the_store_by_id_and_major_version(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    try:
        locks = Locks(store.kv, StillClock())
        lock = Locked(asked="x", method="npm", package="tool", version="1.0.0", integrity="sha512-x", pins="{}")
        await locks.put("filesystem-mcp@1", lock)
        await locks.put("filesystem-mcp@2", msgspec.structs.replace(lock, version="2.0.0"))
        assert await locks.get("filesystem-mcp@1") == lock
        await store.kv.delete("driver-locks", "filesystem-mcp@2")
        assert await locks.get("filesystem-mcp@2") is None
        await store.kv.put("driver-locks", "filesystem-mcp@1", b'{"asked": 7}', 0.0)
        with pytest.raises(Damaged, match="drivers update filesystem`"):
            await locks.get("filesystem-mcp@1")
    finally:
        await store.close()
