"""Is CBOR that a device may not write dropped and counted by the session with it, and passed on by none?"""

import asyncio
from typing import Any

import pytest
from tests.devices.pure.test_device_cbor import REFUSED_CBOR

from interlock.core.clock import Clock
from interlock.devices.protocol.cbor_codec import encoded
from interlock.devices.protocol.description import DeviceDescription, Event, LinkDescription
from interlock.devices.session import DeviceSession
from interlock.devices.transports.transport import SharedConnections


class Owner:
    def __init__(self) -> None:
        self.told: list[object] = []

    def on_present(self) -> None:
        self.told.append("present")

    def on_absent(self, reason: str) -> None:
        self.told.append(reason)

    def on_tools(self) -> None:
        self.told.append("tools")

    def on_event(self, name: str, content: dict[str, Any]) -> None:
        self.told.append((name, content))


@pytest.mark.req("AX-8.2-8")
async def test_forbidden_messages_of_devices_are_counted_and_ignored() -> None:
    owner = Owner()
    link = LinkDescription(transport="uart_cbor", port="socket://127.0.0.1:1")
    description = DeviceDescription(profile="b", link=link, events=(Event(id=9, name="pressed"),))
    session = DeviceSession("chip", description, Clock(), owner, SharedConnections())
    for count, name in enumerate(REFUSED_CBOR, 1):
        session.on_message(REFUSED_CBOR[name])
        assert session.counters.discarded["malformed"] == count, name
    session.on_message(encoded({1: 9, 3: {"text": "x" * 256}}))
    assert session.counters.discarded["too_large"] == 1
    await asyncio.sleep(0)
    assert owner.told == []
