"""The audit log, read by an operator."""

import msgspec

from interlock.runtime.base.operator_errors import JsonObject
from interlock.runtime.base.recorder import Recorder
from interlock.store.ports import AuditLog


class AuditOperations:
    def __init__(self, audit: AuditLog, recorder: Recorder) -> None:
        self._audit = audit
        self._recorder = recorder

    async def page(self, after: int, limit: int) -> JsonObject:
        """Records with a sequence above `after`, oldest first, at most `limit`."""
        await self._recorder.flush()
        records = await self._audit.read(after, limit)
        return {
            "records": [
                {"seq": record.sequence, "hash": record.hash.hex(), **msgspec.json.decode(record.data)}
                for record in records
            ],
            "last": await self._audit.last(),
        }
