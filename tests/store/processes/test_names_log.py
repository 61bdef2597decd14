"""What every log of the registry of names must do, whichever backend serves it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from interlock.core.store_backends import BACKENDS, load_class
from interlock.store.audit_chain import ORIGIN, ChainCheck, Mark
from interlock.store.ports import Conflict, NamedRecord, NamesLog, SharedPlace, StoreRefused

BOUND_S = 10.0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def build(backend: str, tmp_path: Path, shared: SharedPlace | None) -> Callable[[], NamesLog]:
    return lambda: load_class(BACKENDS[backend].names_log)(shared or tmp_path)


@pytest.fixture
async def names_log(build: Callable[[], NamesLog]) -> AsyncIterator[NamesLog]:
    built = build()
    await built.open()
    yield built
    await built.close()


@pytest.fixture
async def second(build: Callable[[], NamesLog], names_log: NamesLog) -> AsyncIterator[NamesLog]:
    built = build()
    await built.open()
    yield built
    await built.close()


def record(text: str, name: str = "") -> NamedRecord:
    return NamedRecord(name, text.encode())


async def test_records_are_chained_in_their_order(names_log: NamesLog) -> None:
    assert await names_log.read() == []
    first = await names_log.append(ORIGIN, [record("a", "read_file"), record("b")])
    last = await names_log.append(first, [record("c", "read_file")])
    read = await names_log.read()
    assert [(other_record.sequence, other_record.data) for other_record in read] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert last == Mark(3, read[-1].hash)
    check = ChainCheck(ORIGIN)
    for current_record in read:
        check.add(current_record)
    assert check.finish().broken is None
    assert await names_log.append(last, []) == last


async def test_a_log_is_read_in_pages_and_from_anywhere(names_log: NamesLog) -> None:
    mark = ORIGIN
    for start in range(0, 100, 10):
        mark = await names_log.append(mark, [record(str(start + number)) for number in range(10)])
    for after, limit, expected in (
        (0, 7, range(1, 8)),
        (7, 7, range(8, 15)),
        (3, 50, range(4, 54)),
        (95, 9, range(96, 101)),
    ):
        assert [current_record.sequence for current_record in await names_log.read(after, limit)] == list(expected)
    assert await names_log.read(100) == []
    assert await names_log.read(0, 0) == []


async def test_the_last_records_of_a_name_are_found(names_log: NamesLog) -> None:
    mark = await names_log.append(ORIGIN, [record("1", "read_file"), record("2", "write_file"), record("3")])
    mark = await names_log.append(mark, [record("4", "read_file")])
    await names_log.append(mark, [record("5", "write_file"), record("6", "read_file")])
    assert [entry.sequence for entry in await names_log.read_of("read_file")] == [1, 4, 6]
    assert [entry.sequence for entry in await names_log.read_of("read_file", 2)] == [4, 6]
    assert await names_log.read_of("unknown") == []
    assert await names_log.read_of("") == []


async def test_of_two_who_decided_on_one_state_the_second_decides_again(names_log: NamesLog, second: NamesLog) -> None:
    mark = await names_log.append(ORIGIN, [record("first")])
    with pytest.raises(Conflict):
        await second.append(ORIGIN, [record("second")])
    with pytest.raises(Conflict):
        await second.append(Mark(1, bytes(32)), [record("forged")])
    await second.append(mark, [record("second")])
    assert [current_record.data for current_record in await names_log.read()] == [b"first", b"second"]


async def test_of_many_parallel_appends_none_is_lost_or_doubled(names_log: NamesLog, second: NamesLog) -> None:
    async def add(mine: NamesLog, number: int) -> None:
        while True:
            read = await mine.read()
            mark = Mark(read[-1].sequence, read[-1].hash) if read else ORIGIN
            try:
                await mine.append(mark, [record(f"{number} a"), record(f"{number} b")])
                return
            except Conflict:
                continue

    async with asyncio.timeout(30):
        await asyncio.gather(*(add((names_log, second)[number % 2], number) for number in range(12)))
    read = await names_log.read()
    assert [other_record.sequence for other_record in read] == list(range(1, 25))
    assert len({other_record.data for other_record in read}) == 24
    check = ChainCheck(ORIGIN)
    for current_record in read:
        check.add(current_record)
    assert check.finish().broken is None


async def test_thousands_of_records_are_appended_at_once(names_log: NamesLog, second: NamesLog) -> None:
    mark = await names_log.append(ORIGIN, [record(f"{number:01000}", "many_names") for number in range(5000)])
    assert mark.sequence == 5000
    assert [current_record.sequence for current_record in await second.read()] == list(range(1, 5001))
    assert len(await second.read_of("many_names", 5)) == 5


async def test_a_log_is_there_after_closing_and_opening(build: Callable[[], NamesLog]) -> None:
    log = build()
    await log.open()
    mark = await log.append(ORIGIN, [record("kept", "read_file")])
    await log.close()
    again = build()
    await again.open()
    assert [current_record.data for current_record in await again.read()] == [b"kept"]
    assert (await again.append(mark, [record("more")])).sequence == 2
    await again.close()


async def test_a_replica_notices_that_another_appended(backend: str, names_log: NamesLog, second: NamesLog) -> None:
    watch = second.watch()
    if not BACKENDS[backend].is_shared:
        assert watch is None
        return
    assert watch is not None
    await names_log.append(ORIGIN, [record("news")])
    async with asyncio.timeout(BOUND_S):
        await anext(watch)
    assert [current_record.data for current_record in await second.read()] == [b"news"]
    watch.close()
    assert [entry async for entry in watch] == []


@pytest.mark.parametrize("backend", [name for name, one in BACKENDS.items() if one.is_shared], indirect=True)
async def test_a_record_that_the_server_does_not_take_is_refused_by_name(names_log: NamesLog) -> None:
    with pytest.raises(StoreRefused, match=r"the NATS server accepts \d+\. Increase max_payload"):
        await names_log.append(ORIGIN, [record("small"), NamedRecord("", bytes(1024 * 1024))])
    assert await names_log.read() == []
