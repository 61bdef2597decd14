"""Does the README work as it is written? Its commands are run in a checkout, and print what it says they print.

The registries of npm and PyPI are out of reach here: what is shown of the two servers that come from there is drawn
from a status in which they are ready.
"""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.support.node_process import wait_for

from interlock.node.cli.init import FIRST_APPROVER
from interlock.node.cli.tree import tree_lines
from interlock.operator.api import Status

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNREACHABLE = {
    "PIP_NO_INDEX": "1",
    "npm_config_registry": "http://127.0.0.1:9",
    "npm_config_fetch_retries": "0",
}
SETUP_CODE = re.compile(r"first approver: (\S+)")
NOT_RUN = ("npx ", "./interlock status --watch")  # a download, and what does not end


def blocks(heading: str) -> list[str]:
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return BLOCK.findall(section)


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Each command with the lines that are printed below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


class Checkout:
    """What a person has who cloned the repository, with an environment that is made already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "interlock"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in (ROOT / each for each in listed.decode().split("\0") if each):
            if name.is_file() and not name.is_relative_to(ROOT / "tests"):
                target = self.folder / name.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, target)  # with its mode: ./interlock is a program
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "clone")
        programs = self.folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "interlock").write_text(f'#!/bin/sh\nexec {sys.executable} -m interlock "$@"\n')
        (programs / "interlock").chmod(0o755)
        (self.folder / ".venv" / ".product").touch()
        own = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
        self.env = {
            **own,
            **UNREACHABLE,
            "HOME": str(folder / "home"),
            "XDG_CONFIG_HOME": str(folder / "home" / ".config"),
            "INTERLOCK_PASSPHRASE": "a passphrase of a newcomer",
            "INTERLOCK_NODE__LISTEN": "127.0.0.1:0",
            "INTERLOCK_NODE__OPERATOR_LISTEN": "127.0.0.1:0",
        }
        (folder / "home").mkdir()
        self.printed = ""  # on the terminal of `make run`

    def read_terminal(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):  # it ends with the last process that writes to it
            while data := os.read(descriptor, 65536):
                self.printed += data.decode("utf-8", "replace")

    @property
    def setup_code(self) -> str:
        found = SETUP_CODE.search(self.printed)
        assert found is not None, self.printed
        return found[1]

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.folder, capture_output=True, text=True, check=True).stdout

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """With the node of `make run` in it."""
    made = Checkout(tmp_path_factory.mktemp("readme"))
    ours, theirs = pty.openpty()  # the setup code is for a terminal alone
    process = subprocess.Popen(
        ["make", "run"], cwd=made.folder, env=made.env, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    reading = threading.Thread(target=made.read_terminal, args=(ours,))
    reading.start()
    try:
        wait_for(lambda: SETUP_CODE.search(made.printed) or process.poll() is not None, 30)
        yield made
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
        reading.join()
        os.close(ours)


def test_make_run_says_who_can_become_the_first_approver(checkout: Checkout) -> None:
    wait_for(lambda: FIRST_APPROVER in " ".join(checkout.printed.split()), 10)


def test_every_command_prints_what_the_readme_says_and_changes_no_tracked_file(checkout: Checkout) -> None:
    walk = [commands(block) for block in (*blocks("Two commands"), *blocks("Approve what cannot be undone"))]
    steps = [step for one in walk if one for step in one]
    rest = [step for step in steps if not step[0].startswith(NOT_RUN)]
    wait_for(lambda: "greenhouse" in checkout.shell("./interlock tools list").stdout, 30)
    ran = []
    for command, printed in rest:
        if command.startswith("./interlock approve ID"):
            kind = "enrolment" if "--code" in command else "call"
            id = wait_for(lambda kind=kind: _maybe_id(checkout.shell("./interlock approvals --json").stdout, kind))
            command = command.replace("ID", f"{id} --yes", 1).replace("CODE", checkout.setup_code)
        done = checkout.shell(command)
        said = (done.stdout + done.stderr).splitlines()
        assert done.returncode == (3 if printed and printed[0].startswith("Not executed yet") else 0), said
        for line, expected in zip(said, printed, strict=False):
            assert line.startswith(expected.removesuffix("...").rstrip()), (command, said)
            assert expected.endswith("...") or line == expected
        assert len(said) >= len(printed)
        ran.append(command.split()[1])
    assert {"tools", "init", "approvals", "approve", "audit"} <= set(ran)
    assert checkout.git("status", "--porcelain") == ""


def test_commands_printed_by_make_run_can_be_pasted_in_the_same_folder(checkout: Checkout) -> None:
    printed = re.sub(r"\x1b\[[0-9;]*m", "", checkout.printed)
    named = set(re.findall(r"(\S*interlock (?!http)[a-z]+(?: --?[a-z]\S*)*)", printed))
    assert named and all(command.startswith("./interlock ") for command in named), named
    assert {"./interlock open", "./interlock status --watch", "./interlock init"} <= named
    done = checkout.shell("BROWSER=/bin/false ./interlock open --json")
    assert done.returncode == 0, done.stderr
    other = checkout.shell("./interlock serve")
    assert "./interlock status shows it" in other.stderr, other.stderr


def _maybe_id(printed: str, kind: str) -> str | None:
    answer = json.loads(printed)
    listed = answer["approvals"] if isinstance(answer, dict) else answer
    return next((str(one["id"]) for one in listed if one["kind"] == kind), None)


def test_the_tree_is_drawn_as_the_readme_shows_it(checkout: Checkout) -> None:
    config = "INTERLOCK_CONFIG=.run/tree/interlock.toml .venv/bin/interlock"
    raw = json.loads(wait_for(lambda: checkout.shell(f"{config} status --json").stdout, 30))
    raw["node"] |= {"mcp_url": "http://127.0.0.1:7411/mcp", "uptime_s": 24.0}
    greenhouse = {"state": "ready", "reason": None, "tools": 4, "era": "legacy", "protocol_version": "2025-11-25"}
    shown = {
        "time": {**greenhouse, "tools": 2, "era": "modern", "protocol_version": "2026-07-28"},
        "files": {**greenhouse, "tools": 14},
        "greenhouse": greenhouse,
        "vent": {**greenhouse, "tools": 2, "era": None, "protocol_version": None},
    }
    for link in raw["links"]:
        link |= {**shown[link["segment"]], "latency_ms": None, "withheld": [], "denied": []}
    raw["catalog"] |= {"tools": 22, "prompts": 0, "resources": 0}
    raw["calls"] |= dict.fromkeys(raw["calls"], 0)
    raw["configuration"] |= {"problem": None, "restart_for": []}
    raw["gate"]["without_approver"], raw["approvals"]["waiting"] = 4, 0
    status = msgspec.convert(raw, Status)
    drawn = [line.plain.rstrip() for line in tree_lines(status, width=110, now=datetime.now(UTC))]
    drawn = [line.replace(" interlock ", " ./interlock ") for line in drawn]  # as the script is typed
    (block,) = (each for each in blocks("Two commands") if each.startswith("default"))
    assert drawn == block.splitlines()


def test_every_command_of_the_readme_exists(checkout: Checkout) -> None:
    for words in sorted(set(re.findall(r"`interlock ((?:[a-z]+ ?)+)", README))):
        verb = words.split()[0]
        assert checkout.shell(f".venv/bin/interlock {verb} --help").returncode == 0, words
