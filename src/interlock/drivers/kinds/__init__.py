"""The operations of a node on each kind of server: installing it, planning its process and cleaning up after it.

To add a kind of server, for example `kind: snap`, write in `interlock/drivers/protocol/kinds.py` a subclass of
`LocalServer` (or of `ServerBlock`, if the node does not start it), and add it to the table `SERVERS` there. The class
defines which keys the block has in DRIVER.md, how it is read, what identifies it, and which program runs it. No other
code distinguishes kinds: reading, schemas, compatibility, export, `interlock add snap:NAME`, installation, version
checks, sandboxes and trust all follow from that class.

A kind also has a class in this package if it is more than a program to run: if it has its own installer, is confined by
something other than the sandbox, or runs elsewhere and is connected to.
"""

from collections.abc import Mapping
from typing import Any, Final

from interlock.drivers.kinds.docker import DockerKind
from interlock.drivers.kinds.kind import ServerKind
from interlock.drivers.kinds.programs import NpmKind, ProgramKind, PypiKind
from interlock.drivers.kinds.remote import RemoteKind
from interlock.drivers.protocol.kinds import ServerBlock

_PROGRAM: Final = ProgramKind()
_OTHERS: Final[Mapping[str, ServerKind[Any]]] = {
    "npm": NpmKind(),
    "pypi": PypiKind(),
    "docker": DockerKind(),
    "remote": RemoteKind(),
}


def kind_of(server: ServerBlock) -> ServerKind[Any]:
    """Return the operations for a server's kind. A kind without a class in this package runs as a program."""
    return _OTHERS.get(server.kind, _PROGRAM)
