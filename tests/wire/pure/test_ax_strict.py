"""Is JSON that two readers may take differently refused, and all other JSON read as it is?"""

import json
import math
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.wire.jsontext.canonical import (
    INTEGER_MAX,
    NESTING_MAX,
    VALUES_MAX,
    AmbiguousJson,
    canonical,
    read_untrusted,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda one: one != 0 or math.copysign(1, one) > 0)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def reason(data: bytes, *, exact: bool = True) -> str:
    with pytest.raises(AmbiguousJson) as caught:
        read_untrusted(data, exact=exact)
    assert str(caught.value)
    return caught.value.reason


@given(JSON)
def test_ordinary_json_is_read_as_it_is(value: Any) -> None:
    assert read_untrusted(json.dumps(value).encode()) == value
    assert read_untrusted(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b'[{"b":{"a":null,"c":0,"a":null}}]',
        b'{"":1,"":2}',
        b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}',
    ],
)
def test_a_duplicate_key_at_any_depth_is_refused(data: bytes) -> None:
    assert reason(data) == "duplicate_key"


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize("data", [rb'"\ud83d"', rb'["x\ude00"]', rb'{"\udc00\ud800":1}', rb'{"a":[["\uDBFF "]]}'])
def test_half_a_surrogate_pair_is_refused(data: bytes) -> None:
    assert reason(data) == "surrogate"


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740992",
        "-9007199254740992",
        "9007199254740993.0",
        "1" + "0" * 5000,
        "1e400",
        "-1e400",
        "1e99999999999999999999",
        "1e-400",
        "-1e-400",
        "0.1000000000000000055",
        "0.30000000000000001",
        "333333333.33333329",
        "1.00000000000000000001",
        "123456789012345678.5",
        "-0",
        "-0.0",
        "-0e9",
        "0." + "0" * 500,
    ],
)
def test_a_number_that_canonical_json_would_merge_with_another_is_refused(text: str) -> None:
    assert reason(text.encode()) == "number"
    assert reason(b'{"deep":[%b]}' % text.encode()) == "number"


@pytest.mark.parametrize(
    ("text", "canonical_text"),
    [
        ("9007199254740991", "9007199254740991"),
        ("1.0", "1"),
        ("10e-1", "1"),
        ("1E0", "1"),
        ("0.0", "0"),
        ("0e99999999999999999999", "0"),
        ("0.10", "0.1"),
        ("6.022e23", "6.022e+23"),
        ("1e23", "1e+23"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("0." + "0" * 323 + "5", "5e-324"),
    ],
)
def test_a_number_may_be_spelled_in_any_way_that_means_its_canonical_text(text: str, canonical_text: str) -> None:
    assert canonical(read_untrusted(text.encode())) == canonical_text.encode()


@given(st.binary(min_size=8, max_size=8))
def test_every_double_can_be_written_and_only_by_its_own_decimal(bits: bytes) -> None:
    value = struct.unpack(">d", bits)[0]
    if not math.isfinite(value) or value == 0:
        return
    if not (value.is_integer() and abs(value) > INTEGER_MAX):
        assert read_untrusted(canonical(value)) == value
    assert read_untrusted(f"{value!r}".encode()) == value
    longer = f"{value:.25e}"
    if Decimal(longer) == Decimal(repr(value)):
        assert read_untrusted(longer.encode()) == value
    else:
        assert reason(longer.encode()) == "number"


def test_dates_may_have_more_digits_than_a_double() -> None:
    assert read_untrusted(b'{"iat":1763265600.123456789}', exact=False) == {"iat": 1763265600.123456789}
    assert reason(b'{"iat":1,"iat":2}', exact=False) == "duplicate_key"
    assert reason(b"1e400", exact=False) == "number"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"\xff",
        b'"\x01"',
        b'{"a":1}x',
        b"\xef\xbb\xbf{}",
        b"01",
        b"\xff\xfe{\0}\0",
    ],
)
def test_invalid_json_is_refused(data: bytes) -> None:
    assert reason(data) == "malformed"


def test_nesting_has_a_limit() -> None:
    deepest = b"[" * NESTING_MAX + b"0" + b"]" * NESTING_MAX
    assert canonical(read_untrusted(deepest)) == deepest
    assert reason(b"[" + deepest + b"]") == "nesting"
    assert reason(b'{"a":' * 100_000 + b"0" + b"}" * 100_000) == "nesting"


@pytest.mark.parametrize("one", [b"0", b"0.5", b'""', b"{}", b"[]", b"null"])
def test_the_number_of_values_has_a_limit(one: bytes) -> None:
    def array(count: int) -> bytes:
        return b"[" + b",".join([one] * count) + b"]"

    assert len(read_untrusted(array(VALUES_MAX - 1))) == VALUES_MAX - 1
    assert reason(array(VALUES_MAX)) == "size"


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_garbage_raises_one_error_only(data: bytes) -> None:
    try:
        read_untrusted(data)
    except AmbiguousJson as error:
        assert error.reason
