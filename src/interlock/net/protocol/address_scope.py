"""How far an address is from this machine: the one place that says loopback, private or public.

In: an address, or a host as it is written in a URL. Out: a `Scope`, or whether it is loopback. The ranges are written
here and not asked of `ipaddress`, whose judgement differs between versions of Python. A server may send us no nearer
than it stands itself: one that answers 401 chooses the URLs that are fetched next, and without this rule a server
somewhere in the world could make this node connect to services of its own machine or network.
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
    """The larger, the nearer."""

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
    ip = _embedded(_read(address))
    scope = _scope_by_range(ip)
    inner = _maybe_ending(ip)
    return scope if inner is None else max(scope, _scope_by_range(inner))


def _scope_by_range(ip: IpAddress) -> Scope:
    return next((scope for networks, scope in _RANGES if any(ip in network for network in networks)), Scope.PUBLIC)


def maybe_scope(host: str) -> Scope | None:
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
    """Return whether only this machine reaches the host.

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
    """Return the IPv4 address of a connection that came in over an IPv6 socket."""
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def _read(address: str | IpAddress) -> IpAddress:
    return ipaddress.ip_address(address.partition("%")[0]) if isinstance(address, str) else address


def _embedded(ip: IpAddress) -> IpAddress:
    """Return the IPv4 address that an IPv6 address leads to."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return _last_32_bits(ip)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def _maybe_ending(ip: IpAddress) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that a router may read from the end of an IPv6 address, or None."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return None
    is_isatap = int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP
    return _last_32_bits(ip) if is_isatap or any(ip in network for network in _ENDING_IN_IPV4) else None


def _last_32_bits(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
