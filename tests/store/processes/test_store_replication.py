"""What replicas that share a store hear of each other, on a real server that is killed and stopped meanwhile."""

import asyncio
import contextlib
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from tests.store.nats_server import NatsServer
from tests.support.certificates import Authority

from interlock.core.store_backends import build_store
from interlock.store.nats.connection import ANSWER_S, Connection
from interlock.store.nats.jetstream import Reader
from interlock.store.nats.key_value import _Replaced
from interlock.store.nats.store import NatsStore
from interlock.store.ports import (
    Change,
    Conflict,
    Damaged,
    Entry,
    NatsServers,
    Record,
    SharedPlace,
    StoreRefused,
    Unavailable,
)

NOW = 1_700_000_000.0
BOUND_S = 15.0
RESTARTS = 20


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server for a test that harms it."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def node() -> str:
    return f"replicas {secrets.token_hex(4)}"


@contextlib.asynccontextmanager
async def opened(place: SharedPlace) -> AsyncIterator[NatsStore]:
    store = NatsStore(place)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def delete_stream(server: NatsServer, stream: str) -> None:
    """As somebody else would."""
    connection = Connection(NatsServers(urls=(server.url,)), "somebody else")
    await connection.open()
    await connection.api(f"STREAM.DELETE.{stream}")
    await connection.close()


async def reachable(store: NatsStore, wanted: bool = True) -> None:
    until = time.monotonic() + BOUND_S
    while store.replication.is_reachable != wanted:
        assert time.monotonic() < until, "the connection stays as it is"
        await asyncio.sleep(0.01)


