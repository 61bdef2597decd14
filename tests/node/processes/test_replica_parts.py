"""Replicas of a node in one process, each with a store of its own on one real NATS server: what one does while the
other works, loses the server, seems to be gone, or says the same at the same moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.inboxes import ManualClock, StoredInbox
from tests.store.nats_server import NatsServer

from interlock.access.tokens import TokenRegistry
from interlock.approvals import inbox
from interlock.approvals.audit import ApprovalAudit
from interlock.approvals.inbox import ApprovalStore, Inbox
from interlock.approvals.protocol.approval import Approval, Status
from interlock.approvals.tool_definitions import Definitions, KnownDefinition, StoredDefinition
from interlock.config.plan import ApprovalsPlan, Plan, RoomPlan
from interlock.core import replicas as replicas_
from interlock.core.feed import AsyncFeed
from interlock.core.replicas import Changes, Replicas
from interlock.core.store_backends import build_audit
from interlock.gate.protocol.policy import claims_shown
from interlock.rooms.proposals import ProposalTracker
from interlock.rooms.protocol.envelope import Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import Participant, Privilege
from interlock.rooms.room import Room
from interlock.rooms.rooms import RoomRegistry
from interlock.rooms.timeline import Delivery
from interlock.safety.codes import ATTEMPTS, FAILURES_MAX, Attempts
from interlock.store.nats.store import NatsStore
from interlock.store.ports import Change, Entry, Unavailable
from interlock.store.tokens import BUCKET, TokenTable
from interlock.wire.refusal import Refusal

BOUND_S = 15.0
SOON_S = 0.1
ANNE = Participant(id="anne", privilege=Privilege.FULL)
PLAN = Plan(workspace=Path(), data=Path(), room=(RoomPlan(topic="pair", written={"presence_grace_s": 0}),))

pytestmark = [pytest.mark.timeout(60)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()


class Ear:
    """A connection that keeps what it is told."""

    is_here = can_answer = True
    since = 0

    def __init__(self, room: Room, who: Participant) -> None:
        self.id, self.room, self.who = room.stamp().id, room, who
        self.told: list[Delivery] = []
        room.join(self, who, f"room:{who.id}", "token")

    def deliver(self, delivery: Delivery) -> None:
        self.told.append(delivery)

    def close(self, code: int, reason: str) -> None:
        self.room.leave(self, self.who.id)

    def ids(self) -> list[str]:
        return [one.envelope.id for one in self.told if one.sequence]


class Replica(StoredInbox):
    """The parts of a node that hear of other replicas."""

    def __init__(self, server: NatsServer, folder: Path, clock: ManualClock) -> None:
        store: Any = NatsStore(server.place("node"))
        super().__init__(store, build_audit("sqlite", folder), clock, ApprovalsPlan())
        self.nats: NatsStore = store
        self.replicas = Replicas(store, clock)
        approvals = ApprovalStore(store.kv, clock, self.replicas.own_id)
        self.inbox = Inbox(approvals, ApprovalAudit(self.recorder), clock, ApprovalsPlan(), self.replicas)
        self.proposals = ProposalTracker(self.inbox, self.recorder, clock, lambda _: None, self.replicas)
        self.rooms = RoomRegistry(PLAN, store, self.recorder, clock, self.proposals, self.replicas, lambda _: None)
        self.replicas.on_change(inbox.BUCKET, self.inbox.take_change)
        self.changes = Changes(self.replicas)

    @property
    def room(self) -> Room:
        return self.rooms.by_topic["pair"]

    async def say(self, id: str, who: Participant = ANNE, **members: Any) -> EnvelopeRefusal | None:
        done: asyncio.Future[EnvelopeRefusal | None] = asyncio.get_running_loop().create_future()
        envelope = Envelope(id=id, **{"kind": "chat", "payload": b'{"text":"hi"}', **members})
        refused = self.room.receive(envelope, who, f"room:{who.id}", done.set_result)
        async with asyncio.timeout(BOUND_S):
            return refused or await done


@contextlib.asynccontextmanager
async def replica(
    server: NatsServer, folder: Path, clock: ManualClock | None = None, *, hears: bool = True
) -> AsyncIterator[Replica]:
    """Without `hears` it is not told what others write."""
    one = Replica(server, folder, clock or ManualClock())
    parts: list[Any] = [one.store, one.replicas, one.audit, one.recorder, one.inbox, one.rooms]
    async with contextlib.AsyncExitStack() as stack:
        for part in [*parts, one.changes] if hears else parts:
            stack.push_async_callback(part.close)
            await part.open()
        yield one


@contextlib.asynccontextmanager
async def two(server: NatsServer, folder: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    async with replica(server, folder / "one") as one, replica(server, folder / "other") as other:
        yield one, other


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not is_so():  # noqa: ASYNC110  (of many different things)
            await asyncio.sleep(0.005)


def statuses(of: Inbox) -> list[tuple[str, Status]]:
    heard: list[tuple[str, Status]] = []
    of.heard.subscribe(lambda one: heard.append((one.id, one.status)))
    return heard


# Approvals


@pytest.mark.req("AX-11.3-11")
async def test_the_second_to_move_learns_of_the_first(server: NatsServer, tmp_path: Path) -> None:
    async with replica(server, tmp_path / "one") as one:
        raised = await one.raised()
        async with replica(server, tmp_path / "other", hears=False) as other:
            heard, listener = statuses(other.inbox), other.inbox.listen()
            assert isinstance(await one.inbox.withdraw(raised.id), Approval)
            assert isinstance(await other.inbox.decide(raised.id, other.yes()), Refusal)
            assert heard == [(raised.id, Status.WITHDRAWN)]
            assert (await anext(listener)).status is Status.WITHDRAWN
            await other.changes.open()  # the store tells it too, and it is no news
            assert isinstance(await one.inbox.raise_(one.call("d2")), Approval)
            await until(lambda: other.inbox.waiting_count)
            assert [status for _, status in heard] == [Status.WITHDRAWN, Status.PENDING]
            await other.changes.close()


@pytest.mark.req("AX-11.3-11")
async def test_a_use_that_was_written_although_it_was_refused_has_an_end(server: NatsServer, tmp_path: Path) -> None:
    async with replica(server, tmp_path / "one") as one:
        approved = await one.approved()
        jetstream = one.nats.kv._jetstream
        publish = jetstream.publish

        async def publish_unheard(*args: Any, **more: Any) -> int:
            await publish(*args, **more)
            raise Unavailable("the answer was lost")

        jetstream.publish = publish_unheard  # type: ignore[method-assign]
        try:
            assert isinstance(await one.inbox.use(approved.id), Refusal)
        finally:
            jetstream.publish = publish  # type: ignore[method-assign]

        def status() -> Status | None:
            found = one.inbox.get(approved.id)
            return None if found is None else found.status

        await until(lambda: status() is not Status.APPROVED)
        await until(lambda: status() is Status.FAILED)


# Who lives


async def test_a_replica_lives_whatever_its_clock_shows(server: NatsServer, tmp_path: Path) -> None:
    late, early = ManualClock(), ManualClock()
    late.wall_at -= 3000.0
    early.wall_at += 3000.0
    async with (
        replica(server, tmp_path / "late", late) as one,
        replica(server, tmp_path / "early", early) as other,
        replica(server, tmp_path / "third") as third,
    ):
        await until(lambda: one.replicas.is_alive(third.replicas.own_id))
        for here in (one, other, third):
            for there in (one, other, third):
                assert here.replicas.is_alive(there.replicas.own_id)
        third.clock.pass_(replicas_.LEASE_S + 1)
        assert not third.replicas.is_alive(one.replicas.own_id)


async def test_no_replica_is_given_up_while_the_store_is_unavailable(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_, "RENEW_S", SOON_S)
    async with two(server, tmp_path) as (one, other):
        await until(lambda: one.replicas.is_alive(other.replicas.own_id))
        gone: list[str] = []
        one.replicas.gone.subscribe(gone.append)
        server.kill()
        await until(lambda: not one.nats.replication.is_reachable)
        failed = asyncio.Event()
        renew = one.replicas._renew

        async def watched() -> None:
            try:
                await renew()
            except Exception:
                one.clock.pass_(replicas_.LEASE_S - 2 * SOON_S)  # the time of several leases passes in all
                failed.set()
                raise

        one.replicas._renew = watched  # type: ignore[method-assign]
        for _ in range(3):
            failed.clear()
            await asyncio.wait_for(failed.wait(), BOUND_S)
        server.start()
        await until(lambda: one.nats.replication.is_reachable)
        revision = await one.store.kv.put("any", "key", b"", 0.0)  # both renew after this
        async with asyncio.timeout(BOUND_S):
            for each in (one, other):
                while True:
                    lease = await one.store.kv.get(replicas_.BUCKET, each.replicas.own_id, 0.0)
                    if lease is not None and lease.revision > revision:
                        break
        assert gone == []
        assert one.replicas.is_alive(other.replicas.own_id)


async def test_a_claim_of_a_lost_replica_can_be_taken_again(server: NatsServer, tmp_path: Path) -> None:
    async with two(server, tmp_path) as (one, other):
        await until(lambda: one.replicas.is_alive(other.replicas.own_id))
        assert await other.replicas.claim("it")
        assert not await one.replicas.claim("it")
        one.replicas._take_lease(Change(other.replicas.own_id, None))
        assert sorted(await asyncio.gather(*(one.replicas.claim("it") for _ in range(3)))).count(True) >= 1
        other.replicas._alive.clear()
        entry = await one.store.kv.get(replicas_.CLAIMS, "it", 0.0)
        assert entry is not None and entry.value.decode() == one.replicas.own_id


# Rooms


@pytest.mark.req("X-10.1-2")
async def test_participants_of_a_replica_that_seemed_gone_are_seen_again(server: NatsServer, tmp_path: Path) -> None:
    async with two(server, tmp_path) as (one, other):
        ear = Ear(other.room, ANNE)
        await until(lambda: "anne" in one.room.seats)
        (before,) = one.room.seats["anne"].connections
        one.replicas.gone.publish(other.replicas.own_id)
        assert not one.room.seats["anne"].connections
        await until(lambda: "anne" in one.room.seats and one.room.seats["anne"].connections)
        assert one.room.seats["anne"].connections != [before]
        assert other.room.seats["anne"].connections == [ear]


async def test_rooms_close_while_it_is_written_who_left(server: NatsServer, tmp_path: Path) -> None:
    async with replica(server, tmp_path / "one") as one:
        async with replica(server, tmp_path / "other") as other:
            ears = [Ear(other.room, Participant(id=f"p{number}", privilege=Privilege.FULL)) for number in range(5)]
            await until(lambda: len(one.room.seats) == 5)
            for ear in ears:
                ear.close(1001, "")
            await asyncio.sleep(0)  # the writer has begun
        await until(lambda: not one.room.seats)


@pytest.mark.req("X-5.1-6")
async def test_a_request_to_a_replica_that_is_briefly_disconnected_is_carried_out(
    server: NatsServer, tmp_path: Path
) -> None:
    async with two(server, tmp_path) as (one, other):
        Ear(other.room, ANNE)
        await until(lambda: "anne" in one.room.seats)
        other.nats._connection.lose("a test")
        changed = await one.rooms.change_privilege(one.room, "anne", Privilege.RESTRICTED, "admin", lasts=False)
        assert changed is not None
        await until(lambda: other.room.seats["anne"].participant.privilege is Privilege.RESTRICTED)
        other.nats._connection.lose("a test")
        assert await one.rooms.remove(one.room, "anne", "admin") == 1
        await until(lambda: "anne" not in other.room.seats and "anne" not in one.room.seats)


@pytest.mark.req("X-5.1-6")
async def test_a_participant_that_joins_a_replica_while_another_removes_it_is_sent_away(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(server, tmp_path) as (one, other):
        await one.rooms.grant(one.room, "anne", Privilege.FULL, "admin")
        monkeypatch.setattr(other.rooms._elsewhere, "note", lambda *_: None)  # the other has not heard of it yet
        Ear(other.room, ANNE)
        assert await one.rooms.remove(one.room, "anne", "admin") == 0
        await until(lambda: "anne" not in other.room.seats)
        assert other.rooms.find_removal(other.room, "anne") is not None


async def test_a_room_that_is_declared_again_has_the_participants_of_others(server: NatsServer, tmp_path: Path) -> None:
    async with two(server, tmp_path) as (one, other):
        Ear(other.room, ANNE)
        await until(lambda: "anne" in one.room.seats)
        await one.rooms.replan(Plan(workspace=Path(), data=Path()))
        await one.rooms.replan(PLAN)
        await until(lambda: "anne" in one.room.seats)


@pytest.mark.req("X-4-4")
async def test_an_envelope_that_comes_to_two_replicas_at_once_is_published_by_one(
    server: NatsServer, tmp_path: Path
) -> None:
    async with two(server, tmp_path) as (one, other):
        recipients = [Participant(id=id, privilege=Privilege.FULL) for id in ("bert", "carl")]
        ears = [Ear(each.room, who) for each, who in zip((one, other), recipients, strict=True)]
        for number in range(20):
            said = {"id": f"e{number}", "ts": "2026-01-01T00:00:00.000Z"}
            answers = await asyncio.gather(one.say(**said), other.say(**said))
            refused = [answer for answer in answers if answer is not None]
            assert [(answer.code, answer.details) for answer in refused] == [("duplicate_id", {"identical": True})]
        await until(lambda: all(len(ear.ids()) == 20 for ear in ears))
        assert ears[0].ids() == ears[1].ids()
        mine, theirs = ([one.principal != "" for one in ear.told if one.sequence] for ear in ears)
        assert all(here != there for here, there in zip(mine, theirs, strict=True))  # one of them acts on it


@pytest.mark.req("X-7.3-3", "X-N-4")
async def test_envelopes_published_at_another_replica_count_toward_rates_except_requested_answers(
    server: NatsServer, tmp_path: Path
) -> None:
    async with two(server, tmp_path) as (one, other):
        bert, ear = Participant(id="bert", privilege=Privilege.FULL), Ear(one.room, ANNE)
        request, reply = b'{"jsonrpc":"2.0","id":1,"method":"x"}', b'{"jsonrpc":"2.0","id":1,"result":{}}'
        answering = {"kind": "mcp", "payload": reply, "to": ("bert",), "correlation_id": "asks"}
        sent: list[tuple[str, Participant, dict[str, Any], tuple[int, int, int]]] = [
            ("says", ANNE, {}, (0, 1, 1)),
            ("proposes", ANNE, {"kind": "mcp/proposal", "payload": b'{"method":"x"}'}, (1, 1, 2)),
            ("asks", bert, {"kind": "mcp", "payload": request, "to": ("anne",)}, (0, 0, 1)),
            ("answers", ANNE, answering, (1, 1, 2)),
            ("again", ANNE, answering, (1, 1, 3)),
            ("itself", Participant(id="interlock", privilege=Privilege.FULL), {}, (0, 0, 0)),
        ]
        for id, who, members, wanted in sent:
            assert await other.say(id, who, **members) is None
            await until(lambda id=id: id in ear.ids())
            used = one.room.rate(who.id).used(one.clock.now())
            assert (used["proposals"], used["chat"], used["envelopes"]) == wanted, id
        one.clock.pass_(60)
        assert not any(one.room.rate("anne").used(one.clock.now()).values())


async def test_a_malformed_envelope_does_not_hold_back_those_that_follow(server: NatsServer, tmp_path: Path) -> None:
    async with two(server, tmp_path) as (one, other):
        ear = Ear(one.room, ANNE)
        await other.say("before")
        for nonsense in (b"", b"nonsense", b"soon\n{}", b"1.0\n[]", b"\xff \n\xff"):
            await other.store.streams.append("rooms/pair", [nonsense])
        assert await other.say("after") is None
        await until(lambda: ear.ids() == ["before", "after"])
        async with replica(server, tmp_path / "third") as third:
            assert await third.say("last") is None
        await until(lambda: ear.ids() == ["before", "after", "last"])


async def test_a_room_whose_stream_cannot_be_followed_refuses_messages(server: NatsServer, tmp_path: Path) -> None:
    async with replica(server, tmp_path / "one") as one:
        assert await one.say("before") is None
        stream = one.nats.streams._names.stream("rooms/pair")
        await one.nats._connection.api(f"STREAM.DELETE.{stream}")
        other: Any = NatsStore(server.place("node"))
        await other.open()
        await other.streams.append("rooms/pair", [b"another"])
        one.nats._connection.lose("a test")
        await until(lambda: one.room.timeline._is_cut_off)
        await until(lambda: one.nats.replication.is_reachable)
        refused = await one.say("after")
        assert refused is not None and refused.code == "unavailable"
        await other.close()


async def test_a_delivered_request_is_not_refused_when_its_batch_fails(server: NatsServer, tmp_path: Path) -> None:
    async with replica(server, tmp_path / "one") as one:
        append, heard = one.room.timeline._append, Ear(one.room, ANNE)

        async def late(accepted: Any) -> list[int]:
            sequences = await append(accepted)
            await until(lambda: heard.ids())
            one.nats._connection.lose("a test")
            assert sequences
            return await append(accepted)

        one.room.timeline._append = late  # type: ignore[method-assign]
        settled: list[EnvelopeRefusal | None] = []
        envelope = Envelope(id="once", kind="chat", payload=b'{"text":"hi"}')
        assert one.room.receive(envelope, ANNE, "room:anne", settled.append) is None
        await until(lambda: one.room.timeline._writer is not None and one.room.timeline._writer.done())
        assert settled == [None]


# Tokens


class SlowKeyValue:
    """Of which each answer is late: something happens before it is heard."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv
        self.meanwhile: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def entries(self, bucket: str, now: float) -> list[Entry]:
        found: list[Entry] = await self._kv.entries(bucket, now)
        if self.meanwhile:
            await self.meanwhile.pop()()
        return found


