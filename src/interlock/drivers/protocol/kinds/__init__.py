"""The table of server kinds, to which a new kind of server is added. `interlock.drivers.kinds` tells how.

To add a kind of server, write its module beside this one and add its class to `SERVERS`. The class reads, identifies
and exports the server block of DRIVER.md. This package is pure.
"""

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
