"""Which driver serves a call, and why not the others? AIP-30's six phases."""

import itertools
from typing import Any

import pytest
from tests.drivers.driver_texts import as_contract, as_driver, binding, contract, driver

from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.resolver import (
    HEALTH_EVERY_S,
    Candidate,
    DriverResolution,
    SelectionPolicy,
    SelectionRequest,
    resolve,
    resolved_row,
)
from interlock.wire.refusal import Refusal

NOW = 10_000.0


def the_contract(**changed: Any) -> Contract:
    value = as_contract(contract(**changed)).value
    assert value is not None
    return value


def candidate(
    id: str = "good-mcp", *, entry: dict[str, Any] | None = None, standing: dict[str, Any] | None = None, **changed: Any
) -> Candidate:
    value = as_driver(driver(id=id, implements=[binding(**(entry or {}))], **changed)).value
    assert value is not None
    return Candidate(driver=value, binding=value.implements[0], **(standing or {}))


def ask(
    *candidates: Candidate, policy: SelectionPolicy | None = None, of: Contract | None = None, **asked: Any
) -> DriverResolution:
    request = SelectionRequest(contract=of or the_contract(), inputs=asked.pop("inputs", ("path",)), now=NOW, **asked)
    return resolve(request, candidates, policy or SelectionPolicy())


def winner(resolution: DriverResolution) -> str:
    assert resolution.chosen is not None
    return resolution.chosen.driver.id


def removed(resolution: DriverResolution) -> list[tuple[str, int, str]]:
    return [(each.driver, each.phase, each.code) for each in resolution.rejected]


@pytest.mark.req("AIP-30.resolve-1", "AIP-30.implements-4")
def test_the_first_phase_drops_other_versions_unwanted_kinds_and_dropped_inputs() -> None:
    optional = {"type": "object", "properties": {"path": {"type": "string"}, "head": {"type": "integer"}}}
    asked = the_contract(
        inputs=optional, driver_constraints={"forbid": ["cli"], "require_kind": ["mcp", "cli", "builtin"]}
    )
    found = ask(
        candidate("other-version-mcp", entry={"version": "^2.0.0"}),
        candidate("forbidden-mcp", standing={"kind": "cli"}),
        candidate("not-required-mcp", standing={"kind": "http"}),
        candidate("narrow-mcp", entry={"schema_narrowing": {"drop_inputs": ["head"]}}),
        candidate("good-mcp"),
        of=asked,
        inputs=("path", "head"),
    )
    assert winner(found) == "good-mcp"
    assert removed(found) == [
        ("forbidden-mcp@1", 1, "kind_forbidden"),
        ("narrow-mcp@1", 1, "input_unsupported"),
        ("not-required-mcp@1", 1, "kind_forbidden"),
        ("other-version-mcp@1", 1, "version_unsupported"),
    ]
    assert all(each.reason for each in found.rejected)
    row = resolved_row(SelectionRequest(contract=asked, inputs=("path", "head"), now=NOW), found)
    assert [(each["provider_id"], each["phase"]) for each in row["rejected"]] == [
        (each.driver, 1) for each in found.rejected
    ]
    assert [each["reason"] for each in row["rejected"]] == [each.reason for each in found.rejected]


@pytest.mark.req("AIP-30.implements-4", "AIP-30.resolve-1")
def test_a_dropped_input_that_the_call_does_not_use_removes_nobody() -> None:
    narrow = candidate("narrow-mcp", entry={"schema_narrowing": {"drop_inputs": ["head"]}})
    assert winner(ask(narrow)) == "narrow-mcp"


@pytest.mark.req("AIP-30.implements-4")
def test_a_call_with_an_input_that_every_driver_dropped_is_refused_by_its_name() -> None:
    narrow = candidate("narrow-mcp", entry={"schema_narrowing": {"drop_inputs": ["head", "tail"]}})
    error = ask(narrow, inputs=("path", "head")).error
    assert error is not None
    assert error.code == "input_unsupported"
    assert "head" in error.message
    assert "tail" not in error.message


