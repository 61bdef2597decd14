"""ISO-TP on CAN: messages of every length, and frames that break one message only. The device is python-can's own."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import can
import pytest
from tests.devices.device_owner import Owner, description

from interlock.devices.transports import can_bus
from interlock.devices.transports.can_bus import CanTransport
from interlock.devices.transports.transport import SharedConnections, TransportFailed

RX, TX = 0x701, 0x700  # of the gateway
CHANNELS = (f"test-{number}" for number in itertools.count())


class Station:
    """A device on the bus, frame by frame: ISO-TP is written out here."""

    def __init__(self, channel: str) -> None:
        self.bus = can.Bus(interface="virtual", channel=channel)

    def put(self, data: bytes, arbitration_id: int = RX) -> None:
        self.bus.send(can.Message(arbitration_id=arbitration_id, data=data, is_extended_id=False))

    def put_consecutive(self, rest: bytes, first: int = 1) -> None:
        for number, start in enumerate(range(0, len(rest), 7), first):
            self.put(bytes([0x20 | number % 16]) + rest[start : start + 7])

    async def answer(self, message: bytes) -> None:
        """As fast as the other side's flow control allows."""
        self.put(bytes([0x10 | len(message) >> 8, len(message) & 0xFF]) + message[:6])
        at, first = 6, 1
        while at < len(message):
            granted = await self.take()
            assert granted[0] == 0x30
            block = message[at : at + 7 * granted[1]] if granted[1] else message[at:]
            self.put_consecutive(block, first)
            at, first = at + len(block), first + granted[1]

    async def take(self) -> bytes:
        frame = await asyncio.to_thread(self.bus.recv, 2.0)
        assert frame is not None
        assert frame.arbitration_id == TX
        return bytes(frame.data)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[CanTransport, Owner, Station]]:
    channel, owner, connections = next(CHANNELS), Owner(), SharedConnections()
    station = Station(channel)
    link = {"transport": "can_cbor", "interface": "virtual", "channel": channel, "max_frame": 4095, "in_flight": 3}
    transport = CanTransport("motor", description(**link, rx_id=RX, tx_id=TX), owner, connections)
    await transport.open()
    try:
        yield transport, owner, station
    finally:
        await transport.close()
        station.bus.shutdown()


@pytest.mark.req("AX-8.1-5")
async def test_a_short_message_is_a_single_frame_both_ways(pair: tuple[CanTransport, Owner, Station]) -> None:
    transport, owner, station = pair
    transport.send(b"\xa2\x01\x02")
    assert await station.take() == b"\x03\xa2\x01\x02"
    station.put(b"\x02\xa1\x01")
    assert await owner.next_message() == b"\xa1\x01"
    assert owner.traffic == [(True, b"\x03\xa2\x01\x02"), (False, b"\x02\xa1\x01")]


@pytest.mark.req("AX-8.1-5")
@pytest.mark.parametrize("length", [8, 2048, 4095])
async def test_long_messages_are_segmented_with_flow_control(
    pair: tuple[CanTransport, Owner, Station], length: int
) -> None:
    transport, owner, station = pair
    message = bytes(number % 251 for number in range(length))
    transport.send(message)
    first = await station.take()
    assert first[:2] == bytes([0x10 | length >> 8, length & 0xFF])
    station.put(b"\x30\x00\x00")
    taken = first[2:]
    for number in itertools.count(1):
        if len(taken) == length:
            break
        frame = await station.take()
        assert frame[0] == 0x20 | number % 16
        taken += frame[1:]
    assert taken == message

    station.put(first)
    assert (await station.take())[0] == 0x30
    station.put_consecutive(message[6:])
    assert await owner.next_message() == message


async def test_a_message_that_waits_behind_a_long_message_can_be_withdrawn(
    pair: tuple[CanTransport, Owner, Station],
) -> None:
    transport, _, station = pair
    for message in (b"long enough", b"second", b"third"):
        transport.send(message)
    assert (await station.take())[0] == 0x10
    transport.withdraw(b"second")
    station.put(b"\x30\x00\x00")
    assert (await station.take())[0] == 0x21
    assert await station.take() == b"\x05third"


