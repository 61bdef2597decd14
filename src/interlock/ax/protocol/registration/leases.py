"""One aggregator per subserver in a tree (MCP-AX 13.4): the rules of leases, of mcpax/parent and of mcpax/claim.

Two aggregators of a tree must not have the same subserver. Which of them has it is decided in one of three ways:

- Aggregators that share a store keep a lease there, under (tree, subserver_id). It lapses after three intervals unless
  it is renewed. Reading and writing the store is the caller's task (`ownership.Leases`); the functions here decide what
  may be written, given what was read. A write must fail if the record has changed since it was read, and is then judged
  again.
- Without a shared store, the subserver is asked for its parent (`check_parent`).
- The common parent of two aggregators is a witness: each claims at its own parent what is claimed from it and, if it
  has no shared store, what it has itself, so that the first parent that two have in common decides (`Holders`).

A registrant that gives up its session at another aggregator names it in `released_session`. Sessions are kept as hashes
only: a person who can read the store must not be able to speak for the subserver.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from interlock.ax.protocol.messages import HEARTBEAT_MS, HEARTBEATS_MISSED_MAX, Claimed, Parent, Register
from interlock.wire.refusal import INVALID_PARAMS, SPLIT_BRAIN, Refusal, ax_refusal

# AX-13.4-4
PARENT_ANSWER_S: Final = 2.0  # 13.4: no answer to mcpax/parent within it, or "method not found", means no parent
OWN: Final = ""  # the way of a claim that came by no registration: the subserver registered here
HELD_MAX: Final = 10_000  # claims through one registration


class SubserverLease(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one subserver in a shared store: which aggregator has it, and in which session."""

    aggregator_id: str
    session_hash: str


def lease_of(aggregator_id: str, session_id: str) -> SubserverLease:
    return SubserverLease(aggregator_id=aggregator_id, session_hash=_hash(session_id))


def lease_s(interval_ms: int) -> float:
    """Return how many seconds a lease lasts unless it is renewed.

    If the subserver sends no heartbeats, the aggregator renews the lease for as long as the link is open.
    """
    return HEARTBEATS_MISSED_MAX * (interval_ms or HEARTBEAT_MS) / 1000


def check_lease(held: SubserverLease | None, request: Register, own: SubserverLease) -> Refusal | None:
    """Return why a lease cannot be acquired, or None if it can.

    `held` is the lease in the store or None; `own` is the lease of the session that is about to begin.
    """
    # AX-13.4-2 and -3
    if held is None or held.aggregator_id == own.aggregator_id or releases(request.released_session, held.session_hash):
        return None
    return split_brain(held.aggregator_id)


def may_renew(held: SubserverLease | None, own: SubserverLease) -> bool:
    """Return whether a session may renew its lease.

    False means that another session has the lease, and the session here must end. A lease that has lapsed may be
    acquired again.
    """
    return held is None or held == own  # AX-13.4-5


def check_parent(request: Register, answer: Parent | None, aggregator_id: str) -> Refusal | None:
    """Check that no other aggregator is the subserver's parent, for aggregators without a shared store.

    `answer` is None if the subserver was not asked or does not support mcpax/parent.
    """
    if answer is not None and answer.subserver_id != request.subserver_id:  # AX-13.4-4
        why = "subserver_id in the answer to mcpax/parent must be the one that registers"
        return Refusal(INVALID_PARAMS, why, {"member": "subserver_id"})
    parent_id = answer.parent_id if answer is not None else request.parent_id
    if isinstance(parent_id, str) and parent_id != aggregator_id:  # AX-13.4-2, AX-13.4-4
        return split_brain(parent_id)
    return None


def split_brain(holder_aggregator_id: str) -> Refusal:
    """Return the refusal of a subserver that another aggregator has (13.4)."""
    why = "the subserver is registered with another aggregator of this tree; deregister it there"
    return ax_refusal(SPLIT_BRAIN, why, holder_aggregator_id=holder_aggregator_id)  # AX-13.4-2


def releases(released_session: str | None, session_hash: str) -> bool:
    """Return whether a registrant gave up the session with this hash. The comparison runs in constant time."""
    return released_session is not None and hmac.compare_digest(_hash(released_session).encode(), session_hash.encode())


def _hash(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()


class HeldClaim(msgspec.Struct, frozen=True):
    """Claim that was entered, with the session of the registrant that made it, or OWN for this aggregator."""

    claimed: Claimed
    via: str


class Holders:
    """Claims to subservers at or below this aggregator. If several claim the same subserver, the first claim counts.

    A claim lasts as long as the registration through which it was made.
    """

    def __init__(self) -> None:
        self._held: dict[str, HeldClaim] = {}
        self._by_via: dict[str, dict[str, None]] = {}

    def claim(self, claimed: Claimed, via: str, released_session: str | None = None) -> str | None:
        """Enter a claim. Return None if it is entered, otherwise the aggregator that has the subserver.

        `via` is the session through which the claim was made. An aggregator that registered again claims the same
        sessions through another session; an impostor that only uses its name does not know them.
        """
        if (held := self._held.get(claimed.subserver_id)) is not None:
            first = held.claimed
            is_known = via == held.via or claimed.session_hash == first.session_hash
            is_same_holder = is_known and claimed.aggregator_id == first.aggregator_id
            if not is_same_holder and not releases(released_session, first.session_hash):  # AX-13.4-2
                return first.aggregator_id
            self._forget(claimed.subserver_id, held.via)
        self._held[claimed.subserver_id] = HeldClaim(claimed, via)
        self._by_via.setdefault(via, {})[claimed.subserver_id] = None
        return None

    def has_room(self, via: str, more: int) -> bool:
        """Return whether `more` claims through the session `via` stay within the limit."""
        return len(self._by_via.get(via, ())) + more <= HELD_MAX

    def release(self, subserver_id: str, via: str, session_hash: str | None = None) -> bool:
        """Release a claim that was made through the session `via`. Return False if there is none.

        If `session_hash` is given, the claim is released only if it has that hash.
        """
        held = self._held.get(subserver_id)
        if held is None or held.via != via or session_hash not in (None, held.claimed.session_hash):
            return False
        self._forget(subserver_id, via)
        return True

    def release_all(self, via: str) -> tuple[str, ...]:
        """Release all claims that were made through a registration which has ended, and return the ids of their
        subservers.
        """
        gone = tuple(self._by_via.get(via, ()))
        for subserver_id in gone:
            self._forget(subserver_id, via)
        return gone

    def find(self, subserver_id: str) -> HeldClaim | None:
        return self._held.get(subserver_id)

    def all(self) -> tuple[Claimed, ...]:
        """Return all claims, in the form in which they are made at the parent."""
        return tuple(held.claimed for held in self._held.values())

    def _forget(self, subserver_id: str, via: str) -> None:
        del self._held[subserver_id]
        subservers = self._by_via[via]
        del subservers[subserver_id]
        if not subservers:
            del self._by_via[via]
