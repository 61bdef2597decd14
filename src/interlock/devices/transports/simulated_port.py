"""Simulated devices with a line: inside this process, or at a separate port (a pty with a name, or a TCP socket).

`SimulatedLine` plays a device whose port is "simulated" for the node itself. `SimulatedPort` is `interlock device
simulate`: a port like that of a real board, which a node or another program opens. It can add faults: noise changes
bits of single bytes and loss drops whole messages, both in both directions and at random. A port at which another
simulated device answers is not taken over.
"""

import asyncio
import contextlib
import errno
import os
import random
import tty
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from interlock.devices.protocol.description import DeviceDescription, Event
from interlock.devices.protocol.framing import framing_of
from interlock.devices.protocol.simulation import SimulatedDevice


class SimulatedLine(asyncio.Transport):
    """A line inside this process with a simulated device at its end. It needs neither hardware nor libraries."""

    def __init__(self, description: DeviceDescription, user: asyncio.Protocol) -> None:
        """Create a line with a simulated device. Raise ValueError if the device cannot be simulated."""
        super().__init__()
        self._device = SimulatedDevice(description)
        self._framing = framing_of(description.link, description.profile)
        self._user = user
        self._is_closed = False
        self._tell(self._device.boot())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closed:
            for message in self._framing.feed_untrusted(bytes(data), asyncio.get_running_loop().time()):
                self._tell(self._device.answer(message))

    def _tell(self, messages: list[bytes]) -> None:
        for message in messages:
            asyncio.get_running_loop().call_soon(self._deliver, self._framing.encode(message))

    def _deliver(self, data: bytes) -> None:
        if not self._is_closed:
            self._user.data_received(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Do nothing, because a simulated device sends only answers."""

    def resume_reading(self) -> None:
        """Do nothing, because reading is never paused."""

    def abort(self) -> None:
        self._is_closed = True


READ_BYTES: Final = 4096
_SOCKET: Final = "socket://"
_PTYS: Final = "/dev/pts/"

LineFault = Literal["lost", "spoiled"]
OnMessage = Callable[[bool, bytes, LineFault | None], None]  # whether the device sent it, the message, and its fault


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The probabilities of the faults that a simulated line adds."""

    noise: float = 0.0  # the chance of each byte
    loss: float = 0.0  # of each message
    seed: int | None = None


@dataclass(eq=False)
class SimulatedPort:
    """A pty or TCP socket at which a simulated device answers, for another program to open. The constructor raises
    ValueError if the device cannot be simulated.
    """

    description: DeviceDescription
    _faults: Faults
    on_message: OnMessage

    def __post_init__(self) -> None:
        self.device = SimulatedDevice(self.description)
        self._chance = random.Random(self._faults.seed)  # noqa: S311  (no secret)
        self._descriptors: tuple[int, ...] = ()
        self._name: tuple[Path, str] | None = None  # and what it leads to
        self._lines: set[_DeviceEnd] = set()
        self._server: asyncio.Server | None = None

    async def open(self, port: str) -> str:
        """Open the port and return its address. Raise OSError if that fails, or ValueError if the port's name is
        invalid.
        """
        if port.startswith(_SOCKET):
            place = urlsplit(port)
            self._server = await asyncio.start_server(self._serve, place.hostname, place.port)
            return port
        name = Path(port)
        _clear(name)
        master, slave = os.openpty()
        self._descriptors = (master, slave)
        tty.setraw(slave)
        os.set_blocking(master, False)
        path = os.ttyname(slave)
        name.symlink_to(path)
        self._name = (name, path)

        def write(data: bytes) -> None:
            with contextlib.suppress(BlockingIOError):  # nothing reads the pty: a line loses what is not read
                os.write(master, data)

        line = self._add_line(write)

        def read() -> None:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                line.receive(os.read(master, READ_BYTES))

        asyncio.get_running_loop().add_reader(master, read)
        return path

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._descriptors:
            asyncio.get_running_loop().remove_reader(self._descriptors[0])
        for descriptor in self._descriptors:
            os.close(descriptor)
        if self._name is not None:
            name, path = self._name
            with contextlib.suppress(OSError):
                if str(name.readlink()) == path:
                    name.unlink()

    def say(self, event: Event) -> None:
        """Send an event on every open connection. Raise DeviceFault if the event cannot be encoded."""
        message = self.device.event(event)
        for line in self._lines:
            line.say([message])

    def _add_line(self, write: Callable[[bytes], None]) -> "_DeviceEnd":
        line = _DeviceEnd(self, write)
        self._lines.add(line)
        line.say(self.device.boot())
        return line

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = self._add_line(writer.write)
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(READ_BYTES):
                    line.receive(data)
        finally:
            self._lines.discard(line)
            writer.close()

    def add_noise(self, data: bytes) -> bytes:
        """Return the bytes with random bit errors added."""
        chance, noise = self._chance, self._faults.noise
        if not noise:
            return data
        return bytes(byte ^ (1 << chance.randrange(8)) if chance.random() < noise else byte for byte in data)

    def is_lost(self) -> bool:
        return self._chance.random() < self._faults.loss


def _clear(name: Path) -> None:
    """Remove the symbolic link that an earlier simulated device left behind. Raise OSError if the link has another
    target, or if a simulated device still answers there.
    """
    if not name.is_symlink():
        return
    path = str(name.readlink())
    if not path.startswith(_PTYS):
        raise FileExistsError(errno.EEXIST, f"it is a link to {path}, which no simulated device made")
    if Path(path).exists():
        why = f"another simulated device answers there ({path}); end it, or remove {name} if there is none"
        raise FileExistsError(errno.EEXIST, why)
    name.unlink()


class _DeviceEnd:
    """A connection to a simulated device. It decodes the received bytes, sends the answers of the device, and adds
    the configured faults.
    """

    def __init__(self, port: SimulatedPort, write: Callable[[bytes], None]) -> None:
        self._port = port
        self._write = write
        self._framing = framing_of(port.description.link, port.description.profile)

    def receive(self, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        received = self._port.add_noise(data)
        if received != data:
            self._port.on_message(False, received, "spoiled")
        for message in self._framing.feed_untrusted(received, now):
            is_lost = self._port.is_lost()
            self._port.on_message(False, message, "lost" if is_lost else None)
            if not is_lost:
                self.say(self._port.device.answer(message))

    def say(self, messages: list[bytes]) -> None:
        for message in messages:
            data = self._framing.encode(message)
            sent = self._port.add_noise(data)
            is_lost = self._port.is_lost()
            self._port.on_message(True, message, "lost" if is_lost else "spoiled" if sent != data else None)
            if not is_lost:
                self._write(sent)
