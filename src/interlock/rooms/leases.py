"""Leases: how a client that has no connection to a room is present in it (X-10.1-4).

A lease belongs to a principal in one room. Each call of a room tool renews it, `leave` ends it, and so does its time.
"""

import asyncio
from typing import Final

from interlock.rooms.protocol.participants import Participant
from interlock.rooms.room import Room
from interlock.rooms.timeline.timeline import Delivery

LEASE_S: Final = 600.0


class Lease:
    """A `Connected` that hears nothing: its owner reads history."""

    can_answer = False
    is_here = True

    def __init__(self, room: Room, participant: str) -> None:
        self.id = room.stamp().id
        self.since = 0
        self.is_over = False
        self._room = room
        self._participant = participant
        self._timer: asyncio.TimerHandle | None = None

    def deliver(self, delivery: Delivery) -> None:
        pass

    def renew(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def close(self, code: int, reason: str) -> None:
        self.end()

    def end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._room.leave(self, self._participant)


class Leases:
    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s
        self._held: dict[tuple[Room, str], Lease] = {}

    def begin(self, room: Room, who: Participant, principal: str) -> bool:
        """False where the room has no place. One that is connected needs no lease."""
        if self.renew(room, who.id):
            return True
        seat = room.seats.get(who.id)
        if seat is not None and seat.connections:
            return True
        if not room.has_place(who.id):
            return False
        lease = self._held[room, who.id] = Lease(room, who.id)
        room.join(lease, who, principal, "lease")
        lease.renew(self._lease_s)
        return True

    def renew(self, room: Room, participant: str) -> bool:
        """Whether there is one."""
        lease = self._held.get((room, participant))
        if lease is None or lease.is_over:
            self._held.pop((room, participant), None)
            return False
        lease.renew(self._lease_s)
        return True

    def end(self, room: Room, participant: str) -> bool:
        lease = self._held.pop((room, participant), None)
        if lease is None or lease.is_over:
            return False
        lease.end()
        return True

    def close(self) -> None:
        for lease in self._held.values():
            lease.end()
        self._held.clear()
