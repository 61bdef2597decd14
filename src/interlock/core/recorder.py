"""The recorder: where the audit record of every call is written, and where refusals and old records are handled.

Theory of operation. A call leaves one `AuditRecord` with the `Recorder` and goes on. Every half second, or at once
after a large record, the waiting records are encoded and appended in one batch, on another thread. When the disk
refuses, records wait in memory, up to WAITING_MAX, and `trouble` says why; what exceeds that is counted in `lost`.
Nothing is dropped silently.

`Refusals` records requests that an endpoint refused. A refusal is a decision like any other, but refused callers could
fill the disk. So the first refusal of a caller for a reason is written, others of the same minute are counted and
written as one record (for a recognised caller, by method), and at most ENTRIES_PER_S records are written per second.
Refusals beyond that are counted in one record without names. An admitted call touches nothing of this.

`Retention` removes records after `store.audit_days`. Before that, a record goes into the chain that names the last
removed record and its hash, so that a person with an older copy can still show that it belongs to this log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from interlock.core.audit_record import AuditRecord
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.store.audit_chain import ChainedRecord
from interlock.store.ports import StoreError, Unavailable
from interlock.store.sqlite.audit import SqliteAudit

log = logging.getLogger("interlock.audit")

FLUSH_S: Final = 0.5
WAITING_MAX: Final = 200_000  # records kept in memory while the disk refuses
LARGE_BYTES: Final = 256 * 1024  # of arguments that are not kept until the next flush is due


# A record in another form: a function that encodes it on another thread when the batch is written, and its arguments.
EncodedLater = tuple[Any, ...]


class Recorder:
    """The writer of the audit log. Records wait in memory while the disk cannot be written; `trouble` says why."""

    def __init__(self, audit: SqliteAudit) -> None:
        self._audit = audit
        self._waiting: list[AuditRecord | bytes | EncodedLater] = []
        # Adds the record of a call, or a record in another form. For every call: without a function of our own.
        self.add: Callable[[AuditRecord | EncodedLater], None] = self._waiting.append
        self._work = BackgroundTasks()
        self._hurry = asyncio.Event()
        self._flushing = asyncio.Lock()  # one batch at a time, in order
        self.trouble: str | None = None
        self.lost = 0

    def hurry(self) -> None:
        """Write the waiting records as soon as possible, because the last one is large."""
        self._hurry.set()

    def add_line(self, line: bytes) -> None:
        """Add a record that is already encoded. It keeps its place in the order of records."""
        self._waiting.append(line)

    async def append_now(self, line: bytes) -> None:
        """Write this record and all records before it. When this returns, this record is on disk.

        Records before it are on disk too, unless `trouble` says why not. Raise StoreError if this record could not be
        written because the disk or the store refuses.
        """
        async with self._flushing:
            await self._flush()
            try:
                await self._audit.append([line])
            except OSError as refused:
                raise Unavailable(f"the audit log cannot be written: {refused.strerror}") from refused

    async def open(self) -> None:
        self._work.begin(self._run(), "audit")

    async def close(self) -> None:
        await self._work.close()
        await self.flush()

    async def flush(self) -> None:
        """Write all records that were added so far.

        When this returns they are on disk, unless `trouble` says why not.
        """
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
    lines: list[bytes] = []
    for record in batch:
        if isinstance(record, tuple):
            encode, *parts = record
            lines.append(encode(*parts))
        else:
            lines.append(record if isinstance(record, bytes) else record.encode())
    return lines


DAY_S: Final = 86_400
LOOK_S: Final = 3600.0
PAGE: Final = 2000
GIVE_UP: Final = "audit/give_up"


class Retention:
    """The regular removal of audit records that are older than `store.audit_days`."""

    def __init__(self, audit: SqliteAudit, recorder: Recorder, clock: Clock, days: int) -> None:
        self._audit, self._recorder, self._clock, self._days = audit, recorder, clock, days
        self._work = BackgroundTasks()

    async def open(self) -> None:
        if self._days:
            self._work.begin(self._run(), "audit retention")

    async def close(self) -> None:
        await self._work.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except (StoreError, OSError) as refused:
                log.warning("old audit records could not be given up: %s; tried again later", refused)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> int:
        """Remove the audit records that are older than the configured number of days, and return how
        many were removed.
        """
        if (last := await self._last_before(self._clock.wall() - self._days * DAY_S)) is None:
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
    """Return the time at which an audit record was written, or 0 if the record contains no time."""
    try:
        members: Any = msgspec.json.decode(record.data)
        return datetime.strptime(members["at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return 0.0


ENTRIES_PER_S: Final = 5  # a flood costs 100 MB a day at most
REPEATS_S: Final = 60.0  # how long refusals of one caller for one reason are one matter
CALLERS_MAX: Final = 1024  # callers and reasons kept apart at a time
ANY_PEER: Final = "peer:*"  # of refusals that are not written one by one


class RefusalPlace(msgspec.Struct, frozen=True):
    """The room in which a recognised caller was refused, and the caller's participant in that room."""

    room: str
    participant: str


