"""Rooms for unmodified MCP clients of either era: the tools `rooms.*` and the resources `room://TOPIC` (X-10.1-4).

The tools are listed to clients that may join a room, and `Participation` performs them. Each room is also a link with
one resource, for the clients that may join it: its text is the reply of `rooms.read` with the participants. Subscribers
are notified when something is published, at most once in PACE_S.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import LatencyClass
from interlock.ax.protocol.names import resolve_locals
from interlock.catalog.catalog import Catalog
from interlock.catalog.local_items import local_items
from interlock.core.clock import Clock
from interlock.fronts.audience import Audience
from interlock.links.link import LinkEvents
from interlock.links.local_link import LocalLink, LocalResource, LocalTool, ToolResult
from interlock.rooms import participation as asked
from interlock.rooms.connections import PresenceLeases
from interlock.rooms.participant_link import RoomMembers
from interlock.rooms.participation import InRoom, Participation, Reading
from interlock.rooms.protocol.envelope import EnvelopeRefusal
from interlock.rooms.room import Room
from interlock.rooms.room_links import ROOMS
from interlock.rooms.rooms import RoomRegistry
from interlock.rooms.timeline import Delivery
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import INVALID_PARAMS, Refusal

SCHEME: Final = "room://"
PACE_S: Final = 1.0  # a client reads the whole resource for each notice


class RoomResources:
    """A link with one resource for each room, and the notification of subscribers."""

    def __init__(
        self,
        rooms: RoomRegistry,
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
            if isinstance(messages, EnvelopeRefusal) or isinstance(participants, EnvelopeRefusal):
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


TIMEOUT_S: Final = 60.0
Do = Callable[[Participation, str, Any], Awaitable[dict[str, Any] | EnvelopeRefusal]]


class _Tool(msgspec.Struct, frozen=True):
    description: str
    arguments: Any  # the type of them
    do: Do
    effect: Literal["reads", "changes"] = "changes"


_TOOLS: Final = {
    "list": _Tool(
        "The rooms that you may join, who you are in each, and how many are there.",
        asked.Nothing,
        Participation.list_all,
        "reads",
    ),
    "join": _Tool(
        "Be present in a room. Every room tool renews it; after ten minutes without one you have left.",
        asked.InRoom,
        Participation.join,
    ),
    "leave": _Tool("Be present in a room no more.", asked.InRoom, Participation.leave),
    "participants": _Tool(
        "Who is in a room, and with which privilege.", asked.InRoom, Participation.participants, "reads"
    ),
    "read": _Tool(
        "What was said in a room since a cursor, and the proposals that wait. Without a cursor the newest messages.",
        asked.Reading,
        Participation.read,
        "reads",
    ),
    "say": _Tool(
        "Say something to everyone in a room. There are no private messages.", asked.Saying, Participation.say
    ),
    "propose": _Tool(
        "Propose that a participant's tool is called. A full participant or a person decides. Everyone in the room"
        " sees it while it waits, arguments included.",
        asked.Proposing,
        Participation.propose,
    ),
    "fulfil": _Tool(
        "Have a proposal of another carried out in your own name. Only for full participants.",
        asked.Fulfilling,
        Participation.fulfil,
    ),
    "reject": _Tool("Reject a proposal. Only for full participants.", asked.Rejecting, Participation.reject),
    "withdraw": _Tool("Take back a proposal of your own.", asked.Withdrawing, Participation.withdraw),
}


class _AnyRoom:
    """The clients that may join at least one room."""

    name = ""  # no topic

    def __init__(self, participation: Participation) -> None:
        self._participation = participation

    def admits(self, principal: str) -> bool:
        return self._participation.may_join_any(principal)

    def maybe_refusal(self, principal: str) -> Refusal | None:
        return None


class RoomTools:
    """Lists the tools while there are rooms."""

    def __init__(
        self,
        root_segment: str | None,
        rooms: RoomRegistry,
        catalog: Catalog,
        events: LinkEvents,
        clock: Clock,
        participation: Participation,
        leases: PresenceLeases,
    ) -> None:
        self._root_segment = root_segment
        self._rooms = rooms
        self._catalog = catalog
        self._leases = leases
        self._participation = participation
        tools = tuple(self._local_tool(name, tool) for name, tool in _TOOLS.items())
        self._link = LocalLink((ROOMS,), events, clock, tools=tools, members=_AnyRoom(participation))
        rooms.changed.subscribe(self._look)

    async def open(self) -> None:
        self._look(None)

    async def close(self) -> None:
        self._leases.close()
        await self._link.close()

    def _look(self, _: None) -> None:
        if not self._rooms.by_topic:
            self._catalog.drop(self._link)
        elif not self._catalog.has_segment(ROOMS):
            self._catalog.place(local_items(self._link, self._root_segment))

    def _local_tool(self, name: str, tool: _Tool) -> LocalTool:
        async def call(principal: str, arguments: bytes) -> ToolResult:
            try:
                decoded = msgspec.json.decode(arguments, type=tool.arguments)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return _result(EnvelopeRefusal("input_invalid", str(error)[:500]))
            return _result(await tool.do(self._participation, principal, decoded))

        has_effect = tool.effect == "changes"
        return LocalTool(
            name=name,
            description=tool.description,
            input_schema=_schema(tool.arguments),
            handler=call,
            has_effect=has_effect,
            latency_class=LatencyClass.STANDARD,
            timeout_s=TIMEOUT_S,
            scope="write" if has_effect else "read",
        )


def _schema(arguments: Any) -> dict[str, Any]:
    """Return a short JSON Schema of a tool's arguments: many models read it with every request."""
    _, components = msgspec.json.schema_components((arguments,), ref_template="{name}")
    schema: dict[str, Any] = components[arguments.__name__]
    properties = {name: _member(each) for name, each in schema["properties"].items()}
    return {"type": "object", "properties": properties, "required": schema["required"], "additionalProperties": False}


def _member(schema: dict[str, Any]) -> dict[str, Any]:
    member = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
    return {name: value for name, value in member.items() if name not in ("additionalProperties", "default")}


def _result(outcome: dict[str, Any] | EnvelopeRefusal) -> ToolResult:
    if isinstance(outcome, EnvelopeRefusal):
        content = {"error": outcome.code, "message": outcome.message, "details": outcome.details or {}}
        return ToolResult(content=content, is_error=True)
    return ToolResult(content=outcome)
