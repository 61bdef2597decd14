"""The default store: one SQLite file, `store.db`, in the data folder.

A returned write is on disk (WAL, synchronous=FULL). Several processes may use one file: every write holds the write
lock from its first read, so compare-and-swap is exact among them.

Expired entries are never shown, and each write clears some of them away.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from interlock.store.ports import Conflict, Entry, Record, Replication, expiry
from interlock.store.sqlite.file import BUSY_TIMEOUT_S, Schema, SqliteJobs, int64

STORE_FILE = "store.db"
STORE_SCHEMA = Schema(
    application_id=0x494C5354,  # "ILST"
    migrations=(
        (
            "CREATE TABLE kv (bucket TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,"
            " revision INTEGER NOT NULL, expires_at REAL, PRIMARY KEY (bucket, key))",
            "CREATE INDEX kv_by_expiry ON kv (expires_at) WHERE expires_at IS NOT NULL",
            "CREATE TABLE revision (last INTEGER NOT NULL)",
            "INSERT INTO revision VALUES (0)",
            "CREATE TABLE stream (stream TEXT NOT NULL, sequence INTEGER NOT NULL, data BLOB NOT NULL,"
            " PRIMARY KEY (stream, sequence))",
        ),
    ),
)
PURGED_PER_WRITE_MAX = 100  # each write adds at most one entry, so this keeps up; the bound keeps every write short


class SqliteStore:
    """A store in one SQLite file. Each call runs as one job on the thread of that file."""

    def __init__(
        self,
        data: Path,
        *,
        file: str = STORE_FILE,
        schema: Schema = STORE_SCHEMA,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self._jobs = SqliteJobs(data / file, schema, busy_timeout_s)
        self.kv = SqliteKeyValue(self._jobs)
        self.streams = SqliteStreams(self._jobs)
        self.replication: Replication | None = None  # each node has a file of its own

    async def open(self) -> None:
        await self._jobs.open()

    async def close(self) -> None:
        await self._jobs.close()


class SqliteKeyValue:
    """The key-value store in the tables `kv` and `revision`. `revision` holds the last revision."""

    def __init__(self, jobs: SqliteJobs) -> None:
        self._jobs = jobs

    async def get(self, bucket: str, key: str, now: float) -> Entry | None:
        return await self._jobs.read(lambda db: get_entry(db, bucket, key, now))

    async def entries(self, bucket: str, now: float) -> list[Entry]:
        def read(db: sqlite3.Connection) -> list[Entry]:
            rows = db.execute(
                "SELECT key, value, revision, expires_at FROM kv"
                " WHERE bucket = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key",
                (bucket, now),
            )
            return [Entry(*row) for row in rows]

        return await self._jobs.read(read)

    async def put(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        return await self._write(bucket, key, value, now, ttl_s, None)

    async def create(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        def check(current: Entry | None) -> None:
            if current is not None:
                raise Conflict(f"{bucket}/{key} exists")

        return await self._write(bucket, key, value, now, ttl_s, check)

    async def update(
        self, bucket: str, key: str, value: bytes, revision: int, now: float, *, ttl_s: float | None = None
    ) -> int:
        def check(current: Entry | None) -> None:
            if current is None:
                raise Conflict(f"{bucket}/{key} is gone")
            if current.revision != revision:
                raise Conflict(f"{bucket}/{key} has revision {current.revision}, not {revision}")

        return await self._write(bucket, key, value, now, ttl_s, check)

    async def delete(self, bucket: str, key: str) -> bool:
        return await self._jobs.write(
            lambda db: db.execute("DELETE FROM kv WHERE bucket = ? AND key = ?", (bucket, key)).rowcount > 0
        )

    async def _write(
        self,
        bucket: str,
        key: str,
        value: bytes,
        now: float,
        ttl_s: float | None,
        check: Callable[[Entry | None], None] | None,
    ) -> int:
        """Write a value and return its revision. `check` receives the live entry, read under the write lock, and raises
        Conflict to prevent the write.
        """
        expires_at = expiry(now, ttl_s)

        def write(db: sqlite3.Connection) -> int:
            if check is not None:
                check(get_entry(db, bucket, key, now))
            db.execute(
                "DELETE FROM kv WHERE rowid IN (SELECT rowid FROM kv WHERE expires_at <= ? LIMIT ?)",
                (now, PURGED_PER_WRITE_MAX),
            )
            return put_value(db, bucket, key, value, expires_at)

        return await self._jobs.write(write)


class SqliteStreams:
    """The append-only streams of a store, in the table `stream`."""

    def __init__(self, jobs: SqliteJobs) -> None:
        self._jobs = jobs

    async def append(self, stream: str, records: Sequence[bytes]) -> int:
        def write(db: sqlite3.Connection) -> int:
            last = _last(db, stream)
            db.executemany(
                "INSERT INTO stream (stream, sequence, data) VALUES (?, ?, ?)",
                ((stream, sequence, data) for sequence, data in enumerate(records, last + 1)),
            )
            return last + len(records)

        return await self._jobs.write(write)

    async def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[Record]:
        def read(db: sqlite3.Connection) -> list[Record]:
            rows = db.execute(
                "SELECT sequence, data FROM stream WHERE stream = ? AND sequence > ? ORDER BY sequence LIMIT ?",
                (stream, int64(after), int64(limit)),
            )
            return [Record(*row) for row in rows]

        return await self._jobs.read(read)

    async def last(self, stream: str) -> int:
        return await self._jobs.read(lambda db: _last(db, stream))

    async def trim(self, stream: str, upto: int) -> None:
        def write(db: sqlite3.Connection) -> None:
            # The last record stays, so that no sequence is used twice.
            end = min(int64(upto), _last(db, stream) - 1)
            db.execute("DELETE FROM stream WHERE stream = ? AND sequence <= ?", (stream, end))

        await self._jobs.write(write)


def get_entry(db: sqlite3.Connection, bucket: str, key: str, now: float) -> Entry | None:
    """Return the entry of a key, or None if there is none or it has expired."""
    row = db.execute(
        "SELECT key, value, revision, expires_at FROM kv"
        " WHERE bucket = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?)",
        (bucket, key, now),
    ).fetchone()
    return None if row is None else Entry(*row)


def put_value(db: sqlite3.Connection, bucket: str, key: str, value: bytes, expires_at: float | None = None) -> int:
    """Write a value within the current transaction of `db`, and return its revision."""
    db.execute("UPDATE revision SET last = last + 1")
    (revision,) = db.execute("SELECT last FROM revision").fetchone()
    db.execute(
        "INSERT INTO kv (bucket, key, value, revision, expires_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (bucket, key) DO UPDATE"
        " SET value = excluded.value, revision = excluded.revision, expires_at = excluded.expires_at",
        (bucket, key, value, revision, expires_at),
    )
    return int(revision)


def _last(db: sqlite3.Connection, stream: str) -> int:
    (last,) = db.execute("SELECT max(sequence) FROM stream WHERE stream = ?", (stream,)).fetchone()
    return int(last or 0)
