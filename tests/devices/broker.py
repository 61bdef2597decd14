"""A real MQTT broker for tests: mosquitto on a port of loopback, which can be killed and started again."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.reserved_ports import reserve_port

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
STARTED_S = 10.0


class Broker:
    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        if MOSQUITTO is None:
            pytest.skip("mosquitto is not installed: no test of MQTT is run (apt install mosquitto)")
        self.port = reserve_port()
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            f"listener {self.port} {host}\nallow_anonymous true\nset_tcp_nodelay true\npersistence false\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", self._config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + STARTED_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < until, "mosquitto does not listen"
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
