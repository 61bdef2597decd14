"""The sockets of a node, bound before any server is started, so that a port in use is found first.

The operator endpoint is bound at both addresses of `localhost` if it listens at one of them. Browsers try ::1 before
127.0.0.1: another user of this machine could answer there in place of an endpoint at 127.0.0.1, ask people for their
token, and have their passkeys sign anything, on what a browser takes for the endpoint's own page. If another program
already listens at the second address, the endpoint works but passkeys are switched off.

The functions at the end look at an address that a node wants, for `interlock serve` and `interlock doctor`: whether it
is taken, whether an Interlock node answers there, and which address is free.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvicorn

from interlock.approvals.trust.passkeys import PasskeyService
from interlock.config.plan import Address, Plan
from interlock.core.current_plan import Addresses

_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


class EndpointServer(uvicorn.Server):
    """The HTTP server of one endpoint. It leaves signals to the node, and sets `begun` when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    def end(self) -> None:
        """Stop accepting connections. Requests under way continue."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(address: Address) -> socket.socket:
    """Return a TCP socket that listens at an address. Raise OSError, whose text contains the address, if that fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(2048)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{address}: {error.strerror}") from None
    return sock


def reachable(sock: socket.socket, address: Address) -> str:
    """Return the host and port at which programs on this machine reach a listening socket."""
    return str(Address(_ANY.get(address.host, address.host), sock.getsockname()[1]))


def answers(path: str) -> bool:
    """Return whether a program listens at a Unix socket.

    Return False for a socket file left behind by a dead program.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


_TWINS: Final = {"127.0.0.1": "::1", "0.0.0.0": "::1", "::1": "127.0.0.1"}  # noqa: S104
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # a machine without IPv6, or without IPv4


class Taken(Exception):
    """An error raised if another program already listens at an address."""


def bind_twin(sock: socket.socket) -> socket.socket | None:
    """Return a socket that listens at the other loopback address of localhost (127.0.0.1 or ::1), with the same port as
    `sock`.

    Raise Taken if it cannot be bound, which usually means that another program uses it.

    Return None if this machine has no such address, or if the listener is not on localhost.
    """
    host, port = sock.getsockname()[:2]
    other = _TWINS.get(host)
    if other is None:
        return None
    try:
        return bind(Address(other, port))
    except OSError as error:
        if error.errno in _NO_SUCH_ADDRESS:
            return None
        raise Taken(f"{other} port {port}: {os.strerror(error.errno or 0)}") from None


log = logging.getLogger("interlock.node")


class NodeRunning(Exception):
    """An error raised if another node is running with the same data folder."""


class Sockets:
    """The part of a node with its bound sockets: those of the two endpoints, admin.sock, and `ax.socket` if it is
    configured.
    """

    def __init__(self, plan: Plan, addresses: Addresses, passkeys: PasskeyService) -> None:
        self.folder = plan.data / "run"  # of the sockets that are files
        self.public: socket.socket
        self.operator: tuple[socket.socket, ...]
        self.admin: socket.socket
        self.subservers: socket.socket | None = None  # ax.socket
        self._plan = plan.node
        self._ax_path = plan.ax.socket
        self._addresses, self._passkeys = addresses, passkeys
        self._opened = contextlib.ExitStack()

    async def open(self) -> None:
        """Bind all sockets of the node.

        Raise NodeRunning if another node uses the data folder, or OSError if a socket cannot be bound.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        admin_path = self.folder / "admin.sock"
        if answers(str(admin_path)):
            raise NodeRunning("a node is already running for this data folder")
        admin_path.unlink(missing_ok=True)
        with contextlib.ExitStack() as opened:
            self.public = opened.enter_context(bind(self._plan.listen))
            operator = opened.enter_context(bind(self._plan.operator_listen))
            twin = self._bind_twin(operator)
            self.operator = (operator,) if twin is None else (operator, opened.enter_context(twin))
            self.admin = opened.enter_context(_bind_file(admin_path, 0o600))
            if self._ax_path is not None:
                if answers(str(self._ax_path)):
                    raise OSError(errno.EADDRINUSE, f"{self._ax_path}: another program listens there")
                if self._ax_path.is_socket():
                    self._ax_path.unlink()
                # Everyone who may enter its folder may connect: the kernel tells who it is (AX-4.2-10).
                self.subservers = opened.enter_context(_bind_file(self._ax_path, 0o666))
            self._opened = opened.pop_all()
        scheme = "https" if self._plan.tls_cert is not None else "http"
        self._addresses.take_bound(
            public=f"{scheme}://{reachable(self.public, self._plan.listen)}",
            operator=f"{scheme}://{reachable(operator, self._plan.operator_listen)}",
        )

    async def close(self) -> None:
        self.subservers = None
        self._opened.close()

    def _bind_twin(self, operator: socket.socket) -> socket.socket | None:
        """Return a socket at the second loopback address of localhost, to which browsers may connect too. If another
        program uses this address, return None and disable passkeys.
        """
        try:
            return bind_twin(operator)
        except Taken as taken:
            self._passkeys.on_shadowed()
            log.warning("another program is where browsers look for localhost (%s): no passkey counts here", taken)
            return None


@contextlib.contextmanager
def _bind_file(path: Path, mode: int) -> Iterator[socket.socket]:
    """Bind a Unix socket with permissions for the block of this context manager. Its file is removed afterwards.

    Raise OSError if binding fails.
    """
    with socket.socket(socket.AF_UNIX) as bound:
        try:
            bound.bind(str(path))
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror}") from None
        try:
            path.chmod(mode)
            yield bound
        finally:
            path.unlink(missing_ok=True)


PATIENCE_S: Final = 1.0
READ_MAX: Final = 4096


def is_taken(address: Address) -> bool:
    """Return whether a program already listens at an address."""
    try:
        bind(address).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def free_addresses(*wanted: Address) -> list[Address]:
    """Return a free address for each wanted one, with the same host and a higher port. An address with port 0 is
    returned as it is.
    """
    free: list[Address] = []
    with contextlib.ExitStack() as held:
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
    """Return whether an Interlock node answers at an address, at either of its endpoints."""
    # Imported here: only a taken address needs it, and it takes 0.5 MB of every node otherwise.
    import http.client

    if address.port == 0:
        return False
    host = _ANY.get(address.host, address.host)
    for is_tls in (tls, not tls):
        connection = http.client.HTTPConnection(host, address.port, timeout=PATIENCE_S)
        if is_tls:
            context = ssl._create_unverified_context()  # noqa: S323  (nothing is sent that another may not read)
            connection = http.client.HTTPSConnection(host, address.port, timeout=PATIENCE_S, context=context)
        try:
            # Every node answers this request without a credential.
            connection.request("GET", "/healthz", headers={"Accept": "application/json"})
            if b"interlock" in connection.getresponse().read(READ_MAX).lower():
                return True
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return False
