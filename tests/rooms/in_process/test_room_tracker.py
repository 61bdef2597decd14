"""The tracker of proposals over time and over restarts: nothing that waits is forgotten, nothing is told twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.approvals.inboxes import ManualClock, StoredInbox, stored_inbox

from interlock.approvals.protocol.approval import Approval, Kind, Source, Status, refusal_of
from interlock.core.replicas import Replicas
from interlock.rooms import proposals
from interlock.rooms.participant_records import ParticipantRecords
from interlock.rooms.proposals import ProposalTracker
from interlock.rooms.protocol.envelope import Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import Participant, Privilege
from interlock.rooms.protocol.settings import RoomSettings
from interlock.rooms.room import Room, RoomAudit, RoomFeeds, SharedRoomParts
from interlock.rooms.timeline import Delivery
from interlock.wire.refusal import Refusal

AGENT = Participant(id="agent", privilege=Privilege.RESTRICTED)
HUMAN = Participant(id="human", privilege=Privilege.FULL)
PAYLOAD = b'{"method":"tools/call","params":{"name":"water"}}'


class Ear:
    """A connection that keeps nothing."""

    id = "ear"
    since = 0

    def deliver(self, delivery: Delivery) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class Garden:
    """One room with its tracker."""

    def __init__(self, desk: StoredInbox, **settings: Any) -> None:
        self.desk, self.clock = desk, desk.clock
        self.proposals = ProposalTracker(
            desk.inbox, desk.recorder, desk.clock, lambda _: None, Replicas(desk.store, desk.clock)
        )
        audit = RoomAudit(desk.recorder, desk.clock)
        room_settings = RoomSettings(proposal_ttl_s=60, **settings)
        self.records = records = ParticipantRecords(desk.store.kv, desk.clock)
        parts = SharedRoomParts(
            desk.store,
            desk.clock,
            audit,
            records,
            self.proposals,
            RoomFeeds(),
            granted=lambda topic, participant: None,
            find_safety_refusal=lambda principal: None,
        )
        self.room = Room("garden", room_settings, parts)

    async def publish(self, id: str, who: Participant = AGENT, kind: str = "mcp/proposal", **members: Any) -> None:
        done: asyncio.Future[EnvelopeRefusal | None] = asyncio.get_running_loop().create_future()
        message = {"payload": PAYLOAD, "to": ("robot",), **members}
        refused = self.room.receive(Envelope(id=id, kind=kind, **message), who, f"room:{who.id}", done.set_result)
        assert refused is None and await done is None

    async def approval(self, id: str, *statuses: Status) -> Approval:
        async with asyncio.timeout(5):
            while True:
                record = self.proposals.index.find("garden", id)
                if record is not None and record.status in (statuses or (Status.PENDING,)):
                    return record
                await asyncio.sleep(0.005)

    async def told(self, *wanted: tuple[str, str]) -> None:
        """These events, and no others, are in the history: what happened, and of which proposal."""
        async with asyncio.timeout(5):
            while True:
                records = [
                    (said["payload"]["event"], said["correlation_id"])
                    for record in await self.room.timeline.read(0, 2**62)
                    if (said := msgspec.json.decode(record.data))["kind"] == "system"
                ]
                if records == list(wanted):
                    return
                assert len(records) <= len(wanted), records
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def garden_at(
    folder: Path, clock: ManualClock, *, sweeps: bool = False, **settings: Any
) -> AsyncIterator[Garden]:
    """`sweeps`: what has lapsed is written down before the rooms open, as it may be in a node."""
    instances: list[Garden] = []
    async with stored_inbox(folder, clock, made=lambda desk: instances.append(Garden(desk, **settings))) as desk:
        (garden,) = instances
        if sweeps:
            await desk.inbox.sweep()
        garden.proposals.index.load()
        await garden.room.open()
        garden.room.join(Ear(), Participant(id="robot", privilege=Privilege.FULL), "room:robot", "token")
        garden.proposals.start()
        try:
            yield garden
        finally:
            await garden.proposals.close()
            await garden.room.close()
            await garden.records.close()


@pytest.mark.req("X-7.3-4")
async def test_a_proposal_expires_once_and_is_not_approved_afterwards(tmp_path: Path) -> None:
    clock = ManualClock()
    async with garden_at(tmp_path, clock) as garden:
        await garden.publish("p1")
        waiting = await garden.approval("p1")
        assert waiting.expires_at == clock.wall() + 60
        clock.pass_(61)
        late = garden.desk.inbox.get(waiting.id)
        assert late is not None and refusal_of(late).message == "proposal_expired"
        assert isinstance(await garden.desk.inbox.decide(waiting.id, garden.desk.yes()), Refusal)
        await garden.desk.inbox.sweep()
        await garden.told(("proposal_expired", "p1"))
        refused = await garden.proposals.fulfil("garden", "p1", HUMAN, "room:human")
        assert isinstance(refused, EnvelopeRefusal) and refused.code == "proposal_expired"
        # A request that is sent all the same needs no proposal: it is delivered, and on record as late.
        await garden.publish("late", HUMAN, "mcp", correlation_id="p1", payload=b'{"id":1,"method":"tools/call"}')
        async with asyncio.timeout(5):
            outcomes: list[str] = []
            while "late_fulfilment" not in outcomes:
                outcomes = [record["outcome"] for record in await garden.desk.records()]


@pytest.mark.req("X-10.2-1", "X-7.3-4", "X-N-6")
async def test_pending_proposals_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with garden_at(tmp_path, clock, tracker=False) as garden:
        await garden.publish("p0")  # stored, and the node dies before it is in the inbox
    clock.pass_(20)
    async with garden_at(tmp_path, clock) as garden:
        recovered = await garden.approval("p0")
        assert recovered.expires_at == clock.wall() + 40 and recovered.agent == "agent"
        for id in ("p1", "p2"):
            await garden.publish(id)
            await garden.approval(id)
        sent = await garden.proposals.fulfil("garden", "p2", HUMAN, "room:human")
        assert isinstance(sent, Approval) and sent.status is Status.USED
        await garden.told(("proposal_claimed", "p2"))
    clock.pass_(30)
    async with garden_at(tmp_path, clock) as garden:
        assert (await garden.approval("p0")).id == recovered.id and await garden.approval("p1")
        await garden.approval("p2", Status.UNKNOWN)  # whether it was done cannot be known any more
        await garden.told(("proposal_claimed", "p2"), ("proposal_unknown", "p2"))
        assert len(garden.desk.inbox.listed(kind=Kind.PROPOSAL)) == 3
    clock.pass_(15)
    async with garden_at(tmp_path, clock, sweeps=True) as garden:
        await garden.told(
            ("proposal_claimed", "p2"), ("proposal_unknown", "p2"), ("proposal_expired", "p0")
        )  # in time, though it happened before the room was open
        assert await garden.approval("p1")


@pytest.mark.req("X-4.2.1-5")
async def test_a_second_fulfilment_is_recorded_as_a_duplicate(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        await garden.publish("p1")
        await garden.approval("p1")
        request = b'{"jsonrpc":"2.0","id":1,' + PAYLOAD[1:]
        await garden.publish("first", HUMAN, "mcp", correlation_id="p1", payload=request)
        await garden.approval("p1", Status.USED)
        await garden.publish("second", HUMAN, "mcp", correlation_id="p1", payload=request)
        async with asyncio.timeout(5):
            entries: list[Any] = []
            while not entries:
                entries = [
                    record for record in await garden.desk.records() if record["outcome"] == "duplicate_fulfilment"
                ]
        assert [(entry["envelope"], entry["who"]) for entry in entries] == [("second", "room:human")]


async def test_a_target_that_does_not_answer_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "ANSWER_S", 0.02)
    async with garden_at(tmp_path, ManualClock()) as garden:
        await garden.publish("p1")
        await garden.approval("p1")
        waiter = asyncio.create_task(garden.proposals.wait_until_settled("garden", "p1", 5))
        assert isinstance(await garden.proposals.fulfil("garden", "p1", HUMAN, "room:human"), Approval)
        ended = await waiter
        assert ended is not None and ended.approval.status is Status.UNKNOWN and ended.answer is None
        assert ended.approval.outcome == "the target did not answer"


async def test_an_answer_counts_only_from_the_target_and_for_that_request(tmp_path: Path) -> None:
    robot = Participant(id="robot", privilege=Privilege.FULL)
    async with garden_at(tmp_path, ManualClock()) as garden:
        await garden.publish("p1")
        await garden.approval("p1")
        request = b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"water"}}'
        await garden.publish("f1", HUMAN, "mcp", correlation_id="p1", payload=request)
        await garden.approval("p1", Status.USED)
        for number, (who, payload) in enumerate(
            (
                (HUMAN, b'{"jsonrpc":"2.0","id":"a","result":{}}'),
                (robot, b'{"jsonrpc":"2.0","id":"b","result":{}}'),
                (robot, b'{"jsonrpc":"2.0","id":"a","result":{},"error":{}}'),
                (robot, b'{"jsonrpc":"2.0","id":"a","method":"tools/call"}'),
            )
        ):
            await garden.publish(f"no{number}", who, "mcp", to=("human",), correlation_id="f1", payload=payload)
        assert (await garden.approval("p1", Status.USED)).outcome is None
        payload = b'{"jsonrpc":"2.0","id":"a","result":{"isError":true}}'
        await garden.publish("yes", robot, "mcp", to=("human",), correlation_id="f1", payload=payload)
        ended = await garden.proposals.wait_until_settled("garden", "p1", 5)
        assert ended is not None and (ended.approval.status, ended.approval.outcome) == (Status.DONE, "tool_error")
        assert ended.answer is not None and ended.answer.id == "yes"


async def test_a_decision_waits_for_a_proposal_that_was_just_published(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        await garden.publish("p1")
        assert ("garden", "p1") not in garden.proposals.index.tracked
        rejected = await garden.proposals.reject("garden", "p1", HUMAN, "room:human", "not today")
        assert isinstance(rejected, Approval) and rejected.status is Status.DENIED


async def test_a_listing_waits_for_a_proposal_that_was_just_published(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        await garden.publish("p1")
        assert [proposal["proposalId"] for proposal in await garden.proposals.list_readable(garden.room, "", 0)] == [
            "p1"
        ]


async def test_a_decision_on_an_unknown_proposal_does_not_wait(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        async with asyncio.timeout(1):
            refused = await garden.proposals.withdraw("garden", "p1", AGENT)
        assert isinstance(refused, EnvelopeRefusal) and refused.code == "unknown_proposal"


async def test_a_decision_waits_for_a_proposal_that_another_replica_tracks(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        envelope = Envelope(id="p1", kind="mcp/proposal", sender="agent", to=("robot",), payload=PAYLOAD)
        garden.proposals.on_replicated(garden.room, envelope, garden.clock.wall())
        finding = asyncio.create_task(garden.proposals.find("garden", "p1"))
        await asyncio.sleep(0)
        assert not finding.done()
        draft = garden.desk.inbox.draft(
            Kind.PROPOSAL,
            Source.ROOMS,
            requested_by="room:agent",
            tool="rooms.garden.robot",
            digest="0",
            room="garden",
            proposal_id="p1",
        )
        approval = await garden.desk.inbox.raise_(draft)
        assert isinstance(approval, Approval)
        garden.desk.inbox.heard.publish(approval)
        assert await asyncio.wait_for(finding, 5) == approval


async def test_a_cancelled_wait_leaves_no_watcher(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        await garden.publish("p1")
        await garden.approval("p1")
        settled = await garden.proposals.wait_until_settled("garden", "p1", 0.01)
        assert settled is not None and settled.approval.status is Status.PENDING
        assert not garden.proposals.index.changed._waiters  # type: ignore[attr-defined]


async def test_a_proposal_of_another_replica_still_waits_when_a_proposal_with_its_id_is_refused(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        there = Envelope(id="p1", kind="mcp/proposal", sender="agent", to=("robot",), payload=PAYLOAD)
        here = msgspec.structs.replace(there, sender="rival")
        assert (
            garden.proposals.admit(garden.room, here, Participant(id="rival", privilege=Privilege.RESTRICTED)) is None
        )
        garden.proposals.on_replicated(garden.room, there, garden.clock.wall())
        garden.room.timeline._give_up([Delivery(here, b"", 1, is_stored=True)])
        assert garden.proposals.index.waiting["garden"] == {"p1": "agent"}
        garden.room.timeline._give_up([Delivery(there, b"", 2, is_stored=True)])
        assert garden.proposals.index.waiting["garden"] == {}
