"""The audit log on SQLite: `audit/audit.db` in the data folder, its head in the bucket "audit-head" of store.db.

A row holds a run of records: the first one's sequence, their bytes with a line feed between, their hashes one after the
other. A batch of calls becomes a few rows; a record with a line feed in it has a row to itself.

An append is one transaction that is on disk when it returns; callers batch. The head moves after the records are on
disk and is itself not waited for: a head that lags is harmless, a head ahead of its log would make a power cut look
like a removal. An append that finds the log shorter than its head goes on after the head, so that the gap stays for
`verify`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from interlock.store.audit_chain import HASH_BYTES, ORIGIN, Break, ChainCheck, ChainedRecord, Flaw, Mark, Verdict, chain
from interlock.store.ports import StoreError
from interlock.store.sqlite import store as sqlite

AUDIT_FILE = Path("audit", "audit.db")
AUDIT_SCHEMA = sqlite.Schema(
    application_id=0x494C4155,  # "ILAU"
    migrations=(("CREATE TABLE record (seq INTEGER PRIMARY KEY, data BLOB NOT NULL, hash BLOB NOT NULL)",),),
)
HEAD_BUCKET = "audit-head"
HEAD_KEY = "head"  # the mark of the last record
START_KEY = "start"  # the mark of the last record given up by retention; absent while all are kept
# Python gives up the interpreter lock at every statement, and with a busy event loop getting it back costs more than
# the statement: many records in one row keep both threads going.
RUN_RECORDS_MAX = 256
VERIFY_PAGE = 2000  # records checked in one job, so that appends get in between


# The casts bring whatever a stranger put into the file into the types that the check takes.
_ROWS = (
    "SELECT coalesce(CAST(seq AS INTEGER), 0), coalesce(CAST(data AS BLOB), x''), coalesce(CAST(hash AS BLOB), x'')"
    " FROM record "
)
_LAST_ROW = _ROWS + "ORDER BY seq DESC LIMIT 1"
_ROWS_FROM = _ROWS + "WHERE seq >= (SELECT coalesce(max(seq), ?1) FROM record WHERE seq <= ?1) ORDER BY seq"  # noqa: S608  (constants only)


class SqliteAuditReader(sqlite.SqliteJobs):
    """Read-only access to the audit log in SQLite. It never replaces a missing head, the stored mark of the last
    record, so that `verify` can report that the head is missing.

    The connections of the log and of its head are both used on one thread, by the methods that are not async.
    """

    def __init__(self, data: Path, *, busy_timeout_s: float = sqlite.BUSY_TIMEOUT_S) -> None:
        super().__init__(data / AUDIT_FILE, AUDIT_SCHEMA, busy_timeout_s)
        self._head = _Head(data / sqlite.STORE_FILE, sqlite.STORE_SCHEMA, busy_timeout_s, "NORMAL")

    async def read(self, after: int = 0, limit: int = 1000) -> list[ChainedRecord]:
        return await self.run(self._read, sqlite.int64(after), sqlite.int64(limit))

    async def last(self) -> int:
        """Return the sequence of the last record, or 0 for an empty log."""
        return (await self.run(self._tip)).sequence

    async def verify(self, progress: Callable[[int], None] | None = None) -> Verdict:
        """Check the complete hash chain of the log. It is read in pages, so that appends can run in between. `progress`
        is called with the number of records checked so far.
        """
        # The head is read before the records: what others append meanwhile can only lie beyond it.
        start, head = await self.run(self._marks)
        check = ChainCheck(start, head)

        # Before a start that was moved there may be leftovers of a retention that was interrupted: given up, not read.
        after = sqlite.INTEGER_MIN if start == ORIGIN else start.sequence
        while page := await self.run(self._read, after, VERIFY_PAGE):
            after = page[-1].sequence
            if not await self.run(lambda records: all(map(check.add, records)), page):
                break
            if progress is not None:
                progress(check.records)
        verdict = check.finish()
        if verdict.intact and verdict.records and head is None:
            last = verdict.last.sequence
            reason = f"no head is kept in {sqlite.STORE_FILE}: nothing shows that record {last} is the last"
            broken = Break(last, Flaw.HEAD_MISSING, reason)
            return Verdict(records=verdict.records, last=verdict.last, start=start, broken=broken)
        return verdict

    def _open(self) -> None:
        if not self.file.is_open:
            self.file.open_for_reading()
            if self._head.path.exists():
                self._head.open_for_reading()

    def _close(self) -> None:
        self.file.close()
        self._head.close()

    def _read(self, after: int, limit: int) -> list[ChainedRecord]:
        """Return up to `limit` records after the sequence `after`."""
        records: list[ChainedRecord] = []
        with contextlib.closing(self.file.db.execute(_ROWS_FROM, (after,))) as rows:
            for row in rows:
                records += [record for record in _records(*row) if record.sequence > after]
                if len(records) >= limit:
                    break
        return records[:limit]

    def _tip(self) -> Mark:
        """Return the sequence and the hash of the last record, or ORIGIN if the log is empty."""
        row = self.file.db.execute(_LAST_ROW).fetchone()
        if row is None:
            return ORIGIN
        last = _records(*row)[-1]
        return Mark(last.sequence, last.hash)

    def _marks(self) -> tuple[Mark, Mark | None]:
        """Return the mark after which the log begins, and its head, the stored mark of the last record, if there is
        one.
        """
        if not self._head.is_open:
            return ORIGIN, None
        return self._head.get(START_KEY) or ORIGIN, self._head.get(HEAD_KEY)


class SqliteAudit(SqliteAuditReader):
    """Read and write access to the audit log in SQLite. Several processes may append to it."""

    async def append(self, records: Sequence[bytes]) -> int:
        """Append the records in order, either all of them or none. Return the last sequence number after the records
        are on disk.
        """
        return await self.run(self._append, records)

    async def give_up(self, sequence: int) -> int:
        """Remove old records up to the sequence `sequence`. Stop a few records earlier if they share a row with newer
        records. Return the number of removed records.

        The mark of the last removed record is stored, so that the rest of the log can still be verified.
        """
        return await self.run(self._give_up, sqlite.int64(sequence))

    def _open(self) -> None:
        """Open the file of the log, and the file of its head. The head says which record is the last. An empty log gets
        a head too, so that a missing head always means damage.
        """
        if self.file.is_open:
            return
        self._head.open()
        self.file.open()
        if self._tip() == ORIGIN:
            with self._head.locked():
                if self._head.get(HEAD_KEY) is None:
                    self._head.put(HEAD_KEY, ORIGIN)
                    self._head.commit()

    def _append(self, records: Sequence[bytes]) -> int:
        """Append the records to the hash chain and move the head, the stored mark of the last record. Return the last
        sequence number.
        """
        db = self.file.db
        if not records:
            return self._tip().sequence
        # The head is locked first, so that a store that cannot take the head stops the append.
        with self._head.locked():
            with sqlite.write_transaction(db):
                mark = self._tip()
                head = self._head.get(HEAD_KEY)
                if head is not None and head.sequence >= mark.sequence:
                    mark = head
                for run in _runs(records):
                    hashes = chain(mark, run)
                    row = (mark.sequence + 1, b"\n".join(run), b"".join(hashes))
                    db.execute("INSERT INTO record (seq, data, hash) VALUES (?, ?, ?)", row)
                    mark = Mark(mark.sequence + len(run), hashes[-1])
                self._head.put(HEAD_KEY, mark)
            # The records are on disk: an error now would make the caller write them twice.
            # The next append moves the head.
            with contextlib.suppress(StoreError):
                self._head.commit()
        return mark.sequence

    def _give_up(self, sequence: int) -> int:
        """Remove the rows whose records all have sequences up to `sequence`, but never the last row of the log. Return
        the number of removed records.

        The mark of where the log now begins is on disk before anything is deleted.
        """
        db = self.file.db
        with self._head.locked():
            start = self._head.get(START_KEY) or ORIGIN
            last = start
            with contextlib.closing(db.execute(_ROWS_FROM, (start.sequence + 1,))) as rows:
                row = rows.fetchone()
                for following in rows:
                    end = _records(*row)[-1]
                    if end.sequence > sequence:
                        break
                    last, row = Mark(end.sequence, end.hash), following
            if last == start:
                return 0
            self._head.put(START_KEY, last)
            self._head.commit()
        with sqlite.write_transaction(db):
            db.execute("DELETE FROM record WHERE seq <= ?", (last.sequence,))
        return last.sequence - start.sequence


def _runs(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Divide the records into groups that each fit into one row of the table, and keep their order."""
    run: list[bytes] = []
    for record in records:
        alone = b"\n" in record
        if run and (alone or len(run) == RUN_RECORDS_MAX):
            yield run
            run = []
        if alone:
            yield (record,)
        else:
            run.append(record)
    if run:
        yield run


