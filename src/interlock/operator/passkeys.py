"""The page on which a person makes a passkey, with an invitation.

The ticket in its path is what lets a person in, and it opens nothing else. The passkey counts once the lines that it is
shown as are in the configuration.
"""

import msgspec
from starlette.responses import Response

from interlock.approvals.api import ENROL_PASSKEY, VISIT_INVITATION, EnrolPasskey, PasskeyCreation
from interlock.approvals.api import Invitation as InvitationView
from interlock.approvals.trust.passkeys import GONE, PATH, Invitation, invitation_view
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.pages.frame import page, text
from interlock.operator.requests import refuse_unknown_parameters


def is_invitation(path: str) -> bool:
    return path.startswith(f"{PATH}/")


async def visit_invitation(exchange: OperatorExchange[None]) -> Response:
    visit: tuple[Invitation, PasskeyCreation | None] | None = await exchange.run()
    if visit is None:
        body = f"<main><h1>This invitation is over</h1><p>{text(GONE.why)}.</p></main>"
        return page("No invitation", body, status=404)
    invitation, creation = visit
    return _done_page(invitation_view(invitation)) if creation is None else _page(invitation, creation)


async def enrol_passkey(exchange: OperatorExchange[EnrolPasskey]) -> InvitationView:
    refuse_unknown_parameters(exchange.request, ())
    invitation: InvitationView = await exchange.run()
    return invitation


REQUEST_HANDLERS: RequestHandlers = {VISIT_INVITATION: visit_invitation, ENROL_PASSKEY: enrol_passkey}


def _page(invitation: Invitation, creation: PasskeyCreation) -> Response:
    party, there = invitation.party, text(invitation_view(invitation).url)
    body = (
        f'<main id="invitation" data-asked="{text(msgspec.json.encode(creation).decode())}"'
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


def _done_page(invitation: InvitationView) -> Response:
    body = (
        f'<main id="made"><p class="state done">made</p><h1>The passkey of {text(invitation.name)} is made</h1>'
        "<p>Go back to where you got the address of this page: what is printed there goes into interlock.toml of the"
        " node, and only then does the passkey count.</p>"
        f"<table><tr><th>Thumbprint<td><code>{text(invitation.thumbprint)}</code></tr></table>"
        "<p>The same thumbprint must be printed there.</p></main>"
    )
    return page("The passkey is made", body)
