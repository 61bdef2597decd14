"""A room: its participants, and which of their envelopes are published.

Theory of operation. A participant has a *seat* from its first connection until some time after its last one. The grace
between the two (`presence_grace_s`) keeps a link that flaps from announcing a leave and a join each time. One
participant may have several connections, up to `connections_per_participant`; one more replaces the oldest. Connections
at other replicas of the node have a place in the same seat, but nothing is delivered to them here.

An envelope is checked when it arrives, with the privilege that the sender has at that moment. The checks have one order
(X-5.3-1), so that each bad envelope has one predictable error. Envelopes that pass go into the room's timeline, and so
do presence and other events of the gateway. Decisions about proposals (`mcp/reject`, `mcp/withdraw`) are not published;
the tracker announces what they led to.

A connection that asks for history receives it up to the last delivered envelope, and from that turn of the event loop
on it receives every delivery. Nothing is awaited in between, so no envelope is missed or sent twice.

Limits. Each limit protects the others in a room from one participant: RECORDED_MAX keeps a flood of refusals out of the
audit log, NOTICE_EVERY_S keeps it out of the room, REPLACEMENTS_MAX stops two programs that share one credential from
replacing each other for ever.
"""

import asyncio
import contextlib
import hashlib
import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.core.audit_record import AuditRecord
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock, rfc3339_ms
from interlock.core.feed import Feed
from interlock.core.recorder import Recorder
from interlock.rooms.participant_records import ParticipantRecords
from interlock.rooms.protocol import enforcement
from interlock.rooms.protocol import envelope as envelopes
from interlock.rooms.protocol.enforcement import OpenRequest, RateWindow, What
from interlock.rooms.protocol.envelope import CHAT, MCP, PROPOSAL, V0, Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import GATEWAY, OWN, Participant, Privilege
from interlock.rooms.protocol.settings import RoomSettings
from interlock.rooms.timeline import Delivery, Settle, Timeline
from interlock.store.ports import Store
from interlock.wire.refusal import Refusal


@dataclass(frozen=True, slots=True)
class RoomAudit:
    """A writer for audit records about rooms."""

    recorder: Recorder
    clock: Clock

    def add(
        self, event: str, topic: str, who: str, outcome: str, envelope: Envelope | None = None, **more: Any
    ) -> None:
        """Add a record about an event in a room: join, leave, publish, refuse, observe, promote, demote, disconnect,
        create, fulfil or edit.
        """
        details: dict[str, Any] = {"room": topic}
        if envelope is not None:
            details |= {"envelope": envelope.id, "kind": envelope.kind, "correlation_id": envelope.correlation_id}
        details |= {key: value for key, value in more.items() if value is not None}
        self.recorder.add_line(
            AuditRecord.event(
                self.clock.wall(),
                who,
                "rooms",
                f"rooms/{event}",
                f"rooms.{topic}",
                verdict=outcome,
                args_sha256=None if envelope is None else hashlib.sha256(envelope.payload).hexdigest(),
                **details,
            )
        )


if TYPE_CHECKING:
    from interlock.rooms.proposals import ProposalTracker

log = logging.getLogger("interlock.rooms")

REPLACED: Final = 4409
ID_TAKEN: Final = "another principal has this participant's id"
REMOVED: Final = 4403
REPLACEMENTS_MAX: Final = 5  # X-4.4.1-5, in REPLACEMENTS_S
REPLACEMENTS_S: Final = 60.0
NOTICE_EVERY_S: Final = 10.0  # X-5.3-2
RATES_MAX: Final = 1000  # participants whose last minute is remembered, idle ones included


class Connected:
    """A base class of connections to a room: a WebSocket, the presence lease of an MCP client, the node itself, or a
    connection of another replica.
    """

    id: str
    since = 0  # the number of the first delivery that is news to it
    is_here = True  # and not at another replica
    can_answer = True  # whether the participant receives requests over this connection

    def deliver(self, delivery: Delivery) -> None:
        """Deliver an envelope. Do nothing if this connection is only a sign of presence."""

    def close(self, code: int, reason: str) -> None:
        raise NotImplementedError


