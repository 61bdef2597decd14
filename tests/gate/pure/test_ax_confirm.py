"""Does a digest name exactly one call, is a held call shown as it is, and is mcpax/confirm read (MCP-AX 11.3)?"""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.mcp.mcp_schema import LEGACY, MODERN, complaints

from interlock.gate.protocol.held_call import (
    ARGUMENTS_BYTES_MAX,
    CONFIRMATION,
    Confirm,
    ConfirmationDemand,
    Presented,
    call_digest,
    held_result,
    read_confirm_untrusted,
    redeeming_params,
)
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import Refusal

AGGREGATOR = "550e8400-e29b-41d4-a716-446655440000"
CALL: dict[str, Any] = {
    "aggregator_id": AGGREGATOR,
    "tool": "plant.valve.open",
    "route": ("plant", "valve", "open"),
    "caller": "client:ada",
    "tool_digest": "ab" * 32,
}
ARGUMENTS = b'{"angle": 90, "who": "\\u00e9", "on": [true, null, 1.5]}'


def digest(arguments: bytes | None = ARGUMENTS, **changes: Any) -> str:
    made = call_digest(None if arguments is None else Raw(arguments), **{**CALL, **changes})
    assert isinstance(made, str), made
    return made


def refused(arguments: bytes) -> Refusal:
    made = call_digest(arguments, **CALL)
    assert isinstance(made, Refusal), made
    assert made.number == -32602
    return made


@pytest.mark.req("AX-11.3-13")
def test_a_digest_is_the_hash_of_these_members_in_canonical_json() -> None:
    text = (
        '{"aggregator_id":"550e8400-e29b-41d4-a716-446655440000","arguments":{"angle":90,"on":[true,null,1.5],"who":"é"},'
        '"caller":"client:ada","route":["plant","valve","open"],"tool":"plant.valve.open","tool_digest":"'
        + "ab" * 32
        + '","v":1}'
    )
    assert digest() == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize(
    "arguments",
    [
        '{"on":[true,null,1.5],"who":"é","angle":90}',
        '\n{ "on" : [ true , null , 15e-1 ] , "angle" : 90.0, "who":"\\u00E9" }\t',
    ],
)
def test_order_white_space_and_spelling_do_not_change_it(arguments: str) -> None:
    assert digest(arguments.encode()) == digest()


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize(
    "arguments",
    [
        '{"angle":91,"who":"é","on":[true,null,1.5]}',
        '{"angle":"90","who":"é","on":[true,null,1.5]}',
        '{"angle":90,"who":"e\u0301","on":[true,null,1.5]}',
        '{"angle":90,"who":"é","on":[null,true,1.5]}',
        '{"angle":90,"who":"é","on":[true,false,1.5]}',
        '{"angle":90,"who":"é","on":[1,null,1.5]}',
        '{"angle":90,"who":"é","on":[true,null,1.5,null]}',
        '{"angle":90,"who":"é","on":[true,null,1.5],"x":null}',
        '{"angle":90,"who":"é"}',
        '{"Angle":90,"who":"é","on":[true,null,1.5]}',
        "{}",
    ],
)
def test_any_changed_value_or_type_changes_it(arguments: str) -> None:
    assert digest(arguments.encode()) != digest()


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize(
    "changes",
    [
        {"tool": "plant.valve.shut"},
        {"route": ("plant", "valve")},
        {"route": ("plant.valve", "open")},
        {"caller": "client:bob"},
        {"tool_digest": "cd" * 32},
        {"aggregator_id": "650e8400-e29b-41d4-a716-446655440000"},
    ],
)
def test_another_tool_route_caller_definition_or_aggregator_changes_it(changes: dict[str, Any]) -> None:
    assert digest(**changes) != digest()


