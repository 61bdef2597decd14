"""BLE: messages in pieces over a real GATT, and connections that end. Controllers are virtual."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest
from bumble.link import LocalLink
from tests.devices.bluetooth import BumbleClient, Stub, make_device
from tests.devices.device_owner import Owner, description

from interlock.devices.transports import ble
from interlock.devices.transports.ble import BleTransport
from interlock.devices.transports.transport import SharedConnections, TransportFailed

ADDRESS = "F1:F1:F1:F1:F1:F1"
LONG = bytes(number % 251 for number in range(200))


class Pair:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        link = LocalLink()
        self.taken: list[bytes] = []
        self.owner = Owner()
        self.stub = Stub(make_device(link, ADDRESS), self._replies)
        self.central = make_device(link, "F0:F0:F0:F0:F0:F0")
        monkeypatch.setattr(ble, "make_client", partial(BumbleClient, self.central))
        link_keys = {"transport": "ble_cbor", "address": ADDRESS}
        self.transport = BleTransport("array", description(**link_keys), self.owner, SharedConnections())

    def _replies(self, message: bytes) -> list[bytes]:
        self.taken.append(message)
        return [message[::-1]]


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    pair = Pair(monkeypatch)
    await pair.stub.start()
    await pair.central.power_on()
    await pair.transport.open()
    yield pair
    await pair.transport.close()


@pytest.mark.req("AX-8.1-3")
async def test_200_bytes_at_the_least_mtu_are_cut_and_put_together_both_ways(pair: Pair) -> None:
    pair.transport.send(LONG)
    assert await pair.owner.next_message() == LONG[::-1]
    assert pair.taken == [LONG]
    assert [len(piece) for piece in pair.stub.written] == [20] * 10 + [2]
    assert pair.stub.written[0][:2] == b"\x00\xc8"
    assert [len(data) for sent, data in pair.owner.traffic if not sent] == [20] * 10 + [2]


@pytest.mark.req("AX-8.1-3")
async def test_a_disconnect_in_mid_message_is_lost_and_the_next_connection_starts_clean(pair: Pair) -> None:
    await pair.stub.say(b"\x00\xc8" + LONG[:50])
    assert pair.stub.connection is not None
    await pair.stub.connection.disconnect()
    await pair.owner.until(lambda owner: owner.lost)
    assert pair.owner.lost == [f"the device {ADDRESS} disconnected"]
    assert pair.owner.messages == []
    pair.transport.send(b"late")
    await pair.transport.close()
    await pair.transport.open()
    pair.transport.send(b"abc")
    assert await pair.owner.next_message() == b"cba"
    assert len(pair.owner.lost) == 1


async def test_a_write_that_outlives_its_cancellation_does_not_keep_the_transport_from_closing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def write(characteristic: str, data: bytes, response: bool) -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):  # as asyncio.wait_for of Python 3.11 may
            await asyncio.Event().wait()

    monkeypatch.setattr(pair.transport._client, "write_gatt_char", write)
    pair.transport.send(b"abc")
    await begun.wait()
    async with asyncio.timeout(2):
        await pair.transport.close()
    await pair.transport.open()
    pair.transport.send(b"abc")
    assert await pair.owner.next_message() == b"cba"


async def test_a_message_that_waits_behind_a_slow_write_can_be_withdrawn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, written = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def write(characteristic: str, data: bytes, response: bool) -> None:
        written.append(data[2:])
        begun.set()
        await may_end.wait()

    monkeypatch.setattr(pair.transport._client, "write_gatt_char", write)
    for message in (b"first", b"second", b"third"):
        pair.transport.send(message)
    await begun.wait()
    pair.transport.withdraw(b"second")
    may_end.set()
    async with asyncio.timeout(2):
        while len(written) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert written == [b"first", b"third"]


async def test_a_length_above_max_frame_loses_the_link(pair: Pair) -> None:
    await pair.stub.say(b"\x01\x01")  # 257
    await pair.owner.until(lambda owner: owner.lost)
    assert pair.transport.discarded == {"too_large": 1}


async def test_a_device_without_the_characteristics_cannot_be_opened(pair: Pair) -> None:
    await pair.transport.close()
    keys = {"transport": "ble_cbor", "address": ADDRESS, "notify": "4d435041-5803-4b1e-9c52-7f0a6b1d3e20"}
    transport = BleTransport("array", description(**keys), pair.owner, SharedConnections())
    with pytest.raises(TransportFailed, match="4d435041-5803"):
        await transport.open()
    await transport.close()


async def test_a_machine_without_bluetooth_says_so() -> None:
    transport = BleTransport("array", description(transport="ble_cbor", address=ADDRESS), Owner(), SharedConnections())
    with pytest.raises(TransportFailed, match=ADDRESS):
        await transport.open()
    await transport.close()
