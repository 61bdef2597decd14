"""Do the stubs of firmware/ keep to both profiles on emulated chips, spoken to by the gateway's own codecs?"""

from collections.abc import Iterator

import pytest
from tests.devices.emulated_chips import Chip, chip, need

from interlock.devices.protocol.cbor_codec import CborCodec, encoded
from interlock.devices.protocol.description import DeviceDescription, Event, Field, LinkDescription, ToolDescription
from interlock.devices.protocol.device_tools import Announcement, announced_tool
from interlock.devices.protocol.frame_codec import FrameCodec
from interlock.devices.protocol.framing import CobsFraming, SofFraming
from interlock.devices.protocol.messages import AnnouncementFrame, DeviceAnswer, EventMessage

need("avr-gcc", "arm-none-eabi-gcc", "sdcc", "qemu-system-avr", "qemu-system-arm", "s51")

LINK = LinkDescription(transport="uart_cbor", max_frame=96)
CENTIGRADE = Field(name="centigrade", type="u32", scale=0.01)
READ_SENSOR = ToolDescription(id=1, name="read_sensor", response=(CENTIGRADE,), req_len=0, resp_len=4)
SET_LED = ToolDescription(id=2, name="set_led", request=(Field(name="on", type="bool"),), req_len=1, resp_len=0)
READ_LED = ToolDescription(id=3, name="read_led", response=(Field(name="on", type="bool"),))
FAIL = ToolDescription(id=4, name="fail", request=(Field(name="status"),))
PRESS = ToolDescription(id=5, name="press")
PRESSED = Event(id=0x40, name="pressed", response=(Field(name="count", type="u16"),))
A = FrameCodec(DeviceDescription(profile="a", link=LINK, events=(PRESSED,)))
B = CborCodec(DeviceDescription(profile="b", link=LINK, events=(PRESSED,)))


def framing_a() -> SofFraming:
    return SofFraming(max_message=96, gap_s=60.0)


def called_a(stub: Chip, tool: ToolDescription, seq: int = 1, **arguments: object) -> DeviceAnswer:
    answer = A.decode_untrusted(stub.ask(A.encode_call(seq, tool, arguments)))
    assert isinstance(answer, DeviceAnswer) and answer.request_id == seq and answer.tool_id == tool.id
    return answer


def called_b(stub: Chip, tool: ToolDescription, request_id: int = 1, **arguments: object) -> DeviceAnswer:
    answer = B.decode_untrusted(stub.ask(B.encode_call(request_id, tool, arguments)))
    assert isinstance(answer, DeviceAnswer) and answer.request_id == request_id
    return answer


def announced(stub: Chip) -> dict[int, ToolDescription]:
    announcement = Announcement()
    while True:
        registration = B.decode_untrusted(stub.receive())
        assert isinstance(registration, AnnouncementFrame)
        tools = announcement.add(registration)
        if tools is not None:
            return {tool.id: announced_tool(tool, None, LINK) for tool in tools}


@pytest.fixture(scope="module", params=["avr", "arm", "mcs51"])
def table_stub(request: pytest.FixtureRequest) -> Iterator[Chip]:
    with chip(request.param, "a", framing_a()) as running:
        yield running


@pytest.fixture(scope="module", params=["avr", "arm", "mcs51"])
def booted(request: pytest.FixtureRequest) -> Iterator[tuple[Chip, dict[int, ToolDescription]]]:
    with chip(request.param, "b", CobsFraming(max_message=96)) as running:
        yield running, announced(running)


@pytest.mark.req("AX-B.1-9")
def test_the_drafts_commands_run_and_a_wrong_length_has_a_status(table_stub: Chip) -> None:
    called_a(table_stub, SET_LED, on=False)
    read = called_a(table_stub, READ_SENSOR, seq=7)
    assert (read.status, A.result(READ_SENSOR, read.payload)) == (0, {"centigrade": 21.5})
    done = called_a(table_stub, SET_LED, seq=255, on=True)
    assert (done.status, A.result(SET_LED, done.payload)) == (0, {})
    assert A.result(READ_LED, called_a(table_stub, READ_LED).payload) == {"on": True}
    for length in (0, 2):
        answer = A.decode_untrusted(table_stub.ask(bytes((1, 2, 9)) + bytes(length)))
        assert answer == DeviceAnswer(request_id=9, tool_id=2, payload=b"", status=253, is_heartbeat=False)


@pytest.mark.req("AX-8.N-4")
def test_table_stubs_answer_heartbeats_unknown_ids_and_failures_and_tell_events(table_stub: Chip) -> None:
    assert A.decode_untrusted(table_stub.ask(A.encode_heartbeat(200))) == DeviceAnswer(
        request_id=200, is_heartbeat=True
    )
    assert called_a(table_stub, ToolDescription(id=99, name="none")).status == 254
    assert called_a(table_stub, FAIL, status=42).status == 42
    table_stub.send(A.encode_call(3, PRESS, {}))
    notice = A.decode_untrusted(table_stub.receive())
    assert isinstance(notice, EventMessage)
    assert A.notice(notice.event_id, notice.payload) == {"count": 1}
    ended = A.decode_untrusted(table_stub.receive())
    assert ended == DeviceAnswer(request_id=3, tool_id=5, payload=b"", status=0, is_heartbeat=False)


