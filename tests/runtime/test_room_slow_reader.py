"""A participant that does not read: what waits for it is bounded, and then it is sent away."""

from pathlib import Path

import pytest
from inboxes import Hands
from test_room_tracker import AGENT, garden_at

from interlock.protocol.rooms.envelope import Envelope
from interlock.runtime.rooms.connection import RoomConnection, Wishes
from interlock.runtime.rooms.room import Delivery


class Stuck:
    """Of a peer that reads nothing: all that is sent waits."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.sent = 0
        self.closed: list[int] = []

    def send(self, data: bytes) -> bool:
        self.unsent_bytes += len(data)
        self.sent += 1
        return True

    def close(self, code: int, reason: str) -> None:
        self.closed.append(code)


@pytest.mark.req("X-5.2-6")
@pytest.mark.parametrize(("bytes_each", "passes"), [(50, 1000), (1_048_500, 10)])
async def test_who_reads_nothing_is_closed_at_a_thousand_envelopes_or_eight_mebibytes(
    tmp_path: Path, bytes_each: int, passes: int
) -> None:
    async with garden_at(tmp_path, Hands()) as garden:
        envelope = Envelope(id="e", kind="chat", payload=b"{}", sender="human")
        data = b'{"payload":{},"pad":"%b"}' % (b"x" * bytes_each)
        pipe, wishes = Stuck(), Wishes(protocol="mcpx/v0.1")
        slow = RoomConnection(garden.room, AGENT, "room:agent", "token", wishes, 0, garden.clock)
        slow.begin(pipe)  # type: ignore[arg-type]
        welcomes, delivered = pipe.sent, 0
        while not pipe.closed:
            delivered += 1
            slow.deliver(Delivery(envelope, data, 99 + delivered, delivered))
        assert pipe.closed == [4429]
        assert welcomes + delivered - 1 == passes
        slow.on_closed(4429, "")