class Seat(msgspec.Struct):
    """The place of a participant in a room. It exists while the participant is present, and a moment longer in case the
    participant returns.

    `leave_timer` is the timer that ends the grace after the last connection; it is None while a connection exists.
    `replaced_at` has the times at which a connection took the place of an older one.
    """

    participant: Participant
    principal: str
    arrived_after: int  # the sequence of the newest envelope when the principal came
    connections: list[Connected] = []
    leave_timer: asyncio.TimerHandle | None = None
    replaced_at: deque[float] = msgspec.field(default_factory=deque)
    noticed_at: float = float("-inf")
    is_observed: bool = False  # as in `AssignedPrivilege`
    was_here: bool = True  # the last connection that it had
    is_removed: bool = False  # it cannot return within the grace


class RoomFeeds(msgspec.Struct, frozen=True):
    """The events of all rooms, to which other parts of the node can subscribe.

    `published`: an envelope was stored and delivered. `seated`: the connections of a participant at this replica
    changed. `presence`: a participant came, went, or has another privilege.
    """

    published: Feed[tuple["Room", Delivery]] = msgspec.field(default_factory=Feed)  # stored, and told to everyone
    seated: Feed[tuple["Room", str]] = msgspec.field(default_factory=Feed)  # whose connections here are others now
    presence: Feed[tuple["Room", str]] = msgspec.field(default_factory=Feed)  # who came, went, or has another privilege


@dataclass(frozen=True, slots=True)
class SharedRoomParts:
    """The objects that all rooms of a node share. `granted` returns the privilege that an admin has granted to a
    participant of a topic, or None. `find_safety_refusal` returns why the safety loop does not let a principal act in
    rooms, or None.
    """

    store: Store
    clock: Clock
    audit: RoomAudit
    records: ParticipantRecords
    tracker: "ProposalTracker"
    feeds: RoomFeeds
    granted: Callable[[str, str], Privilege | None]
    find_safety_refusal: Callable[[str], Refusal | None]


