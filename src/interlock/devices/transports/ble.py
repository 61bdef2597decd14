"""BLE: messages behind their length, cut to what fits one write or notification of a GATT characteristic.

Devices are connected one after the other, because each is found by a scan. A write waits for the confirmation of the
device, so that messages queue here and an abandoned call can still be withdrawn.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from bleak import BleakClient
from bleak.exc import BleakError

from interlock.devices.protocol.framing import LengthFraming
from interlock.devices.transports.transport import SharedConnection, Transport, TransportFailed

SERVICE = "4d435041-5800-4b1e-9c52-7f0a6b1d3e20"
WRITE = "4d435041-5801-4b1e-9c52-7f0a6b1d3e20"  # gateway to device
NOTIFY = "4d435041-5802-4b1e-9c52-7f0a6b1d3e20"  # device to gateway
# The bytes of one write: the least MTU of ATT without the header. A larger MTU is not known to bleak before it is
# acquired, and differs by system.
WRITE_BYTES = 23 - 3
CONNECT_S = 20.0
FAILURES = (BleakError, OSError, EOFError)  # OSError: also no answer in time; EOFError: the bus of BlueZ went away
WRITE_S = 5.0  # for the answer to one write


class BleTransport(Transport):
    """A transport to one Bluetooth device, through the characteristics of a GATT connection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        link = self._link
        # As `framing_of` returns it, but of the type that says when it is lost.
        self._framing = LengthFraming(max_message=link.max_frame, gap_s=link.timeout_ms / 1000)
        self._discarded = self._framing.discarded
        self._address = link.address
        self._service, self._write, self._notify = link.service or SERVICE, link.write or WRITE, link.notify or NOTIFY
        self._radio: Radio | None = None
        self._client: BleakClient | None = None
        self._to_write: deque[bytes] = deque()
        self._has_work = asyncio.Event()  # something to write, or the end
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._address is None:
            raise TransportFailed("a device on BLE needs an address")
        self._framing.reset()
        self._to_write.clear()
        self._has_work.clear()
        self._is_open = True
        try:
            self._radio = await self._connections.acquire("ble", Radio)
            async with self._radio.connecting, asyncio.timeout(CONNECT_S):
                client = make_client(self._address, self._service, self._disconnected)
                await client.connect()
                self._client = client
                await client.start_notify(self._notify, self._receive_untrusted)
        except FAILURES as error:
            why = str(error) or "no answer"
            raise TransportFailed(f"the device {self._address} cannot be reached: {why}") from error
        self._writer = asyncio.create_task(self._write_all(client))

    def send(self, message: bytes) -> None:
        if self._is_open:
            self._to_write.append(self._framing.encode(message))
            self._has_work.set()

    def withdraw(self, message: bytes) -> None:
        data = self._framing.encode(message)
        self._to_write = deque(each for each in self._to_write if each != data)

    async def close(self) -> None:
        self._is_open = False
        writer, self._writer = self._writer, None
        if writer is not None:
            self._has_work.set()  # a write may swallow its cancellation
            writer.cancel()
            await asyncio.wait([writer])
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(*FAILURES):
                async with asyncio.timeout(WRITE_S):
                    await client.disconnect()
        radio, self._radio = self._radio, None
        if radio is not None:
            await self._connections.release(radio, "ble")

    async def _write_all(self, client: BleakClient) -> None:
        try:
            while self._is_open:
                if not self._to_write:
                    self._has_work.clear()
                    await self._has_work.wait()
                    continue
                data = self._to_write.popleft()
                for start in range(0, len(data), WRITE_BYTES):
                    chunk = data[start : start + WRITE_BYTES]
                    if not self._is_open:
                        return
                    self._owner.on_traffic(True, chunk)
                    async with asyncio.timeout(WRITE_S):
                        await client.write_gatt_char(self._write, chunk, response=True)
        except FAILURES as error:
            self.lose(f"the device {self._address} takes no writes: {str(error) or 'no answer'}")

    def _receive_untrusted(self, characteristic: Any, data: bytearray) -> None:
        if not self._is_open:
            return
        self._owner.on_traffic(False, bytes(data))
        for message in self._framing.feed_untrusted(bytes(data), asyncio.get_running_loop().time()):
            self._owner.on_message(message)
        if self._framing.is_lost:
            self.lose("the device announced a message above max_frame")

    def _disconnected(self, client: Any) -> None:
        self.lose(f"the device {self._address} disconnected")


class Radio(SharedConnection[BleTransport]):
    """The Bluetooth radio, which all devices of a node share. It connects the devices one after the other, because each
    connection begins with a scan.
    """

    def __init__(self) -> None:
        super().__init__()
        self.connecting = asyncio.Lock()

    async def open(self) -> None:
        """Do nothing: the Bluetooth system is always there."""

    async def close(self) -> None:
        """Do nothing: all devices have been disconnected already."""


def make_client(address: str, service: str, on_disconnected: Callable[[Any], None]) -> BleakClient:
    """Create the client for one Bluetooth device, through the Bluetooth system of this machine. Tests replace this
    function.
    """
    return BleakClient(address, on_disconnected, services=[service])
