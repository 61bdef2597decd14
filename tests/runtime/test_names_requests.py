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
from tests.runtime.registries import ACME, ARGUMENTS, RETURNS, ZEBRA, NamesHere, names_at, proposal

from interlock.protocol.approvals.approval import Approval, Kind, Source
from interlock.protocol.approvals.state import Status
from interlock.protocol.jsonrpc.errors import Fault
from interlock.protocol.names.criteria import judge_proposal, outcome_of
from interlock.protocol.names.life import RequestState
from interlock.protocol.names.model import Entry
from interlock.protocol.names.model import Status as EntryStatus
from interlock.protocol.names.publication import Publication, publish, published_entry
from interlock.protocol.names.records import BadStep, Evidence, Proposal, Step, decode_step
from interlock.protocol.names.registry import Registry
from interlock.runtime.base.operator_errors import NotFound, Refused
from interlock.runtime.names import actions, initial
from interlock.runtime.names.actors import Actor
from interlock.runtime.names.initial import initial_steps
from interlock.runtime.names.publisher import Publisher
from interlock.runtime.names.requests import request_digest
from interlock.store.sqlite.names_log import NAMES_FILE


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[NamesHere]:
    async with names_at(tmp_path) as made:
        yield made


def codes(findings: Any) -> set[str]:
    return {one.code for one in findings}


