"""What is remembered of registrations: who owns a segment (MCP-AX 4.2) and which aggregator has a subserver (13.4).

Ownership stands in every store. Leases make sense only in a store that several aggregators share; without one the
subserver is asked for its parent instead. A store that is away refuses new registrations and touches no others.
"""

from typing import Final

import msgspec

from interlock.ax.protocol.messages import Register
from interlock.ax.protocol.registration.leases import (
    BadLease,
    Claim,
    Lease,
    claim,
    encode_lease,
    lease_of,
    lease_s,
    may_remove,
    may_renew,
    read_lease,
)
from interlock.ax.protocol.registration.registrations import Owner, Session
from interlock.core.clock import Clock
from interlock.store.ports import Conflict, Damaged, Entry, KeyValue
from interlock.wire.refusal import UNAVAILABLE, Refusal

OWNERS: Final = "owners"
LEASES: Final = "leases-ax"
TRIES_MAX: Final = 5  # against writers that were first


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    authority: str
    segment: str
    subserver_id: str
    at: float


class Owners:
    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock

    async def maybe_owner(self, segment: str) -> Owner | None:
        entry = await self._kv.get(OWNERS, segment, self._clock.wall())
        if entry is None:
            return None
        record = _read(entry)
        return Owner(segment=segment, authority=record.authority, subserver_id=record.subserver_id)

    async def all(self) -> list[OwnerRecord]:
        return [_read(entry) for entry in await self._kv.entries(OWNERS, self._clock.wall())]

    async def keep(self, owner: Owner) -> None:
        now = self._clock.wall()
        record = OwnerRecord(authority=owner.authority, segment=owner.segment, subserver_id=owner.subserver_id, at=now)
        await self._kv.put(OWNERS, owner.segment, msgspec.json.encode(record), now)

    async def release(self, segment: str) -> bool:
        return await self._kv.delete(OWNERS, segment)


def _read(entry: Entry) -> OwnerRecord:
    try:
        return msgspec.json.decode(entry.value, type=OwnerRecord)
    except msgspec.DecodeError:
        raise Damaged(
            f"who owns the segment {entry.key} cannot be read; interlock links release {entry.key} forgets it"
        ) from None


class Leases:
    """Leases in a store that the aggregators of a tree share. Raises StoreError where it is away."""

    def __init__(self, kv: KeyValue, clock: Clock, aggregator_id: str, tree: str) -> None:
        self._kv = kv
        self._clock = clock
        self._own_id = aggregator_id
        self._tree = tree

    async def claim(self, request: Register, session_id: str) -> Refusal | None:
        """Claim a subserver for three intervals. Return None if it is ours now, otherwise the refusal."""
        wanted = lease_of(self._own_id, session_id)
        for _ in range(TRIES_MAX):
            entry = await self._kv.get(LEASES, self._key(request.subserver_id), self._clock.wall())
            verdict = claim(_maybe_held_lease(entry), request, wanted)
            if not isinstance(verdict, Claim):
                return verdict
            if await self._write(request.subserver_id, verdict.lease, entry, request.heartbeat_interval_ms):
                return None
        return Refusal(UNAVAILABLE, "unavailable", {"reason": "lease_contended"})

    async def renew(self, session: Session) -> bool:
        """Renew the lease. Return False if another aggregator has it, so that the session here must end."""
        own = lease_of(self._own_id, session.session_id)
        subserver_id = session.register.subserver_id
        for _ in range(TRIES_MAX):
            entry = await self._kv.get(LEASES, self._key(subserver_id), self._clock.wall())
            if not may_renew(_maybe_held_lease(entry), own):
                return False
            if await self._write(subserver_id, own, entry, session.register.heartbeat_interval_ms):
                return True
        return False

    async def give_up(self, subserver_id: str, session_id: str) -> None:
        own = lease_of(self._own_id, session_id)
        key = self._key(subserver_id)
        entry = await self._kv.get(LEASES, key, self._clock.wall())
        if may_remove(_maybe_held_lease(entry), own):
            await self._kv.delete(LEASES, key)

    async def _write(self, subserver_id: str, lease: Lease, over: Entry | None, interval_ms: int) -> bool:
        key, value, now, ttl_s = self._key(subserver_id), encode_lease(lease), self._clock.wall(), lease_s(interval_ms)
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


def _maybe_held_lease(entry: Entry | None) -> Lease | None:
    try:
        return None if entry is None else read_lease(entry.value)
    except BadLease as bad:
        raise Damaged(str(bad)) from None
