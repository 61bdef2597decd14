"""Is a server's `input_required` read and written as 2026-07-28 has it, and can nobody but us make our states?"""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.mcp.mcp_schema import MODERN, complaints

from interlock.mcp.methods import PROMPTS_GET, TOOLS_CALL
from interlock.mcp.mrtr import (
    QUESTIONS_MAX,
    InputRequired,
    Question,
    Ticket,
    encode_input_required,
    is_ours,
    read_input_required,
    request_digest,
    seal,
    unseal_untrusted,
)

KEY = b"k" * 32
TICKET = Ticket("handle", 3, "client:é", b"\x00\xff" * 8, 1234.5)
ODD = rb'{ "message":"\u00e9\/", "n":1208925819614629174706175,"x":1.0 }'


def read(**members: Any) -> InputRequired | str | None:
    return read_input_required(Raw(json.dumps({"resultType": "input_required", **members}).encode()))


# What a server asks


@pytest.mark.parametrize(
    "result",
    [
        b'{"resultType":"complete","content":[]}',
        b'{"content":[{"type":"text","text":"\\"resultType\\":\\"input_required\\""}]}',
        b'{"structuredContent":{"resultType":"input_required"}}',
        b'{"resultType":["input_required"]}',
        b'["input_required"]',
        b"null",
    ],
)
def test_another_result_asks_nothing(result: bytes) -> None:
    assert read_input_required(Raw(result)) is None


def test_questions_keep_their_order_and_the_bytes_of_their_params() -> None:
    state = rb'"\u00e9 \/ opaque"'
    text = (
        b'{"requestState":%b,"inputRequests":{"z":{"params":%b,"method":"elicitation/create"},'
        b'"a":{"method":"roots/list"}},"resultType":"input_required","x":1}' % (state, ODD)
    )
    assert read_input_required(Raw(text)) == InputRequired(
        {"z": Question("elicitation/create", Raw(ODD)), "a": Question("roots/list", Raw(b"{}"))}, Raw(state)
    )


def test_a_server_may_want_only_its_state_back_or_have_none() -> None:
    assert read(requestState="s") == InputRequired({}, Raw(b'"s"'))
    asked = read(inputRequests={"a": {"method": "roots/list"}})
    assert isinstance(asked, InputRequired)
    assert asked.state is None


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({}, "asks nothing"),
        ({"inputRequests": {}}, "asks nothing"),
        ({"inputRequests": []}, "not an object"),
        ({"inputRequests": None}, "not an object"),
        ({"inputRequests": {str(n): {"method": "roots/list"} for n in range(QUESTIONS_MAX + 1)}}, "at most"),
        ({"inputRequests": {"a": "roots/list"}}, "no method"),
        ({"inputRequests": {"a": {"params": {}}}}, "no method"),
        ({"inputRequests": {"a": {"method": 7}}}, "no method"),
        ({"inputRequests": {"a": {"method": "roots/list", "params": [1]}}}, "no object"),
        ({"inputRequests": {"a": {"method": "roots/list", "params": None}}}, "no object"),
    ],
)
def test_a_question_that_cannot_be_asked_is_reported(members: dict[str, Any], why: str) -> None:
    said = read(**members)
    assert isinstance(said, str)
    assert why in said


# What a modern client is asked


@pytest.mark.parametrize("absent", [b"", b"null"])
def test_questions_to_a_client_satisfy_the_schema(absent: bytes) -> None:
    form = b'{"message":"m","requestedSchema":{"type":"object","properties":{}}}'
    sampling = b'{"messages":[],"maxTokens":1,"x-vendor":{ "n":1.0 }}'
    text = encode_input_required(
        {
            "1": Question("elicitation/create", Raw(form)),
            "2": Question("sampling/createMessage", Raw(sampling)),
            "3": Question("roots/list", Raw(absent)),
        },
        "state",
    )
    assert complaints(MODERN, "InputRequiredResult", text) == []
    asked = json.loads(text)["inputRequests"]
    assert list(asked) == ["1", "2", "3"]
    assert asked["3"] == {"method": "roots/list"}
    assert sampling in text


def test_written_values_are_read_again() -> None:
    questions = {"k é": Question("elicitation/create", Raw(ODD)), "": Question("roots/list", Raw(b"{}"))}
    assert read_input_required(Raw(encode_input_required(questions, "s"))) == InputRequired(questions, Raw(b'"s"'))


