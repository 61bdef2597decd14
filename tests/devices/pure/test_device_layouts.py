"""Do arguments become exactly the bytes a device of Profile A knows, and its bytes a result, or nothing at all?"""

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.devices.protocol.description import DeviceDescription, Event, Field, LinkDescription, ToolDescription
from interlock.devices.protocol.frame_codec import FrameCodec
from interlock.devices.protocol.layouts import INTEGERS, decode_payload, encode_payload, layout_size
from interlock.devices.protocol.messages import DeviceAnswer, DeviceFault, EventMessage

LINK = LinkDescription(transport="uart_cbor")
EVERY = (
    *(Field(name=name, type=name, tag=tag) for tag, name in enumerate(INTEGERS)),  # type: ignore[arg-type]
    Field(name="f32", type="f32", tag=10),
    Field(name="bool", type="bool", tag=11),
    Field(name="enum", type="enum", values={"off": 0, "on": 7}, tag=12),
    Field(name="enum16", type="enum", size=2, values={"low": 1, "high": 0x1234}, tag=13),
    Field(name="bytes", type="bytes", size=3, tag=14),
    Field(name="text", type="text", size=8, tag=15),
    Field(name="scaled", type="i16", scale=0.1, offset=-40.0, tag=16),
    Field(name="rest", type="text", tag=17),
)
VALUES = st.fixed_dictionaries(
    {
        **{name: st.integers(low, high) for name, (_, low, high) in INTEGERS.items()},
        "f32": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "bool": st.booleans(),
        "enum": st.sampled_from(["off", "on"]),
        "enum16": st.sampled_from(["low", "high"]),
        "bytes": st.binary(min_size=3, max_size=3).map(lambda data: base64.b64encode(data).decode()),
        "text": st.text(st.characters(codec="ascii", min_codepoint=1), max_size=8),
        "scaled": st.integers(-32768, 32767).map(lambda number: round(number * 0.1 - 40, 1)),
        "rest": st.text(max_size=60),
    }
)
each_order = pytest.mark.parametrize("order", ["little", "big"])


def f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@pytest.mark.req("AX-B.1-6")
@pytest.mark.parametrize("kind", ["struct", "tlv"])
@each_order
@given(VALUES)
def test_every_type_of_a_struct_and_of_tlv_round_trips(kind: Any, order: Any, values: dict[str, Any]) -> None:
    payload = encode_payload(kind, order, EVERY, values)
    result = decode_payload(kind, order, EVERY, payload)
    assert f32(result.pop("f32")) == values.pop("f32")
    assert result == values


@pytest.mark.req("AX-B.1-6")
@given(st.binary(max_size=200), st.text(max_size=50))
def test_raw_bytes_round_trip(data: bytes, text: str) -> None:
    as_bytes, as_text = (Field(name="data", type="bytes"),), (Field(name="data", type="text"),)
    given_data = {"data": base64.b64encode(data).decode()}
    assert encode_payload("raw", "big", as_bytes, given_data) == data
    assert decode_payload("raw", "big", as_bytes, data) == given_data
    assert decode_payload("raw", "big", as_text, encode_payload("raw", "big", as_text, {"data": text})) == {
        "data": text
    }


def test_the_bytes_of_a_struct_and_of_tlv_are_golden() -> None:
    fields = (
        Field(name="a", type="u16", tag=1),
        Field(name="b", type="i8", tag=2),
        Field(name="c", type="f32", tag=3),
        Field(name="d", type="text", size=4, tag=4),
    )
    values = {"a": 0x1234, "b": -2, "c": 1.5, "d": "ok"}
    assert encode_payload("struct", "little", fields, values).hex() == "3412fe0000c03f6f6b0000"
    assert encode_payload("struct", "big", fields, values).hex() == "1234fe3fc000006f6b0000"
    assert encode_payload("tlv", "big", fields, values).hex() == "010212340201fe03043fc0000004046f6b0000"
    assert (layout_size("struct", fields), layout_size("tlv", fields)) == (11, None)


REFUSED: list[tuple[Field, Any]] = [
    *(
        (Field(name="x", type=name), value)
        for name, (_, low, high) in INTEGERS.items()
        for value in (low - 1, high + 1)
    ),  # type: ignore[arg-type]
    *((Field(name="x", type="u8"), value) for value in (1.5, "1", True, None, [1], 1e300, 10**400, float("nan"))),
    *((Field(name="x", type="f32"), value) for value in (1e39, -1e300, float("inf"), 10**400, "1", True)),
    *((Field(name="x", type="bool"), value) for value in (1, 0, "true", None)),
    *((Field(name="x", type="enum", values={"on": 1}), value) for value in ("off", 1, None, ["on"])),
    *((Field(name="x", type="bytes", size=2), value) for value in ("AA==", "AAAA", "!!!!", "AAA", 1, "é")),
    *((Field(name="x", type="text", size=2), value) for value in ("abc", "éé", "a\0", 1, "\ud800")),
    (Field(name="x", type="text"), "\ud800"),
    (Field(name="x", type="i16", scale=0.1), 21.55),
    (Field(name="x", type="i16", scale=0.1), 3276.8),
    (Field(name="x", type="u8", minimum=10.0), 9),
    (Field(name="x", type="u8", maximum=10.0), 11),
    (Field(name="x", type="f32", scale=1e-30), 1e300),
]


@pytest.mark.req("AX-B.1-6")
@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_values_out_of_range_are_refused_before_sending(field: Field, value: Any) -> None:
    with pytest.raises(DeviceFault) as refused:
        encode_payload("struct", "little", (field,), {"x": value})
    assert (refused.value.code, refused.value.path) == ("argument_invalid", "x")


