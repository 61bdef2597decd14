"""A registry over six years: provisional reviews, deprecation, withdrawal, the years in which a name is kept."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.names.old_registry import entry
from tests.names.registries import ACME, ZEBRA, NamesNode, names_at, proposal

from interlock.approvals.protocol.approval import Approval, Kind
from interlock.approvals.protocol.approval import Status as ApprovalStatus
from interlock.names.protocol.entry import (
    ENTRY_MOVES,
    REQUEST_MOVES,
    EntryMove,
    EntryStatus,
    RequestState,
    review_due,
)
from interlock.names.protocol.registry import Retrieval
from interlock.names.state import Actor
from interlock.wire.refusal import NotFound, Refusal, Refused


async def refusal(work: object) -> str:
    with pytest.raises(Refused) as refused:
        await work  # type: ignore[misc]
    return refused.value.code


@pytest.mark.req("REG-7.3-6")
def test_the_moves_of_an_entry_are_these_and_no_others() -> None:
    assert {
        (before.value, move.value, after.value if after else None) for (before, move), after in ENTRY_MOVES.items()
    } == {
        ("Provisional", "promote", "Active"),
        ("Provisional", "deprecate", "Deprecated"),
        ("Provisional", "remove", None),
        ("Active", "deprecate", "Deprecated"),
        ("Deprecated", "reinstate", "Active"),
        ("Deprecated", "withdraw", "Withdrawn"),
        ("Withdrawn", "register", "Active"),
    }
    assert len(EntryStatus) * len(EntryMove) == 24


async def entry_that_is(here: NamesNode, status: EntryStatus) -> None:
    """acme_search, brought there as it is in life."""
    provisional = {"status": "Provisional", "specification_reference": "draft-acme-later"}
    await here.registered(**(provisional if status is EntryStatus.PROVISIONAL else {}))
    if status in (EntryStatus.DEPRECATED, EntryStatus.WITHDRAWN):
        await here.actions.deprecate(ACME, "acme_search")
    if status is EntryStatus.WITHDRAWN:
        here.set_day("2027-11-17")
        await here.actions.withdraw(ACME, "acme_search")
    assert here.entry().status is status


@pytest.mark.req("REG-7.3-6", "REG-7.3-3", "REG-7.3-1")
@pytest.mark.parametrize(
    ("status", "answers"),
    [  # of deprecate, reinstate, withdraw, and asking for the name again
        (EntryStatus.PROVISIONAL, ("Deprecated", "illegal_transition", "deprecation_too_short", "name_taken")),
        (EntryStatus.ACTIVE, ("Deprecated", "illegal_transition", "deprecation_too_short", "name_taken")),
        (EntryStatus.DEPRECATED, ("illegal_transition", "Active", "deprecation_too_short", "name_taken")),
        (EntryStatus.WITHDRAWN, ("illegal_transition", "illegal_transition", "illegal_transition", "submitted")),
    ],
)
async def test_every_move_that_is_not_in_the_table_is_refused(
    tmp_path: Path, status: EntryStatus, answers: tuple[str, ...]
) -> None:
    for number, wanted in enumerate(answers):
        async with names_at(tmp_path / str(number)) as here:
            await entry_that_is(here, status)
            before = here.entry()
            moves = (here.actions.deprecate, here.actions.reinstate, here.actions.withdraw)
            work = moves[number](ACME, "acme_search") if number < 3 else here.requests.file(ACME, proposal())
            if wanted in ("Deprecated", "Active"):
                assert (await work).status.value == wanted  # type: ignore[union-attr]
            elif wanted == "submitted":
                await here.accept(await work)  # type: ignore[arg-type]
                assert here.entry().status is EntryStatus.ACTIVE
            else:
                with pytest.raises(Refused) as refused:
                    await work
                assert refused.value.code == wanted
                assert here.entry() == before
                if wanted == "deprecation_too_short":  # it says when at the earliest
                    assert refused.value.message == "acme_search can be withdrawn on 2027-11-17 at the earliest"


@pytest.mark.req("REG-7.3-6", "REG-5-14")
@pytest.mark.parametrize("answer", ["promote", "remove"])
async def test_a_review_of_what_is_provisional_no_more_changes_nothing(tmp_path: Path, answer: str) -> None:
    async with names_at(tmp_path) as here:
        await here.registered(status="Provisional", specification_reference="draft-acme-later-00")
        here.set_day("2027-09-18")
        await here.requests.look()
        (review,) = here.state.registry.open_requests()
        await here.actions.deprecate(ACME, "acme_search")
        done = await here.accept(review, answer=answer)
        assert isinstance(done, Approval)
        assert (done.status, done.outcome) == (
            ApprovalStatus.FAILED,
            "illegal_transition: acme_search is Deprecated by now",
        )
        assert here.entry().status is EntryStatus.DEPRECATED


@pytest.mark.req("REG-N-2", "REG-5-2")
def test_the_moves_of_a_request_are_these_and_no_others() -> None:
    assert {(before.value, move.value, after.value) for (before, move), after in REQUEST_MOVES.items()} == {
        ("submitted", "review", "in_review"),
        ("submitted", "return", "revision_requested"),
        ("submitted", "cancel", "cancelled"),
        ("in_review", "accept", "accepted"),
        ("in_review", "return", "revision_requested"),
        ("in_review", "reject", "rejected"),
        ("in_review", "cancel", "cancelled"),
    }


@pytest.mark.req("REG-N-2", "REG-5-2")
@pytest.mark.parametrize("end", [state for state in RequestState if state.value not in ("submitted", "in_review")])
async def test_an_ended_request_does_not_change_its_state(tmp_path: Path, end: RequestState) -> None:
    async with names_at(tmp_path) as here:
        request = await here.requests.file(ACME, proposal())
        match end:
            case RequestState.ACCEPTED:
                await here.accept(request)
            case RequestState.REVISION_REQUESTED:
                await here.deny(request, "why", "return")
            case RequestState.REJECTED:
                await here.deny(request, "why")
            case RequestState.CANCELLED:
                await here.requests.cancel(ACME, request.id)
        before = here.state.registry.requests[request.id]
        assert before.state is end
        for decided in (
            await here.accept(request),
            await here.deny(request, "x"),
            await here.deny(request, "x", "return"),
        ):
            assert isinstance(decided, Refusal), decided
        assert await refusal(here.requests.cancel(ACME, request.id)) == "illegal_transition"
        assert here.state.registry.requests[request.id] == before


@pytest.mark.req("REG-5-13", "REG-7.3-3", "REG-7.3-5")
def test_leap_days_are_counted_in_waiting_times() -> None:
    assert review_due("2028-02-29") == "2029-02-28"
    today = "2040-01-01"
    leap = replace(entry("acme_search"), deprecated_on="2028-02-29", withdrawn_on="2028-02-29")
    assert leap.withdrawable_on(today) == "2029-03-01"
    assert leap.free_on(today) == "2033-03-01"
    assert replace(leap, deprecated_on="2027-11-17").withdrawable_on(today) == "2028-11-17"


@pytest.mark.req("REG-7.3-1", "REG-7.3-2", "REG-7.3-3", "REG-7.3-4", "REG-7.3-5", "REG-7.3-6", "REG-5-14")
@pytest.mark.req("REG-4.1-8", "REG-4.1-9", "REG-5-12", "REG-5-13", "REG-N-4", "REG-N-3")
async def test_six_years_of_a_registry(tmp_path: Path) -> None:
    async with names_at(tmp_path) as here:
        await here.registered()
        await _play_provisional(here)
        await _play_withdrawal(here)
        await _play_reissue(here)
    async with names_at(tmp_path, here.clock) as again:  # the log alone holds all of it
        assert again.state.registry.in_order() == here.state.registry.in_order()
        assert again.state.registry.holders == here.state.registry.holders


@pytest.mark.req("REG-5-13")
async def test_notice_of_a_review_is_given_on_its_days_and_once(tmp_path: Path) -> None:
    async with names_at(tmp_path) as here:
        await here.registered("acme_one", status="Provisional", specification_reference="draft-acme-later")
        heard = here.inbox.listen()
        days = (
            "2027-09-17",
            "2027-09-18",
            "2027-10-17",
            "2027-10-18",
            "2027-11-09",
            "2027-11-10",
            "2027-11-17",
            "2028-01-01",
        )
        for day in days:
            here.set_day(day)
            for _ in range(2):
                await here.requests.look()
                await here.reminders.look()
        given = [one for one in await here.state.steps_of("acme_one") if one.what == "review_notice"]
        assert [one.at[:10] for one in given] == ["2027-09-18", "2027-10-18", "2027-11-10", "2027-11-17"]
        assert [one.reason.partition("2027")[0] for one in given] == [
            *["its review is due on "] * 3,
            "its review was due on ",
        ]
        heard.close()
        told = [one.tool async for one in heard if one.status is ApprovalStatus.PENDING]
        assert told == ["names.acme_one"] * 5  # raised, and reminded of on each of the days
        assert here.reminders.due().overdue == 1
        here.set_day("2027-11-16")
        assert here.reminders.due().overdue == 0
    async with names_at(tmp_path, here.clock) as again:
        here.set_day("2028-01-02")
        await again.reminders.look()
        steps = await again.state.steps_of("acme_one")
        assert len([one for one in steps if one.what == "review_notice"]) == 4


@pytest.mark.req("REG-8.4-2")
async def test_a_public_name_is_to_be_confirmed_every_ninety_days(tmp_path: Path) -> None:
    async with names_at(tmp_path) as here:
        await here.registered(authentication_scope="public", no_authentication_planned=True)

        async def reminders_on(day: str) -> int:
            here.set_day(day)
            await here.reminders.look()
            await here.reminders.look()
            return len([one for one in await here.state.steps_of("acme_search") if one.what == "public_notice"])

        assert [await reminders_on(day) for day in ("2027-02-14", "2027-02-15", "2027-03-01")] == [0, 1, 1]
        assert here.reminders.due().unconfirmed == 1
        await here.actions.confirm_public(ACME, "acme_search")
        assert here.reminders.due().unconfirmed == 0
        operator = Actor(principal="operator:ada", is_operator=True)
        await here.actions.confirm_public(operator, "acme_search")
        assert (await here.state.steps_of("acme_search"))[-1].is_override  # on record as not the controller's
        assert await refusal(here.actions.confirm_public(ZEBRA, "acme_search")) == "not_change_controller"
        assert [await reminders_on(day) for day in ("2027-05-29", "2027-05-30")] == [1, 2]


async def _play_provisional(here: NamesNode) -> None:
    for name in ("acme_one", "acme_two", "acme_three"):
        entry = await here.registered(name, status="Provisional", specification_reference="draft-acme-later")
        assert (entry.status, entry.review_due) == (EntryStatus.PROVISIONAL, "2027-11-17")
    await here.requests.look()
    assert not here.inbox.waiting(Kind.REQUEST)
    here.set_day("2027-09-18")  # sixty days before
    await here.requests.look()
    await here.requests.look()  # raised once
    reviews = {one.subject: one for one in here.state.registry.open_requests()}
    assert sorted(reviews) == ["acme_one", "acme_three", "acme_two"]
    await here.amend(ACME, proposal("acme_one", specification_reference="draft-acme-later-00"))
    promoted = await here.accept(reviews["acme_one"], answer="promote")
    assert isinstance(promoted, Approval)
    assert promoted.status is ApprovalStatus.DONE, promoted.outcome
    assert (here.entry("acme_one").status, here.entry("acme_one").review_due) == (EntryStatus.ACTIVE, None)
    await here.deny(reviews["acme_two"], "name a revision")
    assert (here.entry("acme_two").status, here.entry("acme_two").answer_due) == (EntryStatus.PROVISIONAL, "2027-12-17")
    await here.accept(reviews["acme_three"], answer="remove", reason="abandoned")
    assert here.state.entry("acme_three") is None
    assert here.state.registry.holders["acme_"].controller == "Acme"
    assert [step.what for step in await here.state.steps_of("acme_three")][-1] == "remove"
    await here.registered("acme_three")  # free at once


async def _play_withdrawal(here: NamesNode) -> None:
    changes = here.actions
    assert await refusal(changes.withdraw(ACME, "acme_search")) == "deprecation_too_short"
    assert await refusal(changes.reinstate(ACME, "acme_search")) == "illegal_transition"
    assert await refusal(changes.deprecate(ZEBRA, "acme_search")) == "not_change_controller"
    assert await refusal(changes.deprecate(ACME, "acme_search", "No-Name")) == "name_syntax"
    with pytest.raises(NotFound):
        await changes.deprecate(ACME, "acme_nothing")
    here.set_day("2028-02-29")
    assert await refusal(changes.declare(ZEBRA, "acme_search", "Zebra's server")) == "not_change_controller"
    await changes.declare(ACME, "acme_search", "Zebra's server")
    assert await refusal(changes.declare(ACME, "acme_search", "Zebra's server")) == "exists"
    await changes.deprecate(ACME, "acme_search", "acme_one")
    assert (here.entry().status, here.entry().deprecated_on) == (EntryStatus.DEPRECATED, "2028-02-29")
    assert here.entry().successor == "acme_one"
    assert await refusal(changes.deprecate(ACME, "acme_search")) == "illegal_transition"
    await changes.reinstate(ACME, "acme_search")
    assert (here.entry().status, here.entry().deprecated_on, here.entry().successor) == (EntryStatus.ACTIVE, None, None)
    await changes.deprecate(ACME, "acme_search", "acme_one")
    here.set_day("2029-02-28")
    admin = Actor(principal="operator:ann", override="the vendor is gone")
    assert await refusal(changes.withdraw(admin, "acme_search")) == "deprecation_too_short"
    here.set_day("2029-03-01")
    assert await refusal(changes.withdraw(admin, "acme_search")) == "implementations_remain"
    assert await refusal(changes.end_implementation(ACME, "acme_search", "Zebra's server", " ")) == "evidence_required"
    assert (
        await refusal(changes.end_implementation(ZEBRA, "acme_search", "Zebra's server", "gone"))
        == "not_change_controller"
    )
    await changes.end_implementation(ACME, "acme_search", "Zebra's server", "switched off, 2029-02-01")
    await changes.withdraw(admin, "acme_search")
    assert (here.entry().status, here.entry().withdrawn_on) == (EntryStatus.WITHDRAWN, "2029-03-01")
    (last,) = [step for step in await here.state.steps_of("acme_search") if step.what == "withdraw"]
    assert (last.is_override, last.reason) == (True, "the vendor is gone")
    for work in (changes.withdraw, changes.reinstate, changes.deprecate):
        assert await refusal(work(ACME, "acme_search")) == "illegal_transition"


async def _play_reissue(here: NamesNode) -> None:
    await here.actions.consent(ACME, "acme_", "Zebra", "2040-01-01")
    taken = proposal(change_controller="Zebra")
    here.set_day("2034-02-28")
    assert await refusal(here.requests.file(ZEBRA, taken)) == "name_in_quarantine"
    own = await here.requests.file(ACME, proposal())  # the same registrant may at once
    await here.requests.cancel(ACME, own.id)
    await _play_same_registrant(here)
    here.set_day("2034-03-01")
    await here.registered("acme_search", ZEBRA, change_controller="Zebra")
    assert (here.entry().change_controller, here.entry().first_registered) == ("Zebra", "2034-03-01")


async def _play_same_registrant(here: NamesNode) -> None:
    """Another name of theirs, withdrawn today: they have it again today, as a new entry."""
    changes = here.actions
    await here.registered("acme_again")
    first = here.entry("acme_again").first_registered
    await changes.deprecate(ACME, "acme_again")
    assert here.entry("acme_again").first_registered == first
    here.set_day("2035-02-28")
    await changes.withdraw(ACME, "acme_again")
    assert await refusal(here.requests.file(ZEBRA, proposal("acme_again", change_controller="Zebra"))) == (
        "name_in_quarantine"
    )
    await here.registered("acme_again")
    assert (here.entry("acme_again").status, here.entry("acme_again").first_registered) == (
        EntryStatus.ACTIVE,
        "2035-02-28",
    )
    here.set_day("2034-02-28")


@pytest.mark.req("REG-5-14", "REG-4.1-10")
async def test_a_review_judges_all_criteria_again_and_ends_in_one_of_three_ways(tmp_path: Path) -> None:
    async with names_at(tmp_path) as here:
        entry = await here.registered("acme_one", status="Provisional", specification_reference="draft-acme-later")
        here.set_day("2027-09-18")
        await here.requests.look()
        (review,) = here.state.registry.open_requests()
        broken = replace(entry, authentication_scope="user")  # ambiguous by the criteria of the day
        here.state.registry.entries["acme_one"] = broken
        failed = await here.accept(review, answer="promote")
        assert isinstance(failed, Approval)
        assert failed.status is ApprovalStatus.FAILED and "which credential" in (failed.outcome or "")
        assert here.state.registry.entries["acme_one"].status is EntryStatus.PROVISIONAL
    async with names_at(tmp_path / "other") as here:
        before = await here.registered("acme_one", status="Provisional", specification_reference="draft-acme-later-00")
        here.set_day("2027-09-18")
        await here.requests.look()
        (review,) = here.state.registry.open_requests()
        odd = await here.accept(review, answer="adopt")
        assert isinstance(odd, Refusal)
        assert here.entry("acme_one").status is EntryStatus.PROVISIONAL
        await here.accept(review, answer="promote")
        assert here.entry("acme_one").status is EntryStatus.ACTIVE
        assert here.entry("acme_one").first_registered == before.first_registered


@pytest.mark.req("REG-4.1-8", "REG-4.1-10", "REG-N-3")
async def test_a_transfer_needs_both_sides_and_public_entries_are_confirmed(tmp_path: Path) -> None:
    async with names_at(tmp_path) as here:
        await here.registered(authentication_scope="public", no_authentication_planned=True)
        changes = here.actions
        assert await refusal(changes.transfer(ACME, "acme_search", "Zebra")) == "unknown_controller"
        await here.registered("zebra_x", ZEBRA, change_controller="Zebra", vendor_prefix="zebra_")
        assert await refusal(changes.transfer(ZEBRA, "acme_search", "Zebra")) == "not_change_controller"
        assert (await changes.transfer(ACME, "acme_search", "Zebra")).change_controller == "Acme"
        assert await refusal(changes.transfer(ACME, "acme_search", "Zebra")) == "not_change_controller"
        assert (await changes.transfer(ZEBRA, "acme_search", "Zebra")).change_controller == "Zebra"
        assert here.entry().first_registered == "2026-11-17"
        here.set_day("2027-03-01")
        assert await refusal(changes.confirm_public(ACME, "acme_search")) == "not_change_controller"
        assert (await changes.confirm_public(ZEBRA, "acme_search")).public_confirmed_on == "2027-03-01"
        assert await refusal(changes.confirm_public(ZEBRA, "zebra_x")) == "not_public"


@pytest.mark.req("REG-7.3-4", "REG-8.3-1")
async def test_servers_that_offer_a_name_count_as_its_implementations_for_ninety_days(tmp_path: Path) -> None:
    async with names_at(tmp_path) as here:
        here.offered = [("acme_search", "files"), ("acme_other", "files"), ("zebra_a", "z1"), ("zebra_b", "z2")]
        request = await here.requests.file(ACME, proposal())
        (use,) = [one for one in request.findings if one.code == "observed_use"]  # a prefix that servers here use
        assert (use.verdict, use.reason) == (
            "needs_expert",
            "names under acme_ are offered here on 2026-11-17 by 1 of the servers: files",
        )
        await here.accept(request)
        here.offered.append(("none_at_all", "odd"))
        second = await here.requests.file(ACME, proposal("other", vendor_prefix="none", cross_vendor=True))
        third = await here.requests.file(ACME, proposal("acme_third"))  # its own by now
        assert "observed_use" not in {one.code for one in (*second.findings, *third.findings)}
        assert "prefix_advice" in {one.code for one in second.findings if one.verdict == "note"}
        await here.actions.deprecate(ACME, "acme_search")
        here.set_day("2027-11-17")
        with pytest.raises(Refused, match="files \\(2027-11-17\\)") as refused:
            await here.actions.withdraw(ACME, "acme_search")
        assert refused.value.code == "implementations_remain"
        assert refused.value.details == {"by": ["files (2027-11-17)"]}
        here.offered = []
        here.set_day("2028-02-14")
        assert await refusal(here.actions.withdraw(ACME, "acme_search")) == "implementations_remain"
        here.set_day("2028-02-16")
        assert (await here.actions.withdraw(ACME, "acme_search")).status is EntryStatus.WITHDRAWN


@pytest.mark.req("REG-8.2-4")
async def test_a_document_that_changes_or_is_lost_is_noted_and_nothing_else(tmp_path: Path) -> None:
    async with names_at(tmp_path) as here:
        before = await here.registered()

        async def weeks_later(day: str, outcome: Retrieval) -> list[str]:
            here.set_day(day)
            here.document = outcome
            await here.watch.look()
            return [step.what for step in await here.state.steps_of("acme_search")][3:]

        same, other = here.document, Retrieval(outcome="retrieved", digest="sha256:11")
        lost = Retrieval(outcome="failed", detail="404")
        assert await weeks_later("2026-11-20", other) == []  # not a week yet
        assert await weeks_later("2026-11-24", same) == []
        assert await weeks_later("2026-12-01", other) == ["document_changed"]
        assert await weeks_later("2026-12-08", other) == ["document_changed"]  # told once
        assert await weeks_later("2026-12-15", Retrieval(outcome="skipped_offline")) == ["document_changed"]
        assert await weeks_later("2026-12-22", lost) == ["document_changed"]
        assert await weeks_later("2026-12-29", lost) == ["document_changed"]
        assert await weeks_later("2027-01-05", lost) == ["document_changed", "reference_lost"]
        assert await weeks_later("2027-01-12", lost) == ["document_changed", "reference_lost"]
        assert here.entry() == before
