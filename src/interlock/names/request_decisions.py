"""Decisions on requests: whether one may be made, and what an accepted or denied request makes of the registry.

The checks of a request are repeated when it is accepted: the registry may be another by then. What an expert cannot
accept is told in the outcome of the approval, and the request is rejected with it.
"""

import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, What
from interlock.approvals.protocol.errors import UNAVAILABLE_NOW
from interlock.approvals.protocol.state import Move, Status
from interlock.core.clock import rfc3339
from interlock.core.operator_errors import NotFound, Refused
from interlock.crypto.jose.jwks import thumbprint
from interlock.crypto.jose.public_key import BadKey, read_key_untrusted
from interlock.names.actors import UNNAMED
from interlock.names.protocol.criteria import judge_proposal
from interlock.names.protocol.entry_changes import (
    amended_entry,
    controller_after,
    proposal_of,
    registered_entry,
)
from interlock.names.protocol.life import (
    ANSWER_DAYS,
    ENTRY_MOVES,
    REQUEST_MOVES,
    EntryMove,
    RequestMove,
    RequestState,
    days_after,
)
from interlock.names.protocol.model import Status as EntryStatus
from interlock.names.protocol.records import (
    Holder,
    Request,
    Step,
)
from interlock.names.protocol.registry import Registry
from interlock.names.state import Change, RegistryState, own_entry
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.errors import INVALID_PARAMS, Fault

log = logging.getLogger("interlock.names")

RETURN: Final = "return"  # the answer of a denial that asks for revision
_UNREAD: Final = (
    "the document was not reached from here; attach the copy that you read: interlock names attach {name} FILE"
)
_PARTY: Final = "a party to the request does not decide it; another expert has to"


