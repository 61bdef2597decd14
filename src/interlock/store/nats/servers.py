"""Where the NATS servers of a store are, and the name under which replicas share their data.

These values are in a module without imports of NATS, because every node imports them.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec


class NatsServers(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the NATS servers of a store, and the options for connecting to them."""

    urls: tuple[str, ...]
    secret: Callable[[], Awaitable[str | None]] | None = None  # what `credentials` reads
    ca_file: str | None = None  # who may vouch for a server, where the system's own do not

    def __str__(self) -> str:
        return ", ".join(address(url) for url in self.urls)


class SharedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The location of the data that all replicas of a node share: NATS servers, node name and replication."""

    servers: NatsServers
    node: str  # their name
    replicas: int = 1  # on how many servers of a cluster each stream is


def address(url: str) -> str:
    """Return a URL with its credentials removed."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
