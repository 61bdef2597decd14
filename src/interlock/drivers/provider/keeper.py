"""The keeper of one process or connection of a driver's server: counts attempts, checks lists, lets it sleep.

It differs from the keeper of a configured server in what follows from AIP-transport-12: attempts are made in series of
1 + max_retries, a program that keeps ending is left alone for a minute, and a server whose tools cannot be listed is
not there at all, because nothing could be said of its contracts.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from msgspec import Raw

from interlock.core.calls.caller import Asking
from interlock.core.link_state import LinkState
from interlock.credentials.token import TokenHolder
from interlock.drivers.protocol.model import Driver
from interlock.drivers.workspace.tamper_check import BROKEN, WORDS, TamperCheck
from interlock.links.connected_link import ConnectedLink, ServerLink
from interlock.links.connector import ConnectFailed, ConnectorParts
from interlock.links.handshake import UNSUPPORTED
from interlock.links.keeper import LISTS_OF, StockCatalog, backoff_s
from interlock.links.link import LinkEvents
from interlock.links.listing import FIELD, LIST_S, Items, Listing
from interlock.links.pipes import Undelivered
from interlock.links.server_keeper import ServerKeeper
from interlock.mcp.methods import PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST, TOOLS_LIST
from interlock.process.stderr import Redact, StderrRing
from interlock.wire.jsonrpc.codec import Notification, Request
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

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
        """`on_up`: it is there, and its lists were looked at. `on_fallen`: a series of attempts was in vain.
        `on_restarted`: somebody wants it started anew. `serves`: how many contracts. `redact`: takes the secrets out of
        what the server writes to stderr."""
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
        """Whether what its server lists was read, as far as anybody knows, as it is now (AIP-tools-10)."""
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

    def on_question(self, link: ConnectedLink, asking: Asking) -> Refusal | None:
        return super().on_question(link, asking) if self._may_ask else _MAY_NOT_ASK  # AIP-proto-6

    def on_orphan_request(self, link: ConnectedLink, request: Request) -> bool:
        return self._may_ask and super().on_orphan_request(link, request)

    def on_elicitation_complete(self, link: ConnectedLink, params: Raw) -> None:
        if self._may_ask:
            super().on_elicitation_complete(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        """Its clients know contracts, not this server."""

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
