"""Participants of rooms as links of the namespace: `rooms.<topic>.<participant>.<tool>` (X-10.1-3).

A participant that can answer requests has a link while it is present, in rooms that a client may join. In other rooms
no participant is asked for its tools. Segments are topics and participant ids in the spelling of MCP-AX; segments that
would be spelled alike carry a hash, whoever came first.

Whenever somebody joins, leaves or gets another privilege, `_name_all` gives each link in the room the name that follows
from who is present. A link whose name changes is made again, so that no call reaches a participant under a name that it
has no longer.

A participant that lost its connection keeps its link, marked as degraded, for the grace of the room. It is greeted
again if it comes back.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import msgspec

from interlock.ax.protocol.names import resolve_locals
from interlock.catalog.catalog import Catalog
from interlock.core.background import BackgroundTasks
from interlock.core.current_plan import CurrentPlan
from interlock.core.link_state import LinkState
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectFailed, Connector, ConnectorParts, Manner, greet
from interlock.links.keeper import Keeper, ServerKeeper, StockCatalog
from interlock.links.link import Link, LinkEvents
from interlock.links.listing import Listing
from interlock.mcp.methods import LATEST_MODERN, LEGACY_VERSIONS, TOOLS_LIST, Era
from interlock.rooms.participant_link import CallKey, ParticipantLink, RoomMembers
from interlock.rooms.protocol.envelope import MCP
from interlock.rooms.protocol.participants import OWN, Privilege
from interlock.rooms.room import Room, Seat
from interlock.rooms.rooms import RoomRegistry
from interlock.rooms.timeline import Delivery

GREET_S: Final = 10.0  # people answer no greeting at all
LEFT: Final = "it left the room"
# Everyone sees each question, so that only one that says so is asked in the newer way first (X-1-2).
_OLDER: Final = Manner(capabilities={}, versions=LEGACY_VERSIONS, patience_s=GREET_S)
_NEWER: Final = Manner(capabilities={}, first=Era.MODERN, patience_s=GREET_S)


class _Present(Connector):
    """A connector for a participant that is already present. It starts no process and opens no connection."""

    async def connect(self, start: AsyncExitStack) -> None:
        self._welcome(await greet(self._link, None, self._say_progress, self._parts.manner))


class ParticipantKeeper(ServerKeeper):
    """The keeper of the link to one participant.

    The room decides when a session exists: `greet` begins one when the participant joins or returns, `rest` suspends
    it, and `cut` ends it. The keeper itself restarts nothing.
    """

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
        parts = msgspec.structs.replace(connector_parts, manner=_NEWER if mcp_version == LATEST_MODERN else _OLDER)
        super().__init__(make_link, parts, stock, events)
        self._connector = _Present(self.link, parts, self.stderr, self._loss)
        self.listing = Listing()  # no caller waits for its tools
        self.settled.set()

    @property
    def may_return_soon(self) -> bool:
        return False

    async def restart(self) -> None:
        """Start a new session with the participant."""
        self.greet()

    def greet(self) -> None:
        """Start the session with a participant that joined or returned."""
        self.rest()
        self.start()

    def rest(self) -> None:
        """Suspend the session of a participant that lost its connection and may return."""
        self._usable.clear()
        for task in (self._task, *self._relists.values()):
            if task is not None:
                task.cancel()
        self._relists.clear()
        if self.link.standing.state is not LinkState.CONNECTING:
            self.link.set_state(LinkState.DEGRADED, LEFT)

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        if self._usable.is_set():
            super().on_changed(link, kind)
        elif self._task is not None and self._task.done() and self.link.standing.state is LinkState.FAILED:
            self.greet()

    def on_unreachable(self, link: ConnectedLink) -> None:
        """Do nothing, because the room decides who is present."""

    async def stop(self) -> None:
        self.cut(LEFT)

    def cut(self, reason: str) -> None:
        """End the session of a participant that has left. Waiting calls fail immediately."""
        self._stopping = True
        self.rest()
        self.subscriptions.hang_up()
        self.link.pipe = None
        self.link.fail_all(reason)
        self.link.set_state(LinkState.STOPPED, reason)
        self.link.events = self._events  # the last events do not concern this keeper

    async def _live(self) -> None:
        try:
            await self._connect()
            self._usable.set()
        except ConnectFailed as failed:
            await self._publish(Listing(), self.listed_at)
            self.link.set_state(LinkState.FAILED, failed.reason)


ROOMS: Final = "rooms"  # the segment above all of them


@dataclass(eq=False)
class RoomLinks:
    """The links to the participants of all rooms."""

    current: CurrentPlan
    rooms: RoomRegistry
    catalog: Catalog
    keepers: dict[str, Keeper]
    connector_parts: ConnectorParts
    events: LinkEvents
    _proposed: dict[CallKey, str] = field(default_factory=dict)
    _by_room: defaultdict[Room, dict[str, ParticipantKeeper]] = field(default_factory=lambda: defaultdict(dict))
    _restocking: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self._vendor_meta = self.current.plan.mcp.meta_pass == "vendor"  # noqa: S105  (a choice, not a password)
        self.rooms.feeds.presence.subscribe(self._on_presence)
        self.rooms.feeds.published.subscribe(self._on_published)
        self.rooms.changed.subscribe(self._on_rooms_changed)

    async def open(self) -> None:
        """Do nothing, because links are created when participants join."""

    async def close(self) -> None:
        for room in list(self._by_room):
            self._leave_all(room)
        await self._restocking.close()

    # What rooms say

    def _on_published(self, event: tuple[Room, Delivery]) -> None:
        """Pass an `mcp` envelope to the link of its sender, where it may be the reply to a call."""
        room, envelope = event[0], event[1].envelope
        keeper = self._find_keeper(room, envelope.sender or "") if envelope.kind == MCP else None
        if keeper is not None:
            keeper.link.on_envelope(envelope)

    def _on_presence(self, event: tuple[Room, str]) -> None:
        """Create, suspend or remove the link of a participant after its presence or privilege changed."""
        room, participant = event
        if self.rooms.is_stopping:
            return
        keeper, seat = self._find_keeper(room, participant), room.seats.get(participant)
        if keeper is not None and (seat is None or not self._may_have_link(room, seat)):
            self._leave(room, participant)
        elif keeper is not None and seat is not None and not seat.connections:
            keeper.rest()
            return
        elif keeper is not None:
            keeper.greet()
            return
        self._name_all(room)

    def _on_rooms_changed(self, _: None) -> None:
        """Remove the links that changed settings no longer allow, create those that they now allow, and list all tools
        again.
        """
        for room in [room for room in self._by_room if self.rooms.by_topic.get(room.topic) is not room]:
            self._leave_all(room)
        for room in self.rooms.by_topic.values():
            for participant in list(self._by_room.get(room, ())):
                seat = room.seats.get(participant)
                if seat is None or not self._may_have_link(room, seat):
                    self._leave(room, participant)
            self._name_all(room)

        async def list_again() -> None:
            for keeper in [keeper for keepers in self._by_room.values() for keeper in keepers.values()]:
                self.catalog.reconsider(keeper.link.segment)
                if keeper.listing is not None:
                    await self.catalog.stock_again(keeper.link, keeper.listing)

        # All tools are listed again by the current settings.
        self._restocking.begin(list_again(), "tools of rooms")
        self.catalog.readmit()

    # Links

    def _find_keeper(self, room: Room, participant: str) -> ParticipantKeeper | None:
        return self._by_room[room].get(participant) if room in self._by_room else None

    def _may_have_link(self, room: Room, seat: Seat) -> bool:
        may_answer = seat.participant.privilege is Privilege.FULL or room.settings.restricted_replies == "allow"
        hears = not seat.connections or any(connection.can_answer for connection in seat.connections)
        return hears and may_answer and seat.participant.id != OWN and self.rooms.may_anyone_join(room)

    def is_held(self, room: Room, participant: str, tool: str) -> bool:
        """Return whether a call of this tool is held for approval by a person. For an unlisted tool, return whether
        irreversible calls are held.
        """
        if participant == OWN:
            return False  # its own gate sees to it
        keeper = self._find_keeper(room, participant)
        listed = self.catalog.namespace.link_items if keeper is not None else ()
        own = [items for items in listed if keeper is not None and items.link is keeper.link]
        routes = [route for items in own for route in items.tools if route.original == tool]
        return routes[0].is_held if routes else self.current.plan.gate.mode != "open"

    def _name_all(self, room: Room) -> None:
        """Give every eligible and connected participant of a room a link. Its name depends on which participants are
        present.
        """
        seats = {id: seat for id, seat in room.seats.items() if self._may_have_link(room, seat)}
        if (topic := resolve_locals([*self.rooms.by_topic]).local_names.get(room.topic)) is None:
            return
        for participant, local in resolve_locals([*seats]).local_names.items():
            path = (ROOMS, topic, local)
            keeper = self._find_keeper(room, participant)
            if keeper is not None and keeper.link.path == path:
                continue
            if keeper is not None:
                self._leave(room, participant)
            if seats[participant].connections:
                self._join(room, seats[participant], path)

    def _join(self, room: Room, seat: Seat, path: tuple[str, ...]) -> None:
        """Create the link of a participant and start its session."""
        id, members, proposed = seat.participant.id, RoomMembers(self.rooms, room), self._proposed
        clock, vendor_meta = self.connector_parts.clock, self._vendor_meta

        def make_link(events: LinkEvents) -> ParticipantLink:
            return ParticipantLink(path, events, clock, id, members, proposed, vendor_meta=vendor_meta)

        parts, version = self.connector_parts, seat.participant.mcp_version
        keeper = ParticipantKeeper(make_link, parts, self._stock, self.events, version)
        self._by_room[room][id] = keeper
        self.keepers[keeper.link.segment] = keeper
        keeper.greet()

    def _leave_all(self, room: Room) -> None:
        for participant in list(self._by_room.get(room, ())):
            self._leave(room, participant)

    def _leave(self, room: Room, participant: str) -> None:
        """Remove the link of a participant. Waiting calls fail immediately."""
        keeper = self._by_room[room].pop(participant)
        if not self._by_room[room]:
            del self._by_room[room]
        if self.keepers.get(keeper.link.segment) is keeper:
            del self.keepers[keeper.link.segment]
        keeper.cut(LEFT)
        self.catalog.drop(keeper.link)

    async def _stock(self, link: Link, listing: Listing | None) -> None:
        if listing is None or not listing.tools.items:
            self.catalog.drop(link)
        else:
            await self.catalog.stock(link, listing)
