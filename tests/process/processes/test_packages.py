"""Packages, with the real installers; the registries are small ones of our own, except where a test says so."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from tests.process.package_sources import NpmRegistry, RecordedProgress, WheelFolder, needs_node, registry, wheel_folder

from interlock.config.plan import Package
from interlock.process.packages import installer as packages
from interlock.process.packages.installer import ensure
from interlock.process.packages.package_store import MANIFEST, USE, PackageFolders, remove_tree
from interlock.process.packages.programs import PackageUnavailable, SourceBuildRefused, read_reference

__all__ = ["registry", "wheel_folder"]  # fixtures


def pypi(name: str) -> Package:
    return Package(registry="pypi", name=name)


def npm(name: str) -> Package:
    return Package(registry="npm", name=name)


def at(root: Path) -> PackageFolders:
    return PackageFolders(own=root, store=root / "store")


def output(argv: tuple[str, ...], *more: str) -> str:
    return subprocess.run([*argv, *more], capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def processes_naming(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


async def test_a_pypi_package_is_installed_once_and_runs(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("my-tool", scripts=("my-tool", "other"))
    first, second = RecordedProgress(), RecordedProgress()
    root = tmp_path / "a root"  # with a space, which a script's first line cannot hold
    command = await ensure(pypi("my-tool"), at(root), first, environment=wheel_folder.env)
    assert output(command, "hello") == "my-tool 1.0 hello"
    assert first == ["asking PyPI for my-tool", "installing my-tool 1.0", "installed my-tool 1.0"]
    shutil.rmtree(wheel_folder.folder)
    assert await ensure(pypi("My_Tool"), at(root), second, environment=wheel_folder.env) == command
    assert second == []


async def test_an_interpreter_without_pip_makes_an_environment_that_has_pip(
    wheel_folder: WheelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    wheel_folder.put("tool", scripts=("tool",))
    command = await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    assert output(command) == "tool 1.0"
    assert Path(command[0]).with_name("pip").exists()


async def test_a_version_that_is_given_is_pinned_and_has_its_own_folder(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("tool", "1.0", ("tool",))
    wheel_folder.put("tool", "2.0", ("tool",))
    old = await ensure(pypi("tool==1.0"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    new = await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    assert (output(old), output(new)) == ("tool 1.0", "tool 2.0")


@pytest.mark.parametrize("scripts", [("serve-it",), ("a", "my_tool", "z"), ("My.Tool", "b")])
async def test_the_program_is_named_like_the_package_or_is_the_only_program(
    wheel_folder: WheelFolder, tmp_path: Path, scripts: tuple[str, ...]
) -> None:
    wheel_folder.put("my-tool", scripts=scripts)
    command = await ensure(pypi("my-tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    expected = scripts[0] if len(scripts) == 1 else next(name for name in scripts if "ool" in name)
    assert Path(command[-1]).name == expected
    assert output(command) == "my-tool 1.0"


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ((), "brings no program"),
        (("one", "two"), r"several programs \(one, two\).*name one of them in entry.*declare the server with command"),
    ],
)
async def test_a_package_without_one_clear_program_is_refused_with_advice(
    wheel_folder: WheelFolder, tmp_path: Path, scripts: tuple[str, ...], message: str
) -> None:
    wheel_folder.put("tool", scripts=scripts)
    with pytest.raises(PackageUnavailable, match=message):
        await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)


async def test_a_failed_installation_says_why_and_can_be_tried_again(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    with pytest.raises(PackageUnavailable, match=r"exited with code 1; .*no-such-tool") as caught:
        await ensure(pypi("no-such-tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    assert "\n" not in str(caught.value)
    assert any("No matching distribution" in line for line in caught.value.output)
    assert len(caught.value.output) <= packages.OUTPUT_LINES
    wheel_folder.put("no-such-tool", scripts=("no-such-tool",))
    command = await ensure(pypi("no-such-tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    assert output(command) == "no-such-tool 1.0"


async def test_a_half_made_installation_is_removed_and_made_again(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    half = tmp_path / "pypi" / "tool"
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "python").write_text("half a copy")
    (half / f"{packages.MARKER}.half").write_text("{")
    command = await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    assert output(command) == "tool 1.0"
    assert not (half / f"{packages.MARKER}.half").exists()


async def test_an_installation_is_recorded_with_hashes_and_not_replaced_by_a_newer_version(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("tool", "1.0", ("tool",))
    command = await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    record = msgspec.json.decode((tmp_path / "pypi" / "tool" / packages.RECORD).read_bytes(), type=packages.Pins)
    wheel = hashlib.sha256((wheel_folder.folder / "tool-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    assert (record.version, record.integrity) == ("1.0", f"sha256:{wheel}")
    assert record.text == f"tool==1.0 --hash=sha256:{wheel}\n"
    wheel_folder.put("tool", "2.0", ("tool",))
    remove_tree(tmp_path / "store")  # as after an installation that was interrupted
    said = RecordedProgress()
    assert await ensure(pypi("tool"), at(tmp_path), said, environment=wheel_folder.env) == command
    assert output(command) == "tool 1.0"
    assert said == ["installing tool 1.0", "installed tool 1.0"]


async def test_other_bytes_than_the_recorded_bytes_are_refused_with_advice(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("tool", "1.0", ("tool",))
    await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    folder = tmp_path / "pypi" / "tool"
    remove_tree(tmp_path / "store")
    wheel_folder.put("tool", "1.0", ("tool", "another"))
    with pytest.raises(PackageUnavailable, match=rf"remove {folder} to take what the registry offers now"):
        await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    shutil.rmtree(folder)
    assert (
        output(await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)) == "tool 1.0"
    )


async def test_an_installation_made_before_pins_were_recorded_runs_without_the_registry(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    command = await ensure(pypi("tool"), at(tmp_path / "new"), RecordedProgress(), environment=wheel_folder.env)
    folder = tmp_path / "old" / "pypi" / "tool"
    shutil.copytree(Path(command[0]).parent.parent, folder, symlinks=True)
    marker = {"package": "tool", "version": "1.0", "python": packages.python_version()}
    folder.chmod(0o700)
    (folder / packages.MARKER).unlink()
    (folder / packages.MARKER).write_bytes(msgspec.json.encode(marker))
    shutil.rmtree(wheel_folder.folder)
    old = await ensure(pypi("tool"), at(tmp_path / "old"), RecordedProgress(), environment=wheel_folder.env)
    assert Path(old[0]) == folder / "bin" / "python"
    assert output(old) == "tool 1.0"
    assert not (tmp_path / "old" / "store").exists()


async def test_a_package_that_exists_as_source_only_is_built_with_consent_alone(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    wheel_folder.put_source("source-tool", f"open({str(proof)!r}, 'w')")
    with pytest.raises(SourceBuildRefused, match=r"no wheel of source-tool.*set drivers\.allow_unverified_install"):
        await ensure(pypi("source-tool"), at(tmp_path / "root"), RecordedProgress(), environment=wheel_folder.env)
    with pytest.raises(PackageUnavailable, match=r"No matching distribution") as caught:
        await ensure(pypi("source-tool==7"), at(tmp_path / "root"), RecordedProgress(), environment=wheel_folder.env)
    assert not isinstance(caught.value, SourceBuildRefused)
    assert not proof.exists()
    with contextlib.suppress(PackageUnavailable):  # the build itself may lack its tools here
        await ensure(
            pypi("source-tool"),
            at(tmp_path / "root"),
            RecordedProgress(),
            environment=wheel_folder.env,
            source_builds=True,
        )
    assert proof.exists()


async def test_an_installation_that_broke_later_is_made_again(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    command = await ensure(pypi("tool"), at(tmp_path), RecordedProgress(), environment=wheel_folder.env)
    use = tmp_path / "pypi" / "tool" / USE
    harms = ("interpreter gone", "another python", "use broken", "use no text", "manifest broken", "manifest no text")
    for harm in harms:
        folder = Path(command[0]).parent.parent
        for each in (folder, folder / "bin"):
            each.chmod(0o700)
        match harm:
            case "interpreter gone":
                Path(command[0]).unlink()
                Path(command[0]).symlink_to(tmp_path / "no-such-python")
            case "another python":
                folder.chmod(0o555)
                (folder / "bin").chmod(0o555)
                use.write_bytes(use.read_bytes().replace(packages.python_version().encode(), b"2.7"))
            case "use broken":
                use.write_text('{"package": 1')
            case "use no text":
                use.write_bytes(b'{"entry":"\xff"}')
            case _:
                (folder / MANIFEST).unlink()
                (folder / MANIFEST).write_bytes(b'{"entry":"\xff"}' if harm == "manifest no text" else b'{"package": 1')
        said = RecordedProgress()
        command = await ensure(pypi("tool"), at(tmp_path), said, environment=wheel_folder.env)
        assert output(command) == "tool 1.0", harm
        assert said[-1] == ("tool 1.0 is installed already" if harm == "another python" else "installed tool 1.0"), harm


async def test_many_asking_at_once_install_once(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    wheel_folder.put("tool", scripts=("tool",))
    said = RecordedProgress()
    commands = await asyncio.gather(
        *(ensure(pypi("tool"), at(tmp_path), said, environment=wheel_folder.env) for _ in range(4))
    )
    assert len(set(commands)) == 1
    assert said.count("installed tool 1.0") == 1
    assert said.count("waiting for another node that installs tool") == 3


async def test_the_wait_for_another_node_has_a_limit(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    (tmp_path / "pypi").mkdir()
    said = RecordedProgress()
    with (tmp_path / "pypi" / "tool.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PackageUnavailable, match=r"longer than 0\.3 s"):
            await ensure(pypi("tool"), at(tmp_path), said, environment=wheel_folder.env, limit_s=0.3)
    assert said == ["waiting for another node that installs tool"]


@pytest.fixture
def silent_registry() -> Iterator[str]:
    """Accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://someone:s3cret@127.0.0.1:{listener.getsockname()[1]}/simple"


