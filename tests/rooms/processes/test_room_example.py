"""The example room, walked as its own words say: one command for the node and the agents, one for the person."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.node_process import wait_for

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "rooms"
PATIENCE_S = 30.0


class Terminal:
    """A program at a terminal of 80 columns, and what it has drawn."""

    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.drawn = ""

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.drawn):
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{pattern!r} was not drawn: {self.drawn[-2000:]!r}"
            self.drawn += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(self._ours, 65536).decode(errors="replace"))

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextmanager
def garden(config: Path) -> Iterator[None]:
    environment = {**os.environ, "GARDEN_LOOK_S": "1.2"}
    with (config.parent / "out.txt").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(config.parent / "garden.py"), "--config", str(config)],
            stdout=out,
            stderr=out,
            env=environment,
        )
    try:
        wait_for(lambda: b"come in with" in (config.parent / "out.txt").read_bytes(), PATIENCE_S)
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.req("X-9.1-1", "X-9.3-1")
def test_two_agents_and_a_person_with_two_commands(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "rooms")
    config = tmp_path / "rooms" / "interlock.toml"
    written = config.read_text()
    assert "python examples/rooms/garden.py" in written and "interlock rooms join garden" in written
    written = re.sub(r'"127\.0\.0\.1:\d+"', '"127.0.0.1:0"', written)
    config.write_text(written.replace('data = "../../.run/rooms"', f'data = "{tmp_path / "data"}"'))
    with garden(config):
        command = [sys.executable, "-m", "interlock", "rooms", "join", "garden", "--as", "ann", "--config", str(config)]
        person = Terminal(command)
        try:
            person.until(r"planner → sensors water")
            person.until(r'"bed": 3')
            time.sleep(0.8)  # a person reads before pressing the key, and an earlier press does not count
            person.press(b"\x19")  # ctrl+y
            person.until(r"thank you: bed 3 is at")
            person.press(b"\x11")  # ctrl+q
            assert person.process.wait(20) == 0
        finally:
            person.close()