@pytest.mark.parametrize(("arguments", "path"), [({}, "x"), ({"x": 1, "y": 1}, "y"), ({"x": 1, "z" * 99: 1}, "z" * 64)])
def test_missing_and_surplus_arguments_are_refused_by_name(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(DeviceFault) as refused:
        encode_payload("struct", "little", (Field(name="x"),), arguments)
    assert (refused.value.code, refused.value.path) == ("argument_invalid", path)


TLV = (Field(name="a", tag=1), Field(name="b", tag=2, type="u16", optional=True))
INVALID: list[tuple[Any, tuple[Field, ...], str]] = [
    ("struct", (Field(name="x", type="u32"),), "010203"),  # wrong length
    ("struct", (Field(name="x", type="u32"),), "0102030405"),
    ("struct", (), "00"),
    ("struct", (Field(name="x", type="bool"),), "02"),
    ("struct", (Field(name="x", type="enum", values={"on": 1}),), "02"),  # undefined value
    ("struct", (Field(name="x", type="f32"),), "0000c07f"),  # not a number
    ("struct", (Field(name="x", type="f32"),), "0000807f"),
    ("struct", (Field(name="x", type="text"),), "ff"),
    ("struct", (Field(name="x", type="text", size=3),), "410042"),
    ("struct", (Field(name="x", type="u8", maximum=9.0),), "0a"),
    ("tlv", TLV, ""),
    ("tlv", TLV, "030100"),  # unknown tag
    ("tlv", TLV, "010100010100"),
    ("tlv", TLV, "01"),
    ("tlv", TLV, "0105ff"),
    ("tlv", TLV, "01020000"),
]


@pytest.mark.req("AX-B.1-6")
@pytest.mark.parametrize(("kind", "fields", "payload"), INVALID)
def test_a_response_that_does_not_fit_is_invalid(kind: Any, fields: tuple[Field, ...], payload: str) -> None:
    with pytest.raises(DeviceFault) as refused:
        decode_payload(kind, "little", fields, bytes.fromhex(payload))
    assert refused.value.code == "response_invalid"


@given(st.binary(max_size=80))
def test_garbage_is_a_result_of_the_layout_or_response_invalid(payload: bytes) -> None:
    for kind in ("struct", "tlv", "raw"):
        try:
            result = decode_payload(kind, "big", EVERY, payload)  # type: ignore[arg-type]
        except DeviceFault as fault:
            assert fault.code == "response_invalid"
        else:
            assert set(result) == {field.name for field in EVERY}


def test_scaled_numbers_are_decimal() -> None:
    field = Field(name="t", type="i16", scale=0.1, unit="°C")
    assert decode_payload("struct", "big", (field,), (215).to_bytes(2, "big")) == {"t": 21.5}
    assert encode_payload("struct", "big", (field,), {"t": 0.3}) == b"\0\3"
    whole = Field(name="t", type="u8", scale=10.0, offset=5.0)
    assert decode_payload("struct", "big", (whole,), b"\2") == {"t": 25}
    assert decode_payload("struct", "big", (Field(name="f", type="f32"),), struct.pack(">f", 0.1)) == {"f": 0.1}


@pytest.mark.req("AX-8.N-7")
def test_types_of_frames_are_taken_in_their_direction_alone() -> None:
    event = Event(id=9, name="pressed", response=(Field(name="count"),))
    codec = FrameCodec(DeviceDescription(profile="a", link=LINK, events=(event,)))
    assert codec.encode_heartbeat(7) == bytes((4, 0, 7))
    assert codec.encode_registration_request() is None
    for answer in ((4, 0, 7), (4, 0, 7, 0), (4, 1, 7), (4, 0, 7, 1, 2)):  # AX-8.N-7
        assert codec.decode_untrusted(bytes(answer)) == DeviceAnswer(request_id=7, is_heartbeat=True)
    for tail, payload, status in ((b"*\0", b"*", 0), (b"*", b"", 42)):
        response = DeviceAnswer(request_id=7, tool_id=1, payload=payload, status=status, is_heartbeat=False)
        assert codec.decode_untrusted(b"\x02\x01\x07" + tail) == response
    notice = codec.decode_untrusted(bytes((2, 9, 0, 5)))
    assert notice == EventMessage(event_id=9, payload=b"\5")
    assert codec.notice(9, b"\5") == {"count": 5}
    assert codec.notice(8, b"\5") is None
    leading = FrameCodec(DeviceDescription(profile="a", link=LinkDescription(transport="uart_cbor", status="first")))
    assert leading.decode_untrusted(bytes((2, 1, 7, 0, 42))).payload == b"*"  # type: ignore[union-attr]
    for bad in (
        (3, 0, 0),
        (1, 1, 1),
        (0, 1, 1),
        (5, 1, 1),
        (2, 8, 0, 0),
        (4, 0, 0),
        (2, 1, 7),
        (2, 1),
    ):
        with pytest.raises(DeviceFault) as refused:
            codec.decode_untrusted(bytes(bad))
        assert refused.value.code in ("unexpected", "malformed"), bad
    with pytest.raises(DeviceFault) as too_large:
        codec.decode_untrusted(bytes((2, 1, 1)) + bytes(300))
    assert too_large.value.code == "too_large"
    with pytest.raises(DeviceFault) as too_large:
        codec.encode_call(1, ToolDescription(id=1, name="w", request=(Field(name="x", type="text"),)), {"x": "a" * 254})
    assert too_large.value.code == "too_large"