def test_table_stubs_survive_noise_bad_checksums_and_silence_within_a_frame(table_stub: Chip) -> None:
    good = table_stub.framing.encode(A.encode_call(1, READ_SENSOR, {}))
    for garbage in (b"\x00\xff\x55", good[:-1] + bytes((good[-1] ^ 1,)), b"\x7e\x02\x01\x01\x00", b"\x7e\xff"):
        table_stub.line.sendall(garbage)
        assert called_a(table_stub, READ_SENSOR).status == 0
    table_stub.line.sendall(good[:4])
    assert table_stub.is_silent()
    assert called_a(table_stub, READ_SENSOR).status == 0
    table_stub.send(bytes((2, 1, 1)))  # a response, a registration: not for stubs
    table_stub.send(bytes((3, 0, 0)))
    assert table_stub.is_silent()


@pytest.mark.req("AX-B.2-4")
def test_the_drafts_tools_run_as_announced(booted: tuple[Chip, dict[int, ToolDescription]]) -> None:
    stub, tools = booted
    assert (tools[1].arg_types, tools[1].ret_type) == ((), 5)
    assert (tools[2].arg_types, tools[2].ret_type) == ((0,), 5)
    assert B.result(tools[2], called_b(stub, tools[2], arg0=0).payload) == {"led": 0}
    assert B.result(tools[1], called_b(stub, tools[1], request_id=255).payload) == {"centigrade": 21}
    assert B.result(tools[2], called_b(stub, tools[2], request_id=24, arg0=1000).payload) == {"led": 1}
    assert B.result(tools[1], called_b(stub, tools[1]).payload) == {"centigrade": 22}


@pytest.mark.req("AX-8.N-4")
def test_self_describing_stubs_answer_heartbeats_errors_and_requests_to_announce(
    booted: tuple[Chip, dict[int, ToolDescription]],
) -> None:
    stub, tools = booted
    assert B.decode_untrusted(stub.ask(B.encode_heartbeat(200))) == DeviceAnswer(request_id=200, payload={})
    stub.send(B.encode_registration_request())
    assert announced(stub) == tools
    assert called_b(stub, ToolDescription(id=99, name="none", arg_types=(), ret_type=5)).status == 254
    assert called_b(stub, tools[4], arg0=42).status == 42
    assert called_b(stub, tools[4], arg0=300).status == 300
    missing = B.decode_untrusted(stub.ask(encoded({1: 2, 2: 1, 3: {}})))
    assert missing == DeviceAnswer(request_id=1, status=253)
    beyond = B.decode_untrusted(stub.ask(encoded({1: 2, 2: 1, 3: {0: 65536}})))
    assert beyond == DeviceAnswer(request_id=1, status=253)
    negative = B.decode_untrusted(stub.ask(encoded({1: 4, 2: 1, 3: {0: "x"}})))
    assert negative == DeviceAnswer(request_id=1, status=-1)
    assert called_b(stub, tools[5]).status == 0
    notice = B.decode_untrusted(stub.receive())
    assert isinstance(notice, EventMessage) and B.notice(notice.event_id, notice.payload) == {"count": 1}
    versioned = B.decode_untrusted(stub.ask(encoded({0: "2.0", 1: 1, 2: 5, 3: {}, "more": [{1: [2.5, b"x"]}, -1]})))
    assert versioned == DeviceAnswer(request_id=5, payload={"centigrade": 22 if _is_lit(stub, tools) else 21})


def _is_lit(stub: Chip, tools: dict[int, ToolDescription]) -> bool:
    return B.result(tools[1], called_b(stub, tools[1]).payload) == {"centigrade": 22}


@pytest.mark.parametrize(
    "message",
    [
        b"\xa1",
        b"\xbf\x01\x01\x02\x01\xff",
        b"\xa2\x01\x01\x02\x01\x00",  # trailing
        b"\xa3\x01\x01\x02\x01\x03\x9a\xff\xff\xff\xff",
        b"\xa3\x01\x01\x02\x01\x03\x7b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xa3\x01\x01\x02\x01\x03\xc0\x00",
        b"\xa2\x01\x01\x02\x19\x01\x00",  # an id of 256
        b"\x81" * 80,
        b"\x01",
        b"\xa1\x01\x01",  # no id
        b"\xa2\x01\x61\x01\x02\x01",
        b"\xff" * 96,
        b"\xa0",
    ],
)
def test_self_describing_stubs_drop_invalid_requests(
    booted: tuple[Chip, dict[int, ToolDescription]], message: bytes
) -> None:
    stub, _ = booted
    stub.send(message)
    stub.line.sendall(b"\x05\x01\x00" + b"\x01" * 300 + b"\x00\x00")  # no COBS, too long, empty
    assert B.decode_untrusted(stub.ask(B.encode_heartbeat(9))) == DeviceAnswer(request_id=9, payload={})


@pytest.mark.parametrize("kind", ["avr", "arm", "mcs51"])
def test_sixteen_tools_are_announced_in_several_frames(kind: str) -> None:
    with chip(kind, "b_16_tools", CobsFraming(max_message=96)) as stub:
        tools = announced(stub)
        assert {tool.id: len(tool.arg_types or ()) for tool in tools.values()} == {n: n % 5 for n in range(1, 17)}


def test_a_checksum_within_cobs_is_checked_by_the_stub_and_ends_in_a_reset_that_announces_again() -> None:
    with chip("arm", "b_crc16", CobsFraming(max_message=96, crc="crc16")) as stub:
        tools = announced(stub)
        assert called_b(stub, tools[2], arg0=1).status == 0
        unchecked = CobsFraming(max_message=96)
        stub.line.sendall(unchecked.encode(B.encode_heartbeat(3)))
        assert B.decode_untrusted(stub.ask(B.encode_heartbeat(4))) == DeviceAnswer(request_id=4, payload={})
        stub.send(B.encode_call(9, tools[6], {"arg0": 5000}))
        stub.reset()  # in the middle of that call
        assert announced(stub) == tools
        assert called_b(stub, tools[1]).payload == {"centigrade": 21}
