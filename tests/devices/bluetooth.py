"""Bluetooth for tests: bumble's virtual controllers on one link, with real HCI, ATT and GATT between them."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

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

from interlock.devices.transports.ble import NOTIFY, SERVICE, WRITE, Peripheral, PeripheralError

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


class BumbleCentral:
    """What bleak is elsewhere."""

    def __init__(self, device: Device, mtu: int | None = None) -> None:
        self._device = device
        self._mtu = mtu

    async def connect(self, address: str, service: str, on_disconnected: Callable[[], None]) -> Peripheral:
        try:
            connection = await self._device.connect(Address(address), timeout=CONNECT_S)
        except (ProtocolError, TimeoutError, asyncio.CancelledError) as error:
            raise PeripheralError(str(error)) from error
        peer = Peer(connection)
        mtu = 23 if self._mtu is None else await peer.request_mtu(self._mtu)
        await peer.discover_service(UUID(service))
        for found in peer.services:
            await found.discover_characteristics()
        return BumblePeripheral(connection, peer, mtu, on_disconnected)


class BumblePeripheral:
    def __init__(self, connection: Connection, peer: Peer, mtu: int, on_disconnected: Callable[[], None]) -> None:
        self.mtu = mtu
        self._is_connected = True
        self._on_disconnected = on_disconnected
        connection.on("disconnection", self._disconnected)
        self._connection = connection
        self._peer = peer

    async def subscribe(self, characteristic: str, on_data: Callable[[bytes], None]) -> None:
        await self._found(characteristic).subscribe(on_data)

    async def write(self, characteristic: str, data: bytes) -> None:
        try:
            await self._found(characteristic).write_value(data, with_response=True)
        except (ProtocolError, TimeoutError, asyncio.CancelledError) as error:
            raise PeripheralError(str(error)) from error

    async def disconnect(self) -> None:
        if not self._is_connected:
            return
        try:
            await self._connection.disconnect()
        except ProtocolError as error:
            raise PeripheralError(str(error)) from error

    def _disconnected(self, reason: int) -> None:
        self._is_connected = False
        self._on_disconnected()

    def _found(self, characteristic: str) -> CharacteristicProxy[bytes]:
        found = self._peer.get_characteristics_by_uuid(UUID(characteristic))
        if not found:
            raise PeripheralError(f"it has no characteristic {characteristic}")
        return found[0]


class HciCentral(BumbleCentral):
    """In the process of a node: its controller is elsewhere, reached over HCI on TCP."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._mtu = None
        self._opened: Device | None = None

    async def connect(self, address: str, service: str, on_disconnected: Callable[[], None]) -> Peripheral:
        if self._opened is None:
            hci = await open_transport(f"tcp-client:127.0.0.1:{self._port}")
            self._opened = self._device = Device.with_hci("gateway", Address(CENTRAL), hci.source, hci.sink)
            await self._opened.power_on()
        return await super().connect(address, service, on_disconnected)


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
