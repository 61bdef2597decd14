"""The audit log, read by an operator."""

import msgspec
from msgspec import Raw

from interlock.core.recorder import Recorder
from interlock.store.api import AuditPage
from interlock.store.audit_chain import ChainedRecord
from interlock.store.ports import AuditLog


class AuditOperations:
    def __init__(self, audit: AuditLog, recorder: Recorder) -> None:
        self._audit = audit
        self._recorder = recorder

    async def page(self, after: int, limit: int) -> AuditPage[Raw]:
        """Records with a sequence above `after`, oldest first, at most `limit`."""
        await self._recorder.flush()
        records = await self._audit.read(after, limit)
        return AuditPage(records=tuple(_placed(record) for record in records), last=await self._audit.last())

    async def last(self) -> int:
        """The sequence of the newest record that is written."""
        return await self._audit.last()

    async def tail(self, after: int, limit: int) -> AuditPage[Raw]:
        """Like `page`, of what is written already; of more than `limit` the newest."""
        last = await self._audit.last()
        records = await self._audit.read(max(after, last - limit), limit) if last > after else []
        return AuditPage(records=tuple(_placed(record) for record in records), last=last)


def _placed(record: ChainedRecord) -> Raw:
    """The record as it was written, with its place in the chain before it."""
    members = msgspec.json.decode(record.data, type=dict[str, Raw])
    return Raw(msgspec.json.encode({"seq": record.sequence, "hash": record.hash.hex(), **members}))
