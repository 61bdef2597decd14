"""What a client hears of a call that a link lost, and the detail that stays inside."""

from interlock.core.clock import rfc3339
from interlock.core.link_state import UNREACHABLE
from interlock.links.pipes import Undelivered
from interlock.wire.jsonrpc.errors import TOOL_DEGRADED, Fault


class LostFault(Fault, frozen=True):
    """A lost link, with the detail that stays inside: it may name hosts. The client hears what it can act on."""

    detail: str = ""
    what: Undelivered | None = None


def lost_fault(
    detail: str,
    outcome: str,
    *,
    wall: float,
    retry_after_ms: int,
    what: Undelivered | None = None,
    reason: str = UNREACHABLE,
) -> LostFault:
    """`outcome`: not_sent, or unknown where the server may have acted."""
    data = {
        "reason": reason,  # AX-13.1-4
        "since": rfc3339(wall),
        "outcome": outcome,  # AX-13.1-4
        "retry_after_ms": retry_after_ms,
        "mcpax_code": -32002,
    }
    return LostFault(TOOL_DEGRADED, "tool_degraded", data, detail, what)


def unauthorised_fault(what: Undelivered) -> LostFault:
    data = {"reason": "unauthorised", "outcome": "not_sent", "mcpax_code": -32002}
    return LostFault(TOOL_DEGRADED, "tool_degraded", data, what.detail, what)
