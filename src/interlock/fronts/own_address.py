"""The address of an endpoint as its callers write it: which Host means it, and which Origin is its own page's."""

from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.config.plan import Address
from interlock.net.protocol.address_scope import LOOPBACK_HOSTS, UNSPECIFIED_HOSTS

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class OwnAddress(msgspec.Struct, frozen=True):
    hosts: frozenset[str] | None = LOOPBACK_HOSTS  # None: any, on all addresses and without a URL
    url: str | None = None  # how it is reached, where that differs from where it listens

    def is_own_host(self, host: str) -> bool:
        return self.hosts is None or host_name(host) in self.hosts

    def is_own_origin(self, origin: str, scheme: str, host: str) -> bool:
        """Return whether an Origin header names this node.

        `scheme` and `host` are those of the request with the header. A proxy in between may have changed both.
        """
        sent_origin = maybe_origin(origin)
        own = (f"{scheme}://{host}", self.url or "")
        return sent_origin is not None and sent_origin in map(maybe_origin, own)


THIS_MACHINE: Final = OwnAddress()


def own_address(listen: Address, url: str | None) -> OwnAddress:
    hosts = set(LOOPBACK_HOSTS)
    if url is not None:
        hosts.add(urlsplit(url).hostname or "")
    elif listen.host in UNSPECIFIED_HOSTS:
        return OwnAddress(None)
    hosts.add(listen.host.lower())
    return OwnAddress(frozenset(hosts), url)


def host_name(host: str) -> str:
    """Return the name in a Host header."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def maybe_origin(url: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of a URL (RFC 6454 4), or None if it has no origin."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        return (parts.scheme, parts.hostname, port) if parts.hostname and port else None
    except ValueError:
        return None
