"""SQLite files of ours, and the default store: one such file, `store.db`, in the data folder.

A returned write is on disk (WAL, synchronous=FULL). Several processes may use one file: every write holds the write
lock from its first read, so compare-and-swap is exact among them.

Expired entries are never shown, and each write clears some of them away.

The log of the registry of names is another file, `names.db`: rows that only grow, hash-chained. A row says which
surface name it is about, and the table takes no other spelling. The file is made by the first append; before that a
registry has its initial contents alone. An append names the record it follows: of two processes that decided on the
same state, one is told Conflict and decides again.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import msgspec

from interlock.store import ports
from interlock.store.audit_chain import ORIGIN, ChainedRecord, Mark, chain

# Opening a SQLite file of ours, and the one thread that works on it.
#
# In: a path, a schema (an application id and the migrations that lead to the newest version). Out: a connection in WAL
# mode with the schema up to date, or a `StoreRefused` that says what the operator does next. Jobs run one after another
# on one thread, never on the event loop: SQLite blocks on locks and on the disk. Errors of SQLite leave only as members
# of the `StoreError` tree.
#
# Several processes may open one file at the same moment, also a new one. So the version is read in one snapshot,
# migrations read it again under the write lock, and the switch to WAL is tried several times. A file of another
# program, or of a newer Interlock, is refused before anything is written to it.

BUSY_TIMEOUT_S = 5.0  # another process may hold the write lock for the time of an fsync; minutes mean it hangs
_WAL_SWITCH_TRIES = 5
_WAL_SWITCH_PAUSE_S = 0.02
_PAGE_SIZE_MIN = 512  # bytes; no database of SQLite's is smaller
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1  # what SQLite holds

P = ParamSpec("P")
T = TypeVar("T")

# Our SQL is fixed, so an error in it means that a table is not what it was.
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_NO_ENTRY = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}

# POSIX drops all of a process's locks on a file when any descriptor of that file is closed, hence files are made one at
# a time, and an existing one is never opened except by SQLite.
_making = threading.Lock()


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of one type of database file: the application id that marks it, and the migrations to its newest
    version.
    """

    application_id: int  # written into the file's header: tells our files from other people's, and from each other
    migrations: tuple[tuple[str, ...], ...]  # step n leads from version n to n + 1; a released step never changes

    @property
    def version(self) -> int:
        return len(self.migrations)


@dataclass(eq=False)
class SqliteFile:
    """A connection to one SQLite file. It may be used on one thread only."""

    path: Path
    _schema: Schema
    _busy_timeout_s: float
    _synchronous: Literal["FULL", "NORMAL"] = "FULL"
    _db: sqlite3.Connection | None = field(default=None, init=False)

    @property
    def is_open(self) -> bool:
        return self._db is not None

    @property
    def db(self) -> sqlite3.Connection:
        """The open connection. Raise Unavailable if the file is not open."""
        if self._db is None:
            raise ports.Unavailable(f"{self.path.name} is not open")
        return self._db

    def open(self) -> None:
        """Open the file. Create or migrate it if necessary."""
        if self._db is None:
            self._db = open_database(self.path, self._schema, self._synchronous, self._busy_timeout_s)

    def open_for_reading(self) -> None:
        """Open an existing file read-only."""
        if self._db is None:
            self._db = open_for_reading(self.path, self._schema, self._busy_timeout_s)

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


