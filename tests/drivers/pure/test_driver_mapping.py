"""Does every input go to its argument, unchanged, and is a mapping that is ambiguous refused before any call?"""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drivers.driver_bindings import (
    GIT_STATUS,
    STRING,
    bound,
    checked,
    entry,
    files,
    giving,
    input_schema,
    promising,
)
from tests.drivers.driver_texts import as_contract, as_driver, contract, driver

from interlock.drivers.protocol.binding.match import Bound, HookEntry, check_binding, contract_misfits
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.wire.jsonrpc.codec import decode_value, encode_value

ANY: dict[str, Any] = {}


def serving(one: dict[str, Any], inputs: Any, arguments: Any) -> Bound:
    return bound(one, promising({}, inputs), giving(inputs=arguments))


def sent(bound: Bound, given: dict[str, Any], context: dict[str, Any] | None = None) -> dict[str, Any]:
    made = bound.arguments(given, context or {})
    assert isinstance(made, dict), made
    return made


def fails(bound: Bound, given: dict[str, Any], context: dict[str, Any] | None = None) -> DriverRefusal:
    made = bound.arguments(given, context or {})
    assert isinstance(made, DriverRefusal), made
    return made


@pytest.mark.req("AIP-map-1")
def test_a_renamed_input_goes_to_its_argument_alone() -> None:
    query = serving(
        entry(mapping={"sql": "query"}), input_schema("sql", sql=STRING), input_schema("query", query=STRING)
    )
    assert sent(query, {"sql": "select 1"}) == {"query": "select 1"}


@pytest.mark.req("AIP-map-1")
@pytest.mark.parametrize(
    "text",
    [
        b"null",
        b"123456789012345678901234567890",
        b"-18446744073709551617",
        b'{"a":{"b":[1,null,{"c":18446744073709551616}]}}',
        b'"\\u0000 \xf0\x9f\x92\xa9"',
        b"[]",
        b"false",
    ],
)
def test_a_value_passes_unchanged(text: bytes) -> None:
    passing = serving(entry(mapping={"a": "b"}), input_schema(a=ANY), input_schema(b=ANY))
    arguments = sent(passing, {"a": decode_value(text)})
    assert decode_value(encode_value(arguments["b"])) == decode_value(text)
    assert type(arguments["b"]) is type(decode_value(text))


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abc"), VALUES))
def test_any_arguments_arrive_under_the_names_of_the_server(given: dict[str, Any]) -> None:
    swapped = serving(
        entry(mapping={"a": "b", "b": "a"}), input_schema(a=ANY, b=ANY, c=ANY), input_schema(a=ANY, b=ANY, c=ANY)
    )
    names = {"a": "b", "b": "a", "c": "c"}
    assert sent(swapped, given) == {names[name]: value for name, value in given.items()}


@pytest.mark.req("AIP-map-2")
def test_without_a_mapping_the_names_are_the_contracts() -> None:
    plain = serving(entry(), input_schema(path=STRING), input_schema(path=STRING))
    assert sent(plain, {"path": "/workspace/a"}) == {"path": "/workspace/a"}
    assert sent(plain, {}) == {}


@pytest.mark.req("AIP-map-2")
def test_inputs_that_a_mapping_does_not_list_keep_their_names() -> None:
    partly = serving(
        entry(mapping={"sql": "query"}), input_schema(sql=STRING, limit=ANY), input_schema(query=STRING, limit=ANY)
    )
    assert sent(partly, {"sql": "select 1", "limit": 5}) == {"query": "select 1", "limit": 5}


INPUTS = promising({}, input_schema("a", "b", a=STRING, b=STRING))


