"""A running node in front of given servers, on loopback, with data of its own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conformance.toolbox import ROOT

START_SECONDS = 60.0
STOP_SECONDS = 10.0


class NodeDown(Exception):
    """The node did not become ready; the message is what it wrote."""


@contextlib.contextmanager
def node(servers: Mapping[str, str | list[str]]) -> Iterator[str]:
    """Run Interlock in front of these servers, each a URL or a command; gives the base URL of the public door."""
    listen, operator = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "workspace" / "interlock.toml"
        config.parent.mkdir()
        config.write_text(configuration(listen, operator, servers))
        log = Path(folder) / "node.log"
        command = [sys.executable, "-m", "interlock", "serve", "--config", str(config), "--data", f"{folder}/data"]
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        with log.open("wb") as written:
            process = subprocess.Popen(
                command, stdout=written, stderr=written, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True
            )
        try:
            wait_until_ready(f"http://127.0.0.1:{listen}/readyz", process, log)
            yield f"http://127.0.0.1:{listen}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def configuration(listen: int, operator: int, servers: Mapping[str, str | list[str]]) -> str:
    lines = ["[node]", f'listen = "127.0.0.1:{listen}"', f'operator_listen = "127.0.0.1:{operator}"']
    for segment, reach in servers.items():
        lines += ["", f"[servers.{segment}]"]
        if isinstance(reach, str):
            lines.append(f"url = {json.dumps(reach)}")
        else:
            lines += [f"command = {json.dumps(reach[0])}", f"args = {json.dumps(reach[1:])}"]
    return "\n".join(lines) + "\n"


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise NodeDown(log.read_text(errors="replace")[-1500:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
