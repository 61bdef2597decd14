"""Does Interlock install as a package, as people install programs, and run from there with everything it needs?"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.node_process import wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uv and pipx, in an environment of their own."""
    folder = tmp_path_factory.mktemp("installers")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "uv", "pipx"], check=True, timeout=300)
    return folder / "bin"


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "src/interlock"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == wanted
    assert {Path(name).suffix for name in held} >= {".py", ".css", ".js", ".toml", ".md"}


def by_pipx(installers: Path, wheel: Path, folder: Path) -> list[str]:
    env = {**os.environ, "PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "bin")}
    subprocess.run([installers / "pipx", "install", str(wheel)], env=env, check=True, timeout=300, capture_output=True)
    return [str(folder / "bin" / "interlock")]


def by_uvx(installers: Path, wheel: Path, folder: Path) -> list[str]:
    return [str(installers / "uvx"), "--from", str(wheel), "interlock"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("install", [by_pipx, by_uvx])
def test_an_installed_program_serves_a_call(
    install: Callable[[Path, Path, Path], list[str]], installers: Path, wheel: Path, tmp_path: Path
) -> None:
    interlock = install(installers, wheel, tmp_path)
    own = ("INTERLOCK_", "PYTHON", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"INTERLOCK_DATA": str(tmp_path / "data"), "HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "uv")}
    env |= {"INTERLOCK_NODE__LISTEN": "127.0.0.1:0", "INTERLOCK_NODE__OPERATOR_LISTEN": "127.0.0.1:0"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [*interlock, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version").startswith("interlock 0.")
    assert "egress" in run("explain", "egress_denied")
    shutil.copy(ROOT / "examples" / "tree" / "greenhouse.py", tmp_path)
    (tmp_path / "interlock.toml").write_text('[servers.greenhouse]\ncommand = ["python3", "greenhouse.py"]\n')
    with (tmp_path / "serve.log").open("wb") as log:
        node = subprocess.Popen([*interlock, "serve"], cwd=tmp_path, env=env, stdout=log, stderr=log)
        try:
            wait_for(lambda: (tmp_path / "data" / "run" / "admin.sock").exists() or node.poll() is not None, 60)
            wait_for(lambda: json.loads(run("status", "--json"))["catalog"]["tools"] == 4, 60)
            said = run("tools", "call", "greenhouse.set_window", "--arg", "percent=30")
        finally:
            node.terminate()
            node.wait(30)
    assert said.startswith("The window is open 30 %.")
