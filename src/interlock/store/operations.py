"""Operations on the audit log: pages of records, for operators."""

from dataclasses import dataclass

import msgspec
from msgspec import Raw

from interlock.core.recorder import Recorder
from interlock.operator.operation import handles
from interlock.store.api import READ_AUDIT, AuditPage
from interlock.store.audit_chain import ChainedRecord
from interlock.store.sqlite.audit import SqliteAudit


@dataclass(frozen=True, slots=True)
class AuditOperations:
    """The operations of operators on the audit log."""

    audit: SqliteAudit
    recorder: Recorder

    @handles(READ_AUDIT)
    async def page(self, after: int, limit: int) -> AuditPage[Raw]:
        """Return at most `limit` records with a sequence above `after`, oldest first."""
        await self.recorder.flush()
        records = await self.audit.read(after, limit)
        return AuditPage(records=tuple(_with_place(record) for record in records), last=await self.audit.last())

    async def last(self) -> int:
        """Return the sequence number of the newest record on disk."""
        return await self.audit.last()

    async def tail(self, after: int, limit: int) -> AuditPage[Raw]:
        """Return the newest records, at most `limit`, with a sequence above `after`. Records that are not on disk yet
        are left out.
        """
        last = await self.audit.last()
        records = await self.audit.read(max(after, last - limit), limit) if last > after else []
        return AuditPage(records=tuple(_with_place(record) for record in records), last=last)


def _with_place(record: ChainedRecord) -> Raw:
    """Return the stored JSON of a record with its sequence number and hash added in front."""
    members = msgspec.json.decode(record.data, type=dict[str, Raw])
    return Raw(msgspec.json.encode({"seq": record.sequence, "hash": record.hash.hex(), **members}))
