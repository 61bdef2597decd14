"""All registrations at one aggregator: who holds which segment, until when, and how a heartbeat timeout is handled.

MCP-AX 4.2, 5.3, 6, 13.

Theory of operation. In come messages that `codec` has read, with what the aggregator knows of their sender, and the
time as monotonic seconds; out come answers and events. A refused registration leaves no trace. The caller creates the
session ids, keeps the ownership records and the leases (`ownership`), carries the events out, and calls `on_deadline`
when `next_deadline` has come. Every operation first does what was due before it, so a late heartbeat is late whatever
operation is called first.

The life of one registration, from its first heartbeat to the end of its grace (6.3, 13.2, 13.3):

    LIVE      heartbeats come
    SUSPECT   two were missed: the session lasts, and the subserver is asked whether it is there
    LOST      the third was missed or the link is gone: the session is over, its names may stay listed as degraded
    ENDED     its names are gone

A miss is an interval without a heartbeat, counted from the last one or from the registration. With an interval of 0
only the link can be lost.

Cycles (5.3). An aggregator names in its registration and in its heartbeats all aggregators below it. A registrant that
names us, or an aggregator above us, as below it would close a cycle and is refused. An aggregator may repeat in good
faith a wrong claim of another below it; so it gets one interval to withdraw the claim before its session ends
(CycleClaimed).
"""

import enum
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from interlock.ax.protocol import messages
from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.messages import HEARTBEAT_MS, HEARTBEATS_MISSED_MAX, Register, Registered
from interlock.ax.protocol.names import check_segment, is_segment
from interlock.ax.protocol.registration.codec import SUBTREE_IDS_MAX
from interlock.wire import refusal as codes
from interlock.wire.refusal import Refusal, RefusalCode, ax_refusal

SUSPECT_AFTER: Final = 2  # misses. With the third, the three intervals of 13.3 would be used up already


class LivenessState(enum.Enum):
    LIVE = "live"
    SUSPECT = "suspect"
    LOST = "lost"
    ENDED = "ended"


class LivenessInput(enum.Enum):
    BEAT = "beat"
    SECOND_MISS = "second miss"
    THIRD_MISS = "third miss"
    LINK_CLOSED = "link closed"
    GRACE_OVER = "grace over"
    END = "end"  # deregistered, superseded, refused later, released


TABLE: Final[Mapping[tuple[LivenessState, LivenessInput], LivenessState]] = {
    (LivenessState.LIVE, LivenessInput.BEAT): LivenessState.LIVE,
    (LivenessState.LIVE, LivenessInput.SECOND_MISS): LivenessState.SUSPECT,
    (LivenessState.LIVE, LivenessInput.LINK_CLOSED): LivenessState.LOST,
    (LivenessState.LIVE, LivenessInput.END): LivenessState.ENDED,
    (LivenessState.SUSPECT, LivenessInput.BEAT): LivenessState.LIVE,
    (LivenessState.SUSPECT, LivenessInput.THIRD_MISS): LivenessState.LOST,
    (LivenessState.SUSPECT, LivenessInput.LINK_CLOSED): LivenessState.LOST,
    (LivenessState.SUSPECT, LivenessInput.END): LivenessState.ENDED,
    (LivenessState.LOST, LivenessInput.GRACE_OVER): LivenessState.ENDED,
    (LivenessState.LOST, LivenessInput.END): LivenessState.ENDED,
}

_DUE: Final = {
    LivenessState.LIVE: LivenessInput.SECOND_MISS,
    LivenessState.SUSPECT: LivenessInput.THIRD_MISS,
    LivenessState.LOST: LivenessInput.GRACE_OVER,
}


class Violation(Exception):
    """Error for an input that cannot happen in the present state. It shows a bug in the calling code, because a peer
    cannot cause it.
    """