@pytest.mark.req("REG-6-1", "REG-6-2", "REG-6-3", "REG-6-4", "REG-4.1-1")
async def test_a_new_registry_has_the_four_names_of_the_draft_and_nothing_invented(
    here: NamesHere, tmp_path: Path
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
async def test_a_request_becomes_an_active_entry_by_an_experts_decision_alone(here: NamesHere) -> None:
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


async def test_what_an_expert_signs_covers_all_that_is_asked_and_no_later_finding(here: NamesHere) -> None:
    request = await here.requests.file(ACME, proposal())
    assert here.waiting(request).digest == request_digest(request)
    assert request.proposal is not None
    other = replace(request.proposal, specification_reference="draft-acme-other-00")
    for changed in ({"proposal": other}, {"controller": "Zebra"}, {"subject": "acme_find"}, {"filed_by": "client:x"}):
        assert request_digest(replace(request, **changed)) != request_digest(request), changed
    later = replace(request, state=RequestState.ACCEPTED, findings=(), decided_by="expert:eve", reason="fine")
    assert request_digest(later) == request_digest(request)


@pytest.mark.req("REG-5-3", "REG-5-7", "REG-4.1-7", "REG-3-2", "REG-4.2-7", "REG-5-12")
@pytest.mark.parametrize("status", ["Active", "Provisional"])
async def test_what_no_expert_may_accept_is_refused_at_once(here: NamesHere, status: str) -> None:
    await here.registered()
    for members, code in (
        ({"name": "Acme_Search"}, "name_syntax"),
        ({"name": "infra.edge.x"}, "name_syntax"),
        ({"name": "a" * 65}, "name_too_long"),
        ({"name": "acme_search"}, "name_taken"),
        ({"name": "acme_x", "vendor_prefix": "org_alter_"}, "prefix_mismatch"),
        ({"name": "acme_x", "vendor_prefix": "acme_x_"}, "prefix_mismatch"),
        ({"name": "acme_x", "vendor_prefix": "acme_x"}, "prefix_mismatch"),
        ({"name": "acme_x", "vendor_prefix": "acm"}, "prefix_mismatch"),
        ({"name": "acme_x", "change_controller": " "}, "controller_missing"),
    ):
        with pytest.raises(Refused) as refused:
            await here.requests.file(ACME, proposal(**members, status=status))
        assert refused.value.error == code
        found = {one["code"]: one for one in refused.value.details["findings"]}
        assert found[code]["verdict"] == "fail"
        outcomes = {one["criterion"]: one["outcome"] for one in refused.value.details["criteria"]}
        assert outcomes.get(found[code]["criterion"], "fail") == "fail"
        if found[code]["criterion"] == 1:
            assert outcomes == {1: "fail"} | dict.fromkeys((2, 3, 4, 5), "not_checked")
        assert ("register the last segment alone: x" in refused.value.message) is (members["name"] == "infra.edge.x")
    assert here.state.entry("Acme_Search") is None
    assert not here.inbox.waiting(Kind.REQUEST)


@pytest.mark.req("REG-5-8", "REG-7.2-2", "REG-6-5")
async def test_one_name_does_not_shadow_another_controllers(here: NamesHere) -> None:
    for name, prefix in (
        ("org_alter_x", "none"),
        ("org_alter", "none"),
        ("org_x", "org_"),
        ("org_alter_sub_x", "org_alter_sub_"),
    ):
        with pytest.raises(Refused, match="org_alter_ is Alter Meridian") as refused:
            await here.requests.file(ACME, proposal(name, vendor_prefix=prefix))
        assert refused.value.error == "prefix_conflict"
        (found,) = [one for one in refused.value.details["findings"] if one["code"] == "prefix_conflict"]
        assert (found["criterion"], found["verdict"]) == (5, "fail")
    for name in ("org_alters_x", "organ_x"):
        findings = await here.requests.check(proposal(name, vendor_prefix="none"))
        assert "prefix_conflict" not in codes(findings)
    own = proposal("org_alter_membership_add", vendor_prefix="org_alter_", change_controller="Alter Meridian Pty Ltd")
    request = await here.requests.file(Actor(principal="client:alter"), own)
    assert "controller_unproven" in codes(request.findings)
    assert outcome_of(5, request.findings) == "pass"


@pytest.mark.req("REG-5-1", "REG-5-6", "REG-8.4-3", "REG-3-3", "REG-N-1", "REG-5-12")
@pytest.mark.parametrize(
    ("members", "code", "criterion"),
    [
        *(
            ({"authentication_scope": scope}, "scope_ambiguous", 4)
            for scope in ("", "authenticated", "auth", "user", "login", "private", "token", "yes", "any", "trust-tier")
        ),
        ({"authentication_scope": "Members Only"}, "scope_syntax", 4),
        ({"authentication_scope": "user", "status": "Provisional"}, "scope_ambiguous", 4),
        ({"authentication_scope": "public"}, "public_not_permanent", 4),
        ({"specification_reference": ""}, "reference_missing", 2),
        ({"specification_reference": "draft-acme-search-03\n"}, "reference_missing", 2),
        ({"specification_reference": "", "status": "Provisional"}, "reference_missing", 2),
        ({"argument_schema": Raw(b"{}"), "status": "Provisional"}, "schema_imprecise", 3),
        ({"argument_schema": Raw(b"null"), "status": "Provisional"}, "schema_imprecise", 3),
        ({"return_schema": Raw(b"null"), "status": "Provisional"}, "schema_imprecise", 3),
        ({"semantics": ""}, "semantics_missing", 3),
        ({"specification_reference": f"https://a.example/{'x' * 1983}"}, "reference_missing", 2),
    ],
)
async def test_what_is_unclear_is_returned_with_the_reason(
    here: NamesHere, members: Any, code: str, criterion: int
) -> None:
    request = await here.requests.file(ACME, proposal(**members))
    assert request.state is RequestState.REVISION_REQUESTED
    found = [one for one in request.findings if one.code == code]
    assert {(one.criterion, one.verdict) for one in found} == {(criterion, "revise")}
    assert request.reason == "; ".join(one.reason for one in request.findings if one.verdict == "revise")
    if code == "scope_ambiguous":
        said = members["authentication_scope"]
        assert request.reason == f"{f'{said} does not say' if said else 'say'} which credential the server asks for"
    assert not here.inbox.waiting(Kind.REQUEST)


@pytest.mark.req("REG-3-4")
async def test_a_controller_may_have_a_handle_which_is_a_label(here: NamesHere) -> None:
    for handle in ("acme", "~", "~Acme", "~org", "~a-"):
        with pytest.raises(Refused) as refused:
            await here.requests.file(ACME, proposal(controller_handle=handle))
        assert refused.value.error == "handle_syntax"
    await here.registered(controller_handle="~acme-labs")
    assert here.state.registry.controller("Acme").handle == "~acme-labs"
    (told,) = [step.controller for step in await here.state.steps_of("acme_search") if step.controller is not None]
    assert told.handle == "~acme-labs"  # on the name's log
    await here.registered("zebra_x", ZEBRA, change_controller="Zebra", vendor_prefix="zebra_")
    assert here.state.registry.controller("Zebra").handle == ""  # none is needed
    taken = proposal("lion_x", change_controller="Lion", vendor_prefix="lion_", controller_handle="~acme-labs")
    lion = Actor(principal="client:lion")
    await here.accept(await here.requests.file(lion, taken))  # it is no identity: nothing turns on who has it
    with pytest.raises(Refused) as refused:
        await here.changes.deprecate(lion, "acme_search")
    assert refused.value.error == "not_change_controller"


@pytest.mark.req("REG-4.1-6")
async def test_a_new_class_of_credential_needs_its_definition_in_the_specification(here: NamesHere) -> None:
    known = ("member-recognition", "trust-tier:engineering", "trust-tier:other", "~handle-signed-token")
    for scope in known:
        assert codes(await here.requests.check(proposal(authentication_scope=scope))) == set()
        entry = await here.registered(f"acme_{scope.strip('~')[:5]}{len(scope)}", authentication_scope=scope)
        assert entry.authentication_scope == scope
    public = proposal(authentication_scope="public", no_authentication_planned=True)
    assert codes(await here.requests.check(public)) == set()
    for each in (*(proposal(authentication_scope=scope) for scope in known), public):  # also where no entry has them
        assert "scope_class_new" not in codes(judge_proposal(each, Registry(), "2026-11-17", None))
    request = await here.requests.file(ACME, proposal(authentication_scope="acme-badge:gold"))
    (found,) = request.findings
    assert (found.criterion, found.verdict, found.code) == (4, "needs_expert", "scope_class_new")
    assert found.reason == ("acme-badge is a new class of credential; accepting says that the specification defines it")
    refused = await here.accept(request, reason=None)
    assert isinstance(refused, Fault) and refused.message == "reason_required"
    assert isinstance(await here.accept(request, reason="section 4 defines it"), Approval)
    assert here.entry().authentication_scope == "acme-badge:gold"
    again = await here.requests.check(proposal("acme_list", authentication_scope="acme-badge:silver"))
    assert codes(again) == set()  # by now the registry has it
    changed = await here.requests.amend(ACME, proposal(authentication_scope="acme-token"))
    assert "scope_class_new" in codes(changed.findings)


@pytest.mark.req("REG-4.1-1")
@pytest.mark.parametrize(
    "field",
    ["surface_name", "specification_reference", "authentication_scope", "vendor_prefix", "change_controller"],
)
async def test_no_entry_is_made_with_an_empty_field(here: NamesHere, field: str) -> None:
    try:
        request = await here.requests.file(ACME, proposal(**{field: ""}))
    except Refused:
        pass
    else:
        assert request.state is RequestState.REVISION_REQUESTED and request.reason
    assert not here.inbox.waiting(Kind.REQUEST)
    assert len(here.state.registry.entries) == 4


@pytest.mark.req("REG-4.1-1")
@pytest.mark.parametrize(("controller", "is_one"), [("A" * 200, True), ("A" * 201, False), ("Ac\u202eme", False)])
async def test_a_controller_is_named_by_200_printable_characters(
    here: NamesHere, controller: str, is_one: bool
) -> None:
    try:
        await here.requests.file(ACME, proposal(change_controller=controller))
    except Refused as refused:
        assert not is_one and refused.error == "controller_missing"
    else:
        assert is_one


@pytest.mark.req("REG-4.1-1", "REG-4.1-9")
async def test_what_lacks_a_field_or_has_another_status_is_no_record(here: NamesHere) -> None:
    entry = msgspec.to_builtins(await here.registered(), enc_hook=lambda raw: bytes(raw).decode())
    whole = msgspec.json.encode(Step(at="2026-11-17T00:00:00Z", by="x", what="accept", entry=here.entry()))
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
    told = json.loads(initial._FILE.read_text())
    (tmp_path / "initial.json").write_text(json.dumps(told | {"status": status.value}))
    monkeypatch.setattr(initial, "_FILE", tmp_path / "initial.json")
    steps = initial.initial_steps.__wrapped__()
    assert [step.entry.status for step in steps if step.entry is not None] == [status] * 4
    (tmp_path / "initial.json").write_text(json.dumps(told | {"status": status.value.lower()}))
    with pytest.raises(msgspec.ValidationError):
        initial.initial_steps.__wrapped__()


@pytest.mark.req("REG-4.1-10")
def test_a_request_does_not_say_when_it_was_first_registered() -> None:
    said = msgspec.json.encode({"surface_name": "a", "change_controller": "A", "first_registered": "2020-01-01"})
    with pytest.raises(msgspec.ValidationError, match="first_registered"):
        msgspec.json.decode(said, type=Proposal)


@pytest.mark.req("REG-5-7")
async def test_a_name_is_taken_whatever_its_status_but_for_withdrawn(here: NamesHere) -> None:
    await here.registered("acme_one", status="Provisional", specification_reference="draft-acme-later")
    await here.registered("acme_two")
    await here.changes.deprecate(ACME, "acme_two")
    for name in ("acme_one", "acme_two", "org_alter_handbook"):
        with pytest.raises(Refused) as refused:
            await here.requests.file(ACME, proposal(name))
        assert refused.value.error in ("name_taken", "prefix_conflict")
        assert "name_taken" in {one["code"] for one in refused.value.details["findings"]}


@pytest.mark.req("REG-5-4", "REG-N-1", "REG-4.1-4", "REG-5-12")
@pytest.mark.parametrize(("status", "verdict"), [("Active", "needs_expert"), ("Provisional", "note")])
async def test_a_reference_that_may_move_or_was_not_fetched_is_for_the_expert(
    here: NamesHere, status: str, verdict: str
) -> None:
    here.document = here.document.__class__(outcome="failed", detail="https://a.example: HTTP status 404")
    longest = f"http://a.example/{'x' * 1983}"
    assert len(longest) == 2000
    for reference in ("draft-acme-later", longest):
        request = await here.requests.file(ACME, proposal(status=status, specification_reference=reference))
        found = {one.code: one for one in request.findings if one.criterion == 2}
        assert set(found) == {"reference_unstable", "reference_not_retrievable"}
        assert {one.verdict for one in found.values()} == {verdict}
        assert found["reference_not_retrievable"].reason == "https://a.example: HTTP status 404"
        assert found["reference_unstable"].reason.startswith(f"{reference}: it ")
        if status == "Active":
            unsaid = await here.accept(request, reason=None)
            assert isinstance(unsaid, Fault) and unsaid.data is not None
            assert "in spite of reference_unstable" in unsaid.data["detail"]
        await here.requests.cancel(ACME, request.id)


@pytest.mark.req("REG-5-4", "REG-5-5", "REG-4.1-4", "REG-4.1-5", "REG-4.2-6", "REG-N-1")
async def test_what_a_machine_cannot_judge_needs_an_experts_written_acceptance(here: NamesHere) -> None:
    here.document = here.document.__class__(outcome="failed", detail="404")
    request = await here.requests.file(
        ACME,
        proposal(
            "search",
            vendor_prefix="none",
            specification_reference="https://specs.example.com/search",
            argument_schema=Raw(b'{"type":"object","properties":{"q":{},"deep":{"type":"array","items":{}}}}'),
            return_schema=Raw(b"null"),
        ),
    )
    assert request.state is RequestState.IN_REVIEW
    found = {"reference_not_retrievable", "schema_imprecise", "prefix_advice", "controller_reference_mismatch"}
    assert found == codes(request.findings)
    imprecise = [one for one in request.findings if one.code == "schema_imprecise"]
    assert {(one.criterion, one.verdict) for one in imprecise} == {(3, "needs_expert")}
    reasons = " ".join(one.reason for one in request.findings)
    assert "/properties/q" in reasons
    assert "/properties/deep/items" in reasons
    assert "return schema is missing" in reasons
    refused = await here.accept(request, reason=None)
    assert isinstance(refused, Fault) and refused.data is not None
    assert refused.message == "reason_required"
    assert refused.data["detail"].startswith("say why, in spite of ")
    assert isinstance(await here.accept(request, reason="a copy is attached"), Approval)
    assert here.entry("search").status is EntryStatus.ACTIVE


@pytest.mark.req("REG-5-5", "REG-3-3")
@pytest.mark.parametrize(
    ("argument", "place"),
    [
        ("{}", "the argument schema's root has not the type object; the argument schema has no type at its root"),
        ("true", "the argument schema's root has not the type object; the argument schema has no type at its root"),
        ('{"type":"string"}', "the argument schema's root has not the type object"),
        ('{"type":"intger"}', "the argument schema is no JSON Schema, or too large to be applied"),
        ("null", "the argument schema is missing"),
        (
            '{"type":"object","properties":{"q":{"description":"x"}}}',
            "the argument schema has no type at /properties/q",
        ),
        (
            '{"type":"object","properties":{"q":{"$ref":"https://other.example/q"}}}',
            "the argument schema refers to another document",
        ),
    ],
)
async def test_an_imprecise_schema_is_for_the_expert_with_each_place(
    here: NamesHere, argument: str, place: str
) -> None:
    request = await here.requests.file(ACME, proposal(argument_schema=Raw(argument.encode())))
    assert request.state is RequestState.IN_REVIEW
    assert {(one.criterion, one.verdict, one.code) for one in request.findings} == {
        (3, "needs_expert", "schema_imprecise")
    }
    assert "; ".join(one.reason for one in request.findings) == place
    other = await here.requests.file(ACME, proposal("acme_list", return_schema=Raw(argument.encode())))
    is_return = "the return schema is missing" if argument == "null" else "return schema"
    assert argument == '{"type":"string"}' or is_return in " ".join(one.reason for one in other.findings)


@pytest.mark.req("REG-4.2-5", "REG-4.2-6", "REG-4.1-5")
async def test_prefixes_are_advised_and_nothing_is_refused_for_them(here: NamesHere) -> None:
    own_document: Any = {"specification_reference": "https://specs.acme.example/search/1"}
    shared = await here.requests.file(ACME, proposal("search", vendor_prefix="none", cross_vendor=True, **own_document))
    assert codes(shared.findings) == set()  # for several vendors, in a document of the controller's own
    assert isinstance(await here.accept(shared, reason=None), Approval)
    assert here.entry("search").vendor_prefix == "none"
    await here.registered()
    second = await here.requests.file(ACME, proposal("other_list", vendor_prefix="other_"))
    (advice,) = second.findings
    assert (advice.code, advice.verdict) == ("prefix_advice", "note")
    assert advice.reason == "Acme has the prefix acme_; register all its surfaces under one"
    assert isinstance(await here.accept(second, reason=None), Approval)
    assert here.entry("other_list").vendor_prefix == "other_"


@pytest.mark.req("REG-4.1-5")
@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("acme.com", True),
        ("specifications.acme.com", True),
        ("acme.co.uk", True),
        ("specs.ac-me.org.au", True),
        ("acme.zebra.com", False),
        ("acme.zebra.co.uk", False),
        ("93.184.215.14", False),
    ],
)
async def test_a_document_at_anothers_host_is_noted(here: NamesHere, host: str, is_own: bool) -> None:
    request = await here.requests.file(ACME, proposal(specification_reference=f"https://{host}/search/1"))
    noted = [(one.criterion, one.verdict) for one in request.findings if one.code == "controller_reference_mismatch"]
    assert noted == ([] if is_own else [(2, "note")])


