"""The inbox as the operator endpoint shows it, with everything a person or a signer needs to decide.

No credential is among them: what an approval holds of a proof is its name, not the token. The arguments of a held call
are shown in full in the view of that one approval, and never in lists, events or notifications.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from msgspec import Raw
from msgspec.structs import asdict

from interlock.approvals.api import Approval as ApprovalView
from interlock.approvals.api import Approvals, ApprovalSummary, Decision, PasskeyRequest, ProofFacts, RevealedCode
from interlock.approvals.audit import subject_name
from interlock.approvals.decisions import DecisionService
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Status
from interlock.approvals.protocol.digests import answers
from interlock.approvals.protocol.errors import UNKNOWN
from interlock.approvals.trust.operator_keys import OperatorKeyService, TooOften
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.core.clock import Clock, rfc3339
from interlock.gate.protocol.held_call import Presented
from interlock.wire.refusal import Refusal

LISTED_MAX: Final = 1000
PREFIX_MIN: Final = 4  # characters of an id that may name it


class Ambiguous(Exception):
    """Several ids begin like this."""

    def __init__(self, ids: list[str]) -> None:
        super().__init__("several approvals have an id that begins like this")
        self.ids = ids


@dataclass(eq=False)
class ApprovalViews:
    """Approvals as the operator API shows them. `ways_out` returns what a person can do to be asked less often."""

    inbox: Inbox
    deciding: DecisionService
    clock: Clock
    _: KW_ONLY
    aggregator_id: str
    url: Callable[[], str]
    passkeys: PasskeyService | None = None
    keys: OperatorKeyService | None = None
    approver_names: Callable[[str], Sequence[str]] = lambda _: ()
    ways_out: Callable[[Approval], tuple[str, ...]] = lambda _: ()

    def list_all(self, kind: Kind | None, statuses: frozenset[Status]) -> Approvals:
        """Return the newest approvals, as many as one answer holds."""
        approvals = self.inbox.listed(statuses, kind)
        return Approvals(
            approvals=tuple(self._summary(approval) for approval in approvals[-LISTED_MAX:]), total=len(approvals)
        )

    def maybe_one(self, reference: str) -> ApprovalView | None:
        """Return the approval of this id, or of an id that starts with this text. Raise Ambiguous."""
        approval = self._maybe_find(reference)
        return None if approval is None else self._whole(approval)

    async def approve(
        self,
        reference: str,
        proof: Presented | None,
        *,
        by: str,
        reason: str | None,
        answer: str | None,
        code: str | None = None,
    ) -> ApprovalView | Refusal:
        approval = self._maybe_find(reference)
        decided = await self.deciding.approve(
            approval.id if approval else reference, proof, by=by, reason=reason, answer=answer, code=code
        )
        return decided if isinstance(decided, Refusal) else self._whole(decided)

    async def reveal(self, reference: str, proof: Presented, *, by: str) -> RevealedCode | Refusal:
        approval = self._maybe_find(reference)
        code = await self.deciding.reveal(approval.id if approval else reference, proof, by=by)
        if isinstance(code, Refusal) or approval is None:
            return code if isinstance(code, Refusal) else UNKNOWN
        return RevealedCode(approval_id=approval.id, code=code)

    async def deny(
        self, reference: str, *, by: str, reason: str | None, answer: str | None = None
    ) -> ApprovalView | Refusal:
        approval = self._maybe_find(reference)
        decided = await self.deciding.deny(approval.id if approval else reference, by=by, reason=reason, answer=answer)
        return decided if isinstance(decided, Refusal) else self._whole(decided)

    def passkey_request(self, reference: str, answer: str | None) -> PasskeyRequest | Refusal:
        """Return what a browser asks a passkey to sign to approve this."""
        approval = self._maybe_find(reference)
        if approval is None or self.passkeys is None:
            return UNKNOWN
        question = self.deciding.question(approval.id, answer)
        return question if isinstance(question, Refusal) else self.passkeys.request(question)

    async def sign(
        self, reference: str, answer: str | None, key: str | None, passphrase: str, *, by: str
    ) -> str | Refusal | TooOften:
        """Sign a proof for this approval with a key of this machine that a person unlocked."""
        approval = self._maybe_find(reference)
        if approval is None or self.keys is None:
            return UNKNOWN
        question = self.deciding.question(approval.id, answer)
        return question if isinstance(question, Refusal) else await self.keys.sign(question, key, passphrase, by=by)

    async def changes(self) -> AsyncGenerator[ApprovalSummary, None]:
        """Yield what waits now, then every change."""
        listener = self.inbox.listen()
        try:
            for approval in self.inbox.waiting()[-LISTED_MAX:]:
                yield self._summary(approval)
            async for approval in listener:
                yield self._summary(approval)
        finally:
            listener.close()

    def _maybe_find(self, reference: str) -> Approval | None:
        if (exact := self.inbox.get(reference)) is not None or len(reference) < PREFIX_MIN:
            return exact
        matches = self.inbox.find_by_prefix(reference.lower())
        live = [approval for approval in matches if approval.is_live] or matches
        if len(live) > 1:
            raise Ambiguous([approval.id for approval in live[:10]])
        return live[0] if live else None

    def _summary(self, approval: Approval) -> ApprovalSummary:
        deadline = approval.deadline
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
            expires_at=_time(approval.expires_at),
            redeem_by=_time(approval.redeem_by),
            left_s=None if deadline is None else max(0, round(deadline - self.clock.wall())),
            decision=_decision(approval),
            outcome=approval.outcome,
            url=f"{self.url()}/approvals/{approval.id}",
        )

    def _whole(self, approval: Approval) -> ApprovalView:
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
            approvers=tuple(self.approver_names(approval.tool)),
            signing_keys=() if self.keys is None else self.keys.names(),
            aggregator_id=self.aggregator_id,
            passkey_origin=None if self.passkeys is None else self.passkeys.maybe_origin(approval.tool),
            ways_out=self.ways_out(approval) if approval.status is Status.PENDING else (),
        )


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)


def _decision(approval: Approval) -> Decision | None:
    decision = approval.decision
    if decision is None:
        return None
    proof = decision.proof
    return Decision(
        what=decision.what.value,
        by=decision.by,
        at=rfc3339(decision.at),
        reason=decision.reason,
        answer=decision.answer,
        proof=None if proof is None else ProofFacts(type=proof.type, anchor=proof.anchor, jti=proof.jti),
    )
