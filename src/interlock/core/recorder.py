"""The recorder, which writes the audit record of every call: what was called, by whom, and how it ended.

Records are appended in batches, off the call path: a call leaves a tuple here and goes on; encoding, hashing and the
disk come up to a second later, on another thread.
When the disk refuses, records wait (bounded) and the node says so; nothing is dropped silently.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from interlock.core.audit_record import AuditRecord
from interlock.store.ports import AuditLog, StoreError, Unavailable

log = logging.getLogger("interlock.audit")

FLUSH_S: Final = 0.5
WAITING_MAX: Final = 200_000  # records kept in memory while the disk refuses
LARGE_BYTES: Final = 256 * 1024  # of arguments that are not kept until the next flush is due


EncodedLater = tuple[Any, ...]  # a record of another form: what encodes it when it is written, and of what


class Recorder:
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