@pytest.mark.req("REG-7.3-2")
async def test_a_check_warns_of_a_deprecated_name_and_says_its_successor(here: NamesHere) -> None:
    await here.registered()
    assert "deprecated" not in codes(await here.requests.check(proposal()))
    await here.changes.deprecate(ACME, "acme_search")
    assert _told(await here.requests.check(proposal())) == "acme_search is deprecated since 2026-11-17"
    await here.changes.reinstate(ACME, "acme_search")
    await here.changes.deprecate(ACME, "acme_search", "acme_find")
    told = _told(await here.requests.check(proposal()))
    assert told == "acme_search is deprecated since 2026-11-17; its successor is acme_find"


def _told(findings: Any) -> str:
    (found,) = [one for one in findings if one.code == "deprecated"]
    assert found.verdict == "note"
    return str(found.reason)


@pytest.mark.req("REG-9-4", "REG-5-7")
async def test_what_was_imported_is_changed_where_it_came_from(here: NamesHere) -> None:
    source = "https://names.example"
    foreign = replace(await here.registered(), surface_name="zoo_feed", vendor_prefix="zoo_", change_controller="Zoo")
    publisher = Publisher(here.state, tuple)

    async def import_(entry: Entry) -> None:
        data = publish(Publication(entries=(entry,), updated="2026-11-17", today="2026-11-17"), "json")
        await publisher.import_("operator:ada", data, source, is_trusted=False)

    foreign = replace(foreign, first_registered="2020-02-02")
    await import_(foreign)
    assert here.entry("zoo_feed").source == source
    assert here.entry("zoo_feed").first_registered == "2020-02-02"
    with pytest.raises(Refused) as refused:
        await import_(replace(here.entry(), change_controller="Zoo"))
    assert (refused.value.error, refused.value.details) == ("name_taken", {"names": ["acme_search"]})
    zoo = Actor(principal="operator:zoo", is_operator=True, override="asked to")
    asked = proposal("zoo_feed", vendor_prefix="zoo_", change_controller="Zoo")
    for work, error in (
        (here.requests.amend(zoo, asked), "read_only"),
        (here.changes.deprecate(zoo, "zoo_feed"), "read_only"),
        (here.requests.file(zoo, asked), "name_taken"),
    ):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.error == error
    assert here.entry("zoo_feed") == replace(foreign, source=source)
    await import_(replace(foreign, status=EntryStatus.WITHDRAWN, withdrawn_on="2025-01-01"))
    assert here.entry("zoo_feed").status is EntryStatus.WITHDRAWN
    with pytest.raises(Refused) as refused:  # it is the other registry's to give away
        await here.requests.file(zoo, asked)
    assert refused.value.error == "name_taken"


