"""Logins of browsers: the page behind a login link, and the session that it becomes.

The page sends the ticket in a POST, so that a program that only follows links does not use it up.
"""

from typing import Final

from starlette.responses import Response

from interlock.access.api import END_SESSION, GET_SESSION, USE_LOGIN, VISIT_LOGIN, Session, UseLogin
from interlock.access.logins import SESSION_S, cookie_name, is_browser
from interlock.access.operations import OpenedSession
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.pages.frame import page
from interlock.operator.requests import KEY_HEADER, json_answer

SESSION: Final = "/session"


async def visit_login(_: OperatorExchange[None]) -> Response:
    body = (
        '<main id="login"><h1>Interlock</h1><p class="told" id="told" role="status"></p>'
        "<p>A login link from <code>interlock open</code> brings you here, and on to the console.</p>"
        "<noscript><p>This takes JavaScript.</p></noscript></main>"
    )
    return page("Log in", body, script="login.js")


async def use_login(exchange: OperatorExchange[UseLogin]) -> Response:
    opened: OpenedSession = await exchange.run()
    record, request = opened.session.record, exchange.request
    principal = f"browser:{record.id[:8]}"
    answer = json_answer(Session(principal=principal, roles=record.roles or (), key=opened.session.key))
    is_secure = request.url.scheme == "https" or opened.is_secure
    answer.set_cookie(
        cookie_name(request.headers.get("host", ""), is_secure=is_secure),
        opened.session.cookie,
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
        request = exchange.request
        await exchange.call(END_SESSION, host=request.headers.get("host", ""), cookies=request.cookies)
    return ended


REQUEST_HANDLERS: RequestHandlers = {
    VISIT_LOGIN: visit_login,
    USE_LOGIN: use_login,
    GET_SESSION: get_session,
    END_SESSION: end_session,
}
