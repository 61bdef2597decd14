"""Ports for servers that listen later, or never: an address in a configuration, or a server that is away.

A port that is merely free now may be taken before its server listens: the system gives it to any connection of any
program as its local port. A reserved port stays bound until this process ends. The system gives it to nobody, and a
server that sets SO_REUSEADDR, as almost all do, can still listen at it.
"""

import atexit
import socket

_reserved: list[socket.socket] = []


def reserve_port() -> int:
    """Return a port of 127.0.0.1 at which nobody listens, and which nobody else gets."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _reserved.append(holder)
    return int(holder.getsockname()[1])


@atexit.register
def _release() -> None:
    for holder in _reserved:
        holder.close()
