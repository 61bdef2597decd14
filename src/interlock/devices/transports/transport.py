"""The one interface of all transports of devices."""

from typing import Protocol, runtime_checkable


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
