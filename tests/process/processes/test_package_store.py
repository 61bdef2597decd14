"""Is a package installed once for all data folders, and run only as it was installed? The registries are ours."""

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.process.package_sources import NpmRegistry, RecordedProgress, WheelFolder, needs_node, registry, wheel_folder
from tests.process.sandboxed_program import SandboxedHome
from tests.support.node_process import running_node, wait_for

from interlock.config.plan import Package
from interlock.process.packages.installer import ensure
from interlock.process.packages.package_store import (
    MANIFEST,
    OTHER_HOST_S,
    USE,
    PackageFolders,
    PackageStore,
    remove_tree,
)
from interlock.process.packages.programs import PackageUnavailable

__all__ = ["registry", "wheel_folder"]  # fixtures

TOOL = Package(registry="pypi", name="tool")
SERVER = """
require("readline").createInterface({ input: process.stdin }).on("line", line => {
    const asked = JSON.parse(line)
    let result
    if (asked.method === "initialize") {
        const version = asked.params.protocolVersion
        result = { protocolVersion: version, capabilities: { tools: {} }, serverInfo: { name: "tiny", version: "1" } }
    } else if (asked.method === "tools/list") {
        result = { tools: [{ name: "hello", inputSchema: { type: "object" } }] }
    } else if (asked.id !== undefined) {
        const error = { code: -32601, message: "no such method" }
        console.log(JSON.stringify({ jsonrpc: "2.0", id: asked.id, error }))
        return
    } else return
    console.log(JSON.stringify({ jsonrpc: "2.0", id: asked.id, result }))
})
"""
TINY = {"tiny": {"npm": "tiny-mcp"}}


def folders(folder: Path, name: str = "a") -> PackageFolders:
    """The folders of the data folder `name`."""
    return PackageFolders(own=folder / name, store=folder / "store")


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


async def entry_of(wheel_folder: WheelFolder, at: PackageFolders, progress: list[str] | None = None) -> Path:
    said = RecordedProgress()
    command = await ensure(TOOL, at, said, environment=wheel_folder.env)
    assert run(*command) == "tool 1.0\n"
    if progress is not None:
        progress[:] = said
    return Path(command[0]).parent.parent


class ObservedNpm:
    """An npm on the PATH that writes down what it is asked, and waits before it installs as long as `gate` exists."""

    def __init__(self, folder: Path, registry: NpmRegistry) -> None:
        self.calls, self.gate = folder / "npm-calls", folder / "gate"
        self.calls.touch()
        program = folder / "bin" / "npm"
        program.parent.mkdir()
        program.write_text(
            f"#!/bin/sh\necho \"$1\" >> '{self.calls}'\n"
            f"[ \"$1\" = ci ] && while [ -e '{self.gate}' ]; do sleep 0.05; done\n"
            f"exec '{shutil.which('npm')}' \"$@\"\n"
        )
        program.chmod(0o755)
        path = f"{program.parent}:{os.environ['PATH']}"
        self.env = registry.env | {"PATH": path, "INTERLOCK_PACKAGES": str(folder / "store")}

    def asked(self) -> list[str]:
        calls = self.calls.read_text().split()
        self.calls.write_text("")
        return calls


@pytest.fixture
def npm(tmp_path: Path, registry: NpmRegistry) -> ObservedNpm:
    registry.put("tiny-mcp", bin="main.js", program=SERVER)
    return ObservedNpm(tmp_path, registry)


@needs_node
@pytest.mark.req("AIP-30.install-4")
def test_a_second_data_folder_installs_nothing_and_a_restart_asks_no_registry(
    npm: ObservedNpm, registry: NpmRegistry, tmp_path: Path
) -> None:
    with running_node(tmp_path / "a", TINY, env=npm.env) as node:
        node.wait_link("tiny", {"state": "ready"}, 60)
    assert npm.asked() == ["install", "ci"]  # versions and hashes, then the files
    with running_node(tmp_path / "b", TINY, env=npm.env) as node:
        node.wait_link("tiny", {"state": "ready"}, 60)
    assert npm.asked() == ["install"]
    registry.packages.clear()
    with running_node(tmp_path / "b", TINY, env=npm.env) as node:
        node.wait_link("tiny", {"state": "ready"}, 60)
    assert npm.asked() == []


