"""Approvals on disk: one entry each, changed only over the revision that was read.

In: an approval and what it is to become. Out: the approval as it now stands, its revision, or `Conflict`. What ended is
kept for a day, so that a late question gets the right refusal, and is then forgotten by the store.
"""

import logging
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.approvals.protocol.approval import Approval
from interlock.approvals.protocol.state import ENDS
from interlock.core.clock import Clock
from interlock.store.ports import Entry, KeyValue

log = logging.getLogger("interlock.approvals")

BUCKET: Final = "approvals"
KEPT_S: Final = 86_400.0  # an ended one

_NULL: Final = Raw(b"null")


class StoredApproval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An approval as it is written. `params` stands apart, because raw JSON has no other type beside it."""

    approval: Approval
    params: Raw
    replica: str | None = None  # that wrote it, where several share the store


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredApproval).decode


class ApprovalEntry(msgspec.Struct, frozen=True):
    approval: Approval
    revision: int
    kept_until: float | None = None  # by the wall clock, once it has ended
    replica: str | None = None  # that moved it last; None: there is only one


class ApprovalStore:
    """Reads and writes approvals. Raises StoreError; Conflict where another writer was first."""

    def __init__(self, kv: KeyValue, clock: Clock, replica: str | None = None) -> None:
        """`replica`: this one, where several share the store."""
        self._kv = kv
        self._clock = clock
        self._replica = replica

    async def all(self) -> list[ApprovalEntry]:
        entries = await self._kv.entries(BUCKET, self._clock.wall())
        return [one for entry in entries if (one := maybe_read(entry)) is not None]

    async def maybe_read(self, id: str) -> ApprovalEntry | None:
        entry = await self._kv.get(BUCKET, id, self._clock.wall())
        return None if entry is None else maybe_read(entry)

    async def create(self, approval: Approval) -> ApprovalEntry:
        revision = await self._kv.create(BUCKET, approval.id, self._encode(approval), self._clock.wall())
        return ApprovalEntry(approval, revision, None, self._replica)

    async def update(self, approval: Approval, revision: int) -> ApprovalEntry:
        now = self._clock.wall()
        ttl_s = KEPT_S if approval.status in ENDS else None
        revision = await self._kv.update(BUCKET, approval.id, self._encode(approval), revision, now, ttl_s=ttl_s)
        return ApprovalEntry(approval, revision, None if ttl_s is None else now + ttl_s, self._replica)

    def _encode(self, approval: Approval) -> bytes:
        params = approval.params or _NULL
        return _encode(StoredApproval(approval=replace(approval, params=None), params=params, replica=self._replica))


def maybe_read(entry: Entry) -> ApprovalEntry | None:
    """None where it cannot be read, which is logged."""
    try:
        stored = _decode(entry.value)
    except msgspec.DecodeError as error:
        # What cannot be read cannot be decided; the call it was for is made again.
        log.error("approval %s cannot be read and is left out: %s", entry.key, error)
        return None
    approval = stored.approval
    if stored.params != _NULL:
        approval = replace(approval, params=stored.params.copy())
    return ApprovalEntry(approval, entry.revision, entry.expires_at, stored.replica)