def _records(sequence: int, data: bytes, hashes: bytes) -> list[ChainedRecord]:
    """Return the records that one row of the table contains. A row that is inconsistent becomes a single record, so
    that `verify` reports it.
    """
    count = len(hashes) // HASH_BYTES
    parts = data.split(b"\n") if count > 1 else [data]
    if len(parts) != count or len(hashes) % HASH_BYTES:
        return [ChainedRecord(sequence, data, hashes)]
    return [
        ChainedRecord(sequence + n, part, hashes[n * HASH_BYTES : (n + 1) * HASH_BYTES]) for n, part in enumerate(parts)
    ]


class _Head(sqlite.SqliteFile):
    """The marks in store.db of the start of the audit log and of its last record (the head). They are read and written
    over a separate connection to the file.

    Errors are raised as those of store.db: the thread would take them for errors of the log.
    """

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the write lock of store.db for the block of this context manager. Changes are kept only if the block
        calls `commit`.
        """
        with sqlite.errors_of(self.path):
            self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            sqlite.roll_back(self.db)

    def put(self, key: str, mark: Mark) -> None:
        with sqlite.errors_of(self.path):
            sqlite.put_value(self.db, HEAD_BUCKET, key, msgspec.json.encode(mark))

    def commit(self) -> None:
        with sqlite.errors_of(self.path):
            self.db.execute("COMMIT")

    def get(self, key: str) -> Mark | None:
        with sqlite.errors_of(self.path):
            entry = sqlite.get_entry(self.db, HEAD_BUCKET, key, 0.0)
        if entry is None:
            return None
        try:
            return msgspec.json.decode(entry.value, type=Mark)
        except msgspec.DecodeError:
            return None  # as good as missing, which `verify` reports
