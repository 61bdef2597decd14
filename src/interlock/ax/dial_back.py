"""Subservers that register by POST and name their endpoint: the node connects there as an MCP client (MCP-AX 3.1).

Where it may connect to is the operator's list: a URL of ax.dial_back, whose parts are compared one by one, and never
an address of a private network unless the entry names that very host. Where a name leads may change, so that is judged
before every connection, and the very address that was judged is connected to.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import SplitResult, urlsplit

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.protocol.messages import Parent, Register
from interlock.core.link_state import LinkState
from interlock.links.connector import ConnectFailed, ConnectorParts, Loss
from interlock.links.keeper import Keeper
from interlock.links.pipes import Pipe
from interlock.links.registered import (
    RegisteredConnector,
    RegisteredKeeper,
    RegisteredLink,
    RegistrationParts,
)
from interlock.net.protocol.address_scope import IpAddress, Scope, is_loopback, scope_of
from interlock.process.stderr import StderrRing
from interlock.wire.refusal import INVALID_PARAMS, LINK_INSECURE, Refusal, ax_refusal

PROBE_EVERY_S: Final = 30.0  # MCP-AX 6.3, ours: where no heartbeats are promised
PROBE_S: Final = 10.0
PROBES_FAILED_MAX: Final = 2
RESOLVE_S: Final = 5.0
_LEADS_AWAY: Final = re.compile(r"\.\.|//|\\|%(?:2e|2f|5c|25)", re.IGNORECASE)  # from what an entry's path says
_PORTS: Final = {"http": 80, "https": 443}


async def check_endpoint(register: Register, allowed: Iterable[str], guest: RegistrantIdentity) -> Refusal | None:
    """Return why the node does not connect to the endpoint, or None."""
    if register.endpoint is None:
        return _refuse("named when registering by POST; without one, open a WebSocket at /ax")
    verdict = await judge(register.endpoint, allowed, guest)
    return verdict if isinstance(verdict, Refusal) else None


async def judge(endpoint: str, allowed: Iterable[str], guest: RegistrantIdentity) -> tuple[str, ...] | Refusal:
    """Return the addresses to connect to, or why there are none. An empty result allows any address, because the
    operator named the host.
    """
    url = urlsplit(endpoint)
    if _LEADS_AWAY.search(url.path):
        return _refuse("a URL whose path has no '..', '//', '\\' and no such character encoded")
    entries = [urlsplit(entry) for entry in allowed]
    matching = [entry for entry in entries if _matches(url, entry)]
    if not matching:
        return _refuse("within ax.dial_back of this aggregator")
    addresses = await _addresses(url)
    if not addresses:
        return _refuse("an address that can be resolved")
    named = any(entry.hostname == url.hostname for entry in matching)
    if not named and any(scope_of(address) > Scope.PUBLIC for address in addresses):
        return _refuse("on no private network, unless ax.dial_back names its host")
    on_this_machine = all(map(is_loopback, addresses))
    protected = url.scheme == "https" or (guest.rule is not None and guest.rule.secure_by is not None)
    if not protected and not on_this_machine:
        return ax_refusal(LINK_INSECURE, "an endpoint beyond this machine is dialled over TLS", member="endpoint")
    return () if named and protected else tuple(map(str, addresses))


def _matches(url: SplitResult, entry: SplitResult) -> bool:
    """Compare a URL with an allowed one part by part, so that a star in the host cannot reach into the path."""
    if url.scheme != entry.scheme or not url.hostname or not entry.hostname:
        return False
    port, allowed_port = url.port or _PORTS[url.scheme], entry.port or _PORTS[entry.scheme]
    path, allowed_path = url.path or "/", entry.path or "/"
    return port == allowed_port and fnmatchcase(url.hostname, entry.hostname) and fnmatchcase(path, allowed_path)


async def _addresses(url: SplitResult) -> list[IpAddress]:
    loop = asyncio.get_running_loop()
    try:
        results = await asyncio.wait_for(loop.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM), RESOLVE_S)
    except (OSError, TimeoutError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(result[4][0]).partition("%")[0]) for result in results]


def _refuse(must: str) -> Refusal:
    return Refusal(INVALID_PARAMS, f"endpoint must be {must}", {"member": "endpoint"})


class DialBack:
    """The RegistrationSource of a registration that came by POST."""

    transport = "http"
    is_open = True

    def __init__(self, guest: RegistrantIdentity, allowed: Iterable[str]) -> None:
        self.guest = guest
        self._allowed = tuple(allowed)

    async def ask_parent(self) -> Parent | Refusal | None:
        return None  # there is no link yet to ask on; what it says in the registration counts

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        return DialledBackKeeper(parts, self._allowed, self.guest)

    def close(self, code: int, reason: str) -> None:
        """Do nothing: no connection of the subserver is open here, and the keeper closes its own."""


class _Judging(RegisteredConnector):
    """Dials only where the operator's list leads at the time."""

    def __init__(
        self,
        link: RegisteredLink,
        connector_parts: ConnectorParts,
        stderr: StderrRing,
        loss: Loss,
        allowed: tuple[str, ...],
        guest: RegistrantIdentity,
    ) -> None:
        super().__init__(link, connector_parts, stderr, loss)
        self._endpoint = link.registration.register.endpoint or ""
        self._allowed = allowed
        self._guest = guest
        self._failures = 0

    async def connect(self, start: AsyncExitStack) -> None:
        try:
            await super().connect(start)
        except ConnectFailed:
            self._failures += 1
            raise

    async def _find_address(self) -> str | None:
        verdict = await judge(self._endpoint, self._allowed, self._guest)
        if isinstance(verdict, Refusal):
            raise ConnectFailed(f"it is not dialled: {verdict.message}")
        return verdict[self._failures % len(verdict)] if verdict else None


class DialledBackKeeper(RegisteredKeeper):
    def __init__(self, parts: RegistrationParts, allowed: tuple[str, ...], guest: RegistrantIdentity) -> None:
        super().__init__(parts)
        self._connector = _Judging(self.link, parts.connector_parts, self.stderr, self._loss, allowed, guest)
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        super().start()
        if not self.link.registration.register.heartbeat_interval_ms:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _live(self) -> None:
        await Keeper._live(self)

    async def restart(self) -> None:
        await Keeper.restart(self)

    def cut(self, state: LinkState, reason: str) -> None:
        pipe = self.link.pipe
        super().cut(state, reason)
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()
        if pipe is not None:
            self.hanging_up = asyncio.get_running_loop().create_task(_close(pipe))

    async def _watch(self) -> None:
        failed = 0
        while failed < PROBES_FAILED_MAX:
            await asyncio.sleep(PROBE_EVERY_S)
            failed = 0 if await self.answers(PROBE_S) else failed + 1
        self.link.on_pipe_lost("it did not answer twice in a row")


async def _close(pipe: Pipe) -> None:
    await pipe.close()
