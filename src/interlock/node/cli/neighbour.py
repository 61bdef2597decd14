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
    """Return whether a program listens on an address already."""
    try:
        bind(address).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def free_addresses(*wanted: Address) -> list[Address]:
    """Return a free address for each wanted one: the same host with the next port that is free."""
    free: list[Address] = []
    with ExitStack() as held:
        for address in wanted:
            if address.port == 0:  # whichever is free
                free.append(address)
                continue
            for port in range(address.port + len(wanted), 65536):
                try:
                    held.enter_context(bind(Address(address.host, port)))
                except OSError:
                    continue
                free.append(Address(address.host, port))
                break
    return free


def is_interlock_node(address: Address, *, tls: bool = False) -> bool:
    """Return whether an Interlock node answers at an address, with its public or its operator endpoint."""
    if address.port == 0:
        return False
    for is_tls in (tls, not tls):
        try:
            if b"interlock" in _health_answer(_ANY.get(address.host, address.host), address.port, tls=is_tls):
                return True
        except (OSError, http.client.HTTPException):
            continue
    return False


def _health_answer(host: str, port: int, *, tls: bool) -> bytes:
    """Return the answer to a request that every node answers without a credential."""
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
