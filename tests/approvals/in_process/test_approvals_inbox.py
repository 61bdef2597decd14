"""The inbox: what is raised, decided, used once, and what becomes of it when nobody does anything."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.approvals.inboxes import ALICE, ARGUMENTS, ManualClock, StoredInbox, stored_inbox

from interlock.approvals import inbox as inbox_module
from interlock.approvals.inbox import Expiry
from interlock.approvals.protocol.approval import Approval, Kind, Move, Source, Status
from interlock.core.replicas import Replicas
from interlock.store.ports import Unavailable
from interlock.wire.refusal import Refusal


def name(answer: object) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.message


def data(answer: object) -> dict[str, Any]:
    assert isinstance(answer, Refusal), answer
    assert answer.details is not None
    return answer.details


def ok(answer: object) -> Approval:
    assert isinstance(answer, Approval), answer
    return answer


def status(desk: StoredInbox, id: str) -> Status:
    found = desk.inbox.get(id)
    assert found is not None
    return found.status


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("store.db*")))


# Raising


async def test_a_raised_approval_waits_with_its_arguments_and_is_found_by_caller_and_digest(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        raised = await desk.raised()
        assert desk.inbox.waiting() == [raised]
        assert desk.inbox.find(ALICE, "d1") == raised
        assert raised.params == ARGUMENTS
        assert desk.inbox.find("client:mallory", "d1") is None
        assert desk.inbox.find(ALICE, "d2") is None


async def test_an_identical_call_gets_the_same_approval_and_does_not_extend_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        first = await desk.raised()
        clock.pass_(100)
        again = await desk.raised()
        assert (again.id, again.expires_at) == (first.id, first.created_at + 300)
        others = [await desk.raised("d2"), await desk.raised(requested_by="client:mallory")]
        assert len({first.id, *(one.id for one in others)}) == 3


async def test_twenty_identical_calls_at_once_raise_one_approval(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        raised = await asyncio.gather(*(desk.raised() for _ in range(20)))
        assert len({one.id for one in raised}) == 1
        assert len(desk.inbox.waiting()) == 1


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_principal_may_have_a_hundred_waiting_and_no_more(tmp_path: Path, at_once: bool) -> None:
    async with stored_inbox(tmp_path) as desk:
        calls = [desk.inbox.raise_(desk.call(f"d{number}")) for number in range(103)]
        answers = await asyncio.gather(*calls) if at_once else [await call for call in calls]
        refused = [one for one in answers if isinstance(one, Refusal)]
        assert len(refused) == 3
        assert {one.number for one in refused} == {32003}
        assert data(refused[0])["budget"] == "max_pending_confirmations"
        assert (data(refused[0])["limit"], data(refused[0])["used"]) == (100, 100)
        await desk.raised(requested_by="client:someone-else")


async def test_room_for_another_comes_with_a_decision_and_with_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock, max_pending=1) as desk:
        first = await desk.raised("d1")
        assert data(await desk.inbox.raise_(desk.call("d2")))["retry_after_ms"] == 300_000
        ok(await desk.inbox.decide(first.id, desk.no()))
        await desk.raised("d2")
        clock.pass_(300)
        await desk.inbox.sweep()
        await desk.raised("d3")


async def test_arguments_that_wait_are_bounded_in_bytes(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        large = Raw(b'"' + b"x" * (9 * 1024 * 1024) + b'"')
        await desk.raised("d1", params=large)
        assert data(await desk.inbox.raise_(desk.call("d2", params=large)))["budget"] == "max_pending_bytes"
        await desk.raised("d2")


async def test_asking_and_taking_it_back_in_a_circle_is_asking_too_often(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock, max_pending=3) as desk:
        for number in range(3):
            raised = await desk.raised(f"d{number}")
            ok(await desk.inbox.withdraw(raised.id))
            clock.pass_(1)
        refused = data(await desk.inbox.raise_(desk.call("d9")))
        assert (refused["budget"], refused["used"]) == ("max_pending_confirmations", 3)
        assert refused["retry_after_ms"] == 297_000
        await desk.raised("d9", "client:bob")
        clock.pass_(298)
        await desk.raised("d9")


async def test_the_arguments_of_all_principals_together_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.approvals.inbox.HELD_BYTES_IN_ALL_MAX", 4 * len(ARGUMENTS))
    async with stored_inbox(tmp_path) as desk:
        raised = [await desk.raised("d1", f"client:c{number}") for number in range(4)]
        many = await desk.inbox.raise_(desk.call("d1", "client:c4"))
        assert data(many)["budget"] == "max_pending_bytes_in_all"
        ok(await desk.inbox.decide(raised[0].id, desk.no()))
        await desk.raised("d1", "client:c4")
        for one in desk.inbox.waiting():
            ok(await desk.inbox.withdraw(one.id))
        assert desk.inbox._index.held_bytes == 0


async def test_a_definition_is_asked_about_once_for_all_callers_and_never_lapses(tmp_path: Path) -> None:
    clock = ManualClock()

    def asked(desk: StoredInbox, by: str) -> Approval:
        return desk.inbox.draft(Kind.DEFINITION, Source.AX, requested_by=by, tool="files.delete", digest="t1")

    async with stored_inbox(tmp_path, clock, max_pending=1) as desk:
        first = ok(await desk.inbox.raise_(asked(desk, ALICE)))
        assert ok(await desk.inbox.raise_(asked(desk, "client:bob"))).id == first.id
        await desk.raised("d1")
        clock.pass_(10 * 86_400)
        assert desk.inbox.waiting(Kind.DEFINITION) == [first]
        assert desk.inbox.waiting(Kind.CALL) == []
        assert desk.inbox.find_definition("files.delete", "t1") == first
        assert desk.inbox.find_definition("copied.delete", "t1") is None


async def test_the_name_a_client_gives_itself_is_cut_and_made_writable(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        raised = await desk.raised(agent="\ud800" + "x" * 10_000)
        assert raised.agent == "?" + "x" * 99


# Deciding


async def test_an_approved_call_is_used_once_and_returns_its_arguments_for_the_last_time(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        approved = await desk.approved()
        used = ok(await desk.inbox.use(approved.id))
        assert used.params == ARGUMENTS
        assert name(await desk.inbox.use(approved.id)) == "confirmation_used"
        assert desk.inbox.find(ALICE, "d1") is None
        done = ok(await desk.inbox.finish(approved.id, Move.SUCCEED))
        assert (done.status, done.params) == (Status.DONE, None)
        assert name(await desk.inbox.use(approved.id)) == "confirmation_used"
        assert (await desk.raised()).id != approved.id


async def test_nothing_is_used_before_somebody_approves(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        raised = await desk.raised()
        assert data(await desk.inbox.use(raised.id))["reason"] == "pending"
        assert name(await desk.inbox.use("no-such-id")) == "confirmation_unknown"
        assert status(desk, raised.id) is Status.PENDING


async def test_twenty_parallel_uses_have_exactly_one_winner(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        approved = await desk.approved()
        answers = await asyncio.gather(*(desk.inbox.use(approved.id) for _ in range(20)))
        assert sum(isinstance(one, Approval) for one in answers) == 1
        assert {name(one) for one in answers if isinstance(one, Refusal)} == {"confirmation_used"}


async def test_two_inboxes_on_one_store_use_it_once_between_them(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as one:
        approved = await one.approved()
        async with stored_inbox(tmp_path) as two:
            inboxes = [desk.inbox for desk in (one, two)] * 10
            answers = await asyncio.gather(*(inbox.use(approved.id) for inbox in inboxes))
            assert sum(isinstance(answer, Approval) for answer in answers) == 1


async def test_of_two_simultaneous_decisions_one_counts_and_both_are_recorded(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        raised = await desk.raised()
        answers = await asyncio.gather(
            desk.inbox.decide(raised.id, desk.yes("j1")), desk.inbox.decide(raised.id, desk.yes("j2"))
        )
        assert sorted(isinstance(one, Refusal) for one in answers) == [False, True]
        outcomes = [one["outcome"] for one in await desk.records() if one["method"] == "approvals/approve"]
        assert sorted(outcomes) == ["confirmation_used", "decided", "decided"]


@pytest.mark.req("AX-11.3-11")
async def test_a_denial_says_why_until_the_call_would_have_lapsed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        raised = await desk.raised()
        denied = ok(await desk.inbox.decide(raised.id, desk.no("not on a Friday")))
        assert denied.params is None
        assert desk.inbox.find(ALICE, "d1") == denied
        assert (await desk.raised()).id == raised.id
        assert data(await desk.inbox.use(raised.id))["said"] == "not on a Friday"
        assert name(await desk.inbox.decide(raised.id, desk.yes())) == "confirmation_denied"
        clock.pass_(300)
        assert desk.inbox.find(ALICE, "d1") is None
        assert (await desk.raised()).id != raised.id


async def test_an_approved_call_that_did_not_run_can_still_be_denied(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        approved = await desk.approved()
        ok(await desk.inbox.decide(approved.id, desk.no()))
        assert name(await desk.inbox.use(approved.id)) == "confirmation_denied"


async def test_void_and_withdrawn_approvals_cannot_be_used(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        approved, pending, kept = await desk.approved("d1"), await desk.raised("d2"), await desk.approved("d3")
        voided = await desk.inbox.void_where("anchor_removed", lambda one: one.digest == "d1")
        assert [one.id for one in voided] == [approved.id]
        assert data(await desk.inbox.use(approved.id))["outcome"] == "anchor_removed"
        ok(await desk.inbox.withdraw(pending.id))
        assert name(await desk.inbox.decide(pending.id, desk.yes())) == "confirmation_void"
        ok(await desk.inbox.use(kept.id))


# Time


@pytest.mark.req("AX-11.3-4")
@pytest.mark.parametrize("expiry_s", [300, 45])
async def test_a_decision_counts_until_just_before_expiry_and_then_the_arguments_are_gone(
    tmp_path: Path, expiry_s: int
) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock, expiry_s=expiry_s) as desk:
        early, late = await desk.raised("d1"), await desk.raised("d2")
        clock.pass_(expiry_s - 1)
        assert (await desk.raised("d2")).id == late.id
        ok(await desk.inbox.decide(early.id, desk.yes()))
        clock.pass_(1)
        refused = await desk.inbox.decide(late.id, desk.yes("j2"))
        assert isinstance(refused, Refusal)
        assert (refused.number, refused.message) == (32121, "confirmation_expired")
        found = desk.inbox.get(late.id)
        assert found is not None
        assert (found.status, found.params) == (Status.EXPIRED, None)
        await desk.inbox.sweep()
        filed = await desk.store.kv.get("approvals", late.id, clock.wall())
        assert filed is not None
        assert b"s3cret-name" not in filed.value
        ok(await desk.inbox.use(early.id))


async def test_an_approval_is_good_for_its_time_and_never_longer_than_its_proof(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock, redeem_s=300) as desk:
        long, short = await desk.raised("d1"), await desk.raised("d2")
        ok(await desk.inbox.decide(long.id, desk.yes("j1"), redeem_until=clock.wall() + 9_999))
        ok(await desk.inbox.decide(short.id, desk.yes("j2"), redeem_until=clock.wall() + 60))
        clock.pass_(60)
        assert name(await desk.inbox.use(short.id)) == "confirmation_expired"
        clock.pass_(239)
        assert desk.inbox.find(ALICE, "d1") is not None
        clock.pass_(1)
        assert name(await desk.inbox.use(long.id)) == "confirmation_expired"


@pytest.mark.parametrize("which", ["wall set back", "machine slept"])
async def test_neither_a_clock_set_back_nor_sleep_makes_an_approval_last_longer(tmp_path: Path, which: str) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        raised = await desk.raised()
        if which == "wall set back":
            clock.at += 300
            clock.wall_at -= 10_000
        else:
            clock.wall_at += 300
        assert status(desk, raised.id) is Status.EXPIRED


async def test_the_sweeper_writes_expiries_down_by_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        listener = desk.inbox.listen()
        expiry = Expiry(desk.inbox, Replicas(desk.store, desk.clock))
        await expiry.open()
        await desk.raised()
        clock.pass_(300)
        async with asyncio.timeout(10):
            assert [(await anext(listener)).status for _ in range(2)] == [Status.PENDING, Status.EXPIRED]
        await expiry.close()


async def test_ended_approvals_are_deleted_after_a_day(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        raised = await desk.raised()
        ok(await desk.inbox.decide(raised.id, desk.no()))
        clock.pass_(86_399)
        await desk.inbox.sweep()
        assert status(desk, raised.id) is Status.DENIED
        clock.pass_(1)
        await desk.inbox.sweep()
        assert desk.inbox.get(raised.id) is None
    async with stored_inbox(tmp_path, clock) as desk:
        assert name(await desk.inbox.decide(raised.id, desk.yes())) == "confirmation_unknown"


# Restarts


async def test_after_a_restart_what_waits_still_waits_with_its_arguments_and_no_longer(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        raised = await desk.raised()
    clock.pass_(299)
    async with stored_inbox(tmp_path, clock) as desk:
        assert desk.inbox.waiting() == [raised]
        assert (await desk.raised()).id == raised.id
        clock.pass_(1)
        assert name(await desk.inbox.decide(raised.id, desk.yes())) == "confirmation_expired"


async def test_after_a_restart_what_was_approved_is_used_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        approved = await desk.approved()
    async with stored_inbox(tmp_path, clock) as desk:
        assert desk.inbox.find(ALICE, "d1") == approved
        assert ok(await desk.inbox.use(approved.id)).params == ARGUMENTS
    async with stored_inbox(tmp_path, clock) as desk:
        assert name(await desk.inbox.use(approved.id)) == "confirmation_used"


async def test_a_call_that_was_running_when_the_node_died_is_unknown_and_never_repeated(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        approved = await desk.approved()
        ok(await desk.inbox.use(approved.id))
    async with stored_inbox(tmp_path, clock) as desk:
        assert status(desk, approved.id) is Status.UNKNOWN
        assert data(await desk.inbox.use(approved.id))["reason"] == "unknown"
        assert desk.inbox.find(ALICE, "d1") is None


@pytest.mark.parametrize("end", [Move.SUCCEED, Move.FAIL])
async def test_after_a_restart_what_ended_is_still_ended(tmp_path: Path, end: Move) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        approved = await desk.approved()
        ok(await desk.inbox.use(approved.id))
        ended = ok(await desk.inbox.finish(approved.id, end, "the tool said no" if end is Move.FAIL else None))
    async with stored_inbox(tmp_path, clock) as desk:
        assert desk.inbox.get(approved.id) == ended
        assert name(await desk.inbox.use(approved.id)) == "confirmation_used"


async def test_after_a_restart_the_newer_of_two_approvals_of_one_digest_counts(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        for _ in range(20):  # ids are random, and a store gives them in their order
            lapsed = await desk.raised()
            clock.pass_(300)
            newer = await desk.raised()
            assert newer.id != lapsed.id
            clock.pass_(300)
        newest = await desk.raised()
    async with stored_inbox(tmp_path, clock) as desk:
        assert desk.inbox.find(ALICE, "d1") == newest


async def test_after_a_restart_the_newer_of_two_denials_is_reported(tmp_path: Path) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        for _ in range(20):
            denied = await desk.inbox.decide((await desk.raised()).id, desk.no())
            assert desk.inbox.find(ALICE, "d1") == denied
            clock.pass_(300)
        last = ok(await desk.inbox.decide((await desk.raised()).id, desk.no("the last")))
    async with stored_inbox(tmp_path, clock) as desk:
        assert desk.inbox.find(ALICE, "d1") == last


@pytest.mark.parametrize("end", ["used", "denied", "void", "expired", "withdrawn"])
async def test_erased_arguments_are_no_longer_in_the_file(tmp_path: Path, end: str) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        raised = await desk.raised()
    assert b"s3cret-name" in on_disk(tmp_path)
    async with stored_inbox(tmp_path, clock) as desk:
        match end:
            case "used":
                ok(await desk.inbox.decide(raised.id, desk.yes()))
                ok(await desk.inbox.use(raised.id))
            case "denied":
                ok(await desk.inbox.decide(raised.id, desk.no()))
            case "void":
                ok(await desk.inbox.void(raised.id, "definition_changed"))
            case "withdrawn":
                ok(await desk.inbox.withdraw(raised.id))
            case _:
                clock.pass_(300)
                await desk.inbox.sweep()
    assert b"s3cret-name" not in on_disk(tmp_path)


async def test_a_record_that_cannot_be_read_is_left_out_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with stored_inbox(tmp_path, clock) as desk:
        raised = await desk.raised()
        await desk.store.kv.put("approvals", "broken", b'{"id":"broken","status":"approved"}', clock.wall())
        await desk.store.kv.put("approvals", "nonsense", b"\xff", clock.wall())
    async with stored_inbox(tmp_path, clock) as desk:
        assert desk.inbox.listed() == [raised]
        assert name(await desk.inbox.use("broken")) == "confirmation_unknown"
    assert "broken" in caplog.text


# The store away, the caller gone


async def test_without_a_store_nothing_is_raised_decided_or_used(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        approved, pending = await desk.approved("d1"), await desk.raised("d2")
        await desk.store.close()
        for refused in (
            await desk.inbox.raise_(desk.call("d3")),
            await desk.inbox.decide(pending.id, desk.yes()),
            await desk.inbox.use(approved.id),
        ):
            assert isinstance(refused, Refusal)
            assert refused.number == 32131
        await desk.store.open()
        assert desk.inbox.find(ALICE, "d3") is None
        ok(await desk.inbox.use(approved.id))
        assert status(desk, pending.id) is Status.PENDING


async def test_a_decision_that_cannot_be_recorded_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored_inbox(tmp_path) as desk:
        raised = await desk.raised()
        await desk.recorder.flush()

        async def full(_: object) -> int:
            raise Unavailable("disk full")

        with monkeypatch.context() as patched:
            patched.setattr(desk.audit, "append", full)
            refused = await desk.inbox.decide(raised.id, desk.yes())
        assert isinstance(refused, Refusal)
        assert refused.number == 32131
        assert status(desk, raised.id) is Status.PENDING


async def test_a_release_during_use_leaves_an_honest_end(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        approved = await desk.approved()
        listener = desk.inbox.listen()
        using = asyncio.ensure_future(desk.inbox.use(approved.id))
        await asyncio.sleep(0)
        using.cancel()
        async with asyncio.timeout(10):
            changes = [await anext(listener) for _ in range(2)]
        assert [one.status for one in changes] == [Status.USED, Status.FAILED]
        assert using.cancelled()
        assert name(await desk.inbox.use(approved.id)) == "confirmation_used"


# The record, the listeners


async def test_every_decision_is_on_record_with_anchor_jti_and_digests_and_without_arguments(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        approved = await desk.approved()
        decisions = [one for one in await desk.records() if one["method"] == "approvals/approve"]
        assert len(decisions) == 1
        expected = {
            "approval": approved.id,
            "who": "operator:bob",
            "requested_by": ALICE,
            "tool": "files.delete",
            "anchor": "ops",
            "jti": "j1",
            "digest": "d1",
            "tool_digest": "t1",
            "verdict": "approved",
        }
        assert expected.items() <= decisions[0].items()
        ok(await desk.inbox.use(approved.id))
        ok(await desk.inbox.finish(approved.id, Move.SUCCEED))
        records = await desk.records()
        assert [one["verdict"] for one in records] == ["pending", "approved", "used", "done"]
        assert "s3cret-name" not in str(records)


async def test_listeners_receive_every_change_in_order_and_a_slow_listener_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.approvals.inbox.QUEUE_MAX", 2)
    async with stored_inbox(tmp_path) as desk:
        listener, gone = desk.inbox.listen(), desk.inbox.listen()
        gone.close()
        approved = await desk.approved()
        ok(await desk.inbox.use(approved.id))
        assert listener.dropped == 1
        assert [(await anext(listener)).status for _ in range(2)] == [Status.APPROVED, Status.USED]
    with pytest.raises(StopAsyncIteration):
        await anext(listener)


async def test_of_those_that_ended_only_the_latest_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "ENDED_MAX", 3)
    async with stored_inbox(tmp_path) as desk:
        ended = [(await desk.raised(f"d{number}")).id for number in range(6)]
        for id in ended:
            ok(await desk.inbox.decide(id, desk.no()))
        waiting = await desk.raised("waiting")
        await desk.inbox.sweep()
        assert {one.id for one in desk.inbox.listed()} == {*ended[3:], waiting.id}
