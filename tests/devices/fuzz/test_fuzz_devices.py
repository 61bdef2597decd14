"""What a broken device writes: does every codec and framing of devices refuse it by its one error, and keep little?"""

import random

import pytest

from interlock.devices.protocol.description import DeviceDescription, Event, Field, LinkDescription, ToolDescription
from interlock.devices.protocol.device_tools import Announcement
from interlock.devices.protocol.framing import framing_of
from interlock.devices.protocol.message_text import MessageTexts
from interlock.devices.protocol.messages import (
    AnnouncementFrame,
    Codec,
    DeviceAnswer,
    DeviceFault,
    EventMessage,
    codec_of,
)

MESSAGES = 1500  # of each kind
FIELDS = (
    Field(name="a", type="u8"),
    Field(name="b", type="f32"),
    Field(name="c", type="enum", values={"on": 1}),
    Field(name="d", type="text", size=4),
)
TOOLS = (
    ToolDescription(id=1, name="read", mutable=False, reversible=True, response=FIELDS),
    ToolDescription(id=2, name="set", mutable=True, reversible=True, request=FIELDS[:2]),
)
EVENTS = (Event(id=64, name="pressed", response=FIELDS[:1]),)
SEEDS = {
    "a": ["02010700000000000161626364 00", "02400003", "040009", "030000"],
    "b": ["a2020704a1001832", "a1016172", "a20161720381a3000101800205", "a201184003a10003"],
    "b in frames": ["030000a20161720381a3000101800205", "020107a2020704a1001832", "020107a1001832"],
    "json": [
        b'{"jsonrpc":"2.0","id":7,"result":{"a":1,"b":2.5,"c":"on","d":"abcd"}}'.hex(),
        b'{"jsonrpc":"2.0","method":"pressed","params":{"a":1}}'.hex(),
    ],
}


def changed(message: bytes, chance: random.Random) -> bytes:
    """Bytes are altered, added, lost, or more follow."""
    found = bytearray(message)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0 if found:
                found[place % len(found)] = chance.randrange(256)
            case 1:
                found.insert(place, chance.randrange(256))
            case 2:
                del found[place : place + 1]
            case _:
                found += chance.randbytes(chance.randrange(30))
    return bytes(found)


def take(codec: Codec, message: bytes) -> None:
    """As a session does. Raises DeviceFault."""
    received = codec.decode_untrusted(message)
    match received:
        case DeviceAnswer() if received.status == 0 and not received.is_heartbeat:
            codec.result(TOOLS[0], received.payload)
        case EventMessage():
            codec.notice(received.event_id, received.payload)
        case AnnouncementFrame():
            Announcement().add(received)


@pytest.mark.parametrize(
    ("profile", "link"),
    [
        ("a", {"transport": "uart_cbor"}),
        ("a", {"transport": "uart_cbor", "crc": "crc16"}),
        ("b", {"transport": "uart_cbor"}),
        ("b", {"transport": "uart_cbor", "crc": "crc16"}),
        ("b", {"transport": "uart_cbor", "framing": "frame"}),
        ("b", {"transport": "ble_cbor"}),
        ("json", {"transport": "mqtt_json"}),
    ],
)
def test_malformed_bytes_of_a_device_raise_exactly_one_error(profile: str, link: dict[str, str]) -> None:
    description = DeviceDescription(
        profile=profile,  # type: ignore[arg-type]
        link=LinkDescription(**link),  # type: ignore[arg-type]
        tools=TOOLS,
        events=EVENTS,
    )
    codec, texts = codec_of(description), MessageTexts(description, {tool.id: tool for tool in TOOLS})
    framing = None if profile == "json" else framing_of(description.link, description.profile)
    chance = random.Random(f"{profile} {link}")
    refused = framed = 0
    seeds = SEEDS["b in frames" if "framing" in link else profile]
    for number in range(MESSAGES):
        message = changed(bytes.fromhex(chance.choice(seeds)), chance)
        assert texts.text(message)
        try:
            take(codec, message)
        except DeviceFault:
            refused += 1
        if framing is not None:
            data = changed(framing.encode(message.ljust(3, b"\0")), chance)
            while data:
                some, data = data[:7], data[7:]
                for found in framing.feed_untrusted(some, number / 100):
                    framed += 1
                    assert len(found) <= description.link.max_frame
    assert 0 < refused < MESSAGES
    assert framing is None or framed > 0