class RequestDecisions:
    def __init__(self, state: RegistryState, inbox: Inbox, experts: Callable[[str], tuple[str, ...]]) -> None:
        """`experts` names those whose proof decides on a tool, or here on `names.SUBJECT`."""
        self._state = state
        self._inbox = inbox
        self._experts = experts

    def maybe_refusal(self, approval: Approval, decision: Decision, key: str | None) -> Fault | None:
        """Whether this decision may be made at all. `key`: the thumbprint of the key that proved it."""
        request = self._state.registry.requests.get(approval.target or "")
        if request is None:
            return Fault(INVALID_PARAMS, "unknown_request", {"detail": "the registry has no such request"})
        open_ = [one for one in request.findings if one.verdict == "needs_expert"]
        if not (decision.reason or "").strip() and (decision.what is What.DENIED or open_):  # REG-5-10
            codes = ", ".join(dict.fromkeys(one.code for one in open_))
            why = "say why: the registrant is told" if decision.what is What.DENIED else f"say why, in spite of {codes}"
            return Fault(INVALID_PARAMS, "reason_required", {"detail": why})
        is_unread = any(one.code == "skipped_offline" for one in open_)
        if decision.what is What.APPROVED and is_unread and decision.answer != EntryMove.REMOVE.value:
            return Fault(INVALID_PARAMS, "copy_required", {"detail": _UNREAD.format(name=request.subject)})
        if decision.what is What.APPROVED and self._is_party(request, decision, key) and not self._is_sole(request):
            return Fault(INVALID_PARAMS, "self_approval", {"detail": _PARTY})
        return None

    async def settle(self, approval: Approval) -> Approval | Fault:
        """Carries a decision out. What cannot be, is told in the outcome of the approval."""
        decision = approval.decision
        if decision is None or approval.status not in (Status.APPROVED, Status.DENIED):
            return approval
        try:
            if approval.status is Status.DENIED:
                await self._state.change(lambda registry: self._deny(registry, approval, decision))
                return approval
            used = await self._inbox.use(approval.id)
            if isinstance(used, Fault):
                return used
            try:
                await self._state.change(lambda registry: self._accept(registry, approval, decision))
            except (Refused, NotFound) as refused:
                why = f"{refused.error}: {refused.message}" if isinstance(refused, Refused) else "it is gone"
                await self._state.change(lambda registry: self._reject(registry, approval, decision, why))
                return await self._inbox.finish(approval.id, Move.FAIL, why)
            return await self._inbox.finish(approval.id, Move.SUCCEED, "accepted")
        except StoreError as refused_:
            log.error("a decision on %s cannot be carried out: %s", approval.tool, refused_)
            return UNAVAILABLE_NOW

    def _deny(self, registry: Registry, approval: Approval, decision: Decision) -> Change:
        request = found_request(registry, approval.target or "")
        if request.state is not RequestState.IN_REVIEW:
            return Change(())
        is_returned = decision.answer == RETURN or request.kind == "review"  # to remove takes a proof
        move = RequestMove.RETURN if is_returned else RequestMove.REJECT
        day, by = rfc3339(decision.at)[:10], _decided_by(decision)
        moved = moved_request(request, move, day, by, decision.reason or "")
        step = Step(
            at=self._state.now, by=by, what=move.value, subject=request.subject, reason=moved.reason, request=moved
        )
        entry = registry.entry(request.subject)
        if request.kind == "review" and entry is not None:
            step = replace(step, entry=replace(entry, answer_due=days_after(day, ANSWER_DAYS)))
        return Change((step,))

    def _reject(self, registry: Registry, approval: Approval, decision: Decision, why: str) -> Change:
        request = found_request(registry, approval.target or "")
        if request.state is not RequestState.IN_REVIEW:
            return Change(())
        by = _decided_by(decision)
        moved = moved_request(request, RequestMove.REJECT, self._state.today, by, why)
        return Change(
            (Step(at=self._state.now, by=by, what="reject", subject=request.subject, reason=why, request=moved),)
        )

    def _accept(self, registry: Registry, approval: Approval, decision: Decision) -> Change:
        state = self._state
        request = found_request(registry, approval.target or "")
        if request.state is RequestState.ACCEPTED:  # carried out before the node stopped
            return Change(())
        by = _decided_by(decision)
        moved = moved_request(request, RequestMove.ACCEPT, state.today, by, decision.reason or "")
        step = Step(
            at=state.now, by=by, what="accept", subject=request.subject, reason=decision.reason or "", request=moved
        )
        key = decision.proof.key if decision.proof is not None else None
        is_own = self._is_party(request, decision, key) or request.filed_by in UNNAMED
        self_reviewed = is_own and self._is_sole(request)
        if request.kind == "dispute":
            holder = registry.holders[request.subject]
            ruled = Holder(
                prefix=request.subject,
                controller=request.controller,  # REG-7.2-3
                first_entry=holder.first_entry,
                since=min(one.date for one in request.evidence),
                ruling=request.id,
            )
            return Change((replace(step, holder=ruled),))
        if request.proposal is None:
            raise Refused("incomplete", "the request proposes nothing")
        amends = None if request.kind == "request" else own_entry(registry, request.subject)
        if request.kind == "review" and amends is not None:
            move = EntryMove.REMOVE if decision.answer == EntryMove.REMOVE.value else EntryMove.PROMOTE
            if (amends.status, move) not in ENTRY_MOVES:  # REG-7.3-6: its controller has changed it meanwhile
                raise Refused("illegal_transition", f"{amends.surface_name} is {amends.status.value} by now")
            if move is EntryMove.REMOVE:
                return Change((replace(step, what=move.value, entry=amends, is_removed=True),))  # REG-5-14
        proposal = proposal_of(amends) if request.kind == "review" and amends is not None else request.proposal
        findings = judge_proposal(proposal, registry, state.today, request.retrieval, amends=amends)
        barred = [one for one in findings if one.verdict in ("fail", "revise")]
        if barred:  # REG-5-14
            raise Refused(barred[0].code, "; ".join(one.reason for one in barred))
        if request.kind == "review" and amends is not None:
            entry = replace(
                amends, status=EntryStatus.ACTIVE, review_due=None, answer_due=None, self_reviewed=self_reviewed
            )
            return Change((replace(step, what=EntryMove.PROMOTE.value, entry=entry),))
        if amends is not None:
            entry = amended_entry(amends, proposal, request.retrieval, state.today, is_breaking=True)
            return Change((replace(step, what="amend", entry=entry),))
        controller = registry.controller(request.controller)
        if controller.is_proven and not request.is_proven and request.filed_by not in controller.principals:
            raise Refused("not_change_controller", f"{request.filed_by} does not act for {controller.name}")
        entry = registered_entry(proposal, request.retrieval, state.today, self_reviewed=self_reviewed)
        return Change((replace(step, entry=entry, controller=controller_after(registry, request, UNNAMED)),))

    def _is_party(self, request: Request, decision: Decision, key: str | None) -> bool:
        """Whether the one who decides filed the request or acts for its controller."""
        who = decision.proof.anchor if decision.proof is not None else None
        controller = self._state.registry.controller(request.controller)
        people = {one.partition(":")[2] for one in (request.filed_by, *controller.principals)}
        return (
            decision.by in (request.filed_by, *controller.principals)
            or who in people
            or key
            in _thumbprints((*controller.keys, request.proposal.controller_key if request.proposal is not None else ""))
        )

    def _is_sole(self, request: Request) -> bool:
        return len(self._experts(f"names.{request.subject}")) <= 1


def found_request(registry: Registry, id: str) -> Request:
    request = registry.requests.get(id)
    if request is None:
        raise NotFound("request", id)
    return request


def moved_request(request: Request, move: RequestMove, day: str, by: str, reason: str = "") -> Request:
    after = REQUEST_MOVES.get((request.state, move))
    if after is None:
        raise Refused("illegal_transition", f"a request that is {request.state.value} does not {move.value}")
    return replace(request, state=after, decided_on=day, decided_by=by, reason=reason or request.reason)


def _decided_by(decision: Decision) -> str:
    return f"expert:{decision.proof.anchor}" if decision.proof is not None else decision.by


def _thumbprints(keys: tuple[str, ...]) -> set[str | None]:
    found: set[str | None] = set()
    for text in filter(None, keys):
        try:
            found |= {thumbprint(key) for key in read_key_untrusted(text)}
        except BadKey:
            continue
    return found