# What a retry must repeat


def digest(method: str, **params: bytes) -> bytes:
    return request_digest(method, {name: Raw(value) for name, value in params.items()})


def test_a_retry_may_change_its_answers_its_state_its_meta_and_how_it_is_written() -> None:
    first = digest(TOOLS_CALL, name=b'"t"', arguments=b'{"a":1,"b":{"x":"\xc3\xa9"}}', _meta=b'{"progressToken":1}')
    again = digest(
        TOOLS_CALL,
        requestState=b'"s"',
        inputResponses=b'{"1":{}}',
        arguments=rb'{ "b":{"x":"\u00e9"}, "a":1 }',
        _meta=b"{}",
        name=rb'"\u0074"',
    )
    assert first == again
    assert len(first) == 16


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (PROMPTS_GET, {"name": b'"t"', "arguments": b'{"a":1}'}),
        (TOOLS_CALL, {"name": b'"u"', "arguments": b'{"a":1}'}),
        (TOOLS_CALL, {"name": b'"t"', "arguments": b'{"a":2}'}),
        (TOOLS_CALL, {"name": b'"t"', "arguments": b'{"a":1.5}'}),
        (TOOLS_CALL, {"name": b'"t"', "arguments": b'{"a":"1"}'}),
        (TOOLS_CALL, {"name": b'"t"', "arguments": b'{"a":1,"b":null}'}),
        (TOOLS_CALL, {"name": b'"t"'}),
        (TOOLS_CALL, {"name": b'"t"', "arguments": b'{"a":1}', "x-more": b"1"}),
    ],
)
def test_any_other_request_has_another_digest(method: str, params: dict[str, bytes]) -> None:
    assert digest(method, **params) != digest(TOOLS_CALL, name=b'"t"', arguments=b'{"a":1}')


def test_unreadable_arguments_are_still_distinguished() -> None:
    halves = [rb'{"a":"\ud800"}', rb'{"a":"\ud801"}', rb'{"a":"\ud800","b":1}']
    assert len({digest(TOOLS_CALL, name=b'"t"', arguments=one) for one in halves}) == len(halves)


# Our own state


def test_a_sealed_ticket_comes_back_whole() -> None:
    state = seal(TICKET, KEY)
    assert is_ours(state)
    assert unseal_untrusted(state, KEY) == TICKET
    assert state.isascii()


def test_another_key_opens_nothing() -> None:
    assert unseal_untrusted(seal(TICKET, KEY), b"l" * 32) is None


def test_no_changed_character_goes_unnoticed() -> None:
    state = seal(TICKET, KEY)
    body = state.index(".") + 1
    whole = base64.urlsafe_b64decode(state[body:] + "=" * (-len(state[body:]) % 4))
    for at in range(body, len(state)):
        for other in "A_9":
            changed = state[:at] + other + state[at + 1 :]
            padded = changed[body:] + "=" * (-len(changed[body:]) % 4)
            if base64.urlsafe_b64decode(padded) != whole:  # the last character has bits that stand for nothing
                assert unseal_untrusted(changed, KEY) is None, at


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_a_state_that_was_cut_or_grew_is_refused(cut: int) -> None:
    state = seal(TICKET, KEY)
    for changed in (state[:-cut], state + "A" * cut * 4, "il1." + state[4 + cut * 4 :]):
        assert unseal_untrusted(changed, KEY) is None


@pytest.mark.parametrize("state", ["", "il1.", "il1.é", "il1.====", "il1.\x00", "il1.A", "il1.AAAA", "x" * 100_000])
def test_nonsense_is_refused_without_an_error(state: str) -> None:
    assert unseal_untrusted(state, KEY) is None


@given(st.text())
def test_no_text_from_outside_opens(text: str) -> None:
    assert unseal_untrusted("il1." + text, KEY) is None


@given(st.builds(Ticket, st.text(), st.integers(0, 2**53), st.text(), st.binary(max_size=40), st.floats(0, 1e12)))
def test_every_ticket_survives_its_seal(ticket: Ticket) -> None:
    assert unseal_untrusted(seal(ticket, KEY), KEY) == ticket
