"""Transports of devices: their interface, the table of their names, and the connections that several devices share.

A transport carries whole messages to one device and back, as bytes. It is opened once and closed once. The session
(`TransportOwner`) opens a new transport after each loss, so a transport never has to recover by itself.

    construct ── open ──> open ── lose ──> lost ── close ──> closed
                   └── TransportFailed ──────────── close ──────┘

Devices on the same bus, line or broker share one connection (`SharedConnections`): the first device opens it, the last
one closes it, and a lost connection is replaced as soon as another device opens its transport. Each device pays for
what it sends: transports limit the bytes, frames or messages that one device may send in a second, so that a faulty
device does not stop the others.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import ClassVar, Protocol, TypeVar

from interlock.devices.protocol.description import DeviceDescription


class TransportFailed(Exception):
    """Error for a transport that could not be opened. The message says why."""


class TransportOwner(Protocol):
    """Interface of the object that receives a transport's messages: a device session, or the command that watches a
    port.
    """

    def on_message(self, message: bytes) -> None:
        """Handle one complete message. Its content is untrusted."""

    def on_transport_lost(self, reason: str, rest_s: float = 0.0) -> None:
        """React to the loss of the transport. It is reported once.

        Messages that were sent and not answered may or may not have arrived. The owner closes the transport, and opens
        a new one after `rest_s` seconds at the earliest.
        """

    def on_traffic(self, sent: bool, data: bytes) -> None:
        """Record bytes as they are on the wire, for operators who watch. `sent` says whether this node sent them."""


class Transport(ABC):
    """Base class of transports, which carry complete messages to one device and back.

    A transport is opened once and closed once; `close` also works after a failed `open`. After a loss, the owner
    creates a new transport. Subclasses set `_is_open`, and call `lose` when the line, bus or broker has failed.
    """

    # Whether a sent message arrives or the transport reports its loss. On the others a message may vanish without a
    # trace, so that sending a call again is worthwhile.
    is_reliable: ClassVar[bool] = False

    def __init__(
        self, segment: str, description: DeviceDescription, owner: TransportOwner, connections: "SharedConnections"
    ) -> None:
        self._segment = segment
        self._description = description
        self._link = description.link
        self._owner = owner
        self._connections = connections
        self._is_open = False
        self._discarded: Counter[str] = Counter()

    @abstractmethod
    async def open(self) -> None:
        """Open the transport. Raise TransportFailed if that is impossible."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send a message without waiting. If it cannot be sent, the message is lost and the transport reports its loss
        to the owner. Raise ValueError if the framing does not allow a message of this length.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything that `open` acquired."""

    @property
    def discarded(self) -> dict[str, int]:
        """Return the number of discarded frames and messages, by reason."""
        return dict(self._discarded)

    def withdraw(self, message: bytes) -> None:  # noqa: B027  (optional)
        """Remove a message that still waits behind others. Transports without a queue have nothing to remove."""

    async def is_signalled(self) -> bool:
        """Return whether a presence line signals that the device is there (AX-B.3-1). Raise OSError if the line cannot
        be read.
        """
        return False

    def lose(self, reason: str, rest_s: float = 0.0) -> None:
        """Report to the owner, once, that an open transport is lost."""
        if self._is_open:
            self._is_open = False
            self._owner.on_transport_lost(reason, rest_s)


class SharedConnection(Protocol):
    """Interface of a connection that several devices share, such as a bus or the connection to a broker."""

    @property
    def is_lost(self) -> bool:
        """Return whether the connection is lost, so that the next device opens a new one."""

    async def open(self) -> None:
        """Open the connection. Raise TransportFailed if that is impossible."""

    async def close(self) -> None:
        """Close the connection. This also works after a failed `open`, and more than once."""


C = TypeVar("C", bound=SharedConnection)


class SharedConnections:
    """The connections that several devices of one node share, such as a CAN bus, a broker or a line with
    several units.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}

    async def acquire(self, key: Hashable, make: Callable[[], C]) -> C:
        """Return the open connection with this key. Call `make` and open the connection if there is none. Raise
        TransportFailed if opening fails.
        """
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

    async def release(self, connection: SharedConnection, key: Hashable) -> None:
        """Give back a connection. The last user's release closes it."""
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
    """A shared connection with the number of its users. When the last user releases it, it is closed."""

    def __init__(self, key: Hashable, connection: SharedConnection) -> None:
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


# The module and class of each transport. Modules are imported when a device needs them: their libraries are an extra.
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
    segment: str, description: DeviceDescription, owner: TransportOwner, connections: SharedConnections
) -> Transport:
    """Create the transport of a device without opening it. Raise TransportFailed if its library is not installed."""
    name = description.link.transport
    module, _, attribute = TRANSPORTS[name].partition(":")
    try:
        transport = getattr(import_module(f"interlock.devices.transports.{module}"), attribute)
    except ModuleNotFoundError as error:
        raise TransportFailed(f"{name} needs the library {error.name}: install the extra interlock[devices]") from error
    built: Transport = transport(segment, description, owner, connections)
    return built
