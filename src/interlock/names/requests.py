"""Requests: checked, filed, and brought before an expert (draft section 5).

A request is on the registry's log before it waits in the inbox, as an approval of kind `request` that takes the proof
of an expert. What follows from a decision is in `request_decisions`.
"""

import hashlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Kind, Source
from interlock.approvals.protocol.digests import NAMES_REVIEW
from interlock.approvals.protocol.state import Status
from interlock.core.operator_errors import NotFound, Refused
from interlock.crypto.jose.public_key import BadKey, read_key_untrusted
from interlock.names.actors import Actor, check_controller, check_statement, step_by
from interlock.names.protocol.criteria import criteria_document, judge_proposal
from interlock.names.protocol.entry_changes import (
    amended_entry,
    proposal_of,
    takes_effect,
)
from interlock.names.protocol.life import (
    NOTICE_DAYS,
    RequestMove,
    RequestState,
    days_between,
)
from interlock.names.protocol.model import NONE, Entry
from interlock.names.protocol.model import Status as EntryStatus
from interlock.names.protocol.records import (
    EVIDENCE_MAX,
    Evidence,
    Finding,
    Proposal,
    Request,
    RequestKind,
    Retrieval,
    Step,
)
from interlock.names.protocol.registry import Registry
from interlock.names.request_decisions import RequestDecisions, found_request, moved_request
from interlock.names.state import Change, RegistryState, own_entry
from interlock.wire.jsonrpc.errors import Fault

log = logging.getLogger("interlock.names")

REGISTRY: Final = "registry"  # who raises reviews

Fetch = Callable[[str], Awaitable[Retrieval]]


