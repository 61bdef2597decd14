"""Are messages of Profile B and of MQTT what docs/devices.cddl says, in both directions, and all else refused?"""

import contextlib
import gc
import json
import time
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.devices.protocol.cbor_codec import CborCodec, encoded, read_untrusted
from interlock.devices.protocol.description import DeviceDescription, Event, Field, LinkDescription, ToolDescription
from interlock.devices.protocol.device_tools import Announcement, announced_tool, input_schema, output_schema
from interlock.devices.protocol.frame_codec import FramedCborCodec
from interlock.devices.protocol.json_codec import JsonCodec, is_online, topics_of
from interlock.devices.protocol.messages import (
    Announced,
    AnnouncementFrame,
    DeviceAnswer,
    DeviceFault,
    EventMessage,
    codec_of,
)

LINK = LinkDescription(transport="uart_cbor")
DESCRIPTION = DeviceDescription(profile="b", link=LINK, events=(Event(id=9, name="pressed"),))
CODEC = CborCodec(DESCRIPTION)
SET_LED = ToolDescription(id=2, name="set_led", arg_types=(0,), ret_type=5)
GROWTH_MAX = 8.0  # tests/wire/pure/test_growth.py


def refusal(message: bytes, codec: Any = CODEC) -> str:
    with pytest.raises(DeviceFault) as refused:
        codec.decode_untrusted(message)
    return refused.value.code


@pytest.mark.req("AX-8.2-7")
@pytest.mark.parametrize(
    ("major", "schema"),
    [
        (0, {"type": "integer", "minimum": 0}),
        (1, {"type": "integer"}),
        (2, {"type": "string", "contentEncoding": "base64"}),
        (3, {"type": "string"}),
        (4, {"type": "array"}),
        (5, {"type": "object"}),
        (6, None),
        (7, {"type": ["number", "boolean", "null"]}),
        (8, None),
    ],
)
def test_each_major_type_is_a_schema_and_tags_are_none(major: int, schema: dict[str, Any] | None) -> None:
    message = encoded({1: "r", 3: [{0: 1, 1: [major], 2: 5}]})
    if schema is None:
        assert refusal(message) == "malformed"
        return
    registration = CODEC.decode_untrusted(message)
    assert isinstance(registration, AnnouncementFrame)
    made = input_schema(announced_tool(registration.tools[0], None, LINK))
    assert (made["properties"], made["required"]) == ({"arg0": schema}, ["arg0"])


def nested(depth: int) -> bytes:
    return b"\xa2\x02\x01\x04" + b"\x81" * (depth - 1) + b"\x00"


@pytest.mark.req("AX-8.2-3")
def test_the_envelope_is_numbered() -> None:
    assert CODEC.encode_call(1, SET_LED, {"arg0": 1}).hex() == "a3010202010 3a10001".replace(" ", "")
    assert CODEC.decode_untrusted(bytes.fromhex("a2 0201 04a0")) == DeviceAnswer(request_id=1, payload={})
    assert CODEC.decode_untrusted(bytes.fromhex("a2 0201 0507")) == DeviceAnswer(request_id=1, status=7)
    for version in (2, "2.0"):
        assert CODEC.decode_untrusted(encoded({0: version, 2: 1, 4: {}})) == DeviceAnswer(request_id=1, payload={})
    assert CODEC.decode_untrusted(encoded({2: 1, 4: {}, 77: 1, "x": [1]})) == DeviceAnswer(request_id=1, payload={})
    assert refusal(encoded({4: {}})) == "malformed"  # no key 2
    for bad in (
        {0: 3, 2: 1, 4: {}},
        {2: 1},
        {2: 1, 4: {}, 5: 1},
        {2: 1, 5: 0},
        {2: 1, 5: "x"},
        {2: 0, 4: {}},
        {2: 256, 4: {}},
    ):
        assert refusal(encoded(bad)) == "malformed", bad
    with_version = CborCodec(
        DeviceDescription(profile="b", link=LinkDescription(transport="uart_cbor", emit_jsonrpc=True))
    )
    assert with_version.encode_heartbeat(5).hex() == "a3 0002 016168 0205".replace(" ", "")


