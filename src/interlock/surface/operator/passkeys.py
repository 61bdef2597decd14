"""Making a passkey at the operator door.

POST /admin/passkeys asks for an invitation, GET /admin/passkeys/{ticket} tells what became of it; both take the role of
an admin. /passkeys/{ticket} is the page a person opens with it: the ticket is what lets them in, and it opens nothing
else. The passkey they make there counts once the lines it is shown as stand in the configuration.
"""

from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from interlock.protocol.jose.base64url import maybe_decode
from interlock.protocol.webauthn.ceremonies import Wrong
from interlock.runtime.base.operator_errors import NotFound
from interlock.runtime.operations.operations import Operations
from interlock.runtime.trust.passkeys import GONE, NO_PARTY, PATH, Invitation, shown
from interlock.surface.operator.approvals import SOCKET_ROLES
from interlock.surface.operator.pages import page, text
from interlock.surface.operator.requests import Rejected, json_answer, json_body, refuse_unknown_parameters

ADMIN: Final = "/admin/passkeys"
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"  # as an [[anchor]] may be called


class Invite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=_NAME)]


class Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_data: str
    attestation: str


def is_invitation(path: str) -> bool:
    return path.startswith(f"{PATH}/")


def passkey_routes(operations: Operations) -> list[Route]:
    async def invite(request: Request) -> Response:
        by = _admin(request)
        wanted = await json_body(request, Invite)
        invitation = operations.passkeys.invite(wanted.name, by)
        if invitation is None:
            raise Rejected(409, "no_passkeys_here", NO_PARTY)
        return json_answer(shown(invitation), status=201)

    async def look(request: Request) -> Response:
        _admin(request)
        invitation = operations.passkeys.maybe_invitation(request.path_params["ticket"])
        if invitation is None:
            raise NotFound("invitation", "")
        return json_answer(shown(invitation))

    async def visit(request: Request) -> Response:
        refuse_unknown_parameters(request, ())
        ticket = request.path_params["ticket"]
        if request.method == "POST":
            return json_answer(await _enrol(operations, ticket, await json_body(request, Made)))
        invitation = operations.passkeys.maybe_invitation(ticket)
        if invitation is None:
            return page("No invitation", f"<h1>This invitation is over</h1><p>{text(GONE.why)}.</p>", status=404)
        if invitation.made is not None:
            return _done_page(shown(invitation))
        return _page(invitation, operations.passkeys.creation(invitation))

    return [
        Route(ADMIN, invite, methods=["POST"]),
        Route(f"{ADMIN}/{{ticket}}", look, methods=["GET"]),
        Route(f"{PATH}/{{ticket}}", visit, methods=["GET", "POST"]),
    ]


async def _enrol(operations: Operations, ticket: str, made: Made) -> dict[str, Any]:
    client_data, attestation = maybe_decode(made.client_data), maybe_decode(made.attestation)
    if client_data is None or attestation is None:
        raise Rejected(400, "invalid_body", "client_data and attestation are base64url")
    done = await operations.passkeys.enrol(ticket, client_data, attestation)
    if isinstance(done, Wrong):
        raise Rejected(404 if done is GONE else 403, "passkey_invalid", done.why, {"reason": done.reason})
    return shown(done)


def _admin(request: Request) -> str:
    state = request.scope.get("state", {})
    if "admin" not in state.get("roles", SOCKET_ROLES):
        raise Rejected(403, "role_required", "this credential may look and not invite people to make passkeys")
    return str(state.get("principal", "local"))


def _page(invitation: Invitation, asked: dict[str, Any]) -> Response:
    party, there = invitation.party, text(shown(invitation)["url"])
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


def _done_page(made: dict[str, Any]) -> Response:
    body = (
        f'<main id="made"><p class="state done">made</p><h1>The passkey of {text(made["name"])} is made</h1>'
        "<p>Go back to where you got the address of this page: what is printed there goes into interlock.toml of the"
        " node, and only then does the passkey count.</p>"
        f"<table><tr><th>Thumbprint<td><code>{text(made['thumbprint'])}</code></tr></table>"
        "<p>The same thumbprint must be printed there.</p></main>"
    )
    return page("The passkey is made", body)
