"""Refusals that several parts of a node make: a link that cannot be used, a name that is not listed, a held call."""

from typing import Any, Final, assert_never

from interlock.core.calls.check import CheckNumber, Refused
from interlock.core.clock import rfc3339
from interlock.core.link_state import LinkState, Standing
from interlock.wire.refusal import METHOD_NOT_FOUND, TOOL_DEGRADED, Refusal

_REASONS: Final = {
    LinkState.UNAUTHORISED: "unauthorised",
    LinkState.CONNECTING: "relisting",  # AX-13.2-5
}

# MCP-AX 5.2: -32601, though MCP itself would say -32602.
NOT_FOUND: Final = Refusal(METHOD_NOT_FOUND, "tool_not_found", {"reason": "tool_not_found"})  # AX-5.2-2


def not_found_refusal(near: list[str]) -> Refusal:
    """Return the refusal of an unknown tool; `near` is similar names that the caller may use."""
    if not near:
        return NOT_FOUND
    message = f"tool_not_found: did you mean {' or '.join(near)}?"
    return Refusal(METHOD_NOT_FOUND, message, {"reason": "tool_not_found", "did_you_mean": near})


def is_not_found(refusal: Refusal) -> bool:
    return (refusal.details or {}).get("reason") == "tool_not_found"


BUSY: Final = Refusal(
    TOOL_DEGRADED, "tool_degraded", {"reason": "link_busy", "outcome": "not_sent", "retry_after_ms": 1000}
)


def own_links_full(most: int) -> Refusal:
    """Return the refusal of a client's own link; `most` is the limit of such links, for one server or for all."""
    data = {"reason": "own_links_full", "limit": most, "outcome": "not_sent", "retry_after_ms": 60_000}
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)


RELISTED: Final = Refusal(
    TOOL_DEGRADED, "tool_degraded", {"reason": "relisting", "outcome": "not_sent", "retry_after_ms": 0}
)


def maybe_unusable(standing: Standing) -> Refused | None:
    """Return the refusal of a call to a link in this state, or None if the link takes calls."""
    match standing.state:
        case LinkState.READY | LinkState.SLOW:
            return None
        case LinkState.CONNECTING | LinkState.DEGRADED | LinkState.UNAUTHORISED | LinkState.FAILED:
            return Refused(CheckNumber.AVAILABILITY, degraded_refusal(standing))
        case LinkState.STOPPED | LinkState.ASLEEP:
            return Refused(CheckNumber.AVAILABILITY, degraded_refusal(standing))
        case _:
            assert_never(standing.state)


def degraded_refusal(standing: Standing) -> Refusal:
    unauthorised = standing.state is LinkState.UNAUTHORISED
    data: dict[str, Any] = {
        "reason": _REASONS.get(standing.state, standing.gone),
        "since": rfc3339(standing.since_wall),
        "retry_after_ms": standing.retry_after_ms,
        "mcpax_code": -32002,  # the draft's own number, which 2026-07-28 does not let us send as the code
    }
    if unauthorised:  # why exactly is for the operator: it may name hosts
        data["next"] = "an operator looks at it: interlock status"
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)  # AX-13.2-2