@needs_node
@pytest.mark.req("AIP-30.install-4")
def test_two_nodes_that_start_at_once_install_once(npm: ObservedNpm, tmp_path: Path) -> None:
    npm.gate.touch()
    with running_node(tmp_path / "a", TINY, env=npm.env) as a, running_node(tmp_path / "b", TINY, env=npm.env) as b:
        wait_for(lambda: "ci" in npm.calls.read_text(), 60)
        wait_for(lambda: "waiting for another node" in json.dumps([a.link("tiny"), b.link("tiny")]), 60)
        npm.gate.unlink()
        for node in (a, b):
            node.wait_link("tiny", {"state": "ready"}, 60)
    assert npm.asked().count("ci") == 1


@needs_node
@pytest.mark.req("AIP-30.install-4")
def test_a_node_that_is_killed_while_it_installs_leaves_no_package(npm: ObservedNpm, tmp_path: Path) -> None:
    npm.gate.touch()
    with running_node(tmp_path / "a", TINY, env=npm.env) as node:
        wait_for(lambda: "ci" in npm.calls.read_text(), 60)
        os.kill(node.process.pid, signal.SIGKILL)
        node.process.wait(20)
    store = tmp_path / "store" / "npm"
    assert [each.name[0] for each in store.iterdir()] == ["."]  # what was begun, under a temporary name
    npm.gate.unlink()
    npm.asked()
    with running_node(tmp_path / "a", TINY, env=npm.env) as node:
        node.wait_link("tiny", {"state": "ready"}, 60)
    assert npm.asked() == ["ci"]  # the versions were recorded
    assert [each.name[:14] for each in store.iterdir()] == ["tiny-mcp@1.0.0"]


