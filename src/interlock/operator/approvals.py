"""The inbox at the operator endpoint: what waits, one approval in full, what happens, and the decision.

Looking takes any credential of an operator. To deny takes the role of an operator or an admin. To approve takes what
the approval requires: mostly a proof, which is judged by the runtime, never here; or the role of an operator.
"""

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from starlette.responses import RedirectResponse, Response

from interlock.access.logins import is_browser
from interlock.approvals.api import (
    ASK_PASSKEY,
    CLASS,
    DECIDE_APPROVAL,
    EDIT_PROPOSAL,
    FOLLOW_APPROVALS,
    GET_APPROVAL,
    KIND,
    LIST_APPROVALS,
    REVEAL_CODE,
    STATUS,
    Approval,
    Approvals,
    DecideApproval,
    DecideApprovalForm,
    EditProposal,
    PasskeyRequest,
    RevealCode,
    RevealedCode,
)
from interlock.approvals.protocol.approval import Kind, Requires, Status
from interlock.approvals.views import Ambiguous, ApprovalViews
from interlock.core.operator_errors import NotFound
from interlock.gate.protocol.held_call import Presented, read_proof_untrusted
from interlock.operator.approvals_page import approval_page, approvals_page, missing_page, shown
from interlock.operator.endpoint import OperatorExchange, RequestHandlers, refuse_viewer
from interlock.operator.requests import (
    FORM,
    RejectedRequest,
    form_body,
    json_body,
    media_type,
    wants_page,
)
from interlock.wire.refusal import (
    CONFIRMATION_UNKNOWN,
    INVALID_PARAMS,
    PROOF_INVALID,
    SCOPE_DENIED,
    UNAVAILABLE,
    Refusal,
)

PATH: Final = "/approvals"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"


_NAMED: Final = frozenset(["answer_needed", "reason_required", "self_approval", "not_returnable", "unknown_request"])
_WHOLE_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STATUSES: Final = {
    CONFIRMATION_UNKNOWN: 404,
    PROOF_INVALID: 403,
    SCOPE_DENIED: 403,
    INVALID_PARAMS: 400,
    UNAVAILABLE: 503,
}


async def list_approvals(exchange: OperatorExchange[None]) -> Approvals | Response:
    kind, status = exchange.query(KIND), exchange.query(STATUS)
    statuses = frozenset(Status) if status == "all" else frozenset((Status(status),))
    found = exchange.operations.approvals.list_all(None if kind is None else Kind(kind), statuses)
    return approvals_page() if wants_page(exchange.request) else found


async def follow_approvals(exchange: OperatorExchange[None]) -> object:
    return exchange.operations.approvals.changes()


async def get_approval(exchange: OperatorExchange[None]) -> Approval | Response:
    if not wants_page(exchange.request):
        return find_approval(exchange.operations.approvals, exchange.path("id"))
    try:
        found = find_approval(exchange.operations.approvals, exchange.path("id"))
    except NotFound:
        return missing_page("It was never here, or is long over.", 404)
    may_decide = not exchange.roles.isdisjoint((OPERATOR, ADMIN))
    return approval_page(found, may_decide=may_decide, is_session=is_browser(exchange.principal))


async def ask_passkey(exchange: OperatorExchange[None]) -> PasskeyRequest:
    id = exchange.path("id")
    find_approval(exchange.operations.approvals, id)
    asked = exchange.operations.approvals.passkey_request(id, exchange.query(CLASS))
    if isinstance(asked, Refusal):
        raise approval_rejection(asked, id)
    return asked


async def reveal_code(exchange: OperatorExchange[RevealCode]) -> RevealedCode:
    id, proof = exchange.path("id"), Presented(token=exchange.body.proof)
    find_approval(exchange.operations.approvals, id)
    revealed = await exchange.operations.approvals.reveal(id, proof, by=exchange.principal)
    if isinstance(revealed, Refusal):
        raise approval_rejection(revealed, id)
    return revealed


async def edit_proposal(exchange: OperatorExchange[EditProposal]) -> Approval:
    params = bytes(exchange.body.params)
    if params[:1] != b"{":
        raise RejectedRequest(400, "invalid_body", "params is an object", {"member": "params"})
    refuse_viewer(exchange.roles)
    approvals, rooms = exchange.operations.approvals, exchange.operations.rooms
    found = find_approval(approvals, exchange.path("id"))
    edited = await rooms.edit_proposal(found.id, params, exchange.principal)
    return find_approval(approvals, edited)


