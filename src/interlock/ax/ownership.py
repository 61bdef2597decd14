"""Who owns a segment (MCP-AX 4.2), and which aggregator of the tree has a subserver (13.4).

`Owners` remembers in every store which proved authority owns a segment. `Leases` exists only in a store that several
aggregators share; without one, the subserver is asked for its parent. A store that is away refuses new registrations
and leaves existing ones alone.

`TreeClaims` are the subservers that registered here, and those that registrants say are below them. A claim is entered
here first and then made at our own parent, and so on up the tree, so that of two claims that come together one is
first. Where there is no parent, or the parent does not answer, the claims known here decide.

One aggregator per subserver in a tree (13.4). Two aggregators of a tree must not have the same subserver. Which of them
has it is decided in one of three ways:

- Aggregators that share a store keep a lease there, under (tree, subserver_id). It lapses after three intervals unless
  it is renewed. `Leases` reads and writes the store; the functions above it decide what may be written, given what was
  read. A write must fail if the record has changed since it was read, and is then judged again.
- Without a shared store, the subserver is asked for its parent (`check_parent`).
- The common parent of two aggregators is a witness: each claims at its own parent what is claimed from it and, if it
  has no shared store, what it has itself, so that the first parent that two have in common decides (`Holders`).

A registrant that gives up its session at another aggregator names it in `released_session`. Sessions are kept as hashes
only: a person who can read the store must not be able to speak for the subserver.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.ax.protocol.messages import HEARTBEAT_MS, HEARTBEATS_MISSED_MAX, Claimed, Parent, Register
from interlock.ax.protocol.registration.registrations import SegmentOwner, Session
from interlock.core.clock import Clock
from interlock.store.ports import Conflict, Damaged, Entry, KeyValue
from interlock.wire.refusal import INVALID_PARAMS, SPLIT_BRAIN, Refusal, ax_refusal, unavailable

if TYPE_CHECKING:
    from interlock.ax.parents.service import ParentService

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
    """Return how many seconds a lease lasts if it is not renewed.

    If the subserver sends no heartbeats, the aggregator renews the lease for as long as the link is open.
    """
    return HEARTBEATS_MISSED_MAX * (interval_ms or HEARTBEAT_MS) / 1000


def check_lease(held: SubserverLease | None, request: Register, own: SubserverLease) -> Refusal | None:
    """Return why the subserver that registers cannot get its lease, or None if it can.

    `held` is the lease in the store or None; `own` is the lease of the session that is about to begin.
    """
    # AX-13.4-2 and -3
    if held is None or held.aggregator_id == own.aggregator_id or releases(request.released_session, held.session_hash):
        return None
    return split_brain(held.aggregator_id)


def may_renew(held: SubserverLease | None, own: SubserverLease) -> bool:
    """Return whether a session may renew its lease on a subserver.

    False means that another session has the lease, and the session here must end. A lease that has lapsed may be
    acquired again.
    """
    return held is None or held == own  # AX-13.4-5


def check_parent(request: Register, answer: Parent | None, aggregator_id: str) -> Refusal | None:
    """Return a refusal if a subserver already has another aggregator as its parent. This check is for aggregators
    without a shared store.

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
    """Return whether `released_session`, the session that a registrant gives up, has this hash. The comparison runs in
    constant time.
    """
    return released_session is not None and hmac.compare_digest(_hash(released_session).encode(), session_hash.encode())


