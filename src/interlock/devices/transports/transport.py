"""Transports of devices: their interface, the table of their names, and the connections that several devices share."""

import asyncio
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Protocol, TypeVar, runtime_checkable

from interlock.devices.protocol.description import DeviceDescription


class TransportFailed(Exception):
    """The transport could not be opened. The message says why, for people."""


class TransportOwner(Protocol):
    def on_message(self, message: bytes) -> None:
        """Handle one whole message, which is untrusted."""

    def on_transport_lost(self, reason: str, rest_s: float = 0.0) -> None:
        """Said once; what was sent and not answered may or may not have arrived. The transport is to be closed, and
        opened again after `rest_s` at the earliest."""

    def on_traffic(self, sent: bool, data: bytes) -> None:
        """Note bytes as they are on the wire, for operators who watch."""


class Transport(Protocol):
    is_reliable: bool  # False: what is sent may be lost without a word, so that it is worth sending again

    async def open(self) -> None:
        """Open the transport. Raises TransportFailed."""

    def send(self, message: bytes) -> None:
        """Send a message without waiting. If it cannot be sent, it is lost and the owner is informed."""

    @property
    def discarded(self) -> dict[str, int]:
        """Return how many messages were dropped, by reason."""

    async def close(self) -> None: ...


@runtime_checkable
class SendQueue(Protocol):
    """A transport in which messages may wait for those before them."""

    def withdraw(self, message: bytes) -> None:
        """Remove a message from the queue, unless its first byte is already on its way."""


@runtime_checkable
class LineSignals(Protocol):
    """A transport with a line that says whether a device is there (AX-B.3-1)."""

    async def is_signalled(self) -> bool:
        """Return whether the line signals a device. Raises OSError."""


class Connection(Protocol):
    @property
    def is_lost(self) -> bool:
        """Return whether the connection is dead, so that the next device opens a new one."""

    async def open(self) -> None:
        """Open the connection. Raises TransportFailed."""

    async def close(self) -> None:
        """Close the connection. This works after a failed `open`, and repeatedly."""


C = TypeVar("C", bound=Connection)


class Connections:
    """Connections that several devices of one node share, such as a CAN bus, a broker or a line with several units."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}

    async def acquire(self, key: Hashable, make: Callable[[], C]) -> C:
        """Return the open connection of a key, and open it if needed. Raises TransportFailed."""
        held = self._held.get(key)
        if held is None or held.connection.is_lost:
            connection = make()
            held = self._held[key] = _Held(key, connection)
        else:
            connection = held.connection  # type: ignore[assignment]  # a key belongs to one kind of connection
        held.users += 1
        try:
            await held.open()
        except BaseException:
            await self._leave(held)
            raise
        return connection

    async def release(self, connection: Connection, key: Hashable) -> None:
        held = self._held.get(key)
        if held is None or held.connection is not connection:  # it was lost, and another has taken its place
            await connection.close()
            return
        await self._leave(held)

    async def _leave(self, held: "_Held") -> None:
        held.users -= 1
        if held.users == 0:
            if self._held.get(held.key) is held:
                del self._held[held.key]
            await held.connection.close()


class _Held:
    def __init__(self, key: Hashable, connection: Connection) -> None:
        self.key = key
        self.connection = connection
        self.users = 0
        self._is_open = False
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self.connection.open()
                self._is_open = True


TRANSPORTS = {
    "uart_cbor": "uart:UartTransport",
    "ble_cbor": "ble:BleTransport",
    "spi_cbor": "spi:SpiTransport",
    "can_cbor": "can_bus:CanTransport",
    "mqtt_json": "mqtt:MqttTransport",
    "modbus_tcp": "modbus:ModbusTransport",
    "modbus_rtu": "modbus:ModbusTransport",
}


def make_transport(
    segment: str, description: DeviceDescription, owner: TransportOwner, connections: Connections
) -> Transport:
    """Create the transport of a device without opening it. Raises TransportFailed if its library is not installed."""
    name = description.link.transport
    module, _, attribute = TRANSPORTS[name].partition(":")
    try:
        transport = getattr(import_module(f"interlock.devices.transports.{module}"), attribute)
    except ModuleNotFoundError as error:
        raise TransportFailed(f"{name} needs the library {error.name}: install the extra interlock[devices]") from error
    built: Transport = transport(segment, description, owner, connections)
    return built
