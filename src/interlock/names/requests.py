"""Requests for names: checked, filed, presented to an expert, and decided (draft section 5).

    file ──> SUBMITTED ──> IN_REVIEW ──> ACCEPTED
      └─> REVISION_REQUESTED  └─> REVISION_REQUESTED, REJECTED, CANCELLED

A request is in the registry's log before it waits in the inbox, as an approval of kind `request` that needs the proof
of an expert; a node that stops in between brings it to the inbox when it starts. The machine checks run when a request
is filed and again when it is accepted, because the registry may have changed since. If an expert accepts what cannot be
accepted any more, the request is rejected and the outcome of the approval says why.

The document of a reference is fetched when the request is filed, before the decision, because a decision must not wait
for the network.
"""

import contextlib
import hashlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import UNAVAILABLE_NOW, Approval, Decision, Kind, Move, Source, Status, What
from interlock.approvals.protocol.digests import NAMES_REVIEW
from interlock.core.clock import rfc3339
from interlock.crypto.jose import BadKey, read_key_untrusted, thumbprint
from interlock.names.protocol import criteria
from interlock.names.protocol.entry import (
    ANSWER_DAYS,
    ENTRY_MOVES,
    NONE,
    NOTICE_DAYS,
    REQUEST_MOVES,
    EntryMove,
    EntryStatus,
    RegistryEntry,
    RequestMove,
    RequestState,
    days_after,
    days_between,
)
from interlock.names.protocol.registry import (
    EVIDENCE_MAX,
    OPEN,
    CheckFinding,
    Evidence,
    Holder,
    NameProposal,
    NameRequest,
    NamesRegistry,
    RegistryStep,
    RequestKind,
    Retrieval,
)
from interlock.names.state import (
    UNNAMED,
    Actor,
    RegistryChange,
    RegistryState,
    changes_registry,
    check_controller,
    check_statement,
    own_entry,
)
from interlock.store.ports import StoreError
from interlock.wire.refusal import INVALID_PARAMS, NotFound, Refusal, Refused

log = logging.getLogger("interlock.names")

RETURN: Final = "return"  # the answer of a denial that asks for revision
_UNREAD: Final = (
    "the document was not reached from here; attach the copy that you read: interlock names attach {name} FILE"
)
_ACCEPT_UNREAD: Final = "the reference could not be fetched; give a reason to accept it anyway"
_PARTY: Final = (
    "a party to the request does not decide it; another expert has to. If all experts are one person,"
    " registry.self_review permits it, and the entry says self_reviewed"
)


