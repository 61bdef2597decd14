"""The page on which a person becomes an approver. It makes none: every addition waits in the inbox."""

from typing import Final

from starlette.responses import Response

from interlock.approvals.api import LIST_APPROVERS, VISIT_APPROVERS, Approvers
from interlock.crypto.signing import PASSPHRASE_CHARS_MIN
from interlock.operator.approvals import PATH
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.pages.frame import page, text

PAGE: Final = "/approvers"


async def visit_approvers(exchange: OperatorExchange[None]) -> Response:
    approvers: Approvers = await exchange.call(LIST_APPROVERS)
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
        f"{_first(approvers) if approvers.needs_first else _passkey(approvers)}</main>"
    )
    return page("Who may approve", body, script="approvers.js", current="/access")


REQUEST_HANDLERS: RequestHandlers = {VISIT_APPROVERS: visit_approvers}


def _first(approvers: Approvers) -> str:
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


def _passkey(approvers: Approvers) -> str:
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
