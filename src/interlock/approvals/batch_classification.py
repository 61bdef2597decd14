"""The classification of many tools with one signature: each entry is judged by itself, and what does not hold is named.

A proof is over the whole list. For each of its tools the definition must still be the one that was signed, and the
signer must be entitled to approve that tool; the others are classified all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from interlock.approvals.classifications import Ruling, Says
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Proof, Status, What
from interlock.approvals.protocol.classification import KIND, ClassEntry, classification_digest
from interlock.approvals.protocol.digests import answers
from interlock.approvals.protocol.errors import UNAVAILABLE_NOW
from interlock.approvals.tool_definitions import Definitions
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.catalog.routes import Route
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import ProofQuestion
from interlock.store.ports import StoreError
from interlock.wire.refusal import INVALID_PARAMS, Refusal

CHANGED: Final = "its definition changed since"
PENDING_CHANGE: Final = "its server changed the definition, which is to be accepted first: interlock approvals"
NOT_LISTED: Final = "no such tool is listed"
NOT_ENTITLED: Final = "the signer may not approve it"
NOT_OURS: Final = "the node below that lists it has said what it is"


class LeftOut(msgspec.Struct, frozen=True):
    tool: str
    why: str


class BatchResult(msgspec.Struct, frozen=True):
    classified: tuple[ClassEntry, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(eq=False)
class BatchClassification:
    """The service that classifies many tools with one signature. `find` returns the route of a listed name."""

    definitions: Definitions
    inbox: Inbox
    judge: ProofVerifier
    recorder: Recorder
    clock: Clock
    find: Callable[[str], Route | None]
    _: KW_ONLY
    aggregator_id: str

    def question(self, id: str, entries: Sequence[ClassEntry]) -> ProofQuestion | Refusal:
        """Return what a proof must sign. The proof names the first tool; `sign` checks all of them."""
        tools = [entry.tool for entry in entries]
        if not tools or len(set(tools)) < len(tools):
            return Refusal(INVALID_PARAMS, "invalid_body", {"detail": "each tool is named once, and at least one is"})
        return ProofQuestion(
            confirmation_id=id,
            call_digest=classification_digest(id, entries),
            nonce="",
            tool=tools[0],
            aggregator_id=self.aggregator_id,
        )

    async def sign(self, id: str, entries: Sequence[ClassEntry], proof: Presented, *, by: str) -> BatchResult | Refusal:
        question = self.question(id, entries)
        if isinstance(question, Refusal):
            return question
        verified = await self.judge.judge_for_any(question, [entry.tool for entry in entries], proof)
        if isinstance(verified, Refusal):
            return verified
        stored_proof = Proof(type=verified.type, anchor=verified.anchor, jti=verified.jti, key=verified.key)
        done: list[ClassEntry] = []
        left: list[LeftOut] = []
        segments: dict[str, None] = {}
        try:
            for entry in entries:
                route = self.find(entry.tool)
                why = self._maybe_hindrance(entry, route, stored_proof)
                if why is not None or route is None:
                    left.append(LeftOut(entry.tool, why or NOT_LISTED))
                    continue
                await self._rule(entry, stored_proof, id, by)
                done.append(entry)
                segments[route.link.segment] = None
        except StoreError:
            return UNAVAILABLE_NOW
        finally:
            for segment in segments:
                await self.definitions.publish(segment)
        return BatchResult(tuple(done), tuple(left))

    def _maybe_hindrance(self, entry: ClassEntry, route: Route | None, proof: Proof) -> str | None:
        if route is None:
            return NOT_LISTED
        if route.link.offer.is_aggregator:
            return NOT_OURS
        if route.digest != entry.digest:
            return CHANGED
        waiting = self._maybe_waiting(entry)
        if waiting is not None and entry.tool_class not in answers(waiting):
            return PENDING_CHANGE
        return None if self.judge.stands_behind(entry.tool, proof) else NOT_ENTITLED

    def _maybe_waiting(self, entry: ClassEntry) -> Approval | None:
        approval = self.inbox.find_definition(entry.tool, entry.digest)
        return approval if approval is not None and approval.status is Status.PENDING else None

    async def _rule(self, entry: ClassEntry, proof: Proof, id: str, by: str) -> None:
        """Store the class of one tool, and answer the question that waits for it. Raise StoreError."""
        now, waiting = self.clock.wall(), self._maybe_waiting(entry)
        if waiting is not None:
            decision = Decision(what=What.APPROVED, by=by, at=now, answer=entry.tool_class, proof=proof)
            decided = await self.inbox.decide(waiting.id, decision)
            if not isinstance(decided, Refusal):
                await self.definitions.settle(decided, is_published=False)
                return
        await self.recorder.append_now(_line(entry, proof, id, by, now))
        says = msgspec.convert(entry.tool_class, Says)
        await self.definitions.rulings.put(Ruling(tool=entry.tool, digest=entry.digest, says=says, by=by, at=now))


def _line(entry: ClassEntry, proof: Proof, id: str, by: str, now: float) -> bytes:
    """Encode the audit record of a classification that has no approval."""
    return AuditRecord.event(
        now,
        by,
        "approvals",
        "approvals/classify",
        entry.tool,
        verdict="approved",
        outcome="decided",
        kind=KIND,
        batch=id,
        answer=entry.tool_class,
        tool_digest=entry.digest,
        anchor=proof.anchor,
        jti=proof.jti,
        proof=proof.type,
    )
