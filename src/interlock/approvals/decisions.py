"""The decision service, through which every decision of an operator or a policy engine enters the inbox.

Theory of operation. Denying requires only the role of an operator, and some approvals do too; the operation has checked
the role. All other approvals require a proof. `question` returns what the proof must sign: the id of the approval and a
digest of exactly what was shown, including the answer if several are possible. `approve` then checks these steps in
order. If a step fails, no decision is made:

1. the approval can still be approved, and the answer is one of its answers;
2. what was shown is still what would run, else the approval is void;
3. a proposal in a room can be carried out now;
4. the proof holds, or the setup code is right where there is no approver yet; a proof is used up by this;
5. the approver is not a party to what they decide;
6. the inbox takes the decision.

The decision is then passed to the capability that carries it out (`DecisionReceiver`). If that fails, the decision
stays valid and is carried out at the next start.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol import approval as records
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Move, Proof, Requires, Source, What
from interlock.approvals.protocol.digests import REVEAL, answers, signed_digest
from interlock.approvals.trust.approval_proofs import ProofVerifier, stored_proof
from interlock.core.clock import Clock
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import ProofQuestion, Verified, invalid
from interlock.wire.refusal import CONFIRMATION_VOID, INVALID_PARAMS, Refusal, ax_refusal

CODE_GONE: Final = ax_refusal(
    CONFIRMATION_VOID, "its code was made before the node was started; interlock agents unblock NAME orders a fresh one"
)
REDEFINED: Final = "the tool is defined otherwise than it was when the call was made"


class DecisionReceiver:
    """Base class of the services that check and carry out decisions of one kind. By default they allow every
    decision.
    """

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Carry out a decision that the inbox has stored. Return the approval in its new state, or a refusal."""
        return approval

    async def refresh(self) -> None:
        """Load the current state of the subject of an approval, such as a driver folder, before a decision about it is
        checked.
        """

    def is_current(self, approval: Approval) -> bool:
        """Return whether the subject of an approval, such as a driver, is still the same as when a person saw it."""
        return True

    def find_obstacle(self, approval: Approval) -> Refusal | None:
        """Return why an approval could not be carried out now, or None if it could."""
        return None

    def find_refusal(self, approval: Approval, decision: Decision, key: str | None) -> Refusal | None:
        """Return a refusal if this person may not decide, or the decision is incomplete. Otherwise return None. `key`
        is the thumbprint of the key that signed the proof.
        """
        return None


