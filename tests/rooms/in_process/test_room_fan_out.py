"""An envelope that many hear: others have their turn meanwhile, and who catches up meanwhile hears it once."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.approvals.inboxes import ManualClock
from tests.rooms.in_process.test_room_tracker import AGENT, HUMAN, Ear, Garden, garden_at

from interlock.rooms.connections import Admission, ConnectionOptions, ParticipantConnection
from interlock.rooms.protocol.envelope import Envelope
from interlock.rooms.protocol.participants import Participant, Privilege
from interlock.rooms.timeline import ALONE_PER_TURN, Delivery


class Pipe:
    """Keeps what is sent to a peer that reads at once."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, data: bytes) -> bool:
        self.sent.append(msgspec.json.decode(data))
        return True

    async def drain(self, low_bytes: int) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class Listener(Ear):
    is_here = True
    can_answer = True
    connections = 0

    def __init__(self, turns: list[int]) -> None:
        Listener.connections += 1
        self.id = f"listener-{Listener.connections}"
        self.heard_in: list[int] = []
        self._turns = turns

    def deliver(self, delivery: Delivery) -> None:
        if delivery.sequence:
            self.heard_in.append(len(self._turns))


async def test_other_tasks_run_while_an_envelope_is_delivered_to_many(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        turns: list[int] = []
        listeners = [join(garden, Listener(turns), number) for number in range(5 * ALONE_PER_TURN)]
        await garden.publish("zero", HUMAN, "chat", payload=b'{"text":"who has come is told"}')
        for listener in listeners:
            listener.heard_in.clear()
        counting = asyncio.create_task(count_turns(turns))
        await garden.publish("one", HUMAN, "chat", payload=b'{"text":"hello"}')
        counting.cancel()
        heard_in = [turn for current_listener in listeners for turn in current_listener.heard_in]
        assert len(heard_in) == len(listeners)
        assert max(heard_in.count(turn) for turn in heard_in) <= ALONE_PER_TURN
        assert heard_in == sorted(heard_in)


async def count_turns(turns: list[int]) -> None:
    while True:
        turns.append(0)
        await asyncio.sleep(0)


def join(garden: Garden, listener: Listener, number: int) -> Listener:
    who = Participant(id=f"p{number}", privilege=Privilege.RESTRICTED)
    garden.room.join(listener, who, f"room:p{number}", "token")
    return listener


@pytest.mark.req("X-5.2-6")
async def test_an_envelope_that_came_with_the_history_is_not_delivered_again(tmp_path: Path) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        await garden.publish("one", HUMAN, "chat", payload=b'{"text":"hello"}')
        pipe, options = Pipe(), ConnectionOptions(protocol="mcpx/v0.1", after="0")
        admission = Admission(garden.room, AGENT, "room:agent", "token", 0, options=options)
        late = ParticipantConnection(admission, garden.clock)
        late.begin(pipe)  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            while not any(message["payload"].get("event") == "history" for message in pipe.sent):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await asyncio.sleep(0)
        envelope = await garden.room.timeline.find_envelope("one")
        assert envelope is not None
        for sequence in (1, 2):
            late.deliver(Delivery(envelope, b'{"id":"one","kind":"chat","payload":{}}', 99, sequence))
        assert [message["kind"] for message in pipe.sent].count(
            "chat"
        ) == 1  # the second: the first came with the history
        late.on_closed(1000, "")


class Stuck(Pipe):
    """Of a peer that reads nothing: all that is sent waits."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[int] = []

    def send(self, data: bytes) -> bool:
        self.unsent_bytes += len(data)
        return super().send(data)

    def close(self, code: int, reason: str) -> None:
        self.closed.append(code)


@pytest.mark.req("X-5.2-6")
@pytest.mark.parametrize(("bytes_each", "passes"), [(50, 1000), (1_048_500, 10)])
async def test_a_peer_that_reads_nothing_is_closed_at_a_thousand_envelopes_or_eight_mebibytes(
    tmp_path: Path, bytes_each: int, passes: int
) -> None:
    async with garden_at(tmp_path, ManualClock()) as garden:
        envelope = Envelope(id="e", kind="chat", payload=b"{}", sender="human")
        data = b'{"payload":{},"pad":"%b"}' % (b"x" * bytes_each)
        pipe, options = Stuck(), ConnectionOptions(protocol="mcpx/v0.1")
        admission = Admission(garden.room, AGENT, "room:agent", "token", 0, options=options)
        slow = ParticipantConnection(admission, garden.clock)
        slow.begin(pipe)  # type: ignore[arg-type]
        welcomes, delivered = len(pipe.sent), 0
        while not pipe.closed:
            delivered += 1
            slow.deliver(Delivery(envelope, data, 99 + delivered, delivered))
        assert pipe.closed == [4429]
        assert welcomes + delivered - 1 == passes
        slow.on_closed(4429, "")
