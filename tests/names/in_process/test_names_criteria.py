"""The machine checks of a request: what is refused at once, returned, left to an expert, or only noted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.names.registries import ACME, ZEBRA, NamesNode, names_at, proposal

from interlock.approvals.protocol.approval import Approval, Kind
from interlock.names.protocol.criteria import judge_proposal, outcome_of
from interlock.names.protocol.entry import EntryStatus, RequestState
from interlock.names.protocol.registry import NamesRegistry
from interlock.names.state import Actor
from interlock.wire.refusal import Refusal, Refused


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[NamesNode]:
    async with names_at(tmp_path) as made:
        yield made


def codes(findings: Any) -> set[str]:
    return {one.code for one in findings}


@pytest.mark.req("REG-5-3", "REG-5-7", "REG-4.1-7", "REG-3-2", "REG-4.2-7", "REG-5-12")
@pytest.mark.parametrize("status", ["Active", "Provisional"])
async def test_a_request_that_no_expert_may_accept_is_refused_at_once(here: NamesNode, status: str) -> None:
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
        assert refused.value.code == code
        found = {one["code"]: one for one in refused.value.details["findings"]}
        assert found[code]["verdict"] == "fail"
        criterion = {"name_syntax": 1, "name_too_long": 1, "controller_missing": 0}.get(code, 5)
        assert found[code]["criterion"] == criterion
        outcomes = {one["criterion"]: one["outcome"] for one in refused.value.details["criteria"]}
        rest = (
            ("not_checked", "fail") if criterion == 1 else ("pass", "fail")
        )  # who is no controller is not Acme either
        assert outcomes == dict.fromkeys(range(1, 6), rest[0]) | {criterion or 5: rest[1]}
        assert ("register the last segment alone: x" in refused.value.message) is (members["name"] == "infra.edge.x")
    assert here.state.entry("Acme_Search") is None
    assert not here.inbox.waiting(Kind.REQUEST)


@pytest.mark.req("REG-5-8", "REG-7.2-2", "REG-6-5")
async def test_one_name_does_not_shadow_another_controllers(here: NamesNode) -> None:
    for name, prefix in (
        ("org_alter_x", "none"),
        ("org_alter", "none"),
        ("org_x", "org_"),
        ("org_alter_sub_x", "org_alter_sub_"),
    ):
        with pytest.raises(Refused, match="org_alter_ is Alter Meridian") as refused:
            await here.requests.file(ACME, proposal(name, vendor_prefix=prefix))
        assert refused.value.code == "prefix_conflict"
        (found,) = [one for one in refused.value.details["findings"] if one["code"] == "prefix_conflict"]
        assert (found["criterion"], found["verdict"]) == (5, "fail")
    for name in ("org_alters_x", "organ_x"):
        findings = here.check(proposal(name, vendor_prefix="none"))
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
async def test_an_unclear_request_is_returned_with_the_reason(
    here: NamesNode, members: Any, code: str, criterion: int
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
async def test_a_controller_may_have_a_handle_which_is_a_label(here: NamesNode) -> None:
    for handle in ("acme", "~", "~Acme", "~org", "~a-"):
        with pytest.raises(Refused) as refused:
            await here.requests.file(ACME, proposal(controller_handle=handle))
        assert refused.value.code == "handle_syntax"
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
        await here.actions.deprecate(lion, "acme_search")
    assert refused.value.code == "not_change_controller"


@pytest.mark.req("REG-4.1-6")
async def test_a_new_class_of_credential_needs_its_definition_in_the_specification(here: NamesNode) -> None:
    known = ("member-recognition", "trust-tier:engineering", "trust-tier:other", "~handle-signed-token")
    for scope in known:
        assert codes(here.check(proposal(authentication_scope=scope))) == set()
        entry = await here.registered(f"acme_{scope.strip('~')[:5]}{len(scope)}", authentication_scope=scope)
        assert entry.authentication_scope == scope
    public = proposal(authentication_scope="public", no_authentication_planned=True)
    assert codes(here.check(public)) == set()
    for each in (*(proposal(authentication_scope=scope) for scope in known), public):  # also where no entry has them
        assert "scope_class_new" not in codes(judge_proposal(each, NamesRegistry(), "2026-11-17", None))
    request = await here.requests.file(ACME, proposal(authentication_scope="acme-badge:gold"))
    (found,) = request.findings
    assert (found.criterion, found.verdict, found.code) == (4, "needs_expert", "scope_class_new")
    assert found.reason == ("acme-badge is a new class of credential; accepting says that the specification defines it")
    refused = await here.accept(request, reason=None)
    assert isinstance(refused, Refusal) and refused.message == "reason_required"
    assert isinstance(await here.accept(request, reason="section 4 defines it"), Approval)
    assert here.entry().authentication_scope == "acme-badge:gold"
    again = here.check(proposal("acme_list", authentication_scope="acme-badge:silver"))
    assert codes(again) == set()  # by now the registry has it
    changed = await here.amend(ACME, proposal(authentication_scope="acme-token"))
    assert "scope_class_new" in codes(changed.findings)


@pytest.mark.req("REG-4.1-1")
@pytest.mark.parametrize(
    "field",
    ["surface_name", "specification_reference", "authentication_scope", "vendor_prefix", "change_controller"],
)
async def test_no_entry_is_made_with_an_empty_field(here: NamesNode, field: str) -> None:
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
    here: NamesNode, controller: str, is_one: bool
) -> None:
    try:
        await here.requests.file(ACME, proposal(change_controller=controller))
    except Refused as refused:
        assert not is_one and refused.code == "controller_missing"
    else:
        assert is_one


@pytest.mark.req("REG-5-7")
async def test_a_name_is_taken_in_every_status_except_withdrawn(here: NamesNode) -> None:
    await here.registered("acme_one", status="Provisional", specification_reference="draft-acme-later")
    await here.registered("acme_two")
    await here.actions.deprecate(ACME, "acme_two")
    for name in ("acme_one", "acme_two", "org_alter_handbook"):
        with pytest.raises(Refused) as refused:
            await here.requests.file(ACME, proposal(name))
        assert refused.value.code in ("name_taken", "prefix_conflict")
        (taken,) = [one for one in refused.value.details["findings"] if one["code"] == "name_taken"]
        assert (taken["criterion"], taken["verdict"]) == (5, "fail")


@pytest.mark.req("REG-5-4", "REG-N-1", "REG-4.1-4", "REG-5-12")
@pytest.mark.parametrize(("status", "verdict"), [("Active", "needs_expert"), ("Provisional", "note")])
async def test_a_reference_that_may_move_or_was_not_fetched_is_for_the_expert(
    here: NamesNode, status: str, verdict: str
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
            assert isinstance(unsaid, Refusal) and unsaid.details is not None
            assert "reference_unstable" in unsaid.details["detail"]
        await here.requests.cancel(ACME, request.id)


@pytest.mark.req("REG-5-4", "REG-5-5", "REG-4.1-4", "REG-4.1-5", "REG-4.2-6", "REG-N-1")
async def test_a_finding_that_no_program_can_judge_needs_an_experts_written_acceptance(here: NamesNode) -> None:
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
    (advice,) = [one for one in request.findings if one.code == "prefix_advice"]
    assert (advice.criterion, advice.verdict) == (5, "needs_expert")
    assert advice.reason == "a name without a prefix is for several vendors: state cross_vendor, or take a prefix"
    imprecise = [one for one in request.findings if one.code == "schema_imprecise"]
    assert {(one.criterion, one.verdict) for one in imprecise} == {(3, "needs_expert")}
    reasons = " ".join(one.reason for one in request.findings)
    assert "/properties/q" in reasons
    assert "/properties/deep/items" in reasons
    assert "return schema is missing" in reasons
    refused = await here.accept(request, reason=None)
    assert isinstance(refused, Refusal) and refused.details is not None
    assert refused.message == "reason_required"
    assert refused.details["detail"].startswith("give a reason for accepting it with ")
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
    here: NamesNode, argument: str, place: str
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
async def test_prefixes_are_advised_and_nothing_is_refused_for_them(here: NamesNode) -> None:
    own_document: Any = {"specification_reference": "https://specs.acme.example/search/1"}
    shared = await here.requests.file(ACME, proposal("search", vendor_prefix="none", cross_vendor=True, **own_document))
    assert codes(shared.findings) == set()  # for several vendors, in a document of the controller's own
    assert isinstance(await here.accept(shared, reason=None), Approval)
    assert here.entry("search").vendor_prefix == "none"
    await here.registered()
    second = await here.requests.file(ACME, proposal("other_list", vendor_prefix="other_"))
    (advice,) = second.findings
    assert (advice.criterion, advice.code, advice.verdict) == (5, "prefix_advice", "note")
    assert advice.reason == "Acme has the prefix acme_; register all its surfaces under one"
    assert isinstance(await here.accept(second, reason=None), Approval)
    assert here.entry("other_list").vendor_prefix == "other_"
    assert codes(here.check(proposal("acme_third"))) == set()  # under its own
    first = proposal("zebra_x", change_controller="Zebra", vendor_prefix="zebra_")
    assert codes(here.check(first)) == set()  # for one vendor, and says so by its prefix


@pytest.mark.req("REG-8.4-3")
async def test_a_surface_that_stays_public_is_stated_to(here: NamesNode) -> None:
    stated = proposal(authentication_scope="public", no_authentication_planned=True)
    request = await here.requests.file(ACME, stated)
    assert (request.state, request.findings) == (RequestState.IN_REVIEW, ())
    asked_for = proposal("acme_list", no_authentication_planned=False)  # nothing is stated of what asks for more
    assert (await here.requests.file(ACME, asked_for)).state is RequestState.IN_REVIEW


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
async def test_a_document_at_anothers_host_is_noted(here: NamesNode, host: str, is_own: bool) -> None:
    request = await here.requests.file(ACME, proposal(specification_reference=f"https://{host}/search/1"))
    noted = [(one.criterion, one.verdict) for one in request.findings if one.code == "controller_reference_mismatch"]
    assert noted == ([] if is_own else [(2, "note")])


@pytest.mark.req("REG-7.3-2")
async def test_a_check_warns_of_a_deprecated_name_and_says_its_successor(here: NamesNode) -> None:
    await here.registered()
    assert "deprecated" not in codes(here.check(proposal()))
    await here.actions.deprecate(ACME, "acme_search")
    assert _told(here.check(proposal())) == "acme_search is deprecated since 2026-11-17"
    await here.actions.reinstate(ACME, "acme_search")
    await here.actions.deprecate(ACME, "acme_search", "acme_find")
    told = _told(here.check(proposal()))
    assert told == "acme_search is deprecated since 2026-11-17; its successor is acme_find"


def _told(findings: Any) -> str:
    (found,) = [one for one in findings if one.code == "deprecated"]
    assert found.verdict == "note"
    return str(found.reason)
