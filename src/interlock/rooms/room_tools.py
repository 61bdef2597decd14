"""The tools `rooms.*`: how an unmodified MCP client of either era takes part in rooms (X-10.1-4).

They are tools of the namespace like all others, listed to those who may join a room; at the other end of their link is
`Participation`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, LatencyClass, hints
from interlock.ax.protocol.hop_metadata import CAPABILITY, HOPS, published_annotation
from interlock.ax.protocol.names import alias
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import LinkItems, Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.failures import answer_failures
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.guard.guard import Admitted
from interlock.links.handshake import modern_head
from interlock.links.link import Link, ServerFacts
from interlock.links.link_events import LinkEvents
from interlock.mcp.eras import LATEST_MODERN, Era
from interlock.mcp.methods import TOOLS_CALL
from interlock.rooms import participation as asked
from interlock.rooms.leases import Leases
from interlock.rooms.participation import Participation
from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.room_links import ROOMS
from interlock.rooms.rooms import Rooms
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.jsonrpc.errors import UNAVAILABLE, Fault
from interlock.wire.jsonrpc.messages import ABSENT, Response

TIMEOUT_S: Final = 60.0
Do = Callable[[Participation, str, Any], Awaitable[dict[str, Any] | Refusal]]


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

    def maybe_refusal(self, principal: str) -> Fault | None:
        return None


class RoomToolsLink(Link):
    def __init__(self, events: LinkEvents, clock: Clock, participation: Participation) -> None:
        super().__init__(ROOMS, events, clock, kind="own", transport="memory")
        self.members = _AnyRoom(participation)
        self._participation = participation
        self._calls = BackgroundTasks()
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
        self.stand(LinkState.READY, None)

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        call.link = self
        self.calls += 1
        self._calls.begin(answer_failures(call, self._answer(call)))

    async def close(self) -> None:
        await self._calls.close()

    async def _answer(self, call: Call) -> None:
        tool = _TOOLS[msgspec.json.decode(call.params["name"], type=str)]
        try:
            given = msgspec.json.decode(bytes(call.params.get("arguments") or b"{}"), type=tool.arguments)
            done = await tool.do(self._participation, call.caller.principal.name, given)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            done = Refusal("input_invalid", str(wrong)[:500])
        except StoreError:
            call.on_failed(Fault(UNAVAILABLE, "unavailable", {"reason": "store"}), Outcome.REFUSED)
            return
        call.on_response(Response(b"0", Raw(_result(done)), ABSENT), Era.MODERN)


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
        self._root = () if root_segment is None else (root_segment,)
        self._rooms = rooms
        self._catalog = catalog
        self._leases = leases
        self._link = RoomToolsLink(events, clock, participation)
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
            routes = sorted((self._route(name, tool) for name, tool in _TOOLS.items()), key=lambda one: one.qualified)
            digests = dict.fromkeys(("tools", "prompts", "resources", "templates"), b"")
            self._catalog.place(LinkItems(link=self._link, tools=tuple(routes), digests=digests))

    def _route(self, name: str, tool: _Tool) -> Route:
        changes = tool.effect == "changes"
        capability = Capability(
            mutable=changes,
            reversible=True,
            idempotent=not changes,
            latency_class=LatencyClass.STANDARD,
            cost_class=CostClass.FREE,
            auth_scope=AuthScope.WRITE if changes else AuthScope.READ,
        )
        segments = (*self._root, ROOMS)
        qualified = ".".join((*segments, name))
        item = {"description": tool.description, "inputSchema": _schema(tool.arguments)}
        return Route(
            link=self._link,
            qualified=qualified,
            alias=alias(qualified),
            local=name,
            original=name,
            wire_name=Raw(encode_value(name)),
            head=modern_head(TOOLS_CALL) + b"mcp-name: %b\r\n" % name.encode(),
            item={"name": Raw(encode_value(name)), **{key: Raw(encode_value(value)) for key, value in item.items()}},
            segments=segments,
            below=(ROOMS,),
            capability=capability,
            meta={CAPABILITY: published_annotation(None, capability), HOPS: 1},
            hints=hints(capability, None),
            hops=1,
            timeout_s=TIMEOUT_S,
            scope="write" if changes else "read",
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


def _result(done: dict[str, Any] | Refusal) -> bytes:
    if isinstance(done, Refusal):
        told: dict[str, Any] = {"error": done.code, "message": done.message, "details": done.details}
    else:
        told = done
    content = [{"type": "text", "text": encode_value(told).decode()}]
    is_error = isinstance(done, Refusal)
    return encode_value({"resultType": "complete", "content": content, "structuredContent": told, "isError": is_error})