async def test_a_watcher_receives_every_key_that_another_replica_writes(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        await one.kv.put("b", "before", b"", NOW)
        watch = one.replication.watch("b")
        first = await other.kv.put("b", "k", b"1", NOW, ttl_s=10)
        await other.kv.put("elsewhere", "k", b"", NOW)
        async with asyncio.timeout(BOUND_S):
            assert await anext(watch) == Change("k", Entry("k", b"1", first, NOW + 10))
            second = await other.kv.update("b", "k", b"2", first, NOW)
            assert await anext(watch) == Change("k", Entry("k", b"2", second))
            assert await other.kv.delete("b", "k")
            assert await anext(watch) == Change("k", None)
            third = await other.kv.create("b", "k", b"3", NOW)
            assert await anext(watch) == Change("k", Entry("k", b"3", third))
        watch.close()
        assert [change async for change in watch] == []


async def test_a_watcher_does_not_receive_its_own_writes_or_what_they_replaced(
    nats_server: NatsServer, node: str
) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        watch, all_of = one.replication.watch("b"), other.replication.watch("b")
        for number in range(20):
            await other.kv.put("b", "k", b"theirs %d" % number, NOW)
            await one.kv.put("b", "k", b"mine %d" % number, NOW)
            await one.kv.put("b", "mine", b"mine", NOW)
            await one.kv.delete("b", "mine")
        last = await other.kv.put("b", "end", b"", NOW)
        async with asyncio.timeout(BOUND_S):
            assert await anext(watch) == Change("end", Entry("end", b"", last))
            while (
                (change := await anext(all_of)).key != "k" or change.entry is None or change.entry.value != b"mine 19"
            ):
                assert change.entry is None or not change.entry.value.startswith(b"theirs")


async def test_a_watcher_that_listens_all_the_time_receives_none_of_its_own_writes(
    nats_server: NatsServer, node: str
) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        watch, told = one.replication.watch("b"), []

        async def listen() -> None:
            async for change in watch:
                told.append(change.key)
                if change.key == "end":
                    return

        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(listen())
            for number in range(300):
                await one.kv.put("b", f"mine {number % 3}", b"", NOW)
            await other.kv.put("b", "end", b"", NOW)
        assert told == ["end"]


async def test_a_message_of_a_write_under_way_is_held_until_it_is_known_how_that_ended(
    nats_server: NatsServer, node: str
) -> None:
    async with opened(nats_server.place(node)) as store, opened(nats_server.place(node)) as other:
        watch, elsewhere = store.replication.watch("b"), store.replication.watch("other")
        subject = store.kv._names.entry("b", "k")
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        write = asyncio.create_task(store.kv._await_own(subject, ended))
        await asyncio.sleep(0)
        await store.kv._jetstream.publish(store.kv._stream, subject, b"unanswered", {})
        await other.kv.put("other", "later", b"", NOW)
        async with asyncio.timeout(BOUND_S):
            await anext(elsewhere)
        assert not watch._waiting
        ended.set_exception(Unavailable("the answer did not come"))
        with pytest.raises(Unavailable):
            await write
        async with asyncio.timeout(BOUND_S):
            change = await anext(watch)
        assert change.entry is not None
        assert change.entry.value == b"unanswered"


async def test_a_write_that_was_done_although_it_timed_out_is_reported_to_its_writer(
    own_server: NatsServer, node: str
) -> None:
    async with opened(own_server.place(node)) as store:
        watch = store.replication.watch("b")
        await store.kv.get("b", "k", NOW)
        own_server.pause()
        try:
            with pytest.raises(Unavailable):
                await store.kv.create("b", "k", b"late", NOW)
        finally:
            own_server.go_on()
        async with asyncio.timeout(BOUND_S):
            change = await anext(watch)
        assert change.entry is not None
        assert change.entry.value == b"late"


async def test_events_while_a_key_is_written_are_reported_once_its_writer_knows(
    nats_server: NatsServer, node: str
) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        watch = one.replication.watch("b")
        publish, is_stored, may_go_on = one.kv._jetstream.publish, asyncio.Event(), asyncio.Event()

        async def publish_late(*args: Any, **more: Any) -> int:
            sequence = await publish(*args, **more)
            is_stored.set()
            await may_go_on.wait()
            return sequence

        one.kv._jetstream.publish = publish_late  # type: ignore[method-assign]
        async with asyncio.timeout(BOUND_S):
            mine = asyncio.create_task(one.kv.put("b", "k", b"mine", NOW))
            await is_stored.wait()
            later = await other.kv.put("b", "k", b"theirs", NOW)
            await other.kv.put("b", "end", b"", NOW)
            assert (await anext(watch)).key == "end"
            may_go_on.set()
            assert await mine < later
            assert await anext(watch) == Change("k", Entry("k", b"theirs", later))


async def test_messages_of_other_programs_in_the_stream_block_nothing(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        watch, subject = one.replication.watch("b"), f"{other.kv._names.entries}.b"
        send = other._connection.send
        await send(f"{subject}.expires", b"", {"Interlock-Expires": "soon"})
        await send(f"{subject}.parts", b"", {"Interlock-Parts": "many"})
        await send(f"{subject}._sdigest", b"", {})
        await send(f"{subject}._FF", b"", {})
        await other.kv.put("b", "end", b"", NOW)
        async with asyncio.timeout(BOUND_S):
            assert (await anext(watch)).key == "end"
        assert [entry.key for entry in await one.kv.entries("b", NOW)] == ["end"]


async def test_a_secret_that_cannot_be_read_for_a_moment_does_not_end_the_trying(
    own_server: NatsServer, node: str
) -> None:
    failures = 0
    is_broken = asyncio.Event()

    async def secret() -> str | None:
        nonlocal failures
        if is_broken.is_set():
            failures += 1
            is_broken.clear()
            raise OSError("the file is being replaced")
        return None

    servers = NatsServers(urls=(own_server.url,), secret=secret)
    async with opened(SharedPlace(servers=servers, node=node)) as store:
        is_broken.set()
        own_server.kill()
        await reachable(store, False)
        own_server.start()
        await reachable(store)
        assert failures == 1


async def test_a_slow_watcher_receives_the_last_value_of_each_key(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        watch = one.replication.watch("b")
        current_watch = one.replication.watch("b")
        for number in range(50):
            for key in ("x", "y"):
                await other.kv.put("b", key, str(number).encode(), NOW)
        async with asyncio.timeout(BOUND_S):
            async for change in current_watch:
                if change.key == "y" and change.entry is not None and change.entry.value == b"49":
                    break
            assert [(await anext(watch)).entry.value for _ in range(2)] == [b"49", b"49"]  # type: ignore[union-attr]


async def test_followers_get_every_record_once_and_in_order(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        following = one.replication.follow("s", 0)
        await one.streams.append("s", [b"0"])
        assert await other.replication.append_new("s", [("a", b"1"), ("b", b"2")]) == [2, 3]
        assert await one.replication.append_new("s", [("b", b"twice"), ("c", b"3"), ("c", b"twice")]) == [0, 4, 0]
        await other.streams.append("s", [b"4", b"5"])
        async with asyncio.timeout(BOUND_S):
            assert [await anext(following) for _ in range(6)] == [Record(n + 1, b"%d" % n) for n in range(6)]
            late = other.replication.follow("s", 4)
            assert [(await anext(late)).sequence for _ in range(2)] == [5, 6]
        await one.streams.trim("s", 5)
        async with asyncio.timeout(BOUND_S):
            assert await anext(other.replication.follow("s", 0)) == Record(6, b"5")
        assert await one.streams.append("s", [b"6"]) == 7


async def test_a_follower_that_takes_nothing_holds_a_bounded_number_of_records(
    nats_server: NatsServer, node: str
) -> None:
    async with opened(nats_server.place(node)) as store:
        for _ in range(4):
            await store.streams.append("s", [b"x"] * 1000)
        following = store.replication.follow("s", 0)
        async with asyncio.timeout(BOUND_S):
            assert [(await anext(following)).sequence for _ in range(4000)] == list(range(1, 4001))


async def test_a_record_that_is_lost_on_the_way_is_fetched_again(
    nats_server: NatsServer, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, deliver = [], Reader._on_message

    def on_message(self: Reader, message: Msg) -> None:
        if message.data == b"3" and not lost:
            lost.append(message)
        else:
            deliver(self, message)

    monkeypatch.setattr(Reader, "_on_message", on_message)
    async with opened(nats_server.place(node)) as store:
        following = store.replication.follow("s", 0)
        await store.streams.append("s", [b"%d" % number for number in range(10)])
        async with asyncio.timeout(BOUND_S):
            assert [(await anext(following)).data for _ in range(10)] == [b"%d" % number for number in range(10)]
    assert lost


async def test_a_stream_that_ends_before_what_was_read_of_it_is_refused(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as store:
        await store.streams.append("s", [b"1", b"2"])
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(Damaged, match="ends at record 2, and 7 was read from it"):
                await anext(store.replication.follow("s", 7))


async def test_a_change_is_known_within_milliseconds(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        watch, following = one.replication.watch("b"), one.replication.follow("s", 0)
        took = []
        for number in range(20):
            began = time.perf_counter()
            await other.kv.put("b", "k", str(number).encode(), NOW)
            await other.replication.append_new("s", [(str(number), b"")])
            async with asyncio.timeout(BOUND_S):
                await anext(watch)
                await anext(following)
            took.append(time.perf_counter() - began)
        assert sorted(took)[10] < 0.05


async def test_closing_the_store_ends_watching_and_following(nats_server: NatsServer, node: str) -> None:
    store = NatsStore(nats_server.place(node))
    await store.open()
    watch, following = store.replication.watch("b"), store.replication.follow("s", 0)

    async def all_of(some: AsyncIterator[object]) -> list[object]:
        return [entry async for entry in some]

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(all_of(watch))
        tasks.create_task(all_of(following))
        await store.close()
    assert not store.replication.is_reachable


async def test_nothing_is_lost_or_doubled_over_restarts_of_the_server(own_server: NatsServer, node: str) -> None:
    """What was acknowledged is told once and in order; what was refused while the server was dead never happened."""
    async with opened(own_server.place(node)) as one, opened(own_server.place(node)) as other:
        watch, following = one.replication.watch("b"), one.replication.follow("s", 0)
        for turn in range(RESTARTS):
            before = await other.streams.append("s", [b"%d before" % turn])
            await other.kv.put("b", "k", b"%d before" % turn, NOW)
            own_server.kill()
            await reachable(other, False)
            began = time.monotonic()
            for refused in (
                other.streams.append("s", [b"never"]),
                other.replication.append_new("s", [("never", b"never")]),
                other.kv.put("b", "never", b"never", NOW),
                other.kv.get("b", "k", NOW),
                other.kv.create("b", "never", b"never", NOW),
            ):
                with pytest.raises(Unavailable):
                    await refused
            assert time.monotonic() - began < 0.5
            own_server.start()
            await reachable(other)
            after = await other.streams.append("s", [b"%d after" % turn])
            assert after == before + 1
        await other.kv.put("b", "k", b"end", NOW)
        async with asyncio.timeout(BOUND_S):
            records = [await anext(following) for _ in range(2 * RESTARTS)]
            assert records == [
                Record(2 * turn + part + 1, b"%d %b" % (turn, (b"before", b"after")[part]))
                for turn in range(RESTARTS)
                for part in range(2)
            ]
            revision = 0
            async for change in watch:
                assert change.key == "k"
                assert change.entry is not None
                assert change.entry.revision > revision
                revision = change.entry.revision
                if change.entry.value == b"end":
                    break
        assert await one.kv.get("b", "never", NOW) is None
        assert await one.streams.last("s") == 2 * RESTARTS


async def test_a_server_that_hangs_costs_one_wait_and_nothing_is_sent_to_it_later(
    own_server: NatsServer, node: str
) -> None:
    async with opened(own_server.place(node)) as one, opened(own_server.place(node)) as other:
        watch, following = one.replication.watch("b"), one.replication.follow("s", 0)
        await other.streams.append("s", [b"1"])
        async with asyncio.timeout(BOUND_S):
            assert (await anext(following)).data == b"1"
        own_server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await other.kv.get("b", "k", NOW)
            assert time.monotonic() - began < 2 * ANSWER_S
            assert not other.replication.is_reachable
            began = time.monotonic()
            for number in range(100):
                with pytest.raises(Unavailable):
                    await other.kv.put("b", f"never {number}", b"", NOW)
                with pytest.raises(Unavailable):
                    await other.streams.append("s", [b"never"])
            assert time.monotonic() - began < 0.5
            await reachable(one, False)  # the one who only listens notices by itself
        finally:
            own_server.go_on()
        await reachable(one)
        await reachable(other)
        assert await other.streams.append("s", [b"2"]) == 2
        await other.kv.put("b", "k", b"v", NOW)
        async with asyncio.timeout(BOUND_S):
            assert (await anext(following)) == Record(2, b"2")
            assert (await anext(watch)).key == "k"
        assert [entry.key for entry in await one.kv.entries("b", NOW)] == ["k"]


async def test_a_value_larger_than_a_message_is_whole_to_everybody(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        watch = one.replication.watch("b")
        large = secrets.token_bytes(16 * 1024 * 1024)
        revision = await other.kv.create("b", "k", large, NOW, ttl_s=60)
        expected = Entry("k", large, revision, NOW + 60)
        assert await one.kv.get("b", "k", NOW) == expected
        assert await one.kv.entries("b", NOW) == [expected]
        async with asyncio.timeout(BOUND_S):
            assert await anext(watch) == Change("k", expected)
        with pytest.raises(Conflict, match="b/k exists"):
            await one.kv.create("b", "k", large, NOW)
        with pytest.raises(Conflict, match="b/k has revision"):
            await one.kv.update("b", "k", large, revision - 1, NOW)
        revision = await one.kv.update("b", "k", large[: 3 * 1024 * 1024], revision, NOW)
        assert await other.kv.get("b", "k", NOW) == Entry("k", large[: 3 * 1024 * 1024], revision)
        revision = await other.kv.update("b", "k", b"small", revision, NOW)
        assert await one.kv.get("b", "k", NOW) == Entry("k", b"small", revision)
        info = await one._connection.api(f"STREAM.INFO.{one.kv._stream}")
        assert info["state"]["messages"] == 1, "parts of values that were replaced are left behind"


async def test_large_values_written_at_the_same_time_are_never_mixed(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        size = 3 * 1024 * 1024

        async def write(store: NatsStore, letters: bytes) -> None:
            for letter in letters:
                await store.kv.put("b", "k", bytes([letter]) * size, NOW)

        async def read() -> None:
            for _ in range(20):
                entry = await one.kv.get("b", "k", NOW)
                assert entry is None or entry.value == entry.value[:1] * size

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write(one, b"abcdef"))
            tasks.create_task(write(other, b"ABCDEF"))
            tasks.create_task(read())


async def test_a_reader_of_a_large_value_that_is_replaced_meanwhile_begins_again(
    nats_server: NatsServer, node: str
) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        await other.kv.put("b", "k", b"a" * 2_000_000, NOW)
        result = await one.kv._find("b", "k")
        assert result.entry is not None
        await other.kv.put("b", "k", b"b" * 2_000_000, NOW)
        with pytest.raises(_Replaced):
            await one.kv._join_parts(result.entry, result)


async def test_oversized_values_and_records_are_refused_by_name(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as store:
        with pytest.raises(StoreRefused, match=r"b/k would have \d+ bytes; the store takes \d+"):
            await store.kv.put("b", "k", bytes(65 * 1024 * 1024), NOW)
        with pytest.raises(StoreRefused, match=r"larger than the NATS server takes \(\d+\)\. Set max_payload"):
            await store.streams.append("s", [b"", bytes(1024 * 1024)])
        with pytest.raises(StoreRefused, match=r"larger than the NATS server takes"):
            await store.replication.append_new("s", [("1", b""), ("2", bytes(1024 * 1024))])
        with pytest.raises(StoreRefused, match="1001 records cannot be appended at once"):
            await store.streams.append("s", [b""] * 1001)
        assert await store.streams.last("s") == 0


ODD = ("", ".", "*", ">", " ", "a.b", "_2E", "__", "_s", "a\r\nb", "\x00", "/../x", "é" * 300, "k" * 5000, "ℹ️")


async def test_any_text_is_a_key_a_bucket_a_stream_and_an_id(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node)) as other:
        for text in ODD:
            watch, following = one.replication.watch(text), one.replication.follow(text, 0)
            await other.kv.put(text, text, text.encode(), NOW)
            assert await other.replication.append_new(text, [(text or "empty", text.encode())]) == [1]
            async with asyncio.timeout(BOUND_S):
                assert (await anext(watch)).key == text
                assert await anext(following) == Record(1, text.encode())
            assert [entry.key for entry in await one.kv.entries(text, NOW)] == [text]
            watch.close()
            following.close()


async def test_nodes_of_other_names_share_nothing(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as one, opened(nats_server.place(node + "-")) as other:
        await one.kv.put("b", "k", b"", NOW)
        await one.streams.append("s", [b""])
        assert await other.kv.entries("b", NOW) == []
        assert await other.streams.last("s") == 0


async def test_a_deleted_stream_is_not_created_again_silently(nats_server: NatsServer, node: str) -> None:
    async with opened(nats_server.place(node)) as store:
        await store.streams.append("s", [b"1"])
        following, watch = store.replication.follow("s", 0), store.replication.watch("b")
        async with asyncio.timeout(BOUND_S):
            await anext(following)
        await delete_stream(nats_server, store.streams._names.stream("s"))
        await delete_stream(nats_server, store.kv._stream)
        for call in (
            store.streams.append("s", [b"2"]),
            store.streams.append("s", [b"2", b"3"]),
            store.streams.read("s"),
            store.streams.last("s"),
            store.kv.put("b", "k", b"", NOW),
            store.kv.create("b", "k", b"", NOW),
            store.kv.get("b", "k", NOW),
            store.kv.entries("b", NOW),
        ):
            with pytest.raises(Damaged, match=r"was deleted on the NATS server\. Restore it from a backup"):
                await call
        async with asyncio.timeout(BOUND_S):
            for entry in (following, watch):
                with pytest.raises(Damaged, match="was deleted on the NATS server"):
                    await anext(entry)


async def test_a_replica_does_not_continue_streams_that_another_created_again(
    nats_server: NatsServer, node: str
) -> None:
    async with opened(nats_server.place(node)) as store:
        watch = store.replication.watch("b")
        await store.kv.put("b", "before", b"", NOW)
        await delete_stream(nats_server, store.kv._stream)
        async with opened(nats_server.place(node)) as other:
            await other.kv.put("b", "new", b"", NOW)
            async with asyncio.timeout(BOUND_S):
                with pytest.raises(Damaged, match="was deleted on the NATS server"):
                    await anext(watch)
            keeper = store._connection._keeper
            assert keeper is not None
            await asyncio.wait((keeper,), timeout=BOUND_S)  # it does not connect again
            assert keeper.done()
            for call in (store.kv.put("b", "old", b"", NOW), store.kv.get("b", "new", NOW), store.streams.last("s")):
                with pytest.raises(Damaged, match="was deleted on the NATS server"):
                    await call
            assert not store.replication.is_reachable
            assert [entry.key for entry in await other.kv.entries("b", NOW)] == ["new"]


async def test_an_older_state_of_the_entries_is_not_watched_on(own_server: NatsServer, node: str) -> None:
    folder = own_server.log.parent
    async with opened(own_server.place(node)) as store, opened(own_server.place(node)) as other:
        watch = store.replication.watch("b")
        await other.kv.put("b", "first", b"", NOW)
        async with asyncio.timeout(BOUND_S):
            assert (await anext(watch)).key == "first"
        own_server.kill()
        await reachable(store, False)
        await reachable(other, False)
        shutil.copytree(folder / "jetstream", folder / "kept")
        own_server.start()
        await reachable(store)
        await reachable(other)
        await other.kv.put("b", "second", b"", NOW)
        async with asyncio.timeout(BOUND_S):
            assert (await anext(watch)).key == "second"
        own_server.kill()
        shutil.rmtree(folder / "jetstream")
        shutil.move(folder / "kept", folder / "jetstream")
        own_server.start()
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(Damaged, match="an older state was restored"):
                await anext(watch)
            with pytest.raises(Damaged, match="an older state was restored"):
                await store.kv.put("b", "third", b"", NOW)


async def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    servers = NatsServers(urls=("nats://user:hidden@127.0.0.1:1",))
    store = build_store("nats", tmp_path, SharedPlace(servers=servers, node="n"))
    with pytest.raises(Unavailable, match=r"No NATS server answers at nats://127\.0\.0\.1:1 .*store\.nats_url") as told:
        await store.open()
    assert "hidden" not in str(told.value)
    await store.close()


@pytest.mark.parametrize(
    ("config", "has_jetstream", "message"),
    [
        ("", False, r"has no JetStream\. Start it with -js"),
        ("max_payload: 1024", True, r"takes messages of 1024 bytes\. Set max_payload"),
        ("authorization { user: u, password: p }", True, r"does not take the credentials.*store\.nats_secret"),
        (
            'authorization { users: [{ user: u, password: p, permissions: { publish: "x" } }] }\nno_auth_user: u',
            True,
            r"denies this node what it asks: .*\$JS\.API",
        ),
    ],
    ids=["no JetStream", "small messages", "wrong credentials", "no rights"],
)
async def test_a_server_that_cannot_serve_is_refused_with_what_to_do(
    tmp_path: Path, config: str, has_jetstream: bool, message: str
) -> None:
    server = NatsServer(tmp_path, config, has_jetstream=has_jetstream)
    server.start()
    store = NatsStore(server.place("n"))
    try:
        with pytest.raises(StoreRefused, match=message):
            await store.open()
    finally:
        await store.close()
        server.kill()


SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


@pytest.mark.parametrize(
    ("config", "secret"),
    [
        ('authorization { user: u, password: "p:q" }', "u:p:q\n"),
        ("authorization { token: sesame }", "sesame"),
        (f'authorization {{ users: [{{ nkey: "{PUBLIC}" }}] }}', SEED),
    ],
    ids=["user", "token", "nkey"],
)
async def test_a_node_says_who_it_is_in_each_way_that_nats_knows(tmp_path: Path, config: str, secret: str) -> None:
    async def told() -> str | None:
        return secret

    server = NatsServer(tmp_path, config)
    server.start()
    try:
        servers = NatsServers(urls=(server.url,), secret=told)
        async with opened(SharedPlace(servers=servers, node="n")) as store:
            assert await store.kv.put("b", "k", b"", NOW) == 1
        with pytest.raises(StoreRefused, match="does not take the credentials"):
            async with opened(server.place("n")):
                pass
    finally:
        server.kill()


async def test_a_server_without_tls_gets_no_credentials_where_tls_was_asked_for(nats_server: NatsServer) -> None:
    servers = NatsServers(urls=(nats_server.url.replace("nats://", "tls://"),))
    with pytest.raises(Unavailable, match="the server offers no TLS"):
        async with opened(SharedPlace(servers=servers, node="n")):
            pass


async def test_a_server_is_trusted_over_tls_only_by_the_operators_choice(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = NatsServer(
        tmp_path / "nats", f'tls {{ cert_file: "{authority.certificate}", key_file: "{authority.key}" }}'
    )
    server.start()
    url = server.url.replace("nats://", "tls://")
    try:
        named = NatsServers(urls=(url,), ca_file=str(authority.trusted))
        async with opened(SharedPlace(servers=named, node="n")) as store:
            assert await store.kv.put("b", "k", b"", NOW) == 1
        with pytest.raises(StoreRefused, match="is not trusted"):
            async with opened(SharedPlace(servers=NatsServers(urls=(url,)), node="n")):
                pass
    finally:
        server.kill()


async def test_one_reachable_server_of_several_is_enough(nats_server: NatsServer, node: str) -> None:
    servers = NatsServers(urls=("nats://127.0.0.1:1", nats_server.url, "nats://127.0.0.1:2"))
    for _ in range(5):
        async with opened(SharedPlace(servers=servers, node=node)) as store:
            await store.kv.put("b", "k", b"", NOW)


def test_the_library_is_imported_only_for_this_backend_and_its_absence_named(tmp_path: Path) -> None:
    without = "import sys; sys.modules['nats'] = None; from pathlib import Path\n"
    build = "from interlock.core.store_backends import build_store\n"
    sqlite = subprocess.run(
        [sys.executable, "-c", f"{without}{build}import interlock.node.node; build_store('sqlite', Path())"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert sqlite.returncode == 0, sqlite.stderr
    nats = subprocess.run(
        [sys.executable, "-c", f"{without}{build}build_store('nats', Path())"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MissingLibrary" in nats.stderr
    assert "pip install 'interlock[nats]'" in nats.stderr


async def test_expired_entries_and_the_marks_of_deleted_entries_are_forgotten_by_the_server(
    nats_server: NatsServer, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.store.nats.key_value.EXPIRED_KEPT_S", 0)
    monkeypatch.setattr("interlock.store.nats.key_value.DELETED_KEPT_S", 1)
    async with opened(nats_server.place(node)) as store:
        await store.kv.put("b", "expires", bytes(2 * 1024 * 1024), NOW, ttl_s=1)
        await store.kv.put("b", "deleted", b"", NOW)
        assert await store.kv.delete("b", "deleted")
        async with asyncio.timeout(BOUND_S):
            while True:
                info = await store._connection.api(f"STREAM.INFO.{store.kv._stream}")
                if info["state"]["messages"] == 0:
                    break
                await asyncio.sleep(0.05)
        assert await store.kv.create("b", "expires", b"", NOW) > 4
