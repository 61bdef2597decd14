"""What a client is told of an envelope of its call that a room did not publish."""

from interlock.protocol.ax.errors import SCOPE_DENIED, refusal
from interlock.protocol.jsonrpc.errors import INVALID_PARAMS, TOOL_DEGRADED, UNAVAILABLE, Fault
from interlock.protocol.rooms.errors import Refusal


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