@pytest.mark.parametrize(
    ("standing", "code"),
    [
        ({"refusal": Refusal(code="install_failed", message="npm is not there")}, "install_failed"),
        ({"refusal": Refusal(code="version_mismatch", message="0.4 is not >=0.5")}, "version_mismatch"),
        ({"auth": "unauthed"}, "auth_required"),
        ({"failed_at": NOW - 1}, "health_check_failed"),
        ({"failed_at": NOW - 1, "passed_at": NOW - 2}, "health_check_failed"),
    ],
)
@pytest.mark.req("AIP-30.resolve-2")
def test_the_second_phase_drops_a_driver_that_cannot_work(standing: dict[str, Any], code: str) -> None:
    found = ask(
        candidate("bad-mcp", standing=standing), candidate("good-mcp", cost_override={"cost_units_per_call": 9})
    )
    assert winner(found) == "good-mcp"
    assert removed(found) == [("bad-mcp@1", 2, code)]
    assert found.rejected[0].reason


@pytest.mark.parametrize("auth", ["unknown", "authed"])
@pytest.mark.req("AIP-30.resolve-2")
def test_a_driver_that_is_not_known_to_be_logged_out_stays(auth: str) -> None:
    assert winner(ask(candidate(standing={"auth": auth}))) == "good-mcp"


@pytest.mark.req("AIP-30.resolve-2")
def test_a_logged_out_driver_stays_for_a_call_that_only_logs_in() -> None:
    assert winner(ask(candidate(standing={"auth": "unauthed"}), login_only=True)) == "good-mcp"


@pytest.mark.parametrize(("every", "every_s"), [("PT30S", 30.0), (None, HEALTH_EVERY_S)])
@pytest.mark.req("AIP-30.resolve-2")
def test_a_failed_health_check_counts_for_twice_its_every(every: str | None, every_s: float) -> None:
    check = {"method": "ping"} | ({"every": every} if every else {})

    def failed(ago: float) -> DriverResolution:
        return ask(candidate(health_check=check, standing={"failed_at": NOW - ago}))

    assert removed(failed(2 * every_s)) == [("good-mcp@1", 2, "health_check_failed")]
    later = failed(2 * every_s + 1)
    assert winner(later) == "good-mcp"
    assert later.ranked[0].check_first


def test_a_check_that_passed_since_the_failure_needs_no_other() -> None:
    found = ask(candidate(standing={"failed_at": NOW - 2, "passed_at": NOW - 1}))
    assert not found.ranked[0].check_first


@pytest.mark.req("AIP-30.resolve-3")
@pytest.mark.parametrize(
    ("policy", "tags", "stays"),
    [
        (SelectionPolicy(deny=("third-party-api",)), ["third-party-api"], False),
        (SelectionPolicy(deny=("third-party-api",)), ["self-hosted"], True),
        (SelectionPolicy(allow=("self-hosted",)), [], False),
        (SelectionPolicy(allow=("self-hosted",)), ["self-hosted", "other"], True),
        (SelectionPolicy(allow=("PII-safe",)), ["pii-safe"], False),
        (SelectionPolicy(deny=("PII-safe",)), ["pii-safe"], True),
        (SelectionPolicy(allow=("a",), deny=("b",)), ["a", "b"], False),
    ],
)
def test_tags_are_compared_exactly_with_the_lists_of_the_workspace(
    policy: SelectionPolicy, tags: list[str], stays: bool
) -> None:
    found = ask(candidate(policy_tags=tags), policy=policy)
    assert bool(found.ranked) is stays
    assert removed(found) == ([] if stays else [("good-mcp@1", 3, "policy_violation")])


