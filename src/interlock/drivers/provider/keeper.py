"""The keeper of one process or connection of a driver's server: retries starts, reads the lists, and lets it sleep.

It differs from the keeper of a configured server as AIP-transport-12 requires. Starts are attempted in series of 1 +
max_retries. After a failed series the keeper waits a minute, unless a call needs the server sooner. A program that ends
five times within a minute is not restarted for a minute. A server whose tools cannot be listed counts as down, because
its contracts cannot be checked.

Each server has a link that redacts secrets in the server's output before any other part reads it. The keeper and the
link report events to the driver's provider: `on_listing`, `on_up`, `on_fallen`, `on_restarted`, `on_expired`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, DriversPlan, ServerPlan
from interlock.core.calls.call import Pending
from interlock.core.calls.caller import QuestionOrigin
from interlock.core.link_state import LinkState
from interlock.credentials.secret_references import SecretResolver
from interlock.credentials.token import TokenHolder
from interlock.drivers.install.installation import Installed, InstallFailed
from interlock.drivers.protocol.files.inventory import Detected, find_detector
from interlock.drivers.protocol.model import Driver
from interlock.drivers.provider.vault import DriverRevealer, Vault
from interlock.drivers.workspace.folder import BROKEN, WORDS
from interlock.links.connected_link import ConnectedLink, ServerLink
from interlock.links.connector import UNSUPPORTED, ConnectFailed, ConnectorParts
from interlock.links.keeper import LISTS_OF, Keeper, ServerKeeper, backoff_s
from interlock.links.link import LinkEvents
from interlock.links.listing import FIELD, LIST_S, Items, Listing
from interlock.links.pipes import StdioPipe, Trouble, Undelivered
from interlock.mcp.methods import PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST, TOOLS_LIST
from interlock.process.stderr import StderrRing
from interlock.store.ports import KeyValue
from interlock.wire.jsonrpc.codec import CodecError, Notification, Request, Response, decode_untrusted
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

if TYPE_CHECKING:
    from interlock.drivers.provider.provider import DriverProvider

Installer = Callable[[Driver, Path, Callable[[str], None]], Awaitable[Installed | InstallFailed]]


class DriverEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the node that all drivers use."""

    plan: DriversPlan
    data: Path
    connector_parts: ConnectorParts
    link_events: LinkEvents
    keepers: dict[str, Keeper]
    kv: KeyValue
    install: Installer
    holder_for: Callable[[str, Dial, SecretResolver], TokenHolder | None]
    vault: Vault
    vendor_meta: bool = True


# What `expiry.detect: exception:NAME` calls the ways in which a request can fail.
_EXCEPTION_NAMES = {
    Trouble.UNREACHABLE: "tool_unavailable",
    Trouble.LOST: "upstream_error",
    Trouble.BUSY: "rate_limited",
    Trouble.UNAUTHORISED: "auth_failed",
    Trouble.SESSION_LOST: "upstream_error",
    Trouble.REFUSED: "upstream_error",
    Trouble.MALFORMED: "upstream_error",
}


class DriverLink(ServerLink):
    """Link of a driver's server. It redacts secrets, and detects an expired login as `expiry.detect` in the file
    describes.
    """

    def __init__(
        self,
        plan: ServerPlan,
        events: LinkEvents,
        provider: "DriverProvider",
        revealer: DriverRevealer,
        who: str | None,
    ) -> None:
        environment, interlock = provider.environment, provider.driver.interlock
        super().__init__(
            plan,
            events,
            environment.connector_parts.clock,
            vendor_meta=environment.vendor_meta,
            owner=who if "roots" in interlock.client_capabilities else None,
        )
        self._provider = provider
        self._revealer = revealer
        self._who = who
        self._redacts_results = interlock.redact_results
        self._detector = find_detector(provider.driver)

    def on_message(self, data: bytes, origin: Pending | None) -> bool:
        redactor = self._revealer.redactor
        if redactor and redactor.is_in(data) and (self._redacts_results or not _is_result(data)):
            data = redactor.redacted(data)
        return super().on_message(data, origin)

    def on_undelivered(self, origin: Pending | None, what: Undelivered) -> None:
        # An OAuth login may get another token: it has expired only when its holder says so.
        if not (self.failed.can_renew_credential and what.trouble is Trouble.UNAUTHORISED):
            headers = (*what.headers, *((b"www-authenticate", challenge) for challenge in what.challenges))
            self._detect(Detected(status=what.status, headers=headers, exception=_EXCEPTION_NAMES[what.trouble]))
        super().on_undelivered(origin, what)

    def on_pipe_lost(self, reason: str) -> None:
        child = self.pipe.child if isinstance(self.pipe, StdioPipe) else None
        exit_code = child.returncode if child is not None else None
        self._detect(Detected(exit_code=exit_code, exception="upstream_error"))
        super().on_pipe_lost(reason)

    def _detect(self, event: Detected) -> None:
        if self._detector is not None and self._detector.is_expired(event):
            self._provider.on_expired(self._who, f"its login has expired ({self._detector.written})")


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
AGAIN_S: Final = 60.0  # after a series of attempts in vain, unless a call needs the server sooner
LEAST_TTL_S: Final = 1.0  # a list that is stale at once is not read more often than this
_MAY_NOT_ASK: Final = Refusal(METHOD_NOT_FOUND, "the client offers no such thing")


