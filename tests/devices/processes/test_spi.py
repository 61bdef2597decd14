"""SPI behind `xfer2`: requests, polls, and lines that say nothing or too much. The device here is a look-alike."""

import queue
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import cbor2
import pytest
from tests.devices.device_owner import Owner, description
from tests.devices.emulated_chips import SimulatedSpi, need

from interlock.devices.transports import spi
from interlock.devices.transports.spi import SpiTransport
from interlock.devices.transports.transport import SharedConnections, TransportFailed


class Slave:
    """A device that answers each message with the same one reversed, after saying twice that it has nothing yet."""

    def __init__(self) -> None:
        self.transfers: list[list[int]] = []
        self.polls = threading.Semaphore(0)
        self.to_say: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.stuck: int | None = None
        self.is_closed = False
        self._fetched = b""
        self._busy = 0

    def xfer2(self, data: list[int]) -> list[int]:
        if self.stuck is not None:
            return [self.stuck] * len(data)
        if any(data):
            self.transfers.append(data)
            self.to_say.put(bytes(data[2:])[::-1])
            self._busy = 2
            return [0xA5] * len(data)
        if self._fetched:
            message, self._fetched = self._fetched, b""
            return list(message[: len(data)])
        self.polls.release()
        if self._busy > 0 or self.to_say.empty():
            self._busy -= 1
            return [0, 0]
        self._fetched = self.to_say.get()
        return list(len(self._fetched).to_bytes(2, "big"))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def slave(monkeypatch: pytest.MonkeyPatch) -> Slave:
    slave = Slave()
    monkeypatch.setattr(spi, "open_device", lambda bus, chip, speed_hz: slave)
    return slave


@pytest.fixture
async def owner() -> Owner:
    return Owner()


@pytest.fixture
async def transport(slave: Slave, owner: Owner) -> AsyncIterator[SpiTransport]:
    transport = SpiTransport("panel", description(transport="spi_cbor", poll_ms=1), owner, SharedConnections())
    await transport.open()
    yield transport
    await transport.close()
    assert slave.is_closed


@pytest.mark.req("AX-8.1-4")
async def test_a_request_has_its_length_and_the_answer_is_fetched_when_it_is_there(
    transport: SpiTransport, slave: Slave, owner: Owner
) -> None:
    transport.send(b"abc")
    assert await owner.next_message() == b"cba"
    assert slave.transfers == [[0, 3, *b"abc"]]
    assert owner.traffic == [(True, b"\x00\x03abc"), (False, b"\x00\x03cba")]
    slave.to_say.put(b"unasked")
    assert await owner.next_message(1) == b"unasked"


@pytest.mark.req("AX-8.1-4")
@pytest.mark.parametrize(("stuck", "reason"), [(0xFF, "stuck"), (0x01, "too_large")])
async def test_a_line_that_cannot_be_read_is_lost(
    transport: SpiTransport, slave: Slave, owner: Owner, stuck: int, reason: str
) -> None:
    slave.stuck = stuck  # 0x01: a length of 257
    await owner.until(lambda owner: owner.lost)
    assert transport.discarded == {reason: 1}
    transport.send(b"late")
    slave.stuck = None
    await transport.close()
    await transport.open()
    transport.send(b"xyz")
    assert await owner.next_message() == b"zyx"
    assert slave.transfers == [[0, 3, *b"xyz"]]
    assert len(owner.lost) == 1


async def test_a_ready_line_is_looked_at_before_anything_is_clocked(slave: Slave, owner: Owner, tmp_path: Path) -> None:
    ready = tmp_path / "value"
    ready.write_text("0\n")
    link = description(transport="spi_cbor", poll_ms=1, gpio=str(ready))
    transport = SpiTransport("panel", link, owner, SharedConnections())
    await transport.open()
    try:
        slave.to_say.put(b"one")
        assert not slave.polls.acquire(timeout=0.05)
        ready.write_text("1\n")
        assert await owner.next_message() == b"one"
        ready.unlink()
        await owner.until(lambda owner: owner.lost)
    finally:
        await transport.close()


async def test_a_machine_without_spidev_names_it(owner: Owner) -> None:
    with pytest.raises(TransportFailed, match="spidev"):
        await SpiTransport("panel", description(transport="spi_cbor"), owner, SharedConnections()).open()


@pytest.mark.req("AX-8.1-4")
async def test_firmware_on_a_simulated_chip_is_asked_and_answers(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    need("avr-gcc", "simavr")
    monkeypatch.setattr(spi, "open_device", lambda bus, chip, speed_hz: SimulatedSpi())
    transport = SpiTransport("panel", description(transport="spi_cbor", poll_ms=1), owner, SharedConnections())
    await transport.open()
    try:
        transport.send(cbor2.dumps({1: "r"}))
        announced = cbor2.loads(await owner.next_message())
        assert [entry[0] for entry in announced[3]][:2] == [1, 2]
        transport.send(cbor2.dumps({1: 2, 2: 7, 3: {0: 1}}))
        assert cbor2.loads(await owner.next_message(1)) == {2: 7, 4: {"led": 1}}
        transport.send(cbor2.dumps({1: "h", 2: 8}))
        assert cbor2.loads(await owner.next_message(2)) == {2: 8, 4: {}}
        assert owner.lost == []
    finally:
        await transport.close()
