"""Who owns a segment (MCP-AX 4.2), and which aggregator of the tree has a subserver (13.4).

`Owners` remembers in every store which proved authority owns a segment. `Leases` exists only in a store that several
aggregators share; without one, the subserver is asked for its parent. A store that is away refuses new registrations
and leaves existing ones alone.

`TreeClaims` are the subservers that registered here, and those that registrants say are below them. A claim is entered
here first and then made at our own parent, and so on up the tree, so that of two claims that come together one is
first. Where there is no parent, or the parent does not answer, the claims known here decide.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.ax.protocol.messages import Claimed, Register
from interlock.ax.protocol.registration import registrations
from interlock.ax.protocol.registration.registrations import OWN, SegmentOwner, Session, SubserverLease, lease_of
from interlock.core.clock import Clock
from interlock.store.ports import Conflict, Damaged, Entry, KeyValue
from interlock.wire.refusal import UNAVAILABLE, Refusal

if TYPE_CHECKING:
    from interlock.ax.parents.service import ParentService

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
        """Store the owner of a segment, with the present time."""
        now = self._clock.wall()
        record = msgspec.json.encode(msgspec.structs.replace(owner, at=now))
        await self._kv.put(OWNERS, owner.segment, record, now)

    async def release(self, segment: str) -> bool:
        """Delete the owner of a segment. Return False if the segment had no owner."""
        return await self._kv.delete(OWNERS, segment)


def _read_owner(entry: Entry) -> SegmentOwner:
    try:
        return msgspec.json.decode(entry.value, type=SegmentOwner)
    except msgspec.DecodeError:
        remedy = f"interlock links release {entry.key} forgets it"
        raise Damaged(f"who owns the segment {entry.key} cannot be read; {remedy}") from None


@dataclass(eq=False)
class Leases:
    """Leases on subservers, in a store that the aggregators of a tree share.

    The methods raise StoreError if the store is unavailable.
    """

    _kv: KeyValue
    _clock: Clock
    _own_id: str
    _tree: str

    async def claim(self, request: Register, session_id: str) -> Refusal | None:
        """Claim a subserver for three heartbeat intervals.

        Return None if this aggregator now has the lease. Return a refusal if another aggregator has it, or if it kept
        changing meanwhile.
        """
        own = lease_of(self._own_id, session_id)
        for _ in range(TRIES_MAX):
            entry, held = await self._read(request.subserver_id)
            if refusal := registrations.check_lease(held, request, own):
                return refusal
            if await self._write(request, own, entry):
                return None
        return Refusal(UNAVAILABLE, "unavailable", {"reason": "lease_contended"})

    async def renew(self, session: Session) -> bool:
        """Renew the lease of a session.

        Return False if another aggregator or session has the lease, or if the lease kept changing meanwhile. Then the
        session must end.
        """
        own = lease_of(self._own_id, session.session_id)
        for _ in range(TRIES_MAX):
            entry, held = await self._read(session.register.subserver_id)
            if not registrations.may_renew(held, own):
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
        ttl_s = registrations.lease_s(register.heartbeat_interval_ms)
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
    """Claims to the subservers registered at or below this node.

    They are also made at the parent in this node's own tree.
    """

    def __init__(self, aggregator_id: str, on_moved: Callable[[str, Mapping[str, str]], None]) -> None:
        """Create an empty set of claims.

        `on_moved` is called when other aggregators have subservers that were claimed here. Its arguments are the
        session through which they were claimed (OWN for this node's own) and a map from subserver to aggregator.
        """
        self._own_id = aggregator_id
        self._on_moved = on_moved
        self.above: ParentService | None = None  # through which claims are made at the parent
        self.holders = registrations.Holders()

    async def claim_own(self, subserver_id: str, session_id: str, released_session: str | None) -> str | None:
        """Claim a subserver that registers here.

        Return the id of the aggregator that already has it, or None if the claim is granted.
        """
        session_hash = lease_of(self._own_id, session_id).session_hash
        claimed = Claimed(subserver_id=subserver_id, aggregator_id=self._own_id, session_hash=session_hash)
        return (await self.claim((claimed,), OWN, released_session)).get(subserver_id)

    async def claim(self, claims: Iterable[Claimed], via: str, released_session: str | None = None) -> dict[str, str]:
        """Enter claims here and make them at the parent.

        Return the claims that were denied, as a map from subserver to the aggregator that has it. `via` is the session
        of the registrant that claims, or OWN for this node's own claim.
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
        """Release subservers that other aggregators have. `held` is the parent's answer: subserver to aggregator."""
        for subserver_id, holder in held.items():
            if (before := self.holders.find(subserver_id)) is not None:
                self.release((subserver_id,), before.via)
                self._on_moved(before.via, {subserver_id: holder})

    def release(self, subserver_ids: Iterable[str], via: str) -> None:
        """Release claims that were made through the session `via`, here and at the parent."""
        self._release_above([subserver_id for subserver_id in subserver_ids if self.holders.release(subserver_id, via)])

    def release_own(self, subserver_id: str, session_id: str) -> None:
        """Release the claim of a session that was registered here.

        A later session of the same subserver keeps its claim.
        """
        if self.holders.release(subserver_id, OWN, lease_of(self._own_id, session_id).session_hash):
            self._release_above([subserver_id])

    def end(self, session: Session) -> None:
        """End the claim of a registration, and all claims that nodes below made through its session."""
        self.release_own(session.register.subserver_id, session.session_id)
        self._release_above(self.holders.release_all(session.session_id))

    def _release_above(self, gone: Sequence[str]) -> None:
        if gone and self.above is not None:
            self.above.release(gone)