class RequestService:
    def __init__(
        self,
        state: RegistryState,
        inbox: Inbox,
        fetch: Fetch,
        decisions: RequestDecisions,
        observed: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """`observed`: names under a prefix that servers here offer, with a server each."""
        self._state = state
        self._inbox = inbox
        self._fetch = fetch
        self._decisions = decisions
        self._observed = observed

    async def open(self) -> None:
        """Takes up what was filed and not yet brought into the inbox, and what was decided and not yet carried out."""
        for approval in self._inbox.listed((Status.APPROVED,), Kind.REQUEST):
            if approval.source is Source.NAMES:
                await self._decisions.settle(approval)
        for request in list(self._state.registry.open_requests()):
            await self._bring(request)
        await self.look()

    async def check(self, proposal: Proposal, *, amends: Entry | None = None) -> tuple[Finding, ...]:
        """The machine checks, without filing anything and without fetching."""
        state = self._state
        return judge_proposal(proposal, state.registry, state.today, None, amends=amends)

    async def file(self, actor: Actor, proposal: Proposal) -> Request:
        """Raises Refused where no expert could accept it, StoreError."""
        return await self._file(actor, proposal, "request", None)

    async def amend(self, actor: Actor, proposal: Proposal) -> Request:
        """A new revision. One that is compatible with the last is in effect at once; any other needs an expert."""
        entry = own_entry(self._state.registry, proposal.surface_name)
        return await self._file(actor, proposal, "amendment", entry)

    async def _file(self, actor: Actor, proposal: Proposal, kind: RequestKind, amends: Entry | None) -> Request:
        state, id = self._state, str(uuid.uuid4())
        _check_key(proposal)
        self._check_filing(state.registry, actor, proposal, amends)
        reference = proposal.specification_reference
        unchanged = amends is not None and amends.specification_reference == reference
        retrieval = None if unchanged else await self._fetch(reference)

        def decide(registry: Registry) -> Change:
            self._check_filing(registry, actor, proposal, amends)
            findings = judge_proposal(proposal, registry, state.today, retrieval, amends=amends)
            findings += self._observed_use(registry, proposal)
            failed = [one for one in findings if one.verdict == "fail"]
            if failed:  # REG-5-3, REG-5-7
                details = {
                    "criteria": criteria_document(findings),
                    "findings": msgspec.to_builtins(findings),
                }  # REG-5-2
                raise Refused(failed[0].code, "; ".join(one.reason for one in failed), details)
            returned = [one.reason for one in findings if one.verdict == "revise"]
            request = Request(
                id=id,
                kind=kind,
                subject=proposal.surface_name,
                state=RequestState.REVISION_REQUESTED if returned else RequestState.SUBMITTED,  # REG-5-6
                filed_on=state.today,
                filed_by=actor.shown,
                controller=proposal.change_controller,
                is_signed=actor.statement is not None,
                is_proven=registry.controller(proposal.change_controller).is_proven,
                proposal=proposal,
                retrieval=retrieval,
                findings=findings,
                previous=proposal.previous,
                reason="; ".join(returned),
            )
            filed = replace(step_by(actor, state.now, kind, proposal.surface_name), request=request)
            entry = registry.entry(proposal.surface_name)
            if amends is None or returned or entry is None or not takes_effect(entry, request):
                return Change((filed,), request)
            accepted = replace(request, state=RequestState.ACCEPTED, decided_on=state.today)
            amended = amended_entry(entry, proposal, retrieval, state.today, is_breaking=False)
            return Change((replace(filed, what="amend", request=accepted, entry=amended),), accepted)

        request: Request = await state.change(decide)
        return await self._bring(request)

    def _observed_use(self, registry: Registry, proposal: Proposal) -> tuple[Finding, ...]:
        """A prefix that no one holds and servers here use: evidence for the expert, no veto (REG-8.3-1)."""
        prefix = proposal.vendor_prefix
        found = self._observed(prefix) if prefix != NONE and prefix not in registry.holders else {}  # REG-8.3-1
        if not found:
            return ()
        servers = sorted(set(found.values()))
        reason = (
            f"{len(servers)} servers here offer names under {prefix}, on {self._state.today}: {', '.join(servers[:5])}"
        )
        return (Finding(criterion=5, verdict="needs_expert", code="observed_use", reason=reason),)

    def _check_filing(self, registry: Registry, actor: Actor, proposal: Proposal, amends: Entry | None) -> None:
        controller = registry.controller(proposal.change_controller)
        if amends is not None:
            if proposal.change_controller != amends.change_controller:
                raise Refused("not_change_controller", f"{amends.surface_name} is {amends.change_controller}'s")
            check_controller(actor, controller, registry)
        elif controller.is_proven:
            check_controller(actor, controller, registry)
        elif actor.statement is not None:
            check_statement(actor.statement, replace(controller, keys=(proposal.controller_key,)), registry)
        previous = registry.requests.get(proposal.previous)
        if proposal.previous and (previous is None or previous.subject != proposal.surface_name):
            raise NotFound("request", proposal.previous)

    async def dispute(self, actor: Actor, prefix: str, controller: str, evidence: tuple[Evidence, ...]) -> Request:
        """A claim on a prefix that another holds, with documented first use (REG-7.2-3)."""
        state, id = self._state, str(uuid.uuid4())
        if not evidence or len(evidence) > EVIDENCE_MAX:
            # REG-7.2-3
            raise Refused("evidence_required", f"a dispute has 1 to {EVIDENCE_MAX} items of first-use evidence")

        def decide(registry: Registry) -> Change:
            holder = registry.holders.get(prefix)
            if holder is None:
                raise NotFound("prefix", prefix, list(registry.holders))
            if holder.controller == controller:
                raise Refused("not_disputed", f"{controller} holds {prefix} already")
            if registry.controller(controller).is_proven or actor.statement is not None:
                check_controller(actor, registry.controller(controller), registry)
            request = Request(
                id=id,
                kind="dispute",
                subject=prefix,
                state=RequestState.SUBMITTED,
                filed_on=state.today,
                filed_by=actor.shown,
                controller=controller,
                evidence=evidence,
            )
            return Change((replace(step_by(actor, state.now, "dispute", prefix), request=request),), request)

        return await self._bring(await state.change(decide))

    async def cancel(self, actor: Actor, id: str) -> Request:
        state = self._state

        def decide(registry: Registry) -> Change:
            request = found_request(registry, id)
            if request.filed_by != actor.shown:
                check_controller(actor, registry.controller(request.controller), registry)
            cancelled = moved_request(request, RequestMove.CANCEL, state.today, actor.shown)
            return Change(
                (replace(step_by(actor, state.now, "cancel", request.subject), request=cancelled),), cancelled
            )

        request: Request = await state.change(decide)
        approval = self._inbox.find(request.filed_by, request_digest(request))
        if approval is not None and approval.status is Status.PENDING:
            await self._inbox.withdraw(approval.id)
        return request

    def maybe_approval_id(self, request: Request) -> str | None:
        """What waits for an expert because of the request."""
        found = self._inbox.find(request.filed_by, request_digest(request))
        return found.id if found is not None and found.status is Status.PENDING else None

    def remind(self, name: str) -> None:
        """Tells operators once more of the review of a name that waits."""
        for request in self._state.registry.open_requests():
            if request.kind == "review" and request.subject == name and (id := self.maybe_approval_id(request)):
                self._inbox.remind(id)

    async def look(self) -> None:
        """Raises the reviews of provisional entries that are soon due (REG-5-13). Asked again and again."""
        state = self._state
        reviewed = {one.subject for one in state.registry.open_requests() if one.kind == "review"}
        for entry in [one for one in state.registry.entries.values() if one.status is EntryStatus.PROVISIONAL]:
            due = entry.answer_due or entry.review_due
            if entry.source or due is None or entry.surface_name in reviewed:
                continue
            if days_between(state.today, due) <= max(NOTICE_DAYS):  # REG-5-13
                retrieval = await self._fetch(entry.specification_reference)
                await self._bring(await state.change(self._review(entry.surface_name, retrieval)))

    def _review(self, name: str, retrieval: Retrieval) -> Callable[[Registry], Change]:
        state, id = self._state, str(uuid.uuid4())

        def decide(registry: Registry) -> Change:
            entry = own_entry(registry, name)
            proposal = proposal_of(entry)
            request = Request(
                id=id,
                kind="review",
                subject=name,
                state=RequestState.SUBMITTED,
                filed_on=state.today,
                filed_by=REGISTRY,
                controller=entry.change_controller,
                proposal=proposal,
                retrieval=retrieval,
                findings=judge_proposal(proposal, registry, state.today, retrieval, amends=entry),
                reason=f"its review is due on {entry.answer_due or entry.review_due}",
            )
            return Change((Step(at=state.now, by=REGISTRY, what="review", subject=name, request=request),), request)

        return decide

    async def _bring(self, request: Request) -> Request:
        """Into the inbox; what is there already stays."""
        if request.state not in (RequestState.SUBMITTED, RequestState.IN_REVIEW):
            return request
        draft = self._inbox.draft(
            Kind.REQUEST,
            Source.NAMES,
            requested_by=request.filed_by,
            tool=f"names.{request.subject}",
            digest=request_digest(request),
            target=request.id,
            method=NAMES_REVIEW if request.kind == "review" else f"names/{request.kind}",
            params=Raw(msgspec.json.encode(request)),
            reason=_reason(request),
            factors=tuple(dict.fromkeys(one.code for one in request.findings if one.verdict == "needs_expert")),
        )
        raised = await self._inbox.raise_(draft)
        if isinstance(raised, Fault):
            log.error("the request %s cannot wait in the inbox: %s", request.id, raised.message)
            return request
        if request.state is RequestState.IN_REVIEW:
            return request

        def decide(registry: Registry) -> Change:
            standing = found_request(registry, request.id)
            if standing.state is not RequestState.SUBMITTED:
                return Change((), standing)
            moved = replace(standing, state=RequestState.IN_REVIEW)
            step = Step(at=self._state.now, by=REGISTRY, what="in_review", subject=request.subject, request=moved)
            return Change((step,), moved)

        moved: Request = await self._state.change(decide)
        return moved


def request_digest(request: Request) -> str:
    """Of all that is asked, and of nothing that a later step says of it: what an expert signs."""
    asked = replace(
        request, state=RequestState.SUBMITTED, retrieval=None, findings=(), decided_by="", decided_on="", reason=""
    )
    return hashlib.sha256(b"names/" + msgspec.json.encode(asked)).hexdigest()


def _reason(request: Request) -> str:
    match request.kind:
        case "dispute":
            return f"{request.controller} claims the prefix {request.subject}"
        case "review":
            return f"{request.subject} is provisional; {request.reason}"
        case "amendment":
            return f"{request.controller} changes {request.subject} in a way that breaks its callers"
        case _:
            return f"{request.controller} asks for the name {request.subject}"


def _check_key(proposal: Proposal) -> None:
    if proposal.controller_key:
        try:
            read_key_untrusted(proposal.controller_key)
        except BadKey as bad:
            raise Refused("bad_key", f"controller_key: {bad}") from None
