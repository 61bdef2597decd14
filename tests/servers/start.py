"""Starting the fixture servers: the command line of one, or a running HTTP one and its URL."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
START_SECONDS = 15.0


def raw(behaviour: str, *options: str) -> list[str]:
    """The command line of a raw server: a stdio one unless the options say otherwise. See `raw.py --help`."""
    return [sys.executable, str(HERE / "raw.py"), behaviour, *options]


def everything(*options: str) -> list[str]:
    """The command line of the conformance fixture. See `everything.py --help`."""
    return [sys.executable, str(HERE / "everything.py"), *options]


@contextlib.contextmanager
def serving(command: list[str], port: int = 0) -> Iterator[str]:
    """Run an HTTP fixture server; gives the URL it printed. `port` fixes the port, to come back where it was."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([*command, "--http", str(port)], stdout=subprocess.PIPE, env=environment)
    try:
        yield _first_line(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    read, deadline = process.stdout.fileno(), time.monotonic() + START_SECONDS
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(read, 1) if ready else b""
        if not data:
            raise RuntimeError(f"the fixture server did not start (exit code {process.poll()})")
        line += data
    return line.decode().strip()
