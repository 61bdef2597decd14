"""Classification for operators: one table of proposals, and one signature for what becomes of it."""

from interlock.approvals.api import PasskeyRequest
from interlock.approvals.batch_classification import BatchClassification
from interlock.approvals.classification_api import (
    ClassifiedTools,
    ClassifyTools,
    ClassProposal,
    ClassProposals,
    ToolRuling,
    UnclassifiedTool,
)
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.classification import ClassEntry
from interlock.approvals.tool_definitions import Definitions
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.approvals.trust.operator_keys import OperatorKeyService, TooOften
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.catalog.catalog import EVERYTHING, Catalog
from interlock.catalog.routes import Route
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.drivers.protocol.binding.effects import ProposedClass, contradicted, maybe_question, proposed_class
from interlock.gate.protocol.held_call import Presented
from interlock.mcp.items import maybe_value
from interlock.wire.refusal import Refusal


class ClassificationOperations:
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

    def proposals(self) -> ClassProposals:
        """For every tool without a class, and for those that are said to only read, and whose names say otherwise."""
        found = (
            _shown(route, proposed)
            for items in self._catalog.namespace.link_items
            if not items.offer.is_aggregator  # it has said it of every tool, in its own name
            for route in items.tools
            if (proposed := _maybe_proposed(route)) is not None
        )
        return ClassProposals(aggregator_id=self._own_id, tools=tuple(sorted(found, key=lambda one: one.tool)))

    def passkey_request(self, wanted: ClassifyTools) -> PasskeyRequest | Refusal:
        """What a browser asks a passkey, for it to sign the list."""
        asked = self._batch.question(wanted.id, _entries(wanted))
        return asked if isinstance(asked, Refusal) else self._passkeys.request(asked)

    async def prove(
        self, wanted: ClassifyTools, key: str | None, passphrase: str, *, by: str
    ) -> str | Refusal | TooOften:
        """A proof for the list by a key of this machine, once a person has unlocked it."""
        asked = self._batch.question(wanted.id, _entries(wanted))
        return asked if isinstance(asked, Refusal) else await self._keys.sign(asked, key, passphrase, by=by)

    async def sign(self, wanted: ClassifyTools, proof: Presented, *, by: str) -> ClassifiedTools | Refusal:
        done = await self._batch.sign(wanted.id, _entries(wanted), proof, by=by)
        if isinstance(done, Refusal):
            return done
        named = {one.tool for one in done.classified}
        return ClassifiedTools(
            classified=tuple(one for one in wanted.entries if one.tool in named),
            left_out=tuple(UnclassifiedTool(tool=one.tool, why=one.why) for one in done.left_out),
        )


def _entries(wanted: ClassifyTools) -> tuple[ClassEntry, ...]:
    return tuple(_entry(one) for one in wanted.entries)


def _entry(one: ToolRuling) -> ClassEntry:
    return ClassEntry(tool=one.tool, digest=one.digest, tool_class=one.tool_class)


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
