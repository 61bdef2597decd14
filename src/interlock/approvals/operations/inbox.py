"""Operations on the inbox: list approvals, show one in full, follow changes, and decide.

Every operator credential may read approvals. The roles operator and admin may deny. Approving requires what the
approval states: usually a proof, which only the decision service verifies, or the role of an operator.

No credential is shown: an approval describes the proof for its decision, but does not contain the token. The arguments
of a held call are shown only in the full view of its approval, never in lists, events or notifications.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from msgspec import Raw
from msgspec.structs import asdict

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
    Approvals,
    ApprovalSummary,
    DecideApproval,
    Decision,
    PasskeyRequest,
    ProofFacts,
    RevealCode,
    RevealedCode,
    SignApproval,
    SignedProof,
)
from interlock.approvals.api import Approval as ApprovalView
from interlock.approvals.audit import subject_name
from interlock.approvals.decisions import DecisionService
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Requires, Status
from interlock.approvals.protocol.digests import answers
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.operator_keys import OperatorKeyService, TooOften
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.core.clock import Clock, rfc3339
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

LISTED_MAX: Final = 1000
PREFIX_MIN: Final = 4  # characters of an id that may name it

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
    """Handlers of the operations on the inbox. `ways_out` returns suggestions for being asked less
    often about a call.
    """

    inbox: Inbox
    decisions: DecisionService
    clock: Clock
    anchors: Anchors
    passkeys: PasskeyService
    keys: OperatorKeyService
    _: KW_ONLY
    aggregator_id: str
    ways_out: Callable[[Approval], tuple[str, ...]] = lambda _: ()

    @handles(LIST_APPROVALS)
    def list_all(self, kind: str | None, status: str) -> Approvals:
        """Return the newest approvals of this kind and status, up to the maximum of one reply."""
        statuses = frozenset(Status) if status == "all" else frozenset((Status(status),))
        approvals = self.inbox.listed(statuses, None if kind is None else Kind(kind))
        return Approvals(approvals=tuple(map(self._summary, approvals[-LISTED_MAX:])), total=len(approvals))

    @handles(FOLLOW_APPROVALS)
    async def follow(self) -> AsyncGenerator[ApprovalSummary, None]:
        """Yield all waiting approvals, then every approval that changes."""
        listener = self.inbox.listen()
        try:
            for approval in self.inbox.waiting()[-LISTED_MAX:]:
                yield self._summary(approval)
            async for approval in listener:
                yield self._summary(approval)
        finally:
            listener.close()

    @handles(GET_APPROVAL)
    def get(self, id: str) -> ApprovalView:
        """Return an approval by its id or the first characters of the id. Raise NotFound if there is none, and Refused
        if several match.
        """
        return self._view(self._find(id))

    @handles(DECIDE_APPROVAL)
    async def decide(self, id: str, body: DecideApproval, by: str, roles: frozenset[str]) -> ApprovalView:
        """Approve, deny or return what waits. Raises NotFound, Refused."""
        check_may_decide(roles)
        approval = self._find(id)
        if body.decision != "approve":
            answer = "return" if body.decision == "return" else None
            decided = await self.decisions.deny(approval.id, by=by, reason=body.reason, answer=answer)
        else:
            if approval.requires is Requires.ROLE and "operator" not in roles:
                raise refused_as(ROLE_REQUIRED, "to approve this takes an operator's token")
            proof = read_proof_untrusted(body.proof) if body.proof else None
            if isinstance(proof, Refusal):
                raise decision_refused(proof, id)
            decided = await self.decisions.approve(
                approval.id, proof, by=by, reason=body.reason, answer=body.tool_class, code=body.code
            )
        if isinstance(decided, Refusal):
            raise decision_refused(decided, id)
        return self._view(decided)

    @handles(REVEAL_CODE)
    async def reveal_code(self, id: str, body: RevealCode, by: str) -> RevealedCode:
        """Return the code of a challenge, or the token of a start or step. Raises NotFound, Refused."""
        approval = self._find(id)
        code = await self.decisions.reveal(approval.id, Presented(token=body.proof), by=by)
        if isinstance(code, Refusal):
            raise decision_refused(code, id)
        return RevealedCode(approval_id=approval.id, code=code)

    @handles(ASK_PASSKEY)
    def ask_passkey(self, id: str, answer: str | None) -> PasskeyRequest:
        """Return the options with which a browser asks a passkey to sign an approval. Raise NotFound or Refused if it
        cannot be approved.
        """
        question = self.decisions.question(self._find(id).id, answer)
        request = question if isinstance(question, Refusal) else self.passkeys.request(question)
        if isinstance(request, Refusal):
            raise decision_refused(request, id)
        return request

    @handles(SIGN_APPROVAL)
    async def sign(self, id: str, body: SignApproval, by: str) -> SignedProof:
        """Return a proof by an operator key of this machine. Raises NotFound, Refused."""
        question = self.decisions.question(self._find(id).id, body.answer)
        if isinstance(question, Refusal):
            raise decision_refused(question, id)
        proof = await self.keys.sign(question, body.key, body.passphrase, by=by)
        if isinstance(proof, Refusal):
            raise decision_refused(proof, id)
        return SignedProof(proof=check_attempts(proof))

    def _find(self, reference: str) -> Approval:
        exact = self.inbox.get(reference)
        if exact is not None:
            return exact
        matches = self.inbox.find_by_prefix(reference.lower()) if len(reference) >= PREFIX_MIN else []
        candidates = [approval for approval in matches if approval.is_live] or matches
        if not candidates:
            raise NotFound("approval", reference)
        if len(candidates) > 1:
            message = "several approvals have an id that begins like this; give more of it"
            raise refused_as(AMBIGUOUS_ID, message, {"ids": [approval.id for approval in candidates[:10]]})
        return candidates[0]

    def _summary(self, approval: Approval) -> ApprovalSummary:
        deadline, decision = approval.deadline, approval.decision
        proof = None if decision is None else decision.proof
        return ApprovalSummary(
            id=approval.id,
            kind=approval.kind.value,
            source=approval.source.value,
            status=approval.status.value,
            requested_by=approval.requested_by,
            agent=approval.agent,
            room=approval.room,
            tool=approval.tool,
            name=subject_name(approval),
            reason=approval.reason,
            requires=approval.requires.value,
            created_at=rfc3339(approval.created_at),
            expires_at=None if approval.expires_at is None else rfc3339(approval.expires_at),
            redeem_by=None if approval.redeem_by is None else rfc3339(approval.redeem_by),
            left_s=None if deadline is None else max(0, round(deadline - self.clock.wall())),
            decision=None
            if decision is None
            else Decision(
                what=decision.what.value,
                by=decision.by,
                at=rfc3339(decision.at),
                reason=decision.reason,
                answer=decision.answer,
                proof=None if proof is None else ProofFacts(type=proof.type, anchor=proof.anchor, jti=proof.jti),
            ),
            outcome=approval.outcome,
            url=f"{self.passkeys.url()}/approvals/{approval.id}",
        )

    def _view(self, approval: Approval) -> ApprovalView:
        return ApprovalView(
            **asdict(self._summary(approval)),
            proposal_id=approval.proposal_id,
            target=approval.target,
            method=approval.method,
            params=approval.params if approval.params is not None else Raw(b"null"),
            route=approval.route,
            capability=approval.capability,
            digest=approval.digest,
            tool_digest=approval.tool_digest,
            nonce=approval.nonce,
            factors=approval.factors,
            gating_link=approval.gating_link,
            answers=answers(approval),
            approvers=self.anchors.approver_names(approval.tool),
            signing_keys=self.keys.names(),
            aggregator_id=self.aggregator_id,
            passkey_origin=self.passkeys.find_origin(approval.tool),
            ways_out=self.ways_out(approval) if approval.status is Status.PENDING else (),
        )


def check_may_decide(roles: frozenset[str]) -> None:
    """Raise Refused unless one of the roles may decide on approvals."""
    if roles.isdisjoint(("operator", "admin")):
        raise refused_as(ROLE_REQUIRED, "this credential may look and not decide; use one of an operator's")


def check_attempts(proof: str | TooOften) -> str:
    """Return the proof unchanged. Raise Refused if it is TooOften instead, because of too many wrong passphrases."""
    if isinstance(proof, TooOften):
        message = f"too many wrong passphrases; try again in {proof.wait_s} s"
        raise refused_as(TOO_OFTEN, message, {"wait_s": proof.wait_s})
    return proof


def decision_refused(refusal: Refusal, id: str) -> Refused:
    """Return the exception for a decision that the inbox refused."""
    data = refusal.details or {}
    error = "proof_required" if data.get("reason") == "proof_required" else refusal.message
    if refusal.code == INVALID_PARAMS and error not in _NAMED:
        error = INVALID_BODY.name
    status = 403 if error == "self_approval" else _STATUSES.get(refusal.code, 409)
    message = data.get("detail") or refusal.message
    return Refused(error, message, {"approval": id, "code": refusal.number, **data}, status=status)


def signature_refused(refusal: Refusal) -> Refused:
    """Return the exception for a grant or a list of classes whose signature was refused."""
    data = refusal.details or {}
    error = INVALID_BODY.name if refusal.code == INVALID_PARAMS and " " in refusal.message else refusal.message
    status = 409 if refusal.code == SCOPE_DENIED else _STATUSES.get(refusal.code, 409)
    return Refused(error, data.get("detail") or refusal.message, {"code": refusal.number, **data}, status=status)
