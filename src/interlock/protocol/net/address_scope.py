"""How far an address is from this machine. A server may send us no nearer than it stands itself.

Whoever answers 401 chooses the URLs that are fetched next. Without this rule a server somewhere in the world could have
this node knock on doors of the machine or network it runs in.
"""

import enum
import ipaddress
from typing import Final

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Place(enum.IntEnum):
    """The larger, the nearer."""

    WORLD = 0
    SITE = 1  # a private network
    MACHINE = 2  # this machine, and what only its own link reaches


def place_of(address: str) -> Place:
    """Of an IP address. Raises ValueError for anything else."""
    ip = _plain(ipaddress.ip_address(address.partition("%")[0]))
    if ip.is_loopback or ip.is_link_local or ip.is_unspecified:
        return Place.MACHINE
    return Place.WORLD if ip.is_global and not ip.is_multicast else Place.SITE


def maybe_place(host: str) -> Place | None:
    """Of a host as it is written in a URL; None for a name, which says nothing before it is looked up."""
    if host == "localhost" or host.endswith(".localhost"):
        return Place.MACHINE
    try:
        return place_of(host)
    except ValueError:
        return None


def _plain(ip: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip
