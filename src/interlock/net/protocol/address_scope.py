"""The distance of an address from this machine: the one place that decides loopback, private or public.

An address, or a host as it is written in a URL, becomes a `Scope`. The ranges are written here and not taken from
`ipaddress`, whose judgement differs between versions of Python. IPv6 addresses that lead to an IPv4 address (mapped,
6to4, NAT64, ISATAP) are judged by that address.

The rule behind it: a server may send this node no nearer than the server itself is. A server that answers 401 chooses
the URLs that are fetched next, and without this rule a server somewhere in the world could make the node connect to
services of its own machine or network.
"""

import enum
import ipaddress
from typing import Final

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

LOCALHOST: Final = "localhost"
LOOPBACK_ADDRESSES: Final = frozenset(("127.0.0.1", "::1"))  # what `localhost` means
LOOPBACK_HOSTS: Final = LOOPBACK_ADDRESSES | {LOCALHOST}
UNSPECIFIED_HOSTS: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104  (to listen on all addresses)


class Scope(enum.IntEnum):
    """The nearness of an address to this machine. An address with a larger value is nearer."""

    PUBLIC = 0
    PRIVATE = 1  # a private network, or an address that leads nowhere
    MACHINE = 2  # this machine, and what only its own link reaches


_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_MACHINE: Final = (
    *_LOOPBACK,
    *("0.0.0.0/8", "::/128"),  # unspecified: many systems connect to themselves
    *("169.254.0.0/16", "fe80::/10"),  # link-local; among them the metadata service of a cloud
)
# The registries of special-purpose addresses of IANA (RFC 6890), and multicast. Of IPv6 only 2000::/3 is given out;
# some ranges outside of it are named all the same, because they are in use.
_PRIVATE: Final = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    *("224.0.0.0/4", "240.0.0.0/4"),
    "64:ff9b:1::/48",  # NAT64 within a network (RFC 8215)
    "fc00::/7",  # unique local (RFC 4193)
    "fec0::/10",  # site-local (RFC 3879: no longer given out, still routed)
    "ff00::/8",
    *("::/3", "4000::/2", "8000::/1"),
    *("2001::/23", "2001:db8::/32", "3fff::/20"),
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
# Likewise, and no nearer than the range they are in: IPv4-compatible addresses (RFC 4291 2.5.5.1) and RFC 8215's NAT64.
_ENDING_IN_IPV4: Final = (ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_ISATAP: Final = frozenset((0x0000_5EFE, 0x0200_5EFE))  # RFC 5214 6.1: in front of the IPv4 address, under any prefix


def _networks(texts: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


# The first range that holds an address decides; what is in none is public.
_RANGES: Final = ((_networks(_MACHINE), Scope.MACHINE), (_networks(_PRIVATE), Scope.PRIVATE))
_LOOPBACK_RANGES: Final = _networks(_LOOPBACK)


def scope_of(address: str | IpAddress) -> Scope:
    """Return the scope of an IP address. Raise ValueError if it is not an address."""
    ip = _read(address)
    if isinstance(ip, ipaddress.IPv6Address):
        # The IPv4 address that an IPv6 address leads to.
        ip = _last_32_bits(ip) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour or ip
    scope = _scope_by_range(ip)
    if isinstance(ip, ipaddress.IPv6Address):
        # A router may read an IPv4 address from the end of these.
        is_isatap = int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP
        if is_isatap or any(ip in network for network in _ENDING_IN_IPV4):
            return max(scope, _scope_by_range(_last_32_bits(ip)))
    return scope


def _scope_by_range(ip: IpAddress) -> Scope:
    return next((scope for networks, scope in _RANGES if any(ip in network for network in networks)), Scope.PUBLIC)


def find_scope(host: str) -> Scope | None:
    """Return the scope of an address or of localhost, or None for other names, which must be looked up first."""
    if is_localhost(host):
        return Scope.MACHINE
    try:
        return scope_of(host)
    except ValueError:
        return None


def is_localhost(name: str) -> bool:
    return name == LOCALHOST or name.endswith("." + LOCALHOST)  # RFC 6761 6.3


def is_loopback(host: str | IpAddress) -> bool:
    """Return whether only this machine can reach the host.

    Names other than localhost count as reachable from outside: permissions for this machine must not depend on a
    resolver.
    """
    if host == LOCALHOST:
        return True
    try:
        ip = unmapped(_read(host))
    except ValueError:
        return False
    return any(ip in network for network in _LOOPBACK_RANGES)


def unmapped(ip: IpAddress) -> IpAddress:
    """Return the IPv4 address inside an IPv4-mapped IPv6 address. Return any other address unchanged."""
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def _read(address: str | IpAddress) -> IpAddress:
    return ipaddress.ip_address(address.partition("%")[0]) if isinstance(address, str) else address


def _last_32_bits(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
