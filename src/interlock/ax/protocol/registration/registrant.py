"""The registrant's side of MCP-AX: find a parent, stay registered with it, move to another one (6, 13.3, 13.4).

In come events of the link and answers of the parent, as values, with `now` (monotonic seconds) and, where a delay
follows, `jitter` (0 to 1, drawn by the caller). Out come steps, which the caller carries out in their order. Bytes,
sockets and URLs belong to the caller: here a parent is its position in the list.

Theory of operation. A registrant belongs to one tree and has one link at a time, so it never has two parents. Each
parent has a time before which it is not dialled again. A failure moves that time further away, and another parent that
may be dialled is dialled at once. A parent that works is kept: the registrant does not return to the first parent while
another one holds the registration. The next registration gives up the session at the lost parent (`released_session`),
so that no aggregator has to wait until its lease lapses.

Heartbeats leave twice per interval. With a backup parent, one heartbeat that is not answered within an interval is the
loss of the parent (AX-13.3-3); without a backup only the link itself can be lost, because there is no better parent.

After Hangup, and after `lost`, the caller reports nothing more about that link.
"""

import enum
from math import inf
from typing import Final, assert_never

import msgspec

from interlock.ax.protocol.messages import HEARTBEATS_MISSED_MAX, Deregister, Heartbeat, Parent, Register, Registered
from interlock.wire import refusal as codes
from interlock.wire.refusal import UpstreamError

RETRY_MIN_S: Final = 0.2  # AX-13.3-2
RETRY_MAX_S: Final = 10.0  # AX-13.3-2
# After a refusal that only a person can resolve: often enough to notice that it was resolved.
SLOW_RETRY_S: Final = 60.0
DIAL_S: Final = 10.0  # for the link to open
ANSWER_S: Final = 10.0  # for the answer to mcpax/register; the parent may first ask us, for 2 s
FAREWELL_S: Final = 2.0  # for the answer to mcpax/deregister
SETTLED_S: Final = 10.0  # without heartbeats: a registration that lasts so long counts as success
INTERVAL_MIN_S: Final = 0.1  # the shortest interval that a parent may ask for
SUBTREE_SOON_S: Final = 0.02  # changes below us mostly come several at once
BEATS_KEPT: Final = 2 * HEARTBEATS_MISSED_MAX  # unanswered heartbeats that are remembered; two are sent per interval

# Refusals that another attempt cannot change, because a person has to change something.
UNMENDABLE: Final = frozenset(
    {
        codes.NAMESPACE_CONFLICT,
        codes.NAMESPACE_INVALID,
        codes.REGISTRATION_CYCLE,
        codes.AUTHORITY_UNVERIFIED,
        codes.AUTHORITY_CONFLICT,
        codes.SCOPE_DENIED,
        codes.LINK_INSECURE,
        codes.INVALID_REQUEST,
        codes.METHOD_NOT_FOUND,
        codes.INVALID_PARAMS,
    }
)


class RegistrantState(enum.Enum):
    IDLE = "idle"  # before the start, or until a parent may be dialled again
    CONNECTING = "connecting"
    REGISTERING = "registering"
    REGISTERED = "registered"
    MOVING = "moving"  # the parent is lost and another is being dialled
    CLOSED = "closed"


class RegistrantInput(enum.Enum):
    DIAL = "dial"
    OPENED = "opened"
    GRANTED = "granted"
    FORGOTTEN = "forgotten"  # the parent does not know our session
    TURN = "turn"  # this parent failed and another may be dialled now
    WAIT = "wait"  # this parent failed and none may be dialled now
    STOP = "stop"


_WITH_PARENT: Final = [
    state for state in RegistrantState if state not in (RegistrantState.IDLE, RegistrantState.CLOSED)
]
TABLE: Final[dict[tuple[RegistrantState, RegistrantInput], RegistrantState]] = {
    (RegistrantState.IDLE, RegistrantInput.DIAL): RegistrantState.CONNECTING,
    (RegistrantState.CONNECTING, RegistrantInput.OPENED): RegistrantState.REGISTERING,
    (RegistrantState.CONNECTING, RegistrantInput.TURN): RegistrantState.CONNECTING,
    (RegistrantState.REGISTERING, RegistrantInput.GRANTED): RegistrantState.REGISTERED,
    (RegistrantState.REGISTERING, RegistrantInput.TURN): RegistrantState.CONNECTING,
    (RegistrantState.REGISTERED, RegistrantInput.FORGOTTEN): RegistrantState.REGISTERING,
    (RegistrantState.REGISTERED, RegistrantInput.TURN): RegistrantState.MOVING,
    (RegistrantState.MOVING, RegistrantInput.OPENED): RegistrantState.REGISTERING,
    (RegistrantState.MOVING, RegistrantInput.TURN): RegistrantState.MOVING,
    **{(state, RegistrantInput.WAIT): RegistrantState.IDLE for state in _WITH_PARENT},
    **{(state, RegistrantInput.STOP): RegistrantState.CLOSED for state in RegistrantState},
}


