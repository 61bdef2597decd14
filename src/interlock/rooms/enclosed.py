"""MCP messages that this node says in a room, each in an envelope that every receiver can read, and what a client is
told of one that the room did not publish."""

from interlock.ax.protocol.errors import SCOPE_DENIED, refusal
from interlock.rooms.protocol.enforcement import MCP
from interlock.rooms.protocol.envelope import Envelope, decode_untrusted, encode
from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.room import Room
from interlock.wire.jsonrpc.errors import INVALID_PARAMS, TOOL_DEGRADED, UNAVAILABLE, Fault


def enclose(
    room: Room, message: bytes, sender: str, to: tuple[str, ...], correlation_id: str | None = None
) -> Envelope | Refusal:
    """Judged as if it had come from outside: size and depth hold for everyone."""
    stamp = room.stamp()
    made = Envelope(
        id=stamp.id, ts=stamp.ts, sender=sender, to=to, kind=MCP, correlation_id=correlation_id, payload=message
    )
    return decode_untrusted(encode(made), room.settings.max_envelope_bytes)


def fault_of(refused: Refusal) -> Fault:
    details = refused.details or {}
    match refused.code:
        case "privilege_violation":
            return refusal(SCOPE_DENIED, "you are restricted in this room", reason=refused.code)
        case "rate_limited":
            data = {
                "reason": refused.code,
                "outcome": "not_sent",
                "retry_after_ms": details.get("retry_after_ms", 1000),
            }
            return Fault(TOOL_DEGRADED, "tool_degraded", data)
        case "unavailable":
            return Fault(UNAVAILABLE, "unavailable", {"reason": refused.code, "detail": refused.message})
        case _:
            return Fault(INVALID_PARAMS, refused.message, {"reason": refused.code, **details})
