"""The tools `rooms.*`: how an unmodified MCP client of either era takes part in rooms (X-10.1-4).

They are tools of the namespace like all others, listed to those who may join a room; at the other end of their link is
`Participation`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import LatencyClass
from interlock.catalog.catalog import Catalog
from interlock.catalog.local_items import local_items
from interlock.core.clock import Clock
from interlock.links.link_events import LinkEvents
from interlock.links.local_link import LocalLink, LocalTool, ToolResult
from interlock.rooms import participation as asked
from interlock.rooms.connections import Leases
from interlock.rooms.participation import Participation
from interlock.rooms.protocol.errors import RoomRefusal
from interlock.rooms.room_links import ROOMS
from interlock.rooms.rooms import Rooms
from interlock.wire.refusal import Refusal

TIMEOUT_S: Final = 60.0
Do = Callable[[Participation, str, Any], Awaitable[dict[str, Any] | RoomRefusal]]


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
    """Those who may join any room at all."""

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
        rooms: Rooms,
        catalog: Catalog,
        events: LinkEvents,
        clock: Clock,
        participation: Participation,
        leases: Leases,
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
                return _result(RoomRefusal("input_invalid", str(error)[:500]))
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
    """In few words: many models read it with every request."""
    _, found = msgspec.json.schema_components((arguments,), ref_template="{name}")
    schema: dict[str, Any] = found[arguments.__name__]
    properties = {name: _member(each) for name, each in schema["properties"].items()}
    return {"type": "object", "properties": properties, "required": schema["required"], "additionalProperties": False}


def _member(schema: dict[str, Any]) -> dict[str, Any]:
    one = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
    return {name: value for name, value in one.items() if name not in ("additionalProperties", "default")}


def _result(outcome: dict[str, Any] | RoomRefusal) -> ToolResult:
    if isinstance(outcome, RoomRefusal):
        content = {"error": outcome.code, "message": outcome.message, "details": outcome.details}
        return ToolResult(content=content, is_error=True)
    return ToolResult(content=outcome)