class Liveness:
    """State machine of one registration. Missed heartbeats lead to the state LOST.

    `due` is the time of the next timed input.
    """

    def __init__(self, interval_ms: int, now: float) -> None:
        self.interval_ms = interval_ms
        self.state = LivenessState.LIVE
        self.since = now  # when this state began
        self._heard_at = now
        self.due = self._when_due(0.0)

    @property
    def has_session(self) -> bool:
        return self.state in (LivenessState.LIVE, LivenessState.SUSPECT)

    @property
    def deadline_ms(self) -> int:
        return HEARTBEATS_MISSED_MAX * self.interval_ms

    @property
    def retry_after_ms(self) -> int:
        return self.interval_ms or HEARTBEAT_MS  # 13.2; AX-13.2-2

    def step(self, what: LivenessInput, now: float, grace_s: float = 0.0) -> LivenessState:
        """Apply an input to the state machine and return the previous state. `grace_s` is used if the new state is
        LOST.
        """
        before, following = self.state, TABLE.get((self.state, what))
        if following is None:
            raise Violation(f"{what.value} does not happen to a registration that is {before.value}")
        self.state = following
        if self.state is not before:
            self.since = now
        if what is LivenessInput.BEAT:
            self._heard_at = now  # AX-6.3-2: resets the count
        self.due = self._when_due(grace_s)
        return before

    def step_due(self, grace_s: float = 0.0) -> LivenessState:
        """Apply the input whose time has come, for example a missed heartbeat, as of the time when it was due. Return
        the previous state.
        """
        if self.due is None:
            raise Violation(f"nothing is due for a registration that is {self.state.value}")
        return self.step(_DUE[self.state], self.due, grace_s)

    def _when_due(self, grace_s: float) -> float | None:
        match self.state:
            case LivenessState.LOST:
                return self.since + grace_s  # AX-13.2-4
            case LivenessState.LIVE | LivenessState.SUSPECT if self.interval_ms:  # AX-6.3-3
                misses = SUSPECT_AFTER if self.state is LivenessState.LIVE else HEARTBEATS_MISSED_MAX
                return self._heard_at + misses * self.interval_ms / 1000  # AX-6.3-2
            case _:
                return None


EndReason = Literal[
    "deregistered", "superseded", "registration_cycle", "link_insecure", "split_brain", "namespace_invalid", "removed"
]
LossReason = Literal["heartbeat_timeout", "connection_lost"]  # 13.1


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the configuration for registrations."""

    require_proof: Literal["mutable", "always", "never"] = "mutable"
    degraded: bool = True  # names of a lost registrant stay listed
    grace_s: float = 300.0  # 13.2: for so long; AX-13.2-4
    registrations_max: int = 10_000


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the aggregator itself knows about a registrant, such as its principal and the security of its link.

    `link` separates connections, even of one principal; requests without a connection share the empty value. `scope` is
    the widest scope that its [[access]] entry grants. `proved` says that its claimed authority is proved, or that the
    operator's configuration vouches for it. `secure` means TLS 1.3 or an equivalent (10.4).
    """

    principal: str
    link: str = ""
    scope: AuthScope = AuthScope.READ
    proved: bool = False
    secure: bool = True
    budget: Mapping[str, Any] = {}


class SegmentOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a segment that belongs to a proved authority, also while no session holds it (4.2)."""

    authority: str
    segment: str
    subserver_id: str
    at: float = 0.0  # when it was stored, in UNIX time


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one granted registration. They do not change during the session."""

    session_id: str
    register: Register  # without its proof, which is not needed any more
    peer: Peer
    auth_scope: AuthScope  # granted
    registered_at: float

    @property
    def segment(self) -> str:
        return self.register.segment


class RegistrationState(msgspec.Struct, frozen=True):
    """State of one registration at this moment. Calls to a SUSPECT subserver are refused only if it does not answer a
    ping.
    """

    session: Session
    state: LivenessState
    since: float
    retry_after_ms: int
    subtree_ids: tuple[str, ...] | None  # the latest that it sent


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """Event: a registration was accepted, and its session began.

    `replaces` is an earlier session whose names may still be listed. They must be removed while this event is handled.
    """

    session: Session
    replaces: str | None = None
    owner: SegmentOwner | None = None  # to be stored