@pytest.mark.req("AIP-30.resolve-3")
@pytest.mark.parametrize(
    ("regions", "wanted", "own", "stays"),
    [
        (["EU"], "EU", None, True),
        (["global"], "EU", None, True),
        (["us-east-1"], "EU", None, False),
        (["eu"], "EU", None, False),
        (["us-east-1"], None, "EU", True),
        (["self-hosted"], "EU", "EU", True),
        (["self-hosted"], "EU", "US", False),
        (["self-hosted"], "EU", None, False),
        (["self-hosted"], "self-hosted", None, True),
    ],
)
def test_a_region_is_the_constraint_itself_global_or_the_hosts_own(
    regions: list[str], wanted: str | None, own: str | None, stays: bool
) -> None:
    found = ask(candidate(region=regions), region=wanted, policy=SelectionPolicy(region=own))
    assert removed(found) == ([] if stays else [("good-mcp@1", 3, "region_mismatch")])


@pytest.mark.req("AIP-30.resolve-4")
def test_a_pin_goes_before_the_default_and_the_price_and_leaves_no_fallback() -> None:
    cheap = candidate("cheap-mcp", cost_override={"cost_units_per_call": 0})
    dear = candidate("dear-mcp", cost_override={"cost_units_per_call": 900})
    asked = the_contract(default_implementation="cheap-mcp")
    for name in ("dear-mcp", "dear-mcp@1"):
        found = ask(cheap, dear, of=asked, pinned=name)
        assert [each.candidate.key for each in found.ranked] == ["dear-mcp@1"]
        assert found.decided_by == "pin"


@pytest.mark.req("AIP-30.resolve-4")
@pytest.mark.parametrize(
    ("pinned", "policy", "region", "phase", "code"),
    [
        (candidate("p-mcp", entry={"version": "^3.0.0"}), SelectionPolicy(), None, 1, "version_unsupported"),
        (candidate("p-mcp", standing={"auth": "unauthed"}), SelectionPolicy(), None, 2, "auth_required"),
        (candidate("p-mcp", policy_tags=["x"]), SelectionPolicy(deny=("x",)), None, 3, "policy_violation"),
        (candidate("p-mcp", region=["US"]), SelectionPolicy(), "EU", 3, "region_mismatch"),
    ],
)
def test_a_pin_never_brings_back_what_an_earlier_phase_removed(
    pinned: Candidate, policy: SelectionPolicy, region: str | None, phase: int, code: str
) -> None:
    found = ask(pinned, candidate("good-mcp", region=["EU"]), policy=policy, region=region, pinned="p-mcp")
    assert found.ranked == ()
    assert found.error is not None
    assert found.error.code == "pinned_provider_unavailable"
    assert "p-mcp" not in found.error.message
    assert (found.error.cause["phase"], found.error.cause["code"]) == (phase, code)


def test_a_pin_to_an_id_takes_one_of_its_majors_and_reports_the_major_that_came_furthest() -> None:
    first, second = candidate("p-mcp"), candidate("p-mcp", version="2.0.0", standing={"auth": "unauthed"})
    assert [each.candidate.key for each in ask(first, second, pinned="p-mcp").ranked] == ["p-mcp@1"]
    both = ask(first, candidate("p-mcp", version="2.0.0"), pinned="p-mcp")
    assert [each.candidate.key for each in both.ranked] == ["p-mcp@2"]
    error = ask(candidate("p-mcp", entry={"version": "^3.0.0"}), second, pinned="p-mcp").error
    assert error is not None
    assert (error.cause["phase"], error.cause["code"]) == (2, "auth_required")


@pytest.mark.req("AIP-30.resolve-4")
def test_a_pin_to_a_driver_that_does_not_serve_the_contract_says_so() -> None:
    error = ask(candidate(), pinned="absent-mcp").error
    assert error is not None
    assert (error.code, error.cause["code"]) == ("pinned_provider_unavailable", "not_a_candidate")


def cost(units: float) -> dict[str, Any]:
    return {"cost_override": {"cost_units_per_call": units}}