class SqliteJobs:
    """A SQLite file with a thread of its own, on which all work on the file runs.

    A subclass that has further connections opens and closes them in `_open` and `_close`, which run on the thread too.
    """

    def __init__(self, path: Path, schema: Schema, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.file = SqliteFile(path, schema, busy_timeout_s)
        self._pool: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self.file.path.name)
        await self.run(self._open)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await self._run_in(pool, self._close)
        finally:
            pool.shutdown()

    def _open(self) -> None:
        self.file.open()

    def _close(self) -> None:
        self.file.close()

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the thread of the file, and return its result."""
        if self._pool is None:
            raise ports.Unavailable(f"{self.file.path.name} is not open")
        return await self._run_in(self._pool, lambda: job(*args, **kwargs))

    async def _run_in(self, pool: ThreadPoolExecutor, job: Callable[[], T]) -> T:
        with errors_of(self.file.path):
            return await asyncio.get_running_loop().run_in_executor(pool, job)

    async def query(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the thread of the file, with the open connection as its argument, and return its result."""
        return await self.run(lambda: job(self.file.db))

    async def transact(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in a write transaction of the file, and return its result."""

        def transaction() -> T:
            with write_transaction(self.file.db):
                return job(self.file.db)

        return await self.run(transaction)


def int64(number: int) -> int:
    """Clamp a sequence or limit to the range from 0 to the largest integer of SQLite."""
    return min(max(number, 0), INTEGER_MAX)


@contextlib.contextmanager
def write_transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block of this context manager in a transaction. The transaction has the write lock from the start, so no
    other writer can change what the block reads.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def roll_back(db: sqlite3.Connection) -> None:
    """Undo the current transaction of a connection, if there is one."""
    if db.in_transaction:
        with contextlib.suppress(sqlite3.Error):  # the error that brought us here is the one to tell
            db.execute("ROLLBACK")


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Convert SQLite errors in the block of this context manager to subclasses of StoreError. Their messages name the
    file `path`.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # not from SQLite but from Python's module: a mistake of ours
            raise
        code &= 0xFF  # the primary code
        if code in _DAMAGE:
            raise _damage(path, str(error)) from error
        if code in _NO_ENTRY:
            raise ports.FolderUnusable(
                f"{path} cannot be written ({error}). "
                "Give the node's user write access to the folder, or choose another with `data`."
            ) from error
        raise ports.Unavailable(f"{path.name}: {error}") from error


def _damage(path: Path, what: str) -> ports.Damaged:
    """Return the error for a database file that cannot be read. `what` says what is wrong with the file."""
    return ports.Damaged(
        f"{path} is damaged or not an Interlock file ({what}). "
        "Stop the node, move the file aside, and put a backup in its place or start with a new one."
    )


def open_database(
    path: Path, schema: Schema, synchronous: Literal["FULL", "NORMAL"], busy_timeout_s: float = BUSY_TIMEOUT_S
) -> sqlite3.Connection:
    """Open a database file of Interlock for reading and writing. Create or migrate it if necessary. This call
    blocks.
    """
    with errors_of(path):
        with _making:
            _make_private(path)
            db = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
        try:
            db.execute("BEGIN")  # one snapshot: another process may be making the file
            version = _version(db, schema, path)
            db.execute("COMMIT")
            _switch_to_wal(db, path)
            db.execute(f"PRAGMA synchronous={synchronous}")
            db.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, not only unlinked
            if version < schema.version:
                with write_transaction(db):
                    # Asked again under the lock: another process may have migrated in between.
                    for step in schema.migrations[_version(db, schema, path) :]:
                        for statement in step:
                            db.execute(statement)
                    db.execute(f"PRAGMA application_id={schema.application_id}")
                    db.execute(f"PRAGMA user_version={schema.version}")
        except BaseException:
            db.close()
            raise
        return db


def open_for_reading(path: Path, schema: Schema, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open an existing database file of Interlock read-only, without migrating it. This call blocks."""
    if not path.exists():
        raise ports.StoreRefused(f"{path} is not there; a node makes it when it first runs.")
    with errors_of(path):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=busy_timeout_s)
        try:
            db.isolation_level = None
            version = _version(db, schema, path)
        except BaseException:
            db.close()
            raise
    if version < schema.version:
        db.close()
        raise ports.StoreRefused(
            f"{path} was written by an older Interlock; run `interlock serve` once to bring it up to date."
        )
    return db