@dataclass(eq=False)
class DecisionService:
    """The service that approves and denies: it verifies the proof, stores the decision in the inbox, and has it carried
    out.

    `receivers` holds the capability that carries out decisions: by the source for agents and drivers, otherwise by the
    kind. Decisions without a receiver are only recorded.
    """

    inbox: Inbox
    clock: Clock
    aggregator_id: str
    _: KW_ONLY
    judge: ProofVerifier | None = None
    receivers: dict[Kind | Source, DecisionReceiver] = field(default_factory=dict)
    judge_setup_code: Callable[[str], Proof | Refusal] | None = None  # of the first approver
    code: Callable[[str], str | None] = lambda _: None  # the secret code or token of an approval, by its id
    # Whether an approved call would still run exactly as it was shown.
    is_call_current: Callable[[Approval], bool] = lambda approval: True

    async def approve(
        self,
        id: str,
        proof: Presented | None,
        *,
        by: str,
        reason: str | None = None,
        answer: str | None = None,
        code: str | None = None,
    ) -> Approval | Refusal:
        """Approve a pending approval. A person's proof is required, except for those approvals for which the role of an
        operator is enough.

        `answer` is the chosen answer if several are possible. `by` is the principal that delivered the decision; the
        proof identifies who made it. `code` is the setup code, which replaces the proof for the first approver.
        """
        open_ = self._find_answerable(id, answer)
        if isinstance(open_, Refusal):
            return open_
        approval, answer = open_
        receiver = self.find_receiver(approval)
        if receiver is not None:
            await receiver.refresh()
        if not self.is_current(approval):
            voided = await self.inbox.void(id, REDEFINED)
            return voided if isinstance(voided, Refusal) else records.refusal_of(voided)
        if receiver is not None and (obstacle := receiver.find_obstacle(approval)) is not None:
            return obstacle
        judged: Verified | Proof | Refusal | None = None
        if code is not None and approval.kind is Kind.ENROLMENT and self.judge_setup_code is not None:
            judged = self.judge_setup_code(code)
        elif approval.requires is not Requires.ROLE:
            judged = await self._verify_proof(approval, answer, proof)
        if isinstance(judged, Refusal):
            return judged
        verified = judged if isinstance(judged, Verified) else None
        stored = judged if isinstance(judged, Proof) else None if verified is None else stored_proof(verified)
        now = self.clock.wall()
        decision = Decision(what=What.APPROVED, by=by, at=now, reason=reason, answer=answer, proof=stored)
        key = verified.key if verified is not None else None
        if receiver is not None and (refusal := receiver.find_refusal(approval, decision, key)) is not None:
            return refusal
        return await self._decide(id, decision, verified.expires_at if verified else None)

    def find_receiver(self, approval: Approval) -> DecisionReceiver | None:
        """Return the capability that carries out a decision about this approval, or None if the decision is only
        recorded.
        """
        is_by_source = approval.source is Source.AQL or approval.is_about_driver
        return self.receivers.get(approval.source if is_by_source else approval.kind)

    def is_current(self, approval: Approval) -> bool:
        """Return whether the approved action would still be carried out exactly as it was shown to a person."""
        receiver = self.find_receiver(approval)
        return (receiver is None or receiver.is_current(approval)) and self.is_call_current(approval)

    def receive(self, source: Source, receiver: DecisionReceiver) -> None:
        """Register the receiver that carries out later decisions on approvals of this source."""
        self.receivers[source] = receiver

    def question(self, id: str, answer: str | None) -> ProofQuestion | Refusal:
        """Return the facts that a proof must sign to approve with this answer, or a refusal if that is not possible.
        With the answer REVEAL, the proof allows its signer to see the code.
        """
        open_ = self._find_answerable(id, None if answer == REVEAL else answer)
        if answer == REVEAL and not isinstance(open_, Refusal):
            return self._proof_request(open_[0], REVEAL)
        return open_ if isinstance(open_, Refusal) else self._proof_request(*open_)

    async def reveal(self, id: str, proof: Presented, *, by: str) -> str | Refusal:
        """Return the verification code or the token of an approval to an operator with a valid proof. Access to the
        machine alone is not enough.
        """
        open_ = self._find_answerable(id, None)
        if isinstance(open_, Refusal):
            return open_
        verified = await self._verify_proof(open_[0], REVEAL, proof)
        if isinstance(verified, Refusal):  # AQL-X-1
            return verified
        self.inbox.audit.record_reveal(open_[0], at=self.clock.wall(), by=by, anchor=verified.anchor)
        return self.code(id) or CODE_GONE

    async def deny(
        self, id: str, *, by: str, reason: str | None = None, answer: str | None = None
    ) -> Approval | Refusal:
        """Deny an approval. With the answer "return", the requester of a registry request is asked to revise it."""
        decision = Decision(what=What.DENIED, by=by, at=self.clock.wall(), reason=reason, answer=answer)
        approval = self.inbox.get(id)
        registry = self.receivers.get(Kind.REQUEST)
        if approval is not None and approval.kind is Kind.REQUEST and registry is not None:
            if (refused := registry.find_refusal(approval, decision, None)) is not None:
                return refused
        elif answer is not None:
            details = {"detail": "only requests to the registry can be returned"}
            return Refusal(INVALID_PARAMS, "not_returnable", details)
        return await self._decide(id, decision, redeem_until=None)

    def _find_answerable(self, id: str, answer: str | None) -> tuple[Approval, str | None] | Refusal:
        """Return an approval that can still be approved, together with the chosen answer. Return a refusal if there is
        none, or if the answer is missing or impossible.
        """
        approval = self.inbox.get(id)
        if approval is None:
            return records.UNKNOWN
        if records.find_next_status(approval.status, Move.APPROVE) is None:
            return records.refusal_of(approval)
        possible = answers(approval)
        if answer is None and len(possible) == 1:
            (answer,) = possible
        if answer not in (possible or (None,)):
            needed = f"say what the tool is: {', '.join(possible)}" if possible else "this takes a plain yes or no"
            return Refusal(INVALID_PARAMS, "answer_needed", {"detail": needed, "answers": list(possible)})
        return approval, answer

    def _proof_request(self, approval: Approval, answer: str | None) -> ProofQuestion:
        id, digest, nonce, tool = approval.id, signed_digest(approval, answer), approval.nonce or "", approval.tool
        node = self.aggregator_id
        return ProofQuestion(confirmation_id=id, call_digest=digest, nonce=nonce, tool=tool, aggregator_id=node)

    async def _verify_proof(
        self, approval: Approval, answer: str | None, proof: Presented | None
    ) -> Verified | Refusal:
        if proof is None:
            return invalid("proof_required", f"an approval needs a proof: interlock approve {approval.id} makes one")
        if self.judge is None:
            return invalid("no_anchor", "no one may approve here yet: interlock status says what to do")
        return await self.judge.judge(self._proof_request(approval, answer), proof)

    async def _decide(self, id: str, decision: Decision, redeem_until: float | None) -> Approval | Refusal:
        decided = await self.inbox.decide(id, decision, redeem_until=redeem_until)
        if isinstance(decided, Refusal):
            return decided
        receiver = self.find_receiver(decided)
        if receiver is None:
            return decided
        settled = await receiver.settle(decided)
        # A decision stays valid even if its receiver cannot store it: it is carried out at the next start.
        is_proposal = decided.kind is Kind.PROPOSAL and decided.source is not Source.AQL
        return decided if isinstance(settled, Refusal) and not is_proposal else settled