@pytest.mark.req("AIP-map-3")
@pytest.mark.parametrize(
    ("mapping", "named", "place"),
    [
        ({"a": "x", "b": "x"}, ("'a'", "'b'"), "/argument_mapping/b"),
        ({"a": "b"}, ("'a'", "'b'"), ""),
        ({"c": "x"}, ("'c'", "no input"), "/argument_mapping/c"),
        ({"a": ""}, ("'a'", "no argument"), "/argument_mapping/a"),
    ],
    ids=["two to one", "the name of another", "no input", "nowhere"],
)
def test_an_ambiguous_mapping_is_refused_with_both_keys(
    mapping: dict[str, str], named: tuple[str, ...], place: str
) -> None:
    (problem,) = check_binding(*files(entry(mapping=mapping), INPUTS))
    assert (problem.code, problem.field) == ("mapping_invalid", f"/implements/0/metadata/mcp{place}")
    assert all(each in problem.message for each in named)


def test_two_inputs_may_swap_their_names() -> None:
    assert checked(entry(mapping={"a": "b", "b": "a"}), INPUTS) == []


def test_an_input_that_is_dropped_leaves_its_argument_to_another() -> None:
    narrowed = entry(mapping={"a": "b"}, own_schema_narrowing={"drop_inputs": ["b"]})
    assert checked(narrowed, promising({}, input_schema("a", a=STRING, b=STRING))) == []


def test_a_contract_may_name_its_inputs_in_definitions_and_alternatives() -> None:
    inputs = {
        "$ref": "#/$defs/both",
        "$defs": {
            "both": {
                "type": "object",
                "allOf": [input_schema(a=STRING)],
                "anyOf": [input_schema(b=STRING), input_schema(c=STRING)],
            }
        },
        "dependentSchemas": {"a": input_schema(d=STRING)},
        "then": input_schema(e=STRING),
    }
    named = entry(mapping={"a": "v", "b": "w", "c": "x", "d": "y", "e": "z"})
    assert checked(named, promising({}, inputs)) == []


ENTRY = HookEntry(transforms=frozenset({"t"}))
RATIO = promising({}, input_schema(aspect_ratio=STRING, prompt=STRING))


@pytest.mark.req("AIP-map-4")
def test_mapping_runs_before_argument_mapping() -> None:
    one = entry(mapping={"aspect": "ratio"}, own_mapping={"aspect": {"from": "aspect_ratio", "transform": "t"}})
    tool = giving(inputs=input_schema(ratio={"type": "number"}, prompt=STRING))
    both = bound(one, RATIO, tool, entry=ENTRY)
    made = both.arguments({"aspect_ratio": "16:9", "prompt": "a cat"}, {}, {"aspect_ratio": 1.78})
    assert made == {"ratio": 1.78, "prompt": "a cat"}
    assert [each.code for each in both.warnings if "/ratio" in each.message] == ["contract_unverified"]


def test_a_transform_that_was_not_run_sends_nothing() -> None:
    one = entry(own_mapping={"aspect": {"from": "aspect_ratio", "transform": "t"}})
    both = bound(one, RATIO, giving(inputs=input_schema(aspect=STRING, prompt=STRING)), entry=ENTRY)
    assert fails(both, {"aspect_ratio": "16:9"}).code == "internal"


@pytest.mark.req("AIP-map-4")
def test_in_its_string_form_the_key_of_mapping_is_the_contracts_input() -> None:
    renamed = bound(
        entry(own_mapping={"aspect_ratio": "ratio"}), RATIO, giving(inputs=input_schema(ratio=STRING, prompt=STRING))
    )
    assert sent(renamed, {"aspect_ratio": "16:9"}) == {"ratio": "16:9"}


@pytest.mark.req("AIP-map-4")
@pytest.mark.parametrize(
    ("one", "code"),
    [
        (entry(mapping={"aspect_ratio": "x"}, own_mapping={"aspect_ratio": "y"}), "mapping_conflict"),
        (entry(mapping={"aspect_ratio": "x"}, own_mapping={"y": {"from": "aspect_ratio"}}), "mapping_conflict"),
        (entry(own_mapping={"y": {"from": "aspect_ratio", "transform": "t"}}), "transform_missing"),
        (entry(own_mapping={"y": {"from": "nothing"}}), "mapping_invalid"),
        (entry(own_mapping={"prompt": "aspect_ratio"}), "mapping_invalid"),
        (entry(own_mapping={"x": {"from": "prompt"}, "y": {"from": "prompt"}}), "mapping_invalid"),
    ],
    ids=["both rename", "both rename, other form", "transform", "no input", "two to one", "one to two"],
)
def test_mappings_that_do_not_go_together_are_refused(one: dict[str, Any], code: str) -> None:
    assert [each[0] for each in checked(one, RATIO)] == [code]


