"""BLE: messages behind their length, cut to what fits one write or notification of a GATT characteristic.

Devices are connected one after the other, because each is found by a scan. A write waits for the confirmation of the
device, so that messages queue here and an abandoned call can still be withdrawn.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from bleak import BleakClient
from bleak.exc import BleakError

from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.framing import LengthFraming, framing_of
from interlock.devices.transports.transport import SharedConnections, Transport, TransportFailed, TransportOwner

SERVICE = "4d435041-5800-4b1e-9c52-7f0a6b1d3e20"
WRITE = "4d435041-5801-4b1e-9c52-7f0a6b1d3e20"  # gateway to device
NOTIFY = "4d435041-5802-4b1e-9c52-7f0a6b1d3e20"  # device to gateway
MTU_LEAST = 23  # of ATT
ATT_HEADER_BYTES = 3  # of a write or a notification
CONNECT_S = 20.0
FAILURES = (BleakError, OSError, EOFError)  # EOFError: the bus of BlueZ went away
WRITE_S = 5.0  # for the answer to one write


class PeripheralError(Exception):
    """Error of the Bluetooth system. The message says what failed."""


class Peripheral:
    """A connected Bluetooth device. All methods raise PeripheralError if the operation fails."""

    mtu = MTU_LEAST  # what bleak says of a larger one is not known before it is acquired, and differs by system

    def __init__(self, client: BleakClient) -> None:
        self._client = client

    async def subscribe(self, characteristic: str, on_data: Callable[[bytes], None]) -> None:
        try:
            await self._client.start_notify(characteristic, lambda _, data: on_data(bytes(data)))
        except FAILURES as error:
            raise PeripheralError(str(error)) from error

    async def write(self, characteristic: str, data: bytes) -> None:
        """Write to a characteristic and wait until the device has confirmed the write."""
        try:
            await self._client.write_gatt_char(characteristic, data, response=True)
        except FAILURES as error:
            raise PeripheralError(str(error)) from error

    async def disconnect(self) -> None:
        try:
            await self._client.disconnect()
        except FAILURES as error:
            raise PeripheralError(str(error)) from error


class Central:
    """The Bluetooth system of this machine, through the library bleak (BlueZ, CoreBluetooth, WinRT)."""

    async def connect(self, address: str, service: str, on_disconnected: Callable[[], None]) -> Peripheral:
        """Connect to a peripheral. Raise PeripheralError if it is not found or refuses the connection."""
        client = BleakClient(address, lambda _: on_disconnected(), services=[service])
        try:
            await client.connect()
        except FAILURES as error:
            raise PeripheralError(str(error)) from error
        return Peripheral(client)


class BleTransport(Transport):
    """A transport over the GATT connection to one peripheral."""

    def __init__(
        self, segment: str, description: DeviceDescription, owner: TransportOwner, connections: SharedConnections
    ) -> None:
        super().__init__(segment, description, owner, connections)
        link = self._link
        framing = framing_of(link, description.profile)
        assert isinstance(framing, LengthFraming)  # noqa: S101  # for the type checker
        self._framing = framing
        self._discarded = framing.discarded
        self._address = link.address
        self._service, self._write, self._notify = link.service or SERVICE, link.write or WRITE, link.notify or NOTIFY
        self._radio: Radio | None = None
        self._peripheral: Peripheral | None = None
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
                self._peripheral = await self._radio.central.connect(self._address, self._service, self._disconnected)
                await self._peripheral.subscribe(self._notify, self._receive_untrusted)
        except (PeripheralError, TimeoutError) as error:
            await self.close()
            raise TransportFailed(f"the device {self._address} cannot be reached: {error or 'no answer'}") from error
        except BaseException:
            await self.close()
            raise
        self._writer = asyncio.create_task(self._write_all(self._peripheral))

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
        peripheral, self._peripheral = self._peripheral, None
        if peripheral is not None:
            with contextlib.suppress(PeripheralError, TimeoutError):
                async with asyncio.timeout(WRITE_S):
                    await peripheral.disconnect()
        radio, self._radio = self._radio, None
        if radio is not None:
            await self._connections.release(radio, "ble")

    async def _write_all(self, peripheral: Peripheral) -> None:
        length = max(peripheral.mtu, MTU_LEAST) - ATT_HEADER_BYTES
        try:
            while self._is_open:
                if not self._to_write:
                    self._has_work.clear()
                    await self._has_work.wait()
                    continue
                data = self._to_write.popleft()
                for start in range(0, len(data), length):
                    chunk = data[start : start + length]
                    if not self._is_open:
                        return
                    self._owner.on_traffic(True, chunk)
                    async with asyncio.timeout(WRITE_S):
                        await peripheral.write(self._write, chunk)
        except (PeripheralError, TimeoutError) as error:
            self.lose(f"the device {self._address} takes no writes: {error or 'no answer'}")

    def _receive_untrusted(self, data: bytes) -> None:
        if not self._is_open:
            return
        self._owner.on_traffic(False, data)
        for message in self._framing.feed_untrusted(data, asyncio.get_running_loop().time()):
            self._owner.on_message(message)
        if self._framing.is_lost:
            self.lose("the device announced a message above max_frame")

    def _disconnected(self) -> None:
        self.lose(f"the device {self._address} disconnected")


class Radio:
    """The Bluetooth radio that all devices of a node share. It connects devices one after the other, because each
    connection begins with a scan.
    """

    is_lost = False

    def __init__(self) -> None:
        self.connecting = asyncio.Lock()

    async def open(self) -> None:
        self.central = make_central()

    async def close(self) -> None:
        """Do nothing: all devices have been disconnected already."""


def make_central() -> Central:
    """Return the Bluetooth system of this machine. Tests replace this function."""
    return Central()
