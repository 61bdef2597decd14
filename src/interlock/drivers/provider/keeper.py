"""The keeper of one process or connection of a driver's server: counts attempts, checks lists, lets it sleep.

It differs from the keeper of a configured server in what follows from AIP-transport-12: attempts are made in series of
1 + max_retries, a program that keeps ending is left alone for a minute, and a server whose tools cannot be listed is
not there at all, because nothing could be said of its contracts.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from math import inf
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, DriversPlan, ServerPlan
from interlock.core.calls.call import Pending
from interlock.core.calls.caller import Caller, QuestionOrigin
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.credentials.secret_references import SecretResolver
from interlock.credentials.token import TokenHolder
from interlock.drivers.install.installation import Installed, InstallFailed
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Driver, SecretEntry
from interlock.drivers.protocol.secret_use import Detected, Detector, maybe_detector
from interlock.drivers.secrets.vault import DriverRevealer, Vault
from interlock.drivers.workspace.folder import BROKEN, WORDS, TamperCheck
from interlock.links.connected_link import ConnectedLink, ServerLink
from interlock.links.connector import ConnectFailed, ConnectorParts
from interlock.links.handshake import UNSUPPORTED
from interlock.links.keeper import LISTS_OF, Keeper, StockCatalog, backoff_s
from interlock.links.link import Link, LinkEvents
from interlock.links.listing import FIELD, LIST_S, Items, Listing
from interlock.links.pipes import StdioPipe, Trouble, Undelivered
from interlock.links.server_keeper import ServerKeeper
from interlock.mcp.methods import PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST, TOOLS_LIST
from interlock.process.stderr import Redact, StderrRing
from interlock.store.ports import KeyValue
from interlock.wire.jsonrpc.codec import CodecError, Notification, Request, Response, decode_untrusted
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

# The context of a call through a driver: from the caller's principal, never from anything a client sends.
#
# Outside rooms every principal is a tenant of its own.


def user_of(caller: Caller) -> str:
    return caller.principal.name


def tenant_of(caller: Caller) -> str:
    return caller.principal.name


def context_of(caller: Caller, workspace: str) -> Mapping[str, str]:
    """Return the values for context_arguments and a contract's context_schema."""
    name = caller.principal.name
    return {"tenant_id": name, "user_id": name, "workspace_id": workspace}


# The link of a driver's server: removes the secrets it was given from what it says, before any other part reads it.
#
# It also notices by what the driver's file calls an expired login (`expiry.detect`), and says so once per connection.

_NAMES = {
    Trouble.UNREACHABLE: "tool_unavailable",
    Trouble.LOST: "upstream_error",
    Trouble.BUSY: "rate_limited",
    Trouble.UNAUTHORISED: "auth_failed",
    Trouble.SESSION_LOST: "upstream_error",
    Trouble.REFUSED: "upstream_error",
    Trouble.MALFORMED: "upstream_error",
}


class DriverLink(ServerLink):
    def __init__(
        self,
        plan: ServerPlan,
        events: LinkEvents,
        clock: Clock,
        *,
        vendor_meta: bool,
        revealer: DriverRevealer,
        redacts_results: bool,
        detector: Detector | None,
        on_expired: Callable[[str], None],
        owner: str | None = None,
    ) -> None:
        super().__init__(plan, events, clock, vendor_meta=vendor_meta, owner=owner)
        self._revealer = revealer
        self._redacts_results = redacts_results
        self._detector = detector
        self._on_expired = on_expired

    def on_message(self, data: bytes, origin: Pending | None) -> bool:
        redactor = self._revealer.redactor
        if redactor and redactor.is_in(data) and (self._redacts_results or not _is_result(data)):
            data = redactor.redacted(data)
        return super().on_message(data, origin)

    def on_undelivered(self, origin: Pending | None, what: Undelivered) -> None:
        # An OAuth login may get another token: it has not expired before its holder says so.
        if self._detector is not None and not (
            self.failed.can_renew_credential and what.trouble is Trouble.UNAUTHORISED
        ):
            headers = (*what.headers, *((b"www-authenticate", challenge) for challenge in what.challenges))
            self._look(Detected(status=what.status, headers=headers, exception=_NAMES[what.trouble]))
        super().on_undelivered(origin, what)

    def on_pipe_lost(self, reason: str) -> None:
        child = self.pipe.child if isinstance(self.pipe, StdioPipe) else None
        if self._detector is not None:
            exit_code = child.returncode if child is not None else None
            self._look(Detected(exit_code=exit_code, exception="upstream_error"))
        super().on_pipe_lost(reason)

    def _look(self, seen: Detected) -> None:
        if self._detector is not None and self._detector.is_expired(seen):
            self._on_expired(f"its login has expired ({self._detector.written})")


