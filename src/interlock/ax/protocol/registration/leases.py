"""One aggregator per subserver in a tree (MCP-AX 13.4), by a record in a shared store or by asking the subserver.

The record's key is (tree, subserver_id) and it lapses after three intervals unless renewed. Reading and writing it is
the caller's; here is what may be written given what was read. A write must fail if the record has changed since it was
read, and is then judged anew.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from interlock.ax.protocol.messages import HEARTBEAT_MS, HEARTBEATS_MISSED_MAX, Claimed, Parent, Register
from interlock.wire.refusal import INVALID_PARAMS, SPLIT_BRAIN, Refusal, ax_refusal

# AX-13.4-4
PARENT_ANSWER_S: Final = 2.0  # 13.4: no answer to mcpax/parent within it, or "method not found", means no parent


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The session id is kept as a hash: who can read the store must not be able to speak for the subserver."""

    aggregator_id: str
    session_hash: str


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Leave to write `lease`, if `replaces` is still what the store holds; None: if it holds nothing."""

    lease: Lease
    replaces: Lease | None


class BadLease(Exception):
    """The store holds something that is no lease. Raised only by `read_lease`."""


def lease_of(aggregator_id: str, session_id: str) -> Lease:
    return Lease(aggregator_id=aggregator_id, session_hash=_hash(session_id))


def lease_s(interval_ms: int) -> float:
    """Return how long a lease lasts unless it is renewed. Without heartbeats the aggregator renews it as long as the
    link is open.
    """
    return HEARTBEATS_MISSED_MAX * (interval_ms or HEARTBEAT_MS) / 1000


def encode_lease(lease: Lease) -> bytes:
    return msgspec.json.encode(lease)


def read_lease(data: bytes) -> Lease:
    try:
        return msgspec.json.decode(data, type=Lease)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadLease("the store holds a lease that cannot be read; remove it, or wait until it lapses") from None


def claim(held: Lease | None, request: Register, wanted: Lease) -> Claim | Refusal:
    """Decide whether a lease can be taken. `held` is the lease in the store, `wanted` that of the session about to
    begin.
    """
    # AX-13.4-2 and -3
    if held is None or held.aggregator_id == wanted.aggregator_id or releases(request.released_session, held):
        return Claim(lease=wanted, replaces=held)
    return split_brain(held.aggregator_id)


def may_renew(held: Lease | None, own: Lease) -> bool:
    """Return False if another session has the lease, so that the session here must end. A lapsed lease may be taken
    again.
    """
    return held is None or held == own  # AX-13.4-5


def may_remove(held: Lease | None, own: Lease) -> bool:
    return held == own


def asks_parent(request: Register, *, has_store: bool) -> bool:
    """Return whether mcpax/parent must be asked before the registration is answered."""
    return not has_store and request.parent_id is msgspec.UNSET


def check_parent(request: Register, answer: Parent | None, aggregator_id: str) -> Refusal | None:
    """Check the subserver's parent where no store is shared. `answer` is None if the subserver was not asked or does
    not know mcpax/parent.
    """
    if answer is not None and answer.subserver_id != request.subserver_id:  # AX-13.4-4
        why = "subserver_id in the answer to mcpax/parent must be the one that registers"
        return Refusal(INVALID_PARAMS, why, {"member": "subserver_id"})
    parent_id = answer.parent_id if answer is not None else request.parent_id
    if isinstance(parent_id, str) and parent_id != aggregator_id:  # AX-13.4-2, AX-13.4-4
        return split_brain(parent_id)
    return None


def split_brain(holder_aggregator_id: str) -> Refusal:
    why = "the subserver is registered with another aggregator of this tree; deregister it there"
    return ax_refusal(SPLIT_BRAIN, why, holder_aggregator_id=holder_aggregator_id)  # AX-13.4-2


def releases(released_session: str | None, held: Lease) -> bool:
    return released_session is not None and hmac.compare_digest(
        _hash(released_session).encode(), held.session_hash.encode()
    )


def _hash(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()


# Who has which subserver below an aggregator (MCP-AX 13.4): the common parent of two aggregators sees it of both.
#
# In come claims: of our own registrations, and of aggregators that registered here, for what is below them. Out comes
# who
# had it first. An aggregator claims at its own parent what it is claimed itself, so that the first parent that two
# have
# in common decides, whatever the subserver knows of parents. A claim lasts as long as the registration it came by.

OWN: Final = ""  # came by no registration: the subserver registered here
HELD_MAX: Final = 10_000  # by one registration


class Held(msgspec.Struct, frozen=True):
    lease: Lease
    via: str  # the session of the registrant that claimed it; OWN


class Holders:
    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._by_via: dict[str, dict[str, None]] = {}

    def claim(self, claimed: Claimed, via: str, released_session: str | None = None) -> str | None:
        """Enter a claim. Return None if it is entered, otherwise the aggregator that has the subserver.

        `via` is the session through which the claim came. An aggregator that moved claims the same sessions again
        through another session; one that only uses its name does not know them.
        """
        held = self._held.get(claimed.subserver_id)
        if held is not None:
            is_known = via == held.via or claimed.session_hash == held.lease.session_hash
            is_theirs = is_known and claimed.aggregator_id == held.lease.aggregator_id
            if not is_theirs and not releases(released_session, held.lease):  # AX-13.4-2
                return held.lease.aggregator_id
            self._forget(claimed.subserver_id, held.via)
        lease = Lease(aggregator_id=claimed.aggregator_id, session_hash=claimed.session_hash)
        self._held[claimed.subserver_id] = Held(lease, via)
        self._by_via.setdefault(via, {})[claimed.subserver_id] = None
        return None

    def has_room(self, via: str, more: int) -> bool:
        return len(self._by_via.get(via, ())) + more <= HELD_MAX

    def release(self, subserver_id: str, via: str, session_hash: str | None = None) -> bool:
        """Release a claim that came through the same session and, if given, has this session hash. Return False if
        there is none.
        """
        held = self._held.get(subserver_id)
        if held is None or held.via != via or session_hash not in (None, held.lease.session_hash):
            return False
        self._forget(subserver_id, via)
        return True

    def release_all(self, via: str) -> tuple[str, ...]:
        """Release all claims that came through a registration which is over."""
        gone = tuple(self._by_via.get(via, ()))
        for subserver_id in gone:
            self._forget(subserver_id, via)
        return gone

    def maybe_held(self, subserver_id: str) -> Held | None:
        return self._held.get(subserver_id)

    def all(self) -> tuple[Claimed, ...]:
        """Return all claims, in the form in which they are claimed at the parent."""
        return tuple(
            Claimed(
                subserver_id=subserver_id, aggregator_id=held.lease.aggregator_id, session_hash=held.lease.session_hash
            )
            for subserver_id, held in self._held.items()
        )

    def _forget(self, subserver_id: str, via: str) -> None:
        del self._held[subserver_id]
        subservers = self._by_via[via]
        del subservers[subserver_id]
        if not subservers:
            del self._by_via[via]