@pytest.mark.req("REG-5-10", "REG-N-2", "REG-5-2")
async def test_a_denial_has_a_reason_and_a_resubmission_names_the_request_before(here: NamesHere) -> None:
    request = await here.requests.file(ACME, proposal())
    refused = await here.deny(request, reason=" ")
    assert isinstance(refused, Fault) and refused.data is not None
    assert (refused.message, refused.data["detail"]) == ("reason_required", "say why: the registrant is told")
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
async def test_a_request_is_cancelled_by_the_one_who_filed_it(here: NamesHere) -> None:
    request = await here.requests.file(ACME, proposal())
    with pytest.raises(Refused) as refused:
        await here.requests.cancel(ZEBRA, request.id)
    assert refused.value.error == "not_change_controller"
    assert (await here.requests.cancel(ACME, request.id)).state is RequestState.CANCELLED
    assert here.waiting(request).status is Status.WITHDRAWN


@pytest.mark.req("REG-5-9", "REG-N-4")
async def test_a_party_to_the_request_does_not_decide_it_unless_it_is_the_only_expert(here: NamesHere) -> None:
    request = await here.requests.file(ACME, proposal())
    refused = await here.accept(request, by="acme")
    assert isinstance(refused, Fault)
    assert refused.message == "self_approval"
    assert not (await here.registered("acme_list")).self_reviewed
    here.experts = ("acme",)
    await here.accept(request, by="acme")
    assert here.entry().self_reviewed


