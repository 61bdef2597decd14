"""Pages that a browser opens without an operator credential. A page either checks another proof or contains no data.

- Login: the ticket in a login link is exchanged for a session. The page sends the ticket in a POST, so that a program
  that only follows links does not use it up.
- Return from an authorization server: the state parameter is checked. All text on the page is escaped.
- Invitation: the ticket in the path allows a person to create a passkey and nothing else. The page shows the thumbprint
  of the passkey, which is valid only once the lines that the inviter gets are in the configuration.
- The console: its pages and files contain no data of the node. Their scripts load the data with a credential.
"""

from collections.abc import Mapping
from html import escape
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from interlock.access.api import END_SESSION, GET_SESSION, USE_LOGIN, VISIT_LOGIN, Session, UseLogin
from interlock.access.operations import SESSION_S, BrowserSession, cookie_name, is_browser
from interlock.approvals.api import ENROL_PASSKEY, VISIT_INVITATION, EnrolPasskey, PasskeyCreation
from interlock.approvals.api import Invitation as InvitationView
from interlock.approvals.trust.passkeys import GONE, PATH, PasskeyInvitation, invitation_view
from interlock.credentials.api import TAKE_OAUTH_RETURN
from interlock.credentials.token import ConsentPage
from interlock.operator import endpoint
from interlock.operator.api import GET_CONSOLE_FILE, GET_OPENAPI
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.operation import Operation
from interlock.operator.pages.frame import (
    CLASSIFICATION,
    GRANTS,
    NAMES,
    PAGES,
    PREFIX,
    assets,
    console_page,
    page,
    text,
)

SESSION: Final = "/session"


async def visit_login(_: OperatorExchange[None]) -> Response:
    body = (
        '<main id="login"><h1>Interlock</h1><p class="told" id="told" role="status"></p>'
        "<p>A login link from <code>interlock open</code> brings you here, and on to the console.</p>"
        "<noscript><p>This takes JavaScript.</p></noscript></main>"
    )
    return page("Log in", body, script="login.js")


async def use_login(exchange: OperatorExchange[UseLogin]) -> Response:
    opened: BrowserSession = await exchange.run()
    record, request = opened.record, exchange.request
    principal = f"browser:{record.id[:8]}"
    answer = endpoint.json_answer(Session(principal=principal, roles=record.roles or (), key=opened.key))
    is_secure = request.url.scheme == "https" or opened.is_secure
    name, max_age = cookie_name(request.headers.get("host", ""), is_secure=is_secure), int(SESSION_S)
    answer.set_cookie(name, opened.cookie, max_age, secure=is_secure, httponly=True, samesite="strict")
    return answer


async def get_session(exchange: OperatorExchange[None]) -> Session:
    key = exchange.request.headers.get(endpoint.KEY_HEADER) if is_browser(exchange.principal) else None
    return Session(principal=exchange.principal, roles=tuple(sorted(exchange.roles)), key=key)


async def end_session(exchange: OperatorExchange[None]) -> Session:
    ended = await get_session(exchange)
    if is_browser(exchange.principal):
        request = exchange.request
        await exchange.call(END_SESSION, host=request.headers.get("host", ""), cookies=request.cookies)
    return ended


_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the code
    "X-Content-Type-Options": "nosniff",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem}}</style></head>
<body><h1>{title}</h1><p>{text}</p><p>Interlock</p></body></html>
"""


FOREIGN: Final = ConsentPage(400, "Nothing was done", "Another page asked for this, not a person.")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Return whether a script of another web page made the request, which its Origin header shows. A browser that was
    only redirected to this page sends no Origin header.
    """
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host", "")  # AIP-30.auth-3
    except ValueError:
        return True


def callback_page(page: ConsentPage) -> Response:
    text = _PAGE.format(title=escape(page.title), text=escape(page.text))
    return HTMLResponse(text, page.status, headers=_HEADERS)


async def take_oauth_return(exchange: OperatorExchange[None]) -> Response:
    request = exchange.request
    # A HEAD request must not use up the state.
    if request.method == "HEAD":
        raise HTTPException(405, headers={"Allow": "GET"})
    if is_foreign(request.headers):
        return callback_page(FOREIGN)
    return callback_page(await exchange.call(TAKE_OAUTH_RETURN, parameters=request.query_params.multi_items()))


def is_invitation(path: str) -> bool:
    return path.startswith(f"{PATH}/")


async def visit_invitation(exchange: OperatorExchange[None]) -> Response:
    visit: tuple[PasskeyInvitation, PasskeyCreation | None] | None = await exchange.run()
    if visit is None:
        body = f"<main><h1>This invitation is over</h1><p>{text(GONE.why)}.</p></main>"
        return page("No invitation", body, status=404)
    invitation, creation = visit
    return _done_page(invitation_view(invitation)) if creation is None else _page(invitation, creation)


async def enrol_passkey(exchange: OperatorExchange[EnrolPasskey]) -> InvitationView:
    endpoint.refuse_unknown_parameters(exchange.request, ())
    invitation: InvitationView = await exchange.run()
    return invitation


def _page(invitation: PasskeyInvitation, creation: PasskeyCreation) -> Response:
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


# The console, whose pages and files contain no data of the node

_PAGES = {page.path: page for page in (*PAGES, GRANTS, NAMES, CLASSIFICATION)}


def is_console(request: Request) -> bool:
    """Return whether a request is for a page or file of the console that contains no data. Such a page is the same for
    everybody and needs no credential.
    """
    path = request.url.path
    if path == "/approvals":
        return request.method == "GET" and endpoint.wants_page(request)
    return path in _PAGES or path.startswith(PREFIX)


_PATHS = (
    *("/", "/activity", "/tools", "/servers", "/agents", "/rooms", "/names"),
    *("/access", "/grants", "/classification"),
)
CONSOLE_PAGES: Final[tuple[Operation[None], ...]] = tuple(
    Operation(
        f"GET {path}",
        f"The page {_PAGES[path].title} of the console, without data.",
        noun="console",
        name=f"show_{_PAGES[path].script.removesuffix('.js')}",
        role="anyone",
        takes_any_query=True,
        is_page=True,
    )
    for path in _PATHS
)


async def show_console_page(exchange: OperatorExchange[None]) -> Response:
    return console_page(_PAGES[exchange.operation.path])


async def get_console_file(exchange: OperatorExchange[None]) -> Response:
    asset = assets().get(exchange.request.path_params["file"])
    if asset is None:
        raise HTTPException(404)
    headers = {"Cache-Control": "no-cache", "ETag": asset.etag, "Content-Security-Policy": "default-src 'none'"}
    etags = exchange.request.headers.get("if-none-match", "")
    if asset.etag in (etag.strip().removeprefix("W/") for etag in etags.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


async def get_openapi(_: OperatorExchange[None]) -> Response:
    from interlock.operator.openapi import encoded_document

    return Response(encoded_document(), media_type="application/json")


REQUEST_HANDLERS: RequestHandlers = {
    **dict.fromkeys(CONSOLE_PAGES, show_console_page),
    GET_CONSOLE_FILE: get_console_file,
    GET_OPENAPI: get_openapi,
    VISIT_LOGIN: visit_login,
    USE_LOGIN: use_login,
    GET_SESSION: get_session,
    END_SESSION: end_session,
    TAKE_OAUTH_RETURN: take_oauth_return,
    VISIT_INVITATION: visit_invitation,
    ENROL_PASSKEY: enrol_passkey,
}