@pytest.mark.req("AIP-30.resolve-5")
@pytest.mark.parametrize(
    ("best", "other", "rule"),
    [
        (candidate("z-mcp", **cost(9)), candidate("a-mcp", **cost(1)), "default_implementation"),
        (candidate("y-mcp", **cost(1)), candidate("a-mcp", **cost(2), standing={"kind": "builtin"}), "cost"),
        (candidate("y-mcp", standing={"kind": "builtin"}), candidate("a-mcp", standing={"kind": "sdk"}), "kind"),
        (candidate("y-mcp", standing={"kind": "sdk"}), candidate("a-mcp", standing={"kind": "http"}), "kind"),
        (candidate("y-mcp", standing={"kind": "http"}), candidate("a-mcp", standing={"passed_at": NOW}), "kind"),
        (candidate("y-mcp"), candidate("a-mcp", standing={"kind": "cli", "passed_at": NOW}), "kind"),
        (candidate("y-mcp", standing={"kind": "cli"}), candidate("a-mcp", standing={"kind": "other"}), "kind"),
        (
            candidate("y-mcp", standing={"passed_at": NOW}),
            candidate("a-mcp", standing={"passed_at": NOW - 1}),
            "health",
        ),
        (candidate("y-mcp", standing={"passed_at": 0.0}), candidate("a-mcp"), "health"),
        (candidate("a-mcp"), candidate("b-mcp"), "id"),
    ],
)
def test_each_rule_decides_where_the_rules_before_it_tie(best: Candidate, other: Candidate, rule: str) -> None:
    asked = the_contract(default_implementation="z-mcp")
    for both in ((best, other), (other, best)):
        found = ask(*both, of=asked)
        assert [each.candidate.key for each in found.ranked] == [best.key, other.key]
        assert found.decided_by == rule


@pytest.mark.req("AIP-30.implements-1", "AIP-30.resolve-5")
def test_a_binding_s_price_goes_before_the_driver_s() -> None:
    found = ask(
        candidate("a-mcp", entry=cost(50), **cost(1)), candidate("b-mcp", **cost(40)), candidate("c-mcp", **cost(60))
    )
    assert [each.candidate.driver.id for each in found.ranked] == ["b-mcp", "a-mcp", "c-mcp"]


@pytest.mark.req("AIP-30.resolve-5")
@pytest.mark.parametrize(("cost_class", "units"), [("trivial", 0), ("metered", 100), ("expensive", 1000)])
def test_a_driver_without_a_number_costs_what_the_class_of_the_contract_says(cost_class: str, units: float) -> None:
    (choice,) = ask(candidate(), of=the_contract(cost_class=cost_class)).ranked
    assert choice.cost_units == units


@pytest.mark.req("AIP-30.resolve-5")
def test_a_class_without_a_number_is_no_price() -> None:
    (choice,) = ask(candidate(cost_override={"cost_class": "expensive"})).ranked
    assert choice.cost_units == 0


@pytest.mark.req("AIP-30.resolve-5")
def test_the_order_in_which_drivers_are_found_changes_nothing() -> None:
    several = [
        candidate("a-mcp"),
        candidate("b-mcp", standing={"passed_at": NOW}),
        candidate("c-mcp", **cost(1)),
        candidate("d-mcp", standing={"auth": "unauthed"}),
        candidate("a-mcp", version="2.0.0"),
    ]
    first = ask(*several)
    assert all(ask(*order) == first for order in itertools.permutations(several))
    assert [each.candidate.key for each in first.ranked] == ["b-mcp@1", "a-mcp@2", "a-mcp@1", "c-mcp@1"]


@pytest.mark.req("AIP-30.resolve-5")
@pytest.mark.parametrize("named", [None, "absent-mcp"])
def test_a_default_that_did_not_survive_leaves_the_choice_to_the_rest(named: str | None) -> None:
    out = candidate("default-mcp", standing={"refusal": Refusal(code="install_failed", message="no npm")})
    found = ask(out, candidate("a-mcp"), of=the_contract(default_implementation=named or "default-mcp"))
    assert winner(found) == "a-mcp"