@pytest.mark.req("AX-8.2-6")
def test_a_call_is_its_number_its_id_and_its_arguments() -> None:
    plain = bytes.fromhex("a3 0102 0201 03a10001")
    assert CODEC.encode_call(1, SET_LED, {"arg0": 1}) == plain
    with_metadata = {"arg0": 1, "_meta": {"progressToken": 7}, "x-mcpax-route": ["a", "b"], "X-MCPAX-Hops": 3}
    assert CODEC.encode_call(1, SET_LED, with_metadata) == plain
    configure = ToolDescription(id=3, name="configure", arg_types=(5,), ret_type=5)
    assert CODEC.encode_call(
        1, configure, {"arg0": {"a": {"x-mcpax-cursor": 1}, "x-mcpax-route": []}}
    ) == CODEC.encode_call(1, configure, {"arg0": {"a": {}}})


def test_heartbeats_registrations_and_events_have_their_own_forms() -> None:
    assert CODEC.encode_heartbeat(3).hex() == "a20161680203"
    assert CODEC.encode_registration_request().hex() == "a1016172"
    entry = {0: 2, 1: [0], 2: 5, 3: "set_led"}
    announced = Announced(id=2, arg_types=(0,), ret_type=5, name="set_led")
    assert CODEC.decode_untrusted(encoded({1: "r", 3: [entry]})) == AnnouncementFrame(tools=(announced,))
    more = CODEC.decode_untrusted(encoded({1: "r", 3: [entry], 6: True, 7: 2}))
    assert more == AnnouncementFrame(tools=(announced,), more=True, part=2)
    assert CODEC.decode_untrusted(encoded({1: 9, 3: {"n": 1}})) == EventMessage(event_id=9, payload={"n": 1})
    assert CODEC.notice(9, {"n": 1}) == {"n": 1}
    assert CODEC.notice(8, {"n": 1}) is None
    assert refusal(encoded({1: 9, 2: 1, 3: {}})) == "unexpected"
    assert refusal(encoded({1: "h", 2: 1})) == "unexpected"
    assert refusal(encoded({1: "x"})) == "malformed"


@pytest.mark.req("AX-B.2-4")
@pytest.mark.parametrize(
    "entry",
    [
        {1: [], 2: 5},
        {0: 1, 2: 5},
        {0: 1, 1: []},
        {0: 256, 1: [], 2: 5},
        {0: True, 1: [], 2: 5},
        {0: -1, 1: [], 2: 5},
        {0: 1, 1: [0] * 5, 2: 5},
        {0: 1, 1: [6], 2: 5},
        {0: 1, 1: [8], 2: 5},
        {0: 1, 1: [0], 2: 6},
        {0: 1, 1: 0, 2: 5},
        {0: 1, 1: [], 2: 5, 3: "Not A Segment"},
        {0: 1, 1: [], 2: 5, 3: 7},
        [1, [], 5],
    ],
)
def test_an_entry_that_is_none_refuses_the_whole_announcement(entry: Any) -> None:
    good = {0: 9, 1: [], 2: 5}
    assert refusal(encoded({1: "r", 3: [good, entry]})) == "malformed"


def test_announcements_of_several_frames_are_swapped_in_whole() -> None:
    def frame(part: int, *ids: int, more: bool = False) -> AnnouncementFrame:
        return AnnouncementFrame(
            tools=tuple(Announced(id=each, arg_types=(), ret_type=5) for each in ids), more=more, part=part
        )

    announcement = Announcement()
    assert announcement.add(frame(0, 1, 2, more=True)) is None
    tools = announcement.add(frame(1, 3))
    assert tools is not None and [tool.id for tool in tools] == [1, 2, 3]
    announcement.add(frame(0, 1, more=True))
    with pytest.raises(DeviceFault, match="out of its turn"):  # frame 1 is lost
        announcement.add(frame(2, 3))
    with pytest.raises(DeviceFault, match="out of its turn"):  # and the rest of it means nothing
        announcement.add(frame(3, 4))
    announcement.add(frame(0, 1, more=True))
    assert announcement.add(frame(0, 7)) is not None  # the device began again
    announcement.add(frame(0, 1, more=True))
    with pytest.raises(DeviceFault, match="twice"):
        announcement.add(frame(1, 1))
    with pytest.raises(DeviceFault, match="64"):
        announcement.add(frame(0, *range(65)))
    whole = announcement.add(frame(0, *range(64)))
    assert whole is not None and len(whole) == 64


