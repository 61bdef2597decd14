"""Rooms for unmodified MCP clients of either era: the tools `rooms.*` and the resources `room://TOPIC` (X-10.1-4).

Theory of operation. The tools are local tools of the node, listed to clients that may join a room. A call names a room
by its topic; the client takes part as the participant that follows from its principal. Each call renews the lease by
which the client is present. Messages and proposals are published like any envelope, with the privilege of that
participant.

Each room is also a link with one resource, for the clients that may join it: its text is the reply of `rooms.read` with
the participants. Subscribers are notified when something is published, at most once in PACE_S.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from interlock.approvals.protocol.approval import Approval
from interlock.ax.protocol.capability import LatencyClass
from interlock.ax.protocol.names import resolve_locals
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import local_items
from interlock.core.clock import Clock, rfc3339
from interlock.fronts.audience import Audience
from interlock.links.link import LinkEvents, LocalLink, LocalResource, LocalTool, ToolResult
from interlock.rooms.connections import PresenceLeases
from interlock.rooms.proposals import SettledProposal
from interlock.rooms.protocol.envelope import CHAT, PROPOSAL, EnvelopeRefusal
from interlock.rooms.protocol.participants import Participant
from interlock.rooms.protocol.proposals import STATUS, TOOLS_CALL, Proposed, secret_refusal
from interlock.rooms.room import Room
from interlock.rooms.room_links import ROOMS, RoomMembers
from interlock.rooms.rooms import REMOVED_HINT, RoomRegistry
from interlock.rooms.timeline import limit_bytes
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import INVALID_PARAMS, Refusal

READ_MAX: Final = 100
READ_DEFAULT: Final = 20
WAIT_MAX_S: Final = 25.0
FULFIL_WAIT_S: Final = 20.0
TIMEOUT_S: Final = 60.0
SCHEME: Final = "room://"
PACE_S: Final = 1.0  # a client reads the whole resource for each notice

Json = dict[str, Any]
_Operation = TypeVar("_Operation", bound=Callable[..., Any])
Topic = Annotated[str, Meta(description="The room.", max_length=128)]
ProposalId = Annotated[str, Meta(description="Of the proposal.", max_length=128)]
Wait = Annotated[float, Meta(description="How long to wait for it, in seconds.", ge=0, le=WAIT_MAX_S)]
Reason = Annotated[str, Meta(description="Why, for people.", max_length=2000)]


class NoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The empty arguments of the tool `rooms.list`."""


class RoomArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of those tools `rooms.*` that need only the topic of a room."""

    topic: Topic


class ReadArguments(RoomArguments, frozen=True, forbid_unknown_fields=True):
    """The arguments of the tool `rooms.read`."""

    cursor: Annotated[int, Meta(description="From the last read; without it the newest are read.", ge=0)] | None = None
    limit: Annotated[int, Meta(description="At most so many messages.", ge=1, le=READ_MAX)] = READ_DEFAULT
    wait_s: Wait = 0.0


class SayArguments(RoomArguments, frozen=True, forbid_unknown_fields=True):
    """The arguments of the tool `rooms.say`."""

    text: Annotated[str, Meta(description="What everyone in the room will read.")]
    format: Literal["plain", "markdown"] = "plain"
    to: Annotated[list[str], Meta(description="Whom it is for; everyone sees it all the same.", max_length=100)] = []


class ProposeArguments(RoomArguments, frozen=True, forbid_unknown_fields=True):
    """The arguments of the tool `rooms.propose`."""

    to: Annotated[str, Meta(description="The participant that would do it.", max_length=64)]
    tool: Annotated[str, Meta(description="Its tool, by its own name there.", min_length=1)]
    arguments: Annotated[dict[str, Raw], Meta(description="Of the call.")] = {}
    reason: Reason | None = None
    wait_s: Wait = 0.0
    despite_secrets: Annotated[bool, Meta(description="Send it although everyone will see what looks secret.")] = False


class WithdrawArguments(RoomArguments, frozen=True, forbid_unknown_fields=True):
    """The arguments of the tool `rooms.withdraw`."""

    proposal_id: ProposalId


class FulfilArguments(WithdrawArguments, frozen=True, forbid_unknown_fields=True):
    """The arguments of the tool `rooms.fulfil`."""

    wait_s: Wait = FULFIL_WAIT_S


class RejectArguments(WithdrawArguments, frozen=True, forbid_unknown_fields=True):
    """The arguments of the tool `rooms.reject`."""

    reason: Reason | None = None


class RoomMember(msgspec.Struct, frozen=True):
    """A client that may join a room, with the participant as which it acts there."""

    room: Room
    participant: Participant
    principal: str


class RoomTool(msgspec.Struct, frozen=True):
    """The declaration of one of the tools `rooms.*`, for example `rooms.say`."""

    description: str
    effect: Literal["reads", "changes"]
    arguments: type[msgspec.Struct] = NoArguments
    operation: Any = None  # a method of `RoomTools`, or None for `list`, which is about no room


_LIST: Final = "The rooms that you may join, who you are in each, and how many are there."
TOOLS: Final = {"list": RoomTool(_LIST, "reads")}


def _tool(description: str, effect: Literal["reads", "changes"] = "changes") -> Callable[[_Operation], _Operation]:
    """Declare a method of `RoomTools` as the tool of the same name. The type of its arguments gives the schema."""

    def declare(operation: _Operation) -> _Operation:
        types = get_annotations(operation)
        TOOLS[operation.__name__] = RoomTool(description, effect, types["arguments"], operation)
        return operation

    return declare


@dataclass(frozen=True, slots=True)
class _AnyRoom:
    """A stand-in for the members of all rooms, which decides who can see the tools `rooms.*`: every member of at least
    one room. Removed members also see the tools, and are refused when they use them.
    """

    rooms: RoomRegistry
    name: str = ""  # no topic

    def admits(self, principal: str) -> bool:
        return any(self.rooms.is_member(room, principal) for room in self.rooms.by_topic.values())

    def find_refusal(self, principal: str) -> Refusal | None:
        return None


@dataclass(eq=False)
class RoomTools:
    """The tools `rooms.*` for MCP clients, which exist while there is any room, and each room as a resource for its
    members.

    `is_held` returns whether a call of a participant's tool is held for a person in the namespace.
    """

    root_segment: str | None
    rooms: RoomRegistry
    catalog: Catalog
    events: LinkEvents
    clock: Clock
    is_held: Callable[[Room, str, str], bool]  # a room, a participant, and the name of its tool there
    audience: Audience
    leases: PresenceLeases = field(default_factory=PresenceLeases)
    _links: dict[Room, LocalLink] = field(default_factory=dict)  # with the resources
    _pauses: dict[Room, asyncio.TimerHandle] = field(default_factory=dict)
    _with_news: set[Room] = field(default_factory=set)  # rooms with news that subscribers were not notified of yet

    def __post_init__(self) -> None:
        tools = tuple(self._local_tool(name, tool) for name, tool in TOOLS.items())
        self._link = LocalLink((ROOMS,), self.events, self.clock, tools=tools, members=_AnyRoom(self.rooms))
        self.rooms.changed.subscribe(self._update_links)
        self.rooms.feeds.published.subscribe(lambda event: self._notify(event[0]))

    async def open(self) -> None:
        self._update_links(None)

    async def close(self) -> None:
        for timer in self._pauses.values():
            timer.cancel()
        for link in (self._link, *self._links.values()):
            await link.close()

    async def perform(self, name: str, principal: str, arguments: Any) -> Json | EnvelopeRefusal:
        """Perform the tool `rooms.NAME` for a client and return the reply."""
        if name == "list":
            return self.list_rooms(principal)
        operation = TOOLS[name].operation
        member = self._admit(arguments.topic, principal)
        return member if isinstance(member, EnvelopeRefusal) else await operation(self, member, arguments)

    def _admit(self, topic: str, principal: str) -> RoomMember | EnvelopeRefusal:
        """Return the client as a member of the room, and renew its presence there. A client that is not a member gets
        the same refusal as for an unknown room.
        """
        room = self.rooms.by_topic.get(topic)
        if room is None or not self.rooms.is_member(room, principal):
            why = "unknown room, or you are not a member of it; rooms.list names your rooms"
            return EnvelopeRefusal("unknown_topic", why)
        if not self.rooms.may_join(room, principal):
            return EnvelopeRefusal("removed", REMOVED_HINT)
        participant = self.rooms.participant(room, principal)
        self.leases.renew(room, participant.id)
        return RoomMember(room, participant, principal)

    def _find_exclusion(self, member: RoomMember) -> EnvelopeRefusal | None:
        """Return a refusal if an admin has removed the client from the room while it waited, otherwise None."""
        again = self._admit(member.room.topic, member.principal)
        return again if isinstance(again, EnvelopeRefusal) else None

    # Presence

    def list_rooms(self, principal: str) -> Json:
        """Return the rooms that a client may join, with its participant id in each."""
        rooms = []
        for room in self.rooms.by_topic.values():
            if self.rooms.may_join(room, principal):
                you, present = self.rooms.participant(room, principal), room.seats
                entry = {"topic": room.topic, "you": you.described(), "joined": you.id in present}
                rooms.append({**entry, "participants": len(present)})
        return {"rooms": rooms}

    @_tool("Be present in a room. Every room tool renews it; after ten minutes without one you have left.")
    async def join(self, member: RoomMember, arguments: RoomArguments) -> Json | EnvelopeRefusal:
        room, who = member.room, member.participant
        if not self.leases.begin(room, who, member.principal):
            return EnvelopeRefusal("room_full", f"at most {room.settings.max_participants} participants")
        await self.rooms.readable_after(room, who.id, member.principal)
        others = [participant.described() for participant in room.present(who.id)]
        return {"topic": room.topic, "you": who.described(), "participants": others, "cursor": room.timeline.delivered}

    @_tool("Leave a room.")
    async def leave(self, member: RoomMember, arguments: RoomArguments) -> Json | EnvelopeRefusal:
        return {"topic": member.room.topic, "left": self.leases.end(member.room, member.participant.id)}

    @_tool("Who is in a room, and with which privilege.", "reads")
    async def participants(self, member: RoomMember, arguments: RoomArguments) -> Json | EnvelopeRefusal:
        participants = [participant.described() for participant in member.room.present()]
        return {"topic": member.room.topic, "participants": participants}

    # Messages

    @_tool(
        "What was said in a room since a cursor, and the proposals that wait. Without a cursor the newest messages.",
        "reads",
    )
    async def read(self, member: RoomMember, arguments: ReadArguments) -> Json | EnvelopeRefusal:
        """Return the messages after a cursor or, without one, the newest messages. Also return the waiting
        proposals. Neither goes back further than the room's `history_visibility` allows.
        """
        room, timeline, who = member.room, member.room.timeline, member.participant.id
        readable_after = await self.rooms.readable_after(room, who, member.principal)
        if arguments.cursor is not None and arguments.cursor < readable_after:
            why = "this room shows nothing from before you joined; rooms.join returns the first cursor for you"
            return EnvelopeRefusal("history_gap", why)  # X-4.4.1-6
        after = timeline.delivered - arguments.limit if arguments.cursor is None else arguments.cursor
        after = max(after, readable_after)
        if after > timeline.delivered:
            return EnvelopeRefusal("history_gap", "no message of that number was published yet")
        await timeline.wait_beyond(after, arguments.wait_s)
        if (exclusion := self._find_exclusion(member)) is not None:
            return exclusion
        records = limit_bytes(await timeline.read(after, timeline.delivered, arguments.limit))
        cursor = records[-1].sequence if records else after
        messages = [
            {"seq": record.sequence, "received_at": rfc3339(record.received_at), "envelope": Raw(record.data)}
            for record in records
        ]
        proposals = await self.rooms.proposals.list_readable(room, who, readable_after)
        under_way = [proposal for proposal in proposals if proposal["status"] in ("pending", "claimed")]
        page = {"topic": room.topic, "messages": messages, "cursor": cursor}
        return {**page, "more": cursor < timeline.delivered, "proposals": under_way}

    @_tool("Say something to everyone in a room. There are no private messages.")
    async def say(self, member: RoomMember, arguments: SayArguments) -> Json | EnvelopeRefusal:
        more = {} if arguments.format == "plain" else {"format": arguments.format}
        return await self._publish(member, CHAT, {"text": arguments.text, **more}, tuple(arguments.to))

    async def _publish(
        self, member: RoomMember, kind: str, payload: Json, to: tuple[str, ...]
    ) -> Json | EnvelopeRefusal:
        """Publish an envelope in the name of a client. Return its id, and the recipients that are not present."""
        room = member.room
        envelope = room.compose(kind, member.participant.id, to, msgspec.json.encode(payload))
        if isinstance(envelope, EnvelopeRefusal):
            return envelope
        if (refusal := await room.publish(envelope, member.participant, member.principal, is_guarded=True)) is not None:
            return refusal
        reply: Json = {"topic": room.topic, "id": envelope.id, "cursor": room.timeline.delivered}
        absent = [recipient for recipient in to if recipient not in room.seats]
        return reply | {"absent": absent} if absent else reply

    # Proposals

    @_tool(
        "Propose that a participant's tool is called. A full participant or a person decides. Everyone in the room"
        " sees it while it waits, arguments included."
    )
    async def propose(self, member: RoomMember, arguments: ProposeArguments) -> Json | EnvelopeRefusal:
        """Publish a tool call as a proposal, and wait briefly for its end. Refuse arguments that seem to contain a
        secret, unless `despite_secrets` is set.
        """
        room = member.room
        payload: Json = {"method": TOOLS_CALL, "params": {"name": arguments.tool, "arguments": arguments.arguments}}
        if arguments.reason is not None:
            payload["reason"] = arguments.reason
        if not arguments.despite_secrets:
            visible = {"arguments": arguments.arguments, "reason": arguments.reason}
            warning = secret_refusal(msgspec.json.encode(visible), room.settings.secret_patterns)  # X-7.2-1
            if warning is not None:
                return warning
        published = await self._publish(member, PROPOSAL, payload, (arguments.to,))
        if isinstance(published, EnvelopeRefusal):
            return published
        settled = await self.rooms.proposals.wait_until_settled(room.topic, published["id"], max(arguments.wait_s, 0.2))
        if (exclusion := self._find_exclusion(member)) is not None:
            return exclusion
        status = {"status": "published"} if settled is None else _describe_settled(settled)
        return {"topic": room.topic, "proposalId": published["id"], **status}

    @_tool("Have a proposal of another carried out in your own name. Only for full participants.")
    async def fulfil(self, member: RoomMember, arguments: FulfilArguments) -> Json | EnvelopeRefusal:
        """Carry out a proposal of another participant. Refuse that if a person has to approve the same call in the
        inbox.
        """
        proposals, topic, proposal_id = self.rooms.proposals, arguments.topic, arguments.proposal_id
        approval = await proposals.find(topic, proposal_id)
        if approval is not None and approval.target is not None and approval.method == TOOLS_CALL:
            # The gate sees the real operation: what is held there is approved in the inbox, once and with a proof.
            tool = Proposed(method=approval.method, params=approval.params).tool or ""
            if self.is_held(member.room, approval.target, tool):
                message = f"a person approves it in the inbox: interlock approve {approval.id}"
                return EnvelopeRefusal("kind_not_allowed", message, {"approval": approval.id}, id=proposal_id)
        claimed = await proposals.fulfil(topic, proposal_id, member.participant, member.principal)
        if isinstance(claimed, EnvelopeRefusal):
            return claimed
        settled = await proposals.wait_until_settled(topic, proposal_id, arguments.wait_s)
        if (exclusion := self._find_exclusion(member)) is not None:
            return exclusion
        outcome = _describe_settled(settled or SettledProposal(claimed))
        return {"topic": topic, "proposalId": proposal_id, **outcome}

    @_tool("Reject a proposal. Only for full participants.")
    async def reject(self, member: RoomMember, arguments: RejectArguments) -> Json | EnvelopeRefusal:
        topic, id, who = arguments.topic, arguments.proposal_id, member.participant
        decided = await self.rooms.proposals.reject(topic, id, who, member.principal, arguments.reason)
        return _describe_decision(arguments, decided)

    @_tool("Take back a proposal of your own.")
    async def withdraw(self, member: RoomMember, arguments: WithdrawArguments) -> Json | EnvelopeRefusal:
        topic, id, who = arguments.topic, arguments.proposal_id, member.participant
        return _describe_decision(arguments, await self.rooms.proposals.withdraw(topic, id, who))

    # Links

    def _local_tool(self, name: str, tool: RoomTool) -> LocalTool:
        """Return the MCP tool `rooms.NAME`, which decodes its arguments and performs the operation."""

        async def call(principal: str, arguments: bytes) -> ToolResult:
            reply: Json | EnvelopeRefusal
            try:
                decoded = msgspec.json.decode(arguments, type=tool.arguments)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reply = EnvelopeRefusal("input_invalid", str(error)[:500])
            else:
                reply = await self.perform(name, principal, decoded)
            if isinstance(reply, EnvelopeRefusal):
                content = {"error": reply.code, "message": reply.message, "details": reply.details or {}}
                return ToolResult(content=content, is_error=True)
            return ToolResult(content=reply)

        has_effect = tool.effect == "changes"
        return LocalTool(
            name=name,
            description=tool.description,
            input_schema=input_schema(tool.arguments),
            handler=call,
            has_effect=has_effect,
            latency_class=LatencyClass.STANDARD,
            timeout_s=TIMEOUT_S,
            scope="write" if has_effect else "read",
        )

    def _update_links(self, _: None) -> None:
        """Offer the tools while there is any room, and each room as a resource under its current name."""
        if not self.rooms.by_topic:
            self.catalog.drop(self._link)
        elif not self.catalog.has_segment(ROOMS):
            self.catalog.place(local_items(self._link, self.root_segment))
        local_names = resolve_locals([*self.rooms.by_topic]).local_names
        for room, link in list(self._links.items()):
            is_as_before = link.path == (ROOMS, local_names.get(room.topic))
            if self.rooms.by_topic.get(room.topic) is not room or not is_as_before:
                self.catalog.drop(self._links.pop(room))
        for topic, room in self.rooms.by_topic.items():
            local_name = local_names.get(topic)
            if room not in self._links and local_name is not None:
                link = self._links[room] = self._new_link(local_name, room)
                self.catalog.place(local_items(link, None))

    def _new_link(self, local_name: str, room: Room) -> LocalLink:
        """Return a link that offers one room as a resource to its members."""

        async def read(principal: str) -> str | Refusal:
            messages = await self.perform("read", principal, ReadArguments(topic=room.topic))
            participants = await self.perform("participants", principal, RoomArguments(topic=room.topic))
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
        members = RoomMembers(self.rooms, room)
        return LocalLink((ROOMS, local_name), self.events, self.clock, resources=(resource,), members=members)

    def _notify(self, room: Room) -> None:
        """Notify the subscribers of a room. If the last notification is less than PACE_S ago, do it later."""
        link = self._links.get(room)
        if link is None or room in self._pauses:
            self._with_news.add(room)
            return
        self._with_news.discard(room)

        def after_pause() -> None:
            del self._pauses[room]
            if room in self._with_news:
                self._notify(room)

        if self.audience.tell_updated(link, f"{SCHEME}{room.topic}"):
            self._pauses[room] = asyncio.get_running_loop().call_later(PACE_S, after_pause)


def _describe_settled(settled: SettledProposal) -> Json:
    approval = settled.approval
    outcome: Json = {"status": STATUS[approval.status].value, "approval": approval.id}
    if approval.decision is not None and approval.decision.reason is not None:
        outcome["reason"] = approval.decision.reason
    if settled.answer is not None:
        outcome["answer"] = Raw(settled.answer.payload)
    return outcome


def _describe_decision(arguments: WithdrawArguments, decided: Approval | EnvelopeRefusal) -> Json | EnvelopeRefusal:
    if isinstance(decided, EnvelopeRefusal):
        return decided
    status = STATUS[decided.status].value
    return {"topic": arguments.topic, "proposalId": arguments.proposal_id, "status": status}


@cache
def input_schema(arguments: type[msgspec.Struct]) -> Json:
    """Return a short JSON Schema for the arguments. It is short because models read it with every request."""
    _, components = msgspec.json.schema_components((arguments,), ref_template="{name}")
    schema: Json = components[arguments.__name__]
    properties = {}
    for name, declared in schema["properties"].items():
        # Of an optional member only the schema of a value is shown.
        value = next((each for each in declared.get("anyOf", ()) if each.get("type") != "null"), declared)
        properties[name] = {key: value[key] for key in value if key not in ("additionalProperties", "default")}
    return {"type": "object", "properties": properties, "required": schema["required"], "additionalProperties": False}