async def test_a_token_revoked_by_another_replica_stays_revoked(server: NatsServer) -> None:
    clock = ManualClock()
    here, there = NatsStore(server.place("node")), NatsStore(server.place("node"))
    await here.open()
    await there.open()
    slow = SlowKeyValue(here.kv)
    one = TokenRegistry(TokenTable(slow), clock, (), 1)  # type: ignore[arg-type]
    issued = [(await one.issue(name, "client", None, None))[0] for name in ("mine", "a", "b")]
    other = TokenRegistry(TokenTable(there.kv), clock, (), 1)
    watch = here.replication.watch(BUCKET)

    async def revoke(name: str) -> None:
        assert await other.revoke(name)
        assert one.take_change(await asyncio.wait_for(anext(watch), BOUND_S))

    slow.meanwhile = [lambda: revoke("a"), lambda: revoke("b")]
    assert await one.revoke("mine")
    while slow.meanwhile:
        await slow.meanwhile.pop()()
    assert [one.principal(f"Bearer {token}".encode()) for token in issued] == [None, None, None]
    await here.close()
    await there.close()


# Agents


async def test_wrong_codes_that_come_to_two_replicas_at_once_all_count(server: NatsServer) -> None:
    clocks = ManualClock(), ManualClock()
    clocks[1].pass_(0.5)
    here, there = NatsStore(server.place("node")), NatsStore(server.place("node"))
    await here.open()
    await there.open()
    one, other = (
        Attempts(store.kv, clock, is_progressive=False) for store, clock in zip((here, there), clocks, strict=True)
    )
    watches = here.replication.watch(ATTEMPTS), there.replication.watch(ATTEMPTS)
    for _ in range(FAILURES_MAX // 2 + 1):
        await one.fail("agent")
        await other.fail("agent")  # which has not heard of the first
        for clock in clocks:
            clock.pass_(1.0)
    async with asyncio.timeout(BOUND_S):
        one.take_change(await anext(watches[0]))
    assert await one.find_limit("agent") is not None
    await here.close()
    await there.close()


# Definitions


async def test_definitions_that_two_replicas_accept_at_once_are_all_remembered(
    server: NatsServer, tmp_path: Path
) -> None:
    async with two(server, tmp_path) as replicas:
        both = [Definitions(one.store.kv, one.inbox, one.clock, AsyncFeed[str]()) for one in replicas]
        known = KnownDefinition(fingerprint="", digest="d", claims=claims_shown({}))
        kept = StoredDefinition(identity=known, definition="{}")
        names = [f"t{number}" for number in range(10)]
        await asyncio.gather(*(both[n % 2]._write("plant", {name: kept}) for n, name in enumerate(names)))
        first = replicas[0]
        restarted = Definitions(first.store.kv, first.inbox, first.clock, AsyncFeed[str]())
        await restarted.open()
        assert [name for name in names if restarted.find_accepted("plant", name) is None] == []
        assert restarted.find_accepted("plant", "t10") is None
