"""Operations on the inbox: what waits, one approval in full, every change, and the decision.

To look takes any credential of an operator. To deny takes the role of an operator or an admin. To approve takes what
the approval requires: mostly a proof, which only the decision service verifies; or the role of an operator.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from interlock.approvals.api import (
    AMBIGUOUS_ID,
    ASK_PASSKEY,
    DECIDE_APPROVAL,
    FOLLOW_APPROVALS,
    GET_APPROVAL,
    LIST_APPROVALS,
    REVEAL_CODE,
    SIGN_APPROVAL,
    TOO_OFTEN,
    Approval,
    Approvals,
    ApprovalSummary,
    DecideApproval,
    PasskeyRequest,
    RevealCode,
    RevealedCode,
    SignApproval,
    SignedProof,
)
from interlock.approvals.protocol.approval import Kind, Requires, Status
from interlock.approvals.trust.operator_keys import TooOften
from interlock.approvals.views import Ambiguous, ApprovalViews
from interlock.core.operator_errors import refused_as
from interlock.gate.protocol.held_call import Presented, read_proof_untrusted
from interlock.operator.operation import INVALID_BODY, ROLE_REQUIRED, handles
from interlock.wire.refusal import (
    CONFIRMATION_UNKNOWN,
    INVALID_PARAMS,
    PROOF_INVALID,
    SCOPE_DENIED,
    UNAVAILABLE,
    NotFound,
    Refusal,
    Refused,
)

# Errors about the body of a decision that have a name of their own.
_NAMED: Final = frozenset(["answer_needed", "reason_required", "self_approval", "not_returnable", "unknown_request"])
_STATUSES: Final = {
    CONFIRMATION_UNKNOWN: 404,
    PROOF_INVALID: 403,
    SCOPE_DENIED: 403,
    INVALID_PARAMS: 400,
    UNAVAILABLE: 503,
}


@dataclass(eq=False)
class InboxOperations:
    """Operations on the inbox."""

    approvals: ApprovalViews

    @handles(LIST_APPROVALS)
    def list_all(self, kind: str | None, status: str) -> Approvals:
        statuses = frozenset(Status) if status == "all" else frozenset((Status(status),))
        return self.approvals.list_all(None if kind is None else Kind(kind), statuses)

    @handles(FOLLOW_APPROVALS)
    def follow(self) -> AsyncGenerator[ApprovalSummary, None]:
        """Yield what waits now, then every change."""
        return self.approvals.changes()

    @handles(GET_APPROVAL)
    def get(self, id: str) -> Approval:
        """Return an approval by its id or the beginning of it. Raises NotFound, Refused."""
        return find_approval(self.approvals, id)

    @handles(DECIDE_APPROVAL)
    async def decide(self, id: str, body: DecideApproval, by: str, roles: frozenset[str]) -> Approval:
        """Approve, deny or return what waits. Raises NotFound, Refused."""
        check_may_decide(roles)
        approval = find_approval(self.approvals, id)
        if body.decision == "approve" and approval.requires == Requires.ROLE.value and "operator" not in roles:
            raise refused_as(ROLE_REQUIRED, "to approve this takes an operator's token")
        decided = await self._record_decision(approval.id, body, by)
        if isinstance(decided, Refusal):
            raise decision_refused(decided, id)
        return decided

    async def _record_decision(self, id: str, body: DecideApproval, by: str) -> Approval | Refusal:
        if body.decision != "approve":
            answer = "return" if body.decision == "return" else None
            return await self.approvals.deny(id, by=by, reason=body.reason, answer=answer)
        proof = read_proof_untrusted(body.proof) if body.proof else None
        if isinstance(proof, Refusal):
            return proof
        return await self.approvals.approve(
            id, proof, by=by, reason=body.reason, answer=body.tool_class, code=body.code
        )

    @handles(REVEAL_CODE)
    async def reveal_code(self, id: str, body: RevealCode, by: str) -> RevealedCode:
        """Return the code of a challenge, or the token of a start or step. Raises NotFound, Refused."""
        find_approval(self.approvals, id)
        revealed = await self.approvals.reveal(id, Presented(token=body.proof), by=by)
        if isinstance(revealed, Refusal):
            raise decision_refused(revealed, id)
        return revealed

    @handles(ASK_PASSKEY)
    def ask_passkey(self, id: str, answer: str | None) -> PasskeyRequest:
        """Return what a browser asks a passkey, for it to approve this. Raises NotFound, Refused."""
        find_approval(self.approvals, id)
        request = self.approvals.passkey_request(id, answer)
        if isinstance(request, Refusal):
            raise decision_refused(request, id)
        return request

    @handles(SIGN_APPROVAL)
    async def sign(self, id: str, body: SignApproval, by: str) -> SignedProof:
        """Return a proof by an operator key of this machine. Raises NotFound, Refused."""
        find_approval(self.approvals, id)
        proof = await self.approvals.sign(id, body.answer, body.key, body.passphrase, by=by)
        if isinstance(proof, Refusal):
            raise decision_refused(proof, id)
        return SignedProof(proof=check_attempts(proof))


def find_approval(approvals: ApprovalViews, id: str) -> Approval:
    """Return an approval by its id or the beginning of it. Raises NotFound, Refused."""
    try:
        approval = approvals.maybe_one(id)
    except Ambiguous as error:
        raise refused_as(AMBIGUOUS_ID, f"{error}; give more of it", {"ids": error.ids}) from None
    if approval is None:
        raise NotFound("approval", id)
    return approval


def check_may_decide(roles: frozenset[str]) -> None:
    """Raise Refused if the credential may look and not decide."""
    if roles.isdisjoint(("operator", "admin")):
        raise refused_as(ROLE_REQUIRED, "this credential may look and not decide; use one of an operator's")


def check_attempts(proof: str | TooOften) -> str:
    """Return a proof. Raises Refused if there were too many wrong passphrases."""
    if isinstance(proof, TooOften):
        message = f"too many wrong passphrases; try again in {proof.wait_s} s"
        raise refused_as(TOO_OFTEN, message, {"wait_s": proof.wait_s})
    return proof


def decision_refused(refusal: Refusal, id: str) -> Refused:
    """Return the exception for a decision that the inbox does not take."""
    data = refusal.details or {}
    error = "proof_required" if data.get("reason") == "proof_required" else refusal.message
    if refusal.code == INVALID_PARAMS and error not in _NAMED:
        error = INVALID_BODY.name
    status = 403 if error == "self_approval" else _STATUSES.get(refusal.code, 409)
    message = data.get("detail") or refusal.message
    return Refused(error, message, {"approval": id, "code": refusal.number, **data}, status=status)


def signature_refused(refusal: Refusal) -> Refused:
    """Return the exception for a grant or a list of classes that cannot be signed."""
    data = refusal.details or {}
    error = INVALID_BODY.name if refusal.code == INVALID_PARAMS and " " in refusal.message else refusal.message
    status = 409 if refusal.code == SCOPE_DENIED else _STATUSES.get(refusal.code, 409)
    return Refused(error, data.get("detail") or refusal.message, {"code": refusal.number, **data}, status=status)
