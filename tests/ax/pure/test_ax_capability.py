"""Is the capability annotation of MCP-AX 9.1 read, derived and overridden as the ledger says?"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.ax.protocol.capability import (
    TIMEOUT_S,
    AuthScope,
    Capability,
    CostClass,
    InvalidAnnotation,
    LatencyClass,
    ToolClass,
    as_object,
    hints,
    is_semver,
    read_capability,
    safety,
)

FULL: dict[str, object] = {
    "latency_class": "fast",
    "consistency": "eventual",
    "mutable": True,
    "reversible": True,
    "idempotent": True,
    "transport": "uart_cbor",
    "auth_scope": "admin",
    "cost_class": "metered",
    "availability": "scheduled",
    "schema_version": "2.1.0",
}
ENUMS = {
    "latency_class": ["realtime", "fast", "standard", "slow", "batch"],
    "consistency": ["strong", "eventual", "best_effort"],
    "transport": ["native", "uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json"],
    "auth_scope": ["read", "write", "admin"],
    "cost_class": ["free", "metered", "expensive"],
    "availability": ["always", "scheduled", "best_effort", "degraded"],
}
BOOLEANS = ["mutable", "reversible", "idempotent"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def valid(*args: object, **kwargs: object) -> Capability:
    capability = read_capability(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(capability, Capability), capability
    return capability


def reason(*args: object, **kwargs: object) -> str:
    invalid = read_capability(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(invalid, InvalidAnnotation), invalid
    return invalid.reason


@pytest.mark.req("AX-9.1-1")
def test_a_full_annotation_is_read_and_written_back_with_its_unknown_keys() -> None:
    declared = {**FULL, "x-vendor": {"deep": [1, None, 2**90]}, "nothing": None, "extra": 1}
    assert as_object(valid(declared)) == declared


@pytest.mark.req("AX-9.1-4", "AX-9.1-7", "AX-9.1-9", "AX-9.1-10")
@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ENUMS.items() for value in values])
def test_every_value_of_the_schema_passes(key: str, value: str) -> None:
    assert as_object(valid({**FULL, key: value}))[key] == value


@pytest.mark.req("AX-9.1-4", "AX-9.1-7", "AX-9.1-9", "AX-9.1-10")
@pytest.mark.parametrize("key", ENUMS)
@pytest.mark.parametrize("value", ["", "Always", "always ", None, 0, True, [], {}, ["fast"]])
def test_a_value_outside_the_schema_is_refused_by_name(key: str, value: object) -> None:
    said = reason({**FULL, key: value})
    assert key in said
    assert ENUMS[key][0] in said


@pytest.mark.req("AX-9.1-3")
def test_the_five_latency_classes_pass_in_their_order_and_no_other_does() -> None:
    classes = [valid({"latency_class": value}).latency_class for value in ENUMS["latency_class"]]
    assert all(faster < slower for faster, slower in itertools.combinations(classes, 2))
    assert max(classes) is LatencyClass.BATCH
    for refused in ("Realtime", "", None):
        assert "latency_class" in reason({"latency_class": refused})


@pytest.mark.req("AX-9.1-6")
def test_the_three_booleans_are_booleans_and_no_other_value_is_accepted() -> None:
    for key, value in itertools.product(BOOLEANS, (True, False)):
        assert as_object(valid({**FULL, key: value}))[key] is value
    for key, value in itertools.product(BOOLEANS, ("false", "true", 0, 1, None, [], 1.0)):
        assert reason({**FULL, key: value}).startswith(f"{key} must be true or false")
    harmless = valid({**FULL, "mutable": False, "reversible": False})
    assert not harmless.reversible
    assert safety(harmless) is None


@pytest.mark.req("AX-9.1-8")
def test_scopes_are_ordered_and_a_missing_scope_follows_from_mutable() -> None:
    read, write, admin = (valid({"auth_scope": value}).auth_scope for value in ("read", "write", "admin"))
    assert read < write < admin
    assert not admin <= write
    assert write <= write
    for refused in ("Read", "", "root", None, 1):
        assert "auth_scope" in reason({"auth_scope": refused})
    assert valid({"mutable": True}).auth_scope is AuthScope.WRITE
    assert valid({"mutable": False}).auth_scope is AuthScope.READ


@pytest.mark.req("AX-9.1-1")
@pytest.mark.parametrize("declared", [None, [], "fast", 1, True])
def test_an_annotation_that_is_no_object_is_refused(declared: object) -> None:
    assert "must be an object" in reason(declared)


def test_an_annotation_with_a_key_that_is_no_string_is_refused() -> None:
    assert "keys" in reason({**FULL, 1: "x"})


@pytest.mark.req("AX-9.1-11")
@pytest.mark.parametrize("text", ["1.0.0", "0.1.0-rc.1+b5", "0.0.0", "10.20.30", "1.0.0--", "1.0.0+001", "1.0.0-0a"])
def test_a_semantic_version_passes(text: str) -> None:
    assert is_semver(text)
    assert valid({"schema_version": text}).schema_version == text


@pytest.mark.req("AX-9.1-11")
@pytest.mark.parametrize(
    "value",
    [
        "1.0",
        "v1.0.0",
        "01.0.0",
        "",
        "1.0.0\n",
        "1.0.0-",
        "1.0.0-01",
        "1.0.0+",
        "1.0.0-a..b",
        "٣.0.0",
        1,
        None,
        [1, 0, 0],
    ],
)
def test_anything_else_is_no_schema_version(value: object) -> None:
    assert reason({"schema_version": value}).startswith("schema_version must be a semantic version")


@pytest.mark.req("AX-9.1-2")
def test_a_tool_about_which_nothing_is_known_counts_as_irreversible() -> None:
    assert as_object(valid()) == {
        "latency_class": "standard",
        "consistency": "best_effort",
        "mutable": True,
        "reversible": False,
        "idempotent": False,
        "transport": "native",
        "auth_scope": "write",
        "cost_class": "free",
        "availability": "always",
        "schema_version": "0.0.0",
    }
    assert valid() == valid({}) == valid(annotations={}) == Capability()


@pytest.mark.req("AX-9.1-2")
@pytest.mark.parametrize(
    ("annotations", "mutable", "reversible", "idempotent", "scope"),
    [
        ({"readOnlyHint": True}, False, True, False, "read"),
        ({"readOnlyHint": True, "destructiveHint": True}, False, True, False, "read"),
        ({"readOnlyHint": False}, True, False, False, "write"),
        ({"destructiveHint": False}, True, True, False, "write"),
        ({"destructiveHint": True}, True, False, False, "write"),
        ({"idempotentHint": True}, True, False, True, "write"),
        ({"readOnlyHint": "true", "destructiveHint": 0, "idempotentHint": 1}, True, False, False, "write"),
        ({"readOnlyHint": None, "destructiveHint": None}, True, False, False, "write"),
        (None, True, False, False, "write"),
        (["readOnlyHint"], True, False, False, "write"),
    ],
)
def test_mcp_hints_replace_a_missing_annotation_under_mcps_defaults(
    annotations: object, mutable: bool, reversible: bool, idempotent: bool, scope: str
) -> None:
    capability = valid(annotations=annotations)
    assert (capability.mutable, capability.reversible, capability.idempotent) == (mutable, reversible, idempotent)
    assert capability.auth_scope.value == scope


def test_a_declared_key_overrides_its_hint_and_no_other() -> None:
    annotations = {"destructiveHint": False, "idempotentHint": True}
    capability = valid({"idempotent": False, "latency_class": "slow"}, annotations=annotations)
    assert not capability.idempotent
    assert capability.reversible
    assert capability.latency_class is LatencyClass.SLOW


@pytest.mark.req("AX-9.1-2")
@pytest.mark.parametrize("key", FULL)
def test_an_operator_overrides_each_key(key: str) -> None:
    assert as_object(valid(overrides={key: FULL[key]}))[key] == FULL[key]
    assert as_object(valid({key: as_object(Capability())[key]}, overrides={key: FULL[key]}))[key] == FULL[key]


def test_an_operator_cannot_override_with_a_key_or_value_outside_the_schema() -> None:
    assert "latency_class" in reason(overrides={"latency": "fast"})
    assert reason(overrides={"mutable": "no"}).startswith("mutable must be true or false")


@pytest.mark.parametrize(
    ("tool_class", "mutable", "reversible", "scope", "flag"),
    [
        ("read_only", False, True, AuthScope.READ, None),
        ("reversible", True, True, AuthScope.WRITE, None),
        ("irreversible", True, False, AuthScope.WRITE, "irreversible_mutable"),
    ],
)
@pytest.mark.parametrize("annotations", [None, {"readOnlyHint": True}, {"destructiveHint": False}])
def test_an_operators_class_decides_whatever_the_hints_say(
    annotations: object, tool_class: ToolClass, mutable: bool, reversible: bool, scope: AuthScope, flag: str | None
) -> None:
    capability = valid(annotations=annotations, tool_class=tool_class)
    assert (capability.mutable, capability.reversible, capability.auth_scope) == (mutable, reversible, scope)
    assert safety(capability) == flag


def test_an_override_wins_over_the_class() -> None:
    assert not valid(tool_class="reversible", overrides={"reversible": False}).reversible


@pytest.mark.parametrize(
    "arguments",
    [
        {"declared": {"mutable": False, "reversible": True, "auth_scope": "read"}, "overrides": {"mutable": True}},
        {"declared": {"mutable": True}, "annotations": {"readOnlyHint": True}},
        {"annotations": {"readOnlyHint": True, "destructiveHint": False}, "overrides": {"mutable": True}},
    ],
)
def test_a_read_only_claim_that_is_overruled_leaves_the_tool_irreversible(arguments: dict[str, object]) -> None:
    capability = valid(**arguments)
    assert safety(capability) == "irreversible_mutable"
    assert capability.auth_scope is AuthScope.WRITE


def test_a_declared_scope_survives_a_class_that_asks_for_less() -> None:
    assert valid({"auth_scope": "admin"}, tool_class="read_only").auth_scope is AuthScope.ADMIN


@pytest.mark.req("AX-11.2-1", "AX-9.1-6")
@pytest.mark.parametrize("mutable", [True, False])
@pytest.mark.parametrize("reversible", [True, False])
def test_only_mutable_and_not_reversible_is_flagged(mutable: bool, reversible: bool) -> None:
    flagged = safety(valid({"mutable": mutable, "reversible": reversible})) == "irreversible_mutable"
    assert flagged == (mutable and not reversible)


def test_missing_hints_are_filled_from_the_annotation() -> None:
    assert hints(valid()) == {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}
    read_only = valid({"mutable": False, "reversible": False, "idempotent": True})
    assert hints(read_only) == {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}


def test_hints_the_server_set_itself_are_left_alone() -> None:
    given_by_server = {"readOnlyHint": True, "title": "Reset"}
    assert hints(valid(tool_class="irreversible"), given_by_server) == {
        "destructiveHint": True,
        "idempotentHint": False,
    }
    assert hints(Capability(), {"readOnlyHint": None, "destructiveHint": 1, "idempotentHint": ""}) == {}


@pytest.mark.req("AX-7.3-1", "AX-7.3-2")
def test_each_latency_class_has_its_time_and_batch_has_none() -> None:
    assert [TIMEOUT_S[one] for one in LatencyClass] == [0.5, 5, 30, 120, None]


@given(st.dictionaries(st.sampled_from([*FULL, "other"]), json_values, max_size=4))
def test_any_object_is_either_read_or_refused_with_a_short_reason(declared: dict[str, object]) -> None:
    outcome = read_capability(declared)
    if isinstance(outcome, InvalidAnnotation):
        assert 0 < len(outcome.reason) < 250
    else:
        assert as_object(outcome).items() >= declared.items()


@pytest.mark.req("AX-9.1-1")
@given(st.dictionaries(st.text(min_size=1).filter(lambda key: key not in FULL), json_values))
def test_unknown_keys_are_carried_along(others: dict[str, object]) -> None:
    assert as_object(valid({**FULL, **others})) == {**FULL, **others}
    assert valid({**FULL, **others}).cost_class is CostClass.METERED


@given(json_values, st.sampled_from(["read_only", "reversible", "irreversible"]))
def test_no_annotations_object_of_a_server_weakens_an_operators_class(annotations: object, chosen: ToolClass) -> None:
    assert safety(valid(annotations=annotations, tool_class=chosen)) == safety(valid(tool_class=chosen))
