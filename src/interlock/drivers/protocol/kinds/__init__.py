"""The kinds of servers as DRIVER.md writes them: reading, identity, export. Pure; see `interlock.drivers.kinds`."""

from collections.abc import Mapping
from typing import Final

from interlock.drivers.protocol.kinds.binary import Binary
from interlock.drivers.protocol.kinds.docker import Docker
from interlock.drivers.protocol.kinds.npm import Npm
from interlock.drivers.protocol.kinds.pypi import Pypi
from interlock.drivers.protocol.kinds.remote import Remote
from interlock.drivers.protocol.kinds.server import Server

# The table of kinds by the value of server.kind, in the order in which messages list them.
SERVERS: Final[Mapping[str, type[Server]]] = {each.kind: each for each in (Binary, Npm, Pypi, Docker, Remote)}