REFUSED_CBOR = {
    "no bytes": b"",
    "an indefinite map": bytes.fromhex("bf 0201 04a0 ff"),
    "an indefinite array": bytes.fromhex("a2 0201 04 9fff"),
    "indefinite text": bytes.fromhex("a2 0201 04 7f6161ff"),
    "indefinite bytes": bytes.fromhex("a2 0201 04 5f4161ff"),
    "a break": b"\xff",
    "a key twice": bytes.fromhex("a3 0201 04a0 04a0"),
    "a key twice within": bytes.fromhex("a2 0201 04 a2 616101 616102"),
    "a key in two widths": bytes.fromhex("a3 0201 180201 04a0"),
    "a tag": bytes.fromhex("a2 0201 04 c000"),
    "a large number": bytes.fromhex("a2 0201 04 c24101"),
    "a date": bytes.fromhex("a2 0201 04 c11a514b67b0"),
    "trailing bytes": bytes.fromhex("a2 0201 04a0 00"),
    "bad UTF-8": bytes.fromhex("a2 0201 04 61ff"),
    "a surrogate": bytes.fromhex("a2 0201 04 63eda080"),
    "NaN": bytes.fromhex("a2 0201 04 f97e00"),
    "infinity": bytes.fromhex("a2 0201 04 fa7f800000"),
    "-infinity": bytes.fromhex("a2 0201 04 fbfff0000000000000"),
    "undefined": bytes.fromhex("a2 0201 04 f7"),
    "a simple value": bytes.fromhex("a2 0201 04 f0"),
    "a simple value of a byte": bytes.fromhex("a2 0201 04 f820"),
    "a reserved width": bytes.fromhex("a2 0201 04 1c"),
    "an array that lies": bytes.fromhex("a2 0201 04 9bffffffffffffffff"),
    "a map that lies": bytes.fromhex("a2 0201 04 ba7fffffff00"),
    "text that lies": bytes.fromhex("a2 0201 04 7affffffff61"),
    "bytes that lie": bytes.fromhex("a2 0201 04 5bffffffffffffffff"),
    "a list as key": bytes.fromhex("a2 0201 04 a18000"),
    "true as key": bytes.fromhex("a2 0201 04 a1f500"),
    "bytes as key": bytes.fromhex("a2 0201 04 a1416100"),
    "an array": b"\x80",
    "an integer": b"\x01",
    "text": b"\x61a",
    "nesting above 4": nested(5),
    "a bomb of arrays": b"\xa2\x02\x01\x04" + b"\x81" * 200,
    "a bomb of maps": b"\xa1\x04" * 120,
}


@pytest.mark.parametrize("name", REFUSED_CBOR)
def test_cbor_that_devices_may_not_write_is_refused(name: str) -> None:
    assert refusal(REFUSED_CBOR[name]) == "malformed"


@pytest.mark.req("AX-8.3-5")
def test_messages_above_the_links_limit_are_refused_in_both_directions() -> None:
    assert refusal(encoded({2: 1, 4: {"a": "x" * 256}})) == "too_large"
    write = ToolDescription(id=1, name="write", arg_types=(3,), ret_type=5)
    with pytest.raises(DeviceFault) as refused:
        CODEC.encode_call(1, write, {"arg0": "x" * 256})
    assert refused.value.code == "too_large"
    assert CODEC.decode_untrusted(nested(4)) == DeviceAnswer(request_id=1, payload=[[[0]]])


@given(st.binary(max_size=300))
def test_garbage_raises_the_one_error(data: bytes) -> None:
    for codec in (CODEC, FramedCborCodec(DESCRIPTION), JsonCodec(DESCRIPTION)):
        try:
            codec.decode_untrusted(data)
        except DeviceFault as fault:
            assert fault.code in ("malformed", "too_large", "unexpected")


@given(st.binary(max_size=60))
def test_values_are_read_as_another_decoder_reads_them(data: bytes) -> None:
    try:
        ours = read_untrusted(data)
    except DeviceFault:
        return
    assert cbor2.loads(data) == ours