@pytest.mark.req("AIP-map-4")
def test_a_transform_has_to_be_in_driver_py() -> None:
    one = entry(own_mapping={"y": {"from": "aspect_ratio", "transform": "t"}})
    assert checked(one, RATIO, transforms={"t"}) == []
    assert [each[0] for each in checked(one, RATIO, transforms={"other"})] == ["transform_missing"]


@pytest.mark.req("AIP-map-5")
def test_a_default_serves_an_argument_that_the_contract_does_not_have() -> None:
    status = bound(entry(argument_defaults={"repo_path": "/workspace"}), promising({}), GIT_STATUS)
    assert sent(status, {}) == {"repo_path": "/workspace"}


def test_a_default_gives_way_to_an_input_of_the_contract() -> None:
    limited = serving(entry(argument_defaults={"limit": 10}), input_schema(limit=ANY), input_schema(limit=ANY))
    assert sent(limited, {}) == {"limit": 10}
    assert sent(limited, {"limit": None}) == {"limit": None}


@pytest.mark.req("AIP-map-5", "AIP-security-7")
def test_the_context_overrides_what_the_input_says() -> None:
    tenant = serving(
        entry(context_arguments={"tenant": "context.tenant_id"}),
        input_schema(tenant=STRING, q=STRING),
        input_schema("tenant", tenant=STRING, q=STRING),
    )
    for number in range(1000):
        mine = f"tenant-{number % 2}"
        assert sent(tenant, {"tenant": "another", "q": "x"}, {"tenant_id": mine}) == {"tenant": mine, "q": "x"}


def test_the_context_may_be_nested() -> None:
    deep = serving(entry(context_arguments={"who": "context.user.id"}), input_schema(), input_schema("who", who=STRING))
    assert sent(deep, {}, {"user": {"id": "u1"}}) == {"who": "u1"}


@pytest.mark.req("AIP-map-5")
@pytest.mark.parametrize("context", [{}, {"tenant_id": None}, {"tenant": "x"}, {"tenant_id": None, "user_id": "x"}])
def test_a_context_that_is_absent_ends_the_call(context: dict[str, Any]) -> None:
    tenant = serving(
        entry(context_arguments={"tenant": "context.tenant_id"}),
        input_schema(tenant=STRING),
        input_schema(tenant=STRING),
    )
    failed = fails(tenant, {"tenant": "mine"}, context)
    assert failed.code == "input_invalid"
    assert "context.tenant_id" in failed.message


@pytest.mark.parametrize("path", ["tenant_id", "context", "context.", "context..a", "secrets.X", ""])
def test_an_unknown_place_in_the_context_is_refused(path: str) -> None:
    assert [each[0] for each in checked(entry(context_arguments={"tenant": path}))] == ["mapping_invalid"]


@pytest.mark.req("AIP-security-7", "AIP-map-2")
@pytest.mark.parametrize("name", ["repo_path", "tenant", "query"], ids=["a default", "the context", "a renamed input"])
def test_a_further_input_reaches_no_argument_that_something_else_feeds(name: str) -> None:
    inputs = {**input_schema("sql", sql=STRING), "additionalProperties": True}
    guarded = serving(
        entry(
            mapping={"sql": "query"},
            argument_defaults={"repo_path": "/workspace"},
            context_arguments={"tenant": "context.tenant_id"},
        ),
        inputs,
        {
            **input_schema("query", "repo_path", query=STRING, repo_path=STRING, tenant=STRING),
            "additionalProperties": True,
        },
    )
    failed = fails(guarded, {"sql": "select 1", name: "mine"}, {"tenant_id": "t"})
    assert failed.code == "input_invalid"
    assert repr(name) in failed.message
    assert sent(guarded, {"sql": "select 1", "other": 1}, {"tenant_id": "t"})["other"] == 1


