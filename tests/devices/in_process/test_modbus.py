"""Modbus through pymodbus to its own server: TCP and RTU, several units, answers that do not come."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable

import pytest
from pymodbus.framer import FramerRTU
from pymodbus.pdu.register_message import WriteSingleRegisterResponse
from tests.devices.device_owner import Owner
from tests.devices.plc import BUSY, COUNTER, LEVEL, TEMPERATURE, Plc, SerialPair

from interlock.devices.protocol.description import DeviceDescription, LinkDescription
from interlock.devices.transports.modbus import ModbusTransport
from interlock.devices.transports.transport import SharedConnections, TransportFailed

READ_TEMPERATURE = bytes.fromhex(f"0007 05 04 {TEMPERATURE:04x} 0002")
TEMPERATURE_ANSWER = bytes.fromhex("0007 06 04 04 41ac0000")
WRITE_LEVEL = bytes.fromhex(f"0008 05 06 {LEVEL:04x} 01f4")
READ_LEVEL = bytes.fromhex(f"0009 05 03 {LEVEL:04x} 0001")
READ_BUSY = bytes.fromhex(f"000a 05 03 {BUSY:04x} 0001 05 03 {LEVEL:04x} 0001")


def made(owner: Owner, connections: SharedConnections, **link: object) -> ModbusTransport:
    description = DeviceDescription(profile="modbus", link=LinkDescription(**link))  # type: ignore[arg-type]
    return ModbusTransport("plc", description, owner, connections)


class Site:
    """A PLC, and transports to two of its units."""

    def __init__(self, plc: Plc, line: SerialPair | None, **link: object) -> None:
        self.plc, self.line = plc, line
        self.connections = SharedConnections()
        self.owners = [Owner(), Owner()]
        link = {"timeout_ms": 2000, **link}
        self.one, self.two = (
            made(owner, self.connections, unit=unit, **link) for unit, owner in enumerate(self.owners, 1)
        )


@pytest.fixture(params=["modbus_tcp", "modbus_rtu"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    plc = Plc()
    with SerialPair() as line:
        if request.param == "modbus_tcp":
            site = Site(plc, None, transport="modbus_tcp", host="127.0.0.1", tcp_port=await plc.listen())
        else:
            await plc.attach(line.paths[1])
            site = Site(plc, line, transport="modbus_rtu", port=line.paths[0])
        await asyncio.gather(site.one.open(), site.two.open())
        yield site
        await site.one.close()
        await site.two.close()
        await plc.stop()


async def test_units_of_one_line_are_read_written_and_kept_apart(site: Site) -> None:
    first, second = site.owners
    site.one.send(READ_TEMPERATURE)
    assert await first.next_message() == TEMPERATURE_ANSWER
    site.one.send(WRITE_LEVEL)
    assert await first.next_message(1) == WRITE_LEVEL
    site.one.send(READ_LEVEL)
    site.two.send(READ_LEVEL)
    assert await first.next_message(2) == bytes.fromhex("0009 04 03 02 01f4")
    assert await second.next_message() == bytes.fromhex("0009 04 03 02 0000")
    assert len(site.connections._held) == 1
    assert {sent for sent, _ in first.traffic} == {True, False}
    assert bytes.fromhex(f"01 06 {LEVEL:04x} 01f4") in b"".join(data for sent, data in first.traffic if sent)


async def test_an_exception_ends_the_message(site: Site) -> None:
    site.one.send(READ_BUSY)
    assert await site.owners[0].next_message() == bytes.fromhex("000a 02 8306")
    assert site.plc.requests == [(3, BUSY)]


async def test_a_late_answer_is_never_that_of_another_register(site: Site) -> None:
    first, second = site.owners
    site.two.unit = 1
    site.two.send(WRITE_LEVEL)
    assert await second.next_message() == WRITE_LEVEL
    site.one.timeout_s, site.plc.delay_s = 0.2, 0.25
    site.one.send(bytes.fromhex(f"0007 05 03 {COUNTER:04x} 0001"))
    await asyncio.sleep(0.05)
    site.plc.delay_s = 0.1 if site.line else 0.0  # over TCP this server gives what it says late the newest number
    site.two.send(READ_LEVEL)  # waits for its turn when the first is given up
    assert await second.next_message(1) == bytes.fromhex("0009 04 03 02 01f4")
    site.one.send(READ_LEVEL)
    assert await first.next_message() == bytes.fromhex("0009 04 03 02 01f4")
    assert site.one.discarded == {"no_answer": 1}
    assert first.lost == second.lost == []


async def test_nothing_of_a_message_is_sent_after_its_time(site: Site) -> None:
    site.one.timeout_s, site.plc.delay_s = 0.15, 0.1
    site.one.send(b"\0\x0c" + 3 * bytes.fromhex(f"05 03 {LEVEL:04x} 0001"))
    await asyncio.sleep(0.4)
    assert site.plc.requests == [(3, LEVEL)] * 2
    assert site.one.discarded == {"no_answer": 1}
    assert site.owners[0].messages == []


async def test_a_write_that_is_confirmed_with_another_value_is_not_confirmed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(pdu: WriteSingleRegisterResponse) -> bytes:
        value = pdu.registers[0] + (type(pdu) is WriteSingleRegisterResponse)
        return pdu.address.to_bytes(2, "big") + value.to_bytes(2, "big")

    monkeypatch.setattr(WriteSingleRegisterResponse, "encode", encode)
    site.one.send(WRITE_LEVEL)
    site.one.send(READ_TEMPERATURE)
    if site.line is None:
        assert await site.owners[0].next_message() == TEMPERATURE_ANSWER
    else:
        await asyncio.sleep(0.1)  # the unit rests: the right answer may come yet
    assert site.one.discarded == {"wrong_answer": 1}
    assert WRITE_LEVEL not in site.owners[0].messages


async def test_a_missing_unit_does_not_block_the_others_on_its_line() -> None:
    plc = Plc()
    with SerialPair() as line:
        await plc.attach(line.paths[1])
        site = Site(plc, line, transport="modbus_rtu", port=line.paths[0], timeout_ms=300)
        absent = made(Owner(), site.connections, transport="modbus_rtu", port=line.paths[0], unit=9, timeout_ms=100)
        await asyncio.gather(site.one.open(), site.two.open(), absent.open())
        line.absent = 9
        absent.send(READ_LEVEL)
        site.one.send(READ_TEMPERATURE)
        assert await site.owners[0].next_message() == TEMPERATURE_ANSWER
        assert absent.discarded == {"no_answer": 1}

        line.is_cut = True
        site.one.send(WRITE_LEVEL)  # holds the line for its whole time
        await asyncio.sleep(0)
        site.two.send(bytes.fromhex(f"0008 05 06 {LEVEL:04x} 0001"))  # has no turn in its own
        site.two.send(READ_TEMPERATURE)
        await asyncio.sleep(0.35)
        line.is_cut = False
        plc.requests.clear()
        site.two.send(READ_LEVEL)
        assert await site.owners[1].next_message() == bytes.fromhex("0009 04 03 02 0000")
        assert [function for function, _ in plc.requests] == [3]
        await asyncio.gather(site.one.close(), site.two.close(), absent.close())
        await plc.stop()


async def test_a_plc_that_goes_away_is_lost_for_all_its_units_and_can_be_opened_again() -> None:
    plc = Plc()
    port = await plc.listen()
    site = Site(plc, None, transport="modbus_tcp", host="127.0.0.1", tcp_port=port)
    await asyncio.gather(site.one.open(), site.two.open())
    await plc.stop()
    for owner in site.owners:
        await owner.until(lambda owner: owner.lost)
        assert f"127.0.0.1:{port}" in owner.lost[0]
    await site.one.close()
    await site.two.close()
    with pytest.raises(TransportFailed, match=str(port)):
        await site.one.open()
    await plc.listen(port)
    await site.one.open()
    site.one.send(READ_TEMPERATURE)
    assert await site.owners[0].next_message() == TEMPERATURE_ANSWER
    await site.one.close()
    await plc.stop()


async def test_a_serial_line_that_is_not_there_says_so() -> None:
    with pytest.raises(TransportFailed, match="/dev/nowhere"):
        await made(Owner(), SharedConnections(), transport="modbus_rtu", port="/dev/nowhere").open()


class SlowUnit:
    """A unit on a serial line whose answers come when the test lets them."""

    def __init__(self, path: str, *, has_echo: bool) -> None:
        self.asked: list[bytes] = []
        self.held: list[bytes] = []
        self.is_holding = True
        self._has_echo = has_echo
        self._file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def _read(self) -> None:
        request = os.read(self._file, 256)[:-2]
        self.asked.append(request[1:])
        function, address = request[1], request[3]
        if function == 8:
            answer = request if self._has_echo else bytes((request[0], 0x88, 1))
        else:
            answer = bytes((request[0], function, 2, 0, address))  # a register says its own address
        self.held.append(answer + FramerRTU.compute_CRC(answer).to_bytes(2, "big"))
        if not self.is_holding:
            self.let_go()

    def let_go(self) -> None:
        """Everything, one after the other, as a unit does."""
        self.is_holding = False
        while self.held:
            os.write(self._file, self.held.pop(0))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)


@pytest.mark.parametrize("has_echo", [True, False], ids=["echo", "exception"])
async def test_an_answer_later_than_any_time_is_never_that_of_another_register(has_echo: bool) -> None:
    """On a serial line an answer has no number. It comes after the rest, while the next request is under way."""
    owner = Owner()
    with SerialPair() as line, contextlib.closing(SlowUnit(line.paths[1], has_echo=has_echo)) as unit:
        plc = made(owner, SharedConnections(), transport="modbus_rtu", port=line.paths[0], unit=1, timeout_ms=200)
        await plc.open()
        try:
            plc.send(bytes.fromhex("0001 05 03 0007 0001"))
            await until(lambda: plc.discarded == {"no_answer": 1})
            await asyncio.sleep(0.15)  # longer than it rests
            plc.send(bytes.fromhex("0002 05 03 0009 0001"))
            await until(lambda: len(unit.asked) == 2)
            unit.let_go()  # the answer of register 7, and what was asked since
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(owner.next_message(), 0.3)
            number = 2
            while not owner.messages:  # what comes of it, at the latest when it is asked again
                number += 1
                plc.send(bytes((0, number)) + bytes.fromhex("05 03 0009 0001"))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(owner.next_message(), 0.3)
                assert number < 6
            assert [message[2:] for message in owner.messages] == [bytes.fromhex("04 03 02 0009")]
            assert any(asked[0] == 8 for asked in unit.asked)
        finally:
            await plc.close()


async def test_a_unit_that_never_echoes_is_asked_nothing_else() -> None:
    owner = Owner()
    with SerialPair() as line, contextlib.closing(SlowUnit(line.paths[1], has_echo=True)) as unit:
        plc = made(owner, SharedConnections(), transport="modbus_rtu", port=line.paths[0], unit=1, timeout_ms=100)
        await plc.open()
        try:
            for number in range(1, 4):
                plc.send(bytes((0, number)) + bytes.fromhex("05 03 0007 0001"))
                await until(lambda number=number: plc.discarded == {"no_answer": number})
                await asyncio.sleep(0.06)
            assert [asked[0] for asked in unit.asked] == [3, 8, 8]
            assert owner.messages == []
        finally:
            await plc.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  # neither end tells of it
            await asyncio.sleep(0.005)
