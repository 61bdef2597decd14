"""Bluetooth for tests: bumble's virtual controllers on one link, with real HCI, ATT and GATT between them."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from bleak.exc import BleakError
from bumble.controller import Controller
from bumble.core import UUID, ProtocolError
from bumble.device import Connection, Device, Peer
from bumble.gatt import Characteristic, CharacteristicValue, Service
from bumble.gatt_client import CharacteristicProxy
from bumble.hci import Address
from bumble.host import Host
from bumble.link import LocalLink
from bumble.transport import open_transport
from bumble.transport.common import AsyncPipeSink
from bumble.transport.tcp_server import open_tcp_server_transport_with_socket

from interlock.devices.transports.ble import NOTIFY, SERVICE, WRITE

PREFIX_BYTES = 2
CENTRAL = "F0:F0:F0:F0:F0:F0"
CONNECT_S = 5.0


def make_device(link: LocalLink, address: str) -> Device:
    controller = Controller(address, link=link, public_address=address)
    return Device(address=Address(address), host=Host(controller, AsyncPipeSink(controller)))


class Stub:
    """A peripheral that hands each whole message to `replies` and notifies what that returns."""

    def __init__(self, device: Device, replies: Callable[[bytes], list[bytes]]) -> None:
        self.device = device
        self.written: list[bytes] = []  # as they came, one by one
        self.connection: Connection | None = None
        self._replies = replies
        self._begun = b""
        self._answering: set[asyncio.Task[None]] = set()
        properties = Characteristic.Properties
        write = CharacteristicValue(write=self._on_write)
        permissions = Characteristic.Permissions
        self.notify: Characteristic[bytes] = Characteristic(NOTIFY, properties.NOTIFY, permissions.READABLE, b"")
        written: Characteristic[bytes] = Characteristic(WRITE, properties.WRITE, permissions.WRITEABLE, write)
        device.add_service(Service(SERVICE, [written, self.notify]))
        device.on("connection", self._on_connection)

    @property
    def is_connected(self) -> bool:
        return bool(self.device.connections)

    async def start(self) -> None:
        await self.device.power_on()
        await self.device.start_advertising(auto_restart=True, advertising_interval_min=20.0)

    async def say(self, data: bytes) -> None:
        """Raw bytes, in notifications as long as the MTU allows."""
        assert self.connection is not None
        length = self.connection.att_mtu - 3
        for start in range(0, len(data), length):
            await self.device.notify_subscriber(self.connection, self.notify, data[start : start + length])

    async def send(self, message: bytes) -> None:
        await self.say(len(message).to_bytes(PREFIX_BYTES, "big") + message)

    def _on_connection(self, connection: Connection) -> None:
        self.connection = connection
        self._begun = b""

    def _on_write(self, connection: Connection, data: bytes) -> None:
        self.written.append(bytes(data))
        self._begun += data
        length = int.from_bytes(self._begun[:PREFIX_BYTES], "big")
        if len(self._begun) >= PREFIX_BYTES + length:
            message, self._begun = self._begun[PREFIX_BYTES : PREFIX_BYTES + length], b""
            task = asyncio.get_running_loop().create_task(self._send_all(self._replies(message)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _send_all(self, messages: list[bytes]) -> None:
        for message in messages:
            await self.send(message)


class BumbleClient:
    """What bleak's client is elsewhere, for the peripherals near one device."""

    def __init__(self, device: Device, address: str, service: str, on_disconnected: Callable[[Any], None]) -> None:
        self._device = device
        self._address = address
        self._service = service
        self._is_connected = False
        self._on_disconnected = on_disconnected

    async def connect(self) -> None:
        try:
            self._connection = await self._device.connect(Address(self._address), timeout=CONNECT_S)
        except (ProtocolError, TimeoutError, asyncio.CancelledError) as error:
            raise BleakError(str(error)) from error
        self._peer = Peer(self._connection)
        await self._peer.discover_service(UUID(self._service))
        for found in self._peer.services:
            await found.discover_characteristics()
        self._is_connected = True
        self._connection.on("disconnection", self._disconnected)

    async def start_notify(self, characteristic: str, on_data: Callable[[Any, bytearray], None]) -> None:
        await self._found(characteristic).subscribe(lambda data: on_data(None, bytearray(data)))

    async def write_gatt_char(self, characteristic: str, data: bytes, response: bool) -> None:
        try:
            await self._found(characteristic).write_value(data, with_response=response)
        except (ProtocolError, TimeoutError, asyncio.CancelledError) as error:
            raise BleakError(str(error)) from error

    async def disconnect(self) -> None:
        if not self._is_connected:
            return
        try:
            await self._connection.disconnect()
        except ProtocolError as error:
            raise BleakError(str(error)) from error

    def _disconnected(self, reason: int) -> None:
        self._is_connected = False
        self._on_disconnected(self)

    def _found(self, characteristic: str) -> CharacteristicProxy[bytes]:
        found = self._peer.get_characteristics_by_uuid(UUID(characteristic))
        if not found:
            raise BleakError(f"it has no characteristic {characteristic}")
        return found[0]


class HciClient(BumbleClient):
    """In the process of a node: its controller is elsewhere, reached over HCI on TCP."""

    opened: Device | None = None  # a controller has one host, however often its devices come and go

    def __init__(self, port: int, address: str, service: str, on_disconnected: Callable[[Any], None]) -> None:
        self._port = port
        self._address = address
        self._service = service
        self._is_connected = False
        self._on_disconnected = on_disconnected

    async def connect(self) -> None:
        if HciClient.opened is None:
            hci = await open_transport(f"tcp-client:127.0.0.1:{self._port}")
            HciClient.opened = Device.with_hci("gateway", Address(CENTRAL), hci.source, hci.sink)
            await HciClient.opened.power_on()
        self._device = HciClient.opened
        await super().connect()


class ServedController:
    """A controller on a link for a host in another process."""

    async def start(self, link: LocalLink) -> int:
        """The TCP port of its HCI."""
        listening = socket.create_server(("127.0.0.1", 0))
        self._hci: Any = await open_tcp_server_transport_with_socket(listening)
        source, sink = self._hci.source, self._hci.sink
        Controller("gateway", host_source=source, host_sink=sink, link=link, public_address=CENTRAL)
        port: int = listening.getsockname()[1]
        return port

    async def stop(self) -> None:
        self._hci.server.close()
        await self._hci.close()
