"""Hosts that a sandboxed server may reach, and what it asks a forward proxy for (RFC 9110, 9.3.6; RFC 9112, 3.2).

An entry of an egress list is a host, *.NAME or *, with or without a port. `permits` tells how the entries permit a
host. `read_head_untrusted` reads the head of a proxy request: the host that it wants to reach, with what has to be
sent there, or why the request is refused. Nothing is looked up here: whether a name leads to a private network is
checked where it is resolved (`net.egress_proxy`).
"""

import enum
import ipaddress
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult

import msgspec

from interlock.net.protocol.address_scope import is_localhost

HEAD_BYTES_MAX: Final = 32 * 1024  # cookies and tokens of one request; servers take 8 to 16 KiB

ENTRY: Final = re.compile(
    r"(?:\*|(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?)*)"
    r"(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?",
    re.ASCII,
)
WEB_PORTS: Final = (80, 443)
PORTS_MAX: Final = 32  # that a program without a proxy can be met on
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_][a-z0-9_-]{0,62})*\.?", re.ASCII)
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]]+))(?::([0-9]{1,5}))?", re.ASCII)
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,40}) ([!-~]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[^\r\n\x00]*")
# The proxy's own matter, or (RFC 9110, 7.6.1) between two neighbours only.
_DROPPED: Final = frozenset((b"host", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te"))


class Permit(enum.Enum):
    """The way in which an egress entry permits a host."""

    NAMED = "named"  # to the letter: wherever the name leads
    WILD = "wild"  # by a wildcard: only a public address


class ProxyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a client to the proxy: to open a tunnel to a host, or to forward one request."""

    host: str
    port: int
    head: bytes | None = None  # what is sent to the host first; None: a tunnel


class Malformed(msgspec.Struct, frozen=True):
    """The reason why a request to the proxy cannot be read."""

    why: str


def permits(host: str, port: int, entries: Iterable[str]) -> Permit | None:
    """Return how the egress entries permit a host and port, or None if they do not permit it.

    `*.foo.com` matches a.foo.com and a.b.foo.com, not foo.com. A wildcard never matches an IP address. An entry with a
    port permits only that port.
    """
    host = host.lower().rstrip(".")
    split = (_split_entry(entry.lower()) for entry in entries)
    listed = {name for name, at in split if at in ("", str(port))}
    if host in listed:
        return Permit.NAMED
    if "*" in listed:
        return Permit.WILD
    if is_address(host):
        return None
    return Permit.WILD if any(each.startswith("*.") and host.endswith(each[1:]) for each in listed) else None


def direct_ports(entries: Iterable[str]) -> tuple[int, ...]:
    """Return the ports on which a sandbox serves programs that do not use the proxy: the usual web ports and the ports
    in `entries`, at most PORTS_MAX. Return no ports if there are no entries.
    """
    entries = tuple(entries)
    if not entries:
        return ()
    declared_ports = (int(port) for _, port in map(_split_entry, entries) if port)
    return tuple(dict.fromkeys((*WEB_PORTS, *declared_ports)))[:PORTS_MAX]


def port_of(url: SplitResult) -> int:
    """Return the port of an http or https URL. Raise ValueError if it is invalid."""
    return url.port or (80 if url.scheme == "http" else 443)


def _split_entry(entry: str) -> tuple[str, str]:
    """Split an egress entry into a name and a port, which is empty if there is none. IPv6 addresses have no port,
    because only Interlock writes such entries.
    """
    name, _, port = entry.partition(":")
    return (entry, "") if ":" in port else (name, port)


def names_this_machine(host: str) -> bool:
    """Return whether a host in an egress entry can mean this machine, because it is localhost or an IP address."""
    return is_address(host) or is_localhost(host.rstrip(".").lower())


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, in any of the spellings that resolvers read."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # Resolvers also read 127.1, 0x7f.1 and 2130706433 as addresses.
        return host.rpartition(".")[2][:1].isdecimal()
    return True


def read_head_untrusted(data: bytes) -> ProxyRequest | Malformed:
    """Parse the head of a proxy request, or return why it cannot be read.

    `data` ends with the empty line that ends the head.
    """
    line, *fields = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request_line = _REQUEST_LINE.fullmatch(line)
    if request_line is None:
        return Malformed("this is no request")
    method, target = request_line[1], request_line[2].decode("ascii")
    if method == b"CONNECT":
        place = _read_authority(target, None)
        return place if isinstance(place, Malformed) else ProxyRequest(host=place[0], port=place[1])
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() != "http":
        return Malformed("only http:// is asked for so; use CONNECT for everything else")
    cut = next((index for index, letter in enumerate(rest) if letter in "/?#"), len(rest))
    place = _read_authority(rest[:cut], 80)
    if isinstance(place, Malformed):
        return place
    path = rest[cut:].partition("#")[0]
    origin_form = path if path.startswith("/") else "/" + path
    head = [b"%b %b HTTP/1.1" % (method, origin_form.encode()), b"Host: " + rest[:cut].encode()]
    for field in fields:
        named = _FIELD.fullmatch(field)
        if named is None:
            return Malformed("a header that is none")
        if named[1].lower() not in _DROPPED:
            head.append(field)
    head.append(b"Connection: close")  # one request each: the next may be for another host
    return ProxyRequest(host=place[0], port=place[1], head=b"\r\n".join(head) + b"\r\n\r\n")


def _read_authority(authority: str, default_port: int | None) -> tuple[str, int] | Malformed:
    match = _AUTHORITY.fullmatch(authority.lower())
    if match is None:
        return Malformed("this is no host and port")
    six, name, written = match.groups()
    port = int(written) if written else default_port
    if port is None or not 0 < port < 65536:
        return Malformed("no port, or one that is none")
    if six is not None:
        return (six, port) if is_address(six) else Malformed("this is no address")
    if not _NAME.fullmatch(name):
        return Malformed("this is no name of a host")
    return name.rstrip("."), port