@pytest.mark.req("REG-5-7", "REG-5-2")
async def test_of_two_requests_for_one_name_one_is_accepted_also_with_two_processes(
    here: NamesHere, tmp_path: Path
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
async def test_an_amendment_is_the_controllers_and_a_breaking_one_is_decided(here: NamesHere) -> None:
    before = await here.registered(authentication_scope="public", no_authentication_planned=True)
    with pytest.raises(Refused) as refused:
        await here.requests.amend(ZEBRA, proposal())
    assert refused.value.error == "not_change_controller"
    assert here.entry() == before
    public: dict[str, Any] = {"authentication_scope": "public", "no_authentication_planned": True}
    done = await here.requests.amend(ACME, proposal(specification_reference="draft-acme-search-04", **public))
    assert done.state is RequestState.ACCEPTED
    assert [one.specification_reference for one in here.entry().revisions] == [
        "draft-acme-search-03",
        "draft-acme-search-04",
    ]
    assert here.entry().first_registered == before.first_registered
    same = await here.requests.amend(
        ACME, proposal(specification_reference="draft-acme-search-04", semantics="3", **public)
    )
    assert same.state is RequestState.ACCEPTED
    assert here.entry().specification.document_digest == here.document.digest  # nothing was fetched, nothing forgotten
    tighter = proposal(specification_reference="draft-acme-search-05")
    returned = await here.requests.amend(ACME, tighter)
    assert returned.state is RequestState.REVISION_REQUESTED
    assert "scope_tightened" in codes(returned.findings)
    breaking = await here.requests.amend(ACME, proposal(specification_reference="draft-acme-search-05", breaking=True))
    assert breaking.state is RequestState.IN_REVIEW
    assert here.entry().authentication_scope == "public"
    await here.accept(breaking)
    assert here.entry().authentication_scope == "member-recognition"
    assert here.entry().scope_tightened_on == "2026-11-17"
    assert published_entry(here.entry(), "2026-11-18").scope_tightened_on == "2026-11-17"
    loosened = proposal(specification_reference="draft-acme-search-06", authentication_scope="public")
    returned = await here.requests.amend(ACME, loosened)
    assert returned.state is RequestState.REVISION_REQUESTED
    assert codes(returned.findings) == {"public_not_permanent"}
    assert here.entry().authentication_scope == "member-recognition"
    assert here.entry().specification.is_breaking
    with pytest.raises(NotFound):
        await here.requests.amend(ACME, proposal("acme_unknown"))


@pytest.mark.req("REG-7.2-1", "REG-7.2-2", "REG-7.2-3", "REG-8.3-1", "REG-N-3")
async def test_a_prefix_is_its_first_users_until_it_consents_or_a_dispute_is_ruled(here: NamesHere) -> None:
    await here.registered()
    under = proposal("acme_zebra", change_controller="Zebra")
    with pytest.raises(Refused):
        await here.requests.file(ZEBRA, under)
    with pytest.raises(Refused) as refused:
        await here.changes.consent(ZEBRA, "acme_", "Zebra", "2027-01-01")
    assert refused.value.error == "not_change_controller"
    with pytest.raises(Refused, match="a day to come"):
        await here.changes.consent(ACME, "acme_", "Zebra", "2020-01-01")
    await here.changes.consent(ACME, "acme_", "Zebra", "2026-12-31")
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
    assert refused.value.error == "evidence_required"
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
async def test_the_log_is_chained_and_takes_no_other_spelling(here: NamesHere, tmp_path: Path) -> None:
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
        assert refused.value.error == "unavailable"


@pytest.mark.req("REG-5-15")
async def test_what_waited_when_the_node_stopped_waits_again(here: NamesHere, tmp_path: Path) -> None:
    request = await here.requests.file(ACME, proposal())
    async with names_at(tmp_path, here.clock) as again:
        assert [one.target for one in again.inbox.waiting(Kind.REQUEST)] == [request.id]
        assert await again.accept(request)
        assert again.entry().status is EntryStatus.ACTIVE


async def test_one_client_adds_only_so_much_to_the_log_in_a_day(
    here: NamesHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "ACTIONS_PER_DAY_MAX", 2)
    await here.registered()

    async def declare(who: str, actor: Actor = ZEBRA) -> str | None:
        try:
            await here.actions.act(actor, "declare", "acme_search", Raw(b'{"who":"%b"}' % who.encode()))
        except Refused as refused:
            return refused.error
        return None

    assert [await declare(who) for who in "abc"] == [None, None, "too_many_actions"]
    assert await declare("c", ACME) is None
    assert await declare("d", Actor(principal="client:zebra", is_operator=True)) is None
    here.set_day("2026-11-18")
    assert await declare("e") is None
    for bad in (b'{"who":1}', b"[]", b"{", b'{"who":"x","more":1}'):
        with pytest.raises(Refused) as refused:
            await here.actions.act(ACME, "declare", "acme_search", Raw(bad))
        assert refused.value.error in ("invalid_body", "too_many_actions")
    with pytest.raises(Refused, match="actions are request"):
        await here.actions.act(ACME, "decide", "acme_search", Raw(b"{}"))
