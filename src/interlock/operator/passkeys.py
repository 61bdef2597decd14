"""Passkeys at the operator endpoint: a person makes one in a browser, with an invitation.

/passkeys/{ticket} is the page a person opens with it: the ticket is what lets them in, and it opens nothing else. The
passkey they make there counts once the lines it is shown as stand in the configuration.
"""

from typing import Final

import msgspec
from starlette.responses import Response

from interlock.approvals.api import (
    ENROL_PASSKEY,
    GET_INVITATION,
    INVITE_PASSKEY,
    VISIT_INVITATION,
    EnrolPasskey,
    InvitePasskey,
    PasskeyCreation,
)
from interlock.approvals.api import Invitation as InvitationView
from interlock.approvals.trust.passkeys import GONE, NO_PARTY, PATH, Invitation, invitation_view
from interlock.core.operator_errors import NotFound
from interlock.crypto.jose import decode_base64url
from interlock.crypto.webauthn.ceremonies import Wrong
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.pages.frame import page, text
from interlock.operator.requests import RejectedRequest, refuse_unknown_parameters

ADMIN: Final = "/admin/passkeys"


def is_invitation(path: str) -> bool:
    return path.startswith(f"{PATH}/")


async def invite_passkey(exchange: OperatorExchange[InvitePasskey]) -> InvitationView:
    invitation = exchange.operations.passkeys.invite(exchange.body.name, exchange.principal)
    if invitation is None:
        raise RejectedRequest(409, "no_passkeys_here", NO_PARTY)
    return invitation_view(invitation)


async def get_invitation(exchange: OperatorExchange[None]) -> InvitationView:
    invitation = exchange.operations.passkeys.maybe_invitation(exchange.path("ticket"))
    if invitation is None:
        raise NotFound("invitation", "")
    return invitation_view(invitation)


async def visit_invitation(exchange: OperatorExchange[None]) -> Response:
    invitation = exchange.operations.passkeys.maybe_invitation(exchange.path("ticket"))
    if invitation is None:
        return page(
            "No invitation", f"<main><h1>This invitation is over</h1><p>{text(GONE.why)}.</p></main>", status=404
        )
    if invitation.made is not None:
        return _done_page(invitation_view(invitation))
    return _page(invitation, exchange.operations.passkeys.creation(invitation))


async def enrol_passkey(exchange: OperatorExchange[EnrolPasskey]) -> InvitationView:
    refuse_unknown_parameters(exchange.request, ())
    made = exchange.body
    client_data, attestation = decode_base64url(made.client_data), decode_base64url(made.attestation)
    if client_data is None or attestation is None:
        raise RejectedRequest(400, "invalid_body", "client_data and attestation are base64url")
    done = await exchange.operations.passkeys.enrol(exchange.path("ticket"), client_data, attestation)
    if isinstance(done, Wrong):
        raise RejectedRequest(404 if done is GONE else 403, "passkey_invalid", done.why, {"reason": done.reason})
    return invitation_view(done)


REQUEST_HANDLERS: RequestHandlers = {
    INVITE_PASSKEY: invite_passkey,
    GET_INVITATION: get_invitation,
    VISIT_INVITATION: visit_invitation,
    ENROL_PASSKEY: enrol_passkey,
}


def _page(invitation: Invitation, asked: PasskeyCreation) -> Response:
    party, there = invitation.party, text(invitation_view(invitation).url)
    body = (
        f'<main id="invitation" data-asked="{text(msgspec.json.encode(asked).decode())}"'
        f' data-origin="{text(party.origin)}">'
        f"<h1>A passkey for {text(invitation.name)}</h1>"
        "<p>With it you approve, on the page of a held call, what agents may not do alone. It stays on your device, in"
        " your account or on your security key; the node gets its public half.</p>"
        '<p class="told" id="told" role="status"></p>'
        '<p><button class="go" id="make" hidden>Make the passkey</button></p>'
        f'<p id="elsewhere" hidden>This page works at <a href="{there}">{there}</a></p>'
        f"<p>It is good at <code>{text(party.origin)}</code> and nowhere else.</p>"
        "<noscript><p>Without JavaScript the browser cannot make one.</p></noscript></main>"
    )
    return page(f"A passkey for {invitation.name}", body, script="passkey.js")


def _done_page(made: InvitationView) -> Response:
    body = (
        f'<main id="made"><p class="state done">made</p><h1>The passkey of {text(made.name)} is made</h1>'
        "<p>Go back to where you got the address of this page: what is printed there goes into interlock.toml of the"
        " node, and only then does the passkey count.</p>"
        f"<table><tr><th>Thumbprint<td><code>{text(made.thumbprint)}</code></tr></table>"
        "<p>The same thumbprint must be printed there.</p></main>"
    )
    return page("The passkey is made", body)