@dataclass(eq=False)
class RequestDecisions(DecisionReceiver):
    """The rules by which experts decide on requests, and the execution of their decisions."""

    _state: RegistryState
    _inbox: Inbox
    # Returns the people who may decide on a subject, which is written `names.SUBJECT`.
    _experts: Callable[[str], tuple[str, ...]]
    # Returns whether all experts are one person, who decides on their own requests (registry.self_review).
    _may_self_review: Callable[[], bool] = lambda: False

    def find_refusal(self, approval: Approval, decision: Decision, key: str | None) -> Refusal | None:
        """Return why an expert's decision is not acceptable, or None if it is. `key` is the thumbprint of the key that
        proved the decision.
        """
        request = self._state.registry.requests.get(approval.target or "")
        if request is None:
            return Refusal(INVALID_PARAMS, "unknown_request", {"detail": "the registry has no such request"})
        open_ = [finding for finding in request.findings if finding.verdict == "needs_expert"]
        if not (decision.reason or "").strip() and (decision.what is What.DENIED or open_):  # REG-5-10
            why = "give a reason: the registrant gets it"
            if decision.what is not What.DENIED:
                codes = ", ".join(dict.fromkeys(finding.code for finding in open_))
                why = _ACCEPT_UNREAD if codes == "skipped_offline" else f"give a reason for accepting it with {codes}"
            return Refusal(INVALID_PARAMS, "reason_required", {"detail": why})
        is_unread = any(finding.code == "skipped_offline" for finding in open_)
        if decision.what is What.APPROVED and is_unread and decision.answer != EntryMove.REMOVE.value:
            return Refusal(INVALID_PARAMS, "copy_required", {"detail": _UNREAD.format(name=request.subject)})
        if (
            decision.what is What.APPROVED
            and self._is_party(request, decision, key)
            and not self._may_decide_own(request)
        ):
            return Refusal(INVALID_PARAMS, "self_approval", {"detail": _PARTY})
        return None

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Carry out an expert's decision on a request. If an approved request can no longer be accepted, the outcome of
        the returned approval says why. Return a Refusal if the approval was used before or the store fails.
        """
        decision = approval.decision
        if decision is None or approval.status not in (Status.APPROVED, Status.DENIED):
            return approval
        try:
            if approval.status is Status.DENIED:
                await self._return_or_reject(approval, decision)
                return approval
            used = await self._inbox.use(approval.id)
            if isinstance(used, Refusal):
                return used
            try:
                await self._accept(approval, decision)
            except Refused as refused:
                why = f"{refused.code}: {refused.message}"
                await self._return_or_reject(approval, decision, why)
                return await self._inbox.finish(approval.id, Move.FAIL, why)
            return await self._inbox.finish(approval.id, Move.SUCCEED, "accepted")
        except StoreError as error:
            log.error("a decision on %s cannot be carried out: %s", approval.tool, error)
            return UNAVAILABLE_NOW

    @changes_registry
    def _return_or_reject(
        self, registry: NamesRegistry, approval: Approval, decision: Decision, failure: str = ""
    ) -> RegistryChange[None]:
        """Return a denied request to its registrant, or reject it, as the expert decided. If `failure` is set, reject
        an approved request for this reason, because it could not be accepted.
        """
        request = found_request(registry, approval.target or "")
        if request.state is not RequestState.IN_REVIEW:
            return RegistryChange((), None)
        # A denied review is returned to the registrant. To remove the entry takes the proof of an expert.
        is_returned = not failure and (decision.answer == RETURN or request.kind == "review")
        move = RequestMove.RETURN if is_returned else RequestMove.REJECT
        day, by = self._state.today if failure else rfc3339(decision.at)[:10], _decided_by(decision)
        moved = moved_request(request, move, day, by, failure or decision.reason or "")
        step = request_step(moved, self._state.now, by, move.value, moved.reason)
        entry = registry.entries.get(request.subject)
        if request.kind == "review" and entry is not None and not failure:
            step = replace(step, entry=replace(entry, answer_due=days_after(day, ANSWER_DAYS)))
        return RegistryChange((step,), None)

    @changes_registry
    def _accept(self, registry: NamesRegistry, approval: Approval, decision: Decision) -> RegistryChange[None]:
        """Make the change that an approved request asks for. Raise Refused if it is no longer possible."""
        state = self._state
        request = found_request(registry, approval.target or "")
        if request.state is RequestState.ACCEPTED:  # carried out before the node stopped
            return RegistryChange((), None)
        by = _decided_by(decision)
        moved = moved_request(request, RequestMove.ACCEPT, state.today, by, decision.reason or "")
        step = request_step(moved, state.now, by, "accept", decision.reason or "")
        key = decision.proof.key if decision.proof is not None else None
        is_own = self._is_party(request, decision, key) or request.filed_by in UNNAMED
        self_reviewed = is_own and self._may_decide_own(request)
        if request.kind == "dispute":
            holder = registry.holders[request.subject]
            ruled = Holder(
                prefix=request.subject,
                controller=request.controller,  # REG-7.2-3
                first_entry=holder.first_entry,
                since=min(evidence.date for evidence in request.evidence),
                ruling=request.id,
            )
            return RegistryChange((replace(step, holder=ruled),), None)
        if request.proposal is None:
            raise Refused("incomplete", "the request proposes nothing")
        amends = None if request.kind == "request" else own_entry(registry, request.subject)
        if request.kind == "review" and amends is not None:
            move = EntryMove.REMOVE if decision.answer == EntryMove.REMOVE.value else EntryMove.PROMOTE
            if (amends.status, move) not in ENTRY_MOVES:  # REG-7.3-6: its controller has changed it meanwhile
                raise Refused("illegal_transition", f"{amends.surface_name} is {amends.status.value} by now")
            if move is EntryMove.REMOVE:
                step = replace(step, what=move.value, entry=amends, is_removed=True)  # REG-5-14
                return RegistryChange((step,), None)
        proposal = criteria.proposal_of(amends) if request.kind == "review" and amends is not None else request.proposal
        findings = criteria.judge_proposal(proposal, registry, state.today, request.retrieval, amends=amends)
        barred = [finding for finding in findings if finding.verdict in ("fail", "revise")]
        if barred:  # REG-5-14
            raise Refused(barred[0].code, "; ".join(finding.reason for finding in barred))
        if request.kind == "review" and amends is not None:
            entry = replace(amends, status=EntryStatus.ACTIVE, review_due=None, answer_due=None)
            entry = replace(entry, self_reviewed=self_reviewed)
            return RegistryChange((replace(step, what=EntryMove.PROMOTE.value, entry=entry),), None)
        if amends is not None:
            entry = criteria.amended_entry(amends, proposal, request.retrieval, state.today, is_breaking=True)
            return RegistryChange((replace(step, what="amend", entry=entry),), None)
        current = registry.controller(request.controller)
        if current.is_proven and not request.is_proven and request.filed_by not in current.principals:
            raise Refused("not_change_controller", f"{request.filed_by} does not act for {current.name}")
        controller = criteria.controller_after(registry, request, UNNAMED)
        entry = criteria.registered_entry(proposal, request.retrieval, state.today, self_reviewed=self_reviewed)
        return RegistryChange((replace(step, entry=entry, controller=controller),), None)

    def _is_party(self, request: NameRequest, decision: Decision, key: str | None) -> bool:
        """Return whether the deciding person filed the request or acts for its controller."""
        who = decision.proof.anchor if decision.proof is not None else None
        controller = self._state.registry.controller(request.controller)
        principals = (request.filed_by, *controller.principals)
        if decision.by in principals or who in [principal.partition(":")[2] for principal in principals]:
            return True
        requested_key = request.proposal.controller_key if request.proposal is not None else ""
        for text in filter(None, (*controller.keys, requested_key)):
            with contextlib.suppress(BadKey):
                if key in [thumbprint(jwk) for jwk in read_key_untrusted(text)]:
                    return True
        return False

    def _may_decide_own(self, request: NameRequest) -> bool:
        """Return whether an expert may decide on a request that the same person filed: only if there is no other
        expert, or if registry.self_review allows it.
        """
        # REG-N-4
        return self._may_self_review() or len(self._experts(f"names.{request.subject}")) <= 1


def found_request(registry: NamesRegistry, id: str) -> NameRequest:
    """Return the request with this id. Raise NotFound if there is none."""
    request = registry.requests.get(id)
    if request is None:
        raise NotFound("request", id)
    return request


def moved_request(request: NameRequest, move: RequestMove, day: str, by: str, reason: str = "") -> NameRequest:
    """Return a request after a move to its next state. Raise Refused if `REQUEST_MOVES` does not contain the move."""
    after = REQUEST_MOVES.get((request.state, move))
    if after is None:
        raise Refused("illegal_transition", f"a request that is {request.state.value} does not {move.value}")
    return replace(request, state=after, decided_on=day, decided_by=by, reason=reason or request.reason)


def request_step(request: NameRequest, at: str, by: str, what: str, reason: str = "") -> RegistryStep:
    """Return a step of the registry's log that stores a request."""
    return RegistryStep(at=at, by=by, what=what, subject=request.subject, reason=reason, request=request)