def _hash(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()


class HeldClaim(msgspec.Struct, frozen=True):
    """A claim to a subserver, with the session through which it arrived. For a claim by this aggregator itself, the
    session is OWN.
    """

    claimed: Claimed
    via: str


class Holders:
    """Record of which aggregator has which subserver, for the subservers at or below this node. A later claim to the
    same subserver is denied.

    A claim lasts as long as the registration through which it was made.
    """

    def __init__(self) -> None:
        self._held: dict[str, HeldClaim] = {}
        self._by_via: dict[str, dict[str, None]] = {}

    def claim(self, claimed: Claimed, via: str, released_session: str | None = None) -> str | None:
        """Record a claim. Return None if it is granted, otherwise the id of the aggregator that already has the
        subserver.

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
        """Return whether `more` further claims through the session `via` stay within the limit."""
        return len(self._by_via.get(via, ())) + more <= HELD_MAX

    def release(self, subserver_id: str, via: str, session_hash: str | None = None) -> bool:
        """Delete the claim to a subserver that was made through the session `via`. Return False if there is none.

        If `session_hash` is given, the claim is released only if it has that hash.
        """
        held = self._held.get(subserver_id)
        if held is None or held.via != via or session_hash not in (None, held.claimed.session_hash):
            return False
        self._forget(subserver_id, via)
        return True

    def release_all(self, via: str) -> tuple[str, ...]:
        """Delete all claims that were made through the session `via`, which has ended. Return the ids of their
        subservers.
        """
        gone = tuple(self._by_via.get(via, ()))
        for subserver_id in gone:
            self._forget(subserver_id, via)
        return gone

    def find(self, subserver_id: str) -> HeldClaim | None:
        return self._held.get(subserver_id)

    def all(self) -> tuple[Claimed, ...]:
        """Return all claims, as they are sent to the parent."""
        return tuple(held.claimed for held in self._held.values())

    def _forget(self, subserver_id: str, via: str) -> None:
        del self._held[subserver_id]
        subservers = self._by_via[via]
        del subservers[subserver_id]
        if not subservers:
            del self._by_via[via]


OWNERS: Final = "owners"
LEASES: Final = "leases-ax"
TRIES_MAX: Final = 5  # against other aggregators that write the same lease


@dataclass(eq=False)
class Owners:
    """Store of segment owners: which proved authority owns which segment (MCP-AX 4.2)."""

    _kv: KeyValue
    _clock: Clock

    async def find_owner(self, segment: str) -> SegmentOwner | None:
        """Return the owner of a segment, or None if the segment has no owner.

        Raise Damaged if the record cannot be read.
        """
        entry = await self._kv.get(OWNERS, segment, self._clock.wall())
        return None if entry is None else _read_owner(entry)

    async def all(self) -> list[SegmentOwner]:
        return [_read_owner(entry) for entry in await self._kv.entries(OWNERS, self._clock.wall())]

    async def keep(self, owner: SegmentOwner) -> None:
        """Store the owner of a segment, with the current time."""
        now = self._clock.wall()
        record = msgspec.json.encode(msgspec.structs.replace(owner, at=now))
        await self._kv.put(OWNERS, owner.segment, record, now)

    async def release(self, segment: str) -> bool:
        """Delete the owner of a segment. Return False if the segment had no owner."""
        return await self._kv.delete(OWNERS, segment)


def _read_owner(entry: Entry) -> SegmentOwner:
    remedy = f"interlock links release {entry.key} forgets it"
    return entry.decode(SegmentOwner, f"who owns the segment {entry.key}", remedy)


@dataclass(eq=False)
class Leases:
    """Leases on subservers, in a store that the aggregators of a tree share. A subserver belongs to the aggregator that
    holds its lease.

    The methods raise StoreError if the store is unavailable.
    """

    _kv: KeyValue
    _clock: Clock
    _own_id: str
    _tree: str

    async def claim(self, request: Register, session_id: str) -> Refusal | None:
        """Acquire the lease on a subserver for three heartbeat intervals. Return a refusal if another aggregator has
        the lease, or if it kept changing meanwhile.
        """
        own = lease_of(self._own_id, session_id)
        for _ in range(TRIES_MAX):
            entry, held = await self._read(request.subserver_id)
            if refusal := check_lease(held, request, own):
                return refusal
            if await self._write(request, own, entry):
                return None
        return unavailable("lease_contended")

    async def renew(self, session: Session) -> bool:
        """Extend the lease of a session on its subserver. Return False if that is impossible, so that the session must
        end: another aggregator or session has the lease, or the lease kept changing meanwhile.
        """
        own = lease_of(self._own_id, session.session_id)
        for _ in range(TRIES_MAX):
            entry, held = await self._read(session.register.subserver_id)
            if not may_renew(held, own):
                return False
            if await self._write(session.register, own, entry):
                return True
        return False

    async def give_up(self, subserver_id: str, session_id: str) -> None:
        """Delete the lease of a session that has ended, unless another session has taken it since."""
        _, held = await self._read(subserver_id)
        if held == lease_of(self._own_id, session_id):
            await self._kv.delete(LEASES, self._key(subserver_id))

    async def _read(self, subserver_id: str) -> tuple[Entry | None, SubserverLease | None]:
        entry = await self._kv.get(LEASES, self._key(subserver_id), self._clock.wall())
        if entry is None:
            return None, None
        try:
            return entry, msgspec.json.decode(entry.value, type=SubserverLease)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Damaged("the store holds a lease that cannot be read; remove it, or wait until it lapses") from None

    async def _write(self, register: Register, lease: SubserverLease, over: Entry | None) -> bool:
        key, value, now = self._key(register.subserver_id), msgspec.json.encode(lease), self._clock.wall()
        ttl_s = lease_s(register.heartbeat_interval_ms)
        try:
            if over is None:
                await self._kv.create(LEASES, key, value, now, ttl_s=ttl_s)
            else:
                await self._kv.update(LEASES, key, value, over.revision, now, ttl_s=ttl_s)
        except Conflict:
            return False  # AX-13.4-3: another aggregator was first
        return True

    def _key(self, subserver_id: str) -> str:
        return f"{self._tree}/{subserver_id}"


class TreeClaims:
    """Claims of this node and of the aggregators below it, each saying which aggregator has a subserver. Each claim is
    recorded here, and then sent to the parent if this node has one.
    """

    def __init__(self, aggregator_id: str, on_moved: Callable[[str, Mapping[str, str]], None]) -> None:
        """Create an empty set of claims.

        `on_moved` is called when other aggregators have subservers that were claimed here. Its arguments are the
        session through which they were claimed (OWN for this node's own) and a map from subserver to aggregator.
        """
        self._own_id = aggregator_id
        self._on_moved = on_moved
        self.above: ParentService | None = None  # through which claims are made at the parent
        self.holders = Holders()

    async def claim_own(self, subserver_id: str, session_id: str, released_session: str | None) -> str | None:
        """Claim a subserver that registers with this node.

        Return the id of the aggregator that already has it, or None if the claim is granted.
        """
        session_hash = lease_of(self._own_id, session_id).session_hash
        claimed = Claimed(subserver_id=subserver_id, aggregator_id=self._own_id, session_hash=session_hash)
        return (await self.claim((claimed,), OWN, released_session)).get(subserver_id)

    async def claim(self, claims: Iterable[Claimed], via: str, released_session: str | None = None) -> dict[str, str]:
        """Record claims to subservers and send them to the parent. Return the denied claims as a map from the id of a
        subserver to the aggregator that has it.

        `via` is the session of the registrant that claims, or OWN for this node's own claim.
        """
        refused: dict[str, str] = {}
        entered = []
        moved: list[tuple[str, Claimed]] = []
        for claimed in claims:
            before = self.holders.find(claimed.subserver_id)
            if (holder := self.holders.claim(claimed, via, released_session)) is not None:
                refused[claimed.subserver_id] = holder
                continue
            entered.append(claimed)
            if before is not None and before.via != via and before.claimed.aggregator_id != claimed.aggregator_id:
                moved.append((before.via, claimed))
        if entered and self.above is not None:
            for subserver_id, holder in (await self.above.claim(entered, released_session)).items():
                if self.holders.release(subserver_id, via):
                    refused[subserver_id] = holder
        for former, claimed in moved:
            if claimed.subserver_id not in refused:
                self._on_moved(former, {claimed.subserver_id: claimed.aggregator_id})
        return refused

    def disown(self, held: Mapping[str, str]) -> None:
        """Delete the claims to subservers that other aggregators have, as the parent has answered. `held` maps the id
        of each subserver to its aggregator.
        """
        for subserver_id, holder in held.items():
            if (before := self.holders.find(subserver_id)) is not None:
                self.release((subserver_id,), before.via)
                self._on_moved(before.via, {subserver_id: holder})

    def release(self, subserver_ids: Iterable[str], via: str) -> None:
        """Delete claims that were made through the session `via`, and send the deletion to the parent."""
        self._release_above([subserver_id for subserver_id in subserver_ids if self.holders.release(subserver_id, via)])

    def release_own(self, subserver_id: str, session_id: str) -> None:
        """Delete this node's claim to a subserver that was registered with this node.

        A later session of the same subserver keeps its claim.
        """
        if self.holders.release(subserver_id, OWN, lease_of(self._own_id, session_id).session_hash):
            self._release_above([subserver_id])

    def end(self, session: Session) -> None:
        """Delete the claim to a subserver whose registration has ended, and all claims that the
        subserver itself sent.
        """
        self.release_own(session.register.subserver_id, session.session_id)
        self._release_above(self.holders.release_all(session.session_id))

    def _release_above(self, gone: Sequence[str]) -> None:
        if gone and self.above is not None:
            self.above.release(gone)