@pytest.mark.req("AX-8.2-8")
def test_the_encoder_writes_shortest_forms_and_ordered_keys() -> None:
    value = {5: 23, 1: 24, 3: [256, 65536, 2**32, -1, -25], 2: 1.5, 4: 0.1, 0: {"bb": b"\1", "a": None}}
    assert encoded(value).hex(" ", 1) == (
        "a6 00 a2 61 61 f6 62 62 62 41 01 01 18 18 02 f9 3e 00 03 85 19 01 00 1a 00 01 00 00 1b 00 00 00 01 00 00 00 00"
        " 20 38 18 04 fb 3f b9 99 99 99 99 99 9a 05 17"
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4).filter(lambda key: not key.lower().startswith("x-mcpax-")), inner, max_size=3
        )
    ),
    max_leaves=4,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


WIDE = CborCodec(DeviceDescription(profile="b", link=LinkDescription(transport="uart_cbor", max_frame=4095)))
FITTING = {
    0: st.integers(0, 2**64 - 1),
    1: st.integers(-(2**64), 2**64 - 1),
    3: st.text(),
    4: json_values.filter(lambda value: isinstance(value, list) and depth(value) <= 2),
    5: json_values.filter(lambda value: isinstance(value, dict) and depth(value) <= 2),
    7: st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
}


@pytest.mark.req("AX-8.2-1")
@pytest.mark.parametrize("major", FITTING)
@given(st.data())
def test_json_values_of_the_announced_type_come_back_as_they_went(major: int, data: st.DataObject) -> None:
    value = data.draw(FITTING[major])
    tool = ToolDescription(id=1, name="echo", arg_types=(major,), ret_type=5)
    sent = read_untrusted(WIDE.encode_call(1, tool, {"arg0": value}))
    answer = WIDE.decode_untrusted(encoded({2: 1, 4: {"arg0": sent[3][0]}}))
    assert isinstance(answer, DeviceAnswer)
    assert json.dumps(WIDE.result(tool, answer.payload), sort_keys=True) == json.dumps({"arg0": value}, sort_keys=True)


def test_bytes_are_base64_in_json() -> None:
    tool = ToolDescription(id=1, name="echo", arg_types=(2,), ret_type=5)
    assert read_untrusted(CODEC.encode_call(1, tool, {"arg0": "AP8="}))[3] == {0: b"\x00\xff"}
    assert CODEC.result(tool, {"d": b"\x00\xff", "l": [b""]}) == {"d": "AP8=", "l": [""]}


@pytest.mark.parametrize(
    ("types", "arguments", "path"),
    [
        ((0,), {"arg0": -1}, "arg0"),
        ((0,), {"arg0": "1"}, "arg0"),
        ((0,), {"arg0": 1.5}, "arg0"),
        ((0,), {"arg0": True}, "arg0"),
        ((0,), {"arg0": 2**64}, "arg0"),
        ((1,), {"arg0": -(2**64) - 1}, "arg0"),
        ((2,), {"arg0": "not base64!"}, "arg0"),
        ((3,), {"arg0": 1}, "arg0"),
        ((3,), {"arg0": "\ud800"}, "arg0"),
        ((4,), {"arg0": {}}, "arg0"),
        ((4,), {"arg0": [[[0]]]}, "arg0"),
        ((5,), {"arg0": []}, "arg0"),
        ((5,), {"arg0": {"\ud800": 1}}, "arg0"),
        ((7,), {"arg0": "x"}, "arg0"),
        ((7,), {"arg0": 10**400}, "arg0"),
        ((7,), {"arg0": 2**53 + 1}, "arg0"),
        ((0, 0), {"arg0": 1}, "arg1"),
        ((0,), {"arg0": 1, "arg1": 1}, "arg1"),
        ((), {"x": 1}, "x"),
    ],
)
def test_arguments_that_do_not_fit_never_become_bytes(
    types: tuple[int, ...], arguments: dict[str, Any], path: str
) -> None:
    with pytest.raises(DeviceFault) as refused:
        CODEC.encode_call(1, ToolDescription(id=1, name="x", arg_types=types, ret_type=5), arguments)
    assert (refused.value.code, refused.value.path) == ("argument_invalid", path)


