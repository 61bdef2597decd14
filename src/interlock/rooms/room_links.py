"""Participants of rooms as links of the namespace: `rooms.<topic>.<participant>.<tool>` (X-10.1-3).

A participant that can answer requests has a link while it is present, in rooms that a client may join. In other rooms
no participant is asked for its tools. Segments are topics and participant ids in the spelling of MCP-AX; segments that
would be spelled alike carry a hash, whoever came first.

Whenever somebody joins, leaves or gets another privilege, `_name_all` gives each link in the room the name that follows
from who is present. A link whose name changes is made again, so that no call reaches a participant under a name that it
has no longer.

A participant that lost its connection keeps its link, marked as degraded, for the grace of the room. It is greeted
again if it comes back.

A link speaks MCP inside `mcp` envelopes (MCPx 4.1). A request is published in the room, to this participant alone and
in the name of the sender: a client's call under the client's id in the room, a request of the node under `interlock`.
The room checks it like any other envelope. A reply counts only if it comes from this participant, if its
`correlation_id` names the envelope of the request, and if it has the JSON-RPC id of that request (X-4.1-4); no other
message of the room reaches a call. Of the participant's notifications, those about lists and progress are read.

A call by a restricted client is not sent. Its hold (`ProposalHold`) publishes it as a proposal and answers that a
confirmation is required. The same call, made again, finds the proposal by its arguments: it is answered with the reply
of the target once a full participant or a person has had it carried out.

Whatever a participant says of its tools, every call of one counts as irreversible, unless the room has
`trust_annotations`.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.names import resolve_locals
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.config.plan import ToolClass
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallHold, Outcome, Pending
from interlock.core.calls.check import CONFIRMATION_REQUIRED, CheckNumber, CheckRefusal, Release
from interlock.core.clock import rfc3339
from interlock.core.current_plan import CurrentPlan
from interlock.core.link_state import LinkState
from interlock.links.connected_link import ID_DIGITS_MAX, ConnectedLink
from interlock.links.connector import ConnectFailed, Connector, ConnectorParts, Manner, greet
from interlock.links.keeper import Keeper, ServerKeeper
from interlock.links.link import Link, LinkEvents, ServerFacts
from interlock.links.listing import Listing
from interlock.links.pipes import Pipe, Trouble, Undelivered
from interlock.links.server_messages import CHANGES
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import CANCELLED, LATEST_MODERN, LEGACY_VERSIONS, PROGRESS, TOOLS_LIST, Era
from interlock.rooms.proposals import SettledProposal
from interlock.rooms.protocol.envelope import MCP, PROPOSAL, Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import OWN, Participant, Privilege
from interlock.rooms.protocol.proposals import STATUS, TOOLS_CALL, ProposalStatus, secret_refusal
from interlock.rooms.room import Room, Seat
from interlock.rooms.rooms import RoomRegistry
from interlock.rooms.timeline import Delivery
from interlock.wire.jsonrpc import codec
from interlock.wire.refusal import INVALID_PARAMS, SCOPE_DENIED, TOOL_DEGRADED, Refusal, ax_refusal, unavailable


def refusal_for(refused: EnvelopeRefusal) -> Refusal:
    """Convert the refusal of an envelope to a refusal of the call in it."""
    details = refused.details or {}
    match refused.code:
        case "privilege_violation":
            return ax_refusal(SCOPE_DENIED, "you are restricted in this room", reason=refused.code)
        case "rate_limited":
            retry_after_ms = details.get("retry_after_ms", 1000)
            data = {"reason": refused.code, "outcome": "not_sent", "retry_after_ms": retry_after_ms}
            return Refusal(TOOL_DEGRADED, "tool_degraded", data)
        case "unavailable":
            return unavailable(refused.code, refused.message)
        case _:
            return Refusal(INVALID_PARAMS, refused.message, {"reason": refused.code, **details})


@dataclass(frozen=True, slots=True)
class RoomMembers:
    """The members of a room. They can see and use the links to its participants."""

    rooms: RoomRegistry
    room: Room

    @property
    def name(self) -> str:
        return self.room.topic

    def admits(self, principal: str) -> bool:
        return self.rooms.may_join(self.room, principal)

    def find_refusal(self, principal: str) -> Refusal | None:
        if self.speaker(principal).privilege is Privilege.FULL:
            return None
        why = "you are restricted in this room: propose the call, and one who is full there carries it out"
        return ax_refusal(SCOPE_DENIED, why, reason="privilege_violation")

    def speaker(self, principal: str) -> Participant:
        """Return the participant that represents a client in the room, whether or not it is present."""
        return self.rooms.participant(self.room, principal)


KNOWN_MAX: Final = 1000  # calls whose proposal is remembered
TRACKED_S: Final = 0.3
_UNDER_WAY: Final = (ProposalStatus.PENDING, ProposalStatus.CLAIMED)
_UNTRACKED: Final = CheckRefusal(CheckNumber.GATE, unavailable("not_tracked", "the proposal is not in the inbox yet"))

CallKey = tuple[str, str, str, str, bytes]


@dataclass(slots=True, eq=False)
class ProposalHold(CallHold):
    """The hold on a call by a restricted participant. It publishes the call as a proposal, and never releases the call
    itself.
    """

    link: "ParticipantLink"
    who: Participant
    tool: str
    is_waiting: bool = True
    is_asked_first: bool = True

    async def find_release(self, call: Call) -> Release | CheckRefusal:
        """Publish the call as a proposal, or find the proposal of an identical earlier call. Return a refusal in any
        case, because the proposal is carried out instead of the call. If the target has already replied to the
        proposal, its reply also answers the call.
        """
        arguments, topic = bytes(call.params.get("arguments") or RAW_EMPTY), self.link.room.topic
        principal, proposed = call.caller.principal.name, self.link.links.proposed
        key = (topic, principal, self.link.participant, self.tool, hashlib.sha256(arguments).digest())
        proposal = proposed.get(key) or await self._propose(key, principal, arguments)
        if isinstance(proposal, EnvelopeRefusal):
            return CheckRefusal(CheckNumber.GATE, refusal_for(proposal))
        settled = await self.link.links.rooms.proposals.wait_until_settled(topic, proposal, TRACKED_S)
        if settled is None:
            return _UNTRACKED
        if STATUS[settled.approval.status] not in _UNDER_WAY:
            proposed.pop(key, None)
        try:
            response = codec.decode_untrusted(settled.answer.payload) if settled.answer is not None else None
        except codec.CodecError:
            response = None
        if not isinstance(response, codec.Response):
            call.reason = "confirmation_required"
            return CheckRefusal(CheckNumber.GATE, CONFIRMATION_REQUIRED.refusal, _result(call, topic, settled))
        call.on_response(response, Era.LEGACY)
        return CONFIRMATION_REQUIRED  # the call has its answer

    async def _propose(self, key: CallKey, principal: str, arguments: bytes) -> str | EnvelopeRefusal:
        """Publish the call as a proposal and return its id. Refuse arguments that seem to contain a secret."""
        room, proposed = self.link.room, self.link.links.proposed
        warning = secret_refusal(arguments, room.settings.secret_patterns)  # X-7.2-1
        if warning is not None:
            return warning
        payload = codec.encode_value({"method": TOOLS_CALL, "params": {"name": self.tool, "arguments": Raw(arguments)}})
        envelope = room.compose(PROPOSAL, self.who.id, (self.link.participant,), payload)
        if isinstance(envelope, EnvelopeRefusal):
            return envelope
        if len(proposed) >= KNOWN_MAX:
            del proposed[next(iter(proposed))]
        proposed[key] = envelope.id  # before anything is awaited: the same call made twice is proposed once
        if (refusal := await room.publish(envelope, self.who, principal, is_guarded=True)) is not None:
            proposed.pop(key, None)
        return refusal or envelope.id


def _result(call: Call, topic: str, settled: SettledProposal) -> bytes:
    """Return the tool result that tells a client the state of its proposal: undecided, or ended without a reply. It has
    the form that calls have which a person must approve.
    """
    approval = settled.approval
    status = STATUS[approval.status]
    if status in _UNDER_WAY:
        text = (
            f"confirmation_required: you are restricted in the room {topic}, so the call is proposed there."
            " A full participant or a person decides; then make the same call again for its result."
        )
        confirmation: dict[str, Any] = {"status": "confirmation_required", "confirmation_id": approval.id}
        if approval.expires_at is not None:
            confirmation["expires_at"] = rfc3339(approval.expires_at)
    else:
        why = approval.decision.reason if approval.decision is not None else None
        text = f"confirmation_denied: the proposal is {status.value}" + (f": {why}" if why else "")
        confirmation = {"status": "confirmation_denied", "confirmation_id": approval.id}
    confirmation |= {"room": topic, "proposalId": approval.proposal_id}
    era: dict[str, Any] = {"resultType": "complete"} if call.caller.era is Era.MODERN else {}
    content = [{"type": "text", "text": text}]
    meta = {"x-mcpax-confirmation": confirmation}
    return codec.encode_value({**era, "content": content, "isError": True, "_meta": meta})


NODE: Final = Participant(id=OWN, privilege=Privilege.FULL)  # the node, asking on its own behalf
_HEARD: Final = frozenset((*CHANGES, PROGRESS))
_FOR_CALLERS: Final = frozenset(("tools",))  # of what it says it has


class _EveryTool(Mapping[str, ToolClass]):
    """A mapping that gives every tool of a participant the class `irreversible`, whatever the annotations of the tool
    say.
    """

    def __getitem__(self, name: str) -> ToolClass:
        return "irreversible"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_UNTRUSTED: Final = _EveryTool()


class ParticipantLink(ConnectedLink):
    """The link through which clients call the tools of one participant of a room. `members` are the clients that can
    see and use it.
    """

    members: RoomMembers

    def __init__(
        self, path: tuple[str, ...], events: LinkEvents, links: "RoomLinks", room: Room, participant: str
    ) -> None:
        segment, clock, vendor_meta = ".".join(path), links.connector_parts.clock, links.vendor_meta
        super().__init__(segment, events, clock, kind="participant", transport="room", vendor_meta=vendor_meta)
        self.path = path
        self.participant = participant
        self.links = links
        self.room = room
        self.members = RoomMembers(links.rooms, room)
        self.pipe = RoomPipe(self)

    @property
    def classes(self) -> Mapping[str, ToolClass]:  # type: ignore[override]
        return {} if self.room.settings.trust_annotations else _UNTRUSTED

    def greeted(self, facts: ServerFacts) -> None:
        """Store what the participant said in the handshake. Keep only its capabilities for tools, and drop its
        instructions.
        """
        capabilities = {name: raw for name, raw in facts.capabilities.items() if name in _FOR_CALLERS}
        super().greeted(msgspec.structs.replace(facts, capabilities=capabilities, instructions=None))
        self.call_type = self._new_call

    def _new_call(self, *fields: Any) -> Call:
        """Create a call. If the room tracks proposals, a tool call by a restricted participant gets a hold, which turns
        it into a proposal.
        """
        call = Call(*fields)
        who = self.members.speaker(call.caller.principal.name)
        if who.privilege is not Privilege.FULL and self.room.settings.tracker and isinstance(call.route, Route):
            call.hold = ProposalHold(self, who, call.route.original)
        return call

    def cancel(self, pending: Pending, reason: str) -> None:
        """Cancel a call, and tell the participant so in the name of the caller."""
        if self.waiting.pop(pending.upstream_id) is not None and self.pipe is not None:
            params = codec.encode_value({"requestId": pending.upstream_id, "reason": reason})
            envelope_id = pending.handle if isinstance(pending.handle, str) else None
            self.publish(codec.encode_notification(CANCELLED.encode(), params), None, pending, envelope_id)

    def publish(
        self, message: bytes, origin: Pending | None, asking: Pending | None, correlation_id: str | None = None
    ) -> str:
        """Publish a message to the participant. It is sent in the name of the caller if `asking` is a call, otherwise
        in the name of the node. Return the id of the envelope, or an empty text if the message is too large.

        A refusal fails the call `origin`, immediately or when the envelope could not be stored.
        """
        who, principal = NODE, OWN
        if isinstance(asking, Call):
            principal = asking.caller.principal.name
            who = self.members.speaker(principal)
        envelope = self.room.compose(MCP, who.id, (self.participant,), message, correlation_id)
        if isinstance(envelope, EnvelopeRefusal):
            self.on_refused(origin, envelope)
            return ""

        def settle(failure: EnvelopeRefusal | None) -> None:
            if failure is not None:
                self.on_refused(origin, failure)

        settle(self.room.receive(envelope, who, principal, settle, is_guarded=True))
        return envelope.id

    def on_envelope(self, envelope: Envelope) -> None:
        """Handle an `mcp` envelope that the participant has sent: a reply to a call, or a notification."""
        try:
            message = codec.decode_untrusted(envelope.payload)
        except codec.CodecError as error:
            request = envelope.correlation_id
            self.noise.count_garbage()
            call = next((call for call in self.in_flight.values() if call.handle == request), None)
            if request is not None and call is not None:
                self.on_undelivered(call, Undelivered(Trouble.MALFORMED, f"its answer cannot be read: {error}"))
            return
        if isinstance(message, codec.Response):
            uid = int(message.id) if message.id.isdigit() and len(message.id) <= ID_DIGITS_MAX else 0
            pending = self.in_flight.get(uid) or self.waiting.suspended.get(uid)
            if pending is None or pending.handle != envelope.correlation_id:
                self.stray += 1  # another's answer, a second one, or one that came too late
                return
            self.waiting.pop(uid)
            pending.on_response(message, self.era)
        elif isinstance(message, codec.Notification) and message.method in _HEARD:
            self._on_notification(message, None)

    def on_refused(self, origin: Pending | None, refused: EnvelopeRefusal) -> None:
        """Fail the call `origin`, because the room has refused its envelope. Without a call, only count the refusal."""
        if origin is None:
            self.failed.count_undelivered(Undelivered(Trouble.REFUSED, refused.message))
        elif self.waiting.pop(origin.upstream_id) is not None:
            origin.on_failed(refusal_for(refused), Outcome.REFUSED)


@dataclass(frozen=True, slots=True)
class RoomPipe(Pipe):
    """The transport of the link to a participant. It publishes each message in the room, addressed to that participant.

    A request in a room has no connection that could be closed, and the room limits the rate of every participant.
    """

    owner: ParticipantLink

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        """Publish a message. Return the id of its envelope, which identifies the message later."""
        return self.owner.publish(message, origin, origin)


GREET_S: Final = 10.0  # people answer no greeting at all
LEFT: Final = "it left the room"
# Everyone sees each question, so that only one that says so is asked in the newer way first (X-1-2).
_OLDER: Final = Manner(capabilities={}, versions=LEGACY_VERSIONS, patience_s=GREET_S)
_NEWER: Final = Manner(capabilities={}, first=Era.MODERN, patience_s=GREET_S)


class _Present(Connector):
    """Connector of a link to a participant. It only performs the handshake, because the participant is connected to the
    room already.
    """

    async def connect(self, start: AsyncExitStack) -> None:
        self._welcome(await greet(self._link, None, self._say_progress, self._parts.manner))


class ParticipantKeeper(ServerKeeper):
    """The keeper that starts and ends the MCP session with one participant of a room.

    The room decides when a session exists: `greet` begins one when the participant joins or returns, `rest` suspends
    it, and `end` ends it. The keeper itself restarts nothing.
    """

    link: ParticipantLink
    reads = (TOOLS_LIST,)
    is_reread = False

    def __init__(self, links: "RoomLinks", room: Room, who: Participant, path: tuple[str, ...]) -> None:
        manner = _NEWER if who.mcp_version == LATEST_MODERN else _OLDER
        parts = msgspec.structs.replace(links.connector_parts, manner=manner)
        super().__init__(
            lambda events: ParticipantLink(path, events, links, room, who.id), parts, links.stock, links.events
        )
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
        self.end(LEFT)

    def end(self, reason: str) -> None:
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
    """The links to the participants of all rooms.

    `proposed` has the ids of the calls that were proposed, by room, client, participant, tool and arguments.
    """

    current: CurrentPlan
    rooms: RoomRegistry
    catalog: Catalog
    keepers: dict[str, Keeper]
    connector_parts: ConnectorParts
    events: LinkEvents
    proposed: dict[CallKey, str] = field(default_factory=dict)
    _by_room: defaultdict[Room, dict[str, ParticipantKeeper]] = field(default_factory=lambda: defaultdict(dict))
    _restocking: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self.vendor_meta = self.current.plan.mcp.meta_pass == "vendor"  # noqa: S105  (a choice, not a password)
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
        """Update all links after the settings of rooms have changed: remove those that are no longer allowed, create
        those that now are, and list all tools again.
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
        """Return whether a person must approve calls of a participant's tool. If the tool is not listed, assume that
        its effect is irreversible.
        """
        if participant == OWN:
            return False  # its own gate sees to it
        keeper = self._find_keeper(room, participant)
        listed = self.catalog.namespace.link_items if keeper is not None else ()
        own = [items for items in listed if keeper is not None and items.link is keeper.link]
        routes = [route for items in own for route in items.tools if route.original == tool]
        return routes[0].is_held if routes else self.current.plan.gate.mode != "open"

    def _name_all(self, room: Room) -> None:
        """Create the links to the participants of a room, and replace those whose name has changed. The name of a link
        depends on which participants are present, because no two names may be equal.
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
                keeper = ParticipantKeeper(self, room, seats[participant].participant, path)
                self._by_room[room][participant] = self.keepers[keeper.link.segment] = keeper
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
        keeper.end(LEFT)
        self.catalog.drop(keeper.link)

    async def stock(self, link: Link, listing: Listing | None) -> None:
        if listing is None or not listing.tools.items:
            self.catalog.drop(link)
        else:
            await self.catalog.stock(link, listing)
