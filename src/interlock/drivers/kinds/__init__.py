"""The kinds of servers that a driver can name: one module and one line of the table `KINDS` for each.

To add a kind of server, for example `kind: snap`:

1. Write `interlock/drivers/protocol/kinds/snap.py` with a subclass of `Server` (or of `LocalServer`, if the node starts
   it): its keys in DRIVER.md, its transports, how a block is read, what identifies it. Add it to `SERVERS` beside it.
2. Write `interlock/drivers/kinds/snap.py` with a subclass of `ServerKind`: how it is installed, and how it is started
   if that differs from a sandboxed command. Add it to `KINDS` below.

Nothing else switches on a kind: reading, schemas, compatibility, export, `interlock add snap:NAME`, installation,
version checks, sandboxes and trust ask these two tables.
"""

from collections.abc import Mapping
from typing import Any, Final

from interlock.drivers.kinds.binary import BinaryKind
from interlock.drivers.kinds.docker import DockerKind
from interlock.drivers.kinds.kind import ServerKind
from interlock.drivers.kinds.npm import NpmKind
from interlock.drivers.kinds.pypi import PypiKind
from interlock.drivers.kinds.remote import RemoteKind
from interlock.drivers.protocol.kinds.server import Server

KINDS: Final[Mapping[str, ServerKind[Any]]] = {
    "binary": BinaryKind(),
    "npm": NpmKind(),
    "pypi": PypiKind(),
    "docker": DockerKind(),
    "remote": RemoteKind(),
}


def kind_of(server: Server) -> ServerKind[Any]:
    return KINDS[server.kind]
