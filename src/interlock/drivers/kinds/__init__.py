"""How a node installs, plans and starts the servers of each kind.

To add a kind of server, for example `kind: snap`, write in `interlock/drivers/protocol/kinds.py` a subclass of
`LocalServer` (or of `ServerBlock`, if the node does not start it), and add it to the table `SERVERS` there. The class
says which keys the block has in DRIVER.md, how it is read, what identifies it, and which program runs it. Nothing else
switches on a kind: reading, schemas, compatibility, export, `interlock add snap:NAME`, installation, version checks,
sandboxes and trust all follow from that class.

A kind that is more than a program to run, because it has an installer of its own, is confined by something else than
the sandbox, or is dialled, also has a class here.
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
    return _OTHERS.get(server.kind, _PROGRAM)
