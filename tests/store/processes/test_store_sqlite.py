"""What is particular to the store on SQLite: its files, its refusals, and other processes."""

import asyncio
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.store.ports import Damaged, FolderUnusable, NewerSchema, StoreRefused, Unavailable
from interlock.store.sqlite.audit import SqliteAudit
from interlock.store.sqlite.store import PURGED_PER_WRITE_MAX, STORE_SCHEMA, Schema, SqliteStore, open_database

NOW = 1_700_000_000.0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def open_and_close(data: Path) -> None:
    store = SqliteStore(data)
    try:
        await store.open()
    finally:
        await store.close()


async def test_the_data_folder_and_its_files_are_for_their_owner_only(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    store, audit = SqliteStore(data), SqliteAudit(data)
    await store.open()
    await audit.open()
    await store.kv.put("b", "k", b"", NOW)
    await audit.append([b"x"])
    files = [path for path in data.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"store.db", "store.db-wal", "audit.db", "audit.db-wal"}
    assert {mode(path) for path in files} == {0o600}
    assert mode(data) == mode(data / "audit") == 0o700
    await audit.close()
    await store.close()


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    await open_and_close(tmp_path)
    (tmp_path / "store.db").chmod(0o644)
    await open_and_close(tmp_path)
    assert mode(tmp_path / "store.db") == 0o600


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to have a header" * 100, b"x", b"\x00" * 5000]
)
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.db").write_bytes(content)
    with pytest.raises(Damaged, match=r"store\.db is damaged .* move the file aside"):
        await open_and_close(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == content


async def test_a_truncated_database_is_refused(tmp_path: Path) -> None:
    await open_and_close(tmp_path)
    file = tmp_path / "store.db"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(Damaged, match="is damaged or not an Interlock file"):
        await open_and_close(tmp_path)


async def test_a_database_that_lost_a_table_is_damaged(tmp_path: Path) -> None:
    await open_and_close(tmp_path)
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute("DROP TABLE kv")
    db.close()
    store = SqliteStore(tmp_path)
    await store.open()
    with pytest.raises(Damaged, match="no such table"):
        await store.kv.get("b", "k", NOW)
    assert await store.streams.append("s", [b"still works"]) == 1
    await store.close()


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = (tmp_path / "store.db").read_bytes()
    with pytest.raises(Damaged, match="another program"):
        await open_and_close(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == before


async def test_a_database_of_a_newer_interlock_is_refused_and_left_alone(tmp_path: Path) -> None:
    await open_and_close(tmp_path)
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute(f"PRAGMA user_version={STORE_SCHEMA.version + 1}")
    db.close()
    before = (tmp_path / "store.db").read_bytes()
    for closed_after in (SqliteStore(tmp_path), SqliteAudit(tmp_path)):
        with pytest.raises(NewerSchema, match="Update Interlock"):
            await closed_after.open()
        await closed_after.close()
    assert (tmp_path / "store.db").read_bytes() == before


def test_an_older_database_is_migrated_and_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    first = Schema(application_id=7, migrations=(("CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"),))
    second = Schema(application_id=7, migrations=(*first.migrations, ("ALTER TABLE t ADD COLUMN b DEFAULT 2",)))
    open_database(path, first, "FULL").close()
    for _ in range(2):
        db = open_database(path, second, "FULL")
        assert db.execute("SELECT a, b FROM t").fetchall() == [(1, 2)]
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        db.close()
    with pytest.raises(NewerSchema, match="was written by a newer Interlock"):
        open_database(path, first, "FULL")


def test_a_migration_that_fails_leaves_the_old_version(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    first = Schema(application_id=7, migrations=(("CREATE TABLE t (a)",),))
    broken = Schema(application_id=7, migrations=(*first.migrations, ("CREATE TABLE u (a)", "CREATE TABLE t (a)")))
    open_database(path, first, "FULL").close()
    with pytest.raises(StoreRefused, match="is damaged or not an Interlock file"):
        open_database(path, broken, "FULL")
    db = open_database(path, first, "FULL")
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]
    db.close()


async def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(FolderUnusable, match="choose another with `data`"):
        await open_and_close(tmp_path / "data")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# Permissions do not bind root, hence the child is somebody else.
AS_A_USER_WITHOUT_RIGHTS = """
import asyncio, os, sys
from pathlib import Path
import interlock.store.sqlite.audit
from interlock.store.ports import FolderUnusable
from interlock.store.sqlite.store import SqliteStore
data = Path(sys.argv[1])
data.chmod(0o555)
if os.geteuid() == 0:
    os.setuid(65534)
async def main():
    store = SqliteStore(data)
    try:
        await store.open()
    except FolderUnusable as error:
        print(error)
    await store.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("exists_already", [False, True])
def test_a_folder_that_may_not_be_written_is_refused(open_folder: Path, exists_already: bool) -> None:
    if exists_already:
        asyncio.run(open_and_close(open_folder))
    child = subprocess.run(
        [sys.executable, "-c", AS_A_USER_WITHOUT_RIGHTS, str(open_folder)], capture_output=True, text=True, check=False
    )
    open_folder.chmod(0o755)
    assert child.stderr == ""
    assert "choose another with `data`" in child.stdout


WITH_A_SMALL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from interlock.store.ports import Unavailable
from interlock.store.sqlite.store import SqliteStore
from interlock.store.sqlite.audit import SqliteAudit

async def main():
    store, audit = SqliteStore(Path(sys.argv[1])), SqliteAudit(Path(sys.argv[1]))
    await store.open()
    await audit.open()
    await store.kv.put("b", "k", b"before", 0)
    await audit.append([b"before"])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    for write in (store.kv.put("b", "k", bytes(1_000_000), 0), audit.append([bytes(1_000_000)])):
        try:
            await write
        except Unavailable as error:
            print("unavailable")
    entry = await store.kv.get("b", "k", 0)
    print(entry.value.decode(), await audit.last())
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.kv.put("b", "k", b"after", 0)
    print(await audit.append([b"after"]), (await audit.verify()).intact)
    await audit.close()
    await store.close()
asyncio.run(main())
"""


def test_a_full_disk_makes_the_store_unavailable_with_nothing_done_until_there_is_room(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", WITH_A_SMALL_DISK, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert child.stderr == ""
    assert child.stdout.split() == ["unavailable", "unavailable", "before", "1", "2", "True"]


async def test_a_store_locked_by_another_process_is_unavailable_until_it_is_free(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, busy_timeout_s=0.05)
    await store.open()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        await store.kv.put("b", "k", b"", NOW)
    assert await store.kv.get("b", "k", NOW) is None
    other.execute("ROLLBACK")
    await store.kv.put("b", "k", b"", NOW)
    other.close()
    await store.close()


async def test_opening_waits_for_a_process_that_reads_a_file_not_yet_in_wal_mode(tmp_path: Path) -> None:
    await open_and_close(tmp_path)
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    assert other.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    other.execute("BEGIN")
    other.execute("SELECT * FROM kv").fetchall()
    impatient = SqliteStore(tmp_path, busy_timeout_s=0.05)
    with pytest.raises(Unavailable, match="locked"):
        await impatient.open()
    await impatient.close()
    opening = asyncio.create_task(open_and_close(tmp_path))
    assert await asyncio.wait({opening}, timeout=0.1) == (set(), {opening})
    other.execute("COMMIT")
    await opening
    other.close()


async def test_expired_entries_are_cleared_away_by_later_writes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    count = PURGED_PER_WRITE_MAX + 1
    await asyncio.gather(*(store.kv.put("b", str(number), b"", NOW, ttl_s=1) for number in range(count)))
    await store.kv.put("b", "kept", b"", NOW, ttl_s=100)
    reader = sqlite3.connect(tmp_path / "store.db")

    def rows() -> int:
        return int(reader.execute("SELECT count(*) FROM kv").fetchone()[0])

    assert rows() == count + 1
    await store.kv.put("b", "new", b"", NOW + 1)
    assert rows() == 3
    await store.kv.put("b", "new", b"", NOW + 1)
    assert rows() == 2
    reader.close()
    await store.close()


async def test_a_new_folder_may_be_opened_many_times_at_once(tmp_path: Path) -> None:
    for number in range(50):
        handles = [part(tmp_path / str(number)) for part in (SqliteStore, SqliteAudit) for _ in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for handle in handles:
                tasks.create_task(handle.open())
        for handle in handles:
            await handle.close()


RACING = """
import asyncio, sys
from pathlib import Path
from interlock.store.ports import Conflict
from interlock.store.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    sys.stdin.readline()
    await store.open()
    for number in range(50):
        try:
            await store.kv.create("race", str(number), sys.argv[2].encode(), 0)
            print(number)
        except Conflict:
            pass
    await store.close()
asyncio.run(main())
"""


def test_processes_that_open_a_new_folder_together_share_it_and_each_key_has_one_creator(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RACING, str(tmp_path / "data"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    created = [line for child in children for line in child.communicate(timeout=50)[0].split()]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert sorted(created, key=int) == [str(number) for number in range(50)]
