"""Logins of browsers at the operator endpoint: a link, the page behind it, and the session it becomes.

The link is minted where a credential is: at admin.sock, or with an operator's token. Its page sends the ticket in a
POST, so that a program that only follows links does not use it up.
"""

from typing import Final

from starlette.responses import Response

from interlock.access.api import (
    END_SESSION,
    GET_SESSION,
    LOGIN_FROM_BROWSER,
    LOGIN_OVER,
    MAKE_LOGIN,
    USE_LOGIN,
    VISIT_LOGIN,
    Login,
    Session,
    UseLogin,
)
from interlock.access.logins import (
    SESSION_S,
    cookie_name,
    is_browser,
)
from interlock.core.clock import rfc3339
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.pages.frame import page
from interlock.operator.requests import KEY_HEADER, RejectedRequest, json_answer

SESSION: Final = "/session"
OVER: Final = "this link was used, or is older than a minute; interlock open makes another"


async def make_login(exchange: OperatorExchange[None]) -> Login:
    if is_browser(exchange.principal):  # its time is bounded, and must not be prolonged by itself
        raise RejectedRequest(403, LOGIN_FROM_BROWSER.name, "run interlock open where the node is")
    made = exchange.operations.logins.mint(exchange.roles)
    return Login(url=made.url, expires_at=rfc3339(made.expires_at))


async def visit_login(_: OperatorExchange[None]) -> Response:
    body = (
        '<main id="login"><h1>Interlock</h1><p class="told" id="told" role="status"></p>'
        "<p>A login link from <code>interlock open</code> brings you here, and on to the console.</p>"
        "<noscript><p>This takes JavaScript.</p></noscript></main>"
    )
    return page("Log in", body, script="login.js")


async def use_login(exchange: OperatorExchange[UseLogin]) -> Session | Response:
    session = await exchange.operations.logins.use(exchange.body.ticket)
    if session is None:
        raise RejectedRequest(404, LOGIN_OVER.name, OVER)
    roles, request = session.record.roles or (), exchange.request
    principal = f"browser:{session.record.id[:8]}"
    answer = json_answer(Session(principal=principal, roles=roles, key=session.key))
    is_secure = request.url.scheme == "https" or exchange.operations.logins.is_secure
    answer.set_cookie(
        cookie_name(request.headers.get("host", ""), is_secure=is_secure),
        session.cookie,
        max_age=int(SESSION_S),
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )
    return answer


async def get_session(exchange: OperatorExchange[None]) -> Session:
    key = exchange.request.headers.get(KEY_HEADER) if is_browser(exchange.principal) else None
    return Session(principal=exchange.principal, roles=tuple(sorted(exchange.roles)), key=key)


async def end_session(exchange: OperatorExchange[None]) -> Session:
    ended = await get_session(exchange)
    if is_browser(exchange.principal):
        await exchange.operations.logins.end(exchange.request.headers.get("host", ""), exchange.request.cookies)
    return ended


REQUEST_HANDLERS: RequestHandlers = {
    MAKE_LOGIN: make_login,
    VISIT_LOGIN: visit_login,
    USE_LOGIN: use_login,
    GET_SESSION: get_session,
    END_SESSION: end_session,
}
