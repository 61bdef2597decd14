"""The connections of one HTTP endpoint: how many there may be, and how much they may keep of requests under way.

What a peer has sent of a request that is not complete, or that waits for its turn, is counted for the endpoint and for
the peer. What unknown senders sent (heads, and requests whose credential is being verified) is counted apart from
bodies whose heads were admitted: strangers take no room from clients. A request that comes whole in one piece is never
counted: while some hold all they may, others' short calls are served.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from interlock.fronts.exchange import Head
from interlock.fronts.trusted_proxies import source_of
from interlock.net.protocol.address_scope import IpAddress

if TYPE_CHECKING:
    from interlock.fronts.http_connection import EndpointConnection

MIB: Final = 1024 * 1024
PEER_SHARE: Final = 4  # one peer may have this part of all connections
PEER_MESSAGES_MAX: Final = 4  # of the largest size, held for one peer at a time
ENDPOINT_MESSAGES_MAX: Final = 8
PEER_BYTES_MIN: Final = 32 * MIB  # where messages are small, many may be under way
ENDPOINT_BYTES_MIN: Final = 64 * MIB
PEER_UNKNOWN_BYTES: Final = 4 * MIB
ENDPOINT_UNKNOWN_BYTES: Final = 16 * MIB


NoteRefusal = Callable[["EndpointConnection", Head, str], None]
IsShared = Callable[[IpAddress], bool]


class ConnectionTable:
    """The open connections of one endpoint, and the limits on what they hold."""

    def __init__(self, *, most: int, message_bytes: int, note_refusal: NoteRefusal, is_shared: IsShared) -> None:
        """Create an empty set of at most `most` connections.

        `note_refusal` is called for each request that is refused before it could be served, with the reason.
        `is_shared` returns whether many clients may share an address, so that the address does not identify who has too
        many connections.
        """
        self.open: set[EndpointConnection] = set()
        self.note_refusal = note_refusal
        self._most = most
        self._is_shared = is_shared
        self._open_of: dict[str, int] = {}  # by source
        self.unknown = HeldBound(of_all=ENDPOINT_UNKNOWN_BYTES, of_peer=PEER_UNKNOWN_BYTES)
        self.bodies = HeldBound(
            of_all=max(ENDPOINT_BYTES_MIN, ENDPOINT_MESSAGES_MAX * message_bytes),
            of_peer=max(PEER_BYTES_MIN, PEER_MESSAGES_MAX * message_bytes),
        )

    def enter(self, connection: "EndpointConnection", peer: IpAddress | None) -> bool:
        """Add a connection and return True, or return False if a limit is reached; `leave` removes it."""
        if len(self.open) >= self._most:
            return False
        if peer is not None and not self._is_shared(peer):
            source = source_of(peer)
            count = self._open_of.get(source, 0)
            if count >= max(self._most // PEER_SHARE, 1):
                return False
            self._open_of[source] = count + 1
        self.open.add(connection)
        return True

    def leave(self, connection: "EndpointConnection", peer: IpAddress | None) -> None:
        if connection not in self.open:
            return
        self.open.discard(connection)
        if peer is not None and not self._is_shared(peer):
            source = source_of(peer)
            self._open_of[source] -= 1
            if not self._open_of[source]:
                del self._open_of[source]

    def sweep(self, now: float) -> None:
        """End connections that have been slow, stuck or idle for too long."""
        for connection in list(self.open):
            connection.sweep(now)


class HeldBound:
    """Limit on the bytes held at a time, for all peers together and for each peer."""

    def __init__(self, *, of_all: int, of_peer: int) -> None:
        self._held = 0
        self._held_max = of_all
        self._by_peer: dict[str, int] = {}
        self._peer_max = of_peer

    def hold(self, peer: IpAddress | None, count: int) -> "HeldBytes | None":
        """Reserve `count` bytes for a peer, or return None if a limit is reached."""
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
    """Bytes held for one request until they are released."""

    __slots__ = ("_bound", "_source", "count")

    def __init__(self, bound: HeldBound, source: str) -> None:
        self.count = 0
        self._bound = bound
        self._source = source

    def grow_to(self, count: int) -> bool:
        if not self._bound.change(self._source, count - self.count):
            return False
        self.count = count
        return True

    def release(self) -> None:
        self._bound.change(self._source, -self.count)
        self.count = 0
