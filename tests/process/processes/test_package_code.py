"""Packages that want to run code while they are installed, or bring what no hash covers, with the real installers."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from tests.process.package_sources import NpmRegistry, RecordedProgress, WheelFolder, needs_node, registry, wheel_folder

from interlock.config.plan import Package
from interlock.process.packages.installer import Installer, Pins, ensure
from interlock.process.packages.package_store import PackageFolders
from interlock.process.packages.programs import PackageUnavailable, SourceBuildRefused

__all__ = ["registry", "wheel_folder"]  # fixtures


def at(root: Path) -> PackageFolders:
    return PackageFolders(own=root, store=root / "store")


def make_repository(folder: Path, files: dict[str, str]) -> str:
    """Make a git repository, and return its address as npm knows it."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    identity = {f"GIT_{role}_{part}": "x" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        environment = os.environ | identity | {"GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *command], cwd=folder, env=environment, check=True, timeout=30)
    return f"git+file://{folder}"


@pytest.fixture
def hostile_repository(tmp_path: Path) -> tuple[str, Path]:
    """A repository that names a program in place of git, for npm's own preparation of it, and the trace that this
    program leaves.
    """
    trace = tmp_path / "it-ran"
    inner = make_repository(tmp_path / "inner", {"package.json": '{"name": "inner", "version": "1.0.0"}'})
    manifest = {"name": "evil", "version": "1.0.0", "scripts": {"build": "true"}, "dependencies": {"inner": inner}}
    files = {
        "package.json": json.dumps(manifest),
        ".npmrc": "git=./not-git.sh\n",
        "not-git.sh": f'#!/bin/sh\ntouch {trace}\nexec git "$@"\n',
    }
    return make_repository(tmp_path / "evil", files), trace


@needs_node
@pytest.mark.req("AIP-30.install-6")
async def test_a_package_in_a_repository_runs_nothing_while_npm_installs(
    registry: NpmRegistry, hostile_repository: tuple[str, Path], tmp_path: Path
) -> None:
    address, trace = hostile_repository
    registry.put("tool", bin={"tool": "main.js"}, dependencies={"evil": address})
    package = Package(registry="npm", name="tool")
    with pytest.raises(PackageUnavailable, match="the installer exited"):
        await ensure(package, at(tmp_path / "root"), RecordedProgress(), environment=registry.env)
    assert not trace.exists()
    # The operator may allow it.
    options = {"environment": registry.env, "source_builds": True}
    await ensure(package, at(tmp_path / "root"), RecordedProgress(), **options)  # type: ignore[arg-type]
    assert trace.exists()


@needs_node
@pytest.mark.req("AIP-30.install-6")
async def test_recorded_pins_without_a_hash_are_not_installed(
    registry: NpmRegistry, hostile_repository: tuple[str, Path], tmp_path: Path
) -> None:
    address, trace = hostile_repository
    registry.put("tool", bin={"tool": "main.js"}, dependencies={"evil": address})
    root = tmp_path / "root"

    def installer(*, source_builds: bool) -> Installer:
        store = root / "store"
        return Installer(root, store, registry.env, RecordedProgress(), None, source_builds=source_builds)

    pins: Pins = await installer(source_builds=True).find("npm", "tool")
    with pytest.raises(PackageUnavailable, match="evil, which comes without a hash"):
        await installer(source_builds=False).put(pins)
    assert not trace.exists()


@needs_node
@pytest.mark.req("AIP-30.install-6")
async def test_a_folder_of_this_machine_is_no_part_of_an_npm_package(registry: NpmRegistry, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "package.json").write_text('{"name": "own", "version": "1.0.0"}')
    registry.put("tool", bin={"tool": "main.js"}, dependencies={"own": f"file:{own}"})
    with pytest.raises(PackageUnavailable, match="own, which comes without a hash"):
        await ensure(
            Package(registry="npm", name="tool"), at(tmp_path / "root"), RecordedProgress(), environment=registry.env
        )


@pytest.mark.req("AIP-30.install-6")
async def test_a_source_archive_named_by_address_is_not_built(wheel_folder: WheelFolder, tmp_path: Path) -> None:
    trace = tmp_path / "it-ran"
    wheel_folder.put_source("evil", f"open({str(trace)!r}, 'w')")
    archive = (wheel_folder.folder / "evil-1.0.tar.gz").rename(tmp_path / "evil-1.0.tar.gz")
    wheel_folder.put("tool", scripts=("tool",))
    (wheel,) = wheel_folder.folder.iterdir()
    with zipfile.ZipFile(wheel) as before:
        files = {name: before.read(name) for name in before.namelist()}
    files["tool-1.0.dist-info/METADATA"] += f"Requires-Dist: evil @ {archive.as_uri()}\n".encode()
    with zipfile.ZipFile(wheel, "w") as after:
        for name, data in files.items():
            after.writestr(name, data)
    with pytest.raises(SourceBuildRefused, match=r"comes from no registry.*set drivers\.allow_unverified_install"):
        await ensure(
            Package(registry="pypi", name="tool"),
            at(tmp_path / "root"),
            RecordedProgress(),
            environment=wheel_folder.env,
        )
    assert not trace.exists()