@pytest.mark.req("AX-8.1-5")
async def test_broken_messages_are_counted_and_the_next_message_passes(
    pair: tuple[CanTransport, Owner, Station],
) -> None:
    transport, owner, station = pair
    station.put(b"\x10\x14abcdef")
    await station.take()
    station.put(b"\x21ghijklm")
    station.put(b"\x23nopqrst")  # 22 is missing
    station.put(b"\x02\xa1\x01", arbitration_id=0x123)  # of a device that is not described here
    station.put(b"\x02\xa1\x02")
    assert await owner.next_message() == b"\xa1\x02"
    assert transport.discarded == {"sequence": 1}

    station.put(b"\x1f\xff")  # a first frame with a large length and nothing else
    await station.take()
    station.put(b"\x10\x14abcdef")
    await station.take()
    station.put(b"\x02\xa1\x03")  # a single frame instead of the rest
    assert await owner.next_message(1) == b"\xa1\x03"
    assert transport.discarded == {"sequence": 1, "interrupted": 2}
    assert owner.lost == []


@pytest.mark.req("AX-8.1-5")
async def test_a_message_without_flow_control_fails_alone(
    pair: tuple[CanTransport, Owner, Station], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, owner, station = pair
    layer = transport._layer
    assert layer is not None
    monkeypatch.setattr(layer.params, "rx_flowcontrol_timeout", 50)  # instead of a second
    transport.send(bytes(20))
    assert (await station.take())[0] == 0x10
    transport.send(b"\xa0")  # waits until the one before it is given up
    assert await station.take() == b"\x01\xa0"
    assert transport.discarded == {"flow_control": 1}
    assert owner.lost == []


async def test_devices_of_one_bus_share_it_and_have_separate_ids() -> None:
    channel, connections = next(CHANNELS), SharedConnections()
    link = {"transport": "can_cbor", "interface": "virtual", "channel": channel}
    owners = [Owner(), Owner(), Owner()]
    one, two, same = (
        CanTransport(f"d{number}", description(**link, rx_id=rx_id, tx_id=TX), owner, connections)
        for number, (rx_id, owner) in enumerate(zip((RX, 0x18DA00F1, RX), owners, strict=True))
    )
    station = Station(channel)
    await asyncio.gather(one.open(), two.open())
    try:
        with pytest.raises(TransportFailed, match="0x701"):
            await same.open()
        await same.close()
        station.put(b"\x01\xa1")
        station.bus.send(can.Message(arbitration_id=0x18DA00F1, data=b"\x01\xa2", is_extended_id=True))
        assert await owners[0].next_message() == b"\xa1"
        assert await owners[1].next_message() == b"\xa2"
        await one.close()
        station.bus.send(can.Message(arbitration_id=0x18DA00F1, data=b"\x01\xa3", is_extended_id=True))
        assert await owners[1].next_message(1) == b"\xa3"
    finally:
        await one.close()
        await two.close()
        station.bus.shutdown()


async def test_a_bus_that_fails_is_lost_for_all_its_devices_and_can_be_opened_again(
    pair: tuple[CanTransport, Owner, Station], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, owner, station = pair
    bus = transport._bus
    assert bus is not None
    assert bus._bus is not None
    monkeypatch.setattr(bus._bus, "send", _refuse)
    transport.send(b"\xa0")
    await owner.until(lambda owner: owner.lost)
    assert "no such device" in owner.lost[0]
    await transport.close()
    await transport.open()
    transport.send(b"\xa1")
    assert await station.take() == b"\x01\xa1"
    assert len(owner.lost) == 1


@pytest.fixture
async def beside(pair: tuple[CanTransport, Owner, Station]) -> AsyncIterator[Owner]:
    """Of another device, at the same bus."""
    transport, _, _ = pair
    owner, channel = Owner(), transport._link.channel
    link = description(transport="can_cbor", interface="virtual", channel=channel, rx_id=RX + 2, tx_id=TX + 2)
    other = CanTransport("valve", link, owner, transport._connections)
    await other.open()
    yield owner
    await other.close()


async def test_a_flooding_device_is_handled_only_up_to_its_rate_and_others_are_served(
    pair: tuple[CanTransport, Owner, Station], beside: Owner
) -> None:
    transport, owner, station = pair
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(2 * can_bus.BURST_FRAMES):
        station.put(b"\x02\xa1\x01")
    station.put(b"\x02\xa1\x02", RX + 2)
    assert await beside.next_message() == b"\xa1\x02"
    elapsed_s = loop.time() - began
    handled = len(owner.messages)
    assert handled <= can_bus.BURST_FRAMES + 1 + elapsed_s * can_bus.FRAMES_PER_S
    assert transport.discarded == {"overrun": 2 * can_bus.BURST_FRAMES - handled}
    await asyncio.sleep(2 / can_bus.FRAMES_PER_S)
    station.put(b"\x02\xa1\x03")
    assert await owner.next_message(handled) == b"\xa1\x03"  # it is heard again as soon as a frame is due


@pytest.mark.req("AX-8.1-5")
async def test_answers_that_were_asked_for_are_not_counted_against_the_rate(
    pair: tuple[CanTransport, Owner, Station], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, owner, station = pair
    monkeypatch.setattr(can_bus, "FRAMES_PER_S", 1)  # so that no frame is due by the time that passes
    monkeypatch.setattr(can_bus, "BURST_FRAMES", 16)
    longest = bytes(number % 251 for number in range(4095))
    for turn in range(2):  # one call at a time
        transport.send(b"\xa1\x01")
        await station.take()
        await station.answer(longest)
        assert await owner.next_message(turn) == longest
    for _ in range(3):  # several calls in flight
        transport.send(b"\xa1\x01")
        await station.take()
    for turn in range(2, 5):
        await station.answer(longest)
        assert await owner.next_message(turn) == longest

    transport.send(longest)  # a block size of 1: as many flow controls as frames
    await station.take()
    for _ in range(can_bus.frames_of(len(longest)) - 1):
        station.put(b"\x30\x01\x00")
        await station.take()
    await station.answer(longest)
    assert await owner.next_message(5) == longest
    assert transport.discarded == {}


async def test_unrequested_frames_are_limited_however_many_requests_there_are(
    pair: tuple[CanTransport, Owner, Station], beside: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, owner, station = pair
    monkeypatch.setattr(can_bus, "FRAMES_PER_S", 1)
    monkeypatch.setattr(can_bus, "BURST_FRAMES", 16)
    for _ in range(8):
        transport.send(b"\xa1\x01")
        await station.take()
    beyond = 100
    borne = 3 * 2 * can_bus.frames_of(4095) + 16  # of three in flight, each with its flow control and its answer
    for _ in range(borne + beyond):
        station.put(b"\x02\xa1\x01")
    station.put(b"\x02\xa1\x02", RX + 2)
    await beside.next_message()
    assert borne <= len(owner.messages) < borne + beyond // 2  # some are due by the time that passes
    assert transport.discarded == {"overrun": borne + beyond - len(owner.messages)}


async def test_a_bus_that_carries_more_than_wires_do_is_read_more_slowly(
    pair: tuple[CanTransport, Owner, Station],
) -> None:
    _, owner, station = pair
    loop = asyncio.get_running_loop()
    frames = can_bus.BUS_FRAMES_PER_S // 2
    began = loop.time()
    for _ in range(frames):
        station.put(b"\x00", RX + 4)
    station.put(b"\x02\xa1\x01")
    await owner.next_message()
    assert loop.time() - began > frames / can_bus.BUS_FRAMES_PER_S - 2 * can_bus.REST_S


async def test_a_bus_that_cannot_be_opened_says_so() -> None:
    link = {"transport": "can_cbor", "interface": "socketcan", "channel": "nowhere0", "rx_id": RX, "tx_id": TX}
    with pytest.raises(TransportFailed, match="nowhere0"):
        await CanTransport("motor", description(**link), Owner(), SharedConnections()).open()


def _refuse(message: can.Message, timeout: float | None = None) -> None:
    raise can.CanOperationError("no such device")