class Room:
    """A room: a topic with its participants, and with the envelopes that they have published.

    Envelopes that are sent to this replica enter a room only through `receive`. A room never decides who may join: the
    endpoint and the registry have done so before they call `join`.
    """

    def __init__(self, topic: str, settings: RoomSettings, parts: SharedRoomParts) -> None:
        self.topic = topic
        self.settings = settings
        self.granted = partial(parts.granted, topic)
        self.seats: dict[str, Seat] = {}
        self.accepted: Counter[str] = Counter()  # since the start, by kind
        self.refused: Counter[str] = Counter()  # by code
        self.timeline = Timeline(self, parts.store, parts.clock)
        self.tracker = parts.tracker
        self._records = parts.records
        self._audit = parts.audit
        self._clock = parts.clock
        self._feeds = parts.feeds
        self._joining: Counter[str] = Counter()  # connections that are being accepted, by participant
        self._find_safety_refusal = parts.find_safety_refusal
        self._known = self.timeline.known
        self._rates: dict[str, RateWindow] = {}
        self._background = BackgroundTasks()
        self._heartbeat: asyncio.TimerHandle | None = None

    def replan(self, settings: RoomSettings) -> None:
        """Apply changed settings, starting with the next envelope."""
        self.settings = settings
        self._set_heartbeat()

    async def open(self) -> None:
        """Open the room, and restore its timeline from the store. Raise StoreError if that fails."""
        self.tracker.rooms[self.topic] = self
        self._set_heartbeat()
        await self.timeline.open()

    async def close(self) -> None:
        self.tracker.rooms.pop(self.topic, None)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for seat in self.seats.values():
            if seat.leave_timer is not None:
                seat.leave_timer.cancel()
        await self.timeline.close()
        await self._background.close()

    # Who is here

    def present(self, but: str | None = None) -> list[Participant]:
        """Return the participants that are present in the room, without the one whose id is `but`."""
        return [seat.participant for id, seat in self.seats.items() if id != but]

    def arrival_position(self, participant: str, principal: str) -> int:
        """Return the sequence number that was the newest when a participant joined. If it is not present with this
        principal, return the newest number now.
        """
        seat = self.seats.get(participant)
        return seat.arrived_after if seat is not None and seat.principal == principal else self.timeline.delivered

    def connections_of(self, participant: str) -> tuple[Connected, ...]:
        """Return the connections of a participant to all replicas, oldest first."""
        return tuple(self.seats[participant].connections) if participant in self.seats else ()

    def has_free_seat(self, participant: str) -> bool:
        """Return whether a participant is present already or can still join. Reserved seats count as taken."""
        present = (self.seats.keys() | self._joining.keys()) - {OWN}
        return participant in present or len(present) < self.settings.max_participants

    @contextlib.contextmanager
    def reserve(self, participant: str) -> Iterator[None]:
        """Reserve a seat for a joining participant, until the block of this context manager ends."""
        self._joining[participant] += 1
        try:
            yield
        finally:
            self._joining[participant] -= 1
            self._joining = +self._joining  # without those that are zero

    def replaces_too_often(self, participant: str) -> bool:
        """Return whether a participant has replaced its connections too often in the last minute. Then two programs
        probably share one credential.
        """
        seat = self.seats.get(participant)
        if seat is None or len(seat.connections) < self.settings.connections_per_participant:
            return False
        now = self._clock.now()
        while seat.replaced_at and seat.replaced_at[0] <= now - REPLACEMENTS_S:
            seat.replaced_at.popleft()
        return len(seat.replaced_at) >= REPLACEMENTS_MAX

    def join(
        self, connection: Connected, who: Participant, principal: str, source: str, *, is_observed: bool = False
    ) -> Envelope:
        """Add a connection of a participant. Return the welcome, which must be the first message sent on it."""
        seat = self.seats.get(who.id)
        connection.since = self.timeline.numbered + 1
        if seat is None:
            seat = self.seats[who.id] = Seat(who, principal, self.timeline.delivered, [connection])
            connection.since += 1  # it does not receive its own join
            self._announce(envelopes.presence(self.stamp(), "join", who))
        else:
            seat.arrived_after = self.arrival_position(who.id, principal)
            seat.participant, seat.principal = who, principal
            self._add_connection(seat, connection, len(seat.connections))
        seat.is_observed, seat.is_removed = is_observed, False
        self._note_seen(who, principal)
        self._audit.add("join", self.topic, principal, "ok", participant=who.id, source=source)
        self._feeds.presence.publish((self, who.id))
        self._feeds.seated.publish((self, who.id))
        return self.welcome(who)

    def welcome(self, who: Participant) -> Envelope:
        """Return the welcome of a participant, with the other participants that are present."""
        keeps, others, last = self.settings.history_visibility != "none", self.present(who.id), self.timeline.delivered
        return envelopes.welcome(self.stamp(), self.topic, who, others, keeps_history=keeps, last=last)

    def join_elsewhere(self, connection: Connected, who: Participant, principal: str, *, is_newer: bool) -> bool:
        """Add a connection that another replica holds. If another principal already uses the participant id, only the
        older connections stay. If the new one is the newer, close it and return False; otherwise close the connections
        of this replica.

        `is_newer`: the connection is newer than those of this replica.
        """
        if (seat := self.seats.get(who.id)) is None:
            self.seats[who.id] = Seat(who, principal, self.timeline.delivered, [connection])
            self._announce(envelopes.presence(self.stamp(), "join", who))
        elif seat.principal != principal and seat.connections and is_newer:
            connection.close(REPLACED, ID_TAKEN)
            return False
        else:
            if seat.principal != principal:
                self.disconnect(who.id, REPLACED, ID_TAKEN)
                seat.arrived_after = self.timeline.delivered
                seat.participant, seat.principal = who, principal
            self._add_connection(seat, connection, len(seat.connections) if is_newer else 0)
        self._feeds.presence.publish((self, who.id))
        return True

    def _add_connection(self, seat: Seat, connection: Connected, place: int) -> None:
        """Add a connection to a seat, and close the oldest ones until the seat has no more than the room allows
        (X-4.4.1-5).
        """
        if seat.leave_timer is not None:
            seat.leave_timer.cancel()
            seat.leave_timer = None
        seat.connections.insert(place, connection)
        while len(seat.connections) > self.settings.connections_per_participant:
            seat.replaced_at.append(self._clock.now())
            seat.connections.pop(0).close(REPLACED, "a newer connection of this participant took its place")

    def leave(self, connection: Connected, participant: str) -> None:
        """Remove a connection. If it was the last one, the participant leaves after the grace period."""
        seat = self.seats.get(participant)
        if seat is None or connection not in seat.connections:
            self._feeds.seated.publish((self, participant))
            return  # it was replaced
        seat.connections.remove(connection)
        seat.was_here = connection.is_here
        self._feeds.seated.publish((self, participant))
        if not seat.connections:
            # A link that flaps costs every model in the room the tokens of two messages (X-4.4.1-3).
            grace_s = 0.0 if seat.is_removed else self.settings.presence_grace_s
            seat.leave_timer = asyncio.get_running_loop().call_later(grace_s, self._announce_leave, participant)
            self._feeds.presence.publish((self, participant))

    def _announce_leave(self, participant: str) -> None:
        """Remove a participant whose grace period has ended, and announce that it left."""
        if (seat := self.seats.pop(participant, None)) is not None:
            if seat.was_here:
                self._audit.add("leave", self.topic, seat.principal, "ok", participant=participant)
            self._announce(envelopes.presence(self.stamp(), "leave", seat.participant))
            self._feeds.presence.publish((self, participant))

    def _set_heartbeat(self) -> None:
        """Schedule the next heartbeats, which repeatedly announce who is present (X-4.4.1-4)."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        every_s = self.settings.presence_heartbeat_s

        def announce_heartbeats() -> None:
            for seat in self.seats.values():
                if seat.connections:
                    self._announce(envelopes.presence(self.stamp(), "heartbeat", seat.participant))
            self._set_heartbeat()

        self._heartbeat = asyncio.get_running_loop().call_later(every_s, announce_heartbeats) if every_s else None

    def set_privilege(self, participant: str, privilege: Privilege, by: str) -> Privilege | None:
        """Change the privilege of a participant, starting with its next envelope. Return the old privilege, or None if
        the participant is not present.
        """
        if (seat := self.seats.get(participant)) is None:
            return None
        old = seat.participant.privilege
        seat.participant = msgspec.structs.replace(seat.participant, privilege=privilege)  # X-5.1-5
        if old is not privilege:
            self.announce_privilege(seat.participant, old, by)  # X-5.1-5
            self._feeds.presence.publish((self, participant))
            self._feeds.seated.publish((self, participant))
        return old

    def announce_privilege(self, who: Participant, old: Privilege, by: str) -> None:
        self._announce(envelopes.privilege_changed(self.stamp(), who, old, by))

    def find_recorded_privilege(self, participant: str) -> Privilege | None:
        """Return the last known privilege of a participant that is not present, for example because it sends over HTTP.
        Return None if there is none.
        """
        record = self._records.find(self.topic, participant)
        return None if record is None else record.privilege

    def _note_seen(self, who: Participant, principal: str) -> None:
        if who.id != OWN:
            self._records.note_seen(self.topic, who.id, principal, who.privilege)

    def disconnect(self, participant: str, code: int, reason: str, *, everywhere: bool = False) -> int:
        """Close the connections of a participant to this replica or, with `everywhere`, to all replicas. Return how
        many were closed. With the code REMOVED, the participant leaves at once.
        """
        closing = [each for each in self.connections_of(participant) if each.is_here or everywhere]
        if (seat := self.seats.get(participant)) is not None:
            seat.is_removed = code == REMOVED
            if seat.is_removed and seat.leave_timer is not None:  # it went a moment ago
                seat.leave_timer.cancel()
                self._announce_leave(participant)
        for connection in closing:
            connection.close(code, reason)
        return len(closing)

    # What they send

    def receive(
        self,
        envelope: Envelope,
        who: Participant,
        principal: str,
        settle: Settle,
        *,
        needs_protocol: bool = True,
        is_guarded: bool = False,
    ) -> EnvelopeRefusal | None:
        """Check an envelope and queue it for publication. Return a refusal, or None if it was queued.

        `is_guarded` means that the guard has admitted the call that the envelope comes from, or that the node or a
        person sends it. Otherwise the safety loop is asked about the sender.

        `settle` is called with None when the envelope was delivered, or with a refusal if it could not be stored. A
        decision on a proposal is not queued; for it, `settle` is called with the refusal of the tracker, or None.
        """
        if who.id not in self.seats:
            self._note_seen(who, principal)
        if (refusal := enforcement.protocol_refusal(envelope, is_needed=needs_protocol)) is None:
            if envelope.protocol == V0:
                envelope = envelopes.read_v0(envelope)
            refusal = self._find_refusal(envelope, who, None if is_guarded else principal)  # X-3.2-1
        if refusal is not None:
            self.refused[refusal.code] += 1
            if refusal.code == "privilege_violation":
                self._records.note_violation(self.topic, who.id)
            self._note_refused(envelope, who, principal, refusal)
            return refusal
        if enforcement.is_decision(envelope.kind, self.settings):

            async def decide() -> None:
                settle(await self.tracker.decide(self, envelope, who, principal))

            self._background.begin(decide(), f"room {self.topic}")
            return None
        now = self._clock.wall()
        envelope = msgspec.structs.replace(envelope, sender=who.id, ts=envelope.ts or rfc3339_ms(now))  # X-4-6
        self.accepted[envelope.kind] += 1
        self._known.add(envelope, who.id)
        seat = self.seats.get(who.id)
        if seat is not None and seat.is_observed:
            # Record what a mixed room would have refused, so that an operator knows before changing the mode.
            would = enforcement.privilege_refusal(envelope, who.id, Privilege.RESTRICTED, self.settings, None)
            if would is not None and self._window(who.id).may_record(self._clock.now()):
                self._audit.add("observe", self.topic, principal, would.code, envelope, participant=who.id)
        if envelope.kind != CHAT:
            self._audit.add("publish", self.topic, principal, "ok", envelope, participant=who.id)  # X-7.1-2
        self.timeline.add(envelope, settle=settle, is_stored=True, received_at=now, principal=principal)
        return None

    async def publish(
        self,
        envelope: Envelope,
        who: Participant,
        principal: str,
        *,
        needs_protocol: bool = True,
        is_guarded: bool = False,
    ) -> EnvelopeRefusal | None:
        """Check and queue an envelope, as `receive` does, and wait until it is delivered. Return a refusal if it is not
        allowed or could not be stored, otherwise None.
        """
        delivered: asyncio.Future[EnvelopeRefusal | None] = asyncio.get_running_loop().create_future()

        def settle(failure: EnvelopeRefusal | None) -> None:
            if not delivered.done():
                delivered.set_result(failure)

        refusal = self.receive(envelope, who, principal, settle, needs_protocol=needs_protocol, is_guarded=is_guarded)
        return refusal or await delivered

    def compose(
        self, kind: str, sender: str, to: tuple[str, ...], payload: bytes, answers: str | None = None
    ) -> Envelope | EnvelopeRefusal:
        """Create an envelope in the name of `sender`. Return a refusal if it exceeds the limits on size and depth."""
        stamp = self.stamp()
        envelope = Envelope(
            id=stamp.id, ts=stamp.ts, sender=sender, to=to or None, kind=kind, correlation_id=answers, payload=payload
        )
        return envelopes.decode_untrusted(envelopes.encode(envelope), self.settings.max_envelope_bytes)

    def _find_refusal(self, envelope: Envelope, who: Participant, unguarded: str | None) -> EnvelopeRefusal | None:
        """Check an envelope in the order of X-5.3-1. Return the first refusal, or None if it may be published.
        `unguarded` is the name of the sender's principal if the safety loop still has to be asked about it, otherwise
        None.
        """
        request = self._known.find_request(envelope.correlation_id)
        return (
            enforcement.kind_refusal(envelope, self.settings)
            or enforcement.sender_refusal(envelope, who.id)
            or enforcement.privilege_refusal(envelope, who.id, who.privilege, self.settings, request)
            or (self._find_execution_refusal(envelope, who, unguarded, request) if unguarded is not None else None)
            or self._find_rate_refusal(envelope, who, request)
            or enforcement.payload_refusal(envelope)
            or self._known.duplicate(envelope, who.id)
            or (self.tracker.admit(self, envelope, who) if envelope.kind == PROPOSAL else None)
        )

    def _find_execution_refusal(
        self, envelope: Envelope, who: Participant, principal: str, request: OpenRequest | None
    ) -> EnvelopeRefusal | None:
        """Return a refusal if the safety loop does not let the sender act. An answer to a request is no action."""
        if enforcement.is_answer(envelope, who.id, request):
            return None
        return self.find_execution_refusal(principal, envelope.id)

    def find_execution_refusal(self, principal: str, id: str) -> EnvelopeRefusal | None:
        """Return a refusal if the safety loop does not let a principal act in rooms (AQL-8.6.4-5). `id` is that of the
        envelope, or of the proposal that it would decide.
        """
        if (refusal := self._find_safety_refusal(principal)) is None:
            return None
        message = "this client acts by tools alone, and reports each call first: use the tools rooms.*"
        return EnvelopeRefusal("execution_refused", message, refusal.details, id=id)

    def _find_rate_refusal(
        self, envelope: Envelope, who: Participant, request: OpenRequest | None
    ) -> EnvelopeRefusal | None:
        """Return a refusal if the sender exceeds a rate limit, otherwise None. The first reply of a full participant to
        a request does not count (X-N-4), and neither do envelopes of the node.
        """
        if who.id == OWN:
            return None  # what the node asks is bounded by who is here
        is_answer = envelope.kind == MCP and request is not None and request.awaits(who.id)
        if is_answer and who.privilege is Privilege.FULL:
            return None
        window = self._window(who.id)
        size, now = _size(envelope), self._clock.now()
        return window.refused(_counted(envelope), self.settings.per_min, now, envelope.id, size)

    def _window(self, participant: str) -> RateWindow:
        """Return the window that counts the recent envelopes of a participant. If there are too many windows, delete
        the idle ones.
        """
        if participant not in self._rates and len(self._rates) >= RATES_MAX:
            now = self._clock.now()
            self._rates = {id: window for id, window in self._rates.items() if not window.is_idle(now)}
        return self._rates.setdefault(participant, RateWindow())

    def rate(self, participant: str) -> RateWindow:
        return self._rates.get(participant) or RateWindow()

    def _note_refused(self, envelope: Envelope, who: Participant, principal: str, refusal: EnvelopeRefusal) -> None:
        """Record a refusal in the audit log, except one for exceeding a rate limit. If the settings of the room ask for
        it, also announce a privilege violation in the room (X-5.3-2).
        """
        if refusal.code == "rate_limited" or not self._window(who.id).may_record(self._clock.now()):
            return  # a flood is not written down line by line
        self._audit.add("refuse", self.topic, principal, refusal.code, envelope, participant=who.id)  # X-7.1-2
        seat = self.seats.get(who.id)
        if refusal.code != "privilege_violation" or not self.settings.violation_notice or seat is None:
            return
        if self._clock.now() - seat.noticed_at >= NOTICE_EVERY_S:
            seat.noticed_at = self._clock.now()
            event = {"event": "privilege_violation", "participant": who.id, "envelope": envelope.id}
            self._announce(envelopes.system_event(self.stamp(), {**event, "kind": envelope.kind}))

    def notices(self, envelope: Envelope, to: str) -> Iterable[Envelope]:
        """Yield warnings for the sender of a published envelope, for example that a recipient is absent (X-4-8,
        X-3.1-5).
        """
        named = envelope.to or ()
        request = self._known.find_request(envelope.correlation_id)
        # A requester that is absent receives the answer all the same: through the namespace, or by reading history.
        absent = [id for id in named if id not in self.seats and (request is None or id != request.by)]
        if absent:
            payload = {"event": "recipient_absent", "absent": absent}
            yield envelopes.system_event(self.stamp(), payload, to=to, answers=envelope.id)
        if envelope.kind == MCP and self.settings.restricted_replies == "deny":
            seats = [self.seats[id] for id in named if id in self.seats]
            mute = [seat.participant.id for seat in seats if seat.participant.privilege is not Privilege.FULL]
            if mute:
                payload = {"event": "recipient_cannot_answer", "participants": mute}
                yield envelopes.system_event(self.stamp(), payload, to=to, answers=envelope.id)

    # What the gateway says

    def stamp(self) -> envelopes.Stamp:
        """Return a new id and the current time for a gateway message."""
        return envelopes.Stamp(str(uuid.uuid4()), rfc3339_ms(self._clock.wall()))

    def announce(self, payload: dict[str, Any], *, answers: str) -> None:
        """Publish and store a gateway event for everyone, so that it also appears in the history."""
        envelope = envelopes.system_event(self.stamp(), payload, answers=answers)
        self._known.add(envelope, GATEWAY)
        self.timeline.add(envelope, is_stored=True, received_at=self._clock.wall())

    def tell(self, participant: str, refusal: EnvelopeRefusal) -> None:
        """Send the refusal of an envelope only to its sender."""
        self.timeline.add(envelopes.refusal(self.stamp(), participant, refusal), only=participant)

    def _announce(self, envelope: Envelope) -> None:
        """Queue a gateway event that is delivered but not stored."""
        self.timeline.add(envelope)

    # What the timeline tells

    def recipients(self, delivery: Delivery) -> list[Connected]:
        """Return the connections that receive a delivery now. Connections that join later read it from the history."""
        if delivery.only is not None:
            return list(self.connections_of(delivery.only))
        return [connection for seat in self.seats.values() for connection in seat.connections]

    def on_delivered(self, delivery: Delivery) -> None:
        """Publish a delivered envelope to the other parts of the node, if it was stored. The replica that received it
        from its sender also passes it to the tracker of proposals.
        """
        if delivery.sequence and delivery.principal and delivery.envelope.kind != CHAT:
            self.tracker.on_published(self, delivery.envelope, delivery.principal)
        if delivery.sequence:
            self._feeds.published.publish((self, delivery))

    def on_replicated(self, envelope: Envelope, received_at: float) -> None:
        """Count an envelope that was published through another replica, and pass it to the tracker of proposals."""
        sender = envelope.sender or ""
        if sender == GATEWAY:
            return
        request = self._known.find_request(envelope.correlation_id)
        if sender != OWN and (envelope.kind != MCP or request is None or not request.awaits(sender)):
            self._window(sender).count(_counted(envelope), self._clock.now(), _size(envelope))  # X-7.3-3
        self.tracker.on_replicated(self, envelope, received_at)


_COUNTED: Final[dict[str, tuple[What, ...]]] = {PROPOSAL: ("proposals", "envelopes"), CHAT: ("chat", "envelopes")}


def _counted(envelope: Envelope) -> tuple[What, ...]:
    return _COUNTED.get(envelope.kind, ("envelopes",))


def _size(envelope: Envelope) -> int:
    """Return the total length of the payload, the unknown members and the addressees of an envelope, in bytes."""
    return len(envelope.payload) + len(envelope.extra) + sum(map(len, envelope.to or ()))
