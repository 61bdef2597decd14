"""The recorder, which writes the audit record of every call, and the retention, which removes old records.

Records are appended in batches, off the call path: a call leaves a tuple here and goes on; encoding, hashing and the
disk come up to a second later, on another thread. When the disk refuses, records wait (bounded) and the node says so;
nothing is dropped silently.

Old records are removed after store.audit_days. Before that, a record goes into the chain that names the last removed
record and its hash, so that a person with an older copy can still show that it belongs to this log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.store.audit_chain import ChainedRecord
from interlock.store.ports import AuditLog, StoreError, Unavailable

log = logging.getLogger("interlock.audit")

FLUSH_S: Final = 0.5
WAITING_MAX: Final = 200_000  # records kept in memory while the disk refuses
LARGE_BYTES: Final = 256 * 1024  # of arguments that are not kept until the next flush is due


EncodedLater = tuple[Any, ...]  # a record of another form: what encodes it when it is written, and of what


class Recorder:
    """The writer of the audit log. Records that the disk refuses wait in memory; `trouble` says why."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._waiting: list[AuditRecord | bytes | EncodedLater] = []
        self.add: Callable[[AuditRecord], None] = self._waiting.append  # for every call: without a function of our own
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._flushing = asyncio.Lock()  # one batch at a time, in order
        self.trouble: str | None = None
        self.lost = 0

    def hurry(self) -> None:
        """Write as soon as possible, because the record added last is large."""
        self._hurry.set()

    def add_line(self, line: bytes) -> None:
        """Add a record that is already encoded, in order."""
        self._waiting.append(line)

    def add_made(self, record: EncodedLater) -> None:
        """Add a record that its first item encodes from the rest later, on another thread."""
        self._waiting.append(record)

    async def append_now(self, line: bytes) -> None:
        """Write a record after those before it; it is on disk when this returns.

        On StoreError nothing was recorded.
        """
        async with self._flushing:
            await self._flush()
            try:
                await self._audit.append([line])
            except OSError as refused:
                raise Unavailable(f"the audit log cannot be written: {refused.strerror}") from refused

    async def open(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="audit")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Write everything added before; it is on disk when this returns, unless `trouble` says why not."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        if not self._waiting:
            return
        batch = self._waiting.copy()
        self._waiting.clear()
        lines = await asyncio.to_thread(_encode_all, batch)
        count = len(lines)
        batch.clear()  # large arguments do not wait for the disk
        try:
            await self._audit.append(lines)
            self.trouble = None
        except (StoreError, OSError) as refused:
            if self.trouble is None:
                log.error("the audit log cannot be written: %s; %d records wait in memory", refused, count)
            self.trouble = str(refused)
            self._waiting[:0] = lines  # encoded: what waits for the disk holds no arguments
            excess = len(self._waiting) - WAITING_MAX
            if excess > 0:
                self.lost += excess
                del self._waiting[:excess]

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._hurry.wait()
            self._hurry.clear()
            await asyncio.shield(self.flush())


def _encode_all(batch: list[AuditRecord | bytes | EncodedLater]) -> list[bytes]:
    return [record if isinstance(record, bytes) else _encode_any(record) for record in batch]


def _encode_any(record: AuditRecord | EncodedLater) -> bytes:
    if isinstance(record, AuditRecord):
        return record.encode()
    encode, *parts = record
    line: bytes = encode(*parts)
    return line


DAY_S: Final = 86_400
LOOK_S: Final = 3600.0
PAGE: Final = 2000
GIVE_UP: Final = "audit/give_up"


class Retention:
    """The regular removal of audit records that are older than store.audit_days."""

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
        """Remove the records that are too old now, and return how many there were."""
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
