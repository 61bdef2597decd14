"""Changes of an entry and of its controller when a request is accepted."""

from collections.abc import Set

from msgspec.structs import replace

from interlock.names.protocol.criteria import has_schema, is_compatible, schema_digest
from interlock.names.protocol.entry import PUBLIC, Entry, Revision, Status, review_due
from interlock.names.protocol.registry import Controller, Proposal, Registry, Request, Retrieval


def registered_entry(proposal: Proposal, retrieval: Retrieval | None, today: str, *, self_reviewed: bool) -> Entry:
    status = Status(proposal.status)
    return Entry(
        surface_name=proposal.surface_name,
        specification_reference=proposal.specification_reference,
        authentication_scope=proposal.authentication_scope,
        vendor_prefix=proposal.vendor_prefix,
        change_controller=proposal.change_controller,
        status=status,
        first_registered=today,  # REG-4.1-10, REG-5-11
        revisions=(_revision(1, proposal, retrieval, today),),
        review_due=review_due(today) if status is Status.PROVISIONAL else None,  # REG-5-13
        public_confirmed_on=today if proposal.authentication_scope == PUBLIC else None,
        self_reviewed=self_reviewed,
    )


def takes_effect(entry: Entry, request: Request) -> bool:
    """Return whether an amendment needs no expert: it is compatible, has the same scope, and nothing is left for a
    person to judge.
    """
    proposal = request.proposal
    if proposal is None or proposal.breaking or any(finding.verdict == "needs_expert" for finding in request.findings):
        return False
    after = _revision(0, proposal, request.retrieval, "")
    return after.authentication_scope == entry.authentication_scope and is_compatible(
        entry.specification, after
    )  # REG-8.2-1


def amended_entry(
    entry: Entry, proposal: Proposal, retrieval: Retrieval | None, today: str, *, is_breaking: bool
) -> Entry:
    """Return an entry with a new revision. `retrieval` is None if the reference, and so the document, did not
    change.
    """
    before = entry.specification
    after = replace(_revision(before.revision + 1, proposal, retrieval, today), is_breaking=is_breaking)
    if retrieval is None:
        after = replace(after, retrieved_at=before.retrieved_at, document_digest=before.document_digest)
    is_tightened = entry.authentication_scope == PUBLIC != proposal.authentication_scope
    return replace(
        entry,
        specification_reference=proposal.specification_reference,
        authentication_scope=proposal.authentication_scope,
        revisions=(*entry.revisions, after),  # REG-4.1-3
        scope_tightened_on=today if is_tightened else entry.scope_tightened_on,  # REG-8.4-4
        public_confirmed_on=today if proposal.authentication_scope == PUBLIC else None,
    )


def proposal_of(entry: Entry) -> Proposal:
    """Return the proposal that a review judges again: the entry as if it were requested as Active."""
    current = entry.specification
    return Proposal(
        surface_name=entry.surface_name,
        change_controller=entry.change_controller,
        specification_reference=entry.specification_reference,
        authentication_scope=entry.authentication_scope,
        vendor_prefix=entry.vendor_prefix,
        argument_schema=current.argument_schema,
        return_schema=current.return_schema,
        schema_source=current.schema_source,
        semantics=current.semantics,
        no_authentication_planned=entry.authentication_scope == PUBLIC,
    )


def controller_after(registry: Registry, request: Request, unnamed: Set[str]) -> Controller | None:
    """Return the controller's record after a request is accepted, or None if it does not change.

    The first requester acts for the controller from then on. `unnamed`: principals that do not identify anybody.
    """
    proposal = request.proposal
    controller = registry.controller(request.controller)
    if proposal is None or controller.is_proven:
        return None if request.controller in registry.controllers else controller
    is_nameless = request.is_signed or request.filed_by in unnamed
    return replace(
        controller,
        handle=proposal.controller_handle,  # REG-3-4
        contact=proposal.contact,
        principals=() if is_nameless else (request.filed_by,),
        keys=(proposal.controller_key,) if proposal.controller_key else (),
    )


def _revision(number: int, proposal: Proposal, retrieval: Retrieval | None, today: str) -> Revision:
    has_schemas = has_schema(proposal.argument_schema) or has_schema(proposal.return_schema)
    return Revision(
        revision=number,
        specification_reference=proposal.specification_reference,
        authentication_scope=proposal.authentication_scope,
        registered=today,
        argument_schema=proposal.argument_schema,
        return_schema=proposal.return_schema,
        argument_digest=schema_digest(proposal.argument_schema),
        return_digest=schema_digest(proposal.return_schema),
        schema_source=proposal.schema_source if has_schemas else "none",
        semantics=proposal.semantics,
        retrieved_at=retrieval.at if retrieval is not None else None,
        document_digest=retrieval.digest if retrieval is not None else None,
    )
