"""Run in the process of a node before it starts: its Bluetooth is bumble, and its SPI a socket of the test."""

import os
import socket
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.devices.bluetooth import HciClient

from interlock.devices.transports import ble, spi


class SocketSpi:
    """`xfer2` of which the other end is in the test: two bytes of length, the bytes, and as many back."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def xfer2(self, data: list[int]) -> list[int]:
        self._socket.sendall(len(data).to_bytes(2, "big") + bytes(data))
        answer = b""
        while len(answer) < len(data):
            more = self._socket.recv(len(data) - len(answer))
            if not more:
                raise OSError("the device is gone")
            answer += more
        return list(answer)

    def close(self) -> None:
        self._socket.close()


ble.make_client = partial(HciClient, int(os.environ["TESTS_HCI"]))
spi.open_device = lambda bus, chip, speed_hz: SocketSpi(int(os.environ["TESTS_SPI"]))
