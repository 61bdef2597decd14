"""Connections to a room: a WebSocket, or a lease of an MCP client that uses the room's tools.

A WebSocket receives the envelopes of the room in their order and the replies to what its participant sent. A new
connection first receives a welcome. If it asked for history, it then receives events with old envelopes until it has
caught up with the room, and live envelopes from there on; `_last_in_history` marks the last one that came with the
history. A peer that does not read is closed with code 4429 and may resume where it stopped: nothing is left out
silently (X-5.2-6). A peer that repeatedly sends what is no envelope is closed as well (X-4-1).

A lease makes a client present that has no connection (X-10.1-4). It belongs to a principal in one room. Each call of a
room tool renews it; it ends when the client leaves or when its time is over. Nothing is delivered to a lease: its owner
reads the history.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.core.clock import Clock
from interlock.net.message_pipe import INTERNAL, POLICY, TOO_BIG
from interlock.rooms.protocol import gateway_messages
from interlock.rooms.protocol.envelope import V0, V01, Envelope, EnvelopeRefusal, decode_untrusted, encode, encode_v0
from interlock.rooms.protocol.participants import Participant
from interlock.rooms.room import Connected, Room
from interlock.rooms.timeline import Delivery, limit_bytes
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.oversized import Oversized

if TYPE_CHECKING:
    from interlock.net.websocket import AcceptedPipe


log = logging.getLogger("interlock.rooms")

SLOW: Final = 4429
QUEUED_MAX: Final = 1000  # envelopes that a peer has not read
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
INVALID_MAX: Final = 20  # X-4-1, in INVALID_S
INVALID_S: Final = 60.0
HISTORY_BATCH: Final = 100  # envelopes in one event
_INVALID: Final = frozenset(("invalid_json", "invalid_envelope"))


class ConnectionOptions(msgspec.Struct, frozen=True):
    """Options of a connection, given in the query of its URL."""

    protocol: str | None = None  # None: not said; the first envelope settles it
    echo: bool = True
    directed: bool = False  # only broadcasts and its own mail
    sequences: bool = False
    history: int = 0  # so many of the newest
    after: str | None = None  # or everything after this one


class Admission(msgspec.Struct, frozen=True):
    """A verified caller: its identity in a room, and what it may do and read there."""

    room: Room
    who: Participant
    principal: str
    source: str  # the rule that its privilege follows from, for the record
    readable_after: int  # the sequence after which it may read
    is_observed: bool = False  # as in `AssignedPrivilege`
    options: ConnectionOptions = ConnectionOptions()


class ParticipantConnection(Connected):
    """A WebSocket connection of a participant."""

    def __init__(self, admission: Admission, clock: Clock) -> None:
        room, options = admission.room, admission.options
        self.id = room.stamp().id
        self.connected_at = clock.wall()
        self.principal = admission.principal
        self.source = admission.source
        self.participant = admission.who.id
        self.protocol = options.protocol or room.settings.undeclared_protocol
        self._is_settled = options.protocol is not None
        self._room = room
        self._admission = admission
        self._options = options
        self._clock = clock
        self._pipe: AcceptedPipe | None = None
        self._is_live = options.after is None and not options.history
        self._last_in_history = 0  # the last sequence that history told
        self._sent = 0  # bytes
        self._ends: deque[int] = deque()  # where each message ends among them, until the peer has taken it
        self._invalid: deque[float] = deque()
        self._closing = False
        self._catching_up: asyncio.Task[None] | None = None

    def begin(self, pipe: "AcceptedPipe") -> None:
        """Join the room. The welcome is the first message that is sent."""
        self._pipe = pipe
        # X-4.4.1-1, X-5.2-5
        admission = self._admission
        self._say(self._room.join(self, admission.who, self.principal, self.source, is_observed=admission.is_observed))
        if not self._is_live:
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(), name="room history")
            self._catching_up.add_done_callback(self._after_catching_up)

    # The room's side

    def deliver(self, delivery: Delivery) -> None:
        """Send an envelope of the room, unless the options exclude it or it was already sent as part of the history.

        Events that are not stored are skipped if they were queued before this connection joined, because the welcome
        contains the same information.
        """
        envelope = delivery.envelope
        if delivery.sequence:
            if not self._is_live or delivery.sequence <= self._last_in_history:
                return  # it comes with the history, or came with it
        elif delivery.number < self.since:
            return
        own = envelope.sender == self.participant
        if own and not self._options.echo:
            return
        if self._options.directed and envelope.to and not own and self.participant not in envelope.to:
            return
        self._send(delivery.text(self.protocol))
        if self._options.sequences and delivery.sequence:
            self._say(delivery.sequence_event(self._room.stamp))

    def close(self, code: int, reason: str) -> None:
        self._closing = True
        if self._pipe is not None:
            self._pipe.close(code, reason)

    # The peer's side

    def on_message(self, data: bytes) -> None:
        """Handle an envelope from the peer. If the URL did not name a protocol version, the first envelope determines
        it.
        """
        if self._closing:
            return
        envelope = decode_untrusted(data, self._room.settings.max_envelope_bytes)
        if isinstance(envelope, EnvelopeRefusal):
            self._refuse(envelope)
            return
        if not self._is_settled and envelope.protocol in (V0, V01):
            self.protocol, self._is_settled = envelope.protocol, True
        if (seat := self._room.seats.get(self.participant)) is None:
            return
        who = seat.participant  # X-5.1-5, X-7.1-1: as it is now

        def settle(failure: EnvelopeRefusal | None) -> None:
            if failure is not None:
                self._refuse(failure)
                return
            for notice in self._room.notices(envelope, self.participant):
                self._say(notice)

        if (refusal := self._room.receive(envelope, who, self.principal, settle)) is not None:
            self._refuse(refusal)  # X-3.2-2

    def on_binary(self) -> None:
        self._refuse(EnvelopeRefusal("invalid_envelope", "an envelope comes in a text frame"))

    def on_oversized(self, frame: Oversized) -> None:
        self.close(TOO_BIG, "the frame is too large")

    def on_closed(self, code: int, reason: str) -> None:
        self._closing = True
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._room.leave(self, self.participant)

    def _refuse(self, refusal: EnvelopeRefusal) -> None:
        """Send the reason for which an envelope was refused. Close the connection after too many messages that are not
        envelopes.
        """
        self._say(gateway_messages.refusal(self._room.stamp(), self.participant, refusal))
        if refusal.code not in _INVALID:
            return
        now = self._clock.now()
        self._invalid.append(now)
        while self._invalid[0] <= now - INVALID_S:
            self._invalid.popleft()
        if len(self._invalid) >= INVALID_MAX:
            self.close(POLICY, f"{INVALID_MAX} messages within {INVALID_S:g} s were no envelopes")

    # History

    async def _catch_up(self) -> None:
        """Send all envelopes after the requested position, then switch to live delivery."""
        room, options = self._room, self._options
        try:
            after = max(0, room.timeline.delivered - options.history)
            if options.after is not None:
                place = room.timeline.find_position(options.after)
                after = room.timeline.position_after_gap(options.after) if place is None else place
                if place is None:  # with the number after which what is still kept follows, where something does
                    gap = {"event": "history_gap"} | ({"after": after} if after < room.timeline.delivered else {})
                    self._say(gateway_messages.system_event(room.stamp(), gap, to=self.participant))
            after = max(after, self._admission.readable_after)
            while not self._closing:
                upto = room.timeline.delivered
                if after >= upto:
                    self._is_live, self._last_in_history = True, after  # nothing is awaited between the look and this
                    return
                records = limit_bytes(await room.timeline.read(after, upto, HISTORY_BATCH))
                if not records:  # they were forgotten meanwhile
                    after = upto
                    continue
                after = records[-1].sequence
                batch = [(record.sequence, record.data) for record in records]
                self._say(gateway_messages.history(room.stamp(), self.participant, batch, more=after < upto))
                # A long history waits for its reader; live envelopes do not.
                if self._pipe is not None:
                    await self._pipe.drain(QUEUED_BYTES_MAX // 8)
        except StoreError as away:
            log.error("room %s: history cannot be read: %s", room.topic, away)
            self._say(gateway_messages.system_event(room.stamp(), {"event": "history_gap"}, to=self.participant))
            self._is_live = True

    def _after_catching_up(self, task: "asyncio.Task[None]") -> None:
        """Close the connection if sending the history failed, so that the peer notices the failure."""
        if not task.cancelled() and task.exception() is not None:
            log.error("room %s: history failed", self._room.topic, exc_info=task.exception())
            self.close(INTERNAL, "history could not be told")

    # Sending

    def _say(self, envelope: Envelope) -> None:
        self._send(encode_v0(envelope) if self.protocol == V0 else encode(envelope))

    def _send(self, data: bytes) -> None:
        """Send a message. Close the connection instead if the peer has not received enough of the earlier messages.

        The pipe knows how many bytes are unsent. `_ends` converts that to a number of messages: a message is sent after
        all bytes up to its end have left.
        """
        pipe = self._pipe
        if pipe is None or self._closing:
            return
        unsent, ends = pipe.unsent_bytes, self._ends
        while ends and ends[0] <= self._sent - unsent:
            ends.popleft()
        self._sent += len(data)
        ends.append(self._sent)
        if len(ends) > QUEUED_MAX or unsent > QUEUED_BYTES_MAX or not pipe.send(data):
            self.close(SLOW, "read more quickly; resume with ?after=")


LEASE_S: Final = 600.0


class PresenceLease(Connected):
    """The presence of a client that has no connection. Nothing is delivered to it; the client reads the history
    instead.
    """

    can_answer = False

    def __init__(self, room: Room, participant: str) -> None:
        self.id = room.stamp().id
        self._room = room
        self._participant = participant
        self._timer: asyncio.TimerHandle | None = None

    def renew(self, seconds: float) -> None:
        """Set the lease to end `seconds` from now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self, code: int = 0, reason: str = "") -> None:
        """End the presence of the client."""
        if self._timer is not None:
            self._timer.cancel()
        self._room.leave(self, self._participant)


class PresenceLeases:
    """The presence leases in all rooms. Each is a connection in the seat of its participant."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s

    def _find(self, room: Room, participant: str) -> PresenceLease | None:
        connections = room.connections_of(participant)
        return next((each for each in connections if isinstance(each, PresenceLease)), None)

    def begin(self, room: Room, who: Participant, principal: str) -> bool:
        """Begin or renew a lease. Return False if the room is full. A client that has a connection needs no lease."""
        if self.renew(room, who.id):
            return True
        if room.connections_of(who.id):
            return True
        if not room.has_free_seat(who.id):
            return False
        lease = PresenceLease(room, who.id)
        room.join(lease, who, principal, "lease")
        lease.renew(self._lease_s)
        return True

    def renew(self, room: Room, participant: str) -> bool:
        """Renew the lease of a participant. Return False if it has none."""
        if (lease := self._find(room, participant)) is not None:
            lease.renew(self._lease_s)
        return lease is not None

    def end(self, room: Room, participant: str) -> bool:
        """End the lease of a participant. Return False if it has none."""
        if (lease := self._find(room, participant)) is not None:
            lease.close()
        return lease is not None
