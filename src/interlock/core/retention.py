"""Audit records that are old enough are given up (store.audit_days), and the log says so itself.

Before anything is removed a record goes into the chain that names the last record given up and its hash: a person
with a copy from before can still show that it belongs to this log.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.store.audit_chain import ChainedRecord
from interlock.store.ports import AuditLog, StoreError

log = logging.getLogger("interlock.audit")

DAY_S: Final = 86_400
LOOK_S: Final = 3600.0
PAGE: Final = 2000
GIVE_UP: Final = "audit/give_up"


class Retention:
    def __init__(self, audit: AuditLog, recorder: Recorder, clock: Clock, days: int) -> None:
        self._audit = audit
        self._recorder = recorder
        self._clock = clock
        self._days = days
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._days:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="audit retention")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except (StoreError, OSError) as refused:
                log.warning("old audit records could not be given up: %s; tried again later", refused)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> int:
        """Give up what is too old now. How many were removed."""
        last = await self._last_before(self._clock.wall() - self._days * DAY_S)
        if last is None:
            return 0
        what = f"records to {last.sequence}"
        reason = f"older than {self._days} days; the hash of the last is {last.hash.hex()}"
        at = self._clock.wall()
        self._recorder.add(AuditRecord(at, "node", "local", GIVE_UP, what, None, "admitted", "ok", reason=reason))
        await self._recorder.flush()
        if self._recorder.trouble is not None:
            return 0
        removed = await self._audit.give_up(last.sequence)
        if removed:
            log.info("%d audit records older than %d days were given up", removed, self._days)
        return removed

    async def _last_before(self, wall: float) -> ChainedRecord | None:
        last: ChainedRecord | None = None
        after = 0
        while page := await self._audit.read(after, PAGE):
            for record in page:
                if _at(record) >= wall:
                    return last
                last = record
            after = page[-1].sequence
        return last


def _at(record: ChainedRecord) -> float:
    """Return when a record was written, or 0 if it does not say, so that it counts as old as those around it."""
    try:
        members: Any = msgspec.json.decode(record.data)
        return datetime.strptime(members["at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return 0.0
