"""A simulated device at a port of its own: a pty with a name, or a TCP socket, for gateways in other processes.

Noise changes bits of single bytes, loss drops whole messages, both in both directions and by chance.
"""

import asyncio
import contextlib
import os
import random
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.protocol.devices.description import DeviceDescription
from interlock.protocol.devices.simulation import SimulatedDevice
from interlock.protocol.devices.wire_formats import framing_of

READ_BYTES: Final = 4096
_SOCKET: Final = "socket://"

Heard = Callable[[bool, bytes], None]  # whether the device said it, and the message


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    noise: float = 0.0  # the chance of each byte
    loss: float = 0.0  # of each message
    seed: int | None = None


class SimulatedPort:
    def __init__(self, description: DeviceDescription, faults: Faults, heard: Heard) -> None:
        """Raises ValueError for a device that cannot be simulated."""
        self._description = description
        self._faults = faults
        self._heard = heard
        self._chance = random.Random(faults.seed)  # noqa: S311  (no secret)
        self.device = SimulatedDevice(description)
        self._descriptors: tuple[int, ...] = ()
        self._name: Path | None = None
        self._server: asyncio.Server | None = None

    async def open(self, port: str) -> str:
        """Where it can be reached. Raises OSError, ValueError."""
        if port.startswith(_SOCKET):
            place = urlsplit(port)
            self._server = await asyncio.start_server(self._serve, place.hostname, place.port)
            return port
        return self._open_pty(Path(port))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._descriptors:
            asyncio.get_running_loop().remove_reader(self._descriptors[0])
        for descriptor in self._descriptors:
            os.close(descriptor)
        if self._name is not None:
            with contextlib.suppress(OSError):
                self._name.unlink()

    def _open_pty(self, name: Path) -> str:
        if name.is_symlink():
            name.unlink()  # of one that was simulated before
        master, slave = os.openpty()
        self._descriptors = (master, slave)
        tty.setraw(slave)
        os.set_blocking(master, False)
        path = os.ttyname(slave)
        name.symlink_to(path)
        self._name = name
        line = _Line(self, lambda data: self._write(master, data))
        asyncio.get_running_loop().add_reader(master, lambda: line.receive(self._read(master)))
        line.boot()
        return path

    def _read(self, master: int) -> bytes:
        try:
            return os.read(master, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""

    def _write(self, master: int, data: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # it is not read: a line forgets
            os.write(master, data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(self, writer.write)
        line.boot()
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                line.receive(data)
        writer.close()

    def spoiled(self, data: bytes) -> bytes:
        if not self._faults.noise:
            return data
        chance = self._chance
        noise = self._faults.noise
        return bytes(byte ^ (1 << chance.randrange(8)) if chance.random() < noise else byte for byte in data)

    def is_lost(self) -> bool:
        return self._chance.random() < self._faults.loss

    def tell(self, is_ours: bool, message: bytes) -> None:
        self._heard(is_ours, message)

    @property
    def description(self) -> DeviceDescription:
        return self._description


class _Line:
    """The device's end of one connection."""

    def __init__(self, port: SimulatedPort, write: Callable[[bytes], None]) -> None:
        self._port = port
        self._write = write
        self._framing = framing_of(port.description.link, port.description.profile)

    def boot(self) -> None:
        self._say(self._port.device.boot())

    def receive(self, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        for message in self._framing.feed_untrusted(self._port.spoiled(data), now):
            self._port.tell(False, message)
            if not self._port.is_lost():
                self._say(self._port.device.answer(message))

    def _say(self, messages: list[bytes]) -> None:
        for message in messages:
            self._port.tell(True, message)
            if not self._port.is_lost():
                self._write(self._port.spoiled(self._framing.encode(message)))
