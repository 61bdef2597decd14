"""Sandboxes in tests: whether this machine makes any, the hostile server, and what it can try to reach outside."""

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.node_process import RunningNode, Wire, wait_for

from interlock.process.sandbox.host_paths import SandboxFailed
from interlock.process.sandbox.mounts import bubblewrap

HOSTILE = Path(__file__).with_name("hostile.py")
GREETING = "from the host"


def _why_not() -> str | None:
    try:
        bubblewrap()
    except SandboxFailed as failed:
        return str(failed)
    return None


WHY_NOT = _why_not()
needs_sandbox = pytest.mark.skipif(WHY_NOT is not None, reason=f"NO SANDBOX: none of its promises is shown: {WHY_NOT}")


def hostile(*words: str) -> list[str]:
    return [sys.executable, str(HOSTILE), *words]


def attempt(node: RunningNode, segment: str, what: str, *arguments: Any) -> dict[str, Any]:
    """What the server in this segment says of it: {"done": ...} or {"failed": ...}."""
    with Wire(node) as wire:
        told = {"what": what, "with": list(arguments)}
        message = wire.modern("tools/call", {"name": f"{segment}.attempt", "arguments": told}).message
    return json.loads(message["result"]["content"][0]["text"]) if "result" in message else {"lost": message["error"]}


class OutsideHost:
    """A host that answers: what is reached when nothing holds a server back."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.heard: list[bytes] = []
        for serve in (self._serve_tcp, self._serve_udp):
            threading.Thread(target=serve, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.tcp.getsockname()[1])

    @property
    def udp_port(self) -> int:
        return int(self.udp.getsockname()[1])

    def _serve_tcp(self) -> None:
        """Says hello first, as HTTP when it is asked in HTTP."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.tcp.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(0.3)
                    asked = b""
                    with contextlib.suppress(TimeoutError):
                        asked = connection.recv(4096)
                    self.heard.append(asked)
                    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" if asked.startswith(b"GET") else b""
                    connection.sendall(head + GREETING.encode())

    def _serve_udp(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, peer = self.udp.recvfrom(512)
                if not data:
                    return
                self.heard.append(data)
                self.udp.sendto(data[:2] if data != b"ping" else GREETING.encode(), peer)

    def close(self) -> None:
        for each in (self.tcp, self.udp):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextlib.contextmanager
def outside_host() -> Iterator[OutsideHost]:
    made = OutsideHost()
    try:
        yield made
    finally:
        made.close()


def process_mark() -> str:
    return f"mark-{uuid.uuid4()}"


def find_marked_processes(mark: str) -> list[int]:
    """The processes that have it among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def wait_until_none(mark: str, seconds: float) -> None:
    wait_for(lambda: not find_marked_processes(mark), seconds)


def is_installed(program: str) -> bool:
    return shutil.which(program) is not None