async def test_an_installer_that_hangs_is_ended_with_the_time_limit(
    wheel_folder: WheelFolder, tmp_path: Path, silent_registry: str
) -> None:
    env = wheel_folder.env | {"PIP_INDEX_URL": silent_registry, "NO_PROXY": "127.0.0.1"}
    del env["PIP_NO_INDEX"]
    said = RecordedProgress()
    with pytest.raises(PackageUnavailable, match="longer than 4 s and was ended; check the network") as caught:
        await ensure(pypi("tool"), at(tmp_path), said, environment=env, limit_s=4)
    assert "asking PyPI for tool" in said
    assert processes_naming(str(tmp_path)) == []
    assert "s3cret" not in "\n".join([*said, *caught.value.output, str(caught.value)])


async def test_only_so_many_are_installed_at_one_time_and_what_is_there_waits_for_none(
    wheel_folder: WheelFolder, tmp_path: Path
) -> None:
    names = ("one", "two", "three")
    for name in names:
        wheel_folder.put(name, scripts=(name,))
    under_way: set[str] = set()
    most = 0

    async def install(name: str) -> tuple[str, ...]:
        def progress(text: str) -> None:
            nonlocal most
            under_way.add(name) if text.startswith("asking") else None
            under_way.discard(name) if text.startswith("installed") else None
            most = max(most, len(under_way))
            said.append(text)

        return await ensure(pypi(name), at(tmp_path), progress, environment=wheel_folder.env, installs=installs)

    said = RecordedProgress()
    installs = asyncio.Semaphore(1)
    commands = await asyncio.gather(*map(install, names))
    assert most == 1
    assert said.count("it waits until others are installed") == 2
    async with installs:  # somebody installs for a long time
        assert await install("one") == commands[0]