def test_results_are_maps_of_the_announced_type() -> None:
    tool = ToolDescription(id=1, name="x", arg_types=(), ret_type=5)
    for payload in (1, [1], "x", None):
        with pytest.raises(DeviceFault) as refused:
            CODEC.result(tool, payload)
        assert refused.value.code == "response_invalid"
    allowing = CborCodec(DeviceDescription(profile="b", link=LinkDescription(transport="uart_cbor", allow_values=True)))
    assert allowing.result(ToolDescription(id=1, name="x", arg_types=(), ret_type=0), 7) == {"value": 7}
    with pytest.raises(DeviceFault):
        allowing.result(ToolDescription(id=1, name="x", arg_types=(), ret_type=0), -7)
    with pytest.raises(DeviceFault):  # 0 and "0" are one name in JSON
        CODEC.result(tool, {0: 1, "0": 2})


def test_described_members_are_named_scaled_and_checked() -> None:
    tool = ToolDescription(
        id=1,
        name="read",
        arg_types=(0,),
        ret_type=5,
        request=(Field(name="channel", type="enum", values={"in": 0, "out": 1}),),
        response=(
            Field(name="t", type="i16", scale=0.1),
            Field(name="mode", type="enum", values={"auto": 3}),
            Field(name="id", type="bytes", size=2, optional=True),
        ),
    )
    assert read_untrusted(CODEC.encode_call(1, tool, {"channel": "out"}))[3] == {0: 1}
    assert CODEC.result(tool, {0: 215, "mode": 3}) == {"t": 21.5, "mode": "auto"}
    assert CODEC.result(tool, {0: 215, 1: 3, 2: b"ab"}) == {"t": 21.5, "mode": "auto", "id": "YWI="}
    for bad in (
        {},
        {0: 215},
        {0: 2**15, 1: 3},
        {0: 1.5, 1: 3},
        {0: 1, 1: 4},
        {0: 1, 1: True},
        {0: 1, 1: 3, 9: 1},
        {0: 1, 1: 3, 2: b"a"},
    ):
        with pytest.raises(DeviceFault) as refused:
            CODEC.result(tool, bad)
        assert refused.value.code == "response_invalid", bad


def test_schemas_come_from_the_types_alone_and_are_narrowed_by_the_description() -> None:
    announced = Announced(id=2, arg_types=(0, 1, 2, 7), ret_type=5)
    tool = announced_tool(announced, None, LINK)
    assert tool.name == "tool_2"
    assert input_schema(tool) == {
        "type": "object",
        "properties": {
            "arg0": {"type": "integer", "minimum": 0},
            "arg1": {"type": "integer"},
            "arg2": {"type": "string", "contentEncoding": "base64"},
            "arg3": {"type": ["number", "boolean", "null"]},
        },
        "additionalProperties": False,
        "required": ["arg0", "arg1", "arg2", "arg3"],
    }
    assert output_schema(tool) is None
    described = ToolDescription(
        id=2, name="move", request=(Field(name="steps", type="u16", maximum=500.0, unit="steps"),)
    )
    narrowed = announced_tool(announced, described, LINK)
    schema = input_schema(narrowed)["properties"]
    assert list(schema) == ["steps", "arg1", "arg2", "arg3"]
    assert schema["steps"] == {"type": "integer", "minimum": 0, "maximum": 500, "description": "in steps"}
    for contradicting in (
        ToolDescription(id=2, name="x", request=(Field(name="a", type="text"),)),
        ToolDescription(id=2, name="x", request=tuple(Field(name=f"a{each}") for each in range(5))),
        ToolDescription(id=2, name="x", arg_types=(0,)),
        ToolDescription(id=2, name="x", ret_type=4),
    ):
        with pytest.raises(DeviceFault):
            announced_tool(announced, contradicting, LINK)
    value = Announced(id=3, arg_types=(), ret_type=0)
    with pytest.raises(DeviceFault, match="no map"):
        announced_tool(value, None, LINK)
    allowed = announced_tool(value, None, LinkDescription(transport="uart_cbor", allow_values=True))
    assert output_schema(allowed)["required"] == ["value"]  # type: ignore[index]
    layout = ToolDescription(id=1, name="read", response=(Field(name="t", type="i16", scale=0.1),))
    assert input_schema(layout) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert output_schema(layout)["properties"] == {"t": {"type": "number", "minimum": -3276.8, "maximum": 3276.7}}  # type: ignore[index]


