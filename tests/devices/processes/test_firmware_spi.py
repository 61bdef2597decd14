"""Does the stub answer as an SPI slave, on a simulated chip, clocked the way the gateway clocks it?"""

from collections.abc import Iterator

import pytest
from tests.devices.emulated_chips import SimulatedSpi, need

from interlock.devices.protocol.cbor_codec import encoded, read_untrusted
from interlock.devices.protocol.framing import LengthFraming

need("avr-gcc", "simavr")

FRAMING = LengthFraming(max_message=96)


@pytest.fixture(scope="module")
def bus() -> Iterator[SimulatedSpi]:
    started = SimulatedSpi()
    yield started
    started.close()


def polled(bus: SimulatedSpi) -> object:
    length = int.from_bytes(bytes(bus.xfer2([0, 0])), "big")
    return read_untrusted(bytes(bus.xfer2([0] * length))) if length else None


def asked(bus: SimulatedSpi, message: dict[int, object]) -> object:
    bus.xfer2(list(FRAMING.encode(encoded(message))))
    return polled(bus)


def test_a_slave_answers_when_it_is_polled_and_says_nothing_before(bus: SimulatedSpi) -> None:
    assert polled(bus) is None
    announced = asked(bus, {1: "r"})
    assert isinstance(announced, dict) and [entry[0] for entry in announced[3]] == [1, 2, 4, 5, 6]
    assert asked(bus, {1: 2, 2: 1, 3: {0: 1}}) == {2: 1, 4: {"led": 1}}
    assert asked(bus, {1: 1, 2: 2, 3: {}}) == {2: 2, 4: {"centigrade": 22}}
    assert asked(bus, {1: "h", 2: 200}) == {2: 200, 4: {}}
    assert asked(bus, {1: 99, 2: 3, 3: {}}) == {2: 3, 5: 254}
    assert polled(bus) is None


def test_a_request_instead_of_a_poll_gives_up_the_answer(bus: SimulatedSpi) -> None:
    bus.xfer2(list(FRAMING.encode(encoded({1: 1, 2: 2, 3: {}}))))
    bus.xfer2(list(FRAMING.encode(encoded({1: "h", 2: 3}))))
    assert polled(bus) is None
    assert asked(bus, {1: "h", 2: 4}) == {2: 4, 4: {}}


def test_garbage_and_a_reset_leave_a_slave_that_answers(bus: SimulatedSpi) -> None:
    bus.xfer2([0xFF] * 300)
    bus.xfer2([0, 5, 1])
    for _ in range(3):  # the rest of the message that was begun
        polled(bus)
    assert asked(bus, {1: "h", 2: 4}) == {2: 4, 4: {}}
    bus.reset()
    assert asked(bus, {1: 1, 2: 2, 3: {}}) == {2: 2, 4: {"centigrade": 21}}
