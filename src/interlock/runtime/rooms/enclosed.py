"""MCP messages that this node says in a room, each in an envelope that every receiver can read."""

from interlock.protocol.rooms.enforcement import MCP
from interlock.protocol.rooms.envelope import Envelope, decode_untrusted, encode
from interlock.protocol.rooms.errors import Refusal
from interlock.runtime.rooms.room import Room


def enclose(
    room: Room, message: bytes, sender: str, to: tuple[str, ...], correlation_id: str | None = None
) -> Envelope | Refusal:
    """Judged as if it had come from outside: size and depth hold for everyone."""
    stamp = room.stamp()
    made = Envelope(
        id=stamp.id, ts=stamp.ts, sender=sender, to=to, kind=MCP, correlation_id=correlation_id, payload=message
    )
    return decode_untrusted(encode(made), room.settings.max_envelope_bytes)
