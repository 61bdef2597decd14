"""What listens on an address that a node wants: another Interlock, another program, or nothing; and what is free."""

import errno
import http.client
import ssl
from contextlib import ExitStack
from typing import Final

from interlock.config.plan import Address
from interlock.node.sockets import bind

PATIENCE_S: Final = 1.0
READ_MAX: Final = 4096
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def is_taken(address: Address) -> bool:
    """Whether a program listens there already."""
    try:
        bind(address).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def free_addresses(*wanted: Address) -> list[Address]:
    """Addresses on which no program listens, one for each: the same hosts, with the next ports that are free."""
    found: list[Address] = []
    with ExitStack() as held:
        for address in wanted:
            if address.port == 0:  # whichever is free
                found.append(address)
                continue
            for port in range(address.port + len(wanted), 65536):
                try:
                    held.enter_context(bind(Address(address.host, port)))
                except OSError:
                    continue
                found.append(Address(address.host, port))
                break
    return found


def maybe_neighbour(address: Address, *, tls: bool = False) -> bool:
    """Whether an Interlock node answers there, at its public endpoint or at that of operators."""
    if address.port == 0:
        return False
    for is_tls in (tls, not tls):
        try:
            if b"interlock" in _said(_ANY.get(address.host, address.host), address.port, tls=is_tls):
                return True
        except (OSError, http.client.HTTPException):
            continue
    return False


def _said(host: str, port: int, *, tls: bool) -> bytes:
    """What it answers to a question that every node answers anybody."""
    if tls:
        context = ssl._create_unverified_context()  # noqa: S323  (nothing is sent that another may not read)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=PATIENCE_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/healthz", headers={"Accept": "application/json"})
        return connection.getresponse().read(READ_MAX).lower()
    finally:
        connection.close()