# Who, reason, target; of a caller that was recognised also where, and the method, of which it has few.
_Key = tuple[str, str, str, RefusalPlace | None, str]


class _Repeats(msgspec.Struct):
    """Repetitions of a refusal whose first occurrence is already in the audit log."""

    since: float
    via: str
    method: str
    count: int = 0  # after the first, which is written


class Refusals:
    """A collector of the requests that endpoints refuse. It writes them to the audit log at a limited rate."""

    def __init__(self, add: Callable[[AuditRecord], None], clock: Clock) -> None:
        """Create an empty collection. `add` appends a record to the audit log."""
        self.total = 0
        self._add, self._clock = add, clock
        self._repeats: dict[_Key, _Repeats] = {}  # the oldest first
        self._left = ENTRIES_PER_S
        self._left_since = clock.now()
        self._unwritten = 0

    def note(
        self, who: str, via: str, method: str, reason: str, target: str = "", *, place: RefusalPlace | None = None
    ) -> None:
        """Record that an endpoint refused a request. Repetitions within a minute are counted and written as one record.

        `method` is a method of HTTP or MCP-AX, `reason` is one of this node's fixed words and `target` is a segment, so
        a stranger cannot control the length of any of them.
        """
        self.total += 1
        key = (who, reason, target, place, method if place is not None else "")
        if (repeats := self._repeats.get(key)) is not None:
            repeats.count += 1
            return
        now = self._clock.now()
        if not self._may_write(now) or len(self._repeats) >= CALLERS_MAX:
            self._unwritten += 1
            return
        self._repeats[key] = _Repeats(now, via, method)
        self._write(who, via, method, reason, target, place)

    async def open(self) -> None:
        """Do nothing, because nothing has to be started."""

    async def close(self) -> None:
        self.settle(closing=True)

    def settle(self, *, closing: bool = False) -> None:
        """Write audit records for the refusals that were only counted so far.

        Called about once a second; `closing` writes all of them.
        """
        now = self._clock.now()
        if self._unwritten and (closing or self._may_write(now)):
            count, self._unwritten = self._unwritten, 0
            self._write(ANY_PEER, "http", "-", f"{count} refusals that are not written one by one")
        for key, repeats in list(self._repeats.items()):
            if not closing and now - repeats.since < REPEATS_S:
                break
            if repeats.count and not (closing or self._may_write(now)):
                break
            del self._repeats[key]
            if repeats.count:
                who, reason, target, place, _ = key
                self._write(who, repeats.via, repeats.method, f"{reason}, {repeats.count} times more", target, place)

    def _may_write(self, now: float) -> bool:
        if now - self._left_since >= 1.0:
            self._left, self._left_since = ENTRIES_PER_S, now
        return self._left > 0

    def _write(
        self, who: str, via: str, method: str, reason: str, target: str = "", place: RefusalPlace | None = None
    ) -> None:
        self._left -= 1
        at, details = self._clock.wall(), None if place is None else msgspec.structs.asdict(place)
        self._add(AuditRecord(at, who, via, method, target, None, "refused", "refused", 0.0, reason, details))
