"""What every store must do, whichever backend serves it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.core.store_backends import BACKENDS, UnknownBackend, build_audit, build_store
from interlock.store.ports import Conflict, Entry, Record, SharedPlace, Store, Unavailable

NOW = 1_700_000_000.0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(backend: str, tmp_path: Path, shared: SharedPlace | None) -> AsyncIterator[Store]:
    store = build_store(backend, tmp_path / "data", shared)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def second(backend: str, store: Store, tmp_path: Path, shared: SharedPlace | None) -> AsyncIterator[Store]:
    """Another handle on the same data, as another process would have."""
    second = build_store(backend, tmp_path / "data", shared)
    await second.open()
    yield second
    await second.close()


async def test_a_stored_value_is_returned_with_its_revision(store: Store) -> None:
    revision = await store.kv.put("b", "k", b"\x00\xff", NOW)
    assert await store.kv.get("b", "k", NOW) == Entry("k", b"\x00\xff", revision)


async def test_a_missing_key_is_none_and_an_empty_value_is_not(store: Store) -> None:
    await store.kv.put("b", "empty", b"", NOW)
    assert await store.kv.get("b", "absent", NOW) is None
    entry = await store.kv.get("b", "empty", NOW)
    assert entry is not None
    assert entry.value == b""


async def test_buckets_do_not_share_keys(store: Store) -> None:
    await store.kv.put("one", "k", b"1", NOW)
    assert await store.kv.get("two", "k", NOW) is None
    assert await store.kv.entries("two", NOW) == []


async def test_entries_are_sorted_by_key(store: Store) -> None:
    for key in ("b", "ä", "a", "B", "a.b", "\U0001f600"):
        await store.kv.put("bucket", key, key.encode(), NOW)
    assert [entry.key for entry in await store.kv.entries("bucket", NOW)] == ["B", "a", "a.b", "b", "ä", "\U0001f600"]


async def test_every_write_has_a_higher_revision_even_after_a_delete(store: Store) -> None:
    first = await store.kv.put("b", "k", b"1", NOW)
    second = await store.kv.put("b", "k", b"1", NOW)
    assert await store.kv.delete("b", "k")
    third = await store.kv.create("b", "k", b"1", NOW)
    fourth = await store.kv.update("b", "k", b"1", third, NOW)
    assert first < second < third < fourth


async def test_create_refuses_a_key_that_lives(store: Store) -> None:
    await store.kv.create("b", "k", b"first", NOW)
    with pytest.raises(Conflict, match="b/k exists"):
        await store.kv.create("b", "k", b"second", NOW)
    entry = await store.kv.get("b", "k", NOW)
    assert entry is not None
    assert entry.value == b"first"


async def test_update_writes_only_over_the_revision_that_was_read(store: Store) -> None:
    old = await store.kv.put("b", "k", b"old", NOW)
    new = await store.kv.update("b", "k", b"new", old, NOW)
    with pytest.raises(Conflict, match="b/k has revision 2, not 1"):
        await store.kv.update("b", "k", b"lost", old, NOW)
    assert await store.kv.get("b", "k", NOW) == Entry("k", b"new", new)


async def test_update_of_a_deleted_key_is_a_conflict(store: Store) -> None:
    revision = await store.kv.put("b", "k", b"", NOW)
    await store.kv.delete("b", "k")
    with pytest.raises(Conflict, match="b/k is gone"):
        await store.kv.update("b", "k", b"", revision, NOW)


async def test_delete_says_whether_there_was_something(store: Store) -> None:
    await store.kv.put("b", "k", b"", NOW)
    assert await store.kv.delete("b", "k") is True
    assert await store.kv.delete("b", "k") is False
    assert await store.kv.get("b", "k", NOW) is None


async def test_an_entry_lives_until_its_time_has_passed(store: Store) -> None:
    revision = await store.kv.put("b", "k", b"v", NOW, ttl_s=10)
    assert await store.kv.get("b", "k", NOW + 9.9) == Entry("k", b"v", revision, NOW + 10)
    assert await store.kv.get("b", "k", NOW + 10) is None
    assert await store.kv.entries("b", NOW + 9.9) != []
    assert await store.kv.entries("b", NOW + 10) == []


async def test_an_expired_entry_can_be_created_but_not_updated(store: Store) -> None:
    revision = await store.kv.put("b", "k", b"old", NOW, ttl_s=10)
    with pytest.raises(Conflict, match="b/k is gone"):
        await store.kv.update("b", "k", b"late", revision, NOW + 10)
    with pytest.raises(Conflict, match="b/k exists"):
        await store.kv.create("b", "k", b"early", NOW + 9)
    assert await store.kv.create("b", "k", b"new", NOW + 10) > revision


async def test_a_write_without_expiry_makes_an_entry_permanent(store: Store) -> None:
    revision = await store.kv.put("b", "k", b"v", NOW, ttl_s=10)
    await store.kv.update("b", "k", b"v", revision, NOW)
    assert await store.kv.get("b", "k", NOW + 1e9) is not None


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
async def test_a_time_to_live_that_is_no_time_is_refused(store: Store, ttl_s: float) -> None:
    with pytest.raises(ValueError, match="positive number of seconds"):
        await store.kv.put("b", "k", b"v", NOW, ttl_s=ttl_s)
    assert await store.kv.get("b", "k", NOW) is None


async def test_keys_may_hold_any_text(store: Store) -> None:
    for key in ("", "a\x00b", "a/b", "'; DROP TABLE kv; --", "é" * 1000):
        await store.kv.put("b", key, key.encode(), NOW)
        entry = await store.kv.get("b", key, NOW)
        assert entry is not None
        assert (entry.key, entry.value) == (key, key.encode())


async def test_of_twenty_parallel_creates_exactly_one_wins(store: Store, second: Store) -> None:
    async def create(number: int) -> bool:
        with contextlib.suppress(Conflict):
            await (store, second)[number % 2].kv.create("b", "k", str(number).encode(), NOW)
            return True
        return False

    won = await asyncio.gather(*(create(number) for number in range(20)))
    assert sum(won) == 1
    entry = await store.kv.get("b", "k", NOW)
    assert entry is not None
    assert entry.value == str(won.index(True)).encode()


async def test_of_twenty_parallel_updates_exactly_one_wins(store: Store, second: Store) -> None:
    revision = await store.kv.put("b", "k", b"", NOW)

    async def update(number: int) -> bool:
        with contextlib.suppress(Conflict):
            await (store, second)[number % 2].kv.update("b", "k", str(number).encode(), revision, NOW)
            return True
        return False

    won = await asyncio.gather(*(update(number) for number in range(20)))
    assert sum(won) == 1
    entry = await store.kv.get("b", "k", NOW)
    assert entry is not None
    assert entry.value == str(won.index(True)).encode()


async def test_a_counter_kept_by_compare_and_swap_loses_no_step(store: Store, second: Store) -> None:
    await store.kv.put("b", "counter", b"0", NOW)

    async def step(mine: Store) -> None:
        while True:
            entry = await mine.kv.get("b", "counter", NOW)
            assert entry is not None
            with contextlib.suppress(Conflict):
                await mine.kv.update("b", "counter", str(int(entry.value) + 1).encode(), entry.revision, NOW)
                return

    await asyncio.gather(*(step(mine) for mine in (store, second) for _ in range(10)))
    entry = await store.kv.get("b", "counter", NOW)
    assert entry is not None
    assert entry.value == b"20"


async def test_a_stream_numbers_its_records_from_one(store: Store) -> None:
    assert await store.streams.last("s") == 0
    assert await store.streams.append("s", [b"a", b"b"]) == 2
    assert await store.streams.append("s", [b""]) == 3
    assert await store.streams.read("s") == [Record(1, b"a"), Record(2, b"b"), Record(3, b"")]
    assert await store.streams.last("s") == 3


async def test_streams_are_apart(store: Store) -> None:
    await store.streams.append("one", [b"a"])
    assert await store.streams.append("two", [b"b"]) == 1
    assert await store.streams.read("one") == [Record(1, b"a")]


async def test_appending_nothing_changes_nothing(store: Store) -> None:
    await store.streams.append("s", [b"a"])
    assert await store.streams.append("s", []) == 1
    assert await store.streams.last("s") == 1


async def test_a_stream_is_read_in_pages(store: Store) -> None:
    await store.streams.append("s", [bytes([number]) for number in range(10)])
    page = await store.streams.read("s", after=3, limit=2)
    assert [record.sequence for record in page] == [4, 5]
    assert await store.streams.read("s", after=10) == []


@pytest.mark.parametrize(
    ("after", "limit", "count"), [(-5, 10, 3), (2**70, 10, 0), (0, -1, 0), (0, 0, 0), (0, 2**70, 3)]
)
async def test_odd_bounds_are_clamped(store: Store, after: int, limit: int, count: int) -> None:
    await store.streams.append("s", [b"a", b"b", b"c"])
    assert len(await store.streams.read("s", after=after, limit=limit)) == count


async def test_parallel_appends_keep_each_batch_together(store: Store, second: Store) -> None:
    async def append(number: int) -> None:
        await (store, second)[number % 2].streams.append("s", [f"{number}.{part}".encode() for part in range(5)])

    await asyncio.gather(*(append(number) for number in range(20)))
    records = await store.streams.read("s")
    assert [record.sequence for record in records] == list(range(1, 101))
    for first in range(0, 100, 5):
        number = records[first].data.split(b".")[0]
        assert [record.data for record in records[first : first + 5]] == [
            b"%b.%d" % (number, part) for part in range(5)
        ]


async def test_written_values_are_there_after_closing_and_opening(
    backend: str, tmp_path: Path, shared: SharedPlace | None
) -> None:
    store = build_store(backend, tmp_path / "data", shared)
    await store.open()
    revision = await store.kv.put("b", "k", b"v", NOW)
    await store.streams.append("s", [b"a"])
    await store.close()
    again = build_store(backend, tmp_path / "data", shared)
    await again.open()
    assert await again.kv.get("b", "k", NOW) == Entry("k", b"v", revision)
    assert await again.kv.put("b", "k", b"v", NOW) > revision
    assert await again.streams.read("s") == [Record(1, b"a")]
    await again.close()


async def test_a_store_that_is_not_open_is_unavailable(
    backend: str, tmp_path: Path, shared: SharedPlace | None
) -> None:
    store = build_store(backend, tmp_path / "data", shared)
    await store.close()
    with pytest.raises(Unavailable, match="is not open"):
        await store.kv.get("b", "k", NOW)
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(Unavailable, match="is not open"):
        await store.kv.put("b", "k", b"", NOW)


async def test_the_event_loop_goes_on_while_the_store_works(store: Store) -> None:
    turns = 0
    writing = asyncio.ensure_future(store.streams.append("s", [b"x" * 100] * 1000))
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)
    assert await writing == 1000
    assert turns > 10


def test_an_unknown_backend_is_named_with_those_that_exist(tmp_path: Path) -> None:
    for build in (build_store, build_audit):
        with pytest.raises(UnknownBackend, match=r"'sqlit'.*sqlite"):
            build("sqlit", tmp_path)
