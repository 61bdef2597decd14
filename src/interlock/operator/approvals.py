"""HTTP handlers of approvals that return pages to browsers: the inbox, the decision form, and the page about approvers.

Programs get the same information as JSON from the operations. No page makes somebody an approver directly: every
addition must be approved in the inbox.
"""

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from starlette.responses import RedirectResponse, Response

from interlock.access.operations import is_browser
from interlock.approvals import api
from interlock.approvals.operations.inbox import check_may_decide
from interlock.core.operator_errors import refused_as
from interlock.crypto.signing import PASSPHRASE_CHARS_MIN
from interlock.operator.approvals_page import approval_page, approvals_page, missing_page, shown
from interlock.operator.endpoint import (
    FORM,
    OperatorExchange,
    RequestHandlers,
    form_body,
    json_body,
    media_type,
    wants_page,
)
from interlock.operator.pages.frame import page, text
from interlock.wire.refusal import NotFound, Refused

PATH: Final = "/approvals"

_WHOLE_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def list_approvals(exchange: OperatorExchange[None]) -> api.Approvals | Response:
    approvals: api.Approvals = await exchange.run()
    return approvals_page() if wants_page(exchange.request) else approvals


async def get_approval(exchange: OperatorExchange[None]) -> api.Approval | Response:
    if not wants_page(exchange.request):
        approval: api.Approval = await exchange.run()
        return approval
    try:
        approval = await exchange.run()
    except NotFound:
        return missing_page("It was never here, or is long over.", 404)
    may_decide = not exchange.roles.isdisjoint(("operator", "admin"))
    return approval_page(approval, may_decide=may_decide, is_session=is_browser(exchange.principal))


async def decide_approval(exchange: OperatorExchange[api.DecideApproval]) -> api.Approval | Response:
    if not wants_page(exchange.request):
        return await _decide(exchange)
    try:
        return await _decide(exchange)
    except Refused as refused:
        # A person who sent a form reads why it was refused on the page that they sent it from.
        try:
            approval = await exchange.call(api.GET_APPROVAL, id=exchange.request.path_params["id"])
        except NotFound:
            raise refused from None
        return approval_page(
            approval,
            error=refused.message,
            status=refused.status,
            may_decide=refused.code not in ("role_required", "bad_origin"),
            is_session=is_browser(exchange.principal),
        )


async def _decide(exchange: OperatorExchange[api.DecideApproval]) -> api.Approval | Response:
    request = exchange.request
    if media_type(request) != FORM:
        exchange.body = await json_body(request, api.DecideApproval)
        decided: api.Approval = await exchange.run()
        return decided
    form = await form_body(request, api.DecideApprovalForm)
    check_may_decide(exchange.roles)
    approval = await exchange.call(api.GET_APPROVAL, id=exchange.request.path_params["id"])
    if form.decision == "approve" and form.folded is None and shown(approval).is_folded:
        raise refused_as(api.FOLDED, "the page folded parts of it; approve those too, or read them first")
    proof = Raw(msgspec.json.encode(form.proof.strip())) if form.proof is not None else UNSET
    exchange.body = api.DecideApproval(
        decision=form.decision, reason=form.reason, tool_class=form.tool_class, proof=proof, code=form.code
    )
    decided = await exchange.run()
    return RedirectResponse(f"{PATH}/{decided.id}", 303)


def is_approval_page(path: str) -> bool:
    """Return whether a path contains the full id of an approval, as links to approvals do.

    Such a page opens without the key of the session, because the id cannot be learned without that key.
    """
    return _WHOLE_ID.fullmatch(path.removeprefix(f"{PATH}/")) is not None


APPROVERS_PAGE: Final = "/approvers"


async def visit_approvers(exchange: OperatorExchange[None]) -> Response:
    approvers: api.Approvers = await exchange.call(api.LIST_APPROVERS)
    rows = "".join(
        f"<tr><td>{text(approver.name)}<td>{text(approver.kind)}<td>"
        f"{text(', '.join(approver.approves) or 'nothing before it is enrolled')}"
        f"<td>{text(approver.how or 'waits')}</tr>"
        for approver in approvers.approvers
    )
    table = f'<table class="list"><tr><th>Name<th>Kind<th>Approves<th>Enrolled by</tr>{rows}</table>' if rows else ""
    body = (
        f'<main id="approvers"><h1>Who may approve</h1>{table}'
        '<p class="told" id="told" role="status"></p>'
        f"{_first_approver_form(approvers) if approvers.needs_first else _passkey_form(approvers)}</main>"
    )
    return page("Who may approve", body, script="approvers.js", current="/access")


def _first_approver_form(approvers: api.Approvers) -> str:
    waiting = "".join(
        f'<p>{text(approver.name)} waits: <a href="{PATH}/{text(approver.approval_id)}">enrol it</a>'
        " with the setup code.</p>"
        for approver in approvers.approvers
        if approver.approval_id is not None
    )
    return (
        f"{waiting}<p>No one may approve yet. Make your operator key: it stays on this machine, encrypted with your"
        " passphrase. The setup code stands on the terminal of the node (interlock serve): no agent can do this for"
        " you.</p>"
        '<form id="first" class="stack">'
        '<label>Your name<br><input name="name" required maxlength="63" value="operator"></label>'
        '<label>A new passphrase<br><input name="passphrase" type="password" required'
        f' minlength="{PASSPHRASE_CHARS_MIN}"'
        ' autocomplete="new-password"></label>'
        '<label>Once more<br><input name="again" type="password" required autocomplete="new-password"></label>'
        '<label>Setup code<br><input name="code" required autocomplete="off"></label>'
        '<p><button class="go">Make the key</button></p></form>'
    )


def _passkey_form(approvers: api.Approvers) -> str:
    if not approvers.passkey_origin:
        return "<p>Browsers use no passkeys at this address; approve with your key.</p>"
    options = "".join(f"<option>{text(name)}</option>" for name in approvers.keys)
    if not options:
        return "<p>To add a passkey takes the operator key: <code>interlock access passkey NAME</code>.</p>"
    return (
        "<p>With a passkey you approve by fingerprint, face or PIN. To add one takes your operator key, once.</p>"
        '<form id="passkey" class="stack">'
        '<label>Name of the passkey<br><input name="name" required maxlength="63"></label>'
        f'<label>Operator key<br><select name="key">{options}</select></label>'
        '<label>Its passphrase<br><input name="passphrase" type="password" required'
        ' autocomplete="current-password"></label>'
        '<p><button class="go">Make the passkey</button></p></form>'
    )


REQUEST_HANDLERS: RequestHandlers = {
    api.LIST_APPROVALS: list_approvals,
    api.GET_APPROVAL: get_approval,
    api.DECIDE_APPROVAL: decide_approval,
    api.VISIT_APPROVERS: visit_approvers,
}
