"""A server that knows people: each user calls it over a link of their own, with their own token.

The link of the node itself, with the token an operator agreed to, greets the server and reads its lists. A user's link
is made with their first call, shares nothing with another's, and ends when it has been idle for a while. A user without
a token is shown the page where they can agree.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.config.plan import ServerPlan
from interlock.runtime.base.background import BackgroundTasks
from interlock.runtime.base.link_state import USABLE, LinkState
from interlock.runtime.credentials.consents import Consent
from interlock.runtime.credentials.token import TokenHolder
from interlock.runtime.links.connected_link import ConnectedLink
from interlock.runtime.links.connector import ConnectorParts
from interlock.runtime.links.keeper import WAKE_LEAST_S, Keeper
from interlock.runtime.links.link import Link, UsersFull
from interlock.runtime.links.link_events import LinkEvents
from interlock.runtime.links.listing import Listing
from interlock.runtime.links.pipes import Undelivered
from interlock.runtime.links.server_link import ServerLink

IDLE_S: Final = 1800.0
SWEEP_S: Final = 60.0
USERS_MAX: Final = 1000  # links to one server; of those without calls the one idle longest makes room
OPEN_S: Final = 15.0  # how long a call waits for its user's link


class UserLinks:
    def __init__(
        self,
        plan: ServerPlan,
        connector_parts: ConnectorParts,
        events: LinkEvents,
        holder_for: Callable[[str], TokenHolder],
        *,
        vendor_meta: bool,
    ) -> None:
        self._plan = plan
        self._connector_parts = connector_parts
        self._events = events
        self._holder_for = holder_for
        self._vendor_meta = vendor_meta
        self._keepers: dict[str, _UserKeeper] = {}  # by principal, the one used last at the end
        self._sweeper: asyncio.TimerHandle | None = None
        self._ending = BackgroundTasks()

    @property
    def links(self) -> list[ServerLink]:
        return [keeper.link for keeper in self._keepers.values()]

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        keepers, self._keepers = list(self._keepers.values()), {}
        await asyncio.gather(*(keeper.stop() for keeper in keepers), self._ending.finish())

    def ready(self, principal: str) -> ServerLink | None:
        link = self.maybe_usable(principal)
        if link is not None:
            self._keepers[principal].used_at = self._connector_parts.clock.now()
        return link

    def maybe_usable(self, principal: str) -> ServerLink | None:
        keeper = self._keepers.get(principal)
        if keeper is None or keeper.link.standing.state not in USABLE or keeper.own.waits_for_consent:
            return None
        return keeper.link

    async def open(self, principal: str) -> ServerLink | Consent:
        """The user's link, or what they have to agree to first. Raises Unobtainable, StoreError, UsersFull."""
        keeper = self._keepers.get(principal) or self._make(principal)
        holder = keeper.own
        keeper.opening += 1
        try:
            await holder.ready()
            if holder.has_token:
                keeper.used_at = self._connector_parts.clock.now()
                await keeper.come_up(OPEN_S)
            return keeper.link if holder.has_token else await holder.consent()
        finally:
            keeper.opening -= 1

    async def forget(self, principal: str) -> None:
        keeper = self._keepers.pop(principal, None)
        if keeper is not None:
            await keeper.stop()

    def _make(self, principal: str) -> "_UserKeeper":
        self._make_room()
        keeper = _UserKeeper(
            lambda events: self._make_link(events, principal),
            self._connector_parts,
            self._events,
            self._holder_for(principal),
        )
        self._keepers[principal] = keeper
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        return keeper

    def _make_link(self, events: LinkEvents, principal: str) -> ServerLink:
        clock = self._connector_parts.clock
        return ServerLink(self._plan, events, clock, vendor_meta=self._vendor_meta, owner=principal)

    def _make_room(self) -> None:
        if len(self._keepers) < USERS_MAX:
            return
        idle = [(keeper.used_at, principal) for principal, keeper in self._keepers.items() if keeper.idle]
        if not idle:
            raise UsersFull
        self._end(min(idle)[1])

    def _sweep(self) -> None:
        now = self._connector_parts.clock.now()
        for principal, keeper in list(self._keepers.items()):
            if now - keeper.used_at > IDLE_S and keeper.idle:
                self._end(principal)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self._keepers else None

    def _end(self, principal: str) -> None:
        self._ending.begin(self._keepers.pop(principal).stop())


class _UserKeeper(Keeper):
    """Keeps one user's link. It lists nothing and listens to nothing: that is done with the node's own token.

    What the server says and belongs to no call of the user is dropped.
    """

    link: ServerLink
    wakes_after_s = 0.0, WAKE_LEAST_S  # a call of its user is all that starts it

    def __init__(
        self,
        make_link: Callable[[LinkEvents], ServerLink],
        connector_parts: ConnectorParts,
        events: LinkEvents,
        own: TokenHolder,
    ) -> None:
        super().__init__(make_link, connector_parts, _no_catalog, events, own)
        self.own = own
        self.used_at = connector_parts.clock.now()
        self.fell = asyncio.Event()
        self.opening = 0  # calls that wait for it to come up

    @property
    def idle(self) -> bool:
        return not self.opening and not self.link.in_use

    async def come_up(self, seconds: float) -> None:
        """Until it can be used, or it is plain that it cannot."""
        self.fell.clear()
        if self._task is None:
            self.start()
        else:
            self.wake()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._usable, self.fell)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def on_standing(self, link: Link) -> None:
        super().on_standing(link)
        if link.standing.state not in USABLE and link.standing.state is not LinkState.CONNECTING:
            self.fell.set()

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        pass

    def on_resource_updated(self, link: ConnectedLink, params: Raw) -> None:
        pass

    def on_log(self, link: ConnectedLink, params: Raw) -> None:
        pass

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        self.refused(what)

    async def _stock(self) -> None:
        self.listing = Listing()
        self.link.stand(LinkState.READY, None)

    def _say_everything(self) -> None:
        # Progress of tasks is told by our ids, and those of one user's link say nothing about another's.
        self.link.tasks = False
        self.task_listening.say()
        self.log_level.say()


async def _no_catalog(link: ConnectedLink, listing: Listing | None) -> None:
    pass