class DriverKeeper(ServerKeeper):
    """Keeper of one process or connection of a driver's server.

    `who` is the tenant or user that the process serves, or None if it serves all callers.
    """

    link: ServerLink
    is_offered = False
    wakes_after_s = 0.0, 0.0  # its attempts are bounded by their series

    def __init__(
        self,
        provider: "DriverProvider",
        who: str | None,
        plan: ServerPlan,
        revealer: DriverRevealer,
        holder: TokenHolder | None,
    ) -> None:
        driver, connector_parts = provider.driver, provider.connector_parts
        super().__init__(
            lambda link_events: DriverLink(plan, link_events, provider, revealer, who),
            msgspec.structs.replace(connector_parts, revealer=revealer),
            lambda link, listing: provider.on_listing(link, who, listing),
            provider.environment.link_events,
            holder,
            StderrRing(
                now=connector_parts.clock.wall,
                redact=lambda line, cut: (revealer.redactor.cut if cut else revealer.redactor.redacted)(line),
            ),
        )
        self._provider = provider
        self._who = who
        self._may_ask = bool(driver.interlock.client_capabilities)  # the server was offered to ask the client of a call
        # AIP-proto-4: what is not declared is not asked for.
        self.reads = (
            TOOLS_LIST,
            *((PROMPTS_LIST,) if driver.prompts else ()),
            *((RESOURCES_LIST, TEMPLATES_LIST) if driver.resources else ()),
        )
        self.fell = asyncio.Event()  # a series of attempts failed, or the keeper was stopped
        self._sealed: bytes | None = None  # the marks of the folder when the server was started
        self._retries_max = driver.connection.max_retries
        self._failed = 0  # attempts of this series
        self._gives_up = False
        self._exits: deque[float] = deque(maxlen=EXITS_MAX)
        self._barred_until = -inf
        self.ended: str | None = None  # how its process last ended unasked

    @property
    def contracts(self) -> int:
        return len(self._provider.contract_ids)

    @property
    def is_usable(self) -> bool:
        return self._usable.is_set()

    @property
    def is_current(self) -> bool:
        """Return whether the list of tools was read and is still up to date (AIP-tools-10)."""
        reading = self._relists.get("tools")
        if self.listing is None or (reading is not None and not reading.done()):
            return False
        ttl_s = self.listing.tools.ttl_s
        return ttl_s is None or self._connector_parts.clock.now() - self.listed_at["tools"] < max(LEAST_TTL_S, ttl_s)

    async def come_up(self) -> bool:
        """Wait until the server can be used or a series of attempts has failed. Return whether it can be used.

        Return False at once while the server is barred because it ended too often.
        """
        if self.is_usable:
            return True
        if self._connector_parts.clock.now() < self._barred_until:
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
        """Wait until the list of tools was read again, at most for the time limit of one list."""
        await asyncio.wait((self.refreshed("tools"),), timeout=self._connector_parts.manner.within(LIST_S))

    async def stop(self) -> None:
        await super().stop()
        self.fell.set()  # a waiting caller learns that the server will not come up

    async def restart(self) -> None:
        self._provider.on_restarted(self._who)
        self._exits.clear()
        self._barred_until = -inf
        self._failed = 0
        self.fell.clear()
        await super().restart()

    # What the link reports (LinkEvents). A server behind contracts is shared, and knows no client: AIP-proto-6

    def on_question(self, link: ConnectedLink, asking: QuestionOrigin) -> Refusal | None:
        return super().on_question(link, asking) if self._may_ask else _MAY_NOT_ASK  # AIP-proto-6

    def on_orphan_request(self, link: ConnectedLink, request: Request) -> bool:
        return self._may_ask and super().on_orphan_request(link, request)

    def on_elicitation_complete(self, link: ConnectedLink, params: Raw) -> None:
        if self._may_ask:
            super().on_elicitation_complete(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        """Ignore the notification, because clients see contracts and not this server."""

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        self.refused(what)

    # Attempts

    async def _connect(self) -> None:
        if (seal := self._provider.seal) is not None:
            self._sealed = await seal.mark()
            if self._sealed is None:
                raise ConnectFailed(WORDS, code=BROKEN)
        await super()._connect()
        self.fell.clear()
        self._failed = 0
        self._provider.settled.set()

    async def _stock(self) -> None:
        """Read the lists of the server, and stop waiting if the server disconnects, because the lists would never
        arrive.
        """
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
        """Read the lists one after the other (AIP-proto-4). Raise ConnectFailed if a list cannot be read."""
        seal = self._provider.seal
        # AIP-security-13
        if seal is not None and self._sealed is not None and not await seal.is_same(self._sealed):
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
        if self.failure is None:  # the server was up, and went
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
            self._provider.on_fallen(self._who)
