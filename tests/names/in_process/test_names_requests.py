"""Requests to the registry: checked, filed, decided by experts in the inbox, and what they become."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.names.registries import ACME, ARGUMENTS, RETURNS, ZEBRA, NamesNode, names_at, proposal

from interlock.approvals.protocol.approval import Approval, Kind, Source, Status
from interlock.names import actions, state
from interlock.names.actions import Publisher
from interlock.names.protocol.entry import EntryStatus, RegistryEntry, RequestState
from interlock.names.protocol.publication import Publication, publish, published_entry
from interlock.names.protocol.registry import BadStep, Evidence, NameProposal, RegistryStep, decode_step
from interlock.names.requests import request_digest
from interlock.names.state import Actor, initial_steps
from interlock.store.sqlite.store import NAMES_FILE
from interlock.wire.refusal import NotFound, Refusal, Refused


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[NamesNode]:
    async with names_at(tmp_path) as made:
        yield made


def codes(findings: Any) -> set[str]:
    return {one.code for one in findings}


@pytest.mark.req("REG-6-1", "REG-6-2", "REG-6-3", "REG-6-4", "REG-4.1-1")
async def test_a_new_registry_has_the_four_names_of_the_draft_and_nothing_invented(
    here: NamesNode, tmp_path: Path
) -> None:
    entries = here.state.registry.in_order()
    names = ["org_alter_enforcement_gates", "org_alter_handbook", "org_alter_ingest", "org_alter_sop_registry"]
    assert [one.surface_name for one in entries] == names
    for one in entries:
        assert one.specification_reference == "draft-morrison-org-alter-policy-provision-00"
        assert (one.authentication_scope, one.vendor_prefix) == ("member-recognition", "org_alter_")
        assert (one.change_controller, one.status) == ("Alter Meridian Pty Ltd", EntryStatus.ACTIVE)
        assert one.first_registered == "2026-05-15"
        assert (one.specification.schema_source, one.specification.has_schemas) == ("none", False)
    assert not (tmp_path / NAMES_FILE).exists()  # looking at it writes nothing
    await here.registered()
    async with names_at(tmp_path, here.clock) as again:
        assert list(again.state.registry.entries) == list(here.state.registry.entries)
        assert len(initial_steps()) == 4


@pytest.mark.req("REG-5-1", "REG-5-2", "REG-5-9", "REG-5-11", "REG-4.1-10", "REG-3-3")
async def test_a_request_becomes_an_active_entry_by_an_experts_decision_alone(here: NamesNode) -> None:
    request = await here.requests.file(ACME, proposal())
    assert request.state is RequestState.IN_REVIEW
    assert here.state.entry("acme_search") is None
    waiting = here.waiting(request)
    assert (waiting.kind, waiting.source, waiting.expires_at) == (Kind.REQUEST, Source.NAMES, None)
    done = await here.accept(request)
    assert isinstance(done, Approval)
    assert done.status is Status.DONE
    entry = here.entry()
    assert (entry.status, entry.first_registered) == (EntryStatus.ACTIVE, "2026-11-17")
    stored = entry.specification
    assert stored.has_schemas
    assert (stored.argument_schema, stored.return_schema, stored.schema_source) == (ARGUMENTS, RETURNS, "registrant")
    assert (stored.authentication_scope, stored.semantics) == ("member-recognition", "section 2")
    assert (stored.revision, stored.retrieved_at, stored.document_digest) == (1, "2026-11-17", "sha256:00")
    decided = here.state.registry.requests[request.id]
    assert (decided.decided_by, decided.decided_on, decided.reason) == ("expert:eve", "2026-11-17", "looked at")
    assert here.state.registry.controller("Acme").principals == ("client:acme",)
    assert here.state.registry.holders["acme_"].controller == "Acme"


async def test_an_experts_signature_covers_the_request_and_no_later_finding(here: NamesNode) -> None:
    request = await here.requests.file(ACME, proposal())
    assert here.waiting(request).digest == request_digest(request)
    assert request.proposal is not None
    other = replace(request.proposal, specification_reference="draft-acme-other-00")
    for changed in ({"proposal": other}, {"controller": "Zebra"}, {"subject": "acme_find"}, {"filed_by": "client:x"}):
        assert request_digest(replace(request, **changed)) != request_digest(request), changed
    later = replace(request, state=RequestState.ACCEPTED, findings=(), decided_by="expert:eve", reason="fine")
    assert request_digest(later) == request_digest(request)


@pytest.mark.req("REG-4.1-1", "REG-4.1-9")
async def test_a_record_without_a_field_or_with_another_status_is_invalid(here: NamesNode) -> None:
    entry = msgspec.to_builtins(await here.registered(), enc_hook=lambda raw: bytes(raw).decode())
    whole = msgspec.json.encode(RegistryStep(at="2026-11-17T00:00:00Z", by="x", what="accept", entry=here.entry()))
    assert decode_step(whole).entry == here.entry()
    seven = ["surface_name", "specification_reference", "authentication_scope", "vendor_prefix", "change_controller"]
    for field in (*seven, "status", "first_registered"):
        assert field in entry
        told = msgspec.json.decode(whole)
        del told["entry"][field]
        with pytest.raises(BadStep):
            decode_step(msgspec.json.encode(told))
    assert [one.value for one in EntryStatus] == ["Active", "Provisional", "Deprecated", "Withdrawn"]
    for status in ("active", "ACTIVE", "Removed", ""):
        told = msgspec.json.decode(whole)
        told["entry"]["status"] = status
        with pytest.raises(BadStep):
            decode_step(msgspec.json.encode(told))


@pytest.mark.req("REG-4.1-9", "REG-6-2")
@pytest.mark.parametrize("status", EntryStatus)
def test_the_status_of_initial_entries_is_what_their_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: EntryStatus
) -> None:
    told = json.loads(state._FILE.read_text())
    (tmp_path / "initial.json").write_text(json.dumps(told | {"status": status.value}))
    monkeypatch.setattr(state, "_FILE", tmp_path / "initial.json")
    steps = state.initial_steps.__wrapped__()
    assert [step.entry.status for step in steps if step.entry is not None] == [status] * 4
    (tmp_path / "initial.json").write_text(json.dumps(told | {"status": status.value.lower()}))
    with pytest.raises(msgspec.ValidationError):
        state.initial_steps.__wrapped__()


@pytest.mark.req("REG-4.1-10")
def test_a_request_does_not_say_when_it_was_first_registered() -> None:
    said = msgspec.json.encode({"surface_name": "a", "change_controller": "A", "first_registered": "2020-01-01"})
    with pytest.raises(msgspec.ValidationError, match="first_registered"):
        msgspec.json.decode(said, type=NameProposal)


@pytest.mark.req("REG-9-4", "REG-5-7")
async def test_imported_entries_are_changed_only_at_their_source(here: NamesNode) -> None:
    source = "https://names.example"
    foreign = replace(await here.registered(), surface_name="zoo_feed", vendor_prefix="zoo_", change_controller="Zoo")
    publisher = Publisher(here.state, tuple)

    async def import_(entry: RegistryEntry) -> None:
        data = publish(Publication(entries=(entry,), updated="2026-11-17", today="2026-11-17"), "json")
        await publisher.import_("operator:ada", data, source, is_trusted=False)

    foreign = replace(foreign, first_registered="2020-02-02")
    await import_(foreign)
    assert here.entry("zoo_feed").source == source
    assert here.entry("zoo_feed").first_registered == "2020-02-02"
    with pytest.raises(Refused) as refused:
        await import_(replace(here.entry(), change_controller="Zoo"))
    assert (refused.value.code, refused.value.details) == ("name_taken", {"names": ["acme_search"]})
    zoo = Actor(principal="operator:zoo", is_operator=True, override="asked to")
    asked = proposal("zoo_feed", vendor_prefix="zoo_", change_controller="Zoo")
    for work, error in (
        (here.amend(zoo, asked), "read_only"),
        (here.actions.deprecate(zoo, "zoo_feed"), "read_only"),
        (here.requests.file(zoo, asked), "name_taken"),
    ):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.code == error
    assert here.entry("zoo_feed") == replace(foreign, source=source)
    assert (await here.actions.deprecate(ACME, "acme_search")).status is EntryStatus.DEPRECATED  # its own it changes
    await import_(replace(foreign, status=EntryStatus.WITHDRAWN, withdrawn_on="2025-01-01"))
    assert here.entry("zoo_feed").status is EntryStatus.WITHDRAWN
    with pytest.raises(Refused) as refused:  # it is the other registry's to give away
        await here.requests.file(zoo, asked)
    assert refused.value.code == "name_taken"


@pytest.mark.req("REG-5-10", "REG-N-2", "REG-5-2")
async def test_a_denial_has_a_reason_and_a_resubmission_names_the_request_before(here: NamesNode) -> None:
    request = await here.requests.file(ACME, proposal())
    refused = await here.deny(request, reason=" ")
    assert isinstance(refused, Refusal) and refused.details is not None
    assert (refused.message, refused.details["detail"]) == ("reason_required", "give a reason: the registrant gets it")
    plain = await here.requests.file(ACME, proposal("acme_plain"))
    assert isinstance(await here.accept(plain, reason=None), Approval)  # where nothing is open, it needs no words
    await here.deny(request, "the schema is not the document's", "return")
    returned = here.state.registry.requests[request.id]
    assert (returned.state, returned.reason) == (RequestState.REVISION_REQUESTED, "the schema is not the document's")
    again = await here.requests.file(ACME, proposal(previous=request.id))
    assert again.previous == request.id
    await here.deny(again, "squatting")
    assert here.state.registry.requests[again.id].state is RequestState.REJECTED
    with pytest.raises(NotFound):
        await here.requests.file(ACME, proposal(previous="unknown"))
    with pytest.raises(Refused, match="does not cancel"):
        await here.requests.cancel(ACME, again.id)


@pytest.mark.req("REG-N-3", "REG-4.1-8")
async def test_a_request_is_cancelled_only_by_the_client_who_filed_it(here: NamesNode) -> None:
    request = await here.requests.file(ACME, proposal())
    with pytest.raises(Refused) as refused:
        await here.requests.cancel(ZEBRA, request.id)
    assert refused.value.code == "not_change_controller"
    assert (await here.requests.cancel(ACME, request.id)).state is RequestState.CANCELLED
    assert here.waiting(request).status is Status.WITHDRAWN


@pytest.mark.req("REG-5-9", "REG-N-4")
async def test_a_party_to_the_request_does_not_decide_it_unless_it_is_the_only_expert(here: NamesNode) -> None:
    request = await here.requests.file(ACME, proposal())
    refused = await here.accept(request, by="acme")
    assert isinstance(refused, Refusal)
    assert refused.message == "self_approval"
    assert not (await here.registered("acme_list")).self_reviewed
    here.experts = ("acme",)
    await here.accept(request, by="acme")
    assert here.entry().self_reviewed


@pytest.mark.req("REG-N-4")
async def test_a_person_with_several_keys_decides_their_own_request_on_record(here: NamesNode) -> None:
    request = await here.requests.file(ACME, proposal())
    refused = await here.accept(request, by="acme")
    assert isinstance(refused, Refusal)
    assert "registry.self_review" in (refused.details or {})["detail"]
    here.may_self_review = True
    await here.accept(request, by="acme")
    assert here.entry().self_reviewed


@pytest.mark.req("REG-5-7", "REG-5-2")
async def test_of_two_requests_for_one_name_one_is_accepted_also_with_two_processes(
    here: NamesNode, tmp_path: Path
) -> None:
    async with names_at(tmp_path, here.clock) as other:
        first, second = await asyncio.gather(
            here.requests.file(ACME, proposal("zoo", vendor_prefix="none", cross_vendor=True)),
            other.requests.file(
                ZEBRA, proposal("zoo", vendor_prefix="none", cross_vendor=True, change_controller="Zebra")
            ),
        )
        done = await asyncio.gather(here.accept(first), other.accept(second))
        ends = sorted(one.status.value for one in done if isinstance(one, Approval))
        assert ends == ["done", "failed"]
        await here.state.refresh()
        await other.state.refresh()
        assert here.entry("zoo") == other.entry("zoo")
        lost = next(one for one in done if isinstance(one, Approval) and one.status is Status.FAILED)
        assert "zoo is registered to" in (lost.outcome or "")
        assert other.state.registry.requests[lost.target or ""].state is RequestState.REJECTED


@pytest.mark.req("REG-4.1-8", "REG-4.1-10", "REG-8.2-1", "REG-4.1-3", "REG-8.4-4")
async def test_an_amendment_is_the_controllers_and_a_breaking_amendment_is_decided(here: NamesNode) -> None:
    before = await here.registered(authentication_scope="public", no_authentication_planned=True)
    with pytest.raises(Refused) as refused:
        await here.amend(ZEBRA, proposal())
    assert refused.value.code == "not_change_controller"
    assert here.entry() == before
    public: dict[str, Any] = {"authentication_scope": "public", "no_authentication_planned": True}
    done = await here.amend(ACME, proposal(specification_reference="draft-acme-search-04", **public))
    assert done.state is RequestState.ACCEPTED
    assert [one.specification_reference for one in here.entry().revisions] == [
        "draft-acme-search-03",
        "draft-acme-search-04",
    ]
    assert here.entry().first_registered == before.first_registered
    same = await here.amend(ACME, proposal(specification_reference="draft-acme-search-04", semantics="3", **public))
    assert same.state is RequestState.ACCEPTED
    assert here.entry().specification.document_digest == here.document.digest  # nothing was fetched, nothing forgotten
    assert here.entry().scope_tightened_on is None
    tighter = proposal(specification_reference="draft-acme-search-05")
    returned = await here.amend(ACME, tighter)
    assert returned.state is RequestState.REVISION_REQUESTED
    tightened = [(one.criterion, one.verdict) for one in returned.findings if one.code == "scope_tightened"]
    assert tightened == [(4, "revise")]
    breaking = await here.amend(ACME, proposal(specification_reference="draft-acme-search-05", breaking=True))
    assert breaking.state is RequestState.IN_REVIEW
    tightened = [(one.criterion, one.verdict) for one in breaking.findings if one.code == "scope_tightened"]
    assert tightened == [(4, "needs_expert")]
    assert here.entry().authentication_scope == "public"
    await here.accept(breaking)
    assert here.entry().authentication_scope == "member-recognition"
    assert here.entry().scope_tightened_on == "2026-11-17"
    assert published_entry(here.entry(), "2026-11-18").scope_tightened_on == "2026-11-17"
    loosened = proposal(specification_reference="draft-acme-search-06", authentication_scope="public")
    returned = await here.amend(ACME, loosened)
    assert returned.state is RequestState.REVISION_REQUESTED
    assert codes(returned.findings) == {"public_not_permanent"}
    assert here.entry().authentication_scope == "member-recognition"
    assert here.entry().specification.is_breaking
    with pytest.raises(NotFound):
        await here.amend(ACME, proposal("acme_unknown"))


@pytest.mark.req("REG-7.2-1", "REG-7.2-2", "REG-7.2-3", "REG-8.3-1", "REG-N-3")
async def test_a_prefix_is_its_first_users_until_it_consents_or_a_dispute_is_ruled(here: NamesNode) -> None:
    await here.registered()
    under = proposal("acme_zebra", change_controller="Zebra")
    with pytest.raises(Refused):
        await here.requests.file(ZEBRA, under)
    with pytest.raises(Refused) as refused:
        await here.actions.consent(ZEBRA, "acme_", "Zebra", "2027-01-01")
    assert refused.value.code == "not_change_controller"
    with pytest.raises(Refused, match="a day to come"):
        await here.actions.consent(ACME, "acme_", "Zebra", "2020-01-01")
    await here.actions.consent(ACME, "acme_", "Zebra", "2026-12-31")
    await here.registered("acme_zebra", ZEBRA, change_controller="Zebra")
    late = await here.requests.file(ZEBRA, proposal("acme_late", change_controller="Zebra"))
    here.set_day("2027-01-01")
    barred = await here.accept(late)  # no expert can accept what the holder no longer consents to
    assert isinstance(barred, Approval) and barred.status is Status.FAILED
    assert "acme_ is Acme's" in (barred.outcome or "") and here.state.entry("acme_late") is None
    with pytest.raises(Refused):
        await here.requests.file(ZEBRA, proposal("acme_lion", change_controller="Zebra"))
    with pytest.raises(Refused) as refused:
        await here.requests.dispute(ZEBRA, "acme_", "Zebra", ())
    assert refused.value.code == "evidence_required"
    document = "https://datatracker.ietf.org/doc/draft-zebra-acme-00/"
    shown = Evidence(kind="datatracker_date", url=document, date="2020-02-02", digest="sha256:22")
    dispute = await here.requests.dispute(ZEBRA, "acme_", "Zebra", (shown,))
    await here.accept(dispute, reason="published six years before")
    ruled = here.state.registry.requests[dispute.id]
    assert (ruled.evidence, ruled.reason, ruled.decided_by) == ((shown,), "published six years before", "expert:eve")
    holder = here.state.registry.holders["acme_"]
    assert (holder.controller, holder.first_entry, holder.since) == ("Zebra", "acme_search", "2020-02-02")
    assert here.entry().change_controller == "Acme"
    with pytest.raises(Refused, match="actions are request"):
        await here.actions.act(ACME, "prefix", "lone_", Raw(b"{}"))  # a prefix is held by using it alone
    assert "lone_" not in here.state.registry.holders
    await here.registered("acme_lion", ZEBRA, change_controller="Zebra")
    with pytest.raises(Refused):
        await here.requests.file(ACME, proposal("acme_more"))


@pytest.mark.req("REG-5-15", "REG-4.1-2")
async def test_the_log_is_chained_and_takes_no_other_spelling(here: NamesNode, tmp_path: Path) -> None:
    await here.registered()
    steps = [step.what for step in await here.state.steps_of("acme_search")]
    assert steps == ["request", "in_review", "accept"]
    audited = [one for one in await here.desk.records() if one["via"] == "names"]
    assert [one["method"] for one in audited] == ["names/request", "names/in_review", "names/accept"]
    with sqlite3.connect(tmp_path / NAMES_FILE) as db:
        kept = dict(db.execute("SELECT sequence, lower(hex(hash)) FROM record"))
        assert [kept[one["record"]] for one in audited] == [one["record_hash"] for one in audited]
        for name in ("Bad", "a__b", "_a", "a_", "a_1", "1a", "a-b", "é", "a" * 65):
            with pytest.raises(sqlite3.IntegrityError):
                db.execute("INSERT INTO record VALUES (99, x'', x'', ?)", (name,))
        db.execute("UPDATE record SET data = replace(data, 'Acme', 'Evil') WHERE name = 'acme_search'")
    db.close()
    async with names_at(tmp_path, here.clock) as again:
        assert "tampered" in (again.state.trouble or "")
        with pytest.raises(Refused) as refused:
            await again.requests.file(ACME, proposal("acme_more"))
        assert refused.value.code == "unavailable"


@pytest.mark.req("REG-5-15")
async def test_requests_that_waited_when_the_node_stopped_wait_again(here: NamesNode, tmp_path: Path) -> None:
    request = await here.requests.file(ACME, proposal())
    async with names_at(tmp_path, here.clock) as again:
        assert [one.target for one in again.inbox.waiting(Kind.REQUEST)] == [request.id]
        assert await again.accept(request)
        assert again.entry().status is EntryStatus.ACTIVE


async def test_one_client_adds_only_so_much_to_the_log_in_a_day(
    here: NamesNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "ACTIONS_PER_DAY_MAX", 2)
    await here.registered()

    async def declare(who: str, actor: Actor = ACME) -> str | None:
        try:
            await here.actions.act(actor, "declare", "acme_search", Raw(b'{"who":"%b"}' % who.encode()))
        except Refused as refused:
            return refused.code
        return None

    assert [await declare(who) for who in "abc"] == [None, None, "too_many_actions"]
    assert await declare("c", ZEBRA) == "not_change_controller"
    assert await declare("d", Actor(principal="local", is_operator=True, override="seen in use")) is None
    here.set_day("2026-11-18")
    assert await declare("e") is None
    for bad in (b'{"who":1}', b"[]", b"{", b'{"who":"x","more":1}'):
        with pytest.raises(Refused) as refused:
            await here.actions.act(ZEBRA, "declare", "acme_search", Raw(bad))
        assert refused.value.code in ("invalid_body", "too_many_actions")
    with pytest.raises(Refused, match="actions are request"):
        await here.actions.act(ACME, "decide", "acme_search", Raw(b"{}"))
