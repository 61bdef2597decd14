"""The audit log on SQLite against people with a text editor, other processes and sudden death."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from interlock.store.audit_chain import ORIGIN, ChainedRecord, Flaw, Mark, Verdict
from interlock.store.ports import Damaged, StoreError, StoreRefused, Unavailable
from interlock.store.sqlite.audit import (
    AUDIT_FILE,
    HEAD_BUCKET,
    HEAD_KEY,
    RUN_RECORDS_MAX,
    START_KEY,
    SqliteAudit,
    SqliteAuditReader,
)
from interlock.store.sqlite.store import SqliteStore

RECORDS = [b'{"tool":"a.b"}', b'{"tool":"c.d"}', b'{"tool":"e.f"}', b'{"tool":"g.h"}', b'{"tool":"i.j"}']


async def appended(data: Path, records: list[bytes]) -> None:
    audit = SqliteAudit(data)
    await audit.open()
    await audit.append(records)
    await audit.close()


async def verdict_on(data: Path) -> Verdict:
    audit = SqliteAudit(data)
    try:
        await audit.open()
        return await audit.verify()
    finally:
        await audit.close()


async def found(data: Path) -> tuple[int, Flaw] | None:
    broken = (await verdict_on(data)).broken
    return None if broken is None else (broken.sequence, broken.flaw)


def tamper(data: Path, *statements: str) -> None:
    db = sqlite3.connect(data / "audit" / "audit.db")
    with db:
        for statement in statements:
            assert db.execute(statement).rowcount != 0
    db.close()


async def kept_mark(data: Path, key: str) -> Mark:
    store = SqliteStore(data)
    await store.open()
    entry = await store.kv.get(HEAD_BUCKET, key, 0)
    await store.close()
    assert entry is not None
    return msgspec.json.decode(entry.value, type=Mark)


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[Path]:
    """A log with a row for each record."""
    for record in RECORDS:
        await appended(tmp_path, [record])
    yield tmp_path


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Path]:
    """A log with one row for all records."""
    await appended(tmp_path, RECORDS)
    yield tmp_path


async def test_the_head_is_kept_beside_the_log(data: Path) -> None:
    assert await kept_mark(data, HEAD_KEY) == (await verdict_on(data)).last
    await appended(data, [b"one more"])
    assert (await kept_mark(data, HEAD_KEY)).sequence == 6


async def test_an_empty_log_has_a_head_before_its_first_record(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.open()
    await audit.close()
    assert await kept_mark(tmp_path, HEAD_KEY) == ORIGIN


@pytest.mark.parametrize(
    ("statement", "sequence", "flaw"),
    [
        ("UPDATE record SET data = x'00' WHERE seq = 3", 3, Flaw.CHANGED),
        ("UPDATE record SET data = 'text' WHERE seq = 3", 3, Flaw.CHANGED),
        ("UPDATE record SET data = 7 WHERE seq = 5", 5, Flaw.CHANGED),
        ("UPDATE record SET hash = zeroblob(32) WHERE seq = 2", 2, Flaw.WRONG_HASH),
        ("UPDATE record SET hash = 'x' WHERE seq = 5", 5, Flaw.WRONG_HASH),
        ("DELETE FROM record WHERE seq = 1", 1, Flaw.START_REMOVED),
        ("DELETE FROM record WHERE seq = 3", 3, Flaw.REMOVED),
        ("DELETE FROM record WHERE seq = 5", 5, Flaw.TAIL_REMOVED),
        ("DELETE FROM record WHERE seq > 2", 3, Flaw.TAIL_REMOVED),
        ("DELETE FROM record", 1, Flaw.TAIL_REMOVED),
        ("UPDATE record SET seq = seq + 10 WHERE seq = 5", 5, Flaw.REMOVED),
        ("INSERT INTO record SELECT 0, data, hash FROM record WHERE seq = 1", 1, Flaw.REORDERED),
        ("INSERT INTO record SELECT -7, data, hash FROM record WHERE seq = 1", 1, Flaw.REORDERED),
        ("INSERT INTO record SELECT 6, data, hash FROM record WHERE seq = 5", 6, Flaw.CHANGED),
    ],
)
async def test_tampering_with_the_log_is_found(data: Path, statement: str, sequence: int, flaw: Flaw) -> None:
    tamper(data, statement)
    assert await found(data) == (sequence, flaw)


@pytest.mark.parametrize(
    ("statement", "sequence", "flaw"),
    [
        ("UPDATE record SET data = replace(data, 'e.f', 'e.x')", 3, Flaw.CHANGED),
        ("UPDATE record SET data = CAST(replace(CAST(data AS TEXT), char(10), ' ') AS BLOB)", 1, Flaw.CHANGED),
        ("UPDATE record SET data = CAST(CAST(data AS TEXT) || char(10) || '{}' AS BLOB)", 1, Flaw.CHANGED),
        ("UPDATE record SET hash = substr(hash, 1, 64) || zeroblob(32) || substr(hash, 97)", 3, Flaw.WRONG_HASH),
        ("UPDATE record SET hash = substr(hash, 1, 159)", 1, Flaw.CHANGED),
        ("UPDATE record SET seq = 2", 1, Flaw.START_REMOVED),
        ("DELETE FROM record", 1, Flaw.TAIL_REMOVED),
    ],
)
async def test_tampering_with_a_run_of_records_is_found(run: Path, statement: str, sequence: int, flaw: Flaw) -> None:
    tamper(run, statement)
    assert await found(run) == (sequence, flaw)


async def test_records_of_a_run_are_read_one_by_one_from_any_place(run: Path) -> None:
    await appended(run, [b"two\nlines", b"six"])
    audit = SqliteAudit(run)
    await audit.open()
    try:
        everything = [*RECORDS, b"two\nlines", b"six"]
        for after in range(9):
            for limit in (1, 2, 100):
                read = [(record.sequence, record.data) for record in await audit.read(after, limit)]
                assert read == list(enumerate(everything, 1))[after : after + limit]
    finally:
        await audit.close()
    assert (await verdict_on(run)).records == 7


async def test_more_records_than_a_row_takes_are_kept_in_order(tmp_path: Path) -> None:
    records = [b"%d" % n for n in range(2 * RUN_RECORDS_MAX + 3)]
    await appended(tmp_path, records)
    audit = SqliteAudit(tmp_path)
    await audit.open()
    assert [record.data for record in await audit.read(0, 10_000)] == records
    await audit.close()


async def test_swapped_records_are_found(data: Path) -> None:
    tamper(
        data,
        "UPDATE record SET seq = 100 WHERE seq = 2",
        "UPDATE record SET seq = 2 WHERE seq = 3",
        "UPDATE record SET seq = 3 WHERE seq = 100",
    )
    assert await found(data) == (2, Flaw.REORDERED)


async def test_a_removed_tail_stays_visible_after_more_was_appended(data: Path) -> None:
    tamper(data, "DELETE FROM record WHERE seq > 3")
    await appended(data, [b"after", b"after"])
    assert await found(data) == (4, Flaw.REMOVED)
    audit = SqliteAudit(data)
    await audit.open()
    assert [record.sequence for record in await audit.read()] == [1, 2, 3, 6, 7]
    await audit.close()


async def test_a_changed_last_hash_stays_visible_after_more_was_appended(data: Path) -> None:
    tamper(data, "UPDATE record SET hash = zeroblob(32) WHERE seq = 5")
    await appended(data, [b"after"])
    assert await found(data) == (5, Flaw.WRONG_HASH)


async def test_a_deleted_log_file_is_found(data: Path) -> None:
    shutil.rmtree(data / "audit")
    assert await found(data) == (1, Flaw.TAIL_REMOVED)
    await appended(data, [b"after"])
    assert await found(data) == (1, Flaw.START_REMOVED)


async def test_a_log_put_back_to_an_older_state_is_found(data: Path) -> None:
    shutil.copytree(data / "audit", data / "older")
    await appended(data, [b"embarrassing"])
    shutil.rmtree(data / "audit")
    (data / "older").rename(data / "audit")
    assert await found(data) == (6, Flaw.TAIL_REMOVED)


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"sequence":-1}', b"\xff"])
async def test_a_head_that_is_missing_or_unreadable_is_found(data: Path, value: bytes | None) -> None:
    store = SqliteStore(data)
    await store.open()
    if value is None:
        await store.kv.delete(HEAD_BUCKET, HEAD_KEY)
    else:
        await store.kv.put(HEAD_BUCKET, HEAD_KEY, value, 0)
    await store.close()
    assert await found(data) == (5, Flaw.HEAD_MISSING)


async def test_a_start_given_up_with_its_mark_leaves_the_rest_provable(data: Path) -> None:
    audit, store = SqliteAudit(data), SqliteStore(data)
    await audit.open()
    await store.open()
    given_up = (await audit.read())[1]
    mark = Mark(given_up.sequence, given_up.hash)
    await store.kv.put(HEAD_BUCKET, START_KEY, msgspec.json.encode(mark), 0)
    await audit.close()
    await store.close()
    tamper(data, "DELETE FROM record WHERE seq <= 2")
    verdict = await verdict_on(data)
    assert (verdict.intact, verdict.records, verdict.last.sequence) == (True, 3, 5)
    tamper(data, "DELETE FROM record WHERE seq = 3")
    assert await found(data) == (3, Flaw.START_REMOVED)


async def test_any_changed_byte_of_the_file_is_found_or_changes_no_record(data: Path) -> None:
    file = data / "audit" / "audit.db"
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("PRAGMA journal_mode=DELETE")
    db.execute("PRAGMA page_size=512")
    db.execute("VACUUM")
    db.close()
    whole = file.read_bytes()
    audit = SqliteAudit(data)
    await audit.open()
    true_records = await audit.read()
    await audit.close()

    async def what_is_seen() -> tuple[bool, list[ChainedRecord]]:
        audit = SqliteAudit(data)
        try:
            await audit.open()
            return (await audit.verify()).intact, await audit.read()
        finally:
            await audit.close()

    found_out = 0
    for position in range(len(whole)):
        for leftover in file.parent.glob("audit.db-*"):
            leftover.unlink()
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x11]) + whole[position + 1 :])
        try:
            intact, records = await what_is_seen()
        except StoreError:
            found_out += 1
            continue
        assert not intact or records == true_records, f"byte {position}"
        found_out += not intact
    assert found_out > sum(len(record.data) + len(record.hash) for record in true_records)


async def test_a_damaged_log_or_store_is_named_with_its_file(data: Path) -> None:
    log = data / "audit" / "audit.db"
    whole = log.read_bytes()
    log.write_bytes(b"x" * 10_000)
    with pytest.raises(Damaged, match=r"audit\.db is damaged"):
        await verdict_on(data)
    log.write_bytes(whole)
    (data / "store.db").write_bytes(b"x" * 10_000)
    with pytest.raises(StoreRefused, match=r"store\.db is damaged"):
        await verdict_on(data)


@pytest.mark.parametrize("file", ["store.db", "audit/audit.db"])
async def test_an_append_while_a_file_is_locked_is_unavailable_with_nothing_done(data: Path, file: str) -> None:
    audit = SqliteAudit(data, busy_timeout_s=0.05)
    await audit.open()
    other = sqlite3.connect(data / file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match=Path(file).name):
        await audit.append([b"x"])
    assert await audit.last() == 5
    other.execute("ROLLBACK")
    other.close()
    assert await audit.append([b"x"]) == 6
    assert (await audit.verify()).intact
    await audit.close()


APPENDING = """
import asyncio, sys
from pathlib import Path
from interlock.store.sqlite.audit import SqliteAudit

