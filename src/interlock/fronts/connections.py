"""The connections of one HTTP endpoint: their number, the memory they may use, and the clients behind trusted proxies.

The bytes of a request that is not complete, or that waits for its turn, are counted for the endpoint and for the peer.
Bytes of unknown senders (heads, and requests whose credential is being verified) have a separate limit, so that unknown
senders cannot use the memory reserved for clients. A request that arrives in one piece and is served at once is never
counted: short calls are served even while other peers hold as much as they may.

The proxies that the node trusts (node.trusted_proxies) say in headers which address and certificate a client has.
`TrustedProxies` reads the address from the headers, or None if it is not certain. Headers of a peer that is not a
trusted proxy are never read for this.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from interlock.approvals.trust.registrant import ClientCertificate
from interlock.core.shared_limit import Share, SharedLimit
from interlock.fronts.exchange import Head
from interlock.net.protocol.address_scope import IpAddress, unmapped
from interlock.wire.refusal import Refusal

if TYPE_CHECKING:
    from interlock.fronts.http_protocol import EndpointConnection


# Proxies in a row. No real chain is longer.
HOPS_MAX: Final = 32
# A pair of RFC 7239 4, except that addresses need no quotes. Only complete pairs match, so that a quote that a stranger
# left open does not hide what a proxy added after it.
_PAIR: Final = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s",;]*)[ \t]*(?=[;,]|$)""")
_WITH_PORT: Final = re.compile(r"(?:\[([^\]]*)\](?::\d{1,5})?|([^:]*):\d{1,5})", re.ASCII)


class TrustedProxies:
    """The networks whose addresses the node trusts as proxies."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def trusts(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> IpAddress | None:
        """Return the address of the client of a trusted proxy: the last address in the chain that is not itself a
        trusted proxy.

        If all addresses are those of trusted proxies, return the one at the client end.

        Return None if the headers name no client, or if they disagree. A proxy writes one of the two headers and may
        pass on the other unchecked, so if both are present they must agree.
        """
        clients: set[IpAddress | None] = set()
        for name in (b"forwarded", b"x-forwarded-for"):
            lines = [value.decode("latin-1") for header, value in headers if header == name]
            if not lines:
                continue
            # The lines of the header are joined. The chain has the addresses with the client end first.
            joined = ",".join(lines)
            is_standard = name == b"forwarded"
            chain = _forwarded_for(joined) if is_standard else [part.strip() for part in joined.split(",")]
            # Read the chain from the right: each proxy appends the address of its client, and only the last addresses
            # are reliable.
            addresses = [address_of(hop) for hop in reversed(chain[-HOPS_MAX:])]
            first = addresses[-1] if len(chain) <= HOPS_MAX else None
            clients.add(next((address for address in addresses if not self.trusts(address)), first))
        return clients.pop() if len(clients) == 1 else None


def address_of(text: str | None) -> IpAddress | None:
    """Parse an IP address, ignoring an optional port. Return None for host names and obfuscated identifiers (RFC 7239
    6.2, 6.3).
    """
    if text is None:
        return None
    match = _WITH_PORT.fullmatch(text)
    bare = (match[1] if match[1] is not None else match[2]) if match is not None else text
    try:
        return unmapped(ipaddress.ip_address(bare.partition("%")[0]))
    except ValueError:
        return None


def source_of(address: IpAddress | None) -> str:
    """Return the key under which limits count an address. All addresses of an IPv6 site count as its /64 (RFC 6177)."""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


def _forwarded_for(header: str) -> list[str]:
    """Return the `for` value of each element in a Forwarded header. For an element that is invalid or has none, the
    value is an empty text.
    """
    chain = [""]
    at = 0
    while at < len(header):
        if (pair := _PAIR.match(header, at)) is not None:
            at = pair.end()
            if pair[1].lower() == "for":
                if chain[-1]:
                    return [""]
                value = pair[2]
                chain[-1] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        if at < len(header):
            if header[at] == ",":
                chain.append("")
            elif header[at] != ";":
                return [""]
            at += 1
    return chain


if TYPE_CHECKING:
    from interlock.approvals.trust.client_certificates import Certificates


def find_client_certificate(
    certificates: "Certificates | None", proxies: TrustedProxies, scope: MutableMapping[str, Any], head: Head
) -> ClientCertificate | Refusal | None:
    """Return the certificate of a client, a refusal if it is not valid, or None if the client presented none.

    Return None also if the node has no `certificates` to check with.

    The certificate of a proxy's connection is not that of its client. A header with a certificate counts only if a
    trusted proxy wrote it.
    """
    if certificates is None:
        return None
    peer = address_of(scope["client"][0] if scope["client"] else None)
    if proxies.trusts(peer):
        return certificates.of_header(head.raw_headers)
    der = scope.get("state", {}).get("certificate")
    return certificates.of_link(der) if der is not None else None


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


@dataclass(eq=False, kw_only=True)
class ConnectionTable:
    """The open connections of one endpoint, with limits on their number and on the memory that they use.

    `note_refusal` is called with the reason for each request that is refused before it is served. `is_shared` returns
    whether many clients may share an address; the limit on connections from one address then does not apply.
    """

    most: int
    message_bytes: int
    note_refusal: NoteRefusal
    is_shared: IsShared
    # With the place that each connection takes, unless many clients may share its address.
    open: dict["EndpointConnection", Share | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = SharedLimit(of_all=self.most, of_each=max(self.most // PEER_SHARE, 1))
        self.unknown = SharedLimit(of_all=ENDPOINT_UNKNOWN_BYTES, of_each=PEER_UNKNOWN_BYTES)
        self.bodies = SharedLimit(
            of_all=max(ENDPOINT_BYTES_MIN, ENDPOINT_MESSAGES_MAX * self.message_bytes),
            of_each=max(PEER_BYTES_MIN, PEER_MESSAGES_MAX * self.message_bytes),
        )

    def enter(self, connection: "EndpointConnection", peer: IpAddress | None) -> bool:
        """Add a connection and return True, or return False if a limit is reached. `leave` removes the connection."""
        if len(self.open) >= self.most:
            return False
        place = None
        if peer is not None and not self.is_shared(peer):
            place = self._places.hold(source_of(peer), 1)
            if place is None:
                return False
        self.open[connection] = place
        return True

    def leave(self, connection: "EndpointConnection") -> None:
        place = self.open.pop(connection, None)
        if place is not None:
            place.release()

    def sweep(self, now: float) -> None:
        """Close connections that have been slow, stuck or idle for too long."""
        for connection in list(self.open):
            connection.sweep(now)
