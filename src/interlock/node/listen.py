"""Sockets that a node listens on, and the servers behind them."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from interlock.config.plan import Address


class EndpointServer(uvicorn.Server):
    """A server of one endpoint, which leaves signals to the node and says when it has begun."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    def end(self) -> None:
        """No new connections; exchanges under way go on."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(address: Address) -> socket.socket:
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
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104
    return str(Address(host, sock.getsockname()[1]))


def answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