def _make_private(path: Path) -> None:
    """Create the folder and the file if they are missing, so that only their owner can access them. Restrict an
    existing file to its owner too. Raise FolderUnusable if that fails.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.touch(mode=0o600, exist_ok=False)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)  # SQLite gives its -wal and -shm files the same mode
    except OSError as error:
        raise ports.FolderUnusable(
            f"The folder {path.parent} cannot be used ({error.strerror}). "
            "Make it a folder that the node's user may write, or choose another with `data`."
        ) from error


def _version(db: sqlite3.Connection, schema: Schema, path: Path) -> int:
    """Return the schema version of a database file without changing the file. Raise Damaged if it belongs to another
    program, and NewerSchema if a newer Interlock wrote it.
    """
    if 0 < path.stat().st_size < _PAGE_SIZE_MIN:  # SQLite would take the rest of a file for a new one
        raise _damage(path, "file is too short")
    application_id = int(db.execute("PRAGMA application_id").fetchone()[0])
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    is_new = application_id == 0 and version == 0 and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application_id != schema.application_id and not is_new:
        raise ports.Damaged(
            f"{path} is a database of another program. Move it aside, or choose another folder with `data`."
        )
    if version > schema.version:
        raise ports.NewerSchema(
            f"{path} was written by a newer Interlock (schema {version}; this one knows {schema.version}). "
            "Update Interlock, or choose another folder with `data`."
        )
    return version


def _switch_to_wal(db: sqlite3.Connection, path: Path) -> None:
    """Switch the file to write-ahead logging, so that readers and a writer do not block each other."""
    # When two processes switch the same new file at once, SQLite refuses one of them without waiting.
    for _ in range(_WAL_SWITCH_TRIES):
        try:
            (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(_WAL_SWITCH_PAUSE_S)
            continue
        if mode == "wal":
            return
        raise ports.FolderUnusable(
            f"{path} is on a file system without shared memory (a network share?). "
            "Choose a folder on a local disk with `data`."
        )
    raise ports.Unavailable(f"{path.name} is locked by another process")


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
_READ_BUCKET = "SELECT bucket, key, value FROM kv WHERE bucket = ?"


def read_buckets(folder: Path, *buckets: str) -> dict[tuple[str, str], bytes]:
    """Return the values in some buckets of the store in a folder, by bucket and key, while a node may be running. Only
    for values that do not expire. Raise StoreError if the file cannot be read.
    """
    path = folder / STORE_FILE
    if not path.exists():
        return {}
    db = open_for_reading(path, STORE_SCHEMA)
    try:
        with errors_of(path):
            rows = [row for bucket in buckets for row in db.execute(_READ_BUCKET, (bucket,))]
    finally:
        db.close()
    return {(bucket, key): value for bucket, key, value in rows}


PURGED_PER_WRITE_MAX = 100  # each write adds at most one entry, so this keeps up; the bound keeps every write short


class SqliteStore(SqliteJobs):
    """A store in one SQLite file: key-value entries and append-only streams. Each call runs as one job on the thread
    of that file.
    """

    def __init__(
        self,
        data: Path,
        *,
        file: str = STORE_FILE,
        schema: Schema = STORE_SCHEMA,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        super().__init__(data / file, schema, busy_timeout_s)
        self.kv = self.streams = self
        self.replication = None  # each node has a file of its own

    # Key-value, in the tables `kv` and `revision`, which holds the last revision

    async def get(self, bucket: str, key: str, now: float) -> ports.Entry | None:
        return await self.query(lambda db: get_entry(db, bucket, key, now))

    async def entries(self, bucket: str, now: float) -> list[ports.Entry]:
        def read(db: sqlite3.Connection) -> list[ports.Entry]:
            rows = db.execute(
                "SELECT key, value, revision, expires_at FROM kv"
                " WHERE bucket = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key",
                (bucket, now),
            )
            return [ports.Entry(*row) for row in rows]

        return await self.query(read)

    async def put(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        return await self._write(bucket, key, value, now, ttl_s, None)

    async def create(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        def check(current: ports.Entry | None) -> None:
            if current is not None:
                raise ports.Conflict(f"{bucket}/{key} exists")

        return await self._write(bucket, key, value, now, ttl_s, check)

    async def update(
        self, bucket: str, key: str, value: bytes, revision: int, now: float, *, ttl_s: float | None = None
    ) -> int:
        def check(current: ports.Entry | None) -> None:
            if current is None:
                raise ports.Conflict(f"{bucket}/{key} is gone")
            if current.revision != revision:
                raise ports.Conflict(f"{bucket}/{key} has revision {current.revision}, not {revision}")

        return await self._write(bucket, key, value, now, ttl_s, check)

    async def delete(self, bucket: str, key: str) -> bool:
        return await self.transact(
            lambda db: db.execute("DELETE FROM kv WHERE bucket = ? AND key = ?", (bucket, key)).rowcount > 0
        )

    async def _write(
        self,
        bucket: str,
        key: str,
        value: bytes,
        now: float,
        ttl_s: float | None,
        check: Callable[[ports.Entry | None], None] | None,
    ) -> int:
        """Write a value and return its revision. If `check` is given, it gets the current entry, and raises Conflict to
        prevent the write.
        """
        expires_at = ports.expiry(now, ttl_s)

        def write(db: sqlite3.Connection) -> int:
            if check is not None:
                check(get_entry(db, bucket, key, now))
            db.execute(
                "DELETE FROM kv WHERE rowid IN (SELECT rowid FROM kv WHERE expires_at <= ? LIMIT ?)",
                (now, PURGED_PER_WRITE_MAX),
            )
            return put_value(db, bucket, key, value, expires_at)

        return await self.transact(write)

    # Append-only streams, in the table `stream`

    async def append(self, stream: str, records: Sequence[bytes]) -> int:
        def write(db: sqlite3.Connection) -> int:
            last = _last(db, stream)
            db.executemany(
                "INSERT INTO stream (stream, sequence, data) VALUES (?, ?, ?)",
                ((stream, sequence, data) for sequence, data in enumerate(records, last + 1)),
            )
            return last + len(records)

        return await self.transact(write)

    async def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[ports.Record]:
        def read(db: sqlite3.Connection) -> list[ports.Record]:
            rows = db.execute(
                "SELECT sequence, data FROM stream WHERE stream = ? AND sequence > ? ORDER BY sequence LIMIT ?",
                (stream, int64(after), int64(limit)),
            )
            return [ports.Record(*row) for row in rows]

        return await self.query(read)

    async def last(self, stream: str) -> int:
        return await self.query(lambda db: _last(db, stream))

    async def trim(self, stream: str, upto: int) -> None:
        def write(db: sqlite3.Connection) -> None:
            # The last record stays, so that no sequence is used twice.
            end = min(int64(upto), _last(db, stream) - 1)
            db.execute("DELETE FROM stream WHERE stream = ? AND sequence <= ?", (stream, end))

        await self.transact(write)


def get_entry(db: sqlite3.Connection, bucket: str, key: str, now: float) -> ports.Entry | None:
    """Return the entry of a key, or None if there is none or it has expired."""
    row = db.execute(
        "SELECT key, value, revision, expires_at FROM kv"
        " WHERE bucket = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?)",
        (bucket, key, now),
    ).fetchone()
    return None if row is None else ports.Entry(*row)


def put_value(db: sqlite3.Connection, bucket: str, key: str, value: bytes, expires_at: float | None = None) -> int:
    """Write a value as part of the current transaction of `db`, and return its revision."""
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


class SqliteNamesLog(SqliteJobs):
    """The log of the registry of names in one SQLite file. The first append creates the file."""

    def __init__(self, data: Path) -> None:
        super().__init__(data / NAMES_FILE, NAMES_SCHEMA)

    @property
    def is_begun(self) -> bool:
        """Return whether the file of the log exists. The first append creates the file, even if it fails."""
        return self.file.is_open or self.file.path.exists()

    async def open(self) -> None:
        if self.is_begun:
            await super().open()

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
        return await self.query(
            lambda db: [ChainedRecord(*row) for row in db.execute(f"{_ROWS} WHERE {condition}", values)]
        )

    async def append(self, after: Mark, records: Sequence[ports.NamedRecord]) -> Mark:
        """Append the records after the mark `after`, either all of them or none. Raise Conflict if `after` is not the
        last record of the log, and Unavailable if the table does not accept a record.
        """
        await super().open()
        hashes = chain(after, [record.data for record in records])

        def write(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT sequence, hash FROM record ORDER BY sequence DESC LIMIT 1").fetchone()
            if (ORIGIN if row is None else Mark(*row)) != after:
                raise ports.Conflict("another process has changed the registry")
            rows = [
                (after.sequence + count, record.name, record.data, hash)
                for count, (record, hash) in enumerate(zip(records, hashes, strict=True), 1)
            ]
            try:
                db.executemany("INSERT INTO record (sequence, name, data, hash) VALUES (?, ?, ?, ?)", rows)
            except sqlite3.IntegrityError as refused:
                raise ports.Unavailable(f"{NAMES_FILE} does not take this: {refused}") from refused

        await self.transact(write)
        return Mark(after.sequence + len(records), hashes[-1]) if hashes else after

    def watch(self) -> None:
        """Return None, because SQLite does not report new records. The node finds them when it reads the log again."""