@pytest.mark.req("AIP-30.resolve-6")
def test_no_remaining_driver_is_no_route_with_all_drivers_in_its_cause_and_none_in_its_message() -> None:
    found = ask(
        candidate("narrow-mcp", entry={"schema_narrowing": {"drop_inputs": ["head"]}}),
        candidate("broken-mcp", standing={"refusal": Refusal(code="install_failed", message="no npm")}),
        inputs=("head",),
    )
    assert found.error is not None
    assert found.error.code == "no_route"
    assert "mcp" not in found.error.message
    assert found.error.cause["candidates"] == [
        {"provider_id": "narrow-mcp@1", "phase": 1, "code": "input_unsupported", "reason": "it does not take head"},
        {"provider_id": "broken-mcp@1", "phase": 2, "code": "install_failed", "reason": "no npm"},
    ]


@pytest.mark.req("AIP-30.resolve-6")
def test_a_contract_without_drivers_has_no_route() -> None:
    error = ask().error
    assert error is not None
    assert (error.code, error.cause) == ("no_route", {"candidates": []})


@pytest.mark.req("AIP-30.resolve-6")
@pytest.mark.parametrize(
    ("only", "policy", "region", "code"),
    [
        (candidate(policy_tags=["x"]), SelectionPolicy(deny=("x",)), None, "policy_violation"),
        (candidate(region=["US"]), SelectionPolicy(), "EU", "region_mismatch"),
        (candidate(standing={"auth": "unauthed"}), SelectionPolicy(), None, "auth_required"),
        (
            candidate(standing={"refusal": Refusal(code="install_failed", message="r")}),
            SelectionPolicy(),
            None,
            "no_route",
        ),
        (candidate(standing={"failed_at": NOW}), SelectionPolicy(), None, "no_route"),
    ],
)
def test_the_rule_that_excluded_all_drivers_is_the_error_where_it_is_more_specific(
    only: Candidate, policy: SelectionPolicy, region: str | None, code: str
) -> None:
    error = ask(only, policy=policy, region=region).error
    assert error is not None
    assert error.code == code
    assert not error.retryable


@pytest.mark.req("AIP-30.auth-2", "AIP-30.resolve-2")
def test_a_logged_out_driver_says_what_it_waits_for() -> None:
    login = "set the secret acme/api-key, or log in at https://acme.example/login"
    error = ask(candidate(standing={"auth": "unauthed", "login": login})).error
    assert error is not None
    assert (error.code, error.message) == ("auth_required", login)


def test_the_audit_row_counts_the_phases_and_names_the_chosen() -> None:
    asked = SelectionRequest(contract=the_contract(), inputs=("head",), now=NOW)
    found = resolve(
        asked,
        [
            candidate("narrow-mcp", entry={"schema_narrowing": {"drop_inputs": ["head"]}}),
            candidate("out-mcp", standing={"auth": "unauthed"}),
            candidate("denied-mcp", policy_tags=["x"]),
            candidate("good-mcp", **cost(7)),
        ],
        SelectionPolicy(deny=("x",)),
    )
    row = resolved_row(asked, found)
    assert [(each["provider_id"], each["phase"]) for each in row.pop("rejected")] == [
        ("narrow-mcp@1", 1),
        ("out-mcp@1", 2),
        ("denied-mcp@1", 3),
    ]
    assert row == {
        "tool_id": "fs-read",
        "tool_version": "1.0.0",
        "candidates_total": 4,
        "candidates_passed_phase_2_capability": 2,
        "candidates_passed_phase_3_policy": 1,
        "pinned_provider": None,
        "selected": {"provider_id": "good-mcp@1", "kind": "mcp", "cost_units_per_call": 7},
    }