async def test_a_cancelled_installation_leaves_no_installer(
    wheel_folder: WheelFolder, tmp_path: Path, silent_registry: str
) -> None:
    env = wheel_folder.env | {"PIP_INDEX_URL": silent_registry, "NO_PROXY": "127.0.0.1"}
    del env["PIP_NO_INDEX"]
    asked = asyncio.Event()

    def progress(text: str) -> None:
        if text.startswith("asking"):
            asked.set()

    installing = asyncio.create_task(ensure(pypi("tool"), at(tmp_path), progress, environment=env))
    await asyncio.wait_for(asked.wait(), 30)
    installing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await installing
    assert processes_naming(str(tmp_path)) == []


async def test_the_password_of_a_registry_is_not_repeated(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    env = wheel_folder.env | {"PIP_INDEX_URL": "http://someone:s3cret@127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    env |= {"NO_PROXY": "127.0.0.1", "PIP_FIND_LINKS": "http://someone:s3cret@127.0.0.1:9/links"}
    del env["PIP_NO_INDEX"]
    said = RecordedProgress()
    with pytest.raises(PackageUnavailable) as caught:
        await ensure(pypi("tool"), at(tmp_path), said, environment=env)
    everything = "\n".join([*said, *caught.value.output, str(caught.value)])
    assert "127.0.0.1:9" in everything
    assert "s3cret" not in everything


BAD_NAMES = [
    "", " ", "-r", "--index-url=x", "a b", "a\nb", "a\0b", ".", "..", "../evil", "/etc", "a/b", "a\\b", "~/x",
    "https://example.org/x", "git+ssh://x", "file:x", "a@file:x", "a@npm:b", "a@../b", "a@1 --x", "x;y", "é", "x" * 300,
    "evil.tgz", "evil.tar.gz", "a@1.tgz", "@scope", "@scope/", "@/x", "@-s/x", "@scope/-x", "a@", "a@@1",
]  # fmt: skip


@pytest.mark.parametrize("registry", ["npm", "pypi"])
@pytest.mark.parametrize("name", BAD_NAMES)
async def test_an_invalid_name_is_refused_before_anything_runs(
    tmp_path: Path, registry: Literal["npm", "pypi"], name: str
) -> None:
    with pytest.raises(PackageUnavailable, match="is not the name of a package; write NAME"):
        await ensure(Package(registry=registry, name=name), at(tmp_path / "root"), RecordedProgress())
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["tool=1", "tool==", "tool==-1", "tool>=1", "tool[", "tool[]", "tool[a", "x.whl"])
async def test_a_pypi_version_is_exact_or_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PackageUnavailable, match="NAME==VERSION"):
        await ensure(pypi(name), at(tmp_path), RecordedProgress())


