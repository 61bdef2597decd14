"""Operations on the classification of tools: a table of proposals, and one signature for several tools.

A signature is over the whole list. For each of its tools the definition must still be the one that was signed, and the
signer must be entitled to approve that tool. The reply names the tools that the signature did not count for, and why;
the others are classified all the same.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from msgspec.structs import astuple

from interlock.approvals import api
from interlock.approvals.operations.inbox import InboxOperations, accepted, signature_refused
from interlock.approvals.protocol.approval import UNAVAILABLE_NOW, Approval, Decision, Proof, Status, What
from interlock.approvals.protocol.digests import CLASSIFICATION, answers, classification_digest
from interlock.approvals.tool_definitions import Definitions, Ruling
from interlock.approvals.trust.approval_proofs import ProofVerifier, stored_proof
from interlock.catalog.catalog import EVERYTHING, Catalog
from interlock.catalog.routes import Route
from interlock.core.audit_record import AuditRecord
from interlock.core.recorder import Recorder
from interlock.core.views import view_of
from interlock.drivers.protocol.binding import effects
from interlock.gate.protocol.held_call import read_proof_untrusted
from interlock.gate.protocol.proofs import ProofQuestion
from interlock.mcp.items import find_value
from interlock.operator.operation import handles
from interlock.store.ports import StoreError
from interlock.wire.refusal import INVALID_PARAMS, Refusal

CHANGED: Final = "its definition changed since"
PENDING_CHANGE: Final = "its server changed the definition, which is to be accepted first: interlock approvals"
NOT_LISTED: Final = "no such tool is listed"
NOT_ENTITLED: Final = "the signer may not approve it"
NOT_OURS: Final = "the node below that lists it has said what it is"


@dataclass(eq=False)
class ClassificationOperations:
    """Handlers of the operations on the classification of tools. `approvals` has the inbox, keys and passkeys."""

    catalog: Catalog
    definitions: Definitions
    judge: ProofVerifier
    recorder: Recorder
    approvals: InboxOperations

    @handles(api.PROPOSE_CLASSES)
    def proposals(self) -> api.ClassProposals:
        """Propose a class for every unclassified tool, and for each tool that is declared read-only but has a name
        that suggests otherwise.
        """
        # An aggregator below has classified each of its tools in its own name.
        namespace = self.catalog.namespace
        listed = [route for items in namespace.link_items if not items.offer.is_aggregator for route in items.tools]
        routes = sorted(listed, key=attrgetter("qualified"))
        proposals = []
        for route in routes:
            doubt = effects.find_contradiction(route.original, "read_only")
            if route.is_open:
                members = ("annotations", "inputSchema")
                tool = {"name": route.original, **{member: find_value(route.item, member) for member in members}}
                proposed = effects.proposed_class(tool)
            elif doubt is None or route.is_classified or route.capability is None or route.capability.mutable:
                continue
            else:
                proposed = effects.propose_stricter_class(route.original, doubt)
            description = find_value(route.item, "description")
            description = description if isinstance(description, str) else None
            proposals.append(
                view_of(api.ClassProposal, proposed, route, tool=route.qualified, doubt=doubt, description=description)
            )
        proposals.sort(key=lambda proposal: proposal.tool)
        return api.ClassProposals(aggregator_id=self.approvals.aggregator_id, tools=tuple(proposals))

    @handles(api.ASK_CLASSES_PASSKEY)
    def passkey_request(self, body: api.ClassifyTools) -> api.PasskeyRequest:
        """Return the options with which a browser asks a passkey to sign the list. Raise Refused if
        that is not possible.
        """
        return accepted(self.approvals.passkeys.request(self._question(body)))

    @handles(api.PROVE_CLASSES)
    async def prove(self, body: api.UnlockForClasses, by: str) -> api.SignedProof:
        """Sign the list with an operator key of this machine, unlocked by its passphrase, and return the proof. Raise
        Refused if that fails.
        """
        proof = await self.approvals.keys.sign(self._question(body), body.key, body.passphrase, by=by)
        return api.SignedProof(proof=accepted(proof))

    @handles(api.SIGN_CLASSES)
    async def sign(self, body: api.SignClasses, by: str) -> api.ClassifiedTools:
        """Classify the tools of a list, with the proof of an approver. Raise Refused if the proof is not accepted or
        the store fails.
        """
        presented = accepted(read_proof_untrusted(body.proof))
        tools = [ruling.tool for ruling in body.entries]
        proof = stored_proof(accepted(await self.judge.judge_for_any(self._question(body), tools, presented)))
        classified: list[api.ToolRuling] = []
        left_out: list[api.UnclassifiedTool] = []
        segments: list[str] = []
        try:
            for ruling in body.entries:
                route = self.catalog.namespace.view(EVERYTHING).find_tool(ruling.tool)
                why = NOT_LISTED if route is None else self._find_obstacle(ruling, route, proof)
                if why is not None or route is None:
                    left_out.append(api.UnclassifiedTool(tool=ruling.tool, why=why or NOT_LISTED))
                    continue
                await self._classify(ruling, proof, body.id, by)
                classified.append(ruling)
                segments.append(route.link.segment)
        except StoreError:
            raise signature_refused(UNAVAILABLE_NOW) from None
        finally:
            for segment in dict.fromkeys(segments):
                await self.definitions.publish(segment)
        return api.ClassifiedTools(classified=tuple(classified), left_out=tuple(left_out))

    def _question(self, body: api.ClassifyTools) -> ProofQuestion:
        """Return what a proof must sign to classify the listed tools. Raise Refused if the list is invalid.

        The proof names only the first tool; `sign` checks all of them.
        """
        tools = [ruling.tool for ruling in body.entries]
        if len(set(tools)) < len(tools):
            details = {"detail": "each tool is named once, and at least one is"}
            raise signature_refused(Refusal(INVALID_PARAMS, "invalid_body", details))
        digest, node = classification_digest(body.id, map(astuple, body.entries)), self.approvals.aggregator_id
        return ProofQuestion(confirmation_id=body.id, call_digest=digest, tool=tools[0], aggregator_id=node)

    def _find_obstacle(self, ruling: api.ToolRuling, route: Route, proof: Proof) -> str | None:
        """Return why a signed class cannot take effect for a tool, or None if it can."""
        if route.link.offer.is_aggregator:
            return NOT_OURS
        if route.digest != ruling.digest:
            return CHANGED
        waiting = self._find_waiting(ruling)
        if waiting is not None and ruling.tool_class not in answers(waiting):
            return PENDING_CHANGE
        return None if self.judge.stands_behind(ruling.tool, proof) else NOT_ENTITLED

    def _find_waiting(self, ruling: api.ToolRuling) -> Approval | None:
        approval = self.approvals.inbox.find_definition(ruling.tool, ruling.digest)
        return approval if approval is not None and approval.status is Status.PENDING else None

    async def _classify(self, ruling: api.ToolRuling, proof: Proof, id: str, by: str) -> None:
        """Store the class of one tool, and decide the approval that waits for it, if any. Raise StoreError if the store
        fails.
        """
        now, waiting = self.approvals.clock.wall(), self._find_waiting(ruling)
        if waiting is not None:
            decision = Decision(what=What.APPROVED, by=by, at=now, answer=ruling.tool_class, proof=proof)
            decided = await self.approvals.inbox.decide(waiting.id, decision)
            if not isinstance(decided, Refusal):
                await self.definitions.settle(decided, is_published=False)
                return
        tool, digest, tool_class = ruling.tool, ruling.digest, ruling.tool_class
        details = {"outcome": "decided", "kind": CLASSIFICATION, "batch": id, "answer": tool_class}
        details |= {"tool_digest": digest, **proof.facts}
        record = AuditRecord.event(now, by, "approvals", "approvals/classify", tool, verdict="approved", **details)
        await self.recorder.append_now(record)
        await self.definitions.rulings.put(Ruling(tool=tool, digest=digest, says=tool_class, by=by, at=now))