def _is_result(data: bytes) -> bool:
    try:
        message = decode_untrusted(data)
    except CodecError:
        return False
    return isinstance(message, Response) and not message.error


FIRST_S: Final = 0.25  # AIP-transport-12
EXITS_MAX: Final = 5
EXITS_WITHIN_S: Final = 60.0
BARRED_S: Final = 60.0
AGAIN_S: Final = 60.0  # after a series of attempts in vain, unless somebody wants it sooner
LEAST_TTL_S: Final = 1.0  # a list that is stale at once is not read more often than this
_MAY_NOT_ASK: Final = Refusal(METHOD_NOT_FOUND, "the client offers no such thing")


def lists_of(driver: Driver) -> tuple[str, ...]:
    """AIP-proto-4: what is not declared is not asked for."""
    prompts = (PROMPTS_LIST,) if driver.prompts else ()
    return (TOOLS_LIST, *prompts, *((RESOURCES_LIST, TEMPLATES_LIST) if driver.resources else ()))


class DriverKeeper(ServerKeeper):
    link: ServerLink
    is_offered = False
    wakes_after_s = 0.0, 0.0  # its attempts are bounded by their series

    def __init__(
        self,
        make_link: Callable[[LinkEvents], ServerLink],
        connector_parts: ConnectorParts,
        stock: StockCatalog,
        events: LinkEvents,
        holder: TokenHolder | None,
        *,
        driver: Driver,
        on_up: Callable[[], None],
        on_fallen: Callable[[], None],
        on_restarted: Callable[[], None],
        serves: Callable[[], int],
        seal: TamperCheck | None = None,
        redact: Redact | None = None,
    ) -> None:
        """Prepare to keep a driver's server running.

        `on_up`: called when the server is connected and its lists were checked. `on_fallen`: called when a series of
        attempts failed. `on_restarted`: called when a restart is requested. `serves`: returns how many contracts the
        driver serves. `redact`: removes secrets from what the server writes to stderr.
        """
        stderr = StderrRing(now=connector_parts.clock.wall, redact=redact)
        super().__init__(make_link, connector_parts, stock, events, holder, stderr)
        self._may_ask = bool(driver.interlock.client_capabilities)  # the server was offered to ask the client of a call
        self.reads = lists_of(driver)
        self.fell = asyncio.Event()
        self._seal = seal
        self._sealed: bytes | None = None  # the marks of the folder when the server was started
        self._on_up = on_up
        self._on_fallen = on_fallen
        self._on_restarted = on_restarted
        self._serves = serves
        self._retries_max = driver.connection.max_retries
        self._failed = 0  # attempts of this series
        self._gives_up = False
        self._exits: deque[float] = deque(maxlen=EXITS_MAX)
        self._barred_until = -inf
        self.ended: str | None = None  # how its process last ended unasked

    @property
    def contracts(self) -> int:
        return self._serves()

    @property
    def is_usable(self) -> bool:
        return self._usable.is_set()

    @property
    def is_barred(self) -> bool:
        return self._connector_parts.clock.now() < self._barred_until

    @property
    def is_current(self) -> bool:
        """Check whether the lists of the server were read and are still up to date (AIP-tools-10)."""
        reading = self._relists.get("tools")
        if self.listing is None or (reading is not None and not reading.done()):
            return False
        ttl_s = self.listing.tools.ttl_s
        return ttl_s is None or self._connector_parts.clock.now() - self.listed_at["tools"] < max(LEAST_TTL_S, ttl_s)

    async def come_up(self) -> bool:
        """Wait until the server can be used, or a series of attempts failed."""
        if self.is_usable:
            return True
        if self.is_barred:
            return False
        if self.fell.is_set() or self.link.standing.state is LinkState.ASLEEP or self._falls_asleep:
            self.fell.clear()
            self._failed = 0
            self.wake()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._usable, self.fell)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.is_usable

    async def read_again(self) -> None:
        """Wait until the list of tools has been read anew, within the time of a list."""
        await asyncio.wait((self.refreshed("tools"),), timeout=self._connector_parts.manner.within(LIST_S))

    async def stop(self) -> None:
        await super().stop()
        self.fell.set()  # a waiting caller learns that it will not come up

    async def restart(self) -> None:
        self._on_restarted()
        self._exits.clear()
        self._barred_until = -inf
        self._failed = 0
        self.fell.clear()
        await super().restart()

    # What the link says (LinkEvents). A server behind contracts is shared, and knows no client: AIP-proto-6

    def on_question(self, link: ConnectedLink, asking: QuestionOrigin) -> Refusal | None:
        return super().on_question(link, asking) if self._may_ask else _MAY_NOT_ASK  # AIP-proto-6

    def on_orphan_request(self, link: ConnectedLink, request: Request) -> bool:
        return self._may_ask and super().on_orphan_request(link, request)

    def on_elicitation_complete(self, link: ConnectedLink, params: Raw) -> None:
        if self._may_ask:
            super().on_elicitation_complete(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        """Ignore the notification, because clients use contracts and do not see this server."""

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        self.refused(what)

    # Attempts

    async def _connect(self) -> None:
        if self._seal is not None:
            self._sealed = await self._seal.mark()
            if self._sealed is None:
                raise ConnectFailed(WORDS, code=BROKEN)
        await super()._connect()
        self.fell.clear()
        self._failed = 0
        self._on_up()

    async def _stock(self) -> None:
        """Unless the server goes first: a list it was asked for then would never come."""
        reading, lost = asyncio.ensure_future(self._read_lists()), asyncio.ensure_future(self._loss.wait())
        try:
            await asyncio.wait((reading, lost), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise ConnectFailed(self._loss.reason)
            reading.result()
        finally:
            reading.cancel()
            lost.cancel()
            await asyncio.gather(reading, lost, return_exceptions=True)

    async def _read_lists(self) -> None:
        """Read one list after the other (AIP-proto-4), and skip one that does not come."""
        # AIP-security-13
        if self._seal is not None and self._sealed is not None and not await self._seal.is_same(self._sealed):
            raise ConnectFailed(WORDS, code=BROKEN)
        lists: dict[str, Items] = {}
        for method in self.reads:
            items, failed = await self._read(method)
            if items is None:
                refusal = failed.what if failed is not None and failed.unauthorised else None
                raise ConnectFailed(str(failed), refusal=refusal)
            lists[FIELD[method]] = items
        await self._publish(Listing(**lists), LISTS_OF)
        self._set_listed_state()

    async def _hang_up(self, reason: str) -> None:
        if self.link.pid is not None and not (self._falls_asleep or self._stopping):
            self._exits.append(self._connector_parts.clock.now())
            self.ended = reason  # AIP-transport-13
        await super()._hang_up(reason)

    def _backoff_s(self) -> float:
        now = self._connector_parts.clock.now()
        self._gives_up = True
        if len(self._exits) == EXITS_MAX and now - self._exits[0] <= EXITS_WITHIN_S:  # AIP-transport-12: unavailable
            self._barred_until = now + BARRED_S  # as long as the exits count, so that none of them does afterwards
            return BARRED_S
        if self.failure is None:  # it was there, and went
            self._gives_up = False
            return backoff_s(1, FIRST_S)
        if self.failure.code == UNSUPPORTED:
            return inf
        self._failed += 1
        self._gives_up = self._failed > self._retries_max  # AIP-transport-12
        return AGAIN_S if self._gives_up else backoff_s(self._failed, FIRST_S)

    def _set_lost_state(self, reason: str, wait_s: float, *, unauthorised: bool) -> None:
        super()._set_lost_state(reason, wait_s, unauthorised=unauthorised)
        if unauthorised or self._gives_up:
            self._gives_up = False
            self.fell.set()
            self._on_fallen()


# The environment of a driver: everything that the node gives each of them, as one value.

Installer = Callable[[Driver, Path, Callable[[str], None]], Awaitable[Installed | InstallFailed]]


class DriverEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    plan: DriversPlan
    data: Path
    connector_parts: ConnectorParts
    link_events: LinkEvents
    keepers: dict[str, Keeper]
    kv: KeyValue
    install: Installer
    holder_for: Callable[[str, Dial, SecretResolver], TokenHolder | None]
    vault: Vault
    tenant_of: Callable[[Caller], str] = tenant_of
    user_of: Callable[[Caller], str] = user_of
    vendor_meta: bool = True

    def with_plan(self, plan: DriversPlan) -> "DriverEnvironment":
        return msgspec.structs.replace(self, plan=plan)


# The keeper factory: one keeper for the driver's server, and one for each tenant or user where they are isolated.


class ServerEvents(Protocol):
    """Events of a driver's servers. `who` is the tenant or user of a server, or None for the shared one."""

    async def on_listing(self, link: Link, who: str | None, listing: Listing | None) -> None: ...

    def on_up(self) -> None:
        """Handle that a server is connected and its lists were checked."""

    def on_fallen(self, who: str | None) -> None:
        """Handle that a series of attempts failed."""

    def on_restarted(self, who: str | None) -> None:
        """Handle that a restart was requested."""

    def on_expired(self, who: str | None, reason: str) -> None:
        """Handle that the server reports an expired login."""

    def serves(self) -> int:
        """Return how many contracts the driver serves now."""


class KeeperFactory:
    def __init__(
        self,
        driver: Driver,
        environment: DriverEnvironment,
        events: ServerEvents,
        *,
        folder: Path,
        inventory: Mapping[str, SecretEntry],
        own_secrets: Collection[str],
        contracts: tuple[str, ...],
        seal: TamperCheck | None,
        real_paths: Mapping[Path, Path],
    ) -> None:
        self._driver = driver
        self._environment = environment
        self._events = events
        self._folder = folder
        self._inventory = inventory
        self._own_secrets = own_secrets
        self._contracts = contracts
        self._seal = seal
        self._real_paths = real_paths

    def make(self, installed: Installed, connector_parts: ConnectorParts, who: str | None) -> DriverKeeper:
        environment, driver, events = self._environment, self._driver, self._events
        plan = kind_of(driver.server).compile_plan(
            driver,
            installed,
            folder=self._folder,
            data=environment.data,
            tenant=who,
            is_sandboxed=environment.plan.sandbox.get(driver.id) != "off",
            real_paths=self._real_paths,
        )
        plan = msgspec.structs.replace(plan, result_bytes=environment.plan.result_bytes.get(driver.id))
        revealer = DriverRevealer(environment.vault, driver, self._inventory, self._own_secrets, self._contracts, who)
        holder = None
        if isinstance(plan.reach, Dial) and driver.server.accepts_oauth:
            holder = environment.holder_for(plan.segment, plan.reach, revealer)
        return DriverKeeper(
            lambda link_events: DriverLink(
                plan,
                link_events,
                environment.connector_parts.clock,
                vendor_meta=environment.vendor_meta,
                revealer=revealer,
                redacts_results=driver.interlock.redact_results,
                detector=maybe_detector(driver),
                on_expired=lambda reason: events.on_expired(who, reason),
                owner=who if "roots" in driver.interlock.client_capabilities else None,
            ),
            msgspec.structs.replace(connector_parts, revealer=revealer),
            lambda link, listing: events.on_listing(link, who, listing),
            environment.link_events,
            holder,
            driver=driver,
            on_up=events.on_up,
            on_fallen=lambda: events.on_fallen(who),
            on_restarted=lambda: events.on_restarted(who),
            serves=events.serves,
            seal=self._seal,
            redact=lambda line, cut: (revealer.redactor.cut if cut else revealer.redactor.redacted)(line),
        )
