"""The keeper of a link beside the shared one: it lists nothing, because the catalog shows what that one lists."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from msgspec import Raw

from interlock.core.link_state import USABLE, LinkState
from interlock.credentials.consents import Consent
from interlock.credentials.token import TokenHolder
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import SAME_REST_S, WAKE_LEAST_S
from interlock.links.link import Link
from interlock.links.link_events import LinkEvents
from interlock.links.listing import Listing
from interlock.links.pipes import Undelivered
from interlock.links.server_keeper import ServerKeeper
from interlock.links.server_link import ServerLink
from interlock.wire.jsonrpc.codec import Notification

OPEN_S: Final = 15.0  # how long a call waits for its link
TELL_S: Final = 0.05  # several changes are told as one


class OwnKeeper(ServerKeeper):
    link: ServerLink
    is_offered = False
    reads = ()
    wakes_after_s = 0.0, WAKE_LEAST_S  # a call of its owner is all that starts it

    def __init__(
        self,
        make_link: Callable[[LinkEvents], ServerLink],
        connector_parts: ConnectorParts,
        events: LinkEvents,
        holder: TokenHolder | None,
        *,
        token: TokenHolder | None = None,
    ) -> None:
        """`token`: of the user whose link it is, who may have to agree to it first; its calls alone go over the link.
        `holder`: that one, or the node's."""
        super().__init__(make_link, connector_parts, _no_catalog, events, holder)
        self.closes_holder = token is not None
        self.token = token
        self.used_at = connector_parts.clock.now()
        self.fell = asyncio.Event()
        self.opening = 0  # calls that wait for it to come up
        self.settled.set()  # no list waits for it
        self._telling: dict[str, asyncio.TimerHandle] = {}  # kinds of lists that its owner is told of in a moment
        self._told_at: dict[str, float] = {}

    @property
    def is_serving(self) -> bool:
        """Whether its server works on a call, or is about to."""
        return bool(self.opening or self.link.booked)

    @property
    def is_idle(self) -> bool:
        return not self.opening and not self.is_busy

    @property
    def idle_s(self) -> float:
        """Since the last call began, while none is under way."""
        return (
            0.0 if self.is_serving or self.link.waiting.suspended else self._connector_parts.clock.now() - self.used_at
        )

    @property
    def is_usable(self) -> bool:
        return self.link.standing.state in USABLE and not (self.token is not None and self.token.waits_for_consent)

    def use(self) -> None:
        self.used_at = self._connector_parts.clock.now()

    async def open(self) -> ServerLink | Consent:
        """The link once it can be used, or it is plain that it cannot; or what its user has to agree to first.

        Raises Unobtainable, StoreError.
        """
        token = self.token
        self.opening += 1
        try:
            if token is not None:
                await token.ready()
            if token is None or token.has_token:
                self.use()
                await self._come_up(OPEN_S)
            return self.link if token is None or token.has_token else await token.consent()
        finally:
            self.opening -= 1

    async def _come_up(self, seconds: float) -> None:
        self.fell.clear()
        if self._task is None:
            self.start()
        else:
            self.wake()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._usable, self.fell)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def on_standing(self, link: Link) -> None:
        super().on_standing(link)
        if link.standing.state not in USABLE and link.standing.state is not LinkState.CONNECTING:
            self.fell.set()

    # With a user's token it is for calls: what the server says beside them is dropped

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        """Its owner is told, after a moment, and once a second at most; the lists are those of the shared link. Where
        it has no owner, they are read again."""
        shared = self.link.shared
        if self.link.owner is None and isinstance(shared, ConnectedLink):
            shared.events.on_changed(shared, kind)
        elif self.token is None and kind not in self._telling:
            loop = asyncio.get_running_loop()
            wait_s = max(TELL_S, self._told_at.get(kind, -inf) + SAME_REST_S - loop.time())
            self._telling[kind] = loop.call_later(wait_s, self._tell_changed, kind)

    def _tell_changed(self, kind: str) -> None:
        del self._telling[kind]
        self._told_at[kind] = asyncio.get_running_loop().time()
        self._events.on_own_changed(self.link, kind)

    def on_resource_updated(self, link: ConnectedLink, params: Raw) -> None:
        if self.token is None:
            super().on_resource_updated(link, params)

    def on_log(self, link: Link, params: Raw) -> None:
        if self.token is None:
            super().on_log(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        if self.token is None:
            super().on_vendor_notification(link, notification)

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        self.refused(what)

    async def stop(self) -> None:
        for timer in self._telling.values():
            timer.cancel()
        await super().stop()

    async def _stock(self) -> None:
        self.listing = Listing()
        self.link.stand(LinkState.READY, None)

    def _say_everything(self) -> None:
        if self.token is None:
            super()._say_everything()
            return
        self.link.tasks = False  # a user's link with a token makes none: see `Own.is_whole`
        self.task_listening.say()
        self.log_level.say()


async def _no_catalog(link: Link, listing: Listing | None) -> None:
    pass