async def test_another_registry_is_refused(tmp_path: Path) -> None:
    other: Any = msgspec.defstruct("Other", [("registry", str), ("name", str)])("cargo", "x")
    with pytest.raises(PackageUnavailable, match="use npm or pypi"):
        await ensure(other, at(tmp_path), RecordedProgress())


async def test_a_root_that_cannot_be_written_is_named(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackageUnavailable, match=r"cannot be used.*correct its rights"):
        await ensure(pypi("tool"), at(tmp_path / "file"), RecordedProgress(), environment=wheel_folder.env)


def test_no_two_packages_share_a_folder() -> None:
    names = ["a", "a==1", "a[1]", "a-1", "a[b,c]", "a[b]", "a-b"]
    folders = [read_reference("pypi", name).folder for name in names]
    folders += [read_reference("npm", name).folder + "/npm" for name in ["a", "a@1", "@a/1", "@a/b", "@a/b@1", "a-b"]]
    assert len(set(folders)) == len(folders)
    assert read_reference("pypi", "A_b[D,c]").folder == read_reference("pypi", "a.B[c,d]").folder


@needs_node
@pytest.mark.parametrize(
    ("name", "bin"),
    [
        ("tool", "main.js"),
        ("@scope/tool", "./main.js"),
        ("tool", {"else": "other.js", "tool": "main.js"}),
        ("@scope/tool", {"mcp-tool": "main.js"}),
        ("tool", {"a": "main.js", "b": "./main.js"}),
    ],
)
async def test_an_npm_package_is_installed_once_and_runs(
    registry: NpmRegistry, tmp_path: Path, name: str, bin: object
) -> None:
    registry.put(name, bin=bin)
    said = RecordedProgress()
    root = tmp_path / "a root"
    command = await ensure(npm(name), at(root), said, environment=registry.env)
    assert output(command, "hello") == f"{name} 1.0.0 hello"
    assert Path(command[1]).name == "main.js"
    assert f"installed {name} 1.0.0" in said
    registry.packages.clear()
    assert await ensure(npm(name), at(root), RecordedProgress(), environment=registry.env) == command


@needs_node
async def test_an_npm_version_is_pinned(registry: NpmRegistry, tmp_path: Path) -> None:
    registry.put("@scope/tool", "1.0.0", bin="main.js")
    registry.put("@scope/tool", "2.0.0", bin="main.js")
    old = await ensure(npm("@scope/tool@1.0.0"), at(tmp_path), RecordedProgress(), environment=registry.env)
    new = await ensure(npm("@scope/tool"), at(tmp_path), RecordedProgress(), environment=registry.env)
    assert (output(old), output(new)) == ("@scope/tool 1.0.0", "@scope/tool 2.0.0")


