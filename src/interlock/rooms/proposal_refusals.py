"""Why a proposal is not decided or carried out, in the words of rooms and in those of the inbox."""

from interlock.approvals.protocol.approval import Approval
from interlock.approvals.protocol.state import Status
from interlock.ax.protocol.errors import CONFIRMATION_EXPIRED, CONFIRMATION_VOID, SCOPE_DENIED
from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.protocol.proposals import STATUS
from interlock.wire.jsonrpc.errors import UNAVAILABLE, Fault


def refuse_own(approval: Approval, who: str, principal: str, id: str | None) -> Refusal | None:
    if who != approval.agent and principal != approval.requested_by:
        return None
    return Refusal("self_approval", "a proposal is not carried out by its own proposer", id=id)


def refuse_over(approval: Approval, id: str) -> Refusal | None:
    if approval.status is Status.PENDING:
        return None
    status = STATUS[approval.status].value
    if approval.status is Status.EXPIRED:
        return Refusal("proposal_expired", "the time of the proposal is over", {"status": status}, id)
    return Refusal("already_claimed", f"the proposal is {status} already", {"status": status}, id)


def as_fault(refusal: Refusal) -> Fault:
    is_barred = refusal.code in ("self_approval", "privilege_violation")
    data = {"reason": refusal.code, "detail": refusal.message}
    return Fault(SCOPE_DENIED if is_barred else CONFIRMATION_VOID, refusal.code, data)


def as_refusal(fault: Fault, id: str) -> Refusal:
    if fault.code == UNAVAILABLE:
        return Refusal("unavailable", "the inbox cannot be written; nothing was done", id=id)
    detail = str((fault.data or {}).get("detail", fault.message))
    return Refusal("proposal_expired" if fault.code == CONFIRMATION_EXPIRED else "already_claimed", detail, id=id)


def unknown(proposal_id: str) -> Refusal:
    return Refusal("unknown_proposal", "no proposal of that id is tracked in this room", id=proposal_id)


def restricted(proposal_id: str | None) -> Refusal:
    return Refusal("privilege_violation", "only full participants decide on proposals", id=proposal_id)
