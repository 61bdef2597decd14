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
from interlock.store.sqlite.file import BUSY_TIMEOUT_S, Schema, SqliteThread, int64, open_database, write_transaction

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
    def __init__(self, data: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._path = data / NAMES_FILE
        self._busy_timeout_s = busy_timeout_s
        self._thread = SqliteThread(self._path)
        self._db: sqlite3.Connection | None = None

    @property
    def is_begun(self) -> bool:
        """Return whether anything was ever appended."""
        return self._db is not None or self._path.exists()

    async def open(self) -> None:
        if self.is_begun:
            self._thread.start()
            await self._thread.run(self._connection)

    async def close(self) -> None:
        await self._thread.stop(self._close)

    async def read(self, after: int = 0, limit: int = 10_000) -> list[ChainedRecord]:
        if not self.is_begun:
            return []
        await self.open()
        return await self._thread.run(self._read, int64(after), int64(limit))

    async def read_of(self, name: str, limit: int = 1000) -> list[ChainedRecord]:
        """Return the last records about a name, in order."""
        if not self.is_begun:
            return []
        await self.open()
        return await self._thread.run(self._read_of, name, int64(limit))

    async def append(self, after: Mark, records: Sequence[NamedRecord]) -> Mark:
        """Chain the records after the mark `after`, all or nothing. Raise Conflict if `after` is not the last
        record.
        """
        self._thread.start()
        return await self._thread.run(self._append, after, records)

    def watch(self) -> None:
        """Return None: the node notices what a command appended at its next read."""

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = open_database(self._path, NAMES_SCHEMA, "FULL", self._busy_timeout_s)
        return self._db

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _read(self, after: int, limit: int) -> list[ChainedRecord]:
        rows = self._connection().execute(f"{_ROWS} WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, limit))
        return [ChainedRecord(*row) for row in rows]

    def _read_of(self, name: str, limit: int) -> list[ChainedRecord]:
        rows = self._connection().execute(
            f"{_ROWS} WHERE name = ? AND name != '' ORDER BY sequence DESC LIMIT ?",
            (name, limit),
        )
        return [ChainedRecord(*row) for row in rows][::-1]

    def _append(self, after: Mark, records: Sequence[NamedRecord]) -> Mark:
        db = self._connection()
        try:
            with write_transaction(db):
                row = db.execute("SELECT sequence, hash FROM record ORDER BY sequence DESC LIMIT 1").fetchone()
                if (ORIGIN if row is None else Mark(*row)) != after:
                    raise Conflict("another process has changed the registry")
                hashes = chain(after, [record.data for record in records])
                db.executemany(
                    "INSERT INTO record (sequence, name, data, hash) VALUES (?, ?, ?, ?)",
                    (
                        (after.sequence + count, record.name, record.data, hash)
                        for count, (record, hash) in enumerate(zip(records, hashes, strict=True), 1)
                    ),
                )
        except sqlite3.IntegrityError as refused:
            raise Unavailable(f"{self._path.name} does not take this: {refused}") from refused
        return Mark(after.sequence + len(records), hashes[-1]) if hashes else after
