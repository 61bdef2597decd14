"""The life of a participant's link: greeted when it comes, listed, and cut when it has left.

What keeps the connection is the room. A participant that lost its own has a moment to return: until then its tools are
degraded, and what it was asked waits. It is not asked for its tools again unless it says that they changed, because
everyone in the room sees each question.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from interlock.core.link_state import LinkState
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectFailed, Connector, ConnectorParts
from interlock.links.handshake import GreetingFailed, Manner, greet
from interlock.links.keeper import Keeper, StockCatalog
from interlock.links.link_events import LinkEvents
from interlock.links.listing import Listing
from interlock.mcp.eras import LATEST_MODERN, LEGACY_VERSIONS, Era
from interlock.mcp.methods import TOOLS_LIST
from interlock.rooms.participant_link import ParticipantLink

GREET_S: Final = 10.0  # people answer no greeting at all
LEFT: Final = "it left the room"
# Everyone sees each question, so that only one that says so is asked in the newer way first (X-1-2).
_OLDER: Final = Manner(capabilities={}, versions=LEGACY_VERSIONS, patience_s=GREET_S)
_NEWER: Final = Manner(capabilities={}, first=Era.MODERN, patience_s=GREET_S)


class _Present(Connector):
    """There is nothing to launch or dial: the participant is there, and only has to be greeted."""

    async def connect(self, start: AsyncExitStack) -> None:
        try:
            self._welcome(await greet(self._link, None, self._say_progress, self._connector_parts.manner))
        except GreetingFailed as failed:
            raise ConnectFailed(failed.reason) from failed


class ParticipantKeeper(Keeper):
    link: ParticipantLink
    reads = (TOOLS_LIST,)
    is_reread = False

    def __init__(
        self,
        make_link: Callable[[LinkEvents], ParticipantLink],
        connector_parts: ConnectorParts,
        stock: StockCatalog,
        events: LinkEvents,
        mcp_version: str | None,
    ) -> None:
        manner = _NEWER if mcp_version == LATEST_MODERN else _OLDER
        parts = msgspec.structs.replace(connector_parts, manner=manner)
        super().__init__(make_link, parts, stock, events)
        self._connector = _Present(self.link, parts, self.stderr, self._loss)
        self.listing = Listing()  # nobody waits for what it may have
        self.settled.set()

    @property
    def may_return_soon(self) -> bool:
        return False

    async def restart(self) -> None:
        """It is greeted again."""
        self.greet()

    def greet(self) -> None:
        """It came, or came back."""
        self.rest()
        self.start()

    def rest(self) -> None:
        """It lost its connection, and may return."""
        self._usable.clear()
        for task in (self._task, *self._relists.values()):
            if task is not None:
                task.cancel()
        self._relists.clear()
        if self.link.standing.state is not LinkState.CONNECTING:
            self.link.stand(LinkState.DEGRADED, LEFT)

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        if self._usable.is_set():
            super().on_changed(link, kind)
        elif self._task is not None and self._task.done() and self.link.standing.state is LinkState.FAILED:
            self.greet()

    def on_unreachable(self, link: ConnectedLink) -> None:
        """Whether it is there is the room's to say."""

    async def stop(self) -> None:
        self.cut(LEFT)

    def cut(self, reason: str) -> None:
        """It has left: calls that wait are told now."""
        self._stopping = True
        self.rest()
        self.subscriptions.hang_up()
        self.link.pipe = None
        self.link.fail_all(reason)
        self.link.stand(LinkState.STOPPED, reason)
        self._let_go_of_link()

    async def _live(self) -> None:
        try:
            await self._connect()
            self._usable.set()
        except ConnectFailed as failed:
            await self._publish(Listing(), self.listed_at)
            self.link.stand(LinkState.FAILED, failed.reason)