def test_cbor_in_the_frame_of_profile_a_repeats_its_ids() -> None:
    link = LinkDescription(transport="uart_cbor", framing="frame")
    codec = codec_of(DeviceDescription(profile="b", link=link))
    assert isinstance(codec, FramedCborCodec)
    assert codec.encode_call(7, SET_LED, {"arg0": 1}).hex() == "010207a30102020703a10001"
    assert codec.decode_untrusted(b"\x02\x02\x07" + encoded({2: 7, 4: {}})) == DeviceAnswer(request_id=7, payload={})
    assert codec.decode_untrusted(b"\x03\x00\x00" + encoded({1: "r", 3: []})) == AnnouncementFrame(tools=())
    heartbeat = DeviceAnswer(request_id=7, payload={}, is_heartbeat=True)
    assert codec.decode_untrusted(b"\x04\x00\x07" + encoded({2: 7, 4: {}})) == heartbeat
    assert refusal(b"\x02\x02\x08" + encoded({2: 7, 4: {}}), codec) == "malformed"
    assert refusal(b"\x03\x02\x07" + encoded({2: 7, 4: {}}), codec) == "malformed"
    assert refusal(b"\x01\x02\x07" + encoded({2: 7, 4: {}}), codec) == "unexpected"


@pytest.mark.req("AX-8.N-4")
def test_mqtt_is_plain_json_rpc() -> None:
    events = (Event(id=1, name="motion"),)
    codec = codec_of(DeviceDescription(profile="json", link=LinkDescription(transport="mqtt_json"), events=events))
    tool = ToolDescription(id=1, name="set_led")
    assert json.loads(codec.encode_call(3, tool, {"on": True, "x-mcpax-route": [], "_meta": {}})) == {
        "jsonrpc": "2.0",
        "id": 3,
        "method": "tools/call",
        "params": {"name": "set_led", "arguments": {"on": True}},
    }
    assert json.loads(codec.encode_heartbeat(4)) == {"jsonrpc": "2.0", "id": 4, "method": "ping"}

    def decoded(**members: Any) -> Any:
        return codec.decode_untrusted(json.dumps({"jsonrpc": "2.0", **members}).encode())

    assert decoded(id=3, result={"t": 1}) == DeviceAnswer(request_id=3, payload={"t": 1})
    assert decoded(id=3, error={"code": -5}).status == -5
    assert decoded(id=3, result={"isError": True}).status != 0
    assert decoded(method="motion", params={"n": 1}) == EventMessage(event_id=1, payload={"n": 1})
    assert codec.result(tool, {"structuredContent": {"t": 1}}) == codec.result(tool, {"t": 1}) == {"t": 1}
    for bad in (
        b"",
        b"[]",
        b'{"id":1,"result":{}}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":0}}',
        b'{"jsonrpc":"2.0","id":1,"result":NaN}',
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 20 + b"]" * 20 + b"}",
        b"[" * 60_000,
        b'{"jsonrpc":"2.0","id":1,"result":"\xff"}',
    ):
        assert refusal(bad, codec) == "malformed", bad[:60]
    assert refusal(b" " * 65537, codec) == "too_large"
    assert refusal(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', codec) == "unexpected"
    assert refusal(b'{"jsonrpc":"2.0","method":"other"}', codec) == "unexpected"


def test_mqtt_topics_are_one_level_each() -> None:
    assert topics_of("hall") == ("mcpax/hall/down", "mcpax/hall/up", "mcpax/hall/status")
    for bad in ("", "+", "#", "a/b", "a\0", "x" * 129, "a\nb"):
        with pytest.raises(ValueError):
            topics_of(bad)
    assert (is_online(b"online"), is_online(b"OFFLINE\n"), is_online(b"?"), is_online(b"x" * 99)) == (
        True,
        False,
        None,
        None,
    )


@pytest.mark.parametrize("part", [b"\x81", b"\xa1\x00", b"\x80", b"\x00", b"\x9b\xff\xff", b"\x61a", b"\xbf", b"\xc0"])
def test_hostile_cbor_takes_linear_time(part: bytes) -> None:
    def seconds(count: int) -> float:
        best = 1e9
        for _ in range(8):
            body = part * count
            data = b"\x9a" + len(body).to_bytes(4, "big") + body
            began = time.process_time()  # what others do meanwhile does not count
            with contextlib.suppress(DeviceFault):
                read_untrusted(data)
            best = min(best, time.process_time() - began)
        return best

    gc.disable()  # it visits what all other tests left
    try:
        assert seconds(4_000) < GROWTH_MAX * max(seconds(1_000), 1e-4)
    finally:
        gc.enable()