class Suspected(msgspec.Struct, frozen=True, kw_only=True):
    """Event: a subserver missed two heartbeats in a row."""

    session: Session
    since: float


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """Event: a subserver that had missed two heartbeats sent one."""

    session: Session


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """Event: a session ended because its connection or its heartbeats failed. Its names stay listed as degraded until
    Vanished, or until another Joined.
    """

    session: Session
    reason: LossReason
    since: float


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Event: a session ended by deregistration, or because this node ended it.

    Its names are removed with Vanished, unless a new session takes them over.
    """

    session: Session
    reason: EndReason


class Vanished(msgspec.Struct, frozen=True, kw_only=True):
    """Event: nothing is listed under a segment any longer, so that the segment is free."""

    segment: str


class SubtreeChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Event: the set of aggregators below this node has changed. Parents learn of it with the next heartbeat (5.3)."""

    subtree_ids: tuple[str, ...]


class CycleClaimed(msgspec.Struct, frozen=True, kw_only=True):
    """Event: a subserver reported an aggregator as below itself that is in fact above this node, which is a cycle.

    The registrant has one interval to withdraw the claim (5.3).
    """

    session: Session


Event = Joined | Suspected | Recovered | Lost | Ended | Vanished | SubtreeChanged | CycleClaimed

Answer = TypeVar("Answer")


class Step(msgspec.Struct, Generic[Answer], frozen=True):
    """Result of a request to `Registrations`: the answer, and the events that the request caused.

    There may be events even if the answer is a refusal.
    """

    answer: Answer | Refusal
    events: tuple[Event, ...] = ()


DEADLINES_SPARE: Final = 64  # outdated deadlines before they are removed: each holds a registration in memory


class _Seat:
    """Registration that holds a segment. It keeps the segment for a grace period after its session was lost."""

    def __init__(self, session: Session, liveness: Liveness) -> None:
        self.session = session
        self.liveness = liveness
        self.subtree_ids = session.register.subtree_ids
        self.cycle: str | None = None  # an aggregator above us that the registrant claims to be below it

    @property
    def segment(self) -> str:
        return self.session.segment