async def main():
    audit = SqliteAudit(Path(sys.argv[1]))
    await audit.open()
    for batch in range(int(sys.argv[3])):
        last = await audit.append([f"{sys.argv[2]}.{batch}.{part} {'x' * 200}".encode() for part in range(7)])
        print(last, flush=True)
    await audit.close()
asyncio.run(main())
"""


def start_appending(data: Path, name: str, batches: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPENDING, str(data), name, str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_two_processes_appending_to_one_log_keep_one_chain(tmp_path: Path) -> None:
    children = [start_appending(tmp_path, name, 60) for name in "ab"]
    for child in children:
        await asyncio.to_thread(child.communicate, timeout=50)
        assert child.returncode == 0
    verdict = await verdict_on(tmp_path)
    assert (verdict.broken, verdict.records) == (None, 2 * 60 * 7)
    audit = SqliteAudit(tmp_path)
    await audit.open()
    names = [record.data.split(b" ")[0].decode() for record in await audit.read()]
    await audit.close()
    for child in "ab":
        mine = [name for name in names if name.startswith(child)]
        assert mine == [f"{child}.{batch}.{part}" for batch in range(60) for part in range(7)]


@pytest.mark.parametrize("appends", [0, 1, 3, 10, 40])
async def test_a_process_killed_while_appending_leaves_a_valid_chain_with_every_accepted_record(
    tmp_path: Path, appends: int
) -> None:
    with start_appending(tmp_path, "victim", 1_000_000) as child:
        assert child.stdout is not None
        for _ in range(appends):
            child.stdout.readline()
        child.kill()
        entries = [int(line) for line in child.stdout.read().split()]
    last_told = max(entries, default=7 * appends)
    verdict = await verdict_on(tmp_path)
    assert verdict.broken is None
    assert verdict.records >= last_told
    assert verdict.records % 7 == 0, "a batch is kept whole or not at all"
    await appended(tmp_path, [b"the next process"])
    assert (await verdict_on(tmp_path)).records == verdict.records + 1


async def test_a_reader_changes_no_byte_and_makes_no_head(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.open()
    await audit.append([b"one"])
    await audit.close()
    (tmp_path / "store.db").unlink()
    before = (tmp_path / AUDIT_FILE).read_bytes()
    reader = SqliteAuditReader(tmp_path)
    await reader.open()
    verdict = await reader.verify()
    await reader.close()
    assert verdict.broken is not None
    assert verdict.broken.flaw is Flaw.HEAD_MISSING
    assert (tmp_path / AUDIT_FILE).read_bytes() == before
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize("content", [b"", b"no database", b"no database" * 1000])
async def test_a_reader_refuses_a_file_that_is_no_log(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / AUDIT_FILE).write_bytes(content)
    reader = SqliteAuditReader(tmp_path)
    with pytest.raises(StoreRefused):
        await reader.open()
    await reader.close()
    assert (tmp_path / AUDIT_FILE).read_bytes() == content


@pytest.mark.parametrize("upto", [0, 1, 2, 255, 256, 257, 700, 10_000])
async def test_records_given_up_leave_a_log_that_is_provable_and_goes_on(tmp_path: Path, upto: int) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.open()
    for batch in range(4):
        await audit.append([b"%d/%d" % (batch, n) for n in range(300)])
    before = await audit.read(0, 2000)
    removed = await audit.give_up(upto)
    assert removed <= upto and removed < len(before)
    assert upto - removed < 256 or upto >= len(before)
    assert await audit.read(0, 2000) == before[removed:]
    assert (await audit.append([b"later"])) == 1201
    verdict = await audit.verify()
    assert (verdict.intact, verdict.start.sequence, verdict.last.sequence) == (True, removed, 1201)
    assert await audit.give_up(removed) == 0
    await audit.close()


async def test_a_retention_that_was_interrupted_leaves_nothing_to_complain_about(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.open()
    for batch in range(3):
        await audit.append([b"%d" % batch])
    rows = await audit.read()
    assert await audit.give_up(1) == 1
    await audit.close()
    left = rows[0]
    db = sqlite3.connect(tmp_path / "audit" / "audit.db", isolation_level=None)
    db.execute("INSERT INTO record (seq, data, hash) VALUES (?, ?, ?)", (left.sequence, left.data, left.hash))
    db.close()
    verdict = await verdict_on(tmp_path)
    assert (verdict.intact, verdict.records, verdict.start.sequence) == (True, 2, 1)
    audit = SqliteAudit(tmp_path)
    await audit.open()
    assert await audit.give_up(2) == 1
    assert [record.sequence for record in await audit.read()] == [3]
    await audit.close()
