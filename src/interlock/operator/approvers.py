"""Approvers at the operator endpoint: who may approve, and how a person becomes one in a browser.

Nothing here makes an approver. What is added waits in the inbox as an enrolment, which takes the proof of an approver
or, for the first one, the setup code that the terminal of the node shows.
"""

from typing import Final

from starlette.responses import Response

from interlock.approvals.api import (
    LIST_APPROVERS,
    MAKE_OPERATOR_KEY,
    OFFER_PASSKEY,
    SIGN_APPROVAL,
    TAKE_PASSKEY,
    TOO_OFTEN,
    VISIT_APPROVERS,
    Approval,
    Approvers,
    EnrolPasskey,
    InvitePasskey,
    MakeKey,
    PasskeyOffer,
    SignApproval,
    SignedProof,
)
from interlock.approvals.trust.operator_keys import TooOften
from interlock.approvals.trust.passkeys import GONE
from interlock.crypto.jose import decode_base64url
from interlock.crypto.keys.operator_keys import PASSPHRASE_CHARS_MIN
from interlock.crypto.webauthn.ceremonies import Wrong
from interlock.operator.approvals import PATH, approval_rejection, find_approval
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.pages.frame import page, text
from interlock.operator.requests import RejectedRequest
from interlock.wire.refusal import Refusal

ADMIN: Final = "/admin/approvers"
PAGE: Final = "/approvers"


async def list_approvers(exchange: OperatorExchange[None]) -> Approvers:
    return exchange.operations.approvers.list_all()


async def make_operator_key(exchange: OperatorExchange[MakeKey]) -> Approval:
    wanted = exchange.body
    made = await exchange.operations.approvers.make_key(wanted.name, wanted.passphrase, exchange.principal)
    return find_approval(exchange.operations.approvals, made)


async def offer_passkey(exchange: OperatorExchange[InvitePasskey]) -> PasskeyOffer:
    return exchange.operations.approvers.offer_passkey(exchange.body.name, exchange.principal)


async def take_passkey(exchange: OperatorExchange[EnrolPasskey]) -> Approval:
    made = exchange.body
    client_data, attestation = decode_base64url(made.client_data), decode_base64url(made.attestation)
    if client_data is None or attestation is None:
        raise RejectedRequest(400, "invalid_body", "client_data and attestation are base64url")
    done = await exchange.operations.approvers.take_passkey(
        exchange.path("ticket"), client_data, attestation, exchange.principal
    )
    if isinstance(done, Wrong):
        raise RejectedRequest(404 if done is GONE else 403, "passkey_invalid", done.why, {"reason": done.reason})
    return find_approval(exchange.operations.approvals, done)


async def sign_approval(exchange: OperatorExchange[SignApproval]) -> SignedProof:
    id, wanted = exchange.path("id"), exchange.body
    find_approval(exchange.operations.approvals, id)
    signed = await exchange.operations.approvals.sign(
        id, wanted.answer, wanted.key, wanted.passphrase, by=exchange.principal
    )
    if isinstance(signed, TooOften):
        raise too_often(signed)
    if isinstance(signed, Refusal):
        raise approval_rejection(signed, id)
    return SignedProof(proof=signed)


async def visit_approvers(exchange: OperatorExchange[None]) -> Response:
    found = exchange.operations.approvers.list_all()
    rows = "".join(
        f"<tr><td>{text(one.name)}<td>{text(one.kind)}<td>"
        f"{text(', '.join(one.approves) or 'nothing before it is enrolled')}<td>{text(one.how or 'waits')}</tr>"
        for one in found.approvers
    )
    table = f'<table class="list"><tr><th>Name<th>Kind<th>Approves<th>Enrolled by</tr>{rows}</table>' if rows else ""
    body = (
        f'<main id="approvers"><h1>Who may approve</h1>{table}'
        f'<p class="told" id="told" role="status"></p>{_first(found) if found.needs_first else _passkey(found)}</main>'
    )
    return page("Who may approve", body, script="approvers.js", current="/access")


REQUEST_HANDLERS: RequestHandlers = {
    LIST_APPROVERS: list_approvers,
    MAKE_OPERATOR_KEY: make_operator_key,
    OFFER_PASSKEY: offer_passkey,
    TAKE_PASSKEY: take_passkey,
    SIGN_APPROVAL: sign_approval,
    VISIT_APPROVERS: visit_approvers,
}


def too_often(tried: TooOften) -> RejectedRequest:
    message = f"too many wrong passphrases; try again in {tried.wait_s} s"
    return RejectedRequest(429, TOO_OFTEN.name, message, {"wait_s": tried.wait_s})


def _first(found: Approvers) -> str:
    waiting = "".join(
        f'<p>{text(one.name)} waits: <a href="{PATH}/{text(one.approval_id)}">enrol it</a> with the setup code.</p>'
        for one in found.approvers
        if one.approval_id is not None
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


def _passkey(found: Approvers) -> str:
    if not found.passkey_origin:
        return "<p>Browsers use no passkeys at this address; approve with your key.</p>"
    options = "".join(f"<option>{text(name)}</option>" for name in found.keys)
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