class Registrations:
    """The registrations with one aggregator, found by segment, by subserver and by session.

    A seat is in `_by_segment` and `_by_subserver` until its names vanish, and in `_by_session` while its session lasts.
    """

    def __init__(self, aggregator_id: str, tree: str, policy: Policy) -> None:
        self.aggregator_id = aggregator_id
        self.tree = tree
        self.policy = policy  # may be replaced; what was granted stays granted
        self._kept: frozenset[str] = frozenset()
        self._above: frozenset[str] = frozenset()
        self._by_segment: dict[str, _Seat] = {}
        self._by_subserver: dict[str, _Seat] = {}
        self._by_session: dict[str, _Seat] = {}  # only while the session lasts
        self._below: Counter[str] = Counter()  # aggregator_id -> how many of those registered here name it
        self._told = self.subtree_ids()  # the ids of the last SubtreeChanged
        self._below_touched = False
        self._deadlines: list[tuple[float, int, _Seat]] = []  # may be early, never late
        self._serial = itertools.count()

    def keep(self, segments: Iterable[str]) -> None:
        """Reserve the segments that the configuration uses, so that no subserver can register them.

        A registrant that already holds one keeps it.
        """
        self._kept = frozenset(segments)

    def set_above(self, ids: frozenset[str]) -> tuple[Event, ...]:
        """Set the ids of the aggregators that are known to be above this node.

        A registrant that says one of them is below it is refused. Return CycleClaimed for each registration that
        already says so, and the change of the aggregators below this node, if any.
        """
        self._above = ids
        self._below_touched = True
        events: list[Event] = []
        for seat in self._by_session.values():
            if seat.cycle not in ids:
                seat.cycle = self._find_above(seat.subtree_ids)
                events += () if seat.cycle is None else (CycleClaimed(session=seat.session),)
        return (*events, *self._subtree_change())

    def subtree_ids(self) -> tuple[str, ...]:
        """Return the id of this aggregator, followed by the ids of all aggregators below it.

        An aggregator above this node is left out, whatever a registrant says: to repeat its claim to the parent would
        cost this node its registration.
        """
        # AX-5.3-4: own first
        return (self.aggregator_id, *(subtree_id for subtree_id in self._below if subtree_id not in self._above))

    def find(self, segment: str) -> RegistrationState | None:
        """Return the state of the registration at a segment, or None if the segment is free."""
        seat = self._by_segment.get(segment)
        return None if seat is None else _state_of(seat)

    def all(self) -> tuple[RegistrationState, ...]:
        return tuple(map(_state_of, self._by_segment.values()))

    def find_session_id(self, subserver_id: str) -> str | None:
        seat = self._by_subserver.get(subserver_id)
        return seat.session.session_id if seat is not None and seat.liveness.has_session else None

    def has_session(self, session_id: str) -> bool:
        return session_id in self._by_session

    def check(self, request: Register, peer: Peer, owner: SegmentOwner | None = None) -> Refusal | None:
        """Return why `register` would refuse a request, or None if it would not. Nothing is changed."""
        if refusal := self._check_request(request, peer) or self._check_claims(request, peer, owner):
            return refusal
        own = self._by_subserver.get(request.subserver_id)
        if request.subtree_ids is not None and (refusal := self._check_size(request.subtree_ids, own)):
            return refusal
        if len(self._by_segment) - len([*self._displaced_seats(request)]) >= self.policy.registrations_max:
            return codes.unavailable("too_many_registrations")
        return None

    def register(
        self, request: Register, peer: Peer, *, session_id: str, owner: SegmentOwner | None = None, now: float
    ) -> Step[Registered]:
        """Register a subserver. `owner` is the stored owner of the requested segment, or None if it has no owner."""
        events = [*self.on_deadline(now)]
        if refusal := self.check(request, peer, owner):
            return Step(refusal, tuple(events))
        holder = self._by_segment.get(request.segment)
        replaces = None if holder is None else holder.session.session_id
        for old in self._displaced_seats(request):
            events += self._leave(old, "superseded", now, retaken=old is holder)
        granted = peer.scope if request.auth_scope is None else min(peer.scope, request.auth_scope)  # AX-10.2-1
        register = msgspec.structs.replace(request, authority_proof=None, released_session=None)
        session = Session(session_id=session_id, register=register, peer=peer, auth_scope=granted, registered_at=now)
        seat = _Seat(session, Liveness(request.heartbeat_interval_ms, now))
        self._by_segment[request.segment] = self._by_subserver[request.subserver_id] = seat
        self._by_session[session_id] = seat
        self._schedule(seat)
        self._add_below(seat)
        # An unproved claim lasts for the session only; otherwise anyone could hold names for ever (AX-4.2-5).
        stored_owner = None
        if request.authority is not None and peer.proved:  # AX-4.2-5
            segment, subserver_id = request.segment, request.subserver_id
            stored_owner = SegmentOwner(segment=segment, authority=request.authority, subserver_id=subserver_id)
        events.append(Joined(session=session, replaces=replaces, owner=stored_owner))
        answer = Registered(
            assigned_segment=request.segment,
            session_id=session_id,
            heartbeat_deadline_ms=seat.liveness.deadline_ms,
            budget=dict(peer.budget),
            aggregator_id=self.aggregator_id,
            tree=self.tree,
            auth_scope=granted,
            claims=request.is_aggregator or None,
        )
        return Step(answer, (*events, *self._subtree_change()))

    def heartbeat(self, beat: messages.Heartbeat, peer: Peer, *, now: float) -> Step[int]:
        """Handle a heartbeat.

        The answer is the heartbeat_deadline_ms. A refused heartbeat does not keep the session alive.
        """
        events = [*self.on_deadline(now)]
        if (seat := self._find_own(beat.session_id, peer)) is None:
            return Step(_SESSION_UNKNOWN, tuple(events))
        if beat.subtree_ids is not None:
            if self.aggregator_id in beat.subtree_ids:  # AX-5.3-5
                events += self._leave(seat, "registration_cycle", now)
                return Step(self._cycle(self.aggregator_id), (*events, *self._subtree_change()))
            if not seat.session.peer.secure:  # AX-10.4-1
                events += self._leave(seat, "link_insecure", now)
                return Step(_INSECURE, (*events, *self._subtree_change()))
            if refusal := self._check_size(beat.subtree_ids, seat):
                return Step(refusal, tuple(events))
        # A refused claim that was not withdrawn still counts.
        was = seat.cycle
        if beat.subtree_ids is not None:
            seat.cycle = self._find_above(beat.subtree_ids)
        elif was not in self._above:
            seat.cycle = self._find_above(seat.subtree_ids)
        if seat.cycle is not None:
            events += () if was is not None else (CycleClaimed(session=seat.session),)
            return Step(self._cycle(seat.cycle), tuple(events))
        if beat.subtree_ids is not None:
            self._drop_below(seat)
            seat.subtree_ids = beat.subtree_ids
            self._add_below(seat)  # AX-5.3-4: learnt from a heartbeat
        if seat.liveness.step(LivenessInput.BEAT, now) is LivenessState.SUSPECT:
            events.append(Recovered(session=seat.session))
        return Step(seat.liveness.deadline_ms, (*events, *self._subtree_change()))

    def deregister(self, message: messages.Deregister, peer: Peer, *, now: float) -> Step[None]:
        events = self.on_deadline(now)
        if self._find_own(message.session_id, peer) is None:
            return Step(_SESSION_UNKNOWN, events)
        return Step(None, (*events, *self.end(message.session_id, "deregistered", now=now)))

    def link_closed(self, session_id: str, *, now: float) -> tuple[Event, ...]:
        """Handle a link that closed or does not respond. Nothing happens if its session has already ended."""
        events = [*self.on_deadline(now)]
        if seat := self._by_session.get(session_id):
            seat.liveness.step(LivenessInput.LINK_CLOSED, now, self._grace_s())
            events.append(self._lose(seat, "connection_lost"))  # AX-13.1-1
        return (*events, *self._subtree_change(), *self.on_deadline(now))

    def end(self, session_id: str, reason: EndReason, *, now: float) -> tuple[Event, ...]:
        """End a session on the aggregator's initiative, for example because another aggregator now has its lease."""
        events = [*self.on_deadline(now)]
        if seat := self._by_session.get(session_id):
            events += self._leave(seat, reason, now)
        return (*events, *self._subtree_change())

    def end_cycle(self, session_id: str, *, now: float) -> tuple[Event, ...]:
        """End a session that causes a cycle: its subserver reports an aggregator as below itself, but this aggregator
        is above this node.
        """
        events = [*self.on_deadline(now)]
        if (seat := self._by_session.get(session_id)) is not None and seat.cycle in self._above:
            events += self._leave(seat, "registration_cycle", now)
        return (*events, *self._subtree_change())

    def release(self, segment: str, *, now: float) -> tuple[Event, ...]:
        """Remove the names of a lost subserver before its grace period is over. A live session is not affected."""
        events = [*self.on_deadline(now)]
        if (seat := self._by_segment.get(segment)) is not None and not seat.liveness.has_session:
            events += self._leave(seat, "removed", now)
        return tuple(events)

    def next_deadline(self) -> float | None:
        while self._deadlines:
            at, _, seat = self._deadlines[0]
            if seat.liveness.due == at:
                return at
            heapq.heappop(self._deadlines)
            if seat.liveness.due is not None and seat.liveness.due > at:  # it has been heard since
                self._schedule(seat)
        return None

    def on_deadline(self, now: float) -> tuple[Event, ...]:
        events: list[Event] = []
        while (at := self.next_deadline()) is not None and at <= now:
            seat = heapq.heappop(self._deadlines)[2]
            seat.liveness.step_due(self._grace_s())
            match seat.liveness.state:
                case LivenessState.SUSPECT:
                    events.append(Suspected(session=seat.session, since=seat.liveness.since))
                    self._schedule(seat)
                case LivenessState.LOST:
                    events.append(self._lose(seat, "heartbeat_timeout"))  # AX-13.1-1
                case _:
                    self._forget(seat)
                    events.append(Vanished(segment=seat.segment))
        return (*events, *self._subtree_change())

    def _check_request(self, request: Register, peer: Peer) -> Refusal | None:
        """Check a registration by itself: its tree, cycles, the security of its link, its segment and its proof."""
        if request.tree is not None and request.tree != self.tree:
            why = "tree must be left out or be the one this aggregator belongs to"
            return Refusal(codes.INVALID_PARAMS, why, {"member": "tree", "tree": self.tree})
        named = request.subserver_id, *(request.subtree_ids or ())
        above = self._find_above(named)
        if self.aggregator_id in named:  # AX-5.3-3
            # If we were below it, so would be the one we are registered with.
            return self._cycle(self.aggregator_id, is_below=above is not None)
        if above is not None:  # AX-5.3-3
            return self._cycle(above)
        if request.is_aggregator and not peer.secure:  # AX-10.4-1
            return _INSECURE
        if unfit := check_segment(request.segment):  # AX-4.1-2
            code: RefusalCode = codes.NAMESPACE_CONFLICT if is_segment(request.segment) else codes.NAMESPACE_INVALID
            return ax_refusal(code, unfit, segment=request.segment)
        if self.policy.require_proof == "always" and not peer.proved:
            why = "this aggregator registers only proved authorities"
            return ax_refusal(codes.AUTHORITY_UNVERIFIED, why, reason="absent")
        return None

    def _check_claims(self, request: Register, peer: Peer, owner: SegmentOwner | None) -> Refusal | None:
        """Check a registration against existing ones with the same subserver id or segment, and against the owner of
        the segment.
        """
        own, holder = self._by_subserver.get(request.subserver_id), self._by_segment.get(request.segment)
        # AX-4.2-3: another principal
        if own is not None and own.session.peer.principal != peer.principal and not _may_inherit(request, peer, own):
            return _conflict(request, "this subserver_id is registered by somebody else")
        if request.segment in self._kept:
            return _conflict(request, "the segment is taken by this aggregator's configuration; choose another")
        rival = holder if holder is not own else None
        if rival is not None and rival.liveness.has_session:  # AX-4.2-2
            return _conflict(request, "the segment is taken; choose another")
        if owner is not None:
            if request.authority != owner.authority:  # AX-4.2-5
                why = "the segment belongs to another authority; choose another, or have it released"
                return ax_refusal(codes.AUTHORITY_CONFLICT, why, segment=request.segment)
            if not peer.proved:  # AX-4.2-6
                why = "the segment belongs to this authority; send authority_proof, or a client certificate"
                return ax_refusal(codes.AUTHORITY_UNVERIFIED, why, segment=request.segment, reason="absent")
        if rival is not None and not _may_inherit(request, peer, rival):  # AX-4.2-3: in its grace
            return _conflict(request, "the segment is held for a registrant that was lost; choose another, or wait")
        return None

    def _check_size(self, ids: tuple[str, ...], instead_of: _Seat | None) -> Refusal | None:
        """Return a refusal if a registration would bring more aggregators below this node than its parent accepts.

        Otherwise the parent would end this node's registration. `instead_of` is the registration that this one
        replaces.
        """
        gone = instead_of.subtree_ids or () if instead_of is not None and instead_of.liveness.has_session else ()
        left = {subtree_id for subtree_id in gone if self._below[subtree_id] == 1}
        if 1 + len(self._below.keys() - left | set(ids)) <= SUBTREE_IDS_MAX:
            return None
        why = f"{messages.SUBTREE_IDS} must not bring the tree below this aggregator above {SUBTREE_IDS_MAX} ids"
        return Refusal(codes.INVALID_PARAMS, why, {"member": messages.SUBTREE_IDS})

    def _displaced_seats(self, request: Register) -> Iterator[_Seat]:
        """Yield the existing registrations that a new one would replace: those with its subserver id or its segment."""
        own, holder = self._by_subserver.get(request.subserver_id), self._by_segment.get(request.segment)
        yield from (seat for seat in dict.fromkeys((own, holder)) if seat is not None)

    def _find_own(self, session_id: str, peer: Peer) -> _Seat | None:
        """Return the registration with this session, or None if the session does not belong to the principal and
        connection in `peer`.
        """
        seat = self._by_session.get(session_id)
        holder = None if seat is None else seat.session.peer
        # AX-6.2-2
        return seat if holder is not None and (holder.principal, holder.link) == (peer.principal, peer.link) else None

    def _lose(self, seat: _Seat, reason: LossReason) -> Lost:
        """End the session of a registration that has become LOST. Its segment stays reserved until the grace period is
        over.
        """
        self._drop_below(seat)
        del self._by_session[seat.session.session_id]
        self._schedule(seat)
        return Lost(session=seat.session, reason=reason, since=seat.liveness.since)  # AX-13.1-1

    def _leave(self, seat: _Seat, reason: EndReason, now: float, *, retaken: bool = False) -> list[Event]:
        """End the session of a registration and free its segment. Return the resulting events.

        `retaken` means that a new session takes over the names, so that they stay listed.
        """
        events: list[Event] = [] if retaken else [Vanished(segment=seat.segment)]  # AX-6.3-5
        if seat.liveness.has_session:
            self._drop_below(seat)
            del self._by_session[seat.session.session_id]
            events.insert(0, Ended(session=seat.session, reason=reason))
        seat.liveness.step(LivenessInput.END, now)
        self._forget(seat)
        return events

    def _forget(self, seat: _Seat) -> None:
        del self._by_segment[seat.segment]
        del self._by_subserver[seat.session.register.subserver_id]

    def _grace_s(self) -> float:
        return self.policy.grace_s if self.policy.degraded else 0.0  # AX-13.2-1, AX-13.2-4

    def _schedule(self, seat: _Seat) -> None:
        """Enter the next deadline of a registration into the heap of deadlines.

        The outdated entry of a deadline that moved is skipped when it is due. If there are too many outdated entries,
        the heap is built again.
        """
        if seat.liveness.due is None:
            return
        heapq.heappush(self._deadlines, (seat.liveness.due, next(self._serial), seat))
        if len(self._deadlines) > DEADLINES_SPARE + 2 * len(self._by_segment):
            seats = [(other.liveness.due, other) for other in self._by_segment.values()]
            self._deadlines = [(due, next(self._serial), other) for due, other in seats if due is not None]
            heapq.heapify(self._deadlines)

    def _add_below(self, seat: _Seat) -> None:
        self._below.update(seat.subtree_ids or ())
        self._below_touched |= bool(seat.subtree_ids)

    def _drop_below(self, seat: _Seat) -> None:
        for subtree_id in seat.subtree_ids or ():
            self._below[subtree_id] -= 1
            if not self._below[subtree_id]:
                del self._below[subtree_id]
        self._below_touched |= bool(seat.subtree_ids)

    def _subtree_change(self) -> tuple[SubtreeChanged, ...]:
        """Return an event if the set of ids below this node has changed since the last call.

        The order of ids does not matter.
        """
        if not self._below_touched:
            return ()
        self._below_touched = False
        ids = self.subtree_ids()
        if set(ids) == set(self._told):
            return ()
        self._told = ids
        return (SubtreeChanged(subtree_ids=ids),)

    def _find_above(self, ids: tuple[str, ...] | None) -> str | None:
        """Return the first of these ids that belongs to an aggregator above this node, or None."""
        return next((subtree_id for subtree_id in ids or () if subtree_id in self._above), None)

    def _cycle(self, id: str, **data: bool) -> Refusal:
        which = "this aggregator" if id == self.aggregator_id else "an aggregator above this one"
        why = f"{which} is named as one below the one that registers"
        return ax_refusal(codes.REGISTRATION_CYCLE, why, id=id, **data)


def _state_of(seat: _Seat) -> RegistrationState:
    life = seat.liveness
    return RegistrationState(seat.session, life.state, life.since, life.retry_after_ms, seat.subtree_ids)


def _may_inherit(request: Register, peer: Peer, lost: _Seat) -> bool:
    """Return whether a registrant may take over the names of a subserver whose session was lost. It must have proved
    the same authority.
    """
    if lost.liveness.has_session or not peer.proved or request.authority is None:  # AX-4.2-3
        return False
    return request.authority == lost.session.register.authority


def _conflict(request: Register, why: str) -> Refusal:
    return ax_refusal(codes.NAMESPACE_CONFLICT, why, segment=request.segment)  # AX-4.2-2


_INSECURE: Final = ax_refusal(
    codes.LINK_INSECURE, "an aggregator registers over TLS 1.3, loopback, or a link marked secure_by"
)
_SESSION_UNKNOWN: Final = ax_refusal(
    codes.SESSION_UNKNOWN, "there is no such session for this registrant; register again"
)
