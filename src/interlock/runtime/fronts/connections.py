"""The connections of one HTTP endpoint: how many there may be, and how much they may keep of requests under way.

What a peer has sent of a request that is not complete, or that waits for its turn, is counted for the endpoint and for
the peer. A request that comes whole in one piece is never counted: while some hold all they may, others' short calls
are served.
"""

from collections.abc import Callable
from typing import Final, Protocol

from interlock.protocol.net.address_scope import IpAddress
from interlock.runtime.fronts.exchange import Head
from interlock.runtime.fronts.trusted_proxies import source_of

MIB: Final = 1024 * 1024
PEER_MESSAGES_MAX: Final = 4  # of the largest size, held for one peer at a time
ENDPOINT_MESSAGES_MAX: Final = 8
PEER_BYTES_MIN: Final = 32 * MIB  # where messages are small, many may be under way
ENDPOINT_BYTES_MIN: Final = 64 * MIB


class Connection(Protocol):
    def sender(self, head: Head) -> IpAddress | None:
        """Who a request is from."""

    def sweep(self, now: float) -> None: ...


NoteRefusal = Callable[[Connection, Head, str], None]


class Connections:
    def __init__(self, *, most: int, message_bytes: int, note_refusal: NoteRefusal) -> None:
        """`note_refusal` hears of each request that is refused before anybody could serve it, and why."""
        self.open: set[Connection] = set()
        self.note_refusal = note_refusal
        self._most = most
        self._held = 0
        self._held_max = max(ENDPOINT_BYTES_MIN, ENDPOINT_MESSAGES_MAX * message_bytes)
        self._by_peer: dict[str, int] = {}
        self._peer_max = max(PEER_BYTES_MIN, PEER_MESSAGES_MAX * message_bytes)

    def is_full(self) -> bool:
        return len(self.open) >= self._most

    def sweep(self, now: float) -> None:
        """Connections that are slow, stuck or idle for too long are ended."""
        for connection in list(self.open):
            connection.sweep(now)

    def hold(self, peer: IpAddress | None, count: int) -> "HeldBytes | None":
        """None: there is no room."""
        held = HeldBytes(self, source_of(peer))
        return held if held.grow_to(count) else None

    def change(self, source: str, by: int) -> bool:
        of_peer = self._by_peer.get(source, 0) + by
        if by > 0 and (of_peer > self._peer_max or self._held + by > self._held_max):
            return False
        self._held += by
        if of_peer:
            self._by_peer[source] = of_peer
        else:
            self._by_peer.pop(source, None)
        return True


class HeldBytes:
    """What is held for one request, until it is released."""

    __slots__ = ("_connections", "_source", "count")

    def __init__(self, connections: Connections, source: str) -> None:
        self.count = 0
        self._connections = connections
        self._source = source

    def grow_to(self, count: int) -> bool:
        if not self._connections.change(self._source, count - self.count):
            return False
        self.count = count
        return True

    def release(self) -> None:
        self._connections.change(self._source, -self.count)
        self.count = 0
