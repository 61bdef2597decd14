"""Approvals on disk: one entry each, changed only over the revision that was read.

In: an approval and what it is to become. Out: the approval as it now stands, its revision, or `Conflict`. What ended is
kept for a day, so that a late question gets the right refusal, and is then forgotten by the store.
"""

import logging
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.protocol.approvals.approval import Approval
from interlock.protocol.approvals.state import ENDS
from interlock.runtime.base.clock import Clock
from interlock.store.ports import KeyValue

log = logging.getLogger("interlock.approvals")

BUCKET: Final = "approvals"
KEPT_S: Final = 86_400.0  # an ended one

_NULL: Final = Raw(b"null")


class StoredApproval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An approval as it is written. `params` stands apart, because raw JSON has no other type beside it."""

    approval: Approval
    params: Raw


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredApproval).decode


class ApprovalEntry(msgspec.Struct, frozen=True):
    approval: Approval
    revision: int
    kept_until: float | None = None  # by the wall clock, once it has ended


class ApprovalStore:
    """Reads and writes approvals. Raises StoreError; Conflict where another writer was first."""

    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock

    async def all(self) -> Iterator[ApprovalEntry]:
        entries = await self._kv.entries(BUCKET, self._clock.wall())
        return (
            ApprovalEntry(approval, entry.revision, entry.expires_at)
            for entry in entries
            if (approval := _maybe_read(entry.key, entry.value)) is not None
        )

    async def maybe_read(self, id: str) -> ApprovalEntry | None:
        entry = await self._kv.get(BUCKET, id, self._clock.wall())
        if entry is None or (approval := _maybe_read(id, entry.value)) is None:
            return None
        return ApprovalEntry(approval, entry.revision, entry.expires_at)

    async def create(self, approval: Approval) -> ApprovalEntry:
        return ApprovalEntry(
            approval, await self._kv.create(BUCKET, approval.id, _encode_approval(approval), self._clock.wall())
        )

    async def update(self, approval: Approval, revision: int) -> ApprovalEntry:
        now = self._clock.wall()
        ttl_s = KEPT_S if approval.status in ENDS else None
        revision = await self._kv.update(BUCKET, approval.id, _encode_approval(approval), revision, now, ttl_s=ttl_s)
        return ApprovalEntry(approval, revision, None if ttl_s is None else now + ttl_s)


def _encode_approval(approval: Approval) -> bytes:
    return _encode(StoredApproval(approval=replace(approval, params=None), params=approval.params or _NULL))


def _maybe_read(id: str, value: bytes) -> Approval | None:
    try:
        stored = _decode(value)
    except msgspec.DecodeError as error:
        # What cannot be read cannot be decided; the call it was for is made again.
        log.error("approval %s cannot be read and is left out: %s", id, error)
        return None
    return stored.approval if stored.params == _NULL else replace(stored.approval, params=stored.params.copy())
