"""The resources `room://TOPIC`: a room, read and subscribed to by an unmodified MCP client of either era (X-10.1-4).

Each room is a link with that one resource, for the clients that may join it. Its text is what `rooms.read` answers,
with who is there. Those who subscribed are told when something is published, at most once in PACE_S.
"""

import asyncio
from typing import Final

from interlock.ax.protocol.names import resolve_locals
from interlock.catalog.catalog import Catalog
from interlock.catalog.local_items import local_items
from interlock.core.clock import Clock
from interlock.fronts.audience import Audience
from interlock.links.link_events import LinkEvents
from interlock.links.local_link import LocalLink, LocalResource
from interlock.rooms.participant_link import RoomMembers
from interlock.rooms.participation import InRoom, Participation, Reading
from interlock.rooms.protocol.errors import RoomRefusal
from interlock.rooms.room import Room
from interlock.rooms.room_links import ROOMS
from interlock.rooms.rooms import Rooms
from interlock.rooms.timeline import Delivery
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import INVALID_PARAMS, Refusal

SCHEME: Final = "room://"
PACE_S: Final = 1.0  # a client reads the whole resource for each notice


class RoomResources:
    """Has a link for each room, and tells those who subscribed."""

    def __init__(
        self,
        rooms: Rooms,
        catalog: Catalog,
        events: LinkEvents,
        clock: Clock,
        participation: Participation,
        audience: Audience,
    ) -> None:
        self._rooms = rooms
        self._catalog = catalog
        self._events = events
        self._clock = clock
        self._participation = participation
        self._audience = audience
        self._links: dict[Room, LocalLink] = {}
        self._pauses: dict[Room, asyncio.TimerHandle] = {}
        self._untold: set[Room] = set()
        rooms.changed.subscribe(self._look)
        rooms.feeds.published.subscribe(self._on_published)

    async def open(self) -> None:
        self._look(None)

    async def close(self) -> None:
        for timer in self._pauses.values():
            timer.cancel()
        for link in self._links.values():
            await link.close()

    def _look(self, _: None) -> None:
        locals = resolve_locals([*self._rooms.by_topic]).local_names
        for room, link in list(self._links.items()):
            is_as_before = link.path == (ROOMS, locals.get(room.topic))
            if self._rooms.by_topic.get(room.topic) is not room or not is_as_before:
                self._catalog.drop(self._links.pop(room))
        for topic, room in self._rooms.by_topic.items():
            local = locals.get(topic)
            if room not in self._links and local is not None:
                link = self._links[room] = self._new_link(local, room)
                self._catalog.place(local_items(link, None))

    def _new_link(self, local: str, room: Room) -> LocalLink:
        async def read(principal: str) -> str | Refusal:
            messages = await self._participation.read(principal, Reading(topic=room.topic))
            participants = await self._participation.participants(principal, InRoom(topic=room.topic))
            if isinstance(messages, RoomRefusal) or isinstance(participants, RoomRefusal):
                return Refusal(INVALID_PARAMS, "unknown room, or you are not a member of it")
            return encode_value(participants | messages).decode()

        resource = LocalResource(
            uri=f"{SCHEME}{room.topic}",
            name=room.topic,
            description="Who is in this room, what was said last, and the proposals that wait.",
            mime_type="application/json",
            handler=read,
        )
        members = RoomMembers(self._rooms, room)
        return LocalLink((ROOMS, local), self._events, self._clock, resources=(resource,), members=members)

    def _on_published(self, event: tuple[Room, Delivery]) -> None:
        self._tell(event[0])

    def _tell(self, room: Room) -> None:
        link = self._links.get(room)
        if link is None or room in self._pauses:
            self._untold.add(room)
            return
        self._untold.discard(room)
        if self._audience.tell_updated(link, f"{SCHEME}{room.topic}"):
            self._pauses[room] = asyncio.get_running_loop().call_later(PACE_S, self._after_pause, room)

    def _after_pause(self, room: Room) -> None:
        del self._pauses[room]
        if room in self._untold:
            self._tell(room)
