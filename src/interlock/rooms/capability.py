"""Rooms of agents, people and robots (MCPx)."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="rooms",
    sections=("rooms", "room"),
    operations=("interlock.rooms.api:OPERATIONS",),
    commands={"rooms": Command("interlock.rooms.cli:app", "room")},
    parts="interlock.rooms.parts:RoomParts",
)
