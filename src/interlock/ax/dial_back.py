"""Subservers that register by POST and name their endpoint: the node connects there as an MCP client (MCP-AX 3.1).

A registrant must not make the node connect to any address it likes (SSRF). The operator's list ax.dial_back says where
the node may connect to: the parts of a URL are compared with an entry one by one, and an address of a private network
is allowed only if the entry names that very host. A name may resolve to another address later, so it is checked before
every connection, and the node connects to the very address that was checked. Only a host that an entry names, dialled
over a protected link, is resolved once more for the connection.

There is no connection of the subserver itself whose end would show that it is gone. Where it promises no heartbeats,
the keeper probes it every PROBE_EVERY_S.
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
from interlock.links.registered import (
    RegisteredConnector,
    RegisteredKeeper,
    RegisteredLink,
    RegistrationParts,
)
from interlock.net.protocol.address_scope import Scope, is_loopback, scope_of
from interlock.process.stderr import StderrRing
from interlock.wire.refusal import INVALID_PARAMS, LINK_INSECURE, Refusal, ax_refusal

PROBE_EVERY_S: Final = 30.0  # MCP-AX 6.3, ours: if no heartbeats are promised
PROBE_S: Final = 10.0  # for the answer to a probe
PROBES_FAILED_MAX: Final = 2  # in a row; then the subserver is lost
RESOLVE_S: Final = 5.0  # for DNS
# Path segments by which a server could leave the path that an entry allows, plain or encoded.
_LEADS_AWAY: Final = re.compile(r"\.\.|//|\\|%(?:2e|2f|5c|25)", re.IGNORECASE)
_PORTS: Final = {"http": 80, "https": 443}


async def check_endpoint(register: Register, allowed: Iterable[str], guest: RegistrantIdentity) -> Refusal | None:
    """Return a refusal if a registrant named no endpoint or one to which the node may not connect, otherwise None."""
    if register.endpoint is None:
        return _refuse("named when registering by POST; without one, open a WebSocket at /ax")
    addresses = await find_addresses(register.endpoint, allowed, guest)
    return addresses if isinstance(addresses, Refusal) else None


async def find_addresses(endpoint: str, allowed: Iterable[str], guest: RegistrantIdentity) -> tuple[str, ...] | Refusal:
    """Return the addresses to which the node may connect for `endpoint`, or a refusal if it may not connect.

    An empty tuple allows every address that the host name resolves to, because the operator listed this host and the
    connection is protected by TLS or by the registrant's [[access]] entry (`secure_by`).
    """
    url = urlsplit(endpoint)
    if _LEADS_AWAY.search(url.path):
        return _refuse("a URL whose path has no '..', '//', '\\' and no such character encoded")
    entries = [urlsplit(entry) for entry in allowed]
    matching = [entry for entry in entries if _matches(url, entry)]
    if not matching:
        return _refuse("within ax.dial_back of this aggregator")
    loop = asyncio.get_running_loop()
    try:
        results = await asyncio.wait_for(loop.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM), RESOLVE_S)
    except (OSError, TimeoutError, UnicodeError):
        return _refuse("an address that can be resolved")
    addresses = [ipaddress.ip_address(str(result[4][0]).partition("%")[0]) for result in results]
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
    """Return whether a URL matches an allowed one.

    Each part is compared separately, so that a `*` in the host never matches part of the path.
    """
    if url.scheme != entry.scheme or not url.hostname or not entry.hostname:
        return False
    port, allowed_port = url.port or _PORTS[url.scheme], entry.port or _PORTS[entry.scheme]
    path, allowed_path = url.path or "/", entry.path or "/"
    return port == allowed_port and fnmatchcase(url.hostname, entry.hostname) and fnmatchcase(path, allowed_path)


def _refuse(must: str) -> Refusal:
    return Refusal(INVALID_PARAMS, f"endpoint must be {must}", {"member": "endpoint"})


class DialBack:
    """Registration source of a subserver that registered by POST, and to which the node connects."""

    transport = "http"
    is_open = True

    def __init__(self, guest: RegistrantIdentity, allowed: Iterable[str]) -> None:
        self.guest = guest
        self._allowed = tuple(allowed)

    async def ask_parent(self) -> Parent | Refusal | None:
        """Return None: there is no link yet over which to ask. The registration itself names the parent."""
        return None

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        return DialledBackKeeper(parts, self._allowed, self.guest)

    def close(self, code: int, reason: str) -> None:
        """Do nothing: the subserver opened no connection, and the keeper closes the one that the node opened."""


class _CheckedConnector(RegisteredConnector):
    """Connector that checks the address against the operator's list before every connection."""

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
        addresses = await find_addresses(self._endpoint, self._allowed, self._guest)
        if isinstance(addresses, Refusal):
            raise ConnectFailed(f"it is not dialled: {addresses.message}")
        # After a failure the next address is tried.
        return addresses[self._failures % len(addresses)] if addresses else None


class DialledBackKeeper(RegisteredKeeper):
    """Keeper of a link that this node opens to a registered subserver, and opens again after a loss."""

    def __init__(self, parts: RegistrationParts, allowed: tuple[str, ...], guest: RegistrantIdentity) -> None:
        super().__init__(parts)
        self._connector = _CheckedConnector(self.link, parts.connector_parts, self.stderr, self._loss, allowed, guest)
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
            self.hanging_up = asyncio.get_running_loop().create_task(pipe.close())

    async def _watch(self) -> None:
        """Ask the subserver for an answer at intervals, and end its link after two failures in a row."""
        failed = 0
        while failed < PROBES_FAILED_MAX:
            await asyncio.sleep(PROBE_EVERY_S)
            failed = 0 if await self.answers(PROBE_S) else failed + 1
        self.link.on_pipe_lost("it did not answer twice in a row")
