"""Does presence follow a lease: begun, renewed, ended, and over by itself?"""

import asyncio
from typing import Any, cast

from interlock.rooms.connections import PresenceLease, PresenceLeases
from interlock.rooms.protocol.envelope import Stamp
from interlock.rooms.protocol.participants import Participant, Privilege
from interlock.rooms.room import Connected, Room, Seat

AGENT = Participant(id="client:agent", privilege=Privilege.RESTRICTED)


class FakeRoom:
    is_full = False

    def has_free_seat(self, participant: str) -> bool:
        return not self.is_full

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}

    def stamp(self) -> Stamp:
        return Stamp("id", "ts")

    def connections_of(self, participant: str) -> tuple[Connected, ...]:
        return tuple(self.seats[participant].connections) if participant in self.seats else ()

    def join(self, lease: PresenceLease, who: Participant, principal: str, source: str) -> None:
        self.seats[who.id] = Seat(who, principal, 0, [lease])

    def leave(self, lease: PresenceLease, participant: str) -> None:
        self.seats.pop(participant, None)


async def test_presence_follows_the_lease() -> None:
    here: Any = FakeRoom()
    room, leases = cast(Room, here), PresenceLeases(lease_s=0.1)
    assert not leases.renew(room, AGENT.id)
    assert leases.begin(room, AGENT, "client:agent")
    for _ in range(3):
        await asyncio.sleep(0.05)
        assert leases.renew(room, AGENT.id)
    assert AGENT.id in here.seats
    await asyncio.sleep(0.15)
    assert here.seats == {} and not leases.renew(room, AGENT.id) and not leases.end(room, AGENT.id)
    assert leases.begin(room, AGENT, "client:agent") and leases.end(room, AGENT.id) and here.seats == {}
    here.is_full = True
    assert not leases.begin(room, AGENT, "client:agent")
