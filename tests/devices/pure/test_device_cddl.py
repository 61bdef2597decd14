"""Are the golden bytes of docs/devices.cddl what the codec writes and reads?"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.devices.protocol.cbor_codec import CborCodec, encoded, read_untrusted
from interlock.devices.protocol.description import DeviceDescription, LinkDescription, ToolDescription
from interlock.devices.protocol.messages import Announced, AnnouncementFrame, DeviceAnswer, EventMessage

CDDL = (Path(__file__).resolve().parents[3] / "docs" / "devices.cddl").read_text()
GOLDEN = [
    (kind, what.strip(), bytes.fromhex(data))
    for kind, what, data in re.findall(r"^; ([a-z-]+)  +(.*?)  +((?:[0-9a-f]{2} ?)+)$", CDDL, re.MULTILINE)
]
CODEC = CborCodec(DeviceDescription(profile="b", link=LinkDescription(transport="uart_cbor")))
SET_LED = ToolDescription(id=2, name="set_led", arg_types=(0,), ret_type=5)
WRITTEN: dict[str, Callable[[], bytes]] = {
    "call": lambda: CODEC.encode_call(1, SET_LED, {"arg0": 1}),
    "heartbeat": lambda: CODEC.encode_heartbeat(3),
    "registration-request": lambda: CODEC.encode_registration_request(),
}
TOOL_1 = Announced(id=1, arg_types=(), ret_type=5)
TOOL_2 = Announced(id=2, arg_types=(0,), ret_type=5)
READ: dict[str, Any] = {
    '{"led": 1} to request 1': DeviceAnswer(request_id=1, payload={"led": 1}),
    "of a heartbeat, request 3": DeviceAnswer(request_id=3, payload={}),
    "253 to request 1": DeviceAnswer(request_id=1, status=253),
    "tool 1 (), tool 2 (uint), both maps": AnnouncementFrame(tools=(TOOL_1, TOOL_2)),
    "the first frame of several": AnnouncementFrame(tools=(TOOL_1,), more=True),
    "0x40 with {0: 1}": EventMessage(event_id=0x40, payload={0: 1}),
}


@pytest.mark.req("AX-8.2-1")
def test_the_published_bytes_are_those_of_the_codec() -> None:
    assert len(GOLDEN) == len(WRITTEN) + len(READ)
    for kind, what, data in GOLDEN:
        assert encoded(read_untrusted(data)) == data, what  # deterministic
        if kind in WRITTEN:
            assert WRITTEN[kind]() == data
        else:
            assert CODEC.decode_untrusted(data) == READ[what]
