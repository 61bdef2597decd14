"""The values around a registration session at an aggregator: who asks, what was granted, what happened."""

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.messages import Register
from interlock.ax.protocol.registration.liveness import LivenessState
from interlock.wire.refusal import Refusal

EndReason = Literal[
    "deregistered", "superseded", "registration_cycle", "link_insecure", "split_brain", "namespace_invalid", "removed"
]
LossReason = Literal["heartbeat_timeout", "connection_lost"]  # 13.1


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    require_proof: Literal["mutable", "always", "never"] = "mutable"
    degraded: bool = True  # names of a lost registrant stay listed
    grace_s: float = 300.0  # 13.2: for so long; AX-13.2-4
    registrations_max: int = 10_000


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """What the aggregator knows of a registrant by itself.

    `link` tells apart what comes over different connections, also of one principal; requests that come one by one share
    the empty one. `scope` is the most its policy entry gives. `proved` says that the authority it claims is proved, or
    that the operator's configuration vouches for it. `secure`: TLS 1.3 or what counts as equal (10.4).
    """

    principal: str
    link: str = ""
    scope: AuthScope = AuthScope.READ
    proved: bool = False
    secure: bool = True
    budget: Mapping[str, Any] = {}


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that belongs to a proved authority beyond any session (4.2). The store adds the time."""

    segment: str
    authority: str
    subserver_id: str


class Session(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    register: Register  # without its proof, which is not needed any more
    peer: Peer
    auth_scope: AuthScope  # granted
    registered_at: float

    @property
    def segment(self) -> str:
        return self.register.segment


class RegistrationState(msgspec.Struct, frozen=True, kw_only=True):
    """How a registration is doing. Calls of one that is SUSPECT are refused only where it does not answer."""

    session: Session
    state: LivenessState
    since: float
    retry_after_ms: int
    subtree_ids: tuple[str, ...] | None  # as last said


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A session began. `replaces`: an earlier one whose names may still be listed; they must not outlive this event."""

    session: Session
    replaces: str | None = None
    owner: Owner | None = None  # to be stored


class Suspected(msgspec.Struct, frozen=True, kw_only=True):
    session: Session
    since: float


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    session: Session


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """The session is over; the names stay, degraded, until Vanished or another Joined."""

    session: Session
    reason: LossReason
    since: float


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The session is over, and not by failure. The names go with Vanished, unless a Joined takes them over."""

    session: Session
    reason: EndReason


class Vanished(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is listed under the segment any more."""

    segment: str


class SubtreeChanged(msgspec.Struct, frozen=True, kw_only=True):
    """To be told to our own parents with the next heartbeat (5.3)."""

    subtree_ids: tuple[str, ...]


class CycleClaimed(msgspec.Struct, frozen=True, kw_only=True):
    """A registrant says that one above us is below it. It has an interval to find out who told it so (5.3)."""

    session: Session


Event = Joined | Suspected | Recovered | Lost | Ended | Vanished | SubtreeChanged | CycleClaimed

Answer = TypeVar("Answer")


class Step(msgspec.Struct, Generic[Answer], frozen=True):
    """What to answer, and what happened. Things may happen although the answer is a refusal."""

    answer: Answer | Refusal
    events: tuple[Event, ...] = ()
