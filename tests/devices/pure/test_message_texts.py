"""Do a simulated device and the texts of its messages keep to the description?"""

import base64

import pytest

from interlock.devices.protocol.cbor_codec import encoded
from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.description_check import read_description
from interlock.devices.protocol.message_text import MessageTexts
from interlock.devices.protocol.messages import codec_of
from interlock.devices.protocol.simulation import SimulatedDevice

PLAYED = {
    "link": {"transport": "uart_cbor", "port": "/dev/ttyUSB0"},
    "tool": [
        {
            "id": 1,
            "name": "read",
            "mutable": False,
            "reversible": True,
            "response": [
                {"name": "celsius", "type": "i16", "scale": 0.1},
                {"name": "key", "type": "bytes", "size": 4},
            ],
        },
        {
            "id": 2,
            "name": "set",
            "mutable": True,
            "reversible": True,
            "request": [{"name": "celsius", "type": "u16", "scale": 0.05}],
            "status": {"1": "too_hot"},
        },
    ],
    "event": [{"id": 9, "name": "hot", "response": [{"name": "celsius", "type": "i16", "scale": 0.1}]}],
}


def described(profile: str) -> DeviceDescription:
    description = read_description({"profile": profile, **PLAYED})
    assert isinstance(description, DeviceDescription), description
    return description


@pytest.mark.parametrize("profile", ["a", "b"])
def test_messages_use_the_names_of_the_description(profile: str) -> None:
    description = described(profile)
    codec, device = codec_of(description), SimulatedDevice(description)
    read, write = description.tools
    texts = MessageTexts(description, {tool.id: tool for tool in description.tools})
    said = []
    for message in (
        codec.encode_call(3, write, {"celsius": 21.05}),
        codec.encode_call(4, read, {}),
        codec.encode_heartbeat(5),
    ):
        said += [texts.text(one) for one in (message, *device.answer(message))]
    said.append(texts.text(device.event(description.events[0])))
    key = base64.b64encode(bytes(4)).decode()
    assert said[:4] == [
        "call set #3 celsius=21.05",
        "answer set #3",
        "call read #4",
        f"answer read #4 celsius=21.0 key={key}",  # by meaning, in steps of its own
    ]
    assert all(text.startswith("heartbeat #5") for text in said[4:6])
    assert said[6] == "event hot celsius=21.0"


def test_errors_have_their_names_and_what_nobody_asked_for_has_none() -> None:
    description = described("b")
    texts = MessageTexts(description, {tool.id: tool for tool in description.tools})
    assert texts.text(encoded({2: 7, 4: {0: 1}})) == "answer #7 0=1"
    texts.text(encoded({1: 2, 2: 7, 3: {0: 1}}))
    assert texts.text(encoded({2: 7, 5: 1})) == "answer set #7 error 1 (too_hot)"
    texts.text(encoded({1: 1, 2: 8, 3: {}}))
    assert "not as described" in texts.text(encoded({2: 8, 4: {0: "warm"}}))


@pytest.mark.parametrize("params", [{"x": 1}, {0: "warm"}, {3: 1}, None])
def test_a_simulated_device_refuses_what_it_cannot_read(params: object) -> None:
    (answer,) = SimulatedDevice(described("b")).answer(encoded({1: 2, 2: 7, 3: params}))
    assert answer == encoded({2: 7, 5: 1})


def test_a_simulated_device_answers_nothing_without_an_id() -> None:
    assert SimulatedDevice(described("b")).answer(encoded({1: "h"})) == []
