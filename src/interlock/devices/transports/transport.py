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
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, cast

from interlock.devices.protocol.description import DeviceDescription


class TransportFailed(Exception):
    """Error for a transport that could not be opened. The message says why."""


class TransportOwner:
    """Base class of the receivers of a transport's messages: a device session, or the command that watches a port."""

    def on_message(self, message: bytes) -> None:
        """Handle one complete message. Its content is untrusted."""

    def on_transport_lost(self, reason: str, rest_s: float = 0.0) -> None:
        """Handle the loss of the transport, which is reported once.

        Messages that were sent and not answered may or may not have arrived. The owner closes the transport, and opens
        a new one after `rest_s` seconds at the earliest.
        """

    def on_traffic(self, sent: bool, data: bytes) -> None:
        """Handle raw bytes on the wire. `sent` says whether this node has sent or received them. The base class does
        nothing.
        """


@dataclass(eq=False)
class Transport(ABC):
    """Base class of transports, which carry complete messages to one device and back.

    A transport is opened once and closed once. The owner closes it after a failed `open` too, and creates a new one
    after a loss. Subclasses set `_is_open`, and call `lose` when the line, bus or broker has failed.
    """

    # Whether a sent message arrives or the transport reports its loss. On the others a message may vanish without a
    # trace, so that sending a call again is worthwhile.
    is_reliable: ClassVar[bool] = False

    _segment: str
    _description: DeviceDescription
    _owner: TransportOwner
    _connections: "SharedConnections"

    def __post_init__(self) -> None:
        self._link = self._description.link
        self._is_open = False
        self._discarded: Counter[str] = Counter()

    @abstractmethod
    async def open(self) -> None:
        """Open the transport. Raise TransportFailed if that is impossible."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send a message without waiting. If sending fails, report the transport as lost. Raise ValueError if the
        message is too long for the framing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything that `open` acquired."""

    @property
    def discarded(self) -> dict[str, int]:
        """Return the number of discarded frames and messages, by reason."""
        return dict(self._discarded)

    def withdraw(self, message: bytes) -> None:  # noqa: B027  (optional)
        """Remove a message that waits to be sent. Transports without a queue do nothing."""

    async def is_signalled(self) -> bool:
        """Return whether a device signals on a line of its own that it is there (AX-B.3-1). Raise OSError if the line
        cannot be read.
        """
        return False

    def lose(self, reason: str, rest_s: float = 0.0) -> None:
        """Tell the owner that the open transport is lost. Further calls have no effect."""
        if self._is_open:
            self._is_open = False
            self._owner.on_transport_lost(reason, rest_s)


Station = TypeVar("Station", bound=Transport)


class SharedConnection(ABC, Generic[Station]):
    """Base class of connections that several devices share, such as a bus or the connection to a broker.

    `SharedConnections` opens it for its first user and closes it after its last. `stations` are the transports that use
    it, by what tells them apart.
    """

    def __init__(self) -> None:
        self.loss: str | None = None  # why it is lost: the next device opens a new connection
        self.stations: dict[Hashable, Station] = {}
        self.users = 0
        self.is_open = False
        self.opening = asyncio.Lock()

    @abstractmethod
    async def open(self) -> None:
        """Open the connection. Raise TransportFailed if that is impossible."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection. This also works after a failed `open`."""

    def leave(self, station: Station) -> None:
        self.stations = {key: other for key, other in self.stations.items() if other is not station}

    def lose(self, reason: str) -> None:
        """Tell all devices that use this connection that it is lost. Further calls have no effect."""
        if self.loss is None:
            self.loss = reason
            for station in dict.fromkeys(self.stations.values()):
                station.lose(reason)


C = TypeVar("C", bound=SharedConnection[Any])


class SharedConnections:
    """The connections that several devices of one node share, such as a CAN bus, a broker or a line with
    several units.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, SharedConnection[Any]] = {}

    async def acquire(self, key: Hashable, make: Callable[[], C]) -> C:
        """Return the connection with this key. If there is none, create it with `make` and open it. Raise
        TransportFailed if opening fails.
        """
        held = self._held.get(key)
        # A key belongs to one kind of connection.
        connection = cast(C, held) if held is not None and held.loss is None else make()
        self._held[key] = connection
        connection.users += 1
        try:
            async with connection.opening:
                if not connection.is_open:
                    await connection.open()
                    connection.is_open = True
        except BaseException:
            await self.release(connection, key)
            raise
        return connection

    async def release(self, connection: SharedConnection[Any], key: Hashable) -> None:
        """Give back a connection. It is closed when its last user gives it back."""
        connection.users -= 1
        if connection.users == 0:
            if self._held.get(key) is connection:  # otherwise it was lost, and another has taken its place
                del self._held[key]
            await connection.close()


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> None:
    """Call a function in the event loop, from another thread. Do nothing if the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *arguments)


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
