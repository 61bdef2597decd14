"""The link to a participant of a room: MCP inside `mcp` envelopes (MCPx 4.1, X-10.1-3).

Theory of operation. A request is published in the room, to this participant alone and in the name of the sender: a
client's call under the client's id in the room, a request of the node under `interlock`. The room checks it like any
other envelope. A reply counts only if it comes from this participant, if its `correlation_id` names the envelope of the
request, and if it has the JSON-RPC id of that request (X-4.1-4); no other message of the room reaches a call. Of the
participant's notifications, those about lists and progress are read.

A call by a restricted client is not sent. Its hold (`ProposalHold`) publishes it as a proposal and answers that a
confirmation is required. The same call, made again, finds the proposal by its arguments: it is answered with the reply
of the target once a full participant or a person has had it carried out.

Whatever a participant says of its tools, every call of one counts as irreversible, unless the room has
`trust_annotations`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.catalog.routes import Route
from interlock.config.plan import ToolClass
from interlock.core.calls.call import Call, CallHold, Outcome, Pending
from interlock.core.calls.check import CONFIRMATION_REQUIRED, CheckNumber, Refused, Release
from interlock.core.clock import Clock, rfc3339
from interlock.links.connected_link import ID_DIGITS_MAX, ConnectedLink
from interlock.links.link import LinkEvents, ServerFacts
from interlock.links.pipes import Pipe, Trouble, Undelivered
from interlock.links.server_messages import CHANGES
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import CANCELLED, PROGRESS, Era
from interlock.rooms.proposals import ProposalTracker, SettledProposal
from interlock.rooms.protocol.envelope import MCP, PROPOSAL, Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import OWN, Participant, Privilege
from interlock.rooms.protocol.proposals import STATUS, TOOLS_CALL, ProposalStatus, secret_refusal
from interlock.rooms.room import Room
from interlock.rooms.rooms import RoomRegistry
from interlock.wire.jsonrpc import codec
from interlock.wire.refusal import INVALID_PARAMS, SCOPE_DENIED, TOOL_DEGRADED, UNAVAILABLE, Refusal, ax_refusal


def refusal_for(refused: EnvelopeRefusal) -> Refusal:
    """Convert the refusal of an envelope to the refusal of the call that the envelope contained."""
    details = refused.details or {}
    match refused.code:
        case "privilege_violation":
            return ax_refusal(SCOPE_DENIED, "you are restricted in this room", reason=refused.code)
        case "rate_limited":
            retry_after_ms = details.get("retry_after_ms", 1000)
            data = {"reason": refused.code, "outcome": "not_sent", "retry_after_ms": retry_after_ms}
            return Refusal(TOOL_DEGRADED, "tool_degraded", data)
        case "unavailable":
            return Refusal(UNAVAILABLE, "unavailable", {"reason": refused.code, "detail": refused.message})
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
        """Return the participant as which a client acts in the room, whether or not it is present."""
        return self.rooms.participant(self.room, principal)


KNOWN_MAX: Final = 1000  # calls whose proposal is remembered
TRACKED_S: Final = 0.3
_UNDER_WAY: Final = (ProposalStatus.PENDING, ProposalStatus.CLAIMED)
_NOT_YET: Final = {"reason": "not_tracked", "detail": "the proposal is not in the inbox yet"}
_UNTRACKED: Final = Refused(CheckNumber.GATE, Refusal(UNAVAILABLE, "unavailable", _NOT_YET))

CallKey = tuple[str, str, str, str, bytes]


@dataclass(slots=True, eq=False)
class ProposalHold(CallHold):
    """The hold for a call by a restricted participant. It publishes the call as a proposal and never releases it.

    `proposed` has the ids of the calls that were proposed, by room, client, tool and arguments. All holds share it.
    """

    proposals: ProposalTracker
    proposed: dict[CallKey, str]
    room: Room
    who: Participant
    target: str
    tool: str
    is_waiting: bool = True
    is_asked_first: bool = True

    async def find_release(self, call: Call) -> Release | Refused:
        """Publish a call as a proposal, or find its earlier proposal. Return the answer to the client. If the
        target's reply has arrived, the call is answered with that before this method returns.
        """
        arguments = bytes(call.params.get("arguments") or RAW_EMPTY)
        principal = call.caller.principal.name
        key = (self.room.topic, principal, self.target, self.tool, hashlib.sha256(arguments).digest())
        proposal = self.proposed.get(key) or await self._propose(key, principal, arguments)
        if isinstance(proposal, EnvelopeRefusal):
            return Refused(CheckNumber.GATE, refusal_for(proposal))
        settled = await self.proposals.wait_until_settled(self.room.topic, proposal, TRACKED_S)
        if settled is None:
            return _UNTRACKED
        if STATUS[settled.approval.status] not in _UNDER_WAY:
            self.proposed.pop(key, None)
        try:
            response = codec.decode_untrusted(settled.answer.payload) if settled.answer is not None else None
        except codec.CodecError:
            response = None
        if not isinstance(response, codec.Response):
            call.reason = "confirmation_required"
            return Refused(CheckNumber.GATE, CONFIRMATION_REQUIRED.refusal, _result(call, self, settled))
        call.on_response(response, Era.LEGACY)
        return CONFIRMATION_REQUIRED  # the call has its answer

    async def _propose(self, key: CallKey, principal: str, arguments: bytes) -> str | EnvelopeRefusal:
        """Publish a call as a proposal and return its id. Arguments that appear to contain a secret are refused
        first.
        """
        warning = secret_refusal(arguments, self.room.settings.secret_patterns)  # X-7.2-1
        if warning is not None:
            return warning
        payload = codec.encode_value({"method": TOOLS_CALL, "params": {"name": self.tool, "arguments": Raw(arguments)}})
        envelope = self.room.compose(PROPOSAL, self.who.id, (self.target,), payload)
        if isinstance(envelope, EnvelopeRefusal):
            return envelope
        if len(self.proposed) >= KNOWN_MAX:
            del self.proposed[next(iter(self.proposed))]
        self.proposed[key] = envelope.id  # before anything is awaited: the same call made twice is proposed once
        if (refusal := await self.room.publish(envelope, self.who, principal)) is not None:
            self.proposed.pop(key, None)
        return refusal or envelope.id


def _result(call: Call, hold: ProposalHold, settled: SettledProposal) -> bytes:
    """Return the result that informs a client about the outcome of its proposal, in the same form as for held calls."""
    approval = settled.approval
    status = STATUS[approval.status]
    if status in _UNDER_WAY:
        text = (
            f"confirmation_required: you are restricted in the room {hold.room.topic}, so the call is proposed there."
            " A full participant or a person decides; then make the same call again for its result."
        )
        confirmation: dict[str, Any] = {"status": "confirmation_required", "confirmation_id": approval.id}
        if approval.expires_at is not None:
            confirmation["expires_at"] = rfc3339(approval.expires_at)
    else:
        why = approval.decision.reason if approval.decision is not None else None
        text = f"confirmation_denied: the proposal is {status.value}" + (f": {why}" if why else "")
        confirmation = {"status": "confirmation_denied", "confirmation_id": approval.id}
    confirmation |= {"room": hold.room.topic, "proposalId": approval.proposal_id}
    era: dict[str, Any] = {"resultType": "complete"} if call.caller.era is Era.MODERN else {}
    content = [{"type": "text", "text": text}]
    meta = {"x-mcpax-confirmation": confirmation}
    return codec.encode_value({**era, "content": content, "isError": True, "_meta": meta})


NODE: Final = Participant(id=OWN, privilege=Privilege.FULL)  # the node, asking on its own behalf
_HEARD: Final = frozenset((*CHANGES, PROGRESS))
_FOR_CALLERS: Final = frozenset(("tools",))  # of what it says it has


class _EveryTool(Mapping[str, ToolClass]):
    """A mapping that classes every tool of a participant as irreversible, whatever its annotations say."""

    def __getitem__(self, name: str) -> ToolClass:
        return "irreversible"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_UNTRUSTED: Final = _EveryTool()


class ParticipantLink(ConnectedLink):
    """A link to one participant of a room. `members` are the clients that can see and use it."""

    members: RoomMembers

    def __init__(
        self,
        path: tuple[str, ...],
        events: LinkEvents,
        clock: Clock,
        participant: str,
        members: RoomMembers,
        proposed: dict[CallKey, str],
        *,
        vendor_meta: bool,
    ) -> None:
        segment = ".".join(path)
        super().__init__(segment, events, clock, kind="participant", transport="room", vendor_meta=vendor_meta)
        self.path = path
        self.participant = participant
        self.members = members
        self._room = members.room
        self.pipe = RoomPipe(self)
        self._proposed = proposed

    @property
    def classes(self) -> Mapping[str, ToolClass]:  # type: ignore[override]
        return {} if self._room.settings.trust_annotations else _UNTRUSTED

    def greeted(self, facts: ServerFacts) -> None:
        """Store the participant's facts, but only its capabilities for tools. Its other capabilities and its
        instructions are dropped.
        """
        capabilities = {name: raw for name, raw in facts.capabilities.items() if name in _FOR_CALLERS}
        super().greeted(msgspec.structs.replace(facts, capabilities=capabilities, instructions=None))
        self.call_type = self._new_call

    def _new_call(self, *fields: Any) -> Call:
        """Create a call. If the room tracks proposals, a restricted participant's call of a tool is given a hold, which
        turns it into a proposal.
        """
        call = Call(*fields)
        who = self.members.speaker(call.caller.principal.name)
        if who.privilege is not Privilege.FULL and self._room.settings.tracker and isinstance(call.route, Route):
            proposals, target = self.members.rooms.proposals, self.participant
            call.hold = ProposalHold(proposals, self._proposed, self._room, who, target, call.route.original)
        return call

    def cancel(self, pending: Pending, reason: str) -> None:
        """Cancel a call on behalf of its caller."""
        if self.waiting.pop(pending.upstream_id) is not None and self.pipe is not None:
            params = codec.encode_value({"requestId": pending.upstream_id, "reason": reason})
            envelope_id = pending.handle if isinstance(pending.handle, str) else None
            self.publish(codec.encode_notification(CANCELLED.encode(), params), None, pending, envelope_id)

    def publish(
        self, message: bytes, origin: Pending | None, asking: Pending | None, correlation_id: str | None = None
    ) -> str:
        """Publish a message in the name of the sender of the call `asking`, or of the node if that is no call. Return
        the envelope's id, or an empty text if the message exceeds the limits of an envelope.

        A refusal fails the call `origin`, immediately or when the envelope could not be stored.
        """
        who, principal = NODE, OWN
        if isinstance(asking, Call):
            principal = asking.caller.principal.name
            who = self.members.speaker(principal)
        envelope = self._room.compose(MCP, who.id, (self.participant,), message, correlation_id)
        if isinstance(envelope, EnvelopeRefusal):
            self.on_refused(origin, envelope)
            return ""

        def settle(failure: EnvelopeRefusal | None) -> None:
            if failure is not None:
                self.on_refused(origin, failure)

        settle(self._room.receive(envelope, who, principal, settle))
        return envelope.id

    def on_envelope(self, envelope: Envelope) -> None:
        """Handle an `mcp` envelope of this participant."""
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
        """Fail the call whose envelope the room refused. `origin` is that call, if there is one."""
        if origin is None:
            self.failed.count_undelivered(Undelivered(Trouble.REFUSED, refused.message))
        elif self.waiting.pop(origin.upstream_id) is not None:
            origin.on_failed(refusal_for(refused), Outcome.REFUSED)


@dataclass(frozen=True, slots=True)
class RoomPipe(Pipe):
    """The message pipe of a link. It publishes each message in the room, addressed to one participant.

    A request in a room has no connection that could be closed, and the room limits the rate of every participant.
    """

    owner: ParticipantLink

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        """Publish a message. Return the id of its envelope, which identifies the message later."""
        return self.owner.publish(message, origin, origin)
