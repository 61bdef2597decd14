"""The log of the registry of names on SQLite: `names.db` in the data folder, rows that only grow, hash-chained.

A row says which surface name it is about, and the table takes no other spelling. The file is made by the first append;
before that a registry has its initial contents alone. An append names the record it follows: of two processes that
decided on the same state, one is told Conflict and decides again.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from interlock.store.audit_chain import ORIGIN, ChainedRecord, Mark, chain
from interlock.store.ports import Conflict, NamedRecord, Unavailable
from interlock.store.sqlite.store import BUSY_TIMEOUT_S, Schema, SqliteJobs, int64

NAMES_FILE = "names.db"
NAMES_SCHEMA = Schema(
    application_id=0x494C4E4D,  # "ILNM"
    migrations=(
        (
            "CREATE TABLE record (sequence INTEGER PRIMARY KEY, data BLOB NOT NULL, hash BLOB NOT NULL,"
            " name TEXT NOT NULL CHECK (name = '' OR (length(CAST(name AS BLOB)) <= 64 AND name GLOB '[a-z]*'"
            " AND NOT name GLOB '*[^a-z0-9_]*' AND NOT name GLOB '*_' AND NOT name GLOB '*__*'"
            " AND NOT name GLOB '*_[0-9]*')))",
            "CREATE INDEX record_by_name ON record (name, sequence) WHERE name != ''",
        ),
    ),
)
# The casts bring whatever another program put into the file into the types that the chain takes.
_ROWS = "SELECT sequence, CAST(data AS BLOB), CAST(hash AS BLOB) FROM record"


class SqliteNamesLog:
    """The log of the registry of names in one SQLite file. The first append creates the file."""

    def __init__(self, data: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._jobs = SqliteJobs(data / NAMES_FILE, NAMES_SCHEMA, busy_timeout_s)

    @property
    def is_begun(self) -> bool:
        """Return whether the file of the log exists. It is created by the first append, even by one that fails."""
        return self._jobs.file.is_open or self._jobs.file.path.exists()

    async def open(self) -> None:
        if self.is_begun:
            await self._jobs.open()

    async def close(self) -> None:
        await self._jobs.close()

    async def read(self, after: int = 0, limit: int = 10_000) -> list[ChainedRecord]:
        return await self._select("sequence > ? ORDER BY sequence LIMIT ?", int64(after), int64(limit))

    async def read_of(self, name: str, limit: int = 1000) -> list[ChainedRecord]:
        """Return at most `limit` of the newest records about a name, oldest first."""
        condition = "name = ? AND name != '' ORDER BY sequence DESC LIMIT ?"
        return (await self._select(condition, name, int64(limit)))[::-1]

    async def _select(self, condition: str, *values: object) -> list[ChainedRecord]:
        if not self.is_begun:
            return []
        await self.open()
        return await self._jobs.read(
            lambda db: [ChainedRecord(*row) for row in db.execute(f"{_ROWS} WHERE {condition}", values)]
        )

    async def append(self, after: Mark, records: Sequence[NamedRecord]) -> Mark:
        """Append the records after the mark `after`, either all of them or none. Raise Conflict if `after` is not the
        last record of the log, and Unavailable if the table does not accept a record.
        """
        await self._jobs.open()
        hashes = chain(after, [record.data for record in records])

        def write(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT sequence, hash FROM record ORDER BY sequence DESC LIMIT 1").fetchone()
            if (ORIGIN if row is None else Mark(*row)) != after:
                raise Conflict("another process has changed the registry")
            rows = [
                (after.sequence + count, record.name, record.data, hash)
                for count, (record, hash) in enumerate(zip(records, hashes, strict=True), 1)
            ]
            try:
                db.executemany("INSERT INTO record (sequence, name, data, hash) VALUES (?, ?, ?, ?)", rows)
            except sqlite3.IntegrityError as refused:
                raise Unavailable(f"{NAMES_FILE} does not take this: {refused}") from refused

        await self._jobs.write(write)
        return Mark(after.sequence + len(records), hashes[-1]) if hashes else after

    def watch(self) -> None:
        """Return None, because SQLite sends no notifications. The node finds records that a command appended at its
        next read.
        """