def test_an_input_that_the_contract_does_not_declare_is_not_sent() -> None:
    plain = serving(entry(), input_schema(path=STRING), input_schema(path=STRING, force={"type": "boolean"}))
    failed = fails(plain, {"path": "/a", "force": True})
    assert (failed.code, "'force'" in failed.message) == ("input_invalid", True)


def test_an_input_that_is_required_but_not_described_is_declared() -> None:
    inputs = {"type": "object", "required": ["path"]}
    assert sent(serving(entry(), inputs, input_schema("path", path=ANY)), {"path": 1}) == {"path": 1}


@pytest.mark.req("AIP-30.implements-4")
def test_a_call_that_uses_a_dropped_input_is_refused_and_not_stripped() -> None:
    narrowed = serving(
        entry(own_schema_narrowing={"drop_inputs": ["b"]}), input_schema(a=STRING, b=STRING), input_schema(a=STRING)
    )
    failed = fails(narrowed, {"a": "1", "b": "2"})
    assert (failed.code, "'b'" in failed.message) == ("input_unsupported", True)
    assert sent(narrowed, {"a": "1"}) == {"a": "1"}


@pytest.mark.req("AIP-30.implements-4")
@pytest.mark.parametrize("dropped", ["path", "nothing"])
def test_a_required_or_unknown_input_is_not_dropped(dropped: str) -> None:
    one = entry(own_schema_narrowing={"drop_inputs": [dropped]})
    ((code, message),) = checked(one)
    assert (code, repr(dropped) in message) == ("narrowing_invalid", True)


@pytest.mark.req("AIP-30.implements-5")
def test_a_timeout_is_narrowed_and_never_widened() -> None:
    for narrower in (500, 1000):
        assert checked(entry(own_timeout_override_ms=narrower), contract(timeout_ms=1000)) == []
    assert checked(entry(), contract(timeout_ms=1000)) == []
    ((code, message),) = checked(entry(own_timeout_override_ms=60_000), contract(timeout_ms=30_000))
    assert code == "timeout_widened"
    assert "30000" in message
    for one, whole, place in (
        (entry(own_timeout_override_ms=1001), {}, "/implements/0/timeout_override_ms"),
        (entry(), {"timeout_override_ms": 1001}, "/timeout_override_ms"),
    ):
        promise, bound_ = (
            as_contract(contract(timeout_ms=1000)).value,
            as_driver(driver(implements=[one], **whole)).value,
        )
        assert promise is not None and bound_ is not None
        (problem,) = contract_misfits(bound_, bound_.implements[0], promise)
        assert (problem.code, problem.field) == ("timeout_widened", place)


@pytest.mark.req("AIP-tools-4")
def test_the_default_of_the_contract_is_sent_where_the_server_requires_the_argument() -> None:
    inputs = input_schema(limit={"type": "integer", "default": 10}, offset={"type": "integer", "default": 3})
    limited = serving(entry(), inputs, input_schema("limit", limit={"type": "integer"}, offset={"type": "integer"}))
    assert sent(limited, {}) == {"limit": 10}
    assert sent(limited, {"limit": 5}) == {"limit": 5}


def test_the_arguments_of_a_call_are_its_own() -> None:
    plain = serving(entry(argument_defaults={"b": [1]}), input_schema(a=ANY), input_schema(a=ANY, b=ANY))
    first, second = sent(plain, {"a": 1}), sent(plain, {"a": 1})
    first["c"] = 1
    assert second == {"a": 1, "b": [1]}
    assert msgspec.json.encode(plain.feeding.defaults) == b'{"b":[1]}'
