"""The link to a device: what it says of its tools, its times and itself."""

import json
from typing import Any

import pytest
from tests.devices.in_process.test_device_session import TEXT, Memory, Owner, described

from interlock.config.plan import DevicePlan
from interlock.core.clock import Clock
from interlock.devices.device_link import DeviceLink
from interlock.devices.protocol.cbor_codec import encoded
from interlock.devices.protocol.device_tools import device_tool
from interlock.devices.session import DeviceSession
from interlock.devices.transports import transport
from interlock.devices.transports.transport import SharedConnections

FINAL = (
    TEXT
    + """[[tool]]
id = 4
name = "ignite"
mutable = true
reversible = false
"""
)
EVENT = '[[event]]\nid = 9\nname = "pressed"\n'
ALONE = 'profile = "b"\n[link]\ntransport = "uart_cbor"\nport = "nowhere"\n[[tool]]\nid = 1\nname = "any"\n'


def items(text: str) -> dict[str, Any]:
    description = described(text)
    found = (json.loads(device_tool("board", description, tool).item) for tool in description.tools)
    return {item["name"]: item for item in found}


def test_hints_of_mcp_say_what_a_tool_does() -> None:
    tools = items(FINAL)
    names = ("readOnlyHint", "destructiveHint", "idempotentHint")
    hints = {name: tuple(item["annotations"][hint] for hint in names) for name, item in tools.items()}
    assert hints == {
        "read": (True, False, True),
        "press": (False, False, False),
        "set": (False, False, True),
        "ignite": (False, True, False),
    }
    assert tools["read"]["_meta"]["x-mcpax-capability"]["idempotent"] is True
    assert "annotations" not in items(ALONE)["any"]  # a person says what it does


def linked(text: str) -> DeviceLink:
    description, clock = described(text), Clock()
    session = DeviceSession("board", description, clock, Owner(), SharedConnections())
    events: Any = type("Events", (), {"on_standing": lambda *_: None})()
    return DeviceLink(DevicePlan(segment="board", description=description), events, clock, session, None)


async def test_a_tool_without_a_class_has_the_timeout_of_the_standard_class_or_of_its_attempts() -> None:
    assert linked(TEXT).timeout_s == 30.0
    assert linked(TEXT.replace("timeout_ms = 20", "timeout_ms = 20000")).timeout_s == 60.0


async def test_a_device_with_events_has_log_messages() -> None:
    for text, has_events in ((TEXT, False), (TEXT + EVENT, True)):
        link = linked(text)
        link.arrive()
        assert link.facts is not None
        assert ("logging" in link.facts.capabilities) is has_events


@pytest.mark.req("AX-B.2-5")
async def test_the_reason_of_a_refused_announcement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(described(ALONE))
    monkeypatch.setattr(transport, "import_module", lambda name: type("Module", (), {"UartTransport": memory.made}))
    for entries, why in (
        ([{0: 1, 1: [], 2: 5}, {0: 5, 1: [], 2: 5, 3: "ignite now"}], "tool 5: the name 'ignite now' is not 1 to 63"),
        ([{0: 1, 1: [], 2: 0}], "tool 1 returns no map"),
    ):
        said = encoded({1: "r", 3: entries})
        memory.reply = lambda message, said=said: [said]  # type: ignore[misc]
        session = DeviceSession("board", described(ALONE), Clock(), Owner(), SharedConnections())
        session.open()
        try:
            assert not await session.present_within(0.05)
            assert (session.reason or "").startswith(f"its announcement was refused: {why}")
            assert sum(session.discarded.values()) > 0
        finally:
            await session.close()
