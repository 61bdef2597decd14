"""Whom the links of a room are for: the clients that may join it (X-10.1-3)."""

from interlock.ax.protocol.errors import SCOPE_DENIED, refusal
from interlock.rooms.protocol.participants import Participant, Privilege
from interlock.rooms.room import Room
from interlock.rooms.rooms import Rooms
from interlock.wire.jsonrpc.errors import Fault


class RoomMembers:
    def __init__(self, rooms: Rooms, room: Room) -> None:
        self._rooms = rooms
        self._room = room

    @property
    def name(self) -> str:
        return self._room.topic

    def admits(self, principal: str) -> bool:
        return self._rooms.may_join(self._room, principal)

    def maybe_refusal(self, principal: str) -> Fault | None:
        if self.speaker(principal).privilege is Privilege.FULL:
            return None
        why = "you are restricted in this room: propose the call, and one who is full there carries it out"
        return refusal(SCOPE_DENIED, why, reason="privilege_violation")

    def speaker(self, principal: str) -> Participant:
        """Who a client is in the room, present or not."""
        return self._rooms.participant(self._room, principal)
