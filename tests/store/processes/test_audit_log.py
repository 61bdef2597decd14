"""What every audit log must do, whichever backend keeps it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.core.store_backends import BACKENDS, build_audit, build_audit_reader
from interlock.store.audit_chain import GENESIS, ORIGIN, Verdict, link
from interlock.store.ports import StoreError, Unavailable
from interlock.store.sqlite.audit import SqliteAudit


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def audit(backend: str, tmp_path: Path) -> AsyncIterator[SqliteAudit]:
    audit = build_audit(backend, tmp_path)
    await audit.open()
    yield audit
    await audit.close()


async def test_a_new_log_is_empty_and_intact(audit: SqliteAudit) -> None:
    assert await audit.last() == 0
    assert await audit.read() == []
    assert await audit.verify() == Verdict(records=0, last=ORIGIN)


async def test_records_come_back_in_order_with_their_chain(audit: SqliteAudit) -> None:
    assert await audit.append([b"one", b"\x00\xff"]) == 2
    assert await audit.append([b""]) == 3
    records = await audit.read()
    assert [(record.sequence, record.data) for record in records] == [(1, b"one"), (2, b"\x00\xff"), (3, b"")]
    previous = GENESIS
    for record in records:
        previous = link(previous, record.sequence, record.data)
        assert record.hash == previous
    verdict = await audit.verify()
    assert (verdict.intact, verdict.records, verdict.last.hash) == (True, 3, previous)


async def test_appending_nothing_changes_nothing(audit: SqliteAudit) -> None:
    assert await audit.append([]) == 0
    await audit.append([b"x"])
    assert await audit.append([]) == 1
    assert (await audit.verify()).records == 1


@pytest.mark.parametrize("count", [1, 24, 25, 26, 249, 250, 251, 275, 526, 1000])
async def test_a_batch_of_any_size_is_kept_whole(audit: SqliteAudit, count: int) -> None:
    await audit.append([b"first"])
    assert await audit.append([str(number).encode() for number in range(count)]) == count + 1
    assert [record.data for record in await audit.read(after=1)] == [str(number).encode() for number in range(count)]
    assert (await audit.verify()).records == count + 1


async def test_a_log_is_read_in_pages(audit: SqliteAudit) -> None:
    await audit.append([bytes([number]) for number in range(10)])
    assert [record.sequence for record in await audit.read(after=3, limit=2)] == [4, 5]
    assert await audit.read(after=10) == []


@pytest.mark.parametrize(
    ("after", "limit", "count"), [(-5, 10, 3), (2**70, 10, 0), (0, -1, 0), (0, 0, 0), (0, 2**70, 3)]
)
async def test_odd_bounds_are_clamped(audit: SqliteAudit, after: int, limit: int, count: int) -> None:
    await audit.append([b"a", b"b", b"c"])
    assert len(await audit.read(after=after, limit=limit)) == count


async def test_a_log_goes_on_after_closing_and_opening(backend: str, tmp_path: Path) -> None:
    for expected in (2, 4, 6):
        audit = build_audit(backend, tmp_path)
        await audit.open()
        assert await audit.append([b"a", b"b"]) == expected
        assert (await audit.verify()).records == expected
        await audit.close()


async def test_parallel_appends_keep_one_chain(backend: str, audit: SqliteAudit, tmp_path: Path) -> None:
    second = build_audit(backend, tmp_path)
    await second.open()
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task((audit, second)[number % 2].append([f"{number}.{part}".encode() for part in range(3)]))
    assert (await second.verify()).records == 60
    records = await audit.read()
    for first in range(0, 60, 3):
        number = records[first].data.split(b".")[0]
        assert [record.data for record in records[first : first + 3]] == [
            b"%b.%d" % (number, part) for part in range(3)
        ]
    await second.close()


async def test_verification_reports_its_progress_and_lets_appends_in(audit: SqliteAudit) -> None:
    await audit.append([b"x" * 50] * 10_000)
    changes: list[int] = []
    async with asyncio.TaskGroup() as tasks:
        verifying = tasks.create_task(audit.verify(changes.append))
        appending = tasks.create_task(audit.append([b"meanwhile"]))
        await appending
        assert not verifying.done()
    assert verifying.result().intact
    assert verifying.result().records >= 10_000
    assert changes == sorted(set(changes))
    assert len(changes) > 1
    assert changes[-1] == verifying.result().records


async def test_a_log_that_is_not_open_is_unavailable(backend: str, tmp_path: Path) -> None:
    audit = build_audit(backend, tmp_path)
    await audit.close()
    with pytest.raises(Unavailable, match=r"audit\.db is not open"):
        await audit.append([b"x"])
    await audit.open()
    await audit.close()
    await audit.close()
    for call in (audit.append([b"x"]), audit.read(), audit.last(), audit.verify()):
        with pytest.raises(Unavailable, match=r"audit\.db is not open"):
            await call


async def test_a_reader_sees_what_is_written_while_it_looks(audit: SqliteAudit, backend: str, tmp_path: Path) -> None:
    await audit.append([b"one"])
    reader = build_audit_reader(backend, tmp_path)
    await reader.open()
    try:
        assert [record.data for record in await reader.read()] == [b"one"]
        await audit.append([b"two", b"three"])
        assert await reader.last() == 3
        assert [record.sequence for record in await reader.read(after=1, limit=1)] == [2]
        assert await reader.verify() == await audit.verify()
    finally:
        await reader.close()
    assert not hasattr(reader, "append")


async def test_a_reader_makes_no_log(backend: str, tmp_path: Path) -> None:
    reader = build_audit_reader(backend, tmp_path / "data")
    with pytest.raises(StoreError, match="is not there"):
        await reader.open()
    await reader.close()
    assert list(tmp_path.iterdir()) == []