@pytest.mark.req("AIP-30.install-5")
async def test_nothing_in_a_package_can_be_written(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    entry = await entry_of(wheel_folder, folders(tmp_path))
    paths = [entry, *entry.rglob("*")]
    assert len(paths) > 10
    assert [path for path in paths if not path.is_symlink() and path.stat().st_mode & 0o222] == []


def content(entry: Path) -> None:
    """Other content with the former size and times."""
    program = next(entry.rglob("tool_program.py"))
    info = program.stat()
    program.chmod(0o600)
    program.write_bytes(program.read_bytes().replace(b"print('tool", b"print('evil"))
    program.chmod(0o444)
    os.utime(program, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert program.stat().st_size == info.st_size


def added(entry: Path) -> None:
    folder = next(entry.rglob("tool_program.py")).parent
    folder.chmod(0o700)
    (folder / "sitecustomize.py").write_text("raise SystemExit(3)")
    (folder / "sitecustomize.py").chmod(0o444)
    folder.chmod(0o555)


def writable(entry: Path) -> None:
    next(entry.rglob("tool_program.py")).chmod(0o644)


def foreign(entry: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user: it is not shown")
    os.chown(next(entry.rglob("tool_program.py")), 12345, 12345)


def planted(entry: Path) -> None:
    """Another package's folder under the name of this one."""
    manifest = entry / MANIFEST
    entry.chmod(0o700)
    manifest.chmod(0o600)
    manifest.write_text(manifest.read_text().replace("tool@1.0", "tool@9.9"))
    manifest.chmod(0o444)
    entry.chmod(0o555)


@pytest.mark.req("AIP-30.install-5")
@pytest.mark.parametrize("harm", [content, added, writable, foreign, planted])
@pytest.mark.parametrize("name", ["a", "another-data-folder"])
async def test_a_package_that_was_changed_is_installed_again(
    wheel_folder: WheelFolder, tmp_path: Path, harm: object, name: str
) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    entry = await entry_of(wheel_folder, folders(tmp_path))
    assert callable(harm)
    harm(entry)
    said: list[str] = []
    assert await entry_of(wheel_folder, folders(tmp_path, name), said) == entry
    assert said[-3:] == ["tool 1.0 was changed since it was installed", "installing tool 1.0", "installed tool 1.0"]
    assert b"evil" not in next(entry.rglob("tool_program.py")).read_bytes()
    assert not list(entry.rglob("sitecustomize.py"))
    assert await entry_of(wheel_folder, folders(tmp_path, name), said) == entry
    assert said == []


@pytest.mark.req("AIP-30.install-5")
@pytest.mark.parametrize(("mode", "reason"), [(0o770, "other users may write in it"), (0o707, "other users may write")])
async def test_a_store_in_which_others_may_write_is_refused(
    wheel_folder: WheelFolder, tmp_path: Path, mode: int, reason: str
) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(mode)
    with pytest.raises(PackageUnavailable, match=f"{reason}.*set 'packages'"):
        await entry_of(wheel_folder, folders(tmp_path))
    (tmp_path / "store").chmod(0o700)
    await entry_of(wheel_folder, folders(tmp_path))


@pytest.mark.req("AIP-30.install-5")
async def test_a_store_below_a_folder_in_which_every_user_may_write_is_refused(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    at = PackageFolders(own=tmp_path / "a", store=tmp_path / "open" / "store")
    with pytest.raises(PackageUnavailable, match=r"every user may write in .*open"):
        await entry_of(wheel_folder, at)


@pytest.mark.req("AIP-30.install-5")
async def test_a_sandbox_reads_its_own_package_and_sees_no_other(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    wheel_folder.put("other", scripts=("other",))
    at = folders(tmp_path)
    entry = await entry_of(wheel_folder, at)
    command = await ensure(Package(registry="pypi", name="other"), at, RecordedProgress(), environment=wheel_folder.env)
    home = SandboxedHome(tmp_path, store=at.store)
    text = (
        "place, other = sys.argv[1:]\n"
        "tell([os.path.isfile(place), tried(lambda: os.chmod(place, 0o600)), os.path.exists(other)])"
    )
    program = str(next(entry.rglob("tool_program.py")))
    seen = await home.python(home.plan(read=(entry,)), text, program, command[1])
    assert seen == [True, "OSError", False]
    around = home.plan(read=(tmp_path,))
    assert (await home.python(around, text, program, command[1]))[::2] == [False, False]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.mark.req("AIP-30.install-4")
async def test_what_no_data_folder_uses_is_removed_and_nothing_else(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    for name in ("tool", "other"):
        wheel_folder.put(name, scripts=(name,))
    a, b = folders(tmp_path, "a"), folders(tmp_path, "b")
    entry = await entry_of(wheel_folder, a)
    assert await entry_of(wheel_folder, b) == entry
    await ensure(Package(registry="pypi", name="other"), b, RecordedProgress(), environment=wheel_folder.env)
    store = PackageStore(a.store)

    def pruned() -> list[str]:
        return [each.entry.partition("@")[0] for each in store.prune()]

    left = entry.with_name(f".{entry.name}.0badc0de")  # of an installer that was killed
    left.mkdir()
    assert pruned() == []
    assert not left.exists()
    shutil.rmtree(b.own)
    left.mkdir()
    with locked(store.lock(entry)):
        assert pruned() == ["pypi/other"]
        assert left.exists()
    shutil.rmtree(a.own)
    with locked(store.lock(entry)):
        assert pruned() == []
    assert pruned() == ["pypi/tool"]
    assert list(store.packages()) == []
    assert not entry.exists()
    assert await entry_of(wheel_folder, a) == entry


@pytest.mark.req("AIP-30.install-4")
async def test_a_data_folder_on_another_host_is_believed_for_thirty_days(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    at = folders(tmp_path)
    entry = await entry_of(wheel_folder, at)
    store = PackageStore(at.store)
    (user,) = (at.store / ".uses").glob("*/*.json")
    user.write_text(json.dumps(json.loads(user.read_text()) | {"host": "a-container"}))
    shutil.rmtree(at.own)
    assert list(store.prune()) == []
    before = time.time() - OTHER_HOST_S - 60
    os.utime(user, (before, before))
    assert [each.entry for each in store.prune()] == [f"pypi/{entry.name}"]


@pytest.mark.req("AIP-30.install-4")
async def test_the_commands_show_and_prune(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    at = folders(tmp_path)
    entry = await entry_of(wheel_folder, at)
    use = at.own / "pypi" / "tool" / USE
    config = tmp_path / "work" / "interlock.toml"
    config.parent.mkdir()
    config.write_text(f'packages = "{at.store}"\n')

    def interlock(*words: str) -> str:
        place = ("--config", str(config), "--data", str(tmp_path / "data"))
        return run(sys.executable, "-m", "interlock", "packages", *words, *place)

    (shown,) = json.loads(interlock("list", "--json"))["packages"]
    assert (shown["entry"], shown["users"], shown["bytes"] > 0) == (f"pypi/{entry.name}", [str(use)], True)
    assert "1 use" in interlock("list")
    assert interlock("prune").startswith("removed 0 packages")
    use.unlink()
    assert f"removed pypi/{entry.name}" in interlock("prune")
    assert not entry.exists()
    assert "0 packages" in interlock("list")


async def test_files_of_a_package_keep_whether_they_can_be_run(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    entry = await entry_of(wheel_folder, folders(tmp_path))
    script = entry / "bin" / "tool"
    assert stat.S_IMODE(script.stat().st_mode) == 0o555
    assert run(str(script)) == "tool 1.0\n"
    remove_tree(entry)
    assert not entry.exists()