@needs_node
@pytest.mark.parametrize(
    ("bin", "message"),
    [
        (None, "brings no program"),
        ({}, "brings no program"),
        (7, "brings no program"),
        ("missing.js", "brings no program"),
        ("../../../../outside.js", "brings no program"),
        ("/etc/passwd", "brings no program"),
        ({"a": "main.js", "b": "other.js"}, r"several programs \(a, b\)"),
    ],
)
async def test_an_npm_package_without_one_clear_program_is_refused(
    registry: NpmRegistry, tmp_path: Path, bin: object, message: str
) -> None:
    (tmp_path / "outside.js").write_text("")
    registry.put("tool", **({} if bin is None else {"bin": bin}))
    with pytest.raises(PackageUnavailable, match=message):
        await ensure(npm("tool"), at(tmp_path), RecordedProgress(), environment=registry.env)


@needs_node
async def test_scripts_of_an_npm_package_do_not_run_when_it_is_installed(registry: NpmRegistry, tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    registry.put("tool", bin="main.js", scripts={"postinstall": f"touch '{proof}'"})
    await ensure(npm("tool"), at(tmp_path), RecordedProgress(), environment=registry.env)
    assert not proof.exists()


@needs_node
async def test_an_unknown_npm_package_says_why(registry: NpmRegistry, tmp_path: Path) -> None:
    with pytest.raises(PackageUnavailable, match=r"exited with code 1; .*404") as caught:
        await ensure(npm("no-such-tool"), at(tmp_path), RecordedProgress(), environment=registry.env)
    assert len(caught.value.output) <= packages.OUTPUT_LINES


async def test_without_node_the_answer_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(PackageUnavailable, match=r"npm is not on the PATH.*install Node\.js"):
        await ensure(npm("tool"), at(tmp_path), RecordedProgress(), environment={"PATH": str(tmp_path)})


async def test_the_installer_has_the_settings_of_the_registry_and_nothing_of_the_nodes_own(tmp_path: Path) -> None:
    for name in ("npm", "node"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n/usr/bin/env > '{tmp_path}/seen'\nexit 9\n")
        program.chmod(0o755)
    env = {"PATH": str(tmp_path), "npm_config_registry": "r", "INTERLOCK_TOKEN": "x", "PYTHONPATH": "y"}
    with pytest.raises(PackageUnavailable, match="exited with code 9"):
        await ensure(npm("tool"), at(tmp_path / "root"), RecordedProgress(), environment=env)
    seen = (tmp_path / "seen").read_text()
    assert "npm_config_registry=r" in seen
    assert "INTERLOCK_TOKEN" not in seen
    assert "PYTHONPATH" not in seen


def reachable(command: list[str]) -> str | None:
    """Asked without any code of ours, so that a fault of ours is no reason to skip."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no answer"])[-1]


async def test_a_package_from_the_real_pypi_runs(tmp_path: Path) -> None:
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "probe"), "cowsay==6.1"]
    if (why := reachable(probe)) is not None:
        pytest.skip(f"PyPI CANNOT BE REACHED, the real installation is not shown: {why}")
    command = await ensure(pypi("cowsay==6.1"), at(tmp_path), RecordedProgress())
    assert "moo" in output(command, "-t", "moo")


@needs_node
async def test_a_package_from_the_real_npm_runs(tmp_path: Path) -> None:
    if (why := reachable(["npm", "view", "semver@7.7.2", "version"])) is not None:
        pytest.skip(f"npm CANNOT BE REACHED, the real installation is not shown: {why}")
    command = await ensure(npm("semver@7.7.2"), at(tmp_path), RecordedProgress())
    assert output(command, "1.2.3", "--increment", "major") == "2.0.0"


async def test_the_output_of_an_installer_is_safe_to_print(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    for name, body in (("node", ""), ("npm", "printf '\\033[31mred error //user:pw@host\\n'; exit 1")):
        (fake / name).write_text(f"#!/bin/sh\n{body}\n")
        (fake / name).chmod(0o755)
    said = RecordedProgress()
    env = wheel_folder.env | {"PATH": f"{fake}:{os.environ['PATH']}"}
    with pytest.raises(PackageUnavailable) as caught:
        await ensure(npm("tool"), at(tmp_path / "root"), said, environment=env)
    assert said == ["asking npm for tool"]
    assert caught.value.output == ("\\x1b[31mred error //***@host",)
    assert "\x1b" not in str(caught.value)
    assert "pw" not in str(caught.value)
