"""The other address of `localhost`, held beside the one an endpoint listens at.

`localhost` means 127.0.0.1 and ::1, and browsers try ::1 first. A user who may open a port on this machine could
answer there in place of an endpoint at 127.0.0.1, ask people for their token, and have their passkeys sign anything,
all on what is the endpoint's own page to a browser. So an endpoint that people reach by that name is at both, or at
neither.
"""

import errno
import socket
from typing import Final

_TWINS: Final = {"127.0.0.1": "::1", "0.0.0.0": "::1", "::1": "127.0.0.1"}  # noqa: S104
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # a machine without IPv6, or without IPv4


class Taken(Exception):
    """Another program listens there."""


def maybe_twin(sock: socket.socket) -> socket.socket | None:
    """A listener at the other address and the same port; None where this machine has no such address, or where the
    listener is not at `localhost`. Raises Taken."""
    host, port = sock.getsockname()[:2]
    other = _TWINS.get(host)
    if other is None:
        return None
    family = socket.AF_INET6 if ":" in other else socket.AF_INET
    twin: socket.socket | None = None
    try:
        twin = socket.socket(family)
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        twin.bind((other, port))
        twin.listen(2048)
        twin.setblocking(False)
    except OSError as error:
        if twin is not None:
            twin.close()
        if error.errno in _NO_SUCH_ADDRESS:
            return None
        raise Taken(f"{other} port {port}: {error.strerror}") from None
    return twin
