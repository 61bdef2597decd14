"""Transports of devices: their interface, the table of their names, and the connections that several devices share."""

import asyncio
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Protocol, TypeVar, runtime_checkable

from interlock.devices.protocol.description import DeviceDescription


class TransportFailed(Exception):
    """It could not be opened; the message says why, for people."""


class TransportOwner(Protocol):
    def on_message(self, message: bytes) -> None:
        """One whole message, as untrusted as it came."""

    def on_transport_lost(self, reason: str, rest_s: float = 0.0) -> None:
        """Said once; what was sent and not answered may or may not have arrived. The transport is to be closed, and
        opened again after `rest_s` at the earliest."""

    def on_traffic(self, sent: bool, data: bytes) -> None:
        """Bytes as they are on the wire, for those who watch it."""


class Transport(Protocol):
    is_reliable: bool  # False: what is sent may be lost without a word, so that it is worth sending again

    async def open(self) -> None:
        """Raises TransportFailed."""

    def send(self, message: bytes) -> None:
        """Never waits. What cannot be sent any more is lost, and the owner is told so."""

    @property
    def discarded(self) -> dict[str, int]:
        """How many messages were dropped, by reason."""

    async def close(self) -> None: ...


@runtime_checkable
class SendQueue(Protocol):
    """A transport in which messages may wait for those before them."""

    def withdraw(self, message: bytes) -> None:
        """It is not sent any more, if its first byte is not on its way yet."""


@runtime_checkable
class LineSignals(Protocol):
    """A transport with a line that says whether a device is there (AX-B.3-1)."""

    async def is_signalled(self) -> bool:
        """Raises OSError."""


class Connection(Protocol):
    @property
    def is_lost(self) -> bool:
        """Nothing comes from it any more: the next device makes a new one."""

    async def open(self) -> None:
        """Raises TransportFailed."""

    async def close(self) -> None:
        """Works after a failed `open`, and again after it is closed."""


C = TypeVar("C", bound=Connection)


class Connections:
    """Connections that several devices of one node share, such as a CAN bus, a broker or a line with several units."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}

    async def acquire(self, key: Hashable, make: Callable[[], C]) -> C:
        """The open connection of that key. Raises TransportFailed."""
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
    """A transport that is not open yet. Raises TransportFailed where a library that it needs is not installed."""
    name = description.link.transport
    module, _, attribute = TRANSPORTS[name].partition(":")
    try:
        transport = getattr(import_module(f"interlock.devices.transports.{module}"), attribute)
    except ModuleNotFoundError as error:
        raise TransportFailed(f"{name} needs the library {error.name}: install the extra interlock[devices]") from error
    made: Transport = transport(segment, description, owner, connections)
    return made
