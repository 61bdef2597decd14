"""The inbox at the operator endpoint: what waits, one approval in full, what happens, and the decision.

Looking takes any credential of an operator. To deny takes the role of an operator or an admin. To approve takes what
the approval requires: mostly a proof, which is judged by the runtime, never here; or the role of an operator.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from starlette.responses import RedirectResponse, Response, StreamingResponse

from interlock.access.logins import is_browser
from interlock.approvals.api import (
    Approval,
    Approvals,
    ApprovalSummary,
    DecideApproval,
    DecideApprovalForm,
    EditProposal,
    PasskeyRequest,
    RevealCode,
    RevealedCode,
)
from interlock.approvals.protocol.approval import Kind, Requires
from interlock.approvals.protocol.state import Status
from interlock.approvals.views import Ambiguous, ApprovalViews
from interlock.ax.protocol.errors import CONFIRMATION_UNKNOWN, PROOF_INVALID, SCOPE_DENIED
from interlock.core.operator_errors import NotFound
from interlock.gate.protocol.held_call import Presented, read_proof_untrusted
from interlock.operator import error_cases
from interlock.operator.approvals_page import approval_page, approvals_page, missing_page, shown
from interlock.operator.endpoint import Endpoint, OperatorExchange, refuse_viewer
from interlock.operator.parameters import ChoiceParameter, TextParameter
from interlock.operator.requests import (
    FORM,
    RejectedRequest,
    form_body,
    json_body,
    media_type,
    wants_page,
)
from interlock.wire.jsonrpc.errors import INVALID_PARAMS, UNAVAILABLE, Fault

PATH: Final = "/approvals"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
BEAT_S: Final = 15.0  # a stream that says nothing for long is closed by proxies

KIND: Final = ChoiceParameter(
    name="kind", description="Only approvals of this kind.", choices=tuple(kind.value for kind in Kind)
)
STATUS: Final = ChoiceParameter(
    name="status",
    description="Only approvals that stand like this; all: every one.",
    choices=(*(status.value for status in Status), "all"),
    default=Status.PENDING.value,
)
CLASS: Final = TextParameter(name="class", description="The answer, where the question has several.")

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
    kind, status = KIND.read(exchange.request), STATUS.read(exchange.request)
    statuses = frozenset(Status) if status == "all" else frozenset((Status(status),))
    found = exchange.operations.approvals.list_all(None if kind is None else Kind(kind), statuses)
    return approvals_page() if wants_page(exchange.request) else found


async def follow_approvals(exchange: OperatorExchange[None]) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = _events(exchange.operations.approvals, lambda: exchange.is_live)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


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
    asked = exchange.operations.approvals.passkey_request(id, CLASS.read(exchange.request))
    if isinstance(asked, Fault):
        raise fault_rejection(asked, id)
    return asked


async def reveal_code(exchange: OperatorExchange[RevealCode]) -> RevealedCode:
    id, proof = exchange.path("id"), Presented(token=exchange.body.proof)
    find_approval(exchange.operations.approvals, id)
    revealed = await exchange.operations.approvals.reveal(id, proof, by=exchange.principal)
    if isinstance(revealed, Fault):
        raise fault_rejection(revealed, id)
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
    if isinstance(decided, Fault):
        raise fault_rejection(decided, exchange.path("id"))
    return RedirectResponse(f"{PATH}/{decided.id}", 303) if form is not None else decided


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=PATH,
        handler=list_approvals,
        summary="What waits for a decision, or was decided.",
        query=(KIND, STATUS),
        is_page=True,
        errors=(error_cases.SELF_APPROVAL,),
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/events",
        handler=follow_approvals,
        summary="What waits now, then every change, each as an event named approval.",
        events=ApprovalSummary,
        errors=(error_cases.SELF_APPROVAL,),
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{id}}",
        handler=get_approval,
        summary="One approval in full, by its id or the beginning of it.",
        is_page=True,
        errors=(error_cases.SELF_APPROVAL, error_cases.NOT_FOUND, error_cases.AMBIGUOUS_ID),
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/{{id}}",
        handler=decide_approval,
        summary="Approve, deny, or return a request to the registry of names.",
        role="operator",
        own_bodies={"application/json": DecideApproval, FORM: DecideApprovalForm},
        is_page=True,
        redirects=True,
        errors=(
            error_cases.ANSWER_NEEDED,
            error_cases.REASON_REQUIRED,
            error_cases.NOT_RETURNABLE,
            error_cases.SELF_APPROVAL,
            error_cases.PARTY,
            error_cases.FOLDED,
            error_cases.PROOF_INVALID,
            error_cases.PROOF_REQUIRED,
            error_cases.NOT_FOUND,
            error_cases.AMBIGUOUS_ID,
            error_cases.CONFIRMATION_OVER,
            error_cases.PROPOSAL_OVER,
            error_cases.PROPOSAL_UNREADY,
            error_cases.PROPOSAL_BARRED,
        ),
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/{{id}}/edit",
        handler=edit_proposal,
        summary="Void a pending proposal of a room, and have one with other params decided instead.",
        role="operator",
        errors=(
            error_cases.NOT_FOUND,
            error_cases.AMBIGUOUS_ID,
            error_cases.PROPOSAL_OVER,
            error_cases.INVALID_PROPOSAL,
        ),
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/{{id}}/code",
        handler=reveal_code,
        summary="Show an operator, upon a proof, the code of an agent's challenge or the token of its start or step.",
        errors=(
            error_cases.SELF_APPROVAL,
            error_cases.PROOF_INVALID,
            error_cases.PROOF_REQUIRED,
            error_cases.NOT_FOUND,
            error_cases.AMBIGUOUS_ID,
            error_cases.CONFIRMATION_OVER,
        ),
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{id}}/passkey",
        handler=ask_passkey,
        summary="What a browser asks a passkey, for it to approve this.",
        query=(CLASS,),
        errors=(
            error_cases.ANSWER_NEEDED,
            error_cases.SELF_APPROVAL,
            error_cases.PROOF_INVALID,
            error_cases.NOT_FOUND,
            error_cases.AMBIGUOUS_ID,
            error_cases.CONFIRMATION_OVER,
        ),
    ),
)


def _from_form(form: DecideApprovalForm) -> DecideApproval:
    proof = Raw(msgspec.json.encode(form.proof.strip())) if form.proof is not None else UNSET
    return DecideApproval(
        decision=form.decision, reason=form.reason, tool_class=form.tool_class, proof=proof, code=form.code
    )


async def _record_decision(approvals: ApprovalViews, id: str, wanted: DecideApproval, by: str) -> Approval | Fault:
    if wanted.decision != "approve":
        answer = "return" if wanted.decision == "return" else None
        return await approvals.deny(id, by=by, reason=wanted.reason, answer=answer)
    proof = read_proof_untrusted(wanted.proof) if wanted.proof else None
    if isinstance(proof, Fault):
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


def fault_rejection(fault: Fault, id: str) -> RejectedRequest:
    data = fault.data or {}
    error = "proof_required" if data.get("reason") == "proof_required" else fault.message
    if fault.code == INVALID_PARAMS and error not in _NAMED:
        error = "invalid_body"
    message = data.get("detail") or fault.message
    status = 403 if error == "self_approval" else _STATUSES.get(fault.code, 409)
    return RejectedRequest(status, error, message, {"approval": id, "code": fault.code, **data})


async def _events(approvals: ApprovalViews, is_live: Callable[[], bool]) -> AsyncIterator[bytes]:
    """What waits now and then every change, with a comment while nothing happens; as long as `is_live`."""
    yield b": approvals\n\n"
    async with contextlib.aclosing(approvals.changes()) as changes:
        upcoming: asyncio.Future[ApprovalSummary] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(changes))
                done, _ = await asyncio.wait((upcoming,), timeout=BEAT_S)
                if not is_live():
                    return
                if not done:
                    yield b": still here\n\n"
                    continue
                change, upcoming = upcoming.result(), None
                yield b"event: approval\nid: %b\ndata: %b\n\n" % (change.id.encode(), msgspec.json.encode(change))
        except StopAsyncIteration:
            return
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