def test_no_arguments_and_an_empty_object_are_the_same_call() -> None:
    assert digest(None) == digest(b" {} ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1e30]) | st.text("aé\U0001f600", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text("ab", max_size=2), JSON, max_size=3)


def exactly(value: Any) -> Any:
    """Python takes True for 1 and 1 for 1.0; JSON takes only the latter two for one value."""
    if isinstance(value, dict):
        return {key: exactly(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exactly(one) for one in value]
    return (isinstance(value, bool), value)


@pytest.mark.req("AX-11.3-13")
@given(OBJECTS, OBJECTS)
def test_two_calls_have_one_digest_if_and_only_if_their_arguments_are_equal(one: Any, other: Any) -> None:
    same = exactly(one) == exactly(other)
    assert (digest(json.dumps(one).encode()) == digest(json.dumps(other, indent=2).encode())) is same


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (b'{"a":1,"a":1}', "duplicate_key"),
        (b'{"x":[{"a":1,"\\u0061":2}]}', "duplicate_key"),
        (rb'{"x":"\ud83d"}', "surrogate"),
        (rb'{"\udc00":1}', "surrogate"),
        (b'{"x":9007199254740992}', "number"),
        (b'{"x":[-9007199254740992]}', "number"),
        (b'{"x":1e400}', "number"),
        (b'{"x":0.1000000000000000055}', "number"),
        (b'{"x":-0.0}', "number"),
        (b'{"x":' * 70 + b"0" + b"}" * 70, "nesting"),
        (b'{"x":[%b0]}' % (b"0," * 20_000), "size"),
        (b'{"x":"%b"}' % (b"a" * ARGUMENTS_BYTES_MAX), "size"),
        (b"[]", "malformed"),
        (b"null", "malformed"),
        (b"", "malformed"),
        (b'{"x":NaN}', "malformed"),
        (b"\xff", "malformed"),
    ],
)
def test_arguments_that_readers_may_take_differently_are_refused(arguments: bytes, reason: str) -> None:
    refusal = refused(arguments)
    assert refusal.details == {"reason": reason}


@given(st.binary(max_size=80))
def test_no_arguments_raise_anything(arguments: bytes) -> None:
    made = call_digest(arguments, **CALL)
    assert isinstance(made, str) or made.number == -32602


HELD = ConfirmationDemand(
    tool="plant.valve.open",
    arguments=Raw(ARGUMENTS),
    capability={"mutable": True, "reversible": False},
    route=("plant", "valve", "open"),
    caller="client:ada",
    tool_digest="ab" * 32,
    confirmation_id="7f1c7a52-4b9b-4d4c-9d7b-5d1f2f0f8a11",
    expires_at="2026-11-16T04:05:00Z",
    approval_url="http://127.0.0.1:7412/approvals/7f1c7a52-4b9b-4d4c-9d7b-5d1f2f0f8a11",
    nonce="bm9uY2U",
    call_digest="cd" * 32,
    aggregator_id=AGGREGATOR,
)


def result(**changes: bool) -> dict[str, Any]:
    given = {"has_approvers": True, "has_output_schema": False, "modern": True, **changes}
    text = held_result(HELD, **given)
    assert complaints(MODERN if given["modern"] else LEGACY, "CallToolResult", text) == []
    return dict(json.loads(text))


@pytest.mark.req("AX-11.3-2")
@pytest.mark.parametrize("modern", [True, False])
def test_a_held_call_is_answered_by_a_valid_result_that_shows_it(modern: bool) -> None:
    made = result(modern=modern)
    assert made["isError"] is True
    assert made.get("resultType") == ("complete" if modern else None)
    shown = made["structuredContent"]
    assert shown == made["_meta"][CONFIRMATION]
    assert shown == {
        "status": "confirmation_required",
        "tool": HELD.tool,
        "arguments": json.loads(ARGUMENTS),
        "capability": HELD.capability,
        "route": list(HELD.route),
        "caller": "client:ada",
        "tool_digest": "ab" * 32,
        "confirmation_id": HELD.confirmation_id,
        "expires_at": HELD.expires_at,
        "approval_url": HELD.approval_url,
        "nonce": HELD.nonce,
        "call_digest": HELD.call_digest,
        "aggregator_id": AGGREGATOR,
    }


def test_a_tool_with_an_output_schema_gets_no_structured_content() -> None:
    made = result(has_output_schema=True)
    assert "structuredContent" not in made
    assert made["_meta"][CONFIRMATION]["status"] == "confirmation_required"


@pytest.mark.req("AX-11.3-2")
def test_the_text_says_that_nothing_ran_and_what_to_do() -> None:
    text = result()["content"][0]["text"]
    assert text.startswith("Not executed yet.")
    for part in (HELD.tool, HELD.approval_url, f"interlock approve {HELD.confirmation_id}", HELD.expires_at):
        assert part in text
    assert "make exactly the same call again" in text


