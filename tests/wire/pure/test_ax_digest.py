"""Is JSON written canonically as RFC 8785 says, and does a definition's digest change when the definition does?"""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.jsontext.canonical import NotCanonical, canonical, tool_digest

# RFC 8785, appendix B.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_a_double_is_written_as_the_rfc_lists_it(bits: str, text: str) -> None:
    assert canonical(struct.unpack(">d", bytes.fromhex(bits))[0]) == text.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000"])
def test_an_invalid_number_is_refused(bits: str) -> None:
    with pytest.raises(NotCanonical, match="a number is not finite"):
        canonical(struct.unpack(">d", bytes.fromhex(bits))[0])


def test_the_sample_of_the_rfc() -> None:
    sample = rb"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(decode_value(sample)) == expected.encode()


def test_keys_are_in_the_order_of_their_utf16_units() -> None:
    sample = (
        rb'{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",'
        rb'"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}'
    )
    order = [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]
    assert list(json.loads(canonical(decode_value(sample))).values()) == order


@pytest.mark.parametrize("value", [2**53, -(2**53), 10**40, "\ud800", {"\udfff": 1}, {1: 2}, object(), b"x"])
def test_values_without_a_canonical_form_are_refused(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical([value])


def test_nesting_without_end_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotCanonical, match="it is nested too deeply"):
        canonical(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_the_canonical_text_says_the_same_and_is_its_own(value: object) -> None:
    text = canonical(value)
    assert json.loads(text, parse_int=float) == value
    assert canonical(json.loads(text, parse_int=float)) == text  # RFC 8785 knows only doubles


ITEM = {
    "name": Raw(b'"t"'),
    "title": Raw(b'"T"'),
    "description": Raw(b'"what it does"'),
    "inputSchema": Raw(b'{"type":"object","properties":{"a":{"type":"integer","maximum":18446744073709551615}}}'),
    "outputSchema": Raw(b'{"type":"object"}'),
    "annotations": Raw(b'{"readOnlyHint":true}'),
    "_meta": Raw(b'{"v":1}'),
}
DECLARED = {"mutable": False, "latency_class": "fast", "availability": "always"}


def digest(name: str = "t", declared: object = DECLARED, **members: bytes) -> str:
    item = {**ITEM, **{key: Raw(value) for key, value in members.items()}}
    return tool_digest(item, downstream_name=name, declared=declared)


@pytest.mark.req("AX-11.3-14")
@pytest.mark.parametrize(
    "other",
    [
        digest(title=b'"another"'),
        digest(description=b'"something else"'),
        digest(inputSchema=bytes(ITEM["inputSchema"]).replace(b"615", b"614")),
        digest(outputSchema=b"{}"),
        digest(annotations=b'{"readOnlyHint":false}'),
        digest(_meta=b'{"v":2}'),
        digest(_meta=b"{}"),
        digest(name="T"),
        digest(declared=None),
        digest(declared={**DECLARED, "mutable": True}),
        digest(declared={**DECLARED, "latency_class": "slow"}),
        digest(declared={**DECLARED, "schema_version": "1.0.1"}),
    ],
)
def test_every_part_of_a_definition_counts(other: str) -> None:
    assert other != digest()


@pytest.mark.parametrize(
    "same",
    [
        digest(_meta=b'{ "v" : 1 }'),
        digest(outputSchema=b'{ "type" : "object" }'),
        digest(description=b'"what\\u0020it does"'),
        digest(declared={**DECLARED, "availability": "degraded"}),
        digest(declared=dict(reversed(DECLARED.items()))),
    ],
)
def test_spelling_and_availability_do_not_count(same: str) -> None:
    assert same == digest()


def test_a_meta_without_members_is_none() -> None:
    without = {member: raw for member, raw in ITEM.items() if member != "_meta"}
    assert digest(_meta=b" { } ") == tool_digest(without, downstream_name="t", declared=DECLARED)


def test_a_definition_without_a_canonical_form_has_a_digest_all_the_same() -> None:
    broken = digest(description=rb'"\ud800"')
    assert broken == digest(description=rb'"\ud800"') != digest(description=rb'"\ud801"') != digest()
    assert digest(inputSchema=b"[" * 5000 + b"]" * 5000) != digest()