async def decide_approval(exchange: OperatorExchange[None]) -> Approval | Response:
    if not wants_page(exchange.request):
        return await _decide(exchange)
    try:
        return await _decide(exchange)
    except RejectedRequest as error:  # a person who sent a form reads why it was refused on the page they sent it from
        found = exchange.operations.approvals.maybe_one(exchange.path("id"))
        if found is None:
            raise
        may_decide = error.error not in ("role_required", "bad_origin")
        return approval_page(
            found,
            error=error.message,
            status=error.status,
            may_decide=may_decide,
            is_session=is_browser(exchange.principal),
        )


async def _decide(exchange: OperatorExchange[None]) -> Approval | Response:
    request, approvals = exchange.request, exchange.operations.approvals
    form = await form_body(request, DecideApprovalForm) if media_type(request) == FORM else None
    wanted = await json_body(request, DecideApproval) if form is None else _from_form(form)
    refuse_viewer(exchange.roles)
    found = find_approval(approvals, exchange.path("id"))
    if wanted.decision == "approve" and found.requires == Requires.ROLE.value and OPERATOR not in exchange.roles:
        raise RejectedRequest(403, "role_required", "to approve this takes an operator's token")
    if form is not None and wanted.decision == "approve" and form.folded is None and shown(found).is_folded:
        raise RejectedRequest(409, "folded", "the page folded parts of it; approve those too, or read them first")
    decided = await _record_decision(approvals, found.id, wanted, exchange.principal)
    if isinstance(decided, Refusal):
        raise approval_rejection(decided, exchange.path("id"))
    return RedirectResponse(f"{PATH}/{decided.id}", 303) if form is not None else decided


REQUEST_HANDLERS: RequestHandlers = {
    LIST_APPROVALS: list_approvals,
    FOLLOW_APPROVALS: follow_approvals,
    GET_APPROVAL: get_approval,
    DECIDE_APPROVAL: decide_approval,
    EDIT_PROPOSAL: edit_proposal,
    REVEAL_CODE: reveal_code,
    ASK_PASSKEY: ask_passkey,
}


def _from_form(form: DecideApprovalForm) -> DecideApproval:
    proof = Raw(msgspec.json.encode(form.proof.strip())) if form.proof is not None else UNSET
    return DecideApproval(
        decision=form.decision, reason=form.reason, tool_class=form.tool_class, proof=proof, code=form.code
    )


async def _record_decision(approvals: ApprovalViews, id: str, wanted: DecideApproval, by: str) -> Approval | Refusal:
    if wanted.decision != "approve":
        answer = "return" if wanted.decision == "return" else None
        return await approvals.deny(id, by=by, reason=wanted.reason, answer=answer)
    proof = read_proof_untrusted(wanted.proof) if wanted.proof else None
    if isinstance(proof, Refusal):
        return proof
    return await approvals.approve(id, proof, by=by, reason=wanted.reason, answer=wanted.tool_class, code=wanted.code)


def is_approval_page(path: str) -> bool:
    """Whether it names one approval by its whole id, as links do: a page opens without the key of the session, and
    who has no key finds no id."""
    return _WHOLE_ID.fullmatch(path.removeprefix(f"{PATH}/")) is not None


def find_approval(approvals: ApprovalViews, id: str) -> Approval:
    try:
        found = approvals.maybe_one(id)
    except Ambiguous as error:
        raise RejectedRequest(409, "ambiguous_id", f"{error}; give more of it", {"ids": error.ids}) from None
    if found is None:
        raise NotFound("approval", id)
    return found


def approval_rejection(refusal: Refusal, id: str) -> RejectedRequest:
    data = refusal.details or {}
    error = "proof_required" if data.get("reason") == "proof_required" else refusal.message
    if refusal.code == INVALID_PARAMS and error not in _NAMED:
        error = "invalid_body"
    message = data.get("detail") or refusal.message
    status = 403 if error == "self_approval" else _STATUSES.get(refusal.code, 409)
    return RejectedRequest(status, error, message, {"approval": id, "code": refusal.number, **data})
