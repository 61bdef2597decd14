"""Does a stream that says much leave every other its turn, and lose nothing?"""

import asyncio

from interlock.net.message_pipe import PER_TURN, PacedDelivery


class Stream(PacedDelivery, eq=False):
    heard: list[int | str]
    held: list[bool]

    def on_next(self, message: int) -> None:
        self.heard.append(message)

    def hold_reading(self, wanted: bool) -> None:
        self.held.append(wanted)


async def turns(stream: Stream, until: int) -> list[int]:
    """How many messages each turn of the loop brought."""
    counts = []
    while len(stream.heard) < until:
        before = len(stream.heard)
        await asyncio.sleep(0)
        counts.append(len(stream.heard) - before)
    return counts


async def test_a_turn_brings_a_bounded_number_in_order_and_the_end_comes_last() -> None:
    stream = Stream([], [])
    stream.deliver(range(1000))
    stream.deliver([1000])
    stream.finish_delivery(lambda: stream.heard.append("end"))
    assert len(stream.heard) == PER_TURN
    assert stream.held == [True]
    assert max(await turns(stream, 1002)) <= PER_TURN + 1  # and the end
    assert stream.heard == [*range(1001), "end"]
    assert stream.held[-1] is False


async def test_one_message_alone_waits_for_no_turn() -> None:
    stream = Stream([], [])
    stream.deliver([1])
    stream.finish_delivery(lambda: stream.heard.append("end"))
    assert stream.heard == [1, "end"]
    assert not stream.held


async def test_a_pause_in_the_middle_holds_the_rest() -> None:
    class Pausing(Stream, eq=False):
        def on_next(self, message: int) -> None:
            super().on_next(message)
            if message == 3:
                self.pause_delivery(3600)

    stream = Pausing([], [])
    stream.deliver(range(10))
    stream.deliver([10])
    await asyncio.sleep(0)
    assert stream.heard == [0, 1, 2, 3]
    assert stream.held == [True]
    stream.pause_delivery(0)
    await turns(stream, 11)
    assert stream.heard == list(range(11))


async def test_nothing_is_delivered_after_a_stop() -> None:
    stream = Stream([], [])
    stream.deliver(range(100))
    stream.finish_delivery(lambda: stream.heard.append("end"))
    stream.stop_delivery()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(stream.heard) == PER_TURN
