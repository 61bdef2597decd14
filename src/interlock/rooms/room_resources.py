"""The resources `room://TOPIC`: a room, read and subscribed to by an unmodified MCP client of either era (X-10.1-4).

Each room is a link with that one resource, for the clients that may join it. Its text is what `rooms.read` answers,
with who is there. Those who subscribed are told when something is published, at most once in PACE_S.
"""

import asyncio
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.names import resolve_locals
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import LinkItems, Place
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.failures import answer_failures
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.fronts.audience import Audience
from interlock.guard.guard import Admitted
from interlock.links.link import Link, ServerFacts
from interlock.links.link_events import LinkEvents
from interlock.mcp.eras import LATEST_MODERN, Era
from interlock.mcp.methods import RESOURCES_READ
from interlock.rooms.membership import RoomMembers
from interlock.rooms.participation import InRoom, Participation, Reading
from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.room import Room
from interlock.rooms.room_links import ROOMS
from interlock.rooms.rooms import Rooms
from interlock.rooms.timeline.timeline import Delivery
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.jsonrpc.errors import INVALID_PARAMS, UNAVAILABLE, Fault
from interlock.wire.jsonrpc.messages import ABSENT, Response

SCHEME: Final = "room://"
PACE_S: Final = 1.0  # a client reads the whole resource for each notice
_OFFERED: Final = {"resources": Raw(b'{"listChanged":true,"subscribe":true}')}


class RoomResourceLink(Link):
    tells_updates = True

    def __init__(
        self, local: str, room: Room, events: LinkEvents, clock: Clock, participation: Participation, rooms: Rooms
    ) -> None:
        super().__init__(f"{ROOMS}.{local}", events, clock, kind="own", transport="memory")
        self.path = (ROOMS, local)
        self.members = RoomMembers(rooms, room)
        self.topic = room.topic
        self.uri = f"{SCHEME}{room.topic}"
        self._participation = participation
        self._calls = BackgroundTasks()
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN, capabilities=_OFFERED))
        self.stand(LinkState.READY, None)

    def items(self) -> LinkItems:
        item = {
            "uri": self.uri,
            "name": self.topic,
            "description": "Who is in this room, what was said last, and the proposals that wait.",
            "mimeType": "application/json",
        }
        told = {name: Raw(encode_value(value)) for name, value in item.items()}
        place = Place(link=self, uri=self.uri, bare=self.uri, shown=self.uri, item=told)
        digests = dict.fromkeys(("tools", "prompts", "resources", "templates"), b"")
        return LinkItems(link=self, resources=(place,), digests=digests)

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        call.link = self
        self.calls += 1
        self._calls.begin(answer_failures(call, self._answer(call)))

    async def close(self) -> None:
        await self._calls.close()

    async def _answer(self, call: Call) -> None:
        if call.method != RESOURCES_READ:
            call.on_failed(Fault(INVALID_PARAMS, "a room is read and subscribed to"), Outcome.REFUSED)
            return
        principal = call.caller.principal.name
        try:
            said = await self._participation.read(principal, Reading(topic=self.topic))
            there = await self._participation.participants(principal, InRoom(topic=self.topic))
        except StoreError:
            call.on_failed(Fault(UNAVAILABLE, "unavailable", {"reason": "store"}), Outcome.REFUSED)
            return
        if isinstance(said, Refusal) or isinstance(there, Refusal):
            call.on_failed(Fault(INVALID_PARAMS, "there is no room of that topic for you"), Outcome.REFUSED)
            return
        call.on_response(Response(b"0", Raw(_result(self.uri, there | said)), ABSENT), Era.MODERN)


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
        self._links: dict[Room, RoomResourceLink] = {}
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
                parts = (self._events, self._clock, self._participation, self._rooms)
                link = self._links[room] = RoomResourceLink(local, room, *parts)
                self._catalog.place(link.items())

    def _on_published(self, event: tuple[Room, Delivery]) -> None:
        self._tell(event[0])

    def _tell(self, room: Room) -> None:
        link = self._links.get(room)
        if link is None or room in self._pauses:
            self._untold.add(room)
            return
        self._untold.discard(room)
        if self._audience.tell_updated(link, link.uri):
            self._pauses[room] = asyncio.get_running_loop().call_later(PACE_S, self._after_pause, room)

    def _after_pause(self, room: Room) -> None:
        del self._pauses[room]
        if room in self._untold:
            self._tell(room)


def _result(uri: str, told: dict[str, Any]) -> bytes:
    content = {"uri": uri, "mimeType": "application/json", "text": encode_value(told).decode()}
    return encode_value({"resultType": "complete", "contents": [content], "ttlMs": 0, "cacheScope": "private"})
