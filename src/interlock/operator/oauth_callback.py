"""The page that a person sees after they return from an authorization server. It escapes everything it shows."""

from collections.abc import Mapping
from html import escape
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from interlock.credentials.api import TAKE_OAUTH_RETURN
from interlock.credentials.consents import Page
from interlock.operator.endpoint import OperatorExchange, RequestHandlers

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


FOREIGN: Final = Page(400, "Nothing was done", "Another page asked for this, not a person.")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Return whether a script of another page made the request: a browser that was sent here has no Origin."""
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host", "")  # AIP-30.auth-3
    except ValueError:
        return True


def callback_page(page: Page) -> Response:
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


REQUEST_HANDLERS: RequestHandlers = {TAKE_OAUTH_RETURN: take_oauth_return}