def _decided_by(decision: Decision) -> str:
    return f"expert:{decision.proof.anchor}" if decision.proof is not None else decision.by


REGISTRY: Final = "registry"  # the author of steps that the registry takes by itself

Fetch = Callable[[str], Awaitable[Retrieval]]


@dataclass(eq=False)
class RequestService:
    """The service that files requests for names and submits them to an expert."""

    _state: RegistryState
    _inbox: Inbox
    _fetch: Fetch
    _decisions: RequestDecisions
    # Returns the names under a prefix that servers of this node offer, with one server for each name.
    _observed: Callable[[str], Mapping[str, str]]

    async def open(self) -> None:
        """Continue after a restart: submit filed requests that are not in the inbox yet, and carry out decisions that
        were not carried out.
        """
        for approval in self._inbox.listed((Status.APPROVED,), Kind.REQUEST):
            if approval.source is Source.NAMES:
                await self._decisions.settle(approval)
        for request in list(self._state.registry.open_requests()):
            await self._submit_to_inbox(request)
        await self.look()

    async def file(self, actor: Actor, proposal: NameProposal, *, amends: RegistryEntry | None = None) -> NameRequest:
        """Submit a request for a name, or for a new revision of the entry `amends`.

        A compatible revision takes effect at once; any other request needs an expert. Raise Refused if no expert could
        accept the request or the actor may not file it, and StoreError if it cannot be stored.
        """
        kind: RequestKind = "request" if amends is None else "amendment"
        state = self._state
        if proposal.controller_key:
            try:
                read_key_untrusted(proposal.controller_key)
            except BadKey as bad:
                raise Refused("bad_key", f"controller_key: {bad}") from None
        self._check_filing(state.registry, actor, proposal, amends)
        reference = proposal.specification_reference
        unchanged = amends is not None and amends.specification_reference == reference
        retrieval = None if unchanged else await self._fetch(reference)

        def decide(registry: NamesRegistry) -> RegistryChange[NameRequest]:
            self._check_filing(registry, actor, proposal, amends)
            findings = criteria.judge_proposal(proposal, registry, state.today, retrieval, amends=amends)
            prefix = proposal.vendor_prefix
            # Servers here that use a prefix without a holder are evidence for the expert, and refuse nothing.
            offered = self._observed(prefix) if prefix != NONE and prefix not in registry.holders else {}  # REG-8.3-1
            if offered:
                servers = sorted(set(offered.values()))
                reason = f"names under {prefix} are offered here on {state.today} by {len(servers)} of the servers: "
                findings += (CheckFinding(5, "needs_expert", "observed_use", reason + ", ".join(servers[:5])),)
            failed = [finding for finding in findings if finding.verdict == "fail"]
            if failed:  # REG-5-3, REG-5-7
                # REG-5-2
                details = {"criteria": criteria.criteria_document(findings), "findings": msgspec.to_builtins(findings)}
                raise Refused(failed[0].code, "; ".join(finding.reason for finding in failed), details)
            returned = [finding.reason for finding in findings if finding.verdict == "revise"]
            request = self._new_request(
                kind,
                proposal.surface_name,
                filed_by=actor.shown,
                controller=proposal.change_controller,
                state=RequestState.REVISION_REQUESTED if returned else RequestState.SUBMITTED,  # REG-5-6
                is_signed=actor.statement is not None,
                is_proven=registry.controller(proposal.change_controller).is_proven,
                proposal=proposal,
                retrieval=retrieval,
                findings=findings,
                previous=proposal.previous,
                reason="; ".join(returned),
            )
            filed = actor.step(state.now, kind, proposal.surface_name, request=request)
            entry = registry.entries.get(proposal.surface_name)
            if amends is None or returned or entry is None or not criteria.takes_effect(entry, request):
                return RegistryChange((filed,), request)
            accepted = replace(request, state=RequestState.ACCEPTED, decided_on=state.today)
            amended = criteria.amended_entry(entry, proposal, retrieval, state.today, is_breaking=False)
            return RegistryChange((replace(filed, what="amend", request=accepted, entry=amended),), accepted)

        return await self._submit_to_inbox(await state.change(decide))

    def _check_filing(
        self, registry: NamesRegistry, actor: Actor, proposal: NameProposal, amends: RegistryEntry | None
    ) -> None:
        """Raise Refused if the actor may not file this proposal in the name of its controller. Raise NotFound if the
        earlier request that the proposal refers to does not exist.
        """
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

    async def dispute(self, actor: Actor, prefix: str, controller: str, evidence: tuple[Evidence, ...]) -> NameRequest:
        """Submit a claim on a prefix that another controller holds, with evidence of an earlier use (REG-7.2-3)."""
        if not evidence or len(evidence) > EVIDENCE_MAX:
            # REG-7.2-3
            raise Refused("evidence_required", f"a dispute has 1 to {EVIDENCE_MAX} items of first-use evidence")

        def decide(registry: NamesRegistry) -> RegistryChange[NameRequest]:
            holder = registry.holders.get(prefix)
            if holder is None:
                raise NotFound("prefix", prefix, list(registry.holders))
            if holder.controller == controller:
                raise Refused("not_disputed", f"{controller} holds {prefix} already")
            if registry.controller(controller).is_proven or actor.statement is not None:
                check_controller(actor, registry.controller(controller), registry)
            parties = {"filed_by": actor.shown, "controller": controller}
            request = self._new_request("dispute", prefix, **parties, evidence=evidence)
            return RegistryChange((actor.step(self._state.now, "dispute", prefix, request=request),), request)

        return await self._submit_to_inbox(await self._state.change(decide))

    async def cancel(self, actor: Actor, id: str) -> NameRequest:
        """Cancel a request. The actor must have filed it or act for its controller. Raise NotFound if there is no such
        request, Refused if it cannot be cancelled, and StoreError if the change cannot be stored.
        """

        def decide(registry: NamesRegistry) -> RegistryChange[NameRequest]:
            request = found_request(registry, id)
            if request.filed_by != actor.shown:
                check_controller(actor, registry.controller(request.controller), registry)
            cancelled = moved_request(request, RequestMove.CANCEL, self._state.today, actor.shown)
            step = actor.step(self._state.now, "cancel", request.subject, request=cancelled)
            return RegistryChange((step,), cancelled)

        cancelled = await self._state.change(decide)
        if (approval_id := self.find_approval_id(cancelled)) is not None:
            await self._inbox.withdraw(approval_id)
        return cancelled

    def _new_request(self, kind: RequestKind, subject: str, **others: Any) -> NameRequest:
        """Return a new request. `others` are further fields of `NameRequest`."""
        fields = {"state": RequestState.SUBMITTED, "filed_on": self._state.today, **others}
        return NameRequest(id=str(uuid.uuid4()), kind=kind, subject=subject, **fields)

    def find_approval_id(self, request: NameRequest) -> str | None:
        """Return the id of the open approval that belongs to a request, or None if no expert has to decide on it."""
        approval = self._inbox.find(request.filed_by, request_digest(request))
        return approval.id if approval is not None and approval.status is Status.PENDING else None

    def remind(self, name: str) -> None:
        """Notify operators again that the review of a name waits for a decision."""
        for request in self._state.registry.open_requests():
            if request.kind == "review" and request.subject == name and (id := self.find_approval_id(request)):
                self._inbox.remind(id)

    async def look(self) -> None:
        """Start the reviews of provisional entries that are overdue or due soon (REG-5-13). Called every hour."""
        state = self._state
        reviewed = {each.subject for each in state.registry.open_requests() if each.kind == "review"}
        for entry in [each for each in state.registry.entries.values() if each.status is EntryStatus.PROVISIONAL]:
            due = entry.answer_due or entry.review_due
            if entry.source or due is None or entry.surface_name in reviewed:
                continue
            if days_between(state.today, due) <= max(NOTICE_DAYS):  # REG-5-13
                retrieval = await self._fetch(entry.specification_reference)
                await self._submit_to_inbox(await self._start_review(entry.surface_name, retrieval))

    @changes_registry
    def _start_review(self, registry: NamesRegistry, name: str, retrieval: Retrieval) -> RegistryChange[NameRequest]:
        """Submit the request by which the review of a provisional entry starts, and return this request."""
        state, entry = self._state, own_entry(registry, name)
        proposal = criteria.proposal_of(entry)
        request = self._new_request(
            "review",
            name,
            filed_by=REGISTRY,
            controller=entry.change_controller,
            proposal=proposal,
            retrieval=retrieval,
            findings=criteria.judge_proposal(proposal, registry, state.today, retrieval, amends=entry),
            reason=f"its review is due on {entry.answer_due or entry.review_due}",
        )
        return RegistryChange((request_step(request, state.now, REGISTRY, "review"),), request)

    async def _submit_to_inbox(self, request: NameRequest) -> NameRequest:
        """Put a submitted request into the inbox of approvals if it is not there already, and mark it as in review.
        Return the request.
        """
        if request.state not in OPEN:
            return request
        factors = (finding.code for finding in request.findings if finding.verdict == "needs_expert")
        draft = self._inbox.draft(
            Kind.REQUEST,
            Source.NAMES,
            requested_by=request.filed_by,
            tool=f"names.{request.subject}",
            digest=request_digest(request),
            target=request.id,
            method=NAMES_REVIEW if request.kind == "review" else f"names/{request.kind}",
            params=Raw(msgspec.json.encode(request)),
            reason=_REASONS[request.kind].format(request=request),
            factors=tuple(dict.fromkeys(factors)),
        )
        raised = await self._inbox.raise_(draft)
        if isinstance(raised, Refusal):
            log.error("the request %s cannot wait in the inbox: %s", request.id, raised.message)
            return request
        if request.state is RequestState.IN_REVIEW:
            return request

        def decide(registry: NamesRegistry) -> RegistryChange[NameRequest]:
            current = found_request(registry, request.id)
            if current.state is not RequestState.SUBMITTED:
                return RegistryChange((), current)
            moved = replace(current, state=RequestState.IN_REVIEW)
            return RegistryChange((request_step(moved, self._state.now, REGISTRY, "in_review"),), moved)

        return await self._state.change(decide)


def request_digest(request: NameRequest) -> str:
    """Return the digest of a request that an expert signs. It covers everything that was requested, and nothing that
    later steps add.
    """
    requested = replace(request, state=RequestState.SUBMITTED, retrieval=None, findings=())
    requested = replace(requested, decided_by="", decided_on="", reason="")
    return hashlib.sha256(b"names/" + msgspec.json.encode(requested)).hexdigest()


# The reason that an expert reads in the inbox, by the kind of the request.
_REASONS: Final[Mapping[RequestKind, str]] = {
    "request": "{request.controller} asks for the name {request.subject}",
    "amendment": "{request.controller} changes {request.subject} in a way that breaks its callers",
    "review": "{request.subject} is provisional; {request.reason}",
    "dispute": "{request.controller} claims the prefix {request.subject}",
}
