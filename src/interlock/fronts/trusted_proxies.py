"""Proxies that the node trusts (node.trusted_proxies), and what they say of a client: its address and certificate.

The address that a connection comes from and the headers of a request become the address of the client behind the proxy,
or None where that is not certain. Headers of a peer that is not a trusted proxy are never read for this.
"""

import ipaddress
import re
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from interlock.approvals.trust.registrant import ClientCertificate
from interlock.fronts.exchange import Head
from interlock.net.protocol.address_scope import IpAddress, unmapped
from interlock.wire.refusal import Refusal

HOPS_MAX: Final = 32  # proxies one behind the other; more is somebody playing
# RFC 7239 4, but that addresses need no quotes. Whole pairs only: what a stranger left open must swallow nothing.
_PAIR: Final = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s",;]*)[ \t]*(?=[;,]|$)""")
_WITH_PORT: Final = re.compile(r"(?:\[([^\]]*)\](?::\d{1,5})?|([^:]*):\d{1,5})", re.ASCII)


class TrustedProxies:
    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def trusts(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> IpAddress | None:
        """Return the client of a trusted proxy: the nearest address in the chain that is not itself a trusted proxy.

        A proxy writes one of the two headers and may pass the other on unchecked, so if both are present they must
        agree. Returns None if they do not, or if there is neither.
        """
        chains = [chain for name in (b"forwarded", b"x-forwarded-for") if (chain := _chain(name, headers))]
        clients = {self._nearest(chain) for chain in chains}
        return clients.pop() if len(clients) == 1 else None

    def _nearest(self, chain: list[str]) -> IpAddress | None:
        """Return the last address in the chain that is not a trusted proxy.

        The chain is read from the right: each proxy adds the address that called it, and only the last ones are
        reliable.
        """
        address = None
        for hop in reversed(chain[-HOPS_MAX:]):
            address = address_of(hop)
            if not self.trusts(address):
                return address
        return address if len(chain) <= HOPS_MAX else None


def address_of(text: str | None) -> IpAddress | None:
    """Return an IP address written with or without a port, or None for names and obfuscated addresses (RFC 7239 6.2,
    6.3).
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
    """Return the address by which limits are counted; an IPv6 site counts as its /64 (RFC 6177)."""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


def _chain(wanted: bytes, headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the addresses in one header, all its lines joined, the end nearest to the client first."""
    lines = [value.decode("latin-1") for name, value in headers if name == wanted]
    if not lines:
        return []
    joined = ",".join(lines)
    return [part.strip() for part in joined.split(",")] if wanted == b"x-forwarded-for" else _forwarded_for(joined)


def _forwarded_for(header: str) -> list[str]:
    """Return the `for` of each element; an element that cannot be read names no client."""
    chain = [""]
    at = 0
    while at < len(header):
        pair = _PAIR.match(header, at)
        if pair is not None:
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


def maybe_shown(
    certificates: "Certificates | None", proxies: TrustedProxies, scope: MutableMapping[str, Any], head: Head
) -> ClientCertificate | Refusal | None:
    """Return the client's certificate, why it is refused, or None if the client presented none.

    The certificate of a proxy is not that of its client, and a header counts only if a trusted proxy wrote it.
    """
    if certificates is None:
        return None
    peer = address_of(scope["client"][0] if scope["client"] else None)
    if proxies.trusts(peer):
        return certificates.of_header(head.raw_headers)
    der = scope.get("state", {}).get("certificate")
    return certificates.of_link(der) if der is not None else None