def test_where_nobody_may_confirm_the_text_names_the_command_that_says_what_is_missing() -> None:
    text = result(has_approvers=False)["content"][0]["text"]
    assert text.startswith("Not executed yet.")
    assert "interlock status" in text
    assert "interlock approve" not in text


def test_arguments_are_shown_with_the_bytes_they_were_sent_in() -> None:
    shown = held_result(HELD, has_approvers=True, has_output_schema=False, modern=False)
    assert shown.count(ARGUMENTS) == 2  # in the structured content and in `_meta`
    assert ARGUMENTS in held_result(HELD, has_approvers=True, has_output_schema=True, modern=False)


ID = HELD.confirmation_id


def confirm(**members: Any) -> Confirm | Refusal:
    return read_confirm_untrusted(json.dumps({"confirmation_id": ID, **members}).encode())


@pytest.mark.req("AX-11.3-5")
def test_a_proof_is_an_object_or_a_bare_token() -> None:
    assert confirm(proof="a.b.c") == Confirm(confirmation_id=ID, proof=Presented(token="a.b.c"))
    typed = {"type": "policy_nonce", "token": "a.b.c", "more": 1}
    assert confirm(proof=typed) == Confirm(confirmation_id=ID, proof=Presented(type="policy_nonce", token="a.b.c"))
    assert confirm(proof={"token": "x"}) == Confirm(confirmation_id=ID, proof=Presented(token="x"))


@pytest.mark.req("AX-11.3-5")
@pytest.mark.parametrize(
    "proof",
    [
        None,
        "",
        0,
        7,
        True,
        [],
        ["a.b.c"],
        {},
        {"type": "policy_nonce"},
        {"token": ""},
        {"token": 7},
        {"token": None},
        {"type": 1, "token": "a.b.c"},
        {"type": [], "token": "a.b.c"},
    ],
)
def test_a_malformed_token_is_refused_as_malformed(proof: Any) -> None:
    judged = confirm(proof=proof)
    assert isinstance(judged, Refusal) and judged.number == -32602


@pytest.mark.parametrize(
    "params",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"proof":"a.b.c"}',
        b'{"confirmation_id":"","proof":"a.b.c"}',
        b'{"confirmation_id":7,"proof":"a.b.c"}',
        b'{"confirmation_id":null,"proof":"a.b.c"}',
        b'{"confirmation_id":"%b","proof":"a.b.c"}' % (b"x" * 65),
        b'{"confirmation_id":"x"}',
        rb'{"confirmation_id":"x","proof":"\ud800"}',
        b'{"confirmation_id":"x","proof":{"token":1e999}}',
        b"{",
        b"\xff",
    ],
)
def test_params_that_are_no_confirmation_are_refused(params: bytes) -> None:
    judged = read_confirm_untrusted(params)
    assert isinstance(judged, Refusal) and judged.number == -32602


def test_a_proof_may_be_taken_without_the_call_being_sent() -> None:
    taken = confirm(proof="a.b.c", dispatch=False)
    assert isinstance(taken, Confirm) and taken.dispatch is False
    for wrong in (None, 0, "false", {}):
        judged = confirm(proof="a.b.c", dispatch=wrong)
        assert isinstance(judged, Refusal) and judged.number == -32602


@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_params_raise_anything(params: bytes) -> None:
    assert isinstance(read_confirm_untrusted(params), Confirm | Refusal)


def test_a_held_call_is_redeemed_without_a_proof_and_only_in_so_many_words() -> None:
    redeemed = read_confirm_untrusted(b'{"confirmation_id":"c","redeem":true,"_meta":{}}')
    assert redeemed == Confirm(confirmation_id="c", proof=None, redeem=True)
    for wrong in ("false", "null", "1", '"true"', 'true,"proof":null', 'true,"proof":"a.b.c"', 'true,"dispatch":false'):
        judged = read_confirm_untrusted(b'{"confirmation_id":"c","redeem":%b}' % wrong.encode())
        assert isinstance(judged, Refusal) and judged.number == -32602, wrong
    sent = redeeming_params("c", {"name": Raw(b'"x"'), "arguments": Raw(b"{}"), "_meta": Raw(b"{}")})
    assert sent.keys() == {"confirmation_id", "redeem", "_meta"}
    assert isinstance(read_confirm_untrusted(encode_value(sent)), Confirm)
