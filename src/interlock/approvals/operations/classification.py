"""Operations on the classification of tools: a table of proposals, and one signature for several tools."""

from interlock.approvals.api import PasskeyRequest, SignedProof
from interlock.approvals.batch_classification import BatchClassification
from interlock.approvals.classification_api import (
    ASK_CLASSES_PASSKEY,
    PROPOSE_CLASSES,
    PROVE_CLASSES,
    SIGN_CLASSES,
    ClassifiedTools,
    ClassifyTools,
    ClassProposal,
    ClassProposals,
    SignClasses,
    ToolRuling,
    UnclassifiedTool,
    UnlockForClasses,
)
from interlock.approvals.inbox import Inbox
from interlock.approvals.operations.inbox import check_attempts, signature_refused
from interlock.approvals.protocol.classification import ClassEntry
from interlock.approvals.tool_definitions import Definitions
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.approvals.trust.operator_keys import OperatorKeyService
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.catalog.catalog import EVERYTHING, Catalog
from interlock.catalog.routes import Route
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.drivers.protocol.binding.effects import ProposedClass, contradicted, maybe_question, proposed_class
from interlock.gate.protocol.held_call import read_proof_untrusted
from interlock.mcp.items import maybe_value
from interlock.operator.operation import handles
from interlock.wire.refusal import Refusal


class ClassificationOperations:
    """Operations on the classification of tools."""

    def __init__(
        self,
        catalog: Catalog,
        definitions: Definitions,
        inbox: Inbox,
        judge: ProofVerifier,
        passkeys: PasskeyService,
        keys: OperatorKeyService,
        recorder: Recorder,
        clock: Clock,
        *,
        aggregator_id: str,
    ) -> None:
        self._catalog = catalog
        self._passkeys = passkeys
        self._keys = keys
        self._own_id = aggregator_id
        self._batch = BatchClassification(
            definitions, inbox, judge, recorder, clock, self._maybe_route, aggregator_id=aggregator_id
        )

    def _maybe_route(self, tool: str) -> Route | None:
        return self._catalog.namespace.view(EVERYTHING).find_tool(tool)

    @handles(PROPOSE_CLASSES)
    def proposals(self) -> ClassProposals:
        """Propose a class for every unclassified tool, and for each tool that is declared read-only but has a name
        that suggests otherwise.
        """
        proposals = (
            _shown(route, proposed)
            for items in self._catalog.namespace.link_items
            if not items.offer.is_aggregator  # it has said it of every tool, in its own name
            for route in items.tools
            if (proposed := _maybe_proposed(route)) is not None
        )
        return ClassProposals(
            aggregator_id=self._own_id, tools=tuple(sorted(proposals, key=lambda proposal: proposal.tool))
        )

    @handles(ASK_CLASSES_PASSKEY)
    def passkey_request(self, body: ClassifyTools) -> PasskeyRequest:
        """Return what a browser asks a passkey, for it to sign the list. Raises Refused."""
        question = self._batch.question(body.id, _entries(body))
        request = question if isinstance(question, Refusal) else self._passkeys.request(question)
        if isinstance(request, Refusal):
            raise signature_refused(request)
        return request

    @handles(PROVE_CLASSES)
    async def prove(self, body: UnlockForClasses, by: str) -> SignedProof:
        """Return a proof for the list by a key of this machine, unlocked by its passphrase. Raises Refused."""
        question = self._batch.question(body.id, _entries(body))
        if isinstance(question, Refusal):
            raise signature_refused(question)
        proof = await self._keys.sign(question, body.key, body.passphrase, by=by)
        if isinstance(proof, Refusal):
            raise signature_refused(proof)
        return SignedProof(proof=check_attempts(proof))

    @handles(SIGN_CLASSES)
    async def sign(self, body: SignClasses, by: str) -> ClassifiedTools:
        """Classify the tools of a list, with the proof of an approver. Raises Refused."""
        proof = read_proof_untrusted(body.proof)
        if isinstance(proof, Refusal):
            raise signature_refused(proof)
        result = await self._batch.sign(body.id, _entries(body), proof, by=by)
        if isinstance(result, Refusal):
            raise signature_refused(result)
        classified = {entry.tool for entry in result.classified}
        return ClassifiedTools(
            classified=tuple(entry for entry in body.entries if entry.tool in classified),
            left_out=tuple(UnclassifiedTool(tool=entry.tool, why=entry.why) for entry in result.left_out),
        )


def _entries(wanted: ClassifyTools) -> tuple[ClassEntry, ...]:
    return tuple(_entry(ruling) for ruling in wanted.entries)


def _entry(ruling: ToolRuling) -> ClassEntry:
    return ClassEntry(tool=ruling.tool, digest=ruling.digest, tool_class=ruling.tool_class)


def _maybe_proposed(route: Route) -> ProposedClass | None:
    if route.is_open:
        members = ("annotations", "inputSchema")
        tool = {"name": route.original, **{member: maybe_value(route.item, member) for member in members}}
        return proposed_class(tool)
    if route.is_classified or route.capability is None or route.capability.mutable:
        return None
    question = maybe_question(route.original, "read_only")
    return None if question is None else contradicted(route.original, question)


def _shown(route: Route, proposed: ProposedClass) -> ClassProposal:
    description = maybe_value(route.item, "description")
    return ClassProposal(
        tool=route.qualified,
        digest=route.digest,
        tool_class=proposed.tool_class,
        by=proposed.by,
        question=proposed.question,
        doubt=maybe_question(route.original, "read_only"),
        is_open=route.is_open,
        description=description if isinstance(description, str) else None,
    )
