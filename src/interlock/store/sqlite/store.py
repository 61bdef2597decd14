"""The default store: one SQLite file, `store.db`, in the data folder.

A returned write is on disk (WAL, synchronous=FULL). Several processes may use one file: every write holds the write
lock from its first read, so compare-and-swap is exact among them.

Expired entries are never shown, and each write clears some of them away.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from interlock.store.ports import Conflict, Entry, Record, Replication, Unavailable, expiry
from interlock.store.sqlite.file import BUSY_TIMEOUT_S, Schema, SqliteThread, int64, open_database, write_transaction

P = ParamSpec("P")
T = TypeVar("T")

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
    def __init__(
        self,
        data: Path,
        *,
        file: str = STORE_FILE,
        schema: Schema = STORE_SCHEMA,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self._file = _StoreFile(data / file, schema, busy_timeout_s)
        self.kv = SqliteKeyValue(self._file)
        self.streams = SqliteStreams(self._file)
        self.replication: Replication | None = None  # each node has a file of its own

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()


class _StoreFile:
    """The connection to a file and the thread that it lives on."""

    def __init__(self, path: Path, schema: Schema, busy_timeout_s: float) -> None:
        self._path = path
        self._schema = schema
        self._busy_timeout_s = busy_timeout_s
        self._thread = SqliteThread(path)
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        self._thread.start()
        await self._thread.run(self._open)

    async def close(self) -> None:
        await self._thread.stop(self._close)

    async def read(self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        def reading() -> T:
            return job(self._connection(), *args, **kwargs)

        return await self._thread.run(reading)

    async def write(self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        def transaction() -> T:
            db = self._connection()
            with write_transaction(db):
                return job(db, *args, **kwargs)

        return await self._thread.run(transaction)

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise Unavailable(f"{self._path.name} is not open")
        return self._db

    def _open(self) -> None:
        if self._db is None:
            self._db = open_database(self._path, self._schema, "FULL", self._busy_timeout_s)

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


class SqliteKeyValue:
    def __init__(self, file: _StoreFile) -> None:
        self._file = file

    async def get(self, bucket: str, key: str, now: float) -> Entry | None:
        return await self._file.read(get_entry, bucket, key, now)

    async def entries(self, bucket: str, now: float) -> list[Entry]:
        return await self._file.read(_entries, bucket, now)

    async def put(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        return await self._file.write(_put, bucket, key, value, now, expires_at=expiry(now, ttl_s))

    async def create(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        return await self._file.write(_create, bucket, key, value, now, expires_at=expiry(now, ttl_s))

    async def update(
        self, bucket: str, key: str, value: bytes, revision: int, now: float, *, ttl_s: float | None = None
    ) -> int:
        return await self._file.write(
            _update, bucket, key, value, now, revision=revision, expires_at=expiry(now, ttl_s)
        )

    async def delete(self, bucket: str, key: str) -> bool:
        return await self._file.write(_delete, bucket, key)


class SqliteStreams:
    def __init__(self, file: _StoreFile) -> None:
        self._file = file

    async def append(self, stream: str, records: Sequence[bytes]) -> int:
        return await self._file.write(_append, stream, records)

    async def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[Record]:
        return await self._file.read(_read, stream, int64(after), int64(limit))

    async def last(self, stream: str) -> int:
        return await self._file.read(_last, stream)

    async def trim(self, stream: str, upto: int) -> None:
        await self._file.write(_trim, stream, int64(upto))


def get_entry(db: sqlite3.Connection, bucket: str, key: str, now: float) -> Entry | None:
    row = db.execute(
        "SELECT key, value, revision, expires_at FROM kv"
        " WHERE bucket = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?)",
        (bucket, key, now),
    ).fetchone()
    return None if row is None else Entry(*row)


def put_value(db: sqlite3.Connection, bucket: str, key: str, value: bytes, expires_at: float | None = None) -> int:
    db.execute("UPDATE revision SET last = last + 1")
    (revision,) = db.execute("SELECT last FROM revision").fetchone()
    db.execute(
        "INSERT INTO kv (bucket, key, value, revision, expires_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (bucket, key) DO UPDATE"
        " SET value = excluded.value, revision = excluded.revision, expires_at = excluded.expires_at",
        (bucket, key, value, revision, expires_at),
    )
    return int(revision)


def _entries(db: sqlite3.Connection, bucket: str, now: float) -> list[Entry]:
    rows = db.execute(
        "SELECT key, value, revision, expires_at FROM kv"
        " WHERE bucket = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key",
        (bucket, now),
    )
    return [Entry(*row) for row in rows]


def _put(db: sqlite3.Connection, bucket: str, key: str, value: bytes, now: float, *, expires_at: float | None) -> int:
    _purge(db, now)
    return put_value(db, bucket, key, value, expires_at)


def _create(
    db: sqlite3.Connection, bucket: str, key: str, value: bytes, now: float, *, expires_at: float | None
) -> int:
    if get_entry(db, bucket, key, now) is not None:
        raise Conflict(f"{bucket}/{key} exists")
    return _put(db, bucket, key, value, now, expires_at=expires_at)


def _update(
    db: sqlite3.Connection, bucket: str, key: str, value: bytes, now: float, *, revision: int, expires_at: float | None
) -> int:
    current = get_entry(db, bucket, key, now)
    if current is None:
        raise Conflict(f"{bucket}/{key} is gone")
    if current.revision != revision:
        raise Conflict(f"{bucket}/{key} has revision {current.revision}, not {revision}")
    return _put(db, bucket, key, value, now, expires_at=expires_at)


def _delete(db: sqlite3.Connection, bucket: str, key: str) -> bool:
    return db.execute("DELETE FROM kv WHERE bucket = ? AND key = ?", (bucket, key)).rowcount > 0


def _purge(db: sqlite3.Connection, now: float) -> None:
    db.execute(
        "DELETE FROM kv WHERE rowid IN (SELECT rowid FROM kv WHERE expires_at <= ? LIMIT ?)",
        (now, PURGED_PER_WRITE_MAX),
    )


def _append(db: sqlite3.Connection, stream: str, records: Sequence[bytes]) -> int:
    last = _last(db, stream)
    db.executemany(
        "INSERT INTO stream (stream, sequence, data) VALUES (?, ?, ?)",
        ((stream, sequence, data) for sequence, data in enumerate(records, last + 1)),
    )
    return last + len(records)


def _read(db: sqlite3.Connection, stream: str, after: int, limit: int) -> list[Record]:
    rows = db.execute(
        "SELECT sequence, data FROM stream WHERE stream = ? AND sequence > ? ORDER BY sequence LIMIT ?",
        (stream, after, limit),
    )
    return [Record(*row) for row in rows]


def _last(db: sqlite3.Connection, stream: str) -> int:
    (last,) = db.execute("SELECT max(sequence) FROM stream WHERE stream = ?", (stream,)).fetchone()
    return int(last or 0)


def _trim(db: sqlite3.Connection, stream: str, upto: int) -> None:
    db.execute("DELETE FROM stream WHERE stream = ? AND sequence <= ?", (stream, min(upto, _last(db, stream) - 1)))
