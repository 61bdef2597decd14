"""The link to a participant of a room: MCP inside `mcp` envelopes (MCPx 4.1, X-10.1-3).

Theory of operation. What goes out is published in the room, to this participant alone and in the name of who asks: a
client's call under the id that the client has there, a question of the node's under `interlock`. The room judges it as
it judges all others. What comes back counts only from this participant, only where its `correlation_id` names the
envelope that asked, and only with the JSON-RPC id of that request (X-4.1-4): whatever else is said in the room, by this
participant or by others, reaches no call. Of its notifications those about lists and progress are heard.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.catalog.routes import Route
from interlock.config.plan import ToolClass
from interlock.core.calls.call import Call, Outcome, Pending
from interlock.core.clock import Clock
from interlock.links.connected_link import CHANGES, ID_DIGITS_MAX, ConnectedLink
from interlock.links.link import ServerFacts
from interlock.links.link_events import LinkEvents
from interlock.links.pipes import Trouble, Undelivered
from interlock.mcp.methods import CANCELLED, PROGRESS
from interlock.rooms.enclosed import enclose, fault_of
from interlock.rooms.membership import RoomMembers
from interlock.rooms.proposed_calls import ProposalHold, ProposedCalls
from interlock.rooms.protocol.envelope import Envelope
from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.protocol.participants import OWN, Participant, Privilege
from interlock.rooms.room import Room
from interlock.wire.jsonrpc.codec import decode_untrusted, encode_notification, encode_value
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.jsonrpc.messages import Notification, Response

NODE: Final = Participant(id=OWN, privilege=Privilege.FULL)  # the node, asking on its own behalf
_HEARD: Final = frozenset((*CHANGES, PROGRESS))
_FOR_CALLERS: Final = frozenset(("tools",))  # of what it says it has


class _EveryTool(Mapping[str, ToolClass]):
    """Every tool of a participant changes something for good, whatever it says of itself."""

    def __getitem__(self, name: str) -> ToolClass:
        return "irreversible"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_UNTRUSTED: Final = _EveryTool()


class ParticipantLink(ConnectedLink):
    members: RoomMembers

    def __init__(
        self,
        path: tuple[str, ...],
        events: LinkEvents,
        clock: Clock,
        room: Room,
        participant: str,
        members: RoomMembers,
        proposed: ProposedCalls,
        *,
        vendor_meta: bool,
    ) -> None:
        segment = ".".join(path)
        super().__init__(segment, events, clock, kind="participant", transport="room", vendor_meta=vendor_meta)
        self.path = path
        self.participant = participant
        self.members = members
        self.pipe = RoomPipe(self, room, participant, members.speaker)
        self._room = room
        self._proposed = proposed

    @property
    def classes(self) -> Mapping[str, ToolClass]:  # type: ignore[override]
        return {} if self._room.settings.trust_annotations else _UNTRUSTED

    def greeted(self, facts: ServerFacts) -> None:
        """It offers tools. What it would have every client read, or keep of a call, it is not asked for."""
        kept = {name: raw for name, raw in facts.capabilities.items() if name in _FOR_CALLERS}
        super().greeted(msgspec.structs.replace(facts, capabilities=kept, instructions=None))
        self.call_type = self._new_call

    def _new_call(self, *fields: Any) -> Call:
        """Of one who is restricted here, the call becomes a proposal."""
        call = Call(*fields)
        who = self.members.speaker(call.caller.principal.name)
        if who.privilege is not Privilege.FULL and self._room.settings.tracker and isinstance(call.route, Route):
            call.hold = ProposalHold(self._proposed, self._room, who, self.participant, call.route.original)
        return call

    def cancel(self, pending: Pending, reason: str) -> None:
        """The one that asked takes it back."""
        if self._no_longer(pending.upstream_id) is not None and isinstance(self.pipe, RoomPipe):
            params = encode_value({"requestId": pending.upstream_id, "reason": reason})
            self.pipe.take_back(encode_notification(CANCELLED.encode(), params), pending)

    def on_envelope(self, envelope: Envelope) -> None:
        """An `mcp` envelope of this participant."""
        try:
            message = decode_untrusted(envelope.payload)
        except CodecError as error:
            self._on_unreadable(envelope, error)
            return
        if isinstance(message, Response):
            self._on_response(message, envelope)
        elif isinstance(message, Notification) and message.method in _HEARD:
            self._on_notification(message, None)

    def _on_response(self, response: Response, envelope: Envelope) -> None:
        said = response.id
        uid = int(said) if said.isdigit() and len(said) <= ID_DIGITS_MAX else 0
        pending = self.in_flight.get(uid) or self.suspended.get(uid)
        if pending is None or pending.handle != envelope.correlation_id:
            self.stray += 1  # another's answer, a second one, or one that came too late
            return
        self._no_longer(uid)
        pending.on_response(response, self.era)

    def _on_unreadable(self, envelope: Envelope, error: CodecError) -> None:
        asked = envelope.correlation_id
        pending = next((one for one in self.in_flight.values() if asked is not None and one.handle == asked), None)
        self.noise.count_garbage()
        if pending is not None:
            self.on_undelivered(pending, Undelivered(Trouble.MALFORMED, f"its answer cannot be read: {error}"))

    def on_refused(self, origin: Pending | None, refused: Refusal) -> None:
        """The room did not publish it."""
        if origin is None:
            self._note_unsent(Undelivered(Trouble.REFUSED, refused.message))
        elif self._no_longer(origin.upstream_id) is not None:
            origin.on_failed(fault_of(refused), Outcome.REFUSED)


Speaker = tuple[Participant, str]  # as whom something is said, and the principal behind it


class RoomPipe:
    """Publishes each message in the room, to one participant."""

    def __init__(
        self, owner: ParticipantLink, room: Room, participant: str, speaker: Callable[[str], Participant]
    ) -> None:
        """`speaker`: who a client is in the room."""
        self._owner = owner
        self._room = room
        self._participant = participant
        self._speaker = speaker

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        """The handle of a request is the id of its envelope."""
        return self._publish(message, origin, None)

    def take_back(self, message: bytes, pending: Pending) -> None:
        asked = pending.handle if isinstance(pending.handle, str) else None
        self._publish(message, None, asked, as_of=pending)

    def _publish(
        self, message: bytes, origin: Pending | None, correlation_id: str | None, as_of: Pending | None = None
    ) -> str:
        who, principal = self._who(as_of if origin is None else origin)
        envelope = enclose(self._room, message, who.id, (self._participant,), correlation_id)
        if isinstance(envelope, Refusal):
            self._owner.on_refused(origin, envelope)
            return ""

        def settle(failed: Refusal | None) -> None:
            if failed is not None:
                self._owner.on_refused(origin, failed)

        refused = self._room.receive(envelope, who, principal, settle)
        if refused is not None:
            self._owner.on_refused(origin, refused)
        return envelope.id

    def _who(self, asking: Pending | None) -> Speaker:
        if isinstance(asking, Call):
            principal = asking.caller.principal.name
            return self._speaker(principal), principal
        return NODE, OWN

    def abort(self, handle: object) -> bool:
        return False

    def throttle(self, seconds: float) -> None:
        """The room has limits of its own for everyone in it."""

    async def close(self) -> None:
        """Nothing is open."""
