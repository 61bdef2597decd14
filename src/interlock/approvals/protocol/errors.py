"""The refusals around an approval, each with a number and a name (MCP-AX 11.3 names none of them).

asked too late or twice   confirmation_unknown, confirmation_expired, confirmation_used
not good any more         confirmation_void, confirmation_denied
proof                     proof_invalid
asked too often           budget_exceeded (the draft's own number, 11.4)
store                     unavailable: nothing was done
"""

from typing import Any, Final

from interlock.approvals.protocol.approval import Approval, Kind, Status
from interlock.wire.refusal import (
    CONFIRMATION_DENIED,
    CONFIRMATION_EXPIRED,
    CONFIRMATION_UNKNOWN,
    CONFIRMATION_USED,
    CONFIRMATION_VOID,
    UNAVAILABLE,
    Refusal,
    RefusalCode,
    ax_refusal,
)

UNKNOWN: Final = ax_refusal(
    CONFIRMATION_UNKNOWN, "there is no such approval, or it ended long ago; make the call again"
)

_REFUSALS: Final[dict[Status, tuple[RefusalCode, str, str]]] = {
    Status.PENDING: (CONFIRMATION_UNKNOWN, "not decided yet; wait for an operator", "pending"),
    Status.APPROVED: (CONFIRMATION_USED, "it is approved already; make the identical call", "already_approved"),
    Status.USED: (CONFIRMATION_USED, "the call it was for is under way", "used"),
    Status.DONE: (CONFIRMATION_USED, "the call it was for has been made", "done"),
    Status.FAILED: (CONFIRMATION_USED, "the call it was for has been made, and failed", "failed"),
    Status.UNKNOWN: (
        CONFIRMATION_USED,
        "the call it was for was sent or was about to be; look at what happened before making it again",
        "unknown",
    ),
    Status.EXPIRED: (CONFIRMATION_EXPIRED, "it was not decided, or not used, in time; make the call again", "expired"),
    Status.VOID: (CONFIRMATION_VOID, "what it was for has changed; make the call again", "void"),
    Status.WITHDRAWN: (CONFIRMATION_VOID, "the caller withdrew it", "withdrawn"),
    Status.DENIED: (CONFIRMATION_DENIED, "an operator said no", "denied"),
}

_OF_PROPOSALS: Final = {
    CONFIRMATION_USED: ("already_claimed", "somebody has it carried out already"),
    CONFIRMATION_EXPIRED: ("proposal_expired", "no one decided on the proposal in time; it may be made again"),
}


def refusal_of(approval: Approval) -> Refusal:
    """Return why an approval in its present status cannot be decided or used."""
    code, why, reason = _REFUSALS[approval.status]
    if approval.kind is Kind.PROPOSAL and code in _OF_PROPOSALS:  # MCPx: X-4.2.1-5, X-7.3-4
        name, why = _OF_PROPOSALS[code]
        return Refusal(code, name, {"detail": why, "reason": reason, "confirmation_id": approval.id})
    data: dict[str, Any] = {"reason": reason, "confirmation_id": approval.id}
    if approval.status is Status.DENIED and approval.decision is not None and approval.decision.reason:
        data["said"] = approval.decision.reason
    if approval.status in (Status.VOID, Status.UNKNOWN, Status.FAILED) and approval.outcome:
        data["outcome"] = approval.outcome
    return ax_refusal(code, why, **data)


def settled_refusal(status: Status) -> Refusal:
    """Return why an approval of this status can no longer be decided."""
    code, why, reason = _REFUSALS[status]
    return ax_refusal(code, why, reason=reason)


OF_ANOTHER_REPLICA: Final = Refusal(
    UNAVAILABLE,
    "unavailable",
    {
        "reason": "other_replica",
        "detail": "it is about what another replica of this node holds: its drivers, its configuration, or an agent "
        "that works there; decide it at that replica",
    },
)
UNAVAILABLE_NOW: Final = Refusal(
    UNAVAILABLE, "unavailable", {"reason": "store", "detail": "the node's store cannot be written; nothing was done"}
)