class OutOfOrder(Exception):
    """Error for an input that cannot happen in the present state of a registrant. It shows a bug in the
    calling code.
    """


class DialParent(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: open a link to this parent."""

    parent: int


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: send this request to the parent.

    `id` is never used again, so a late answer cannot be mistaken for the answer to another request.
    """

    id: int
    message: Register | Heartbeat | Deregister


class Hangup(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: close the link to the parent."""

    reason: str


class JoinedParent(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: serve the requests of this parent, which has accepted the registration."""

    parent: int
    registered: Registered


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: stop serving this parent, because the registration is over."""

    parent: int
    reason: str


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: record that this parent could not be reached, or refused the registration
    with `error`.

    `mendable` is true if another attempt may succeed without anybody changing something.
    """

    parent: int
    reason: str
    retry_in_s: float
    error: UpstreamError | None = None
    mendable: bool = True


class CycleReported(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: record that, according to the parent, the aggregator `id` is above this
    node.

    An aggregator below this node wrongly claims to have `id` below itself.
    """

    id: str


class Ignored(msgspec.Struct, frozen=True, kw_only=True):
    """Step for the caller of a Registrant: log an answer of the parent to which there is no open request."""

    reason: str


Step = DialParent | Send | Hangup | JoinedParent | Left | Failed | CycleReported | Ignored
Steps = tuple[Step, ...]


class _Prospect(msgspec.Struct):
    """Parent that may be dialled: how often it has failed in a row, and the time before which it is not
    dialled again.
    """

    failures: int = 0
    retry_at: float = 0.0


class _Request(msgspec.Struct):
    """Request to the parent that is not answered yet."""

    message: Register | Heartbeat | Deregister
    sent_at: float


class Registrant:
    """State machine of a registrant. It decides which parent to dial, when to send heartbeats, and when to change the
    parent.
    """

    def __init__(self, register: Register, parents: int) -> None:
        """Create a registrant.

        `register` is sent to every parent; its parent_id and released_session are filled in here. `parents` is the
        number of parents to choose from.
        """
        if parents < 1:
            raise ValueError("a registrant needs at least one parent")
        self.state = RegistrantState.IDLE
        self.parent: int | None = None  # whom the link leads to
        self.registered: Registered | None = None
        self._register = register
        self._prospects = [_Prospect() for _ in range(parents)]
        # By id. Before the session this is its registration, during the session heartbeats, after it the farewell.
        self._asked: dict[int, _Request] = {}
        self._next_id = 1
        self._held_session: str | None = None  # granted and neither ended by us nor forgotten by the parent
        self._deadline: float | None = None  # of the state: dial, answer, retry, settling, farewell
        self._interval_s = 0.0
        self._beat_at: float | None = None
        self._beat_sent = -inf
        self._subtree_said: tuple[str, ...] | None = register.subtree_ids
        self._farewell = False

    @property
    def parent_id(self) -> str | None:
        """Return the aggregator_id of the parent with which this node is registered, or None if there is none
        (13.4).
        """
        return self.registered.aggregator_id if self.registered is not None else None

    def parent_asked(self) -> Parent:
        """Return the answer to the parent's request mcpax/parent, which asks with which aggregator this node is
        registered.

        A lost parent no longer counts: the answer is null while another parent is tried.
        """
        return Parent(subserver_id=self._register.subserver_id, parent_id=self.parent_id)

    def find_message(self, id: int) -> Register | Heartbeat | Deregister | None:
        """Return the message of an unanswered request to the parent, or None if there is no such request."""
        return self._asked[id].message if id in self._asked else None

    def start(self, now: float) -> Steps:
        return self._dial(0, RegistrantInput.DIAL, now)

    def opened(self, now: float) -> Steps:
        """Register with the parent, because the link to it is now open."""
        if self.state is RegistrantState.CLOSED:
            return (Hangup(reason="shutting down"),)
        self._move(RegistrantInput.OPENED)
        return self._ask_to_register(now)

    def lost(self, reason: str, now: float, jitter: float, *, mendable: bool = True) -> Steps:
        """Handle the loss of the link, or a failure to open it.

        `mendable` is false if trying again soon does not help, for example because the parent refuses this node's
        credential.
        """
        if self.state is RegistrantState.CLOSED:
            self._forget_link()
            return ()
        if self.state is RegistrantState.IDLE:
            raise OutOfOrder("a link was lost that was never asked for")
        return self._fail(reason, now, jitter, error=None, mendable=mendable)

    def granted(self, id: int, registered: Registered, now: float) -> Steps:
        """Handle an answer to mcpax/register that grants the registration. `id` is the id of the request."""
        if not isinstance(self.find_message(id), Register):
            return (Ignored(reason="a registration that was not asked for"),)
        del self._asked[id]
        self._move(RegistrantInput.GRANTED)
        self.registered = registered
        self._held_session = registered.session_id
        self._interval_s = _interval_s(self._register.heartbeat_interval_ms, registered.heartbeat_deadline_ms)
        self._beat_at = now + self._interval_s / 2 if self._interval_s else None
        self._deadline = None if self._interval_s else now + SETTLED_S
        joined = JoinedParent(parent=self._parent(), registered=registered)
        return (joined, *self._maybe_say_subtree(now))

    def answered(self, id: int) -> Steps:
        """Handle an answer without an error to mcpax/heartbeat or mcpax/deregister. `id` is the id of the request."""
        message = self.find_message(id)
        if message is None or isinstance(message, Register):
            return (Ignored(reason="an answer to a request that was not made"),)
        if isinstance(message, Deregister):
            return self._end("deregistered")
        self._note_contact(id, message.subtree_ids)
        return ()

    def refused(self, id: int, error: UpstreamError, now: float, jitter: float) -> Steps:
        """Handle an answer of the parent that contains an error. `id` is the id of the request."""
        message = self.find_message(id)
        match message:
            case None:
                return (Ignored(reason="an error for a request that was not made"),)
            case Deregister():
                return self._end(error.message)
            case Register():
                is_wrong = (error.details or {}).get("is_below") is False
                if is_wrong and (claimed := _find_announced_id(error, self._subtree_said)) is not None:
                    failed = self._fail(_display(error), now, jitter, error=error, hang_up=True)
                    return (CycleReported(id=claimed), *failed)
                return self._refuse(error, now, jitter)
            case Heartbeat():
                if error.code == codes.SESSION_UNKNOWN:  # AX-6.3-2: registers again
                    left = Left(parent=self._parent(), reason="it does not know our session any more")
                    self._move(RegistrantInput.FORGOTTEN)
                    self._forget_session()
                    self._held_session = None
                    return (left, *self._ask_to_register(now))
                if error.code == codes.REGISTRATION_CYCLE:  # by a subtree it learnt from a heartbeat (AX-5.3-5)
                    subtree = self._subtree_said if message.subtree_ids is None else message.subtree_ids
                    if (claimed := _find_announced_id(error, subtree, self.parent_id)) is not None:
                        self._note_contact(id, None)
                        return (CycleReported(id=claimed),)
                    self._held_session = None
                    return self._refuse(error, now, jitter)
                self._note_contact(id, message.subtree_ids)  # a parent that refuses a heartbeat is alive
                return ()
            case _:
                assert_never(message)

    def misanswered(self, id: int, reason: str, now: float, jitter: float) -> Steps:
        """Handle an answer to mcpax/register that cannot be read."""
        if not isinstance(self.find_message(id), Register):
            return (Ignored(reason=reason),)
        return self._fail(f"it answered mcpax/register with nonsense: {reason}", now, jitter, hang_up=True)

    def subtree_changed(self, subtree_ids: tuple[str, ...], now: float) -> Steps:
        """Report changed ids of the aggregators below this node to the parent, with a heartbeat that is sent soon
        (5.3).

        A parent that learns late of a new aggregator could let a cycle close, and would then cut an older link.
        """
        self._register = msgspec.structs.replace(self._register, subtree_ids=subtree_ids)
        return self._maybe_say_subtree(now) if self.state is RegistrantState.REGISTERED else ()

    def stop(self, now: float) -> Steps:
        """Deregister. Close the link when the parent has answered, or after FAREWELL_S seconds (AX-6.3-4)."""
        was = self.state
        self._move(RegistrantInput.STOP)
        if was is RegistrantState.CLOSED:
            return ()
        if self.registered is not None:
            farewell = Deregister(session_id=self.registered.session_id)
            self._forget_session()
            self._deadline = now + FAREWELL_S
            self._farewell = True
            return (self._send(farewell, now),)  # AX-6.3-4
        linked = self.parent is not None
        self._forget_link()
        return (Hangup(reason="shutting down"),) if linked else ()

    @property
    def done(self) -> bool:
        """Return whether the registrant has stopped and waits for nothing."""
        return self.state is RegistrantState.CLOSED and not self._farewell

    def next_deadline(self) -> float | None:
        lost_at = self._lost_at()
        return min((at for at in (self._deadline, self._beat_at, lost_at) if at is not None), default=None)

    def on_deadline(self, now: float, jitter: float) -> Steps:
        """Return the steps that are due at this time. An early call does no harm."""
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            match self.state:
                case RegistrantState.IDLE:
                    ready = self._find_next_parent(now)
                    return self._dial(ready, RegistrantInput.DIAL, now) if ready is not None else ()
                case RegistrantState.CONNECTING | RegistrantState.MOVING:
                    return self._fail(f"no connection within {DIAL_S:g} s", now, jitter, hang_up=True)
                case RegistrantState.REGISTERING:
                    reason = f"no answer to mcpax/register within {ANSWER_S:g} s"
                    return self._fail(reason, now, jitter, hang_up=True)
                case RegistrantState.REGISTERED:
                    self._prospects[self._parent()].failures = 0
                    return ()
                case RegistrantState.CLOSED:
                    return self._end(f"no answer to mcpax/deregister within {FAREWELL_S:g} s")
                case _:
                    assert_never(self.state)
        if (lost_at := self._lost_at()) is not None and now > lost_at + self._interval_s / 4:
            # This process was delayed, and the answers may be unread: wait one more interval.
            for request in self._asked.values():
                request.sent_at = now
        elif lost_at is not None and now >= lost_at:  # AX-13.3-3
            return self._fail("it does not answer heartbeats", now, jitter, hang_up=True)
        if self._beat_at is not None and now >= self._beat_at:  # AX-6.3-1
            return (self._beat(now),)
        return ()

    def _dial(self, parent: int, input: RegistrantInput, now: float) -> Steps:
        self._move(input)
        self.parent = parent
        self._deadline = now + DIAL_S
        return (DialParent(parent=parent),)

    def _ask_to_register(self, now: float) -> Steps:
        self._deadline = now + ANSWER_S
        self._subtree_said = self._register.subtree_ids
        message = msgspec.structs.replace(self._register, parent_id=self.parent_id, released_session=self._held_session)
        return (self._send(message, now),)

    def _send(self, message: Register | Heartbeat | Deregister, now: float) -> Send:
        id = self._next_id
        self._next_id += 1
        self._asked[id] = _Request(message, now)
        return Send(id=id, message=message)

    def _beat(self, now: float) -> Send:
        if self.registered is None:
            raise OutOfOrder("a heartbeat needs a session")
        subtree = self._register.subtree_ids
        changed = subtree if subtree != self._subtree_said else None  # AX-5.3-4
        beat = self._send(Heartbeat(session_id=self.registered.session_id, subtree_ids=changed), now)
        self._beat_sent = now
        if self._interval_s:
            self._beat_at = now + self._interval_s / 2
        # A parent that answers no heartbeat must not make the table grow; without a backup nothing else ends that. The
        # oldest one is kept, because it shows how long the parent has been silent.
        if len(self._asked) > BEATS_KEPT:
            del self._asked[list(self._asked)[1]]
        return beat

    def _maybe_say_subtree(self, now: float) -> Steps:
        if self._register.subtree_ids == self._subtree_said:
            return ()
        if self._beat_at is None:
            return (self._beat(now),)
        soon = max(now + SUBTREE_SOON_S, self._beat_sent + self._interval_s / 10)
        self._beat_at = min(self._beat_at, soon)
        return ()

    def _note_contact(self, id: int, subtree_ids: tuple[str, ...] | None) -> None:
        """Note that the parent is alive, because it answered a heartbeat. `subtree_ids` are the ids that this heartbeat
        reported, or None if it reported none.
        """
        if subtree_ids is not None:
            self._subtree_said = subtree_ids
        self._asked = {sent: request for sent, request in self._asked.items() if sent > id}
        self._prospects[self._parent()].failures = 0

    def _lost_at(self) -> float | None:
        """Return the time at which the parent counts as lost unless it answers a heartbeat before.

        Return None if every heartbeat was answered or there is no backup parent.
        """
        if not self._asked or not self._interval_s or len(self._prospects) == 1:  # AX-13.3-3
            return None
        return min(request.sent_at for request in self._asked.values()) + self._interval_s

    def _refuse(self, error: UpstreamError, now: float, jitter: float) -> Steps:
        mendable = error.code not in UNMENDABLE
        return self._fail(_display(error), now, jitter, error=error, mendable=mendable, hang_up=True)

    def _fail(
        self,
        reason: str,
        now: float,
        jitter: float,
        *,
        error: UpstreamError | None = None,
        mendable: bool = True,
        hang_up: bool = False,
    ) -> Steps:
        parent = self._parent()
        prospect = self._prospects[parent]
        prospect.failures += 1
        wait = retry_in_s(prospect.failures, jitter, mendable=mendable)
        prospect.retry_at = now + wait
        steps: list[Step] = []
        if self.state is RegistrantState.REGISTERED:
            steps.append(Left(parent=parent, reason=reason))
        if hang_up:
            steps.append(Hangup(reason=reason))
        steps.append(Failed(parent=parent, reason=reason, retry_in_s=wait, error=error, mendable=mendable))
        self._forget_link()
        if (ready := self._find_next_parent(now, after=parent)) is not None:
            return (*steps, *self._dial(ready, RegistrantInput.TURN, now))
        self._move(RegistrantInput.WAIT)
        self._deadline = min(candidate.retry_at for candidate in self._prospects)
        return tuple(steps)

    def _find_next_parent(self, now: float, after: int = -1) -> int | None:
        """Return the index of the parent to dial next, or None if no parent may be dialled yet.

        Among parents whose waiting time has passed, the one that waited longest comes first.
        """
        count = len(self._prospects)
        circle = [(after + step) % count for step in range(1, count + 1)]
        ready = [index for index in circle if self._prospects[index].retry_at <= now]
        return min(ready, key=lambda index: self._prospects[index].retry_at, default=None)

    def _end(self, reason: str) -> Steps:
        left = Left(parent=self._parent(), reason=reason)
        self._held_session = None
        self._forget_link()
        return (left, Hangup(reason=reason))

    def _forget_session(self) -> None:
        self.registered = None
        self._asked.clear()
        self._beat_sent = -inf
        self._deadline = self._beat_at = None
        self._interval_s = 0.0

    def _forget_link(self) -> None:
        self._forget_session()
        self.parent = None
        self._farewell = False

    def _parent(self) -> int:
        if self.parent is None:
            raise OutOfOrder("there is no link")
        return self.parent

    def _move(self, input: RegistrantInput) -> None:
        if (following := TABLE.get((self.state, input))) is None:
            raise OutOfOrder(f"{input.value} while {self.state.value}")
        self.state = following


def retry_in_s(failures: int, jitter: float, *, mendable: bool = True) -> float:
    """Return how many seconds to wait before the next attempt, after this number of failures in a row. Wait longer if
    an early attempt cannot succeed (`mendable` is false).

    The range of the random delay grows with the number of failures. `jitter` (0 to 1) selects a point in it.
    """
    share = min(max(jitter, 0.0), 1.0)
    if not mendable:
        return SLOW_RETRY_S * (1 + share) / 2
    widest = min(RETRY_MAX_S, 2 * RETRY_MIN_S * 2.0 ** min(failures - 1, 30))
    return RETRY_MIN_S + (widest - RETRY_MIN_S) * share


def _interval_s(declared_ms: int, deadline_ms: int) -> float:
    """Return the interval between two expected heartbeats, in seconds.

    A parent may ask for heartbeats more often than the registration promised, but not less often (6.3).
    """
    if declared_ms <= 0:
        return 0.0
    wanted_ms = deadline_ms / HEARTBEATS_MISSED_MAX if deadline_ms > 0 else declared_ms
    return max(min(declared_ms, wanted_ms) / 1000, min(INTERVAL_MIN_S, declared_ms / 1000))


def _find_announced_id(
    error: UpstreamError, subtree_ids: tuple[str, ...] | None, parent_id: str | None = None
) -> str | None:
    """Return the id that the parent's error gives as the cause of a cycle. Return None unless this node has announced
    this id as an aggregator below itself.

    A parent that names no id means itself.
    """
    named = (error.details or {}).get("id", parent_id)
    claimed = named.lower() if isinstance(named, str) else ""
    return claimed if claimed in (subtree_ids or ())[1:] else None


def _display(error: UpstreamError) -> str:
    detail = (error.details or {}).get("detail")
    return f"{error.message}: {detail}" if isinstance(detail, str) else error.message
